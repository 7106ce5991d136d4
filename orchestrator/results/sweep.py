"""A sweep as it lies on disk or in a bucket, to be asked from Python:

    sweep = Sweep.open("sweeps/quickstart")
    sweep.front("speedup", "fid", where=["acceptance.neighbourhood=additive"], subject_to=["drift<=2"]).to_pandas()

Tables are pyarrow's. Nothing is written, and neither torch nor the sweep's own libraries are needed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from orchestrator.results.fronts import directions, keep, mark_front, values_of
from orchestrator.results.indicators import hypervolume, reference_point
from orchestrator.results.pareto import Bools, Floats
from orchestrator.results.query import QueryError, excess, passing, unknown
from orchestrator.results.store import IDENTITY, Axis, Identity, image_shards, read_identity, read_table, read_trials
from orchestrator.results.trials import COMPLETE, TrialRecord, trial_table
from search_spaces.trial import DecodingConfig, NoDrafter
from workers.data.storage import Storage

if TYPE_CHECKING:
    import pyarrow

SWEEPS = "sweeps"  # where a bare name is looked for
USUAL = ("speedup", "fid")  # the objectives where a sweep does not name its own


class NoSweepError(ValueError):
    """There is no sweep at the place that was named."""


@dataclass(frozen=True, slots=True)
class Sweep:
    """identity: what identity.json says. records: the finished trials by number."""

    storage: Storage
    identity: Identity
    records: tuple[TrialRecord, ...]
    _tables: list[pyarrow.Table] = field(init=False, repr=False, compare=False, default_factory=list)  # made once

    @classmethod
    def open(cls, place: str | Path | Storage) -> Sweep:
        """Read the sweep in a folder, at a URI, or by its bare name under ./sweeps.

        Raises:
            NoSweepError: there is none there.
            ValueError: a file of it is broken; the message names it.
        """
        try:
            storage = place if isinstance(place, Storage) else Storage(str(locate(place)))
        except ValueError as error:
            raise NoSweepError(str(error)) from error
        identity = read_identity(storage)
        if identity is None:
            raise NoSweepError(f"{storage.shown}: no sweep there (it has no {IDENTITY}){_others()}")
        return cls(storage, identity, tuple(read_trials(storage)))

    @property
    def name(self) -> str:
        return self.identity.name

    @property
    def metrics(self) -> Mapping[str, Axis]:
        """The metrics by name."""
        return self.identity.metrics

    @property
    def baseline(self) -> DecodingConfig | None:
        """The setting that speed-ups refer to, with the sweep's sampling."""
        return self.identity.baseline

    @property
    def vanilla(self) -> TrialRecord | None:
        """The first complete trial of the baseline's setting, or else one without a drafter that is called vanilla."""
        done = [record for record in self.records if record.state == COMPLETE]
        plain = [record for record in done if record.config and isinstance(record.config.drafter, NoDrafter)]
        baseline = self.baseline
        same = [record for record in plain if baseline is not None and record.digest == baseline.digest()]
        return next(iter([*same, *(record for record in plain if record.label == "vanilla")]), None)

    def axis(self, metric: str) -> Axis:
        """A metric as an objective. QueryError if the sweep has no such metric."""
        if metric not in self.metrics:
            raise QueryError(f"sweep {self.name}: {unknown('metric', metric, self.metrics)}")
        return self.metrics[metric]

    def axes(self, x: str | None = None, y: str | None = None, z: str | None = None) -> tuple[Axis, ...]:
        """Two objectives, or three. Where neither x nor y is named, the sweep's own (speedup and fid if it has one)."""
        if x is None and y is None:
            named = [axis.name for axis in self.identity.objectives]
            own = [*named[:3]] if len(named) > 1 else list(USUAL)
            names = own if z is None else [*own[:2], z]
        else:
            names = [x or USUAL[0], y or USUAL[1], *([] if z is None else [z])]
        if len(set(names)) < len(names):
            raise QueryError(f"objectives {', '.join(names)}: each must be another metric")
        return tuple(self.axis(name) for name in names)

    def trials(self, where: Iterable[str] = (), columns: Sequence[str] | None = None) -> pyarrow.Table:
        """One row per finished trial, failed ones too, by number; `trial_table` says which columns there are."""
        table = self._table()
        table = keep(table, passing(table, where)) if self.records else table
        if columns is None:
            return table
        if missing := [name for name in columns if name not in table.column_names]:
            raise QueryError(f"sweep {self.name}: {unknown('column', missing[0], table.column_names)}")
        return table.select(list(columns))

    def candidates(
        self, where: Iterable[str] = (), subject_to: Iterable[str] = (), *, feasible: bool = True
    ) -> pyarrow.Table:
        """The trials that may be on a front: complete, not the repetition of an earlier one, and within all limits.

        where: filters. subject_to: constraints. feasible: also within the sweep's own constraints.
        """
        table = self._table()
        if not self.records:
            return table
        return keep(table, np.all(list(self._tests(table, where, subject_to, feasible).values()), axis=0))

    def left_out(
        self, where: Iterable[str] = (), subject_to: Iterable[str] = (), *, feasible: bool = True
    ) -> dict[str, int]:
        """How many trials `candidates` leaves out, each counted under the first reason that holds; none for none."""
        table = self._table()
        found: dict[str, int] = {}
        left = np.ones(table.num_rows, dtype=np.bool_)
        for reason, mask in self._tests(table, where, subject_to, feasible).items() if self.records else ():
            found[reason] = int((left & ~mask).sum())
            left &= mask
        return {reason: count for reason, count in found.items() if count}

    def _tests(
        self, table: pyarrow.Table, where: Iterable[str], subject_to: Iterable[str], feasible: bool
    ) -> dict[str, Bools]:
        """What a candidate must pass, by what is said of a row that does not."""
        states, twins = table["state"].to_pylist(), table["duplicate_of"].to_pylist()
        tests = {
            "by --where": passing(table, where),
            "failed": np.array([state == COMPLETE for state in states], dtype=np.bool_),
            "repeated": np.array([twin is None for twin in twins], dtype=np.bool_),
        }
        if feasible:
            tests["outside the constraints"] = np.array(table["feasible"].to_pylist(), dtype=np.bool_)
        limits = [self.excess(table, text) <= 0 for text in subject_to]
        return tests | ({"outside --subject-to": np.all(limits, axis=0)} if limits else {})

    def excess(self, table: pyarrow.Table, constraint: str) -> Floats:
        """By how much each row exceeds a constraint: at most 0 is within, NaN is not known."""
        vanilla = self.vanilla
        measured = {} if vanilla is None else {name: entry.value for name, entry in vanilla.metrics.items()}
        return excess(constraint, table, self.metrics, measured)

    def front(
        self,
        x: str | None = None,
        y: str | None = None,
        z: str | None = None,
        where: Iterable[str] = (),
        subject_to: Iterable[str] = (),
        *,
        feasible: bool = True,
        everything: bool = False,
    ) -> pyarrow.Table:
        """The front of two or three metrics among the `candidates`; `mark_front` says what its columns mean.

        everything: all candidates that were measured, not the front alone.
        """
        axes = self.axes(x, y, z)
        return mark_front(self.candidates(where, subject_to, feasible=feasible), axes, everything=everything)

    def hypervolume(
        self,
        x: str | None = None,
        y: str | None = None,
        z: str | None = None,
        *,
        reference: Sequence[float] | None = None,
        where: Iterable[str] = (),
        subject_to: Iterable[str] = (),
        feasible: bool = True,
    ) -> float:
        """The hypervolume of the front; without `reference`, from the `reference_point` of all complete trials."""
        axes = self.axes(x, y, z)
        corner = self.reference_point(axes) if reference is None else list(reference)
        points = values_of(self.candidates(where, subject_to, feasible=feasible), axes)
        return hypervolume(points, corner, directions(axes))

    def reference_point(self, axes: Sequence[Axis]) -> list[float]:
        """The default reference point, in the axes' own units."""
        table = self.candidates(feasible=False)
        return [float(value) for value in reference_point(values_of(table, axes), directions(axes))]

    def images(self, number: int | None = None, columns: Sequence[str] | None = None) -> pyarrow.Table:
        """The rows of the images of a trial, or of all trials, with the trial's `number` in front.

        Trials that repeat a setting share their images; these rows bear the number asked for, or else the first one.
        QueryError if there is no such trial; ValueError if a shard is broken or was removed.
        """
        import pyarrow as pa

        if number is not None and all(record.number != number for record in self.records):
            raise QueryError(f"sweep {self.name}: there is no finished trial {number}")
        shards: dict[str, int] = {}
        for record in self.records:
            if number is None or record.number == number:
                for shard in image_shards(record):
                    shards.setdefault(shard, record.number)
        tables = [self._shard(shard, owner, columns) for shard, owner in shards.items()]
        if not tables:
            return pa.table({"number": pa.array([], pa.int64())})
        return pa.concat_tables(tables, promote_options="permissive")

    def _table(self) -> pyarrow.Table:
        """All trials; without any there are the columns that fronts cannot do without."""
        import pyarrow as pa

        if self.records:
            if not self._tables:
                self._tables.append(trial_table(self.records))
            return self._tables[0]
        empty = {"number": pa.int64(), "label": pa.string(), "state": pa.string(), "digest": pa.string()}
        return pa.schema(empty).empty_table()

    def _shard(self, name: str, number: int, columns: Sequence[str] | None) -> pyarrow.Table:
        import pyarrow as pa

        try:
            table = read_table(self.storage, name, columns)
        except KeyError as error:
            raise QueryError(f"{name}: {unknown('column', *error.args)}") from None
        return table.add_column(0, "number", pa.array([number] * table.num_rows, pa.int64()))


def locate(place: str | Path) -> str | Path:
    """A place as Storage takes it: a bare name that is no folder here is looked for under ./sweeps."""
    bare = str(place)
    if "/" not in bare and "\\" not in bare and not Path(bare).is_dir() and (Path(SWEEPS) / bare).is_dir():
        return Path(SWEEPS) / bare
    return place


def _others() -> str:
    """The sweeps that could have been meant."""
    names = sorted(path.parent.name for path in Path(SWEEPS).glob(f"*/{IDENTITY}"))
    return f"; under ./{SWEEPS} there are {', '.join(names)}" if names else ""
