"""The report's recommendation: the best setting within a quality bar that a slider moves, the
front's knee, and the fastest lossless setting.
"""

from __future__ import annotations

import math
import shlex
from typing import Any

from orchestrator.front.choice import (
    DEFAULT_FACTORS,
    KNEE,
    LOSSLESS,
    Choice,
    best_within,
    default_limit,
    recommend,
)
from orchestrator.front.front import Front
from orchestrator.front.plateau import plateau_notes
from orchestrator.front.trial import Trial
from orchestrator.report.trials import metric_title
from orchestrator.shown.status import timing_notes
from orchestrator.store import files
from orchestrator.store.sweep import Sweep
from search_spaces.sweep_sections import BUILTIN

_STEPS = 150  # of the slider, about
_LEAST_STEP = 1e-3  # times the bar: of a slider in the metric's unit
_CONFIG_FILE = "fast.yaml"
_PLACEHOLDER = "PROMPT"  # without images in the store


def answer(front: Front) -> dict[str, Any]:
    """What the slider and the recommendation need; empty without a front.

    `bar`: None if y has no quality bar. `gains` has the share of draws in which a chosen trial is
    better than vanilla in the first metric; `better`, `best` and `best_lossless` are words.
    `basis`: see `Choice.basis`. `warnings`: see `plateau_notes` and `timing_notes`.
    """
    if not front.candidates:
        return {}
    bar, chosen = (None, {}) if front.metrics[1].is_of_counts else _bar(front)
    choices = recommend(front, []).choices
    knee, lossless = choices.get(KNEE), choices.get(LOSSLESS)
    chosen |= {trial.name: trial for trial in (knee, lossless) if trial is not None}
    gains = {name: trial.gain_probability for name, trial in chosen.items()}
    return {
        "warnings": [
            (f"{name}, " if len(front.sweeps) > 1 else "") + text
            for name, sweep in front.sweeps.items()
            for text in (*plateau_notes(sweep), *timing_notes(sweep))
        ],
        "metric": front.metrics[1].name,
        "bar": bar,
        "better": metric_title(front.metrics[0].better),
        "best": metric_title(front.metrics[0].best),
        "best_lossless": metric_title(front.metrics[0].best_lossless),
        "gains": {name: round(share, 4) for name, share in gains.items() if share is not None},
        "lossless": None if lossless is None else {"id": lossless.name, "basis": lossless.basis},
        "has_speed": front.metrics[0].is_of_counts,
        "knee": None if knee is None else {"id": knee.name, "confidence": knee.probability},
        "commands": _commands(front),
    }


def _bar(front: Front) -> tuple[dict[str, Any], dict[str, Choice]]:
    """The quality bar that a slider moves, and the trials that are the best within it somewhere, by
    name.

    The bar is `y <= BAR * vanilla` where there is a default bar, else `y <= BAR`; `>=` for a metric
    that is maximised. `steps` has, for each position of the slider, the trial that `pareto --best`
    finds (None: no trial is within the bar), the share of draws in which it is within the bar
    (None: unknown), and how it was chosen (see `Choice.basis`).
    """
    quality = front.metrics[1]
    relative = default_limit(front) is not None
    slider = _slider(*_ends(front, relative), quality.direction, relative)
    steps = []
    chosen = dict[str, Choice]()
    for number in range(round((slider["high"] - slider["low"]) / slider["step"]) + 1):
        level = slider["low"] + number * slider["step"]
        limit = f"{quality.name} {quality.no_worse} {level:.{slider['places']}f}" + (
            " * vanilla" if relative else ""
        )
        best = best_within(front, [limit])
        share = None if best is None else best.limit_probability([limit])
        name, basis = (None, []) if best is None else (best.name, best.basis)
        steps.append([name, None if share is None else round(share, 4), basis])
        chosen |= {} if best is None else {best.name: best}
    return slider | {"relation": quality.no_worse, "relative": relative, "steps": steps}, chosen


