"""The Python API of finished and running sweeps, which the commands use too:

    sweep = Sweep.open("sweeps/quickstart")
    sweep.front("speedup", "fid", where=["acceptance.neighbourhood=additive"], subject_to=["drift<=2"]).to_pandas()

Tables are pyarrow tables. Nothing is written. Neither torch nor the model's files are needed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from orchestrator.results.comparison import obstacles
from orchestrator.results.describe import describe
from orchestrator.results.fronts import directions, keep, mark_front, values_of
from orchestrator.results.indicators import hypervolume, reference_point
from orchestrator.results.pareto import Floats, best_under, knee
from orchestrator.results.query import Query, QueryError, excess, passing, unknown
from orchestrator.results.store import (
    Axis,
    Identity,
    find_sweep,
    image_shards,
    load_identity,
    read_table,
    read_trials,
)
from orchestrator.results.trials import COMPLETE, TrialRecord, trial_table
from search_spaces.trial import DecodingConfig, NoDrafter
from workers.data.storage import Storage

if TYPE_CHECKING:
    import pyarrow

DEFAULT_OBJECTIVES, _DIGITS = ("speedup", "fid"), 4  # of a sweep that names fewer than two; of described numbers


@dataclass(frozen=True, slots=True)
class Sweep:
    """One sweep. records: its finished trials by number."""

    storage: Storage
    identity: Identity
    records: tuple[TrialRecord, ...]
    _table: pyarrow.Table = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_table", trial_table(self.records))

    @classmethod
    def open(cls, place: str | Path | Storage) -> Sweep:
        """Read the sweep in a folder, at a URI, or by its bare name under ./sweeps.

        Raises:
            NoSweepError: there is none.
            ValueError: one of its files is damaged.
        """
        storage = place if isinstance(place, Storage) else find_sweep(place)
        return cls(storage, load_identity(storage), tuple(read_trials(storage)))

    @property
    def name(self) -> str:
        return self.identity.name

    @property
    def vanilla(self) -> TrialRecord | None:
        """The first complete trial of the baseline's config, else the first one without a drafter named vanilla."""
        done = [record for record in self.records if record.state == COMPLETE]
        same = [record for record in done if record.config == self.identity.baseline]
        named = [r for r in done if r.label == "vanilla" and r.config and isinstance(r.config.drafter, NoDrafter)]
        return next(iter([*same, *named]), None)

    def axis(self, metric: str) -> Axis:
        """A metric as an objective.

        Raises:
            QueryError: the sweep has no such metric.
        """
        if metric not in self.identity.metrics:
            raise QueryError(f"sweep {self.name}: {unknown('metric', metric, self.identity.metrics)}")
        return self.identity.metrics[metric]

    def axes(self, x: str | None = None, y: str | None = None, z: str | None = None) -> tuple[Axis, ...]:
        """Two or three objectives; if neither x nor y is given, the sweep's own.

        Raises:
            QueryError: an unknown metric, or the same one twice.
        """
        if x is None and y is None:
            own = [axis.name for axis in self.identity.objectives[:3]]
            names = own if len(own) > 1 else list(DEFAULT_OBJECTIVES)
            names = names if z is None else [*names[:2], z]
        else:
            names = [x or DEFAULT_OBJECTIVES[0], y or DEFAULT_OBJECTIVES[1], *([] if z is None else [z])]
        if len(set(names)) < len(names):
            raise QueryError(f"objectives {', '.join(names)}: each must be a different metric")
        return tuple(self.axis(name) for name in names)

    def trials(self, where: Iterable[str] = (), columns: Sequence[str] | None = None) -> pyarrow.Table:
        """One row per finished trial, failed ones included, by number (columns: see `trial_table`).

        Raises:
            QueryError: an invalid filter, or an unknown column.
        """
        table = keep(self._table, passing(self._table, where)) if self.records else self._table
        if columns is None:
            return table
        if missing := [name for name in columns if name not in table.column_names]:
            raise QueryError(f"sweep {self.name}: {unknown('column', missing[0], table.column_names)}")
        return table.select(list(columns))

    def query(
        self,
        x: str | None = None,
        y: str | None = None,
        z: str | None = None,
        where: Iterable[str] = (),
        subject_to: Iterable[str] = (),
        *,
        feasible: bool = True,
    ) -> Front:
        """The front of two or three metrics (see `Query`).

        Raises:
            QueryError: an unknown metric, or an invalid filter or constraint.
        """
        return front_of([self], Query(x, y, z, tuple(where), tuple(subject_to), feasible))

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
        """The front of `query` as a table (columns: see `mark_front`).

        everything: all measured candidates, not only the front.
        """
        table = self.query(x, y, z, where, subject_to, feasible=feasible).table.drop_columns(["sweep"])
        return table if everything else keep(table, np.array(table["on_front"].to_pylist(), dtype=np.bool_))

    def images(self, number: int | None = None, columns: Sequence[str] | None = None) -> pyarrow.Table:
        """One row per image of a trial, or of all trials, with the trial's `number` as first column.

        Trials with the same config share their images; such rows have the requested number, or else the first one.

        Raises:
            QueryError: there is no such trial.
            ValueError: a shard is missing or damaged, or has no such column.
        """
        import pyarrow as pa

        if number is not None and all(record.number != number for record in self.records):
            raise QueryError(f"sweep {self.name}: no finished trial {number}")
        shards: dict[str, int] = {}
        for record in self.records:
            if number is None or record.number == number:
                for shard in image_shards(record):
                    shards.setdefault(shard, record.number)
        tables = []
        for shard, owner in shards.items():
            table = read_table(self.storage, shard, columns)
            tables.append(table.add_column(0, "number", pa.array([owner] * table.num_rows, pa.int64())))
        if not tables:
            return pa.table({"number": pa.array([], pa.int64())})
        return pa.concat_tables(tables, promote_options="permissive")

    def excess(self, table: pyarrow.Table, constraint: str) -> Floats:
        """By how much each row of a table of trials exceeds a constraint: [rows], within at 0 or less, NaN unknown."""
        vanilla = {} if self.vanilla is None else {name: entry.value for name, entry in self.vanilla.metrics.items()}
        return excess(constraint, table, self.identity.metrics, vanilla)


