"""The front of one or more sweeps in two or three metrics, as commands and notebooks show it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from orchestrator.errors import NoChoiceError, QueryError
from orchestrator.front.bounds import Bounds
from orchestrator.front.compare import (
    hypervolume,
    reference_point,
    require_comparable,
    sampled_hypervolumes,
)
from orchestrator.front.front_trial import KNEE, Trial
from orchestrator.front.joint import JointErrors, directions, standard_error, values_of
from orchestrator.front.pareto import Floats, front_confidence, knee, knee_confidence, nondominated
from orchestrator.front.query import passing, require_list
from orchestrator.front.questions import limit_on, objectives_of
from orchestrator.store.names import Form, SettingNames
from orchestrator.store.records import COMPLETE, FAILED, STOPPED
from orchestrator.store.sweep import Sweep
from workers.metrics.definition import Metric

if TYPE_CHECKING:
    import pyarrow

_INFEASIBLE = "outside the constraints"


@dataclass(frozen=True, eq=False)
class Front:
    """The front of one or more sweeps.

    sweeps: by name. metrics: two or three, the first of which is to be the best within limits on
    the others. trials: all trials as a table, with a column `sweep`. rows: those in it that may be
    on the front. left_out: number of the others by reason. form: of the settings' names;
    `ABBREVIATED`: if one on the front must be (`SettingNames.alike`).
    """

    sweeps: Mapping[str, Sweep]
    metrics: tuple[Metric, ...]
    trials: pyarrow.Table
    rows: Sequence[int]
    left_out: Mapping[str, int]
    form: Form = Form.OWN

    @cached_property
    def names(self) -> SettingNames:
        """The names of the settings."""
        baselines = [sweep.identity.sampling for sweep in self.sweeps.values()]
        if self.form is Form.ABBREVIATED:
            return SettingNames.across(baselines).alike(trial.config for trial in self.members)
        return SettingNames.across(baselines, self.form)

    @cached_property
    def candidates(self) -> list[Trial]:
        """The trials that may be on the front, by rising first metric, with the front's marks."""
        owned = [(name, record) for name, sweep in self.sweeps.items() for record in sweep.records]
        found = [Trial(self, *owned[row], row) for row in self.rows]
        joint, toward = self._joint(found), directions(self.metrics)
        on_front, confidence = (
            nondominated(joint.values, toward),
            front_confidence(joint.samples(), toward),
        )
        order = [int(index) for index in np.lexsort(joint.values.T[::-1])]
        members = [index for index in order if on_front[index]]
        within, distinct = dict[int, list[str]](), dict[int, list[str]]()
        for place, index in enumerate(members):
            differs = {other: joint.differ(index, other) for other in members}
            within[index] = [
                found[other].name
                for other in members
                if other != index and not differs[other].any()
            ]
            for following in members[place + 1 : place + 2]:
                pairs = zip(self.metrics, differs[following], strict=True)
                distinct[index] = [metric.name for metric, differ in pairs if differ]
        return [
            replace(
                found[index],
                on_front=bool(on_front[index]),
                confidence=float(confidence[index]),
                distinct_from_next=distinct.get(index),
                within_error_of=within.get(index),
            )
            for index in order
        ]

    @property
    def infeasible_note(self) -> str:
        """A sentence if the sweeps' constraints leave no trial for the front; else ""."""
        count = 0 if self.rows else self.left_out.get(_INFEASIBLE, 0)
        verb = "is" if count == 1 else "are"
        return (
            f"no trial is within the sweep's constraints, {count} {verb} outside" if count else ""
        )

    @cached_property
    def members(self) -> list[Trial]:
        """The trials on the front."""
        return [trial for trial in self.candidates if trial.on_front]

    def _joint(self, trials: Sequence[Trial]) -> JointErrors:
        return JointErrors.of(
            [t.record for t in trials], self.metrics, [t.sweep.identity for t in trials]
        )

    @cached_property
    def joint_errors(self) -> JointErrors:
        """The candidates' values in the metrics, with the errors that they share."""
        return self._joint(self.candidates)

    @cached_property
    def _samples(self) -> Floats:
        return self.joint_errors.samples()

    @cached_property
    def _bounds(self) -> Bounds:
        """The candidates' bounds in the first metric."""
        return Bounds.of(self.joint_errors, self._samples, self.metrics[0].direction)

    def bound(self, trial: Trial) -> float | None:
        """See `Trial.bound`."""
        rows = [candidate.row for candidate in self.candidates]
        bound = self._bounds.values[rows.index(trial.row)] if trial.row in rows else np.nan
        return float(bound) if np.isfinite(bound) else None

    def table(self, trials: Sequence[Trial]) -> pyarrow.Table:
        """Trials as rows. Columns: `sweep`, those of `trial_table`, and the front's marks."""
        import pyarrow as pa

        table, texts = (
            self.trials.take(pa.array([trial.row for trial in trials], pa.int64())),
            pa.list_(pa.string()),
        )
        kinds = {"on_front": pa.bool_(), "confidence": pa.float64(), "distinct_from_next": texts}
        for name, kind in (kinds | {"within_error_of": texts}).items():
            table = table.append_column(
                name, pa.array([getattr(trial, name) for trial in trials], kind)
            )
        return table

    def trial(self, number: int) -> Trial:
        """A finished trial of a front of one sweep, whether or not it may be on the front.

        Raises:
            QueryError: there are several sweeps.
            NoChoiceError: no such trial, or its config is invalid.
        """
        if len(self.sweeps) > 1:
            raise QueryError(
                f"trial {number}: each of {' and '.join(self.sweeps)} has its own; give one sweep"
            )
        if (
            found := next((trial for trial in self.candidates if trial.number == number), None)
        ) is not None:
            return found
        ((name, sweep),) = self.sweeps.items()
        for row, record in enumerate(sweep.records):
            if record.number == number and record.config is None:
                raise NoChoiceError(
                    f"sweep {sweep.name}: trial {number} has no config ({record.cause})"
                )
            if record.number == number:
                return Trial(self, name, record, row)
        raise NoChoiceError(f"sweep {sweep.name}: no finished trial {number}")

    def best(self, limits: Sequence[str] = (), *, lossless: bool = False) -> Trial | None:
        """The candidate with the best bound in the first metric among those that meet all limits,
        or a lossless one within error of it (see `Bounds.best`); `lossless`: among those that are
        (see `DecodingConfig.is_lossless`).

        Raises:
            QueryError: a limit cannot be parsed, or needs a value that a sweep does not have.
        """
        trials, metric = self.candidates, self.metrics[0]
        # one without candidates may lack vanilla
        origins = {trial.origin for trial in trials} or self.sweeps
        tests = {name: [limit_on(self.sweeps[name], text) for text in limits] for name in origins}
        within = [
            i
            for i, trial in enumerate(trials)
            if all(test(trial.record) for test in tests[trial.origin])
        ]
        within = [i for i in within if not lossless or trials[i].is_lossless]
        if (found := self._bounds.best(within, lambda index: trials[index].is_lossless)) is None:
            return None
        heading = metric.best_lossless if lossless else metric.best
        heading += f" within {' and '.join(limits)}" if limits else ""
        return replace(
            trials[found.best],
            choice=heading,
            limits=tuple(limits),
            alternatives=tuple(trials[index] for index in found.alternatives),
            preferred_to=None if found.preferred_to is None else trials[found.preferred_to],
        )

    def best_lossless(self) -> Trial | None:
        """The best lossless candidate; None if it is vanilla, or if the first metric is of quality,
        in which lossless settings differ by chance alone.
        """
        best = self.best(lossless=True) if self.metrics[0].is_of_counts else None
        return None if best is None or best.is_vanilla else best

    def knee(self) -> Trial | None:
        """The front's knee (see `pareto.knee`); None if all of its trials are lossless, so that
        they trade nothing.
        """
        if all(member.is_lossless for member in self.members) and not any(
            m.is_of_counts for m in self.metrics[1:]
        ):
            return None
        found = knee(
            values_of([member.record for member in self.members], self.metrics),
            directions(self.metrics),
        )
        return None if found is None else replace(self.members[found], choice=KNEE)

    def knee_confidence(self, trial: Trial) -> float:
        """The share of draws from the candidates' errors in which this one is the knee."""
        place = [candidate.record for candidate in self.candidates].index(trial.record)
        return knee_confidence(self._samples, directions(self.metrics), place)

    def reference_point(self) -> list[float]:
        """The default reference point, in the metrics' units; computed from all complete trials,
        without filters.
        """
        complete = [
            record
            for sweep in self.sweeps.values()
            for record in sweep.records
            if record.state == COMPLETE
        ]
        return [
            float(value)
            for value in reference_point(
                values_of(complete, self.metrics), directions(self.metrics)
            )
        ]

    def hypervolume(self, reference: Sequence[float]) -> tuple[float, float]:
        """The front's hypervolume up to a reference point, and its standard error: the spread over
        draws from the candidates' errors.
        """
        toward, values = (
            directions(self.metrics),
            values_of([trial.record for trial in self.members], self.metrics),
        )
        samples = sampled_hypervolumes(self._samples, reference, toward)
        return hypervolume(values, reference, toward), standard_error(samples)


