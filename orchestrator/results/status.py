"""The progress of a sweep, read from its files. The process that runs the sweep is not contacted."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from orchestrator.results.json_lines import scan_lines
from orchestrator.results.speed_check import speed_warnings, time_notes
from orchestrator.results.store import EVENTS, planned_trials
from orchestrator.results.sweep import Sweep
from orchestrator.results.text import counted
from orchestrator.results.trials import FAILED, STOPPED, State, TrialRecord
from workers.data.storage import Storage
from workers.runtime.logs import log_folder

_RECENT_EVENTS = 3
_VERBS = {
    "trial_started": "started",
    "trial_finished": "finished",
    "trial_resumed": "resumed",
    "trial_revived": "revived",
}


@dataclass(frozen=True, slots=True)
class SweepStatus:
    """planned: trials in the budget, None if it has none. failed, stopped: number and cause of each. running: trials
    started since the last launch and not finished. images: those drawn, each config's counted once. events: the
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
    log, finished = _read_events(sweep.storage), {record.number for record in sweep.records}
    stamps = [record.finished for record in sweep.records if record.finished] + log.last
    identity = sweep.identity
    speeds = speed_warnings(sweep.records, identity.timing)
    speeds += time_notes([identity], [axis.name for axis in identity.objectives])
    times = [datetime.fromisoformat(stamp) for stamp in stamps]
    logs = log_folder(sweep.storage)
    return SweepStatus(
        name=sweep.name,
        place=sweep.storage.display_name,
        planned=planned_trials(sweep.storage),
        finished=len(sweep.records),
        failed=_causes(sweep, FAILED),
        stopped=_causes(sweep, STOPPED),
        running=tuple(sorted(log.started - finished)),
        images=sum(record.images for record in sweep.records if record.duplicate_of is None)
        + sum(images for number, images in log.images.items() if number not in finished),
        events=tuple(map(describe_event, log.recent)),
        idle_s=max(0.0, ((now or datetime.now(UTC)) - max(times)).total_seconds()) if times else None,
        warnings=(*_damage(log, sweep.records), *speeds),
        logs=None if logs is None else str(logs),
    )


def _damage(log: _EventLog, records: Iterable[TrialRecord]) -> list[str]:
    """What the events lack."""
    missing = [str(record.number) for record in records if log.last and record.number not in log.finished]
    problems = [f"{log.damaged} damaged lines are left out"] if log.damaged else []
    problems += [f"the end of trial {', '.join(missing[:_RECENT_EVENTS])} is missing"] if missing else []
    return [f"{EVENTS}: {problem}; the trials' own files are complete" for problem in problems]


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
    if name == "workers":
        verb = counted(event["alive"], "worker")
    note = event.get("cause") or event.get("note") or event.get("phase")
    return f"{datetime.fromisoformat(event['at']):%H:%M:%S} {trial}{verb}" + (f": {note}" if note else "")


@dataclass(slots=True)
class _EventLog:
    """started: trials that the current launch has started and not finished. finished: of all launches. images: drawn by
    all launches for each trial. recent: the latest events but shards. last: the time of the last event, if there is
    one. damaged: number of damaged lines.
    """

    started: set[int] = field(default_factory=set)
    finished: set[int] = field(default_factory=set)
    images: Counter[int] = field(default_factory=Counter)
    recent: deque[Mapping[str, Any]] = field(default_factory=lambda: deque(maxlen=_RECENT_EVENTS))
    last: list[str] = field(default_factory=list)
    damaged: int = 0


def _read_events(storage: Storage) -> _EventLog:
    """One by one: a large sweep has as many events as shards."""
    log = _EventLog()
    for event in scan_lines(storage, EVENTS):
        if event is None:
            log.damaged += 1
            continue
        log.last = [event["at"]]
        if event["event"] != "shard" and event.get("phase") != "":  # that ends one
            log.recent.append(event)
        if event["event"] == "launch":
            log.started.clear()
        elif event["event"] == "trial_started":
            log.started.add(event["trial"])
        elif event["event"] == "shard" and event["kind"] == "quality":
            log.images[event["trial"]] += event["images"]
        elif event["event"] == "trial_finished":
            log.started.discard(event["trial"])
            log.finished.add(event["trial"])
    return log
