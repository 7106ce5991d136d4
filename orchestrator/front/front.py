"""The front of one or more sweeps in two or three metrics, as commands and notebooks show it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import compress, pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from orchestrator.errors import NoChoiceError, QueryError
from orchestrator.front.bounds import Bounds
from orchestrator.front.compare import (
    hypervolume,
    obstacles,
    reference_point,
    require_comparable,
    sampled_hypervolumes,
)
from orchestrator.front.joint import JointErrors, directions, standard_error, values_of
from orchestrator.front.pareto import (
    Bools,
    Floats,
    front_confidence,
    knee,
    knee_confidence,
    nondominated,
)
from orchestrator.front.query import passing, require_list
from orchestrator.front.questions import limit_on, objectives_of
from orchestrator.front.same_settings import numbers_of, with_one_value
from orchestrator.front.trial import Candidate, Trial
from orchestrator.store.identity import Identity
from orchestrator.store.lossless import QualityGroups, Source, pool
from orchestrator.store.names import Form, SettingNames
from orchestrator.store.records import TrialRecord
from orchestrator.store.sweep import Sweep
from search_spaces.trial import DecodingConfig
from workers.metrics.definition import Metric

if TYPE_CHECKING:
    import pyarrow

_INFEASIBLE = "outside the constraints"


@dataclass(frozen=True, eq=False)
class Front:
    """The front of one or more sweeps."""

    sweeps: Mapping[str, Sweep]  # by name
    # two or three, the first of which is to be the best within limits on the others
    metrics: tuple[Metric, ...]
    rows: Sequence[int]  # the rows of `trials` that may be on the front
    left_out: Mapping[str, int]  # how many of the others were left out, by reason
    # how settings are named; `Form.ABBREVIATED` abbreviates all names if one on the front must be
    # abbreviated (see `SettingNames.alike`)
    form: Form = Form.OWN

    @cached_property
    def trials(self) -> pyarrow.Table:
        """All trials, with a column `sweep`."""
        return _table_of(self.sweeps)

    @cached_property
    def names(self) -> SettingNames:
        """The names of the settings."""
        baselines = [sweep.identity.sampling for sweep in self.sweeps.values()]
        if self.form is Form.ABBREVIATED:
            members = compress(self._records, self._is_on_front)
            return SettingNames.across(baselines).alike(
                record.config for record in members if record.config is not None
            )
        return SettingNames.across(baselines, self.form)

    @cached_property
    def _owned(self) -> list[tuple[str, TrialRecord]]:
        """The records of all trials with the names of their sweeps."""
        return [(name, record) for name, sweep in self.sweeps.items() for record in sweep.records]

    @cached_property
    def _records(self) -> list[TrialRecord]:
        """The records of the trials that may be on the front, in the order of `rows`."""
        return [self._owned[row][1] for row in self.rows]

    @cached_property
    def _joint(self) -> JointErrors:
        """The values of these trials in the metrics, with the errors that they share."""
        identities = [self.sweeps[self._owned[row][0]].identity for row in self.rows]
        return JointErrors.of(self._records, self.metrics, identities)

    @cached_property
    def _is_on_front(self) -> Bools:
        """Which of these trials are on the front [rows]."""
        return nondominated(self._joint.values, directions(self.metrics))

    @cached_property
    def _order(self) -> list[int]:
        """Places in `rows`, by rising first metric."""
        return [int(place) for place in np.lexsort(self._joint.values.T[::-1])]

    @cached_property
    def candidates(self) -> list[Candidate]:
        """The trials that may be on the front, by rising first metric, with the front's marks."""
        confidence = front_confidence(self._joint.samples(), directions(self.metrics))
        names = [self._name(*self._owned[row]) for row in self.rows]
        members = [place for place in self._order if self._is_on_front[place]]
        within: dict[int, list[str]] = {}
        distinct: dict[int, list[str]] = {}
        for place in members:
            differs = {other: self._joint.differ(place, other) for other in members}
            within[place] = [
                names[other] for other in members if other != place and not differs[other].any()
            ]
        for place, following in pairwise(members):
            pairs = zip(self.metrics, self._joint.differ(place, following), strict=True)
            distinct[place] = [metric.name for metric, differ in pairs if differ]
        return [
            self._candidate(
                self.rows[place],
                on_front=bool(self._is_on_front[place]),
                confidence=float(confidence[place]),
                distinct_from_next=distinct.get(place),
                within_error_of=within.get(place),
            )
            for place in self._order
        ]

    def _name(self, origin: str, record: TrialRecord) -> str:
        """A trial's number, after its sweep's name if there are several."""
        return str(record.number) if len(self.sweeps) == 1 else f"{origin}#{record.number}"

    def _candidate(self, row: int, **marks: Any) -> Candidate:
        """The trial of a row of the table of all trials. marks: of the front."""
        origin, record = self._owned[row]
        return Candidate(
            sweep=self.sweeps[origin],
            record=record,
            front_metrics=self.metrics,
            names=self.names,
            origin=origin,
            name=self._name(origin, record),
            row=row,
            **marks,
        )

    @property
    def infeasible_note(self) -> str:
        """A sentence if the sweeps' constraints leave no trial for the front; else ""."""
        count = self.left_out.get(_INFEASIBLE, 0)
        if self.rows or not count:
            return ""
        verb = "is" if count == 1 else "are"
        return f"no trial is within the sweep's constraints, {count} {verb} outside"

    @cached_property
    def members(self) -> list[Candidate]:
        """The trials on the front."""
        return [trial for trial in self.candidates if trial.on_front]

    @cached_property
    def joint_errors(self) -> JointErrors:
        """The candidates' values in the metrics, with the errors that they share."""
        return JointErrors.of(
            [trial.record for trial in self.candidates],
            self.metrics,
            [trial.sweep.identity for trial in self.candidates],
        )

    @cached_property
    def _samples(self) -> Floats:
        return self.joint_errors.samples()

    @cached_property
    def bounds(self) -> Bounds:
        """The candidates' bounds in the first metric."""
        return Bounds.of(self.joint_errors, self._samples, self.metrics[0].direction)

    def bound(self, trial: Trial) -> float | None:
        """The value of the first metric that 90 % of draws exceed, or stay below if it is
        minimised; None if its error is unknown, or the trial is no candidate.
        """
        rows = [candidate.row for candidate in self.candidates]
        if trial.row not in rows:
            return None
        bound = self.bounds.values[rows.index(trial.row)]
        return float(bound) if np.isfinite(bound) else None

    def table(self, trials: Sequence[Candidate]) -> pyarrow.Table:
        """Trials as rows. Columns: `sweep`, those of `trial_table`, and the front's marks."""
        import pyarrow as pa

        table = self.trials.take(pa.array([trial.row for trial in trials], pa.int64()))
        kinds = {
            "on_front": pa.bool_(),
            "confidence": pa.float64(),
            "distinct_from_next": pa.list_(pa.string()),
            "within_error_of": pa.list_(pa.string()),
        }
        for name, kind in kinds.items():
            marks = [getattr(trial, name) for trial in trials]
            table = table.append_column(name, pa.array(marks, kind))
        return table

    def trial(self, number: int, sweep: str = "") -> Candidate:
        """A finished trial, whether or not it may be on the front.

        sweep: its sweep's name among those of the front, if there are several.

        Raises:
            QueryError: there are several sweeps, and none is named.
            NoChoiceError: no such trial, or its config is invalid.
        """
        if len(self.sweeps) > 1 and not sweep:
            places = " and ".join(self.sweeps)
            raise QueryError(f"trial {number}: each of {places} has its own; give one sweep")
        (name,) = [sweep] if sweep else self.sweeps
        for candidate in self.candidates:
            if (candidate.origin, candidate.number) == (name, number):
                return candidate
        for row, (origin, record) in enumerate(self._owned):
            if (origin, record.number) != (name, number):
                continue
            if record.config is None:
                problem = f"trial {number} has no config ({record.cause})"
                raise NoChoiceError(f"sweep {name}: {problem}")
            return self._candidate(row)
        raise NoChoiceError(f"sweep {name}: no finished trial {number}")

    @cached_property
    def knee(self) -> Candidate | None:
        """The trial at the front's knee (see `pareto.knee`)."""
        values = values_of([member.record for member in self.members], self.metrics)
        found = knee(values, directions(self.metrics))
        return None if found is None else self.members[found]

    def knee_confidence(self, trial: Trial) -> float:
        """The share of draws from the candidates' errors in which this one is the knee."""
        place = [candidate.record for candidate in self.candidates].index(trial.record)
        return knee_confidence(self._samples, directions(self.metrics), place)

    def reference_point(self) -> list[float]:
        """The default reference point, in the metrics' units; computed from all complete trials,
        without filters.
        """
        complete = [record for _, record in self._owned if record.is_complete]
        corner = reference_point(values_of(complete, self.metrics), directions(self.metrics))
        return [float(value) for value in corner]

    def hypervolume(self, reference: Sequence[float]) -> tuple[float, float]:
        """The front's hypervolume up to a reference point, and its standard error: the spread over
        draws from the candidates' errors.
        """
        toward = directions(self.metrics)
        values = values_of([trial.record for trial in self.members], self.metrics)
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

    Args:
        sweeps: at least one.
        x: the first metric, by default the first sweep's own (see `objectives_of`).
        y: the second metric.
        z: the third metric.
        where: filters on the candidates (see `orchestrator.front.query`).
        subject_to: constraints on the candidates.
        feasible: only trials within the constraints that the sweep was launched with.

    Raises:
        QueryError: a metric, column or constraint that a sweep does not have; a metric whose values
            cannot be compared across the sweeps; a sweep given twice.
    """
    require_list(subject_to, "subject_to")
    require_list(where, "where")
    filters = [*where]
    named = _named(sweeps)
    metrics = objectives_of(sweeps[0], x, y, z)
    for metric in metrics:
        for sweep in sweeps:
            sweep.metric(metric.name)
        require_comparable([sweep.identity for sweep in sweeps], metric.name)
    if len(named) > 1:
        named = with_one_value(_with_one_quality(named))
    owned = [(name, record) for name, sweep in named.items() for record in sweep.records]
    limits = {name: [limit_on(sweep, text) for text in subject_to] for name, sweep in named.items()}
    passes = np.ones(len(owned), dtype=np.bool_)
    if filters:  # the table of a thousand trials takes a part of a second to make
        passes = passing(_table_of(named), filters)
    tests = {
        "by --where": passes,
        "failed": [not record.has_failed for _, record in owned],
        "stopped early": [not record.is_stopped for _, record in owned],
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
    return Front(named, metrics, [int(row) for row in np.flatnonzero(passed[-1])], left_out)


def _table_of(sweeps: Mapping[str, Sweep]) -> pyarrow.Table:
    """All trials of sweeps, with the name of the sweep in the column `sweep`."""
    import pyarrow as pa

    owners = [name for name, sweep in sweeps.items() for _ in sweep.records]
    trials = pa.concat_tables([sweep.table for sweep in sweeps.values()], promote_options="default")
    return trials.add_column(0, "sweep", pa.array(owners, pa.string()))


def _with_one_quality(named: Mapping[str, Sweep]) -> dict[str, Sweep]:
    """Sweeps whose lossless settings have one quality together, where they have the same target,
    captions and metrics.
    """
    sources = [
        Source(
            QualityGroups.of(sweep.identity),
            sweep.records,
            _basis(sweep.identity, named),
            partial(_images, sweep.identity),
        )
        for sweep in named.values()
    ]
    return {
        name: replace(sweep, records=records)
        for (name, sweep), records in zip(named.items(), pool(sources), strict=True)
    }


def _basis(identity: Identity, named: Mapping[str, Sweep]) -> dict[str, Hashable]:
    """What values of lossless settings depend on, by metric (see `Source`); without metrics that
    cannot be compared with all of the other sweeps'.
    """
    others = [sweep.identity for sweep in named.values()]
    target = (identity.target, _weights(identity, drafter=None), numbers_of(identity))
    basis = (*target, identity.caption_set, identity.samples)
    found = dict[str, Hashable]()
    for name, metric in identity.metrics.items():
        is_everywhere = all(name in other.metrics for other in others)
        if is_everywhere and not obstacles(others, name):
            # a gain is over the vanilla of its own sweep, whose images depend on the seed
            found[name] = (*basis, identity.seed) if metric.is_gain else basis
    return found


def _images(identity: Identity, config: DecodingConfig) -> Hashable:
    """What a config's images depend on, in sweeps of one basis."""
    drafter = None if config.is_vanilla else config.drafter.kind
    return config, identity.seed, _weights(identity, drafter)


def _weights(identity: Identity, drafter: str | None) -> Hashable:
    """The hashes of a sweep's models, of drafters only that of one kind."""
    return frozenset(
        (name, content)
        for name, content in identity.models.items()
        if not name.startswith("drafters.") or name == f"drafters.{drafter}"
    )


def _named(sweeps: Sequence[Sweep]) -> dict[str, Sweep]:
    """The sweeps by name; those of one name by their place, and one on several devices by name or
    place and device.

    Raises:
        QueryError: a sweep is given twice.
    """
    owners = {sweep.storage.display_name: sweep.name for sweep in sweeps}
    sharing = Counter(owners.values())
    names = [
        sweep.name if sharing[sweep.name] == 1 else sweep.storage.display_name for sweep in sweeps
    ]
    repeated = Counter(names)
    found = {}
    for name, sweep in zip(names, sweeps, strict=True):
        found[name if repeated[name] == 1 else f"{name} on {sweep.machine}"] = sweep
    if len(found) < len(sweeps):
        raise QueryError("a sweep is given twice; name each once")
    return found