@dataclass(frozen=True, slots=True)
class Front:
    """The answer to a `Query` on one or more sweeps.

    table: all measured candidates, as `mark_front` returns them with everything=True, after a column `sweep`. names: of
    its rows, the trial's number, after the sweep's name if there are several. total: number of finished trials.
    left_out: how many of them the table lacks, by reason.
    """

    sweeps: Mapping[str, Sweep]
    axes: tuple[Axis, ...]
    table: pyarrow.Table
    names: tuple[str, ...]
    total: int
    left_out: Mapping[str, int]

    @property
    def rows(self) -> list[int]:
        """The rows on the front."""
        return [row for row, member in enumerate(self.table["on_front"].to_pylist()) if member]

    def record(self, row: int) -> TrialRecord:
        sweep, number = self.sweeps[self.table["sweep"][row].as_py()], self.table["number"][row].as_py()
        return next(record for record in sweep.records if record.number == number)

    def config(self, row: int) -> DecodingConfig:
        return cast(DecodingConfig, self.record(row).config)  # measured, so it has one

    def describe(self, row: int) -> str:
        """The label and the config in short."""
        label, sweep = self.record(row).label, self.sweeps[self.table["sweep"][row].as_py()]
        short = describe(self.config(row), sweep.identity.sampling, _DIGITS)
        return short if label in ("", short) else f"{label}: {short}"

    def to_mapping(self, row: int) -> dict[str, Any]:
        """A row as plain data, for JSON."""
        facts = {name: self.table[name][row].as_py() for name in ("sweep", "number", "label", "digest", "on_front")}
        metrics = self.record(row).metrics
        return facts | {
            "setting": self.describe(row),
            "config": self.config(row).to_mapping(),
            "metrics": {name: {"value": entry.value, "error": entry.error} for name, entry in metrics.items()},
            **{name: self.table[name][row].as_py() for name in ("confidence", "distinct_from_next", "within_error_of")},
        }

    def vanilla(self) -> dict[str, TrialRecord]:
        """The vanilla trial of each sweep that has one."""
        return {name: sweep.vanilla for name, sweep in self.sweeps.items() if sweep.vanilla is not None}

    def knee(self) -> int | None:
        """The row of the front's knee (see `pareto.knee`)."""
        rows = self.rows
        found = knee(values_of(self.table, self.axes)[rows], directions(self.axes))
        return None if found is None else rows[found]

    def best(self, limits: Sequence[str]) -> int | None:
        """The row with the best first objective among those within all constraints."""
        excesses = np.full((self.table.num_rows, len(limits)), np.nan)
        owners = np.array(self.table["sweep"].to_pylist(), dtype=object)
        for name, sweep in self.sweeps.items():
            rows = owners == name
            for column, limit in enumerate(limits):
                excesses[rows, column] = sweep.excess(self.table, limit)[rows]
        return best_under(values_of(self.table, self.axes)[:, 0], self.axes[0].direction, excesses)

    def reference_point(self) -> list[float]:
        """The default reference point, in the axes' units: from all complete trials of the sweeps, filtered or not."""
        points = []
        for sweep in self.sweeps.values():
            complete = [record.state == COMPLETE for record in sweep.records]
            points.append(values_of(sweep.trials(), self.axes)[np.array(complete, dtype=np.bool_)])
        return [float(value) for value in reference_point(np.concatenate(points), directions(self.axes))]

    def hypervolume(self, reference: Sequence[float]) -> float:
        """The front's hypervolume up to a reference point."""
        return hypervolume(values_of(self.table, self.axes), reference, directions(self.axes))


