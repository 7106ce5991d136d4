"""What a front recommends: the best trial within a quality bar, the best lossless one and the knee.

The trial that somebody asked for is a choice too.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Literal, get_args

from orchestrator.errors import NoChoiceError, QueryError
from orchestrator.front.bounds import MAX_NAMED, describe_choice
from orchestrator.front.front import Front
from orchestrator.front.query import limit_notes, limit_samples
from orchestrator.front.questions import limit_on
from orchestrator.front.trial import Candidate, Trial
from orchestrator.store.records import TrialRecord
from orchestrator.text import counted, percent
from search_spaces.constraints import Constraint
from workers.metrics.definition import Metric

#: What a choice was chosen as. A trial is one that somebody asked for.
ChoiceKind = Literal["trial", "best", "best_lossless", "knee"]
#: A recommendation as plain data where there is no front.
NOTHING_RECOMMENDED: Mapping[str, Any] = {
    "limits": [],
    "best": None,
    "best_lossless": None,
    "knee": None,
}
NO_KNEE = (
    "the front has no knee: its trials are all lossless, or none is on the better side of the line "
    "between its ends"
)
# The default bar: times vanilla's value. Published settings with 1.1 to 1.3 times vanilla's fid
# have 0.96 to 1.0 of its CLIP score and HPS v2 (LANTERN, Tables 2, 4 and 6; LANTERN++, Table 2).
DEFAULT_FACTORS = {"minimize": 1.2, "maximize": 0.97}


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class Choice(Candidate):
    """A trial that a front recommends, or that was asked for, and why."""

    choice: str  # what it was chosen for, such as `fastest within fid <= 1.2 * vanilla`
    # The share of draws in which it is within its limits, or is the knee if it was chosen as such.
    # None if an error is unknown, or if it is certain, as vanilla's limits relative to vanilla are.
    probability: float | None = None
    limits: tuple[str, ...] = ()  # those within which it is the best
    # the value of the first metric that 90 % of draws exceed, or stay below if it is minimised;
    # None if its error is unknown, or the trial is no candidate
    bound: float | None = None
    # the other trials within the limits that are within error of it in the first metric, by falling
    # bound; None if it was not chosen by its bound
    alternatives: tuple[Trial, ...] | None = None
    # the lossy one of these that has the best bound, if this one was preferred as lossless
    preferred_to: Trial | None = None
    preferred_bound: float | None = None  # the bound of that one

    @property
    def basis(self) -> list[str]:
        """How it was chosen, if not by its value, and what is within error of it."""
        if self.alternatives is None:
            return []
        names = [
            f"{trial.name} ({trial.record.label or trial.setting})" for trial in self.alternatives
        ]
        metric = self.front_metrics[0]
        values = [trial[metric.name] for trial in (self, *self.alternatives)]
        best = max(values) if metric.direction == "maximize" else min(values)
        return describe_choice(
            metric,
            self.bound,
            names,
            self.preferred_bound,
            has_best_value=values[0] == best,
        )

    @property
    def notes(self) -> tuple[str, ...]:
        """What to know about the choice."""
        return tuple(limit_notes(self.front_metrics, self.limits))

    @property
    def _purpose(self) -> str:
        return self.choice

    def _chances(self) -> list[tuple[str, str]]:
        if self.probability is None:
            return super()._chances()
        return [("holds", f"in {percent(self.probability)} of draws"), *super()._chances()]

    def _remarks(self) -> list[tuple[str, str]]:
        return [("choice", text) for text in self.basis] + [("note", text) for text in self.notes]


@dataclass(frozen=True)
class Recommendation:
    """What a front recommends."""

    front: Front
    limits: tuple[str, ...]  # those of the best choice: given ones, or the default bar
    choices: Mapping[ChoiceKind, Choice]  # by kind, where the front has one
    lossless: bool = False  # whether the best choice is the best lossless one

    def require(self, kind: ChoiceKind) -> Choice:
        """The choice of a kind.

        Raises:
            NoChoiceError: the front has none; the message says why.
            QueryError: the kind has no meaning for the front's metrics.
        """
        if kind in self.choices:
            return self.choices[kind]
        front = self.front
        count = counted(len(front.candidates), "trial")
        if front.infeasible_note:
            raise NoChoiceError(
                f"{front.infeasible_note}; --infeasible includes them, and --trial N takes any of "
                "them"
            )
        if kind == "knee":
            raise NoChoiceError(NO_KNEE)
        if kind == "best":
            conditions = [f"within {limit}" for limit in self.limits]
            if self.lossless:
                conditions.insert(0, "lossless")
            raise NoChoiceError(f"none of {count} is {' and '.join(conditions) or 'measured'}")
        metric = front.metrics[0]
        if not metric.is_of_counts:
            raise QueryError(f"lossless trials have one {metric.name}; add --x speedup")
        raise NoChoiceError(
            f"no lossless trial among these {count} is {metric.better} than vanilla in 90 % of "
            "draws; launch a sweep with more settings whose rule is exact, such as the preset sjd"
        )

    @property
    def decisive(self) -> list[Trial]:
        """The trials whose values decide what is recommended, vanilla left out: the choices; of
        those within error of each, the ones with the best bounds; and the rest of the front.
        """
        chosen = self.choices.values()
        rivals = [trial for choice in chosen for trial in (choice.alternatives or ())[:MAX_NAMED]]
        trials: list[Trial] = [*chosen, *rivals, *self.front.members]
        found = {trial.name: trial for trial in trials}
        return [trial for trial in found.values() if not trial.is_vanilla]

    def to_mapping(self) -> dict[str, Any]:
        """Plain data: the limits, and of each kind the trial and what is known of the choice; None
        for a kind without a choice.
        """
        found: dict[str, Any] = {"limits": list(self.limits)}
        for kind in get_args(ChoiceKind):
            if kind in self.choices:
                found |= _mapping_of(kind, self.choices[kind])
            elif kind != "trial":
                found[kind] = None
        return found


def recommend(
    front: Front,
    limits: Sequence[str] | None = None,
    *,
    lossless: bool = False,
    trial: Candidate | None = None,
) -> Recommendation:
    """What a front recommends: the best candidate within limits, the best lossless one, and the
    knee.

    Args:
        front: in its first metric a choice is the best.
        limits: such as `fid <= 1.2 * vanilla`; an empty list: the best one has none to meet. None:
            the default bar (see `default_limit`), and no best one where the front has no such bar.
        lossless: the best one is the best lossless trial within the limits.
        trial: of the front, a choice too, whatever its values.

    Raises:
        QueryError: a limit cannot be parsed, or needs a value that a sweep does not have.
    """
    found: dict[ChoiceKind, Choice | None] = {}
    if trial is not None:
        found["trial"] = _chosen(front, trial, "chosen by number")
    if limits is None and (default := default_limit(front)) is not None:
        limits = [default]
    if limits is not None:
        found["best"] = best_within(front, limits, lossless=lossless)
    found["best_lossless"] = _best_lossless(front)
    found["knee"] = _knee(front)
    choices = {kind: choice for kind, choice in found.items() if choice is not None}
    return Recommendation(front, tuple(limits or ()), choices, lossless)


def best_within(
    front: Front, limits: Sequence[str] = (), *, lossless: bool = False
) -> Choice | None:
    """The candidate with the best bound in the first metric among those that meet all limits, or a
    lossless one within error of it (see `Bounds.best`). None if no candidate meets the limits.

    lossless: only among the lossless ones (see `DecodingConfig.is_lossless`).

    Raises:
        QueryError: a limit cannot be parsed, or needs a value that a sweep does not have.
    """
    trials = front.candidates
    metric = front.metrics[0]
    origins = {trial.origin for trial in trials} or front.sweeps  # no candidates: maybe no vanilla
    tests = {name: [limit_on(front.sweeps[name], text) for text in limits] for name in origins}
    within = [
        index
        for index, trial in enumerate(trials)
        if all(test(trial.record) for test in tests[trial.origin])
    ]
    if lossless:
        within = [index for index in within if trials[index].is_lossless]
    found = front.bounds.best(within, lambda index: trials[index].is_lossless)
    if found is None:
        return None
    purpose = metric.best_lossless if lossless else metric.best
    if limits:
        purpose += f" within {' and '.join(limits)}"
    best = trials[found.best]
    other = None if found.preferred_to is None else trials[found.preferred_to]
    return _chosen(
        front,
        best,
        purpose,
        probability=_limit_probability(best, limits),
        limits=tuple(limits),
        alternatives=tuple(trials[index] for index in found.alternatives),
        preferred_to=other,
        preferred_bound=None if other is None else front.bound(other),
    )


def _limit_probability(trial: Trial, limits: Sequence[str]) -> float | None:
    """See `Choice.probability`."""
    relative = all(Constraint.parse(text).relative_to_vanilla for text in limits)
    if relative and (trial.is_vanilla or not limits):
        return None
    return trial.limit_probability(limits)


def _best_lossless(front: Front) -> Choice | None:
    """The best lossless candidate; None if it is vanilla, or if the first metric is of quality, in
    which lossless settings are equal.
    """
    if not front.metrics[0].is_of_counts:
        return None
    best = best_within(front, lossless=True)
    if best is None or best.is_vanilla:
        return None
    return best


def _knee(front: Front) -> Choice | None:
    """The front's knee (see `pareto.knee`); None if all of its trials are lossless, so that they
    trade nothing.
    """
    if not is_trade(front.metrics, [member.is_lossless for member in front.members]):
        return None
    found = front.knee
    if found is None:
        return None
    return _chosen(front, found, "knee", probability=front.knee_confidence(found))


def is_trade(metrics: Sequence[Metric], are_lossless: Iterable[bool]) -> bool:
    """Whether the trials of a front trade one metric for another: some are lossy, or a metric after
    the first is of counts.
    """
    return any(metric.is_of_counts for metric in metrics[1:]) or not all(are_lossless)


def _chosen(front: Front, trial: Candidate, choice: str, **more: Any) -> Choice:
    """A candidate as a choice. more: other fields of `Choice`."""
    own = {field.name: getattr(trial, field.name) for field in fields(Candidate)}
    return Choice(choice=choice, bound=front.bound(trial), **own, **more)


def _mapping_of(kind: str, choice: Choice) -> dict[str, Any]:
    """A choice as plain data, with its kind before the names."""
    near = choice.alternatives
    other = choice.preferred_to
    changes = {
        name: {"percent": value, "error": error if math.isfinite(error) else None}
        for name, (value, error) in choice.changes.items()
    }
    return {
        kind: choice.to_mapping(),
        f"{kind}_bound": choice.bound,
        f"{kind}_within_error_of": None if near is None else [trial.name for trial in near],
        f"{kind}_preferred_to": None if other is None else other.name,
        f"{kind}_confidence": choice.probability,
        f"{kind}_gain_confidence": choice.gain_probability,
        f"{kind}_change": changes,
    }


def default_limit(front: Front) -> str | None:
    """The default bar on the second metric, such as `fid <= 1.2 * vanilla`; None where it has no
    meaning: without candidates, or with one in whose sweep the metric has none (see
    `has_default_bar`).
    """
    quality = front.metrics[1]
    origins = {trial.origin for trial in front.candidates}
    baselines = [front.sweeps[name].baseline for name in origins]
    if not baselines or not all(has_default_bar(vanilla, quality) for vanilla in baselines):
        return None
    return f"{quality.name} {quality.no_worse} {DEFAULT_FACTORS[quality.direction]} * vanilla"


def has_default_bar(vanilla: TrialRecord | None, quality: Metric) -> bool:
    """Whether a multiple of vanilla's value is a bar: the metric is of the images' quality, it does
    not compare vanilla with itself, and its value is positive in all draws from its error.
    """
    if quality.is_of_counts or quality.is_of_vanilla:
        return False
    if vanilla is None or quality.name not in vanilla.metrics:
        return False
    samples, _ = limit_samples(vanilla, None, [quality])
    return vanilla.metrics[quality.name].value > 0 and bool((samples > 0).all())


def example_limit(front: Front) -> str:
    """A bar on the second metric: the default one, or the form of one, such as `drift <= X`."""
    return default_limit(front) or f"{front.metrics[1].name} {front.metrics[1].no_worse} X"
