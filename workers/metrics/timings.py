"""Timing sessions as Parquet files: a row per setting, batch of captions and repetition.

The metadata (see `workers.data.records`) has the configs, vanilla's first, what timed them, and how
busy it was. Sessions of one call (a launch, or `specfrontier time`) on one machine are a sitting: a
group whose costs are taken to differ from those of other groups by an effect of its own. Sessions
of other calls, also those of other sweeps, belong to it if each begins within `SAME_SITTING_S` of
the one before.

Importing this module is cheap: pyarrow is imported when a file is read or written.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from search_spaces.trial import DecodingConfig
from workers.data.shards import TimingSession
from workers.data.storage import Storage
from workers.metrics.costs import Prices
from workers.metrics.estimate import MetricUnavailable
from workers.metrics.readings import Session

if TYPE_CHECKING:
    import pyarrow as pa

CPU_CLOCK: Final = "cpu time"  # CPU time of the thread that computes
WALL_CLOCK: Final = "wall clock"
EAGER: Final = ", without CUDA graphs"  # the end of a GPU's name
TIME_WORKER: Final = "time"  # name of the worker in sessions of `specfrontier time`
SAME_SITTING_S: Final = 3600.0  # from the start of a session to that of the next one
# A machine is busy where processes wait for its cores. With a core for each both numbers are about
# 1, with two processes for each core 2; those of quiet and of busy sittings are printed by `python
# -m benchmarks.speed_repeats`.
BUSY_WALL_OVER_CPU: Final = 1.2
BUSY_LOAD_PER_CORE: Final = 1.25
_COLUMNS: Final = (
    "setting",
    "caption_ids",
    "repetition",
    "batch",
    "turn",
    "seconds",
    "prefill",
    "passes",
    "wall",
)


class Device(NamedTuple):
    """What timed a session."""

    name: str  # name of the GPU, or model of the CPU
    threads: int = 0  # threads of a CPU that compute; 0: a GPU

    @property
    def clock(self) -> str:
        return CPU_CLOCK if self.threads else WALL_CLOCK

    @property
    def hardware(self) -> str:
        """The device without the mark of a GPU that has given up CUDA graphs: a process learns that
        only while it runs.
        """
        return str(self).removesuffix(EAGER)

    def __str__(self) -> str:
        if self.threads:
            return f"{self.name}, {self.threads} thread{'s' * (self.threads != 1)}"
        return self.name


class Load(NamedTuple):
    """How busy a machine was during a session; None where it is not known."""

    # Seconds by the wall clock over those for which the thread that decodes computed. It waits for
    # its cores, but also for a GPU, or for other threads of its own.
    wall_over_cpu: float | None = None
    average: float | None = None  # processes that wanted a core in the last minute of the session
    cores: int | None = None

    @property
    def per_core(self) -> float | None:
        if self.average is None or not self.cores:
            return None
        return self.average / self.cores

    def is_busy_on(self, device: Device) -> bool:
        """Whether other processes disturbed a session on a device: by the waiting of a single
        thread, else by the load.
        """
        if device.threads == 1 and self.wall_over_cpu is not None:
            return self.wall_over_cpu > BUSY_WALL_OVER_CPU
        return self.per_core is not None and self.per_core > BUSY_LOAD_PER_CORE


@dataclass(frozen=True, slots=True, eq=False)
class TimedSession:
    """The contents of a session's file."""

    device: Device
    started: str  # ISO 8601, UTC
    vanilla: DecodingConfig
    readings: Mapping[int, Session]  # by batch size
    is_later: bool = False  # timed after the sweep, by `specfrontier time`
    call: str = ""  # the launch, or the call of `specfrontier time`
    host: str = ""  # the machine since it was started; the sessions of all its containers have it
    load: Load = field(default_factory=Load)

    @property
    def is_busy(self) -> bool:
        return self.load.is_busy_on(self.device)

    @property
    def shapes(self) -> set[Hashable]:
        return {shape for session in self.readings.values() for shape in session.shapes}


def session_table(rows: Sequence[Mapping[str, Any]]) -> pa.Table:
    """The rows of a session (see `workers.runtime.timing.time_in_turn`) as a table."""
    import pyarrow as pa

    integers = dict.fromkeys(("repetition", "batch", "turn"), pa.int32())
    kinds = {"setting": pa.string(), "caption_ids": pa.list_(pa.int64()), **integers}
    schema = pa.schema([(name, kinds.get(name, pa.float64())) for name in _COLUMNS])
    return pa.Table.from_pylist([dict(row) for row in rows], schema)