def front_of(sweeps: Sequence[Sweep], query: Query) -> Front:
    """The front over all sweeps together.

    Raises:
        QueryError: a metric, column or constraint that a sweep does not know; a metric that means something else in
            another sweep; a sweep given twice.
    """
    import pyarrow as pa

    counts = Counter(sweep.name for sweep in sweeps)
    named = {sweep.name if counts[sweep.name] == 1 else sweep.storage.shown: sweep for sweep in sweeps}
    if len(named) < len(sweeps):
        raise QueryError("a sweep is given twice; name each once")
    axes = sweeps[0].axes(query.x, query.y, query.z)
    for axis in axes:
        for sweep in sweeps:
            sweep.axis(axis.name)
        if reasons := obstacles([sweep.identity for sweep in sweeps], axis.name):
            raise QueryError(
                f"{axis.name} cannot be compared: the sweeps differ in {'; in '.join(reasons)}. Choose speed metrics "
                "with --x and --y, or repeat the sweeps under the same conditions"
            )
    tables: list[pyarrow.Table] = []
    left_out: Counter[str] = Counter()
    for name, sweep in named.items():
        left = np.ones(len(sweep.records), dtype=np.bool_)
        for reason, mask in query.tests(sweep._table, sweep.excess).items() if sweep.records else ():
            left_out[reason] += int((left & ~mask).sum())
            left &= mask
        rows = keep(sweep._table, left)
        labels = [f"{name}#{n}" if len(named) > 1 else str(n) for n in rows["number"].to_pylist()]
        names = pa.array([name] * rows.num_rows, pa.string())
        tables.append(rows.add_column(0, "sweep", names).add_column(0, "name", pa.array(labels, pa.string())))
    together = pa.concat_tables(tables, promote_options="permissive")
    marked = mark_front(together, axes, names=together["name"].to_pylist(), everything=True)
    left_out["not measured"] = together.num_rows - marked.num_rows
    total = sum(len(sweep.records) for sweep in sweeps)
    return Front(named, axes, marked.drop_columns(["name"]), tuple(marked["name"].to_pylist()), total, +left_out)
