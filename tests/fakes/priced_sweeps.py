"""A made-up sweep whose trials' passes are known, and timing sessions of it on made-up devices."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path

from orchestrator.store.records import read_trials, write_trial
from tests.fakes.metric_inputs import write_session
from tests.fakes.synthetic_sweeps import write_sweep
from workers.data.storage import Storage
from workers.metrics.estimate import Estimate
from workers.metrics.timings import Load

TRIALS, TOLD = 5, 2.5
# a pass of a setting, relative to vanilla's
SLOWER: Mapping[str, float] = {"zen": 1.0, "xeon": 1.5, "arm": 3.0}


def write_untimed_sweep(folder: Path, name: str = "synthetic") -> Storage:
    """A sweep without sessions. Each trial but vanilla was told a speed-up of `TOLD`, and has 60
    passes at batch 1, and more at larger ones.
    """
    storage = Storage(str(folder))
    for record in write_sweep(
        folder, TRIALS, name=name, failed=(), constraints=["latency <= 0.8 * vanilla"]
    ):
        is_vanilla = record.number == 0
        told = {
            "speedup": Estimate(1.0 if is_vanilla else TOLD, 0.1, 9),
            "latency": Estimate(9.0, 0.1, 9),
        }
        passes = {size: ((144.0 if is_vanilla else 50.0 + 10 * size),) * 25 for size in (1, 4)}
        kept = {name: value for name, value in record.metrics.items() if name not in told}
        write_trial(storage, replace(record, metrics=kept | told, passes=passes, history=()))
    return storage


def time_on(
    storage: Storage, device: str, trials: Iterable[int], *, day: int = 1, batch: int = 1, is_later: bool = False,
    slower: Mapping[int, float] | None = None, load: Load | None = None, host: str = "", minute: int = 0,
) -> str:  # fmt: skip
    """A session of vanilla and these trials on a device, on a day, in a call of its own; returns its
    name. slower: a pass of each trial, relative to vanilla's; by default that of the device. load:
    of the machine. minute: of the day.
    """
    configs, wobble = (
        {record.number: record.config for record in read_trials(storage)},
        (1.0, 1.01) * 3,
    )
    costs = {
        config: [
            0.03 * ((slower or {}).get(number, SLOWER[device]) if number else 1.0) * part
            for part in wobble
        ]
        for number in (0, *trials)
        if (config := configs[number]) is not None
    }
    name = f"timings/{device}-{day}-{minute}-{batch}.parquet"
    started = f"2026-01-{day:02d}T{minute // 60:02d}:{minute % 60:02d}:00+00:00"
    write_session(
        storage, costs, device=device, name=name, batch=batch, is_later=is_later, started=started,
        call=f"{day} {minute}", load=load, host=host,
    )  # fmt: skip
    return name
