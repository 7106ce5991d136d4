"""The speed-up of the front's settings at each batch size that the sweep timed."""

from __future__ import annotations

from typing import Any

from orchestrator.report.section import SECTIONS, Section, Subject
from workers.metrics.estimate import Estimate


def batches(subject: Subject) -> dict[str, Any] | None:
    """The sizes, and a row for each trial on the front: its name, its setting, and value and error
    at each size.
    """
    if subject.front is None:
        return None
    members = subject.front.members
    speeds = [trial.record.by_batch("speedup", trial.batch) for trial in members]
    sizes = sorted({size for found in speeds for size in found})
    if max(map(len, speeds), default=0) < 2:
        return None
    rows = [
        [trial.name, trial.title, *(_measured(found.get(size)) for size in sizes)]
        for trial, found in zip(members, speeds, strict=True)
    ]
    return {"sizes": sizes, "rows": rows}


def _measured(speed: Estimate | None) -> list[float | None] | None:
    return None if speed is None else [speed.value, speed.known_error]


_LEAD = (
    "What speculation gains falls with the batch: a larger one keeps the device busy without it."
)
SECTIONS.add("batches", Section("Speed-up over batch", 35, batches, lead=_LEAD))
