"""Fronts of tables of trials: the arrays of `pareto` with names, errors and settings beside them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from orchestrator.results.pareto import DRAWS, Bools, Floats, front_confidence, nondominated, tell_apart
from orchestrator.results.store import Axis, Direction

if TYPE_CHECKING:
    import pyarrow

ADDED = ("on_front", "confidence", "apart", "alike")


def directions(axes: Sequence[Axis]) -> list[Direction]:
    return [axis.direction for axis in axes]


def values_of(table: pyarrow.Table, axes: Sequence[Axis], *, errors: bool = False) -> Floats:
    """The axes' columns (or those of their errors) as [rows, axes]; NaN where there is none."""
    wanted = [axis.error if errors else axis.name for axis in axes]
    found = np.full((table.num_rows, len(wanted)), np.nan)
    for place, name in enumerate(wanted):
        if name in table.column_names:
            found[:, place] = [np.nan if value is None else value for value in table[name].to_pylist()]
    return found


def keep(table: pyarrow.Table, mask: Bools) -> pyarrow.Table:
    """The rows where the mask is true."""
    import pyarrow as pa

    return table.filter(pa.array(mask, pa.bool_()))


def mark_front(
    table: pyarrow.Table,
    axes: Sequence[Axis],
    *,
    names: Sequence[str] | None = None,
    everything: bool = False,
    draws: int = DRAWS,
    seed: int = 0,
) -> pyarrow.Table:
    """The rows on the front, or with `everything` all that were measured, by rising first objective, with four columns:

    on_front; confidence, the share of draws from the errors in which the row is on the front; apart, the objectives in
    which it differs beyond errors from the front's next row (null in the last row and off the front); alike, the
    `names` (by default the numbers) of other front rows that differ from it in no objective beyond errors.
    """
    import pyarrow as pa

    labels = [str(number) for number in table["number"].to_pylist()] if names is None else list(names)
    values, errors = values_of(table, axes), values_of(table, axes, errors=True)
    on_front = nondominated(values, directions(axes))
    confidence = front_confidence(values, errors, directions(axes), draws=draws, seed=seed)
    chosen: Bools = ~np.isnan(values.sum(axis=1)) if everything else on_front
    order = [int(row) for row in np.lexsort(values.T[::-1]) if chosen[row]]
    front = [row for row in order if on_front[row]]
    apart: dict[int, list[str]] = {}
    alike: dict[int, list[str]] = {}
    for place, row in enumerate(front):
        differ = tell_apart(values[[row]], values[front], errors[[row]], errors[front])
        same = [other for other, found in zip(front, differ, strict=True) if not found.any()]
        alike[row] = [labels[other] for other in same if other != row]
        if place + 1 < len(front):
            apart[row] = [axis.name for axis, differs in zip(axes, differ[place + 1], strict=True) if differs]
    marked = table.take(pa.array(order, pa.int64()))
    words = pa.list_(pa.string())
    return (
        marked.append_column("on_front", pa.array([bool(on_front[row]) for row in order], pa.bool_()))
        .append_column("confidence", pa.array([float(confidence[row]) for row in order], pa.float64()))
        .append_column("apart", pa.array([apart.get(row) for row in order], words))
        .append_column("alike", pa.array([alike.get(row) for row in order], words))
    )
