"""What two sweeps must share, whatever happened to one of them: every image's row, settings and
metrics, the front.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from orchestrator.store.records import TrialRecord
from specfrontier import Sweep
from workers.data.records import ShardError, read_shard
from workers.data.storage import Storage

# prefixes of the columns that differ from run to run
TIMING_COLUMNS = ("seconds", "latency", "batch")
Image = tuple[str, int, int]  # a setting's digest, a caption's id, a sample


@dataclass(frozen=True, slots=True)
class Comparison:
    """The images of a disturbed sweep, counted against those of an undisturbed one."""

    expected: int
    lost: int
    twice: int
    wrong: int
    trials: int
    trials_differ: list[int]
    same_front: bool

    @property
    def is_clean(self) -> bool:
        return not (self.lost or self.twice or self.wrong or self.trials_differ) and self.same_front

    def describe(self) -> str:
        front = "equals" if self.same_front else "DIFFERS FROM"
        return (
            f"images expected {self.expected}, lost {self.lost}, drawn twice {self.twice}, wrong "
            f"{self.wrong}; trials that differ: {len(self.trials_differ)}; the front {front} the "
            "undisturbed one's"
        )


def images(store: Path) -> dict[str, pa.Table]:
    """The readable quality shards' rows by file name, without their timings."""
    storage, tables = Storage(str(store)), {}
    for path in sorted((store / "shards").glob("quality-*.parquet")):
        try:
            table, metadata = read_shard(storage, f"shards/{path.name}")
        except ShardError:
            continue
        kept = [column for column in table.column_names if not column.startswith(TIMING_COLUMNS)]
        tables[path.name] = table.select(kept).replace_schema_metadata(
            {"setting": metadata["setting"]}
        )
    return tables


def results(records: Sequence[TrialRecord], metrics: Collection[str]) -> list[tuple[Any, ...]]:
    """Settings and metrics of each trial, without timings."""
    return [
        (
            record.number,
            record.label,
            record.state,
            record.config,
            record.params,
            record.duplicate_of,
            [name for name in record.shards if name.startswith("shards/quality")],
            {name: record.metrics[name] for name in metrics if name in record.metrics},
        )
        for record in records
    ]


def compare(
    calm: Path, disturbed: Path, metrics: Collection[str], rewritten: Collection[str] = ()
) -> Comparison:
    """Compare two sweeps of equally many trials by their stores.

    metrics: those that timing does not change. rewritten: names of the disturbed sweep's shards
    that were there before.
    """
    again = images(disturbed)
    expected, found = _rows(images(calm)), _rows(again)
    pair = [Sweep.open(str(store)) for store in (calm, disturbed)]
    one, other = (results(sweep.records, metrics) for sweep in pair)
    complete = {record.digest for record in pair[0].records if record.state == "complete"}
    needed = {image: rows for image, rows in expected.items() if image[0] in complete}
    return Comparison(
        expected=len(needed),
        lost=len(needed.keys() - found.keys()),
        twice=sum(len(rows) > 1 for rows in found.values())
        + sum(map(len, (again[name] for name in rewritten if name in again))),
        wrong=sum(
            any(row != needed[image][0] for row in rows)
            for image, rows in found.items()
            if image in needed
        ),
        trials=len(pair[0].records),
        trials_differ=sorted(
            {entry[0] for entry in (*one, *other) if not (entry in one and entry in other)}
        ),
        same_front=_front(pair[0], metrics) == _front(pair[1], metrics),
    )


def _rows(tables: Mapping[str, pa.Table]) -> dict[Image, list[dict[str, Any]]]:
    """Every image's rows; more than one if several shards hold it."""
    rows: dict[Image, list[dict[str, Any]]] = {}
    for table in tables.values():
        setting = table.schema.metadata[b"setting"].decode()
        for row in table.to_pylist():
            rows.setdefault((setting, row["caption_id"], row["sample"]), []).append(row)
    return rows


def _front(sweep: Sweep, metrics: Collection[str]) -> list[dict[str, Any]]:
    """The front's trials with their metrics and errors."""
    names = ["number", *(column for name in metrics for column in (name, f"{name}_error"))]
    table = sweep.front()
    rows: list[dict[str, Any]] = table.select(
        [name for name in names if name in table.column_names]
    ).to_pylist()
    return rows
