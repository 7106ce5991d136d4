"""The settings of one sweep on several devices: their speeds side by side, and on whose front each
of them is.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from itertools import compress
from typing import TYPE_CHECKING, Any

from orchestrator.cli.text import for_output, trial_table
from orchestrator.store.prices import is_priced
from workers.metrics.estimate import Estimate, measured

if TYPE_CHECKING:
    from orchestrator.front.front import Front
    from orchestrator.store.sweep import Sweep


def side_by_side(
    fronts: Sequence[Front], numbers: Collection[int]
) -> tuple[dict[str, Any], list[str]]:
    """A row for each of these trials: as plain data, and as lines of text. Fastest last.

    fronts: of the same metrics, each of the same sweep on another device or at another batch size.

    Raises:
        StopIteration: a trial has not finished.
    """
    sweeps = [sweep for front in fronts for sweep in front.sweeps.values()]
    names = [metric.name for metric in fronts[0].metrics]
    speeds = [name for name in names if is_priced(name)]
    others = [name for name in names if not is_priced(name)]
    members = [{trial.number for trial in front.members} for front in fronts]
    rows = list[dict[str, Any]]()
    shown = dict[int, str]()
    table_names = for_output(fronts[0], long=False).names
    for number in sorted(numbers):
        records = [
            next(record for record in sweep.records if record.number == number) for sweep in sweeps
        ]
        shown[number] = table_names.name(records[0].config)
        rows.append(
            {
                "number": number,
                "setting": fronts[0].names.name(records[0].config),
                "label": records[0].label,
                "digest": records[0].digest,
                **{name: _plain(records[0].metrics.get(name)) for name in others},
                **{
                    name: [_plain(record.metrics.get(name)) for record in records]
                    for name in speeds
                },
                "on_front": [number in found for found in members],
            }
        )
    if speeds:
        rows.sort(key=lambda row: _first_value(row[speeds[0]]))
    settings = [shown[row["number"]] for row in rows]
    facts = {"machines": list(map(_machine_name, sweeps)), "rows": rows}
    return facts, _lines(rows, settings, sweeps, speeds, others)


def _first_value(values: Sequence[dict[str, Any] | None]) -> float:
    """The value on the first device; infinite if there is none."""
    first = values[0]
    return math.inf if first is None else float(first["value"])


def _machine_name(sweep: Sweep) -> str:
    """What the speeds of a sweep are of."""
    identity = sweep.identity
    return str(sweep.machine or f"{identity.timing_device} at batch {identity.timing_batch}")


def _plain(value: Estimate | None) -> dict[str, Any] | None:
    return None if value is None else {"value": value.value, "error": value.known_error}


def _lines(
    rows: Sequence[dict[str, Any]],
    settings: Sequence[str],
    sweeps: Sequence[Sweep],
    speeds: Sequence[str],
    others: Sequence[str],
) -> list[str]:
    """A table with a column for each speed, and what its columns are of. settings: of the rows, by
    name.
    """
    several = len(sweeps) > 1
    marks = [f"[{place}]" for place in range(1, len(sweeps) + 1)]
    cells = []
    for row, setting in zip(rows, settings, strict=True):
        values = [_shown(row[name]) for name in others]
        for name in speeds:
            values += map(_shown, row[name])
        on_front = " ".join(compress(marks if several else ["yes"], row["on_front"]))
        cells.append([str(row["number"]), setting, *values, on_front])
    columns = speeds
    if several:
        columns = [f"{name} {mark}" for name in speeds for mark in marks]
    head = ["trial", "setting", *others, *columns, "on front"]
    table = trial_table(head, cells, [row["label"] for row in rows], range(2, len(head) - 1))
    named = zip(marks, map(_machine_name, sweeps), strict=True)
    return [*table, *(f"{mark} {name}" for mark, name in named if several)]


def _shown(value: dict[str, Any] | None) -> str:
    return "-" if value is None else measured(**value)
