"""A timing session on this machine."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from search_spaces.trial import DecodingConfig
from workers.data.captions import Caption
from workers.data.shards import TimingSession
from workers.decoding.state import Request
from workers.decoding.statistics import Result
from workers.metrics.timings import Device, Load, relative_noise, session_table
from workers.runtime.device import this_device
from workers.runtime.engines import Engines
from workers.runtime.timing import time_in_turn

if TYPE_CHECKING:
    import pyarrow as pa

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def run_session(
    engines: Engines,
    captions: Sequence[Caption],
    session: TimingSession,
    call: str,
    advance: Callable[[], object] = lambda: None,
) -> tuple[pa.Table, dict[str, Any]]:
    """Time a session's captions with all of its configs in turn; returns the rows and the metadata
    of its file.

    Args:
        engines: those of the configs.
        captions: those of the sweep.
        session: what is timed.
        call: names the launch, or the call of `specfrontier time`: its sessions on this machine
            are a sitting.
        advance: see `time_session`.

    Raises:
        See `time_session`.
    """
    from workers.runtime.shard_tables import requests_of

    wall = time.perf_counter()
    cpu = time.thread_time()
    rows, device, started = time_session(engines, requests_of(captions, session), session, advance)
    load = _load(time.perf_counter() - wall, time.thread_time() - cpu)
    configs = [config.to_mapping() for config in session.configs]
    return session_table(rows), {
        "configs": configs,
        "clock": device.clock,
        "timed_on": device.name,
        "started": started,
        "call": call,
        "host": _machine_id(),
        "load": load._asdict(),
    }


def _machine_id() -> str:
    """What names this machine since it was started: on Linux the boot id, because each of its
    containers has a host name of its own; elsewhere the host name.
    """
    try:
        return _BOOT_ID.read_text().strip() or platform.node()
    except OSError:
        return platform.node()


def _load(wall: float, cpu: float) -> Load:
    """How busy this machine was during a session that has just ended.

    wall, cpu: its seconds, and those of CPU time of this thread.
    """
    average = os.getloadavg()[0] if hasattr(os, "getloadavg") else None
    return Load(wall / cpu if cpu else None, average, os.cpu_count())


def time_session(
    engines: Engines,
    requests: Sequence[Request],
    session: TimingSession,
    advance: Callable[[], object] = lambda: None,
) -> tuple[list[dict[str, Any]], Device, str]:
    """Time requests with all configs of a session in turn; returns the rows, the device that timed
    them, and the moment of the start. `advance` is called after each batch of a config, measured or
    not.

    Raises:
        ConfigError: the model does not support a config.
        OutOfMemory: a batch does not fit; timings at another batch would not be comparable.
        Cancelled, DecodingError: see `Engines.generate`.
    """
    target = engines.models.target

    def generate(config: DecodingConfig, requests: Sequence[Request]) -> list[Result]:
        return engines.generate_once(config, requests, len(requests), session.configs)

    def time_batches(batch: int) -> list[dict[str, Any]]:
        return time_in_turn(
            {config.digest(): partial(generate, config) for config in session.configs},
            [requests[start : start + batch] for start in range(0, len(requests), batch)],
            target.device,
            repetitions=session.repetitions,
            seed=session.number,
            is_enough=lambda found: relative_noise(found) <= session.precision,
            encode=lambda requests: target.encode(
                [request.caption for request in requests], guided=False
            ),
            advance=advance,
        )

    while True:
        device = this_device(target.device)
        started = datetime.now(UTC).isoformat()
        rows = [row for batch in session.batches for row in time_batches(batch)]
        # If the device differs, CUDA graphs were given up meanwhile: some settings had them, others
        # did not.
        if this_device(target.device) == device:
            return rows, device, started
