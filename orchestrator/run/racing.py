"""Racing: stop a candidate that a rival beats significantly in every objective, for any search with
per-item results.

`Race` is the test. `EarlyStopping` applies it to the trials of a sweep, `at_full_size` says what a
stopped trial's values mean next to those of complete trials, and `next_trials` which stopped trials
go on at the end of a sweep: those that may still be on the front.

All candidates are measured on the same items (images, prompts, folds), in growing prefixes of one
list: the rungs. The items of a rung are divided into G blocks. A candidate stops if one rival that
was measured on the same items is better in all objectives:

 - One objective: Student's t with G - 1 degrees of freedom, on the differences of the two by block;
   with fewer if noise of few measurements is added (Welch 1947, Satterthwaite 1946). What items
   share cancels. A statistic other than a mean (a distance between distributions) has pseudo-values
   instead of block means (Tukey 1958), from which the bias of order 1 / n is gone. The jackknife
   takes a bias of order 1 / n^k off about k times. So, as long as its parts have one sign, the
   truth is between the values with and without this correction, and a rival must be better by both.
 - All objectives: the largest of their p-values (intersection-union test, Berger 1982). It needs no
   correction, and a rival that ties in one objective never stops a candidate, however good it is in
   the others.
 - The whole search: the share of the error rate for candidate i at each of `rungs` looks is fixed
   in advance, error_rate * h / ((h + i) * (h + i + 1)) / rungs, and divided by the number of
   rivals. The shares of all candidates sum to error_rate, however many there are. So (Bonferroni)
   the probability that the search stops any candidate that no rival beats is at most error_rate.
   Rivals that were chosen by their results on the same items, such as the front of an earlier
   search, are lucky there: all that they were chosen from count as rivals.

Without an error rate a candidate stops if a rival dominates it by the measured values. This is not
a test: noise may decide. It suits a search that tries hundreds of candidates whose objectives
differ by less than their errors on few items, and that revives stopped candidates in the end where
they may be good.

The items must be independent or in random order. A rung is the first items, and the t test assumes
independent blocks: on items in the order of their times (requests, frames), where differences
between candidates drift, the error rate does not hold. Shuffle such items once, in one order for
all candidates.

The t test assumes blocks that are about normal, and the last line that the search does not choose
candidates by the noise of their differences to rivals. A search chooses candidates that look good,
so this makes wrong stops rarer. `benchmarks/racing.py` measures all three.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from orchestrator.front.joint import JointErrors, directions
from orchestrator.front.pareto import dominated
from orchestrator.store.prices import is_priced, violations
from orchestrator.store.records import (
    COMPLETE,
    FAILED,
    STOPPED,
    EarlyStop,
    TrialRecord,
    may_compare_speeds,
)
from search_spaces.constraints import Constraint
from search_spaces.sweep import SweepConfig
from workers.metrics.definition import Metric
from workers.metrics.estimate import Estimate

Floats: TypeAlias = NDArray[np.float64]
Metrics = Mapping[str, Estimate]

_HALF = 32  # half of the error rate is for the first `_HALF` candidates
_DRAWS, _SEED = 4000, 0  # samples of the joint errors of trials that may go on
_ROUNDING = 1e-9  # relative; smaller differences are ties


@dataclass(frozen=True, slots=True, eq=False)
class Scores:
    """The objectives of one candidate on the items of one rung.

    blocks: [G, m] each objective on each block of items; the objective is their mean. noise: [m]
    the standard error that does not come from the items, such as a clock's, estimated with
    noise_dof degrees of freedom. Candidates with the same `source` share it, at the same share of
    their values; others have independent noise. bias: [m] what the jackknife took off the values.
    """

    blocks: Floats
    noise: Floats = field(default_factory=lambda: np.zeros(1))
    source: Hashable = None
    noise_dof: float = np.inf
    bias: Floats = field(default_factory=lambda: np.zeros(1))

    @property
    def values(self) -> Floats:
        """[m] the objectives as measured."""
        measured: Floats = self.blocks.mean(axis=0) + self.bias
        return measured

    @classmethod
    def from_replicates(
        cls,
        values: ArrayLike,
        replicates: ArrayLike,
        noise: ArrayLike = 0.0,
        source: Hashable = None,
        noise_dof: float = np.inf,
    ) -> Scores:
        """Scores of statistics that are not means: values [m], and replicates [m, G], each without
        one block.

        Raises:
            ValueError: other shapes, or fewer than two blocks.
        """
        value, left_out = (
            np.asarray(values, dtype=np.float64),
            np.asarray(replicates, dtype=np.float64),
        )
        if left_out.ndim != 2 or value.shape != left_out.shape[:1] or left_out.shape[1] < 2:
            raise ValueError(
                f"give values [m] and replicates [m, G] with G >= 2, got {value.shape} and "
                f"{left_out.shape}"
            )
        count = left_out.shape[1]
        blocks = count * value - (count - 1) * left_out.T
        errors = np.broadcast_to(np.asarray(noise, dtype=np.float64), value.shape)
        return cls(blocks, errors, source, noise_dof, value - blocks.mean(axis=0))


@dataclass(frozen=True, slots=True)
class Stop:
    """Why a candidate stops: the rival that beats it, and the chance that the race stops it
    wrongly, at most 1. With an error rate, it is at most the candidate's share of it.
    """

    rival: int
    chance: float


@dataclass(frozen=True, slots=True)
class Race:
    """The rule of one search. error_rate: the probability that it stops any candidate that no rival
    beats; None: it stops dominated candidates. rungs: how often a candidate is looked at, at most.

    Raises:
        ValueError: an error rate outside of (0, 1), no rung, or an unknown direction.
    """

    directions: Sequence[Literal["maximize", "minimize"]]
    error_rate: float | None
    rungs: int

    def __post_init__(self) -> None:
        if self.error_rate is not None and not 0 < self.error_rate < 1:
            raise ValueError(f"error_rate must be between 0 and 1, got {self.error_rate}")
        if self.rungs < 1:
            raise ValueError(f"rungs must be at least 1, got {self.rungs}")
        if not self.directions or set(self.directions) - {"maximize", "minimize"}:
            raise ValueError(
                f"give 'maximize' or 'minimize' for each objective, got {list(self.directions)}"
            )

    @property
    def _signs(self) -> Floats:
        """1 where less is better."""
        return np.array([-1.0 if direction == "maximize" else 1.0 for direction in self.directions])

    def level(self, candidate: int) -> float:
        """A candidate's share of the error rate (1 without one); they count from 0 in the order of
        the search.
        """
        if self.error_rate is None:
            return 1.0
        return self.error_rate * _HALF / ((_HALF + candidate) * (_HALF + candidate + 1))

    def decide(
        self, candidate: int, scores: Scores, rivals: Mapping[int, Scores], eligible: int
    ) -> Stop | None:
        """Whether the candidate stops at a rung. None: it goes on.

        rivals: those that were measured on the rung's items. eligible: how many could have been,
        those included that stopped before the rung, and those that rivals were chosen from by their
        results on these items; at least `len(rivals)`. It must not depend on results.

        Raises:
            ValueError: fewer than two blocks, scores of other shapes, or too few `eligible`.
        """
        if eligible < len(rivals):
            raise ValueError(
                f"eligible must be at least the number of rivals, {len(rivals)}, got {eligible}"
            )
        if not rivals:
            return None
        if self.error_rate is None:
            rivals = {
                number: rival for number, rival in rivals.items() if self._dominates(rival, scores)
            }
            if not rivals:
                return None
        chances = np.minimum(
            self.p_values(scores, list(rivals.values())) * eligible * self.rungs, 1.0
        )
        best = int(chances.argmin())
        return (
            Stop(list(rivals)[best], float(chances[best]))
            if chances[best] <= self.level(candidate)
            else None
        )

    def _dominates(self, rival: Scores, scores: Scores) -> bool:
        """Whether none of a rival's values is worse and one is better, beyond rounding."""
        gains = (scores.values - rival.values) * self._signs
        tie = _ROUNDING * (np.abs(scores.values) + np.abs(rival.values))
        return bool((gains >= -tie).all() and (gains > tie).any())

    def p_values(self, scores: Scores, rivals: Sequence[Scores]) -> Floats:
        """For each rival [K], the p-value of "the rival is not better in all objectives", without
        any correction.
        """
        from scipy.special import stdtr

        t, degrees = self._statistics(scores, rivals)
        p: Floats = stdtr(degrees, -t).max(axis=1)
        return p

    def _statistics(self, scores: Scores, rivals: Sequence[Scores]) -> tuple[Floats, Floats]:
        """Student's t [K, m] of every objective's difference, positive if the rival is better;
        degrees of freedom.
        """
        signs = self._signs
        others = np.stack([rival.blocks for rival in rivals])  # [K, G, m]
        count = len(scores.blocks)
        if count < 2 or others.shape[1:] != scores.blocks.shape or others.shape[2] != len(signs):
            raise ValueError(
                f"scores must be [blocks, {len(signs)}] with the same blocks, at least 2, got "
                f"{scores.blocks.shape} and {others.shape[1:]}"
            )
        differences = (scores.blocks - others) * signs
        mean = differences.mean(axis=1)
        mean += np.minimum((scores.bias - np.stack([rival.bias for rival in rivals])) * signs, 0.0)
        by_items = differences.std(axis=1, ddof=1) / np.sqrt(count)
        noise = np.array([_noise_of_difference(scores, rival) for rival in rivals])  # [K, 2, m]
        noise_dof = np.array([[scores.noise_dof, rival.noise_dof] for rival in rivals])[:, :, None]
        variance = by_items**2 + np.square(noise).sum(axis=1)
        spread = by_items**4 / (count - 1) + (noise**4 / noise_dof).sum(axis=1)
        degrees = np.divide(
            variance**2, spread, out=np.full(variance.shape, count - 1.0), where=spread > 0
        )
        scale = np.abs(others.mean(axis=1)) + np.abs(scores.blocks.mean(axis=0))
        tie = np.abs(mean) <= _ROUNDING * scale
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.where(tie, 0.0, mean / np.sqrt(variance)), degrees


