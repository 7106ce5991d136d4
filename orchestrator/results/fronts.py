"""Fronts of tables of trials: `pareto` on named columns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from orchestrator.results.pareto import DRAWS, Bools, Floats, differ_beyond_error, front_confidence, nondominated
from orchestrator.results.store import Axis, Direction

if TYPE_CHECKING:
    import pyarrow


def directions(axes: Sequence[Axis]) -> list[Direction]:
    return [axis.direction for axis in axes]


def values_of(table: pyarrow.Table, axes: Sequence[Axis], *, errors: bool = False) -> Floats:
    """The axes' columns (or those of their errors) as [rows, axes]; NaN for a missing value or column."""
    values = np.full((table.num_rows, len(axes)), np.nan)
    for index, axis in enumerate(axes):
        name = axis.error if errors else axis.name
        if name in table.column_names:
            values[:, index] = [np.nan if value is None else value for value in table[name].to_pylist()]
    return values


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
    """The rows on the front, or with `everything` all measured rows, by rising first objective, with four columns:

    on_front; confidence, the share of draws from the errors in which the row is on the front; distinct_from_next, the
    objectives in which it differs beyond errors from the front's next row (null in the last row and off the front);
    within_error_of, the `names` (by default the numbers) of other front rows from which it differs beyond errors in no
    objective.
    """
    import pyarrow as pa

    labels = [str(number) for number in table["number"].to_pylist()] if names is None else list(names)
    values, errors = values_of(table, axes), values_of(table, axes, errors=True)
    on_front = nondominated(values, directions(axes))
    confidence = front_confidence(values, errors, directions(axes), draws=draws, seed=seed)
    chosen: Bools = ~np.isnan(values.sum(axis=1)) if everything else on_front
    order = [int(row) for row in np.lexsort(values.T[::-1]) if chosen[row]]
    front = [row for row in order if on_front[row]]
    distinct: dict[int, list[str]] = {}
    within: dict[int, list[str]] = {}
    for index, row in enumerate(front):
        differs = differ_beyond_error(values[[row]], values[front], errors[[row]], errors[front])
        within[row] = [labels[other] for other, d in zip(front, differs, strict=True) if other != row and not d.any()]
        if index + 1 < len(front):
            distinct[row] = [axis.name for axis, d in zip(axes, differs[index + 1], strict=True) if d]
    marked, texts = table.take(pa.array(order, pa.int64())), pa.list_(pa.string())
    return (
        marked.append_column("on_front", pa.array([bool(on_front[row]) for row in order], pa.bool_()))
        .append_column("confidence", pa.array([float(confidence[row]) for row in order], pa.float64()))
        .append_column("distinct_from_next", pa.array([distinct.get(row) for row in order], texts))
        .append_column("within_error_of", pa.array([within.get(row) for row in order], texts))
    )
