"""How a sweep's front grows with its trials: metrics of the sweep's run, by the number of finished trials."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from orchestrator.results.choices import DEFAULT_FACTORS, has_default_bar
from orchestrator.results.fronts import directions, values_of
from orchestrator.results.indicators import hypervolume
from orchestrator.results.pareto import Floats, knee, nondominated
from orchestrator.results.store import Identity
from orchestrator.results.trials import COMPLETE, FAILED, STOPPED, TrialRecord

_MAX_OBJECTIVES = 3  # of a hypervolume


def sweep_metrics(records: Sequence[TrialRecord], identity: Identity, since: int) -> dict[int, dict[str, float]]:
    """Metrics by the number of trials, of which `since` have been logged. records: by number.

    `knee` is the number of a trial. `best/speedup` is the best first objective among the feasible trials within the
    default bar (see `choices.default_limit`). Hypervolumes have the reference point of `reference`.
    """
    axes = identity.objectives
    toward, baseline = directions(axes), _vanilla(records, identity)
    vanilla = None if baseline is None else values_of([baseline], axes)[0][0]
    quality = next((axis for axis in axes[1:2] if has_default_bar(baseline, axis)), None)
    feasible = [record for record in records if record.feasible]
    values = values_of(feasible, axes)[0]
    feasible = [record for record, row in zip(feasible, values, strict=True) if np.isfinite(row).all()]
    values = values[np.isfinite(values).all(axis=1)]
    found = {}
    for count in range(since + 1, len(records) + 1):
        states = [record.state for record in records[:count]]
        now = values[[record.number < count for record in feasible]]
        on_front = np.flatnonzero(nondominated(now, toward)) if len(now) else np.array([], dtype=np.intp)
        metrics = {"trials": count, "failed": states.count(FAILED), "stopped": states.count(STOPPED)}
        found[count] = {name: float(value) for name, value in metrics.items()} | {"front": float(len(on_front))}
        if len(on_front) and (place := knee(now[on_front], toward)) is not None:
            found[count]["knee"] = float(feasible[on_front[place]].number)
        if vanilla is not None and len(now):
            if len(axes) <= _MAX_OBJECTIVES:
                found[count]["hypervolume"] = hypervolume(now, reference(vanilla, toward), toward)
            if quality is None:
                continue
            bar = DEFAULT_FACTORS[quality.direction] * vanilla[1]
            within = now[now[:, 1] <= bar if quality.direction == "minimize" else now[:, 1] >= bar, 0]
            if len(within):
                best = within.max() if toward[0] == "maximize" else within.min()
                found[count][f"best/{axes[0].name}"] = float(best)
    return found


def reference(vanilla: Floats, toward: Sequence[str]) -> Floats:
    """A point that stays the same while a sweep runs: half of vanilla's value where more is better, else twice it."""
    point: Floats = vanilla + np.abs(vanilla) * np.where(_worse(toward) < 0, -0.5, 1.0)
    return point


def _worse(toward: Sequence[str]) -> Floats:
    """The sign of a change for the worse."""
    return np.array([-1.0 if direction == "maximize" else 1.0 for direction in toward])


def _vanilla(records: Sequence[TrialRecord], identity: Identity) -> TrialRecord | None:
    """Vanilla, if all of its objectives are measured."""
    done = [record for record in records if record.state == COMPLETE and record.config == identity.baseline]
    values = values_of(done[:1], identity.objectives)[0]
    return done[0] if values.size and np.isfinite(values).all() else None
