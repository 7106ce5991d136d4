"""What happens in a sweep, as objects: the lines of `events.jsonl` and of `launch --json`.

A line is a JSON object: the moment (`at`), the kind (`event`), the fields of its class, and the
`note` if there is one. Fields whose default is None are left out while they are None.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, asdict, dataclass, field, fields
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

from orchestrator.store.checked_text import append_line, scan_lines
from orchestrator.store.files import EVENTS
from orchestrator.store.names import SettingNames
from orchestrator.store.records import State, TrialRecord
from orchestrator.text import counted
from search_spaces.plain_data import field_types, fit_entries
from workers.data.checked_json import OtherVersionError, check_time
from workers.data.storage import Storage


def utc_now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened, with the moment and what a person should know of it."""

    event: ClassVar[str]

    at: str = field(default_factory=utc_now, kw_only=True, compare=False)  # ISO 8601, UTC
    note: str | None = field(default=None, kw_only=True)

    def to_mapping(self) -> dict[str, Any]:
        """Plain data, as a line holds it."""
        entries: dict[str, Any] = {"at": self.at, "event": self.event}
        for name, is_optional in _own_fields(self.event):
            value = getattr(self, name)
            if value is not None or not is_optional:
                entries[name] = value
        return entries


@cache
def _own_fields(name: str) -> tuple[tuple[str, bool], ...]:
    """The fields of a kind in the order of a line, after the moment, and whether each is left out
    while it is None.
    """
    own = fields(_KINDS[name])
    found = {entry.name: entry.default is None for entry in own if entry.name != "at"}
    return (*((name, found[name]) for name in found if name != "note"), ("note", True))


EventSink = Callable[[Event], None]


@dataclass(frozen=True, slots=True)
class Launch(Event):
    """A launch began; with a note it goes on after its cluster was lost."""

    event: ClassVar[str] = "launch"
    resume: str | None = None  # the command that resumes it
    place: str | None = None  # the sweep's folder, as its storage is displayed


@dataclass(frozen=True, slots=True)
class Phase(Event):
    """What the launch waits for before it can run trials; "" when that has come."""

    event: ClassVar[str] = "phase"
    phase: str


@dataclass(frozen=True, slots=True)
class Note(Event):
    """A note alone."""

    event: ClassVar[str] = "note"


@dataclass(frozen=True, slots=True)
class Objective:
    """A metric and the direction in which the sweep optimises it."""

    metric: str
    direction: str


@dataclass(frozen=True, slots=True)
class Identified(Event):
    """The sweep's identity is known."""

    event: ClassVar[str] = "identity"
    objectives: tuple[Objective, ...]

    def to_mapping(self) -> dict[str, Any]:
        return Event.to_mapping(self) | {"objectives": [asdict(entry) for entry in self.objectives]}


@dataclass(frozen=True, slots=True)
class Workers(Event):
    """The number of workers has changed, or one of them has a problem."""

    event: ClassVar[str] = "workers"
    alive: int
    lost: str | None = None  # a worker that had started, or a node

    @classmethod
    def losing(cls, what: str, cause: str, alive: int) -> Self:
        """The loss of a worker that had started, or of its node; `alive` workers are left."""
        return cls(alive, what, note=f"lost {what} ({cause}); {counted(alive, 'worker')} left")


@dataclass(frozen=True, slots=True)
class Timing(Event):
    """A worker has begun a timing session, or ended it."""

    event: ClassVar[str] = "timing"
    worker: str
    settings: int  # that it times in turn, vanilla included; 0: the session has ended

    @property
    def text(self) -> str:
        return f"timing {counted(self.settings, 'setting')} on {self.worker}"


@dataclass(frozen=True, slots=True)
class TrialEvent(Event):
    """Something that happened to a trial."""

    trial: int
    label: str
    setting: str  # its name


@dataclass(frozen=True, slots=True)
class TrialStarted(TrialEvent):
    """A trial has started."""

    event: ClassVar[str] = "trial_started"
    images: int  # of all captions
    shards: int  # of images, that do not exist yet; racing may stop the trial before the last
    total_shards: int
    config: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class TrialResumed(TrialStarted):
    """A trial goes on: racing had stopped it, or it is lossless and needs more images than it was
    said to. Its shards are those of the next rung.
    """

    event: ClassVar[str] = "trial_resumed"


