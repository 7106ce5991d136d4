"""Made-up sweeps whose settings were timed at several batch sizes, with real files of timing
sessions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.simulated import write_session
from orchestrator.store.records import write_trial
from orchestrator.store.sweep import Sweep
from search_spaces.constraints import at_batch
from tests.fakes.synthetic_sweeps import METRICS, NEEDS, write_sweep
from workers.data.shards import TimingSession
from workers.data.storage import Storage

SPEEDS = ("speedup", "latency")
_BLOCKS = 24


def write_timed_sweep(
    folder: Path, trials: int = 6, sizes: Sequence[int] = (1, 8), **changed: Any
) -> Sweep:
    """Write a sweep with `timing.batch: sizes` and one session of all of its settings. changed: see
    `write_sweep`.
    """
    names = {at_batch(name, size): name for size in sizes[1:] for name in SPEEDS}
    metrics = {
        name: {**METRICS[base], "needs": NEEDS[base]}
        for name, base in {**dict(zip(METRICS, METRICS, strict=True)), **names}.items()
    }
    records = write_sweep(folder, trials, metrics=metrics, timing={"batch": list(sizes)}, **changed)
    storage = Storage(str(folder))
    for record in records:
        if not record.metrics:
            continue
        told = {name: record.metrics[base] for name, base in names.items()}
        count = 144.0 if record.config and record.config.is_vanilla else 40.0 + record.number
        passes = {size: (count + 0.1 * size,) * (1 + _BLOCKS) for size in sizes}
        write_trial(storage, replace(record, metrics={**record.metrics, **told}, passes=passes))
    time_again(Sweep.open(storage), sizes)
    return Sweep.open(storage)


def time_again(sweep: Sweep, sizes: Sequence[int]) -> None:
    """Add a session of all settings of a sweep at some batch sizes."""
    configs = tuple(
        {record.config.shape: record.config for record in sweep.records if record.config}.values()
    )
    number = len(sweep.prices.sessions)
    session = TimingSession(configs, 0, 2 * max(sizes), tuple(sizes), 1, number=number)
    write_session(sweep.storage, f"timings/timing-{number:020d}.parquet", session)