def _ends(front: Front, relative: bool) -> tuple[float, float]:
    """The lowest and the highest bar of use: one that a single trial meets, and one that the best
    trial in the first metric meets, and the one that this was preferred to. In units of vanilla of
    each trial's own sweep, or of the metric.
    """
    quality = front.metrics[1]
    best = best_within(front)

    def level(trial: Trial) -> float:
        vanilla = trial.sweep.baseline
        base = vanilla.metrics[quality.name].value if relative and vanilla is not None else 1.0
        return trial[quality.name] / base

    strict, loose = (min, max) if quality.direction == "minimize" else (max, min)
    strictest = strict(map(level, front.candidates))
    loosest = loose(
        level(trial) for trial in (best, best and best.preferred_to) if trial is not None
    )
    return min(strictest, loosest), max(strictest, loosest)


def _slider(low: float, high: float, direction: str, relative: bool) -> dict[str, Any]:
    """Ends that the bars from low to high lie between, start and step: multiples of a round step,
    or so far from the default bar.
    """
    span = (high - low) or abs(high) or 1.0
    step = 10.0 ** math.floor(math.log10(span / _STEPS))
    step *= next(factor for factor in (1, 2, 5, 10) if span / (step * factor) <= _STEPS)
    size = max(abs(low), abs(high)) or 1.0
    step = max(step, 0.01 if relative else 10.0 ** math.floor(math.log10(size * _LEAST_STEP)))
    outward = math.ceil if direction == "minimize" else math.floor
    zero = DEFAULT_FACTORS[direction] if relative else 0.0
    ends = [zero + outward(round((end - zero) / step, 6)) * step for end in (low, high)]
    start = round(sum(ends) / 2 / step) * step
    places = max(0, -math.floor(math.log10(step) + 1e-9))
    if relative:  # the default bar is within reach; and no constraint multiplies vanilla by 0
        start = zero
        least = zero - math.ceil(zero / step - 1 - 1e-9) * step
        ends = [max(min(ends[0], start), least), max(ends[1], start)]
        places = max(places, 2)
    low, high, start, step = (round(number, places) for number in (*ends, start, step))
    return {"low": low, "high": high, "start": start, "step": step, "places": places}


def _commands(front: Front) -> dict[str, str]:
    """`pareto`, to which the page adds --best or --knee, and `generate`, with the file that both
    name.
    """
    sweeps = list(front.sweeps.values())
    words = ["specfrontier", "pareto", *(files.location(sweep.storage) for sweep in sweeps)]
    words += sweeps[0].price_options
    if sweeps[0].identity.objectives != front.metrics:
        words += ["--x", front.metrics[0].name, "--y", front.metrics[1].name]
    prompt = _short_caption(sweeps[0])
    models = sweeps[0].models
    plugins = {module for trial in front.candidates for module in trial.config.plugins}
    # the target's family may be one's
    plugins |= set() if models == BUILTIN else {*sweeps[0].identity.plugins}
    generate = files.with_plugins("generate", plugins)
    generate += [] if prompt.startswith("-") else [prompt]
    generate += [*([] if models == BUILTIN else ["--models", models]), "--config", _CONFIG_FILE]
    generate += ["--", prompt] if prompt.startswith("-") else []
    return {"pareto": shlex.join(words), "generate": shlex.join(generate), "config": _CONFIG_FILE}


def _short_caption(sweep: Sweep) -> str:
    """The shortest caption of the sweep's first shard, on one line; a placeholder if no image can
    be read.
    """
    shard = next((shard for record in sweep.records for shard in record.image_shards), None)
    if shard is None:
        return _PLACEHOLDER
    try:
        table = files.read_table(sweep.storage, shard, ["caption"], fix="")
    except ValueError:  # the comparer notes it
        return _PLACEHOLDER
    captions = (" ".join(str(text).split()) for text in table["caption"].to_pylist())
    return min(captions, key=lambda text: (len(text), text)) or _PLACEHOLDER
