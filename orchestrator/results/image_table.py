"""The images of trials as a table, from their shards."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from orchestrator.results.store import read_table, trial_file
from orchestrator.results.trials import TrialRecord
from workers.data.storage import Storage

if TYPE_CHECKING:
    import pyarrow


def image_table(
    storage: Storage, records: Iterable[TrialRecord], columns: Sequence[str] | None = None
) -> pyarrow.Table:
    """One row per image, with the trial's `number` as first column: of trials that share images, the first one's.

    Without images it has the columns of every shard, which are all but features and scores.

    Raises:
        ValueError: a shard is missing or damaged, or has no such column.
    """
    import pyarrow as pa

    from workers.data.records import IMAGE_SCHEMA

    shards: dict[str, int] = {}
    for record in records:
        for shard in record.image_shards:
            shards.setdefault(shard, record.number)
    tables = []
    for shard, owner in shards.items():
        fix = f"to draw it again, move it and {trial_file(owner)} elsewhere, then launch with --resume"
        table = read_table(storage, shard, columns, fix=fix)
        tables.append(table.add_column(0, "number", pa.array([owner] * table.num_rows, pa.int64())))
    if tables:
        return pa.concat_tables(tables, promote_options="default")
    kept = [field for field in IMAGE_SCHEMA if columns is None or field.name in columns]
    return pa.schema([pa.field("number", pa.int64()), *kept]).empty_table()