def _noise_of_difference(scores: Scores, rival: Scores) -> tuple[Floats, Floats]:
    """The independent parts [m] of the noise in the difference of two."""
    if scores.source is not None and scores.source == rival.source:
        return scores.noise - rival.noise, np.zeros_like(rival.noise)
    return scores.noise, rival.noise


@dataclass(frozen=True, slots=True)
class EarlyStopping:
    """The rule of a sweep with a section `racing`.

    finished: the records of finished trials in the order of their numbers, as the search knows
    them: revived ones as they were when they stopped. A decision depends on those alone that had
    finished before the trial was proposed, so it is the same for any number of workers. earlier:
    the number of trials of earlier sweeps, whose fronts are rivals (see `Source.trials`).
    """

    sweep: SweepConfig
    objectives: Sequence[Metric]
    finished: list[TrialRecord] = field(default_factory=list)
    earlier: int = 0

    def decide(
        self, number: int, images: int, metrics: Metrics, shape: str, device: str
    ) -> EarlyStop | None:
        """Whether trial `number`, measured on `images` images, stops. device: of its speeds (see
        `TrialRecord.device`).

        The configs of `enqueue` never stop, and a rival must meet the sweep's constraints. If a
        speed is an objective, rivals are those that were timed on the same device.
        """
        first = len(self.sweep.enqueue)
        racing = self.sweep.racing
        scores = self._scores(metrics, shape)
        if racing is None or number < first or scores is None:
            return None
        race = Race(
            [metric.direction for metric in self.objectives], racing.error_rate, len(racing.rungs)
        )
        own = max(0, number - self.sweep.search.parallel + 1)
        rivals = {}
        for record in self.finished[:own]:
            rival = self._rival(record, images, device)
            if rival is not None and rival.blocks.shape == scores.blocks.shape:
                rivals[record.number] = rival
        stop = race.decide(number - first, scores, rivals, own + self.earlier)
        return None if stop is None else EarlyStop(stop.rival, images, stop.chance)

    def reason(self, stop: EarlyStop) -> str:
        """Why a trial was stopped, in one sentence."""
        names = " and ".join(metric.name for metric in self.objectives)
        if self.sweep.racing is not None and self.sweep.racing.error_rate is None:
            return (
                f"trial {stop.rival} dominates it by measured {names} on the same {stop.images} "
                "images; not a test"
            )
        return (
            f"trial {stop.rival} is better in {names} on the same {stop.images} images; the chance "
            f"that this is wrong is at most {stop.chance:.1g}"
        )

    def problem(self, images: int, metrics: Metrics, missing: str | None) -> str | None:
        """Why the sweep cannot run with the baseline's metrics on `images` images, and the fix;
        None if it can.

        missing: why required metrics are.
        """
        if self.sweep.racing is None:
            return missing
        if missing:
            return f"on {images} images, {missing}; remove the `racing.rungs` that are too small"
        if self._scores(metrics, "") is not None:
            return None
        counts = ", ".join(
            f"{metric.name} on {len(metrics[metric.name].replicates)}" for metric in self.objectives
        )
        return (
            "racing: all objectives must be measured on the same blocks of captions, at least 2 "
            f"({counts}); choose other objectives, or leave out `racing`"
        )

    def before_revival(self, record: TrialRecord) -> TrialRecord:
        """The record as the search knows it: that of a revived trial as it was when the trial
        stopped.
        """
        stop = record.stop
        if stop is None or not record.is_revived:
            return record
        history = tuple(
            (images, metrics) for images, metrics in record.history if images <= stop.images
        )
        stopped = replace(record, state=STOPPED, images=stop.images, cause=self.reason(stop))
        return replace(stopped, history=history, metrics=history[-1][1])

    def _rival(self, record: TrialRecord, images: int, device: str) -> Scores | None:
        """The scores of a rival on `images` images; None if it has none there, violates a
        constraint, or has a speed on another device as an objective.
        """
        metrics = dict(record.history).get(images)
        if (
            record.state == FAILED
            or record.duplicate_of is not None
            or _violates(record)
            or metrics is None
        ):
            return None
        if not _may_compare(self.objectives, record.timed_on.get(images, ""), device):
            return None
        return self._scores(metrics, record.shape)

    def _scores(self, metrics: Metrics, shape: str) -> Scores | None:
        """The objectives; None if one of them has no values without blocks of captions."""
        entries = [metrics.get(metric.name) for metric in self.objectives]
        measured = [entry for entry in entries if entry is not None and len(entry.replicates) > 1]
        if len(measured) < len(entries) or len({len(entry.replicates) for entry in measured}) > 1:
            return None
        return Scores.from_replicates(
            [entry.value for entry in measured],
            [entry.replicates for entry in measured],
            [entry.noise for entry in measured],
            shape or None,
            min((entry.noise_dof for entry in measured if entry.noise_dof), default=np.inf),
        )


