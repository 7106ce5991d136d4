"""The speed-up of the front's settings at each batch size that the sweep timed."""

from __future__ import annotations

from typing import Any

from orchestrator.report.section import SECTIONS, Section, Subject
from search_spaces.constraints import split_batch
from workers.metrics.estimate import Estimate


def batches(subject: Subject) -> dict[str, Any] | None:
    """The sizes, and a row for each trial on the front: its name, its setting, and value and error at each size."""
    others = sorted(
        {size for name in subject.metrics for base, size in [split_batch(name)] if base == "speedup" and size}
    )
    if subject.front is None or not others:
        return None
    rows = []
    for trial in subject.front.members:
        speeds = [trial.metrics.get("speedup"), *(trial.metrics.get(f"speedup_batch{size}") for size in others)]
        rows.append([trial.name, trial.title, *map(_measured, speeds)])
    first = dict.fromkeys(sweep.identity.timing_batch for sweep in subject.sweeps.values())
    return {"sizes": [" or ".join(map(str, first)), *map(str, others)], "rows": rows}


def _measured(speed: Estimate | None) -> list[float | None] | None:
    return None if speed is None else [speed.value, speed.known_error]


_LEAD = "What speculation gains falls with the batch: a larger one keeps the device busy without it."
SECTIONS.add("batches", Section("Speed-up over batch", 35, batches, lead=_LEAD))
