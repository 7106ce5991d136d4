"""The report's recommendation: the fastest setting within a quality bar that a slider moves, and the front's knee."""

from __future__ import annotations

import math
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from orchestrator.results.fronts import Candidate
from orchestrator.results.pareto import Floats
from orchestrator.results.query import limit_draws
from orchestrator.results.store import SWEEP, SWEEPS, read_sweep_yaml
from orchestrator.results.sweep import Front, Sweep
from orchestrator.results.trials import TrialRecord
from workers.data.storage import Storage

QUANTILES = 201  # of a trial's distance from the bar, from the lowest draw to the highest
_STEPS = 150  # of the slider, about
_DEFAULT_FACTORS = {"minimize": 1.2, "maximize": 0.9}  # times vanilla's value
_CONFIG_FILE = "fast.yaml"


def answer(front: Front) -> dict[str, Any]:
    """What the slider and the recommendation need; empty without a front.

    The bar is `y <= BAR * vanilla` where every draw of vanilla's y is positive, else `y <= BAR` (>= for a metric that
    is maximised). The fastest setting within any bar is on the front, so only the front's members have `draws`:
    quantiles of the value that is compared with BAR, from the draws behind `pareto --best`.
    """
    members = front.members
    if not members:
        return {}
    quality = front.axes[1]
    drawn = [_drawn(front, member) for member in members]
    relative = all(
        base is not None and quality.name in base.metrics and base.metrics[quality.name].value > 0 and (b > 0).all()
        for base, _, b in drawn
    )
    bars = [_value(member, base, quality.name, relative) for member, (base, _, _) in zip(members, drawn, strict=True)]
    knee = front.knee()
    return {
        "metric": quality.name,
        "relation": "<=" if quality.direction == "minimize" else ">=",
        "relative": relative,
        "slider": _slider(bars, quality.direction, relative),
        "bars": {member.name: bar for member, bar in zip(members, bars, strict=True)},
        "draws": {
            member.name: _quantiles(own / base if relative else own)
            for member, (_, own, base) in zip(members, drawn, strict=True)
        },
        "knee": None if knee is None else {"id": knee.name, "confidence": front.knee_confidence(knee)},
        "commands": _commands(front),
    }


def _drawn(front: Front, member: Candidate) -> tuple[TrialRecord | None, Floats, Floats]:
    """Vanilla of the member's sweep, and draws of both values of the quality metric."""
    vanilla = front.sweeps[member.sweep].vanilla
    if vanilla is not None and front.axes[1].name not in vanilla.metrics:
        vanilla = None
    own, base = limit_draws(member.record, vanilla, [front.axes[1]])
    return vanilla, own[:, 0], base[:, 0]


def _value(member: Candidate, vanilla: TrialRecord | None, metric: str, relative: bool) -> float:
    value = member.record.metrics[metric].value
    return value / vanilla.metrics[metric].value if relative and vanilla is not None else value


def _quantiles(draws: Floats) -> list[float]:
    return [float(f"{value:.5g}") for value in np.quantile(draws, np.linspace(0, 1, QUANTILES))]


def _slider(bars: Sequence[float], direction: str, relative: bool) -> dict[str, Any]:
    """Ends, start and step, all multiples of a round step; at one end one member meets the bar, at the other all do."""
    low, high = min(bars), max(bars)
    span = (high - low) or abs(high) or 1.0
    step = 10.0 ** math.floor(math.log10(span / _STEPS))
    step *= next(factor for factor in (1, 2, 5, 10) if span / (step * factor) <= _STEPS)
    step = max(step, 0.01) if relative else step
    outward = math.ceil if direction == "minimize" else math.floor
    ends = [outward(low / step) * step, outward(high / step) * step]
    start = _DEFAULT_FACTORS[direction] if relative else sum(ends) / 2
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
    draw = ["specfrontier", "generate", "a large red circle", *_models(sweeps[0]), "--config", _CONFIG_FILE]
    return {"pareto": shlex.join(words), "generate": shlex.join(draw), "config": _CONFIG_FILE}


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