def as_told(
    sweep: SweepConfig, record: TrialRecord, vanilla: TrialRecord
) -> tuple[TrialRecord, TrialRecord]:
    """A trial's record as the search knows it (see `before_revival`), and the same with the values
    to tell.
    """
    objectives = [
        Metric(objective.metric, objective.direction or "minimize")
        for objective in sweep.objectives
    ]
    known = EarlyStopping(sweep, objectives).before_revival(record)
    if known is not record:
        known = with_constraints(known, sweep.constraints, [vanilla])
    return known, at_full_size(known, vanilla)


def at_full_size(record: TrialRecord, vanilla: TrialRecord) -> TrialRecord:
    """A stopped trial's metrics as expected on all images: vanilla's there, plus the difference to
    vanilla on the images that both have. Other records are returned as they are.

    Values of other numbers of images cannot be compared, fid least of all. Vanilla is measured at
    every rung, and the two differ on the same captions and random numbers.
    """
    part = dict(vanilla.history).get(record.images)
    if record.state != STOPPED or part is None:
        return record
    shared = record.metrics.keys() & part.keys() & vanilla.metrics.keys()
    metrics = {
        name: _moved(record.metrics[name], part[name], vanilla.metrics[name])
        for name in sorted(shared)
    }
    return replace(record, metrics=metrics)


