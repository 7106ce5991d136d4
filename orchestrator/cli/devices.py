"""The settings of one sweep on several devices: their prices side by side, and on whose front each
of them is.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
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
        rows.sort(key=lambda row: row[speeds[0]][0]["value"] if row[speeds[0]][0] else float("inf"))
    settings = [shown[row["number"]] for row in rows]
    return {"machines": list(map(_machine_name, sweeps)), "rows": rows}, _lines(
        rows, settings, sweeps, speeds, others
    )


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
    """A table with a column for each price, and what its columns are of. settings: their names, of
    each row.
    """
    several = len(sweeps) > 1
    marks = [f"[{place}]" for place in range(1, len(sweeps) + 1)]
    head = [f"{name} {mark}" if several else name for name in speeds for mark in marks]
    cells = [
        [
            str(row["number"]),
            setting,
            *(_shown(row[name]) for name in others),
            *(_shown(value) for name in speeds for value in row[name]),
            " ".join(
                mark if several else "yes"
                for mark, found in zip(marks, row["on_front"], strict=True)
                if found
            ),
        ]
        for row, setting in zip(rows, settings, strict=True)
    ]
    head = ["trial", "setting", *others, *head, "on front"]
    table = trial_table(head, cells, [row["label"] for row in rows], range(2, len(head) - 1))
    named = zip(marks, map(_machine_name, sweeps), strict=True)
    return [*table, *(f"{mark} {name}" for mark, name in named if several)]


def _shown(value: dict[str, Any] | None) -> str:
    return "-" if value is None else measured(**value)
