"""The report's recommendation: the best setting within a quality bar that a slider moves, the front's knee, and the
fastest lossless setting."""

from __future__ import annotations

import math
import shlex
from pathlib import Path
from typing import Any

from orchestrator.results.query import limit_draws
from orchestrator.results.store import SWEEP, SWEEPS, read_sweep_yaml, read_table
from orchestrator.results.sweep import Front, Sweep
from workers.data.storage import Storage

_STEPS = 150  # of the slider, about
_LEAST_STEP = 1e-3  # times the bar: of a slider in the metric's unit
DEFAULT_FACTORS = {"minimize": 1.2, "maximize": 0.9}  # times vanilla's value
_CONFIG_FILE = "fast.yaml"
_PLACEHOLDER = "PROMPT"  # without images in the store


def answer(front: Front) -> dict[str, Any]:
    """What the slider and the recommendation need; empty without a front.

    The bar is `y <= BAR * vanilla` if each sweep's vanilla is positive in all draws, else `y <= BAR`; `>=` for a metric
    that is maximised. `steps` has, for each position of the slider, the trial that `pareto --best` finds (None: no
    trial is within the bar) and the share of draws in which it is within the bar. `gains` has the share of draws in
    which a chosen trial is better than vanilla in the first metric; `better`, `best` and `best_lossless` are words.
    """
    if not front.candidates:
        return {}
    quality = front.axes[1]
    relation = "<=" if quality.direction == "minimize" else ">="
    relative = all(has_positive_vanilla(front, name) for name in {c.sweep for c in front.candidates})
    slider = _slider(*_ends(front, relative), quality.direction, relative)
    places, steps, knee = slider["places"], [], front.knee()
    lossless = front.best_lossless()
    chosen = {trial.name: trial for trial in (knee, lossless) if trial is not None}
    for number in range(round((slider["high"] - slider["low"]) / slider["step"]) + 1):
        bar = slider["low"] + number * slider["step"]
        limits = [f"{quality.name} {relation} {bar:.{places}f}" + (" * vanilla" if relative else "")]
        best = front.best(limits)
        steps.append([None, 0.0] if best is None else [best.name, round(front.limit_confidence(best, limits), 4)])
        chosen |= {} if best is None else {best.name: best}
    gains = {name: front.gain_confidence(trial) for name, trial in chosen.items()}
    return {
        "metric": quality.name,
        "relation": relation,
        "relative": relative,
        "slider": slider,
        "steps": steps,
        "better": front.axes[0].better,
        "best": front.axes[0].best,
        "best_lossless": front.axes[0].best_lossless,
        "gains": {name: round(share, 4) for name, share in gains.items() if share is not None},
        "lossless": None if lossless is None else lossless.name,
        "has_speed": front.axes[0].is_of_counts,
        "knee": None if knee is None else {"id": knee.name, "confidence": front.knee_confidence(knee)},
        "commands": _commands(front),
    }


def has_positive_vanilla(front: Front, name: str) -> bool:
    """Whether vanilla's value of the second metric is positive in all draws from its error."""
    vanilla, quality = front.sweeps[name].vanilla, front.axes[1]
    if vanilla is None or quality.name not in vanilla.metrics or vanilla.metrics[quality.name].value <= 0:
        return False
    return bool((limit_draws(vanilla, None, [quality])[0] > 0).all())


def _ends(front: Front, relative: bool) -> tuple[float, float]:
    """The lowest and the highest bar of use: one that a single trial meets, and one that the best trial in the first
    metric meets. In units of vanilla of each trial's own sweep, or of the metric."""
    (x, y), points = front.axes[:2], []
    for candidate in front.candidates:
        value, vanilla = candidate.record.metrics[y.name].value, front.sweeps[candidate.sweep].vanilla
        base = vanilla.metrics[y.name].value if relative and vanilla is not None else 1.0
        points.append((candidate.record.metrics[x.name].value, value / base))
    x_sign, y_sign = (-1.0 if axis.direction == "maximize" else 1.0 for axis in (x, y))
    strictest = min((value for _, value in points), key=lambda value: y_sign * value)
    loosest = min(points, key=lambda point: (x_sign * point[0], y_sign * point[1]))[1]
    return min(strictest, loosest), max(strictest, loosest)


def _slider(low: float, high: float, direction: str, relative: bool) -> dict[str, Any]:
    """Ends that the bars from low to high lie between, start and step, all multiples of a round step."""
    span = (high - low) or abs(high) or 1.0
    step = 10.0 ** math.floor(math.log10(span / _STEPS))
    step *= next(factor for factor in (1, 2, 5, 10) if span / (step * factor) <= _STEPS)
    size = max(abs(low), abs(high)) or 1.0
    step = max(step, 0.01 if relative else 10.0 ** math.floor(math.log10(size * _LEAST_STEP)))
    outward = math.ceil if direction == "minimize" else math.floor
    ends = [outward(low / step) * step, outward(high / step) * step]
    if relative:
        ends = [max(end, step) for end in ends]  # no constraint multiplies vanilla by 0
    start = DEFAULT_FACTORS[direction] if relative else sum(ends) / 2
    start = min(max(round(start / step) * step, ends[0]), ends[1])
    places = max(0, -math.floor(math.log10(step) + 1e-9))
    low, high, start, step = (round(number, places) for number in (*ends, start, step))
    return {"low": low, "high": high, "start": start, "step": step, "places": places}


def _commands(front: Front) -> dict[str, str]:
    """`pareto`, to which the page adds --best or --knee, and `generate`, with the file that both name."""
    sweeps = list(front.sweeps.values())
    words = ["specfrontier", "pareto", *(location(sweep.storage) for sweep in sweeps)]
    if sweeps[0].identity.objectives != front.axes:
        words += ["--x", front.axes[0].name, "--y", front.axes[1].name]
    prompt = _first_caption(sweeps[0])
    draw = ["specfrontier", "generate", *_models(sweeps[0]), "--config", _CONFIG_FILE]
    draw[2:2] = [] if prompt.startswith("-") else [prompt]
    draw += ["--", prompt] if prompt.startswith("-") else []
    return {"pareto": shlex.join(words), "generate": shlex.join(draw), "config": _CONFIG_FILE}


def _first_caption(sweep: Sweep) -> str:
    """The caption of the sweep's first image, on one line; a placeholder if no image can be read."""
    shard = next((shard for record in sweep.records for shard in record.image_shards), None)
    try:
        table = None if shard is None else read_table(sweep.storage, shard, ["caption_id", "caption"], fix="")
    except ValueError:  # the comparer notes it
        table = None
    if table is None or not table.num_rows:
        return _PLACEHOLDER
    return " ".join(str(table.sort_by("caption_id")["caption"][0].as_py()).split()) or _PLACEHOLDER


def location(storage: Storage) -> str:
    """How a command names the sweep: by its bare name below ./sweeps, else by its place."""
    file = storage.path(SWEEP)
    is_near = file is not None and file.parent.parent == Path(SWEEPS).absolute()
    return file.parent.name if file is not None and is_near else storage.display_name


def _models(sweep: Sweep) -> list[str]:
    given = read_sweep_yaml(sweep.storage).get("models") or {}
    file, entry = (given.get("file"), given.get("name")) if isinstance(given, dict) else (given, None)
    if file in (None, "builtin"):
        return []
    return ["--models", f"{file}#{entry}" if entry else str(file)]