def _moved(entry: Estimate, part: Estimate, whole: Estimate) -> Estimate:
    """entry - part + whole, with the replicates of the three.

    Where vanilla is 0 on any number of images (a distance to itself), it does not show how the
    metric falls with n. Then the entry's own jackknife bias of order 1 / n is moved to the other n.
    """
    value = entry.value - part.value + whole.value
    if part.value == whole.value == 0 and entry.replicates:
        bias = (len(entry.replicates) - 1) * (float(np.mean(entry.replicates)) - entry.value)
        value = entry.value - bias * (1 - entry.n / whole.n)
        replicates = np.add(entry.replicates, value - entry.value)
        return replace(entry, value=value, n=whole.n, replicates=tuple(replicates.tolist()))
    if not len(entry.replicates) == len(part.replicates) == len(whole.replicates) > 0:
        return replace(entry, value=value, n=whole.n)
    replicates = np.subtract(entry.replicates, part.replicates) + np.array(whole.replicates)
    count = len(replicates)
    error = math.hypot(np.sqrt((count - 1) * replicates.var()), entry.noise)
    return Estimate(value, error, whole.n, tuple(replicates.tolist()), entry.noise, entry.noise_dof)


def with_constraints(
    record: TrialRecord, constraints: Sequence[Constraint], earlier: Sequence[TrialRecord]
) -> TrialRecord:
    """The record, with the violations of the constraints (see `prices.violations`); `earlier[0]` is
    vanilla.
    """
    return (
        replace(record, constraints=violations(record, constraints, earlier))
        if record.state != FAILED
        else record
    )


