"""What is asked of one sweep: its objectives, the records on its front, and the trials that pass
filters.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from orchestrator.errors import QueryError
from orchestrator.front.compare import DEFAULT_OBJECTIVES
from orchestrator.front.joint import directions, values_of
from orchestrator.front.pareto import nondominated
from orchestrator.front.query import parse_limit, passing
from orchestrator.store.records import TrialRecord
from orchestrator.store.sweep import Sweep
from workers.metrics.definition import Metric

if TYPE_CHECKING:
    import pyarrow


def objectives_of(
    sweep: Sweep, x: str | None = None, y: str | None = None, z: str | None = None
) -> tuple[Metric, ...]:
    """Two or three metrics: by default the sweep's own objectives, where they differ from those
    that are given.

    Raises:
        QueryError: an unknown metric, or the same one twice.
    """
    names = [metric.name for metric in sweep.identity.objectives[:3]]
    if x or y or len(names) < 2:
        defaults = names[:2] if len(names) > 1 else DEFAULT_OBJECTIVES
        x = x or next(name for name in defaults if name != y)
        y = y or next(name for name in reversed(defaults) if name != x)
        names = [x, y]
    if z is not None:
        names = [*names[:2], z]
    if len(set(names)) < len(names):
        raise QueryError(f"objectives {', '.join(names)}: each must be a different metric")
    return tuple(sweep.metric(name) for name in names)


def front_records(sweep: Sweep) -> tuple[TrialRecord, ...]:
    """The feasible trials on the front of all of the sweep's objectives, by number."""
    goals = sweep.identity.objectives
    if not goals:
        return ()
    feasible = [record for record in sweep.records if record.feasible]
    on_front = nondominated(values_of(feasible, goals), directions(goals))
    return tuple(record for record, kept in zip(feasible, on_front, strict=True) if kept)


def trial_rows(
    sweep: Sweep, where: Iterable[str] = (), columns: Sequence[str] | None = None
) -> pyarrow.Table:
    """One row per finished trial, by number. Columns: see `trial_table`; `front`: on the front of
    the objectives.

    Raises:
        QueryError: an invalid filter, or an unknown column.
    """
    import pyarrow as pa

    front = {record.number for record in front_records(sweep) if record.duplicate_of is None}
    marks = pa.array([record.number in front for record in sweep.records], pa.bool_())
    table = sweep.table.append_column("front", marks)
    table = table.filter(passing(table, where))
    if columns is None:
        return table
    sweep.check_columns(columns, table.column_names)
    return table.select(list(columns))


def limit_on(sweep: Sweep, text: str) -> Callable[[TrialRecord], bool]:
    """A function that tells whether a trial of the sweep meets a constraint such as
    `fid<=vanilla+0.5`.

    Raises:
        QueryError: the constraint cannot be parsed, or needs a value that the sweep does not have.
    """
    vanilla = {} if sweep.baseline is None else sweep.baseline.metrics
    return parse_limit(text, sweep.identity.metrics, vanilla)