def front_of(
    sweeps: Sequence[Sweep],
    x: str | None = None,
    y: str | None = None,
    z: str | None = None,
    where: Iterable[str] = (),
    subject_to: Iterable[str] = (),
    *,
    feasible: bool = True,
) -> Front:
    """The front of two or three metrics over all sweeps together.

    x, y, z: metrics; by default the first sweep's own objectives. where, subject_to: filters and
    constraints on the candidates (see `query`). feasible: only trials within the constraints that
    the sweep was launched with.

    Raises:
        QueryError: a metric, column or constraint that a sweep does not have; a metric whose values
            cannot be compared across the sweeps; a sweep given twice.
    """
    import pyarrow as pa

    require_list(subject_to, "subject_to")
    named = _named(sweeps)
    metrics = objectives_of(sweeps[0], x, y, z)
    for metric in metrics:
        for sweep in sweeps:
            sweep.metric(metric.name)
        require_comparable([sweep.identity for sweep in sweeps], metric.name)
    owned = [(name, record) for name, sweep in named.items() for record in sweep.records]
    limits = {name: [limit_on(sweep, text) for text in subject_to] for name, sweep in named.items()}
    trials = pa.concat_tables([sweep.table for sweep in named.values()], promote_options="default")
    trials = trials.add_column(0, "sweep", pa.array([name for name, _ in owned], pa.string()))
    tests = {
        "by --where": passing(trials, where),
        "failed": [record.state != FAILED for _, record in owned],
        "stopped early": [record.state != STOPPED for _, record in owned],
        "repeated": [record.duplicate_of is None for _, record in owned],
        _INFEASIBLE: [record.feasible or not feasible for _, record in owned],
        "outside --subject-to": [
            all(limit(record) for limit in limits[name]) for name, record in owned
        ],
        "not measured": [
            all(metric.name in record.metrics for metric in metrics) for _, record in owned
        ],
    }
    passed = np.logical_and.accumulate(np.array(list(tests.values()), dtype=np.bool_))
    failed_first = -np.diff(passed.sum(axis=1), prepend=len(owned))
    left_out = {
        reason: int(count) for reason, count in zip(tests, failed_first, strict=True) if count
    }
    return Front(named, metrics, trials, [int(row) for row in np.flatnonzero(passed[-1])], left_out)


def _named(sweeps: Sequence[Sweep]) -> dict[str, Sweep]:
    """The sweeps by name; those of one name by their place, and one on several devices by these,
    too.

    Raises:
        QueryError: a sweep is given twice.
    """
    names = [sweep.name for sweep in sweeps]
    places = [sweep.storage.display_name for sweep in sweeps]
    if len(set(names)) < len(set(places)):
        counts = Counter(dict(zip(places, names, strict=True)).values())
        names = [
            place if counts[name] > 1 else name for name, place in zip(names, places, strict=True)
        ]
    counts = Counter(names)
    names = [
        f"{n} on {s.machine}" if counts[n] > 1 else n for n, s in zip(names, sweeps, strict=True)
    ]
    if len(set(names)) < len(names):
        raise QueryError("a sweep is given twice; name each once")
    return dict(zip(names, sweeps, strict=True))