def next_trials(
    records: Sequence[TrialRecord],
    objectives: Sequence[Metric],
    numbers: Collection[int],
    *,
    threshold: float,
    budget: int | None,
    failed: Collection[int] = (),
) -> list[int]:
    """Stopped trials in the order in which they would go on to their next rungs; empty: none goes
    on.

    The first one goes on; the others may generate images at the same time, as they are probably
    next. First the trials `numbers`, to the end. Then always the one that is most probably on the
    front, until no probability is above `threshold` or `budget` images (None: no limit) are spent.
    With a budget of images no others follow the first one: they may not be needed. failed: trials
    that could not go on.
    """
    queue = [
        number
        for number in sorted(numbers)
        if records[number].state == STOPPED and number not in failed
    ]
    if not queue and threshold < 1 and (budget is None or _generated(records) < budget):
        shares = front_probabilities(records, objectives)
        uncertain = [
            number for number, share in shares.items() if share > threshold and number not in failed
        ]
        queue = sorted(uncertain, key=lambda number: -shares[number])
    return queue if budget is None else queue[:1]


def front_probabilities(
    records: Sequence[TrialRecord], objectives: Sequence[Metric]
) -> dict[int, float]:
    """For each stopped trial, the share of joint draws from all errors in which no complete trial
    dominates it.

    Its values are those expected on all captions (`at_full_size`). Duplicates, and trials that
    violate a constraint, are left out on both sides; so are complete trials whose speeds, if these
    are objectives, are of another device.
    """
    kept = [record for record in records if record.duplicate_of is None and not _violates(record)]
    complete = [record for record in kept if record.state == COMPLETE]
    stopped = [record for record in kept if record.state == STOPPED]
    if not complete or not stopped:
        return {}
    expected = [at_full_size(record, records[0]) for record in stopped]
    draws = JointErrors.of([*complete, *expected], objectives).samples(_DRAWS, _SEED)
    rivals = draws[:, : len(complete)]
    own = draws[:, len(complete) :]
    shares = np.zeros(len(stopped))
    for device in {record.device for record in stopped}:
        rows = [row for row, record in enumerate(stopped) if record.device == device]
        comparable = [
            row
            for row, rival in enumerate(complete)
            if _may_compare(objectives, rival.device, device)
        ]
        shares[rows] = 1 - dominated(
            own[:, rows], rivals[:, comparable], directions(objectives)
        ).mean(axis=0)
    return {record.number: share for record, share in zip(stopped, shares.tolist(), strict=True)}


def _generated(records: Sequence[TrialRecord]) -> int:
    """Images of all trials."""
    return sum(record.images for record in records if record.duplicate_of is None)


def _may_compare(objectives: Sequence[Metric], one: str, other: str) -> bool:
    """Whether the objectives of trials whose speeds are of these devices can be compared."""
    return may_compare_speeds(one, other) or not any(
        is_priced(metric.name) for metric in objectives
    )


def _violates(record: TrialRecord) -> bool:
    return any(value > 0 for value in record.constraints.values())