def relative_noise(rows: Sequence[Mapping[str, Any]]) -> float:
    """The largest relative standard error of a setting's cost against vanilla's from the noise of
    a session's readings.
    """
    names = dict.fromkeys(row["setting"] for row in rows)
    if min(len(names), len(rows) // len(names)) < 2:
        return math.inf
    session = readings_of(rows, {name: name for name in names})
    return math.sqrt(2 * session.noise / session.units)


def readings_of(
    rows: Sequence[Mapping[str, Any]], shapes: Mapping[str, Hashable], name: str = ""
) -> Session:
    """The readings of a session's rows at one batch size.

    Args:
        rows: the session's rows.
        shapes: shape of each setting, vanilla's first.
        name: name of the session, for messages.

    Raises:
        MetricUnavailable: there are too few readings.
    """
    columns = {
        key: np.array([row[key] for row in rows])
        for key in ("setting", "seconds", "prefill", "passes")
    }
    return _readings(name, shapes, columns)


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
        problem = f"it lacks {', '.join(sorted(missing))}"
        raise ShardError({name: f"{storage.locate(name)}: not a timing session, {problem}"})
    configs = {
        config.digest(): config for config in map(DecodingConfig.from_mapping, metadata["configs"])
    }
    columns = {
        key: np.array(table.column(key).to_pylist())
        for key in table.column_names
        if key != "caption_ids"
    }
    shapes = {digest: config.shape for digest, config in configs.items()}
    readings = {}
    for batch in dict.fromkeys(columns["batch"].tolist()):
        rows = columns["batch"] == batch
        if len({int((columns["setting"][rows] == digest).sum()) for digest in configs}) != 1:
            problem = "its settings differ in their rows"
            raise ShardError({name: f"{storage.locate(name)}: not a timing session, {problem}"})
        part = {key: column[rows] for key, column in columns.items()}
        readings[batch] = _readings(f"{name} at batch {batch}", shapes, part)
    threads = metadata["threads"] if metadata["clock"] == CPU_CLOCK else 0
    is_later = metadata.get("worker") == TIME_WORKER
    return TimedSession(
        device=Device(metadata["timed_on"], threads),
        started=_start_in_utc(storage, name, metadata["started"]),
        vanilla=next(iter(configs.values())),
        readings=readings,
        is_later=is_later,
        call=metadata.get("call", TIME_WORKER if is_later else ""),
        host=metadata.get("host", ""),
        load=Load(*map(metadata.get("load", {}).get, Load._fields)),
    )


def _start_in_utc(storage: Storage, name: str, started: object) -> str:
    """A session's start. Raises ShardError if it is not a time in ISO 8601."""
    from workers.data.records import ShardError

    try:
        start = datetime.fromisoformat(str(started))
    except ValueError as error:
        problem = f"{storage.locate(name)}: not a timing session, started: {error}"
        raise ShardError({name: problem}) from error
    if start.tzinfo is None:
        start = start.replace(tzinfo=UTC)
    return start.astimezone(UTC).isoformat()


def _readings(name: str, shapes: Mapping[str, Hashable], columns: Mapping[str, Any]) -> Session:
    """The readings at one batch size, with the shape of each setting. The rows of a setting are in
    the order of its units.
    """
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


def _name_sittings(sessions: Sequence[tuple[TimedSession, int]]) -> list[str]:
    """The name of each session's sitting: its machine, and the start of its first session.

    sessions: in the order of their starts, each with the number of its sweep.
    """
    # for each session an earlier one of its sitting, or itself
    earlier = list(range(len(sessions)))

    def first(place: int) -> int:
        while earlier[place] != place:
            place = earlier[place]
        return place

    of_call: dict[tuple[int, str, str], int] = {}
    latest: dict[str, tuple[datetime, int]] = {}  # each machine's last session
    hosts = []
    for place, (session, sweep) in enumerate(sessions):
        host = session.host or f"a machine of sweep {sweep}"
        start = datetime.fromisoformat(session.started)
        same = [place, of_call.setdefault((sweep, host, session.call), place)]
        if host in latest:
            before, other = latest[host]
            if (start - before).total_seconds() <= SAME_SITTING_S:
                same.append(other)
        found = [first(each) for each in same]
        for each in found:
            earlier[each] = min(found)
        latest[host] = (start, place)
        hosts.append(host)
    firsts = map(first, range(len(sessions)))
    return [f"{hosts[place]}, {sessions[place][0].started}" for place in firsts]


def joint_sittings(sweeps: Sequence[PriceList]) -> list[dict[str, str]]:
    """The sittings that the sessions of several sweeps are together: for each sweep, the name of
    the one that each of its own sittings is part of, by the own one's name.
    """
    sessions = [
        (session, number, own)
        for number, prices in enumerate(sweeps)
        for session, own in zip(prices.sessions, prices.sittings, strict=True)
    ]
    sessions.sort(key=lambda entry: entry[0].started)
    joint = _name_sittings([(session, number) for session, number, _ in sessions])
    found: list[dict[str, str]] = [{} for _ in sweeps]
    for (_, number, own), name in zip(sessions, joint, strict=True):
        found[number][own] = name
    return found


class PriceList:
    """The costs of settings by device and batch size, from timing sessions.

    All speeds of a sweep are those of its own device.
    """

    def __init__(self, sessions: Iterable[TimedSession] = (), problems: Sequence[str] = ()) -> None:
        ordered = sorted(sessions, key=lambda session: session.started)
        self.problems = tuple(problems)  # why other sessions cannot be used
        self.sessions = tuple(ordered)
        # the name of each session's sitting
        self.sittings = tuple(_name_sittings([(session, 0) for session in ordered]))
        found: dict[Device, dict[int, list[Session]]] = {}
        vanilla: dict[Device, DecodingConfig] = {}
        shapes: dict[Device, set[Hashable]] = {}  # timed during the sweep
        for session, sitting in zip(ordered, self.sittings, strict=True):
            vanilla.setdefault(session.device, session.vanilla)
            if not session.is_later:
                shapes.setdefault(session.device, set()).update(session.shapes)
            for batch, readings in session.readings.items():
                parts = found.setdefault(session.device, {}).setdefault(batch, [])
                parts.append(replace(readings, sitting=sitting, is_busy=session.is_busy))
        # The device that timed the most shapes during the sweep, the first one of several; None
        # without such sessions.
        self.own = max(shapes, key=lambda device: len(shapes[device]), default=None)
        self._prices = {
            device: {
                batch: Prices(parts, vanilla[device].shape) for batch, parts in by_batch.items()
            }
            for device, by_batch in found.items()
        }

    @property
    def devices(self) -> tuple[Device, ...]:
        """The devices that timed sessions, in the order of the sessions."""
        return tuple(self._prices)

    @property
    def batches(self) -> tuple[int, ...]:
        """The batch sizes at which settings were timed on the sweep's own device."""
        return () if self.own is None else self.batches_on(self.own)

    def batches_on(self, device: Device) -> tuple[int, ...]:
        """The batch sizes at which settings were timed on a device."""
        return tuple(self._prices[device])

    def sessions_on(self, device: Device, batch: int) -> tuple[TimedSession, ...]:
        """The sessions on a device at a batch size."""
        return tuple(
            session
            for session in self.sessions
            if session.device == device and batch in session.readings
        )

    def device_of(self, shape: Hashable, batch: int | None = None) -> Device | None:
        """The device whose costs of a shape are reported to a search: the sweep's own, or else the
        first one that timed the shape, such as a GPU that has given up CUDA graphs.

        `batch` is the batch size, by default the first one on each device.
        """
        for device in sorted(self._prices, key=lambda device: device != self.own):
            by_batch = self._prices[device]
            size = next(iter(by_batch)) if batch is None else batch
            if shape in by_batch.get(size, ()):
                return device
        return None

    def of(
        self, shape: Hashable, batch: int | None = None, device: Device | None = None
    ) -> tuple[Prices, int]:
        """The prices of a shape, and the batch size that they are for.

        Args:
            shape: what the costs of a setting depend on.
            batch: the batch size; None: the first one on the device.
            device: the device; None: `device_of` the shape.

        Raises:
            MetricUnavailable: the shape was not timed there.
        """
        found = self.device_of(shape, batch) if device is None else device
        by_batch = {} if found is None else self._prices.get(found, {})
        size = next(iter(by_batch), None) if batch is None else batch
        if size is not None and size in by_batch and shape in by_batch[size]:
            return by_batch[size], size
        if not self.devices:
            raise MetricUnavailable("nothing was timed")
        on = f" on {device}" if device is not None else ""
        at = "" if batch is None else f" at batch {batch}"
        raise MetricUnavailable(f"its shape was not timed{on}{at}")
