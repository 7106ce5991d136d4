"""What a front recommends: the best trial within a quality bar, the best lossless one, and the
knee.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from orchestrator.errors import NoChoiceError, QueryError
from orchestrator.front.bounds import MAX_NAMED
from orchestrator.front.front import Front
from orchestrator.front.front_trial import KNEE, Trial
from orchestrator.front.query import limit_samples
from orchestrator.store.records import TrialRecord
from orchestrator.text import counted
from workers.metrics.definition import Metric

BEST, LOSSLESS, TRIAL = "best", "best_lossless", "trial"
NO_KNEE = (
    "the front has no knee: its trials are all lossless, or none is on the better side of the line "
    "between its ends"
)
# The default bar: times vanilla's value. Published settings with 1.1 to 1.3 times vanilla's fid
# have 0.96 to 1.0 of its CLIP score and HPS v2 (LANTERN, Tables 2, 4 and 6; LANTERN++, Table 2).
DEFAULT_FACTORS = {"minimize": 1.2, "maximize": 0.97}


def choose(front: Front, limits: Sequence[str] = (), *, lossless: bool = False) -> dict[str, Trial]:
    """The choices by kind: BEST if there are limits, LOSSLESS and KNEE, where the front has one.
    lossless: BEST is the best lossless trial within the limits.

    Raises:
        QueryError: a limit cannot be parsed, or needs a value that a sweep does not have.
    """
    found = {
        BEST: front.best(limits, lossless=lossless) if limits else None,
        LOSSLESS: front.best_lossless(),
        KNEE: front.knee(),
    }
    return {kind: trial for kind, trial in found.items() if trial is not None}


def default_choices(front: Front) -> dict[str, Trial]:
    """The choices within the default bar, by kind."""
    limit = default_limit(front)
    return choose(front, [limit] if limit else [])


def decisive_trials(front: Front) -> list[Trial]:
    """The trials whose values decide what is recommended, vanilla left out: the choices; of those
    within error of each, the ones with the best bounds; and the rest of the front.
    """
    chosen = list(default_choices(front).values())
    rivals = [trial for choice in chosen for trial in (choice.alternatives or ())[:MAX_NAMED]]
    found = {(trial.origin, trial.number): trial for trial in (*chosen, *rivals, *front.members)}
    return [trial for trial in found.values() if not trial.is_vanilla]


def select(
    front: Front,
    number: int | None = None,
    limits: Sequence[str] = (),
    *,
    lossless: bool = False,
    knee: bool = False,
) -> Trial:
    """The trial with a number; else the knee; else the best one within the limits, of the lossless
    ones if `lossless`.

    Raises:
        NoChoiceError: there is none.
        QueryError: a limit cannot be parsed, or what is asked for has no meaning.
    """
    metric = front.metrics[0]
    if number is not None:
        return replace(front.trial(number), choice="chosen by number")
    _check_feasible(front)
    if knee:
        if (found := front.knee()) is None:
            raise NoChoiceError(NO_KNEE)
        return found
    if limits or not lossless:
        return best_within(front, limits, lossless=lossless)
    if not metric.is_of_counts:
        raise QueryError(f"lossless trials differ in {metric.name} by chance; add --x speedup")
    if (found := front.best_lossless()) is None:
        trials = counted(len(front.candidates), "trial")
        problem = (
            f"no lossless trial among these {trials} is {metric.better} than vanilla in 90 % of "
            "draws"
        )
        raise NoChoiceError(
            f"{problem}; launch a sweep with more settings whose rule is exact, such as the "
            "preset sjd"
        )
    return found


def best_within(front: Front, limits: Sequence[str], *, lossless: bool = False) -> Trial:
    """The trial that `Front.best` finds.

    Raises:
        NoChoiceError: there is none.
        QueryError: a limit cannot be parsed, or needs a value that a sweep does not have.
    """
    _check_feasible(front)
    if (best := front.best(limits, lossless=lossless)) is not None:
        return best
    wanted = [*(["lossless"] if lossless else []), *(f"within {limit}" for limit in limits)]
    raise NoChoiceError(
        f"none of {counted(len(front.candidates), 'trial')} is {' and '.join(wanted) or 'measured'}"
    )


def _check_feasible(front: Front) -> None:
    """Raise NoChoiceError if the sweeps' constraints leave no trial."""
    if front.infeasible_note:
        raise NoChoiceError(
            f"{front.infeasible_note}; --infeasible includes them, and --trial N takes any of them"
        )


def choices_mapping(choices: Mapping[str, Trial], limits: Sequence[str]) -> dict[str, Any]:
    """Plain data: the limits of BEST; by kind, its trial, or None; and what the choice says, with
    the kind before the names.
    """
    found: dict[str, Any] = {"limits": list(limits)}
    for kind in (*([TRIAL] if TRIAL in choices else []), BEST, LOSSLESS, KNEE):
        trial = choices.get(kind)
        found[kind] = None if trial is None else trial.to_mapping()
        if trial is not None:
            within = trial.alternatives
            found[f"{kind}_bound"] = trial.bound
            found[f"{kind}_within_error_of"] = (
                None if within is None else [other.name for other in within]
            )
            found[f"{kind}_preferred_to"] = (
                None if trial.preferred_to is None else trial.preferred_to.name
            )
            found[f"{kind}_confidence"] = trial.probability
            found[f"{kind}_gain_confidence"] = trial.gain_probability
            found[f"{kind}_change"] = {
                name: {
                    "percent": value,
                    "error": error if math.isfinite(error) else None,
                    "by_chance": name in trial.by_chance,
                }
                for name, (value, error) in trial.changes.items()
            }
    return found


def default_limit(front: Front) -> str | None:
    """The default bar on the second metric, such as `fid <= 1.2 * vanilla`; None where it has no
    meaning: without candidates, or with one in whose sweep the metric has none (see
    `has_default_bar`).
    """
    quality, origins = front.metrics[1], {trial.origin for trial in front.candidates}
    if not origins or not all(
        has_default_bar(front.sweeps[name].baseline, quality) for name in origins
    ):
        return None
    return f"{quality.name} {quality.no_worse} {DEFAULT_FACTORS[quality.direction]} * vanilla"


def has_default_bar(vanilla: TrialRecord | None, quality: Metric) -> bool:
    """Whether a multiple of vanilla's value is a bar: the metric is of the images' quality, its
    value says more than that vanilla's images are its own, and it is positive in all draws from its
    error.
    """
    if (
        quality.is_of_counts
        or quality.is_of_vanilla
        or vanilla is None
        or quality.name not in vanilla.metrics
    ):
        return False
    return vanilla.metrics[quality.name].value > 0 and bool(
        (limit_samples(vanilla, None, [quality])[0] > 0).all()
    )


def example_limit(front: Front) -> str:
    """A bar on the second metric: the default one, or the form of one, such as `drift <= X`."""
    return default_limit(front) or f"{front.metrics[1].name} {front.metrics[1].no_worse} X"
