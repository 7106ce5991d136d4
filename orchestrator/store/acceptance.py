"""Counts of accepted drafts of a sweep's trials (see `workers.metrics.acceptance`)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from orchestrator.store.files import read_table
from orchestrator.store.records import TrialRecord
from workers.data.storage import Storage, in_parallel
from workers.metrics.acceptance import AcceptanceCounts, acceptance_file

if TYPE_CHECKING:
    import pyarrow


def read_acceptance(storage: Storage, record: TrialRecord) -> AcceptanceCounts | None:
    """The counts of a trial, on as many images as its config was measured on last; None if it was
    not measured, or its images are of an earlier version.

    Raises:
        ValueError: the file is damaged.
    """
    name = acceptance_file(record.digest)
    if not record.image_shards or not storage.exists(name):
        return None
    fix = "remove it; no other result depends on it"
    table = read_table(storage, name, fix=fix)
    try:
        return AcceptanceCounts.from_table(table)
    except ValueError as error:
        raise ValueError(f"{storage.locate(name)}: {error}; {fix}") from error


def acceptance_table(storage: Storage, records: Sequence[TrialRecord]) -> pyarrow.Table:
    """A row for each trial, group of captions (null: all of them) and number of drafts.

    Columns: `number`, `group`, `drafts`; `verifications` that accepted exactly so many drafts,
    their `share` of all and its error; `tested`, verifications that tested a draft at this
    position, `accepted`, those of them that accepted it, the `rate` and its error. Position 0 has
    no rate.

    Raises:
        ValueError: a file is damaged.
    """
    import pyarrow as pa

    types = {
        **dict.fromkeys(("number", "drafts", "verifications", "tested", "accepted"), pa.int64()),
        "group": pa.string(),
        **dict.fromkeys(("share", "share_error", "rate", "rate_error"), pa.float64()),
    }
    order = ["number", "group", "drafts", "verifications", "share", "share_error"]
    order += ["tested", "accepted", "rate", "rate_error"]
    rows = []
    found = in_parallel(partial(read_acceptance, storage), records)
    for record, counts in zip(records, found, strict=True):
        if counts is not None:
            rows += [{"number": record.number, **row} for row in _rows(counts)]
    return pa.Table.from_pylist(rows, pa.schema({name: types[name] for name in order}))


def _rows(counts: AcceptanceCounts) -> Iterator[dict[str, Any]]:
    groups: list[str | None] = [None]
    if len(counts.groups) > 1:
        groups += counts.groups
    for group in groups:
        for each in counts.positions(group):
            rate = each.rate
            yield {
                "group": group,
                "drafts": each.drafts,
                "verifications": each.verifications,
                "share": each.share.value,
                "share_error": each.share.known_error,
                "tested": each.tested,
                "accepted": each.accepted,
                "rate": None if rate is None else rate.value,
                "rate_error": None if rate is None else rate.known_error,
            }
