"""Where a sweep stands, as far as its files tell: whoever runs it is not asked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any

from orchestrator.results.store import EVENTS, planned_trials, read_lines
from orchestrator.results.sweep import Sweep
from orchestrator.results.trials import FAILED
from workers.runtime.logs import folder_of_logs

LAST = 3  # events that are shown


@dataclass(frozen=True, slots=True)
class Standing:
    """planned: trials in the budget, None if it has none. running: trials begun since the last start and not finished.

    failed: number and cause. images: of finished trials, each setting counted once. last: the latest events in words.
    silent: seconds since the last event or trial, None if there was none. logs: folder of the workers' logs, if this
    machine sees it.
    """

    name: str
    place: str
    planned: int | None
    done: int
    failed: tuple[tuple[int, str], ...]
    running: tuple[int, ...]
    images: int
    last: tuple[str, ...]
    silent: float | None
    logs: str | None = None

    def to_mapping(self) -> dict[str, Any]:
        failed = [{"number": number, "cause": cause} for number, cause in self.failed]
        return asdict(self) | {"failed": failed, "running": list(self.running), "last": list(self.last)}


def standing(sweep: Sweep, now: datetime | None = None) -> Standing:
    """Where the sweep stands at a time (now)."""
    events = read_lines(sweep.storage, EVENTS)
    finished = {record.number for record in sweep.records}
    signs = [record.finished for record in sweep.records] + [str(event.get("at", "")) for event in events[-1:]]
    logs = folder_of_logs(sweep.storage)
    times = [time for sign in signs if (time := _time(sign)) is not None]
    return Standing(
        name=sweep.name,
        place=sweep.storage.shown,
        planned=planned_trials(sweep.storage),
        done=len(sweep.records),
        failed=tuple((r.number, r.cause or "no cause given") for r in sweep.records if r.state == FAILED),
        running=tuple(sorted(_begun(events) - finished)),
        images=sum(record.images for record in sweep.records if record.duplicate_of is None),
        last=tuple(event_in_words(event) for event in events if event.get("event") != "shard")[-LAST:],
        silent=max(0.0, ((now or datetime.now(UTC)) - max(times)).total_seconds()) if times else None,
        logs=None if logs is None else str(logs),
    )


def event_in_words(event: Mapping[str, Any]) -> str:
    """`03:00:19 trial 19 told: failed`."""
    time = _time(str(event.get("at", "")))
    clock = "" if time is None else f"{time:%H:%M:%S} "
    trial = f"trial {event['trial']} " if isinstance(event.get("trial"), int) and event["trial"] >= 0 else ""
    told = {"trial_finished": str(event.get("state", "finished")), "trial_started": "begun"}.get(
        str(event.get("event"))
    )
    note = str(event.get("cause") or event.get("note") or "")
    return f"{clock}{trial}{told or event.get('event', 'event')}" + (f": {note}" if note else "")


def ago(seconds: float) -> str:
    """A time span in the unit that suits it."""
    for unit, size in (("days", 86400), ("hours", 3600), ("minutes", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} seconds"


def _begun(events: Sequence[Mapping[str, Any]]) -> set[int]:
    """Trials that the present run has begun and not told."""
    begun: set[int] = set()
    for event in events:
        if event.get("event") == "launch":
            begun.clear()
        elif event.get("event") == "trial_started" and isinstance(event.get("trial"), int):
            begun.add(event["trial"])
        elif event.get("event") == "trial_finished":
            begun.discard(event.get("trial", -1))
    return begun


def _time(text: str) -> datetime | None:
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        return None
    return time if time.tzinfo is not None else time.replace(tzinfo=UTC)
