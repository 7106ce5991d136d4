"""Timing sessions as Parquet files: a row per setting, batch of captions and repetition.

The metadata (see `workers.data.records`) has the configs, vanilla's first, and what timed them. Importing this module
is cheap: pyarrow is imported when a file is read or written.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from search_spaces.trial import DecodingConfig
from workers.data.shards import TimingSession
from workers.data.storage import Storage
from workers.metrics.costs import Prices, Session
from workers.metrics.estimate import MetricUnavailable

if TYPE_CHECKING:
    import pyarrow as pa

CPU_CLOCK: Final = "cpu time"  # of the thread that computes
WALL_CLOCK: Final = "wall clock"
_COLUMNS: Final = ("setting", "caption_ids", "repetition", "batch", "turn", "seconds", "prefill", "passes", "wall")


class Device(NamedTuple):
    """What timed a session. name: of the GPU, or of the CPU's model. threads: that compute."""

    name: str
    threads: int
    clock: str = WALL_CLOCK

    def __str__(self) -> str:
        threads = f"{self.threads} thread{'s' * (self.threads != 1)}"
        return self.name if self.clock == WALL_CLOCK else f"{self.name}, {threads}"


@dataclass(frozen=True, slots=True, eq=False)
class TimedSession:
    """What a session's file holds. started: ISO 8601, UTC. readings: by batch size."""

    device: Device
    started: str
    vanilla: DecodingConfig
    readings: Mapping[int, Session]


def session_table(rows: Sequence[Mapping[str, Any]]) -> pa.Table:
    """The rows of a session (see `workers.runtime.timing.time_in_turn`) as a table."""
    import pyarrow as pa

    integers = dict.fromkeys(("repetition", "batch", "turn"), pa.int32())
    kinds = {"setting": pa.string(), "caption_ids": pa.list_(pa.int64()), **integers}
    schema = pa.schema([(name, kinds.get(name, pa.float64())) for name in _COLUMNS])
    return pa.Table.from_pylist([dict(row) for row in rows], schema)


def relative_noise(rows: Sequence[Mapping[str, Any]]) -> float:
    """The largest relative standard error of a setting's cost against vanilla's, given the state of the machine."""
    names = dict.fromkeys(row["setting"] for row in rows)
    columns = {key: np.array([row[key] for row in rows]) for key in ("setting", "seconds", "prefill", "passes")}
    if min(len(names), len(rows) // len(names)) < 2:
        return math.inf
    session = _readings("", {name: name for name in names}, columns)
    return math.sqrt(2 * session.noise / session.units)


def read_session(storage: Storage, name: str) -> TimedSession:
    """Read a session's file.

    Raises:
        FileNotFoundError, ShardError: see `read_shard`.
        ConfigError: a config is of a plugin that is not loaded.
        MetricUnavailable: too few readings.
    """
    from workers.data.records import ShardError, read_shard

    table, metadata = read_shard(storage, name, kind=TimingSession.kind, fix="")
    if missing := [
        *(set(_COLUMNS) - set(table.column_names)),
        *({"configs", "started", "timed_on", "threads", "clock"} - metadata.keys()),
    ]:
        raise ShardError({name: f"{storage.locate(name)}: not a timing session, it lacks {', '.join(sorted(missing))}"})
    configs = {config.digest(): config for config in map(DecodingConfig.from_mapping, metadata["configs"])}
    columns = {key: np.array(table.column(key).to_pylist()) for key in table.column_names if key != "caption_ids"}
    shapes = {digest: config.shape for digest, config in configs.items()}
    readings = {}
    for batch in dict.fromkeys(columns["batch"].tolist()):
        rows = columns["batch"] == batch
        if len({int((columns["setting"][rows] == digest).sum()) for digest in configs}) != 1:
            raise ShardError({name: f"{storage.locate(name)}: not a timing session, its settings differ in their rows"})
        readings[batch] = _readings(name, shapes, {key: column[rows] for key, column in columns.items()})
    device = Device(metadata["timed_on"], metadata["threads"], metadata["clock"])
    return TimedSession(device, metadata["started"], next(iter(configs.values())), readings)


def _readings(name: str, shapes: Mapping[str, Hashable], columns: Mapping[str, Any]) -> Session:
    """The readings at one batch size. shapes: of the settings. The rows of a setting are in the order of its units."""
    rows = [columns["setting"] == setting for setting in shapes]
    seconds, prefill, passes = (
        np.stack([columns[key][row] for row in rows]) for key in ("seconds", "prefill", "passes")
    )
    return Session(
        name=name,
        shapes=tuple(shapes.values()),
        settings=tuple(shapes),
        prefill=prefill,
        per_pass=(seconds - prefill) / passes,
        passes=passes,
        seconds=seconds,
    )


class PriceList:
    """The costs of settings by device and batch size, from timing sessions.

    sessions: their number. problems: why others cannot be used.
    """

    def __init__(self, sessions: Iterable[TimedSession] = (), problems: Sequence[str] = ()) -> None:
        self.problems = tuple(problems)
        self.sessions = 0
        found: dict[Device, dict[int, list[Session]]] = {}
        vanilla: dict[Device, DecodingConfig] = {}
        for session in sessions:
            self.sessions += 1
            vanilla.setdefault(session.device, session.vanilla)
            for batch, readings in session.readings.items():
                found.setdefault(session.device, {}).setdefault(batch, []).append(readings)
        self._prices = {
            device: {batch: Prices(parts, vanilla[device].shape) for batch, parts in by_batch.items()}
            for device, by_batch in found.items()
        }

    @property
    def devices(self) -> tuple[Device, ...]:
        """In the order of the sessions."""
        return tuple(self._prices)

    @property
    def batches(self) -> tuple[int, ...]:
        """The batch sizes at which settings were timed."""
        return self.batches_on(self.devices)

    def batches_on(self, devices: Iterable[Device]) -> tuple[int, ...]:
        """The batch sizes at which settings were timed on devices."""
        return tuple(dict.fromkeys(batch for device in devices for batch in self._prices[device]))

    def of(self, shape: Hashable, batch: int | None = None, devices: Sequence[Device] = ()) -> tuple[Prices, int]:
        """The prices on the first of the devices (by default all) that timed a shape at a batch size, by default the
        first; and that size.

        Raises:
            MetricUnavailable: none of them did.
        """
        for device in devices or self.devices:
            by_batch = self._prices[device]
            size = next(iter(by_batch)) if batch is None else batch
            if size in by_batch and shape in by_batch[size]:
                return by_batch[size], size
        at = "" if batch is None else f" at batch {batch}"
        raise MetricUnavailable(f"its shape was not timed{at}" if self.devices else "nothing was timed")
