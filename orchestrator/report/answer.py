"""The report's recommendation: the best setting within a quality bar that a slider moves, the
front's knee, and the fastest lossless setting.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator
from typing import Any

from orchestrator.front.answer import Answer
from orchestrator.front.choice import Choice, recommend
from orchestrator.front.front import Front
from orchestrator.front.plateau import plateau_notes
from orchestrator.front.quality_bar import QualityBar
from orchestrator.report.trials import metric_title
from orchestrator.shown.status import timing_notes
from orchestrator.store import files
from orchestrator.store.sweep import Sweep
from search_spaces.sweep_sections import BUILTIN

_CONFIG_FILE = "fast.yaml"
_PLACEHOLDER = "PROMPT"  # without images in the store


def answer(front: Front) -> dict[str, Any]:
    """What the slider and the recommendation need; empty without a trial that may be on the front.

    `bar`: None if y has no quality bar. `gains`: by a chosen trial, the share of draws in which it
    is better than vanilla in the first metric. `better`, `best` and `best_lossless`: words.
    `basis`: see `Choice.basis`.
    """
    return _render(_ask(front)) if front.candidates else {}


def _ask(front: Front) -> Answer:
    """The answer that the page shows. Its rows are all trials that may be on the front, its notes
    those of `plateau_notes` and `timing_notes`.
    """
    notes = []
    for name, sweep in front.sweeps.items():
        whose = f"{name}, " if len(front.sweeps) > 1 else ""
        notes += [whose + text for text in (*plateau_notes(sweep), *timing_notes(sweep))]
    return Answer.of(
        front,
        front.candidates,
        recommended=recommend(front, []),
        notes=notes,
        bar=QualityBar.of(front),
    )


def _render(answer: Answer) -> dict[str, Any]:
    """An answer with trials as plain data (see `answer`)."""
    first = answer.metrics[0]
    knee = answer.recommended.choices.get("knee")
    lossless = answer.recommended.choices.get("best_lossless")
    best = () if answer.bar is None else answer.bar.best
    chosen = {choice.name: choice for choice in (*best, knee, lossless) if choice is not None}
    return {
        "warnings": list(answer.notes),
        "metric": answer.metrics[1].name,
        "bar": None if answer.bar is None else _bar_entry(answer.bar),
        "better": metric_title(first.better),
        "best": metric_title(first.best),
        "best_lossless": metric_title(first.best_lossless),
        "gains": dict(_gains(chosen.values())),
        "lossless": None if lossless is None else {"id": lossless.name, "basis": lossless.basis},
        "has_speed": first.is_of_counts,
        "knee": None if knee is None else {"id": knee.name, "confidence": knee.probability},
        "commands": _commands(answer),
    }


def _gains(choices: Iterable[Choice]) -> Iterator[tuple[str, float]]:
    for choice in choices:
        if choice.gain_probability is not None:
            yield choice.name, round(choice.gain_probability, 4)


def _bar_entry(bar: QualityBar) -> dict[str, Any]:
    """The slider. `steps` has, for each of its positions, the best trial, the share of draws in
    which that is within the bar, and how it was chosen (see `QualityBar`).
    """
    steps: list[list[Any]] = []
    for best, probability in zip(bar.best, bar.probabilities, strict=True):
        share = None if probability is None else round(probability, 4)
        steps.append([None, None, []] if best is None else [best.name, share, best.basis])
    return bar.range._asdict() | {
        "relation": bar.metric.no_worse,
        "relative": bar.is_relative,
        "steps": steps,
    }


def _commands(answer: Answer) -> dict[str, str]:
    """`pareto`, to which the page adds --best or --knee, and `generate`, with the file that both
    name.
    """
    first, *_ = sweeps = list(answer.sweeps.values())
    pareto = ["specfrontier", "pareto", *(files.location(sweep.storage) for sweep in sweeps)]
    pareto += first.price_options
    if first.identity.objectives != answer.metrics:
        pareto += ["--x", answer.metrics[0].name, "--y", answer.metrics[1].name]
    plugins = {module for trial in answer.rows for module in trial.config.plugins}
    prompt = _short_caption(first)
    options = ["--config", _CONFIG_FILE]
    if first.models != BUILTIN:
        plugins |= {*first.identity.plugins}  # the target's family may be one's
        options = ["--models", first.models, *options]
    generate = files.with_plugins("generate", plugins)
    if prompt.startswith("-"):
        generate += [*options, "--", prompt]
    else:
        generate += [prompt, *options]
    return {"pareto": shlex.join(pareto), "generate": shlex.join(generate), "config": _CONFIG_FILE}


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
