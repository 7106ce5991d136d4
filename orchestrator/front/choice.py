"""What a front recommends: the best trial within a quality bar, the best lossless one and the knee.

The trial that somebody asked for is a choice too.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

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

TRIAL, BEST, LOSSLESS, KNEE = "trial", "best", "best_lossless", "knee"  # kinds of choices
#: A recommendation as plain data where there is no front.
NOTHING_RECOMMENDED: Mapping[str, Any] = {"limits": [], BEST: None, LOSSLESS: None, KNEE: None}
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

    choice: str
    """What it was chosen for, such as `fastest within fid <= 1.2 * vanilla`."""
    probability: float | None = None
    """The share of draws in which it is within its limits, or is the knee if it was chosen as such;
    None where that is certain, or an error unknown. A limit that is relative to vanilla is certain
    for vanilla."""
    limits: tuple[str, ...] = ()
    """Those within which it is the best."""
    bound: float | None = None
    """The value of the first metric that 90 % of draws exceed, or stay below if it is minimised;
    None if its error is unknown, or the trial is no candidate."""
    alternatives: tuple[Trial, ...] | None = None
    """The other trials within the limits that are within error of it in the first metric, by
    falling bound; None if it was not chosen by its bound."""
    preferred_to: Trial | None = None
    """The lossy one of these that has the best bound, if this one was preferred as lossless."""
    preferred_bound: float | None = None
    """The bound of that one."""

    @property
    def basis(self) -> list[str]:
        """How it was chosen by its bound, and what is within error of it; empty if it was chosen
        otherwise.
        """
        if self.alternatives is None:
            return []
        names = [
            f"{trial.name} ({trial.record.label or trial.setting})" for trial in self.alternatives
        ]
        return describe_choice(self.metrics_asked[0], self.bound, names, self.preferred_bound)

    @property
    def notes(self) -> tuple[str, ...]:
        """What to know about the choice."""
        return tuple(limit_notes(self.metrics_asked, self.limits))

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
    limits: tuple[str, ...]
    """Those of the best choice: given ones, or the default bar."""
    choices: Mapping[str, Choice]
    """By kind, where the front has one."""
    lossless: bool = False
    """Whether the best choice is the best lossless one."""

    def require(self, kind: str) -> Choice:
        """The choice of a kind.

        Raises:
            NoChoiceError: the front has none; the message says why.
            QueryError: the kind has no meaning for the front's metrics.
        """
        if kind in self.choices:
            return self.choices[kind]
        front = self.front
        count = counted(len(self.front.candidates), "trial")
        if front.infeasible_note:
            raise NoChoiceError(
                f"{front.infeasible_note}; --infeasible includes them, and --trial N takes any of "
                "them"
            )
        if kind == KNEE:
            raise NoChoiceError(NO_KNEE)
        if kind == BEST:
            wanted = ["lossless"] if self.lossless else []
            wanted += [f"within {limit}" for limit in self.limits]
            raise NoChoiceError(f"none of {count} is {' and '.join(wanted) or 'measured'}")
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
        """Plain data: the limits; by kind, its trial, or None; and what the choice says, with the
        kind before the names.
        """
        found: dict[str, Any] = {"limits": list(self.limits)}
        for kind in (TRIAL, BEST, LOSSLESS, KNEE):
            if kind in self.choices:
                found |= _mapping_of(kind, self.choices[kind])
            elif kind != TRIAL:
                found[kind] = None
        return found


def recommend(
    front: Front,
    limits: Sequence[str] | None = None,
    *,
    lossless: bool = False,
    number: int | None = None,
) -> Recommendation:
    """What a front recommends: the best candidate within limits (BEST), the best lossless one
    (LOSSLESS) and the knee (KNEE), where it has one.

    Args:
        front: in its first metric a choice is the best.
        limits: such as `fid <= 1.2 * vanilla`; an empty list: BEST has none to meet. None: the
            default bar (see `default_limit`), and no BEST where the front has none.
        lossless: BEST is the best lossless trial within the limits.
        number: of a trial that is a choice too (TRIAL), whatever its values.

    Raises:
        QueryError: a limit cannot be parsed, or needs a value that a sweep does not have; `number`
            with several sweeps.
        NoChoiceError: there is no such trial, or its config is invalid.
    """
    found: dict[str, Choice | None] = {}
    if number is not None:
        found[TRIAL] = _chosen(front, front.trial(number), "chosen by number")
    default = default_limit(front) if limits is None else None
    if limits is not None or default is not None:
        limits = [default] if default is not None else limits or []
        found[BEST] = best_within(front, limits, lossless=lossless)
    found[LOSSLESS] = _best_lossless(front)
    found[KNEE] = _knee(front)
    choices = {kind: choice for kind, choice in found.items() if choice is not None}
    return Recommendation(front, tuple(limits or ()), choices, lossless)


def best_within(
    front: Front, limits: Sequence[str] = (), *, lossless: bool = False
) -> Choice | None:
    """The candidate with the best bound in the first metric among those that meet all limits, or a
    lossless one within error of it (see `Bounds.best`); `lossless`: among those that are (see
    `DecodingConfig.is_lossless`). None: no candidate meets the limits.

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
    heading = metric.best_lossless if lossless else metric.best
    heading += f" within {' and '.join(limits)}" if limits else ""
    best = trials[found.best]
    other = found.preferred_to
    return _chosen(
        front,
        best,
        heading,
        probability=_limit_probability(best, limits),
        limits=tuple(limits),
        alternatives=tuple(trials[index] for index in found.alternatives),
        preferred_to=None if other is None else trials[other],
        preferred_bound=None if other is None else front.bound(trials[other]),
    )


def _limit_probability(trial: Trial, limits: Sequence[str]) -> float | None:
    """See `Choice.probability`."""
    relative = all(Constraint.parse(text).relative_to_vanilla for text in limits)
    is_certain = relative and (trial.is_vanilla or not limits)
    return None if is_certain else trial.limit_probability(limits)


def _best_lossless(front: Front) -> Choice | None:
    """The best lossless candidate; None if it is vanilla, or if the first metric is of quality, in
    which lossless settings are equal.
    """
    if not front.metrics[0].is_of_counts:
        return None
    best = best_within(front, lossless=True)
    return None if best is None or best.is_vanilla else best


def _knee(front: Front) -> Choice | None:
    """The front's knee (see `pareto.knee`); None if all of its trials are lossless, so that they
    trade nothing.
    """
    if not is_trade(front.metrics, [member.is_lossless for member in front.members]):
        return None
    found = front.knee
    if found is None:
        return None
    return _chosen(front, found, KNEE, probability=front.knee_confidence(found))


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
