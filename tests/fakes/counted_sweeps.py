"""Synthetic sweeps with counts of accepted drafts."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from orchestrator.store.records import TrialRecord
from tests.fakes.synthetic_sweeps import write_sweep
from workers.data.records import write_shard
from workers.data.storage import Storage
from workers.metrics.acceptance import AcceptanceCounts, acceptance_file
from workers.metrics.estimate import BLOCKS

GROUPS = ("long", "short")


def counts_of(number: int) -> AcceptanceCounts:
    """Of a trial with 48 images, whose captions are long and short in turn: chains of two drafts.
    Of long captions, an image has as many verifications in every trial, and of short ones two more
    than the trial before.
    """
    groups = GROUPS * 24
    histograms = []
    for place, group in enumerate(groups):
        once = place % 3  # so that images differ
        histograms.append([6, 2 + once, 1] if group == "long" else [4, 3 + once, 2 + number])
    tested = [[sum(own), own[1] + own[2]] for own in histograms]
    return AcceptanceCounts.of(histograms, tested, groups, [place % BLOCKS for place in range(48)])


def write_counted_sweep(
    folder: Path, trials: int, without: Collection[int] = ()
) -> list[TrialRecord]:
    """`write_sweep`, with counts for all complete trials but those `without`."""
    records = write_sweep(folder, trials=trials, shards=True)
    storage = Storage(folder)
    for record in records:
        if record.is_complete and record.number not in without:
            table = counts_of(record.number).to_table()
            write_shard(storage, acceptance_file(record.digest), table, {"kind": "acceptance"})
    return records
