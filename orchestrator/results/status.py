"""The progress of a sweep, read from its files. The process that runs the sweep is not contacted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from orchestrator.results.speed_check import speed_warnings
from orchestrator.results.store import EVENTS, planned_trials, read_lines
from orchestrator.results.sweep import Sweep
from orchestrator.results.trials import FAILED, STOPPED, State
from workers.runtime.logs import log_folder

_RECENT_EVENTS = 3
_VERBS = {"trial_started": "started", "trial_finished": "finished", "trial_revived": "revived"}


@dataclass(frozen=True, slots=True)
class SweepStatus:
    """planned: trials in the budget, None if it has none. failed, stopped: number and cause of each. running: trials
    started since the last launch and not finished. images: of finished trials, each config counted once. events: the
    latest, described. idle_s: seconds since the last event or trial, None if there was none. warnings: about the
    results. logs: folder of the workers' logs, if it is on this machine.
    """

    name: str
    place: str
    planned: int | None
    finished: int
    failed: tuple[Mapping[str, Any], ...]
    stopped: tuple[Mapping[str, Any], ...]
    running: tuple[int, ...]
    images: int
    events: tuple[str, ...]
    idle_s: float | None
    warnings: tuple[str, ...] = ()
    logs: str | None = None


def sweep_status(sweep: Sweep, now: datetime | None = None) -> SweepStatus:
    """now: the time from which `idle_s` counts."""
    events = read_lines(sweep.storage, EVENTS)
    stamps = [record.finished for record in sweep.records if record.finished] + [event["at"] for event in events[-1:]]
    times = [datetime.fromisoformat(stamp) for stamp in stamps]
    logs = log_folder(sweep.storage)
    return SweepStatus(
        name=sweep.name,
        place=sweep.storage.display_name,
        planned=planned_trials(sweep.storage),
        finished=len(sweep.records),
        failed=_causes(sweep, FAILED),
        stopped=_causes(sweep, STOPPED),
        running=tuple(sorted(_started(events) - {record.number for record in sweep.records})),
        images=sum(record.images for record in sweep.records if record.duplicate_of is None),
        events=tuple(describe_event(event) for event in events if event["event"] != "shard")[-_RECENT_EVENTS:],
        idle_s=max(0.0, ((now or datetime.now(UTC)) - max(times)).total_seconds()) if times else None,
        warnings=tuple(speed_warnings(sweep.records, sweep.identity.timing)),
        logs=None if logs is None else str(logs),
    )


def _causes(sweep: Sweep, state: State) -> tuple[Mapping[str, Any], ...]:
    return tuple(
        {"number": record.number, "cause": record.cause or "no cause recorded"}
        for record in sweep.records
        if record.state == state
    )


def describe_event(event: Mapping[str, Any]) -> str:
    """`03:00:19 trial 19 failed`."""
    name, number = event["event"], event.get("trial")
    trial = f"trial {number} " if isinstance(number, int) and number >= 0 else ""
    verb = event.get("state") or _VERBS[name] if name in _VERBS else name
    note = event.get("cause") or event.get("note")
    return f"{datetime.fromisoformat(event['at']):%H:%M:%S} {trial}{verb}" + (f": {note}" if note else "")


def _started(events: Sequence[Mapping[str, Any]]) -> set[int]:
    """Trials that the current launch has started and not finished."""
    started: set[int] = set()
    for event in events:
        if event["event"] == "launch":
            started.clear()
        elif event["event"] == "trial_started":
            started.add(event["trial"])
        elif event["event"] == "trial_finished":
            started.discard(event["trial"])
    return started
