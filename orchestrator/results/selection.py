"""The front over one sweep or several, as the commands ask for it: rows, their settings, and the words for both."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from orchestrator.results.comparison import obstacles
from orchestrator.results.describe import describe
from orchestrator.results.fronts import directions, mark_front, values_of
from orchestrator.results.indicators import hypervolume, reference_point
from orchestrator.results.pareto import best_under, knee
from orchestrator.results.query import QueryError
from orchestrator.results.store import Axis
from orchestrator.results.sweep import Sweep
from orchestrator.results.trials import TrialRecord
from search_spaces.trial import DecodingConfig

if TYPE_CHECKING:
    import pyarrow

DIGITS = 4  # of the numbers in a setting's words


class IncomparableError(QueryError):
    """Values of different sweeps that measure different things."""


@dataclass(frozen=True, slots=True)
class Question:
    """What a front is asked for: metrics (None: the sweeps' own objectives), filters, constraints."""

    x: str | None = None
    y: str | None = None
    z: str | None = None
    where: tuple[str, ...] = ()
    subject_to: tuple[str, ...] = ()
    feasible: bool = True


@dataclass(frozen=True, slots=True)
class Selection:
    """What was found. table: the candidates of all sweeps that were measured, as `mark_front` gives them, with a
    column `sweep` in front. names: of its rows, the trial's number, with the sweep's name if there are several.
    total: all finished trials. left_out: how many of them are not here, by why."""

    sweeps: Mapping[str, Sweep]
    axes: tuple[Axis, ...]
    table: pyarrow.Table
    names: tuple[str, ...]
    total: int
    left_out: Mapping[str, int]

    def record(self, row: int) -> TrialRecord:
        sweep = self.sweeps[self.table["sweep"][row].as_py()]
        number = self.table["number"][row].as_py()
        return next(record for record in sweep.records if record.number == number)

    def setting(self, row: int) -> DecodingConfig:
        found = self.record(row).config
        assert found is not None  # only measured trials are here
        return found

    def words(self, row: int) -> str:
        """The setting in short, its label in front."""
        record = self.record(row)
        baseline = self.sweeps[self.table["sweep"][row].as_py()].baseline
        short = describe(self.setting(row), None if baseline is None else baseline.sampling, DIGITS)
        return short if record.label in ("", short) else f"{record.label}: {short}"

    def vanilla(self) -> dict[str, TrialRecord]:
        """Each sweep's vanilla trial, where there is one."""
        found = {name: sweep.vanilla for name, sweep in self.sweeps.items()}
        return {name: record for name, record in found.items() if record is not None}

    @property
    def front_rows(self) -> list[int]:
        return [row for row, member in enumerate(self.table["on_front"].to_pylist()) if member]

    def knee(self) -> int | None:
        """The row of the front's knee (see `pareto.knee`)."""
        rows = self.front_rows
        found = knee(values_of(self.table, self.axes)[rows], directions(self.axes))
        return None if found is None else rows[found]

    def best(self, limits: Sequence[str]) -> int | None:
        """The row with the best first objective among those within all limits; a limit is a constraint."""
        excesses = np.full((self.table.num_rows, len(limits)), np.nan)
        owners = np.array(self.table["sweep"].to_pylist(), dtype=object)
        for name, sweep in self.sweeps.items():
            rows = owners == name
            for place, limit in enumerate(limits):
                excesses[rows, place] = sweep.excess(self.table, limit)[rows]
        return best_under(values_of(self.table, self.axes)[:, 0], self.axes[0].direction, excesses)

    def hypervolume(self, reference: Sequence[float] | None) -> tuple[float, list[float]]:
        """The front's hypervolume, and the reference point that it has been taken to (by default the candidates')."""
        values, ways = values_of(self.table, self.axes), directions(self.axes)
        corner = reference_point(values, ways) if reference is None else reference
        return hypervolume(values, corner, ways), [float(value) for value in corner]


def select(sweeps: Sequence[Sweep], question: Question) -> Selection:
    """Ask all sweeps, as one.

    Raises:
        QueryError: a metric, column or constraint that a sweep does not know.
        IncomparableError: a metric that was not measured alike in all of them.
    """
    import pyarrow as pa

    named = unique_names(sweeps)
    axes = sweeps[0].axes(question.x, question.y, question.z)
    tables: list[pyarrow.Table] = []
    left_out: Counter[str] = Counter()
    for name, sweep in named.items():
        sweep.axes(*(axis.name for axis in axes))
        rows = sweep.candidates(question.where, question.subject_to, feasible=question.feasible)
        left_out.update(sweep.left_out(question.where, question.subject_to, feasible=question.feasible))
        tables.append(rows.add_column(0, "sweep", pa.array([name] * rows.num_rows, pa.string())))
    refuse_incomparable(sweeps, axes)
    together = tables[0] if len(tables) == 1 else pa.concat_tables(tables, promote_options="permissive")
    several = len(named) > 1
    pairs = zip(together["sweep"].to_pylist(), together["number"].to_pylist(), strict=True)
    together = together.add_column(
        0, "name", pa.array([f"{sweep}#{number}" if several else str(number) for sweep, number in pairs], pa.string())
    )
    marked = mark_front(together, axes, names=together["name"].to_pylist(), everything=True)
    total = sum(len(sweep.records) for sweep in sweeps)
    names = tuple(marked["name"].to_pylist())
    left_out["not measured"] = together.num_rows - marked.num_rows
    return Selection(named, axes, marked.drop_columns(["name"]), names, total, +left_out)


def refuse_incomparable(sweeps: Sequence[Sweep], axes: Sequence[Axis]) -> None:
    """Raises IncomparableError where one of the axes does not mean the same in all sweeps."""
    identities = [sweep.identity for sweep in sweeps]
    for axis in axes:
        if reasons := obstacles(identities, axis.name):
            raise IncomparableError(
                f"{axis.name} cannot be compared between these sweeps, because they differ in {'; in '.join(reasons)}. "
                "Speed metrics can be: choose others with --x and --y, or measure the sweeps alike"
            )


def unique_names(sweeps: Sequence[Sweep]) -> dict[str, Sweep]:
    """The sweeps by name; those that share one by their place.

    Raises:
        QueryError: one sweep is given twice.
    """
    counts = Counter(sweep.name for sweep in sweeps)
    named = {sweep.name if counts[sweep.name] == 1 else sweep.storage.shown: sweep for sweep in sweeps}
    if len(named) < len(sweeps):
        raise QueryError("a sweep is given twice; name each once")
    return named


def row_facts(selection: Selection, row: int) -> dict[str, Any]:
    """A row as plain data, for JSON."""
    facts = {name: selection.table[name][row].as_py() for name in ("sweep", "number", "label", "digest", "on_front")}
    record = selection.record(row)
    return facts | {
        "setting": selection.words(row),
        "config": None if record.config is None else record.config.to_mapping(),
        "metrics": {name: {"value": entry.value, "error": entry.error} for name, entry in record.metrics.items()},
        "confidence": selection.table["confidence"][row].as_py(),
        "apart": selection.table["apart"][row].as_py(),
        "alike": selection.table["alike"][row].as_py(),
    }
