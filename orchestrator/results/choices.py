"""What a front recommends: the best trial within a quality bar, the best lossless one, and the knee."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from orchestrator.results.joint import JointErrors
from orchestrator.results.query import NoChoiceError, QueryError, limit_draws
from orchestrator.results.selection import Selection
from orchestrator.results.text import counted
from search_spaces.constraints import Constraint
from workers.metrics.definition import Metric

if TYPE_CHECKING:
    from orchestrator.results.fronts import Candidate
    from orchestrator.results.sweep import Front
    from orchestrator.results.trials import TrialRecord

BEST, LOSSLESS, KNEE, TRIAL = "best", "best_lossless", "knee", "trial"
NO_KNEE = "the front has no knee: no trial is on the better side of the line between its ends"
# The default bar: times vanilla's value. Published settings with 1.1 to 1.3 times vanilla's fid have 0.96 to 1.0 of its
# CLIP score and HPS v2 (LANTERN, Tables 2, 4 and 6; LANTERN++, Table 2).
DEFAULT_FACTORS = {"minimize": 1.2, "maximize": 0.97}


@dataclass(frozen=True, slots=True)
class Choice:
    """A trial that a front recommends.

    heading: what for, in words. confidence: the share of draws from the errors in which the trial is within the limits,
    or is the knee; None where that is certain, or an error unknown. gain_confidence: see `gain_confidence`. changes: of
    the objectives against vanilla, by name (see `change`). by_chance: those of them that are chance alone, as the trial
    is lossless.
    """

    heading: str
    trial: Candidate
    confidence: float | None
    gain_confidence: float | None
    changes: dict[str, tuple[float, float]]
    by_chance: frozenset[str]

    def facts(self) -> dict[str, Any]:
        """All but heading and trial, as plain data."""
        changes = {
            name: {
                "percent": value,
                "error": error if math.isfinite(error) else None,
                "by_chance": name in self.by_chance,
            }
            for name, (value, error) in self.changes.items()
        }
        return {"confidence": self.confidence, "gain_confidence": self.gain_confidence, "change": changes}


def choose(front: Front, limits: Sequence[str] = (), *, lossless: bool = False) -> dict[str, Choice]:
    """The choices by kind: BEST if there are limits, LOSSLESS and KNEE, where the front has one. lossless: BEST is the
    best lossless trial within the limits.

    Raises:
        QueryError: a limit cannot be parsed, or needs a value that a sweep does not have.
    """
    found = {}
    if limits and (best := best_within(front, limits, lossless=lossless)) is not None:
        found[BEST] = best
    if (trial := front.best_lossless()) is not None:
        found[LOSSLESS] = choice_of(front, trial, front.axes[0].best_lossless)
    if (knee := front.knee()) is not None:
        found[KNEE] = choice_of(front, knee, "knee", front.knee_confidence(knee))
    return found


def select(front: Front, selection: Selection) -> Choice:
    """The trial that is meant.

    Raises:
        NoChoiceError: there is none.
        QueryError: a limit cannot be parsed, or what is asked for has no meaning.
    """
    axis, trials = front.axes[0], counted(len(front.candidates), "trial")
    if selection.number is not None:
        return choice_of(front, trial_by_number(front, selection.number), "chosen by number")
    if selection.knee:
        if (found := front.knee()) is None:
            raise NoChoiceError(NO_KNEE)
        return choice_of(front, found, "knee", front.knee_confidence(found))
    if selection.limits or not selection.lossless:
        if (best := best_within(front, selection.limits, lossless=selection.lossless)) is None:
            wanted = [*(["lossless"] if selection.lossless else []), *(f"within {limit}" for limit in selection.limits)]
            raise NoChoiceError(f"none of {trials} is {' and '.join(wanted) or 'measured'}")
        return best
    if not axis.is_of_counts:
        raise QueryError(f"lossless trials differ in {axis.name} by chance; add --x speedup")
    if (lossless := front.best_lossless()) is None:
        raise NoChoiceError(f"no lossless trial among these {trials} is {axis.better} than vanilla")
    return choice_of(front, lossless, axis.best_lossless)


def trial_by_number(front: Front, number: int) -> Candidate:
    """A finished trial of a front of one sweep, whether or not it may be on the front.

    Raises:
        QueryError: there are several sweeps, no such trial, or its config is invalid.
    """
    from orchestrator.results.fronts import Candidate

    if len(front.sweeps) > 1:
        raise QueryError(f"trial {number}: each of {' and '.join(front.sweeps)} has its own; give one sweep")
    ((name, sweep),) = front.sweeps.items()
    found = next((trial for trial in front.candidates if trial.record.number == number), None)
    if found is not None:
        return found
    row, record = next(((n, r) for n, r in enumerate(sweep.records) if r.number == number), (0, None))
    if record is None:
        raise NoChoiceError(f"sweep {sweep.name}: no finished trial {number}")
    if record.config is None:
        raise NoChoiceError(f"sweep {sweep.name}: trial {number} has no config ({record.cause})")
    names = sweep.names
    return Candidate(row, name, str(number), names.name(record.config), names.describe(record.config), record)


def limit_notes(front: Front, limits: Sequence[str]) -> list[str]:
    """A hint if every limit is on the metric that is optimised, so that nothing limits the others."""
    first, second = (axis.name for axis in front.axes[:2])
    if not limits or any(Constraint.parse(text).metric != first for text in limits):
        return []
    return [
        f"the limit is on {first} alone, whatever {second}; for the best {second} within {limits[0]} make it the first "
        f"objective: --x {second}, in Python x={second!r}"
    ]


def best_within(front: Front, limits: Sequence[str], *, lossless: bool = False) -> Choice | None:
    """The candidate that `Front.best` finds. That it is within the limits is certain without any, and for vanilla if
    all of them are relative to vanilla.
    """
    best, axis = front.best(limits, lossless=lossless), front.axes[0]
    if best is None:
        return None
    heading = axis.best_lossless if lossless else axis.best
    heading += f" within {' and '.join(limits)}" if limits else ""
    is_relative = all(Constraint.parse(text).relative_to_vanilla for text in limits)
    is_certain = not limits or (is_relative and front.is_vanilla(best))
    return choice_of(front, best, heading, None if is_certain else front.limit_confidence(best, limits))


def choices_mapping(choices: Mapping[str, Choice], limits: Sequence[str]) -> dict[str, Any]:
    """Plain data: the limits of BEST; by kind, its trial, or None; and its facts with the kind before their names."""
    found: dict[str, Any] = {"limits": list(limits)}
    for kind in (*([TRIAL] if TRIAL in choices else []), BEST, LOSSLESS, KNEE):
        choice = choices.get(kind)
        found[kind] = None if choice is None else choice.trial.to_mapping()
        found |= {} if choice is None else {f"{kind}_{name}": value for name, value in choice.facts().items()}
    return found


def choice_of(front: Front, trial: Candidate, heading: str = "", confidence: float | None = None) -> Choice:
    """A trial as a choice, whatever it was chosen for."""
    changes = {axis.name: value for axis in front.axes if (value := change(front, trial, axis)) is not None}
    is_lossless = trial.record.is_lossless(front.sweeps[trial.sweep].identity.sampling)
    by_chance = frozenset(axis.name for axis in front.axes if is_lossless and not axis.is_of_counts)
    return Choice(heading, trial, confidence, gain_confidence(front, trial), changes, by_chance)


def gain_confidence(front: Front, trial: Candidate) -> float | None:
    """The share of draws in which a trial's first objective is better than its own sweep's vanilla; None for vanilla
    itself, and where an error is unknown or vanilla lacks the objective."""
    axis, vanilla = front.axes[0], front.sweeps[trial.sweep].baseline
    if vanilla is None or front.is_vanilla(trial) or not _is_measured(axis, vanilla, trial.record):
        return None
    if any(record.metrics[axis.name].known_error is None for record in (trial.record, vanilla)):
        return None
    own, base = limit_draws(trial.record, vanilla, [axis])
    ahead = own - base if axis.direction == "maximize" else base - own
    return float((ahead > 0).mean())


def change(front: Front, trial: Candidate, axis: Metric) -> tuple[float, float] | None:
    """How far a trial's value is from vanilla's in its own sweep, in per cent of vanilla's, and the standard error of
    the difference (NaN: unknown). None for vanilla itself, and without a value of vanilla that is far enough from 0.
    """
    vanilla = front.sweeps[trial.sweep].baseline
    if vanilla is None or front.is_vanilla(trial):
        return None
    if not _is_measured(axis, vanilla, trial.record) or not vanilla.metrics[axis.name].value:
        return None
    difference, error, _ = JointErrors.of([trial.record, vanilla], [axis]).difference(0, 1)
    value, spread = (100 * float(part[0]) / abs(vanilla.metrics[axis.name].value) for part in (difference, error))
    return (value, spread) if math.isfinite(value) else None


def _is_measured(axis: Metric, *records: TrialRecord) -> bool:
    return all(axis.name in record.metrics for record in records)


def default_limit(front: Front) -> str | None:
    """The default bar on the second objective, such as `fid <= 1.2 * vanilla`; None where it has no meaning: without
    candidates, or with one in whose sweep the objective has none (see `has_default_bar`)."""
    quality, owners = front.axes[1], {candidate.sweep for candidate in front.candidates}
    if not owners or not all(has_default_bar(front.sweeps[name].baseline, quality) for name in owners):
        return None
    return f"{quality.name} {quality.no_worse} {DEFAULT_FACTORS[quality.direction]} * vanilla"


def has_bar(axis: Metric) -> bool:
    """Whether a limit on the metric is a quality bar: it says something about the images."""
    return not axis.is_of_counts


def has_default_bar(vanilla: TrialRecord | None, quality: Metric) -> bool:
    """Whether a multiple of vanilla's value is a bar: the metric has one, its value says more than that vanilla's
    images are its own, and it is positive."""
    return has_bar(quality) and not quality.is_of_vanilla and is_positive(vanilla, quality)


def example_limit(front: Front) -> str:
    """A bar on the second objective: the default one, or the form of one, such as `drift <= X`."""
    return default_limit(front) or f"{front.axes[1].name} {front.axes[1].no_worse} X"


def is_positive(vanilla: TrialRecord | None, axis: Metric) -> bool:
    """Whether vanilla's value is measured, and positive in all draws from its error."""
    if vanilla is None or axis.name not in vanilla.metrics or vanilla.metrics[axis.name].value <= 0:
        return False
    return bool((limit_draws(vanilla, None, [axis])[0] > 0).all())