@dataclass(frozen=True, slots=True)
class TrialResult(TrialEvent):
    """A trial has a new record."""

    state: State
    cause: str | None
    feasible: bool
    images: int
    metrics: Mapping[str, float]
    errors: Mapping[str, float]  # those that are known

    @classmethod
    def of(cls, record: TrialRecord, names: SettingNames) -> Self:
        """The event of a record."""
        metrics = record.metrics.items()
        return cls(
            trial=record.number,
            label=record.label,
            setting=names.name(record.config),
            state=record.state,
            cause=record.cause,
            feasible=record.feasible,
            images=record.images,
            metrics={name: entry.value for name, entry in metrics},
            errors={name: entry.error for name, entry in metrics if math.isfinite(entry.error)},
        )


@dataclass(frozen=True, slots=True)
class TrialFinished(TrialResult):
    """A trial has finished."""

    event: ClassVar[str] = "trial_finished"
    new: bool = True  # False: an earlier launch finished it


@dataclass(frozen=True, slots=True)
class TrialRevived(TrialResult):
    """A trial that racing had stopped has more images, or is complete."""

    event: ClassVar[str] = "trial_revived"


@dataclass(frozen=True, slots=True)
class RevivalFailed(Event):
    """A trial that racing had stopped could not go on."""

    event: ClassVar[str] = "revival_failed"
    trial: int


@dataclass(frozen=True, slots=True)
class Shard(Event):
    """A worker has written a shard of images, or a timing session."""

    event: ClassVar[str] = "shard"
    trial: int
    kind: str  # "quality", or "timing"
    images: int
    seconds: float  # of the worker
    worker: str
    taken_from: str | None = None  # the earlier sweep that it was copied from

    @property
    def has_images(self) -> bool:
        return self.kind == "quality"


@dataclass(frozen=True, slots=True)
class ShardDamaged(Event):
    """A shard was set aside."""

    event: ClassVar[str] = "shard_damaged"


@dataclass(frozen=True, slots=True)
class Plateau(Event):
    """How close the front is to its plateau (see `orchestrator.front.plateau.PlateauState`)."""

    event: ClassVar[str] = "plateau"
    share: float
    patience: int
    trials: int
    added: float | None
    is_reached: bool
    text: str


@dataclass(frozen=True, slots=True)
class End(Event):
    """The launch has ended."""

    event: ClassVar[str] = "end"
    state: Literal["finished", "interrupted", "failed"]
    cause: str | None = None  # of a failure


_KINDS: Mapping[str, Any] = {
    kind.event: kind
    for kind in (
        Launch,
        Phase,
        Note,
        Identified,
        Workers,
        Timing,
        TrialStarted,
        TrialResumed,
        TrialFinished,
        TrialRevived,
        RevivalFailed,
        Shard,
        ShardDamaged,
        Plateau,
        End,
    )
}


def parse_event(entry: Mapping[str, Any]) -> Event:
    """The event of a line.

    Raises:
        ValueError: no launch of this version writes such a line.
    """
    name = entry.get("event")
    if not isinstance(name, str) or name not in _KINDS:
        raise ValueError(f"no launch writes an event {name!r}")
    given = fit_entries(field_types(_KINDS[name]), entry)
    if missing := _required(name) - given.keys():
        raise ValueError(f"the event {name!r} lacks {', '.join(sorted(missing))}")
    check_time(given["at"])
    event: Event = _KINDS[name](**given)
    return event


@cache
def _required(name: str) -> frozenset[str]:
    """The fields that every line of a kind has."""
    needed = [
        entry.name
        for entry in fields(_KINDS[name])
        if entry.default is MISSING and entry.default_factory is MISSING
    ]
    return frozenset(["at", *needed])


def read_events(storage: Storage) -> Iterator[Event | OtherVersionError | None]:
    """The events of a sweep one by one, an error for a line that another version of specfrontier
    wrote, None for a damaged one: a large sweep has as many as shards.
    """
    for entry in scan_lines(storage, EVENTS):
        if entry is None or isinstance(entry, OtherVersionError):
            yield entry
            continue
        try:
            yield parse_event(entry)
        except ValueError as error:
            yield OtherVersionError(error)


def append_event(path: Path, event: Event) -> None:
    """Add an event to the file. Raises OSError as `append_line`."""
    append_line(path, event.to_mapping(), sync=False)
