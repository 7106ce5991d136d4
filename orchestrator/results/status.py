"""The progress of a sweep, read from its files. The process that runs the sweep is not contacted."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import PurePath
from typing import Any

from orchestrator.results.launches import EventLog, Launch, describe_event, find_launch, read_events
from orchestrator.results.notes import sweep_notes
from orchestrator.results.speed_check import time_notes
from orchestrator.results.store import EVENTS, planned_trials
from orchestrator.results.sweep import Sweep
from orchestrator.results.trials import FAILED, STOPPED, State, TrialRecord
from workers.data.storage import Storage
from workers.runtime.logs import log_folder

_MAX_TRIALS = 3  # in a warning


@dataclass(frozen=True, slots=True)
class SweepStatus:
    """launch: the latest one. planned: trials in the budget, None if it has none. failed, stopped: number and cause of
    each. running: trials that the latest launch started and did not finish. images: those generated, each config's
    counted once. lost: workers and clusters that the launch lost, with the time. events: the latest, described. idle_s:
    seconds since the last event or trial, None if there was none. warnings: about the results. logs: folder of the
    workers' logs, if it is on this machine.
    """

    name: str
    place: str
    launch: Launch
    planned: int | None
    finished: int
    failed: tuple[Mapping[str, Any], ...]
    stopped: tuple[Mapping[str, Any], ...]
    running: tuple[int, ...]
    images: int
    lost: tuple[str, ...]
    events: tuple[str, ...]
    idle_s: float | None
    warnings: tuple[str, ...] = ()
    logs: str | None = None


def sweep_status(storage: Storage, sweep: Sweep | None = None, now: datetime | None = None) -> SweepStatus:
    """sweep: None before its first results. now: the time from which `idle_s` counts."""
    now = now or datetime.now(UTC)
    log, records = read_events(storage), () if sweep is None else sweep.records
    finished = {record.number for record in records}
    times = [datetime.fromisoformat(stamp) for stamp in [*(r.finished for r in records if r.finished), *log.last]]
    logs = log_folder(storage)
    return SweepStatus(
        name=PurePath(storage.display_name.partition("?")[0]).name if sweep is None else sweep.name,
        place=storage.display_name,
        launch=find_launch(storage, log, now),
        planned=planned_trials(storage),
        finished=len(records),
        failed=_causes(records, FAILED),
        stopped=_causes(records, STOPPED),
        running=tuple(sorted(log.started - finished)),
        images=sum(record.images for record in records if record.duplicate_of is None)
        + sum(images for number, images in log.images.items() if number not in finished),
        lost=tuple(map(describe_event, log.lost)),
        events=tuple(map(describe_event, log.recent)),
        idle_s=max(0.0, (now - max(times)).total_seconds()) if times else None,
        warnings=(*_damage(log, records), *([] if sweep is None else _notes(sweep))),
        logs=None if logs is None else str(logs),
    )


def _notes(sweep: Sweep) -> list[str]:
    return sweep_notes(sweep) + time_notes([sweep.identity], [axis.name for axis in sweep.identity.objectives])


def _damage(log: EventLog, records: Iterable[TrialRecord]) -> list[str]:
    """What the events lack."""
    missing = [str(record.number) for record in records if log.last and record.number not in log.finished]
    problems = [f"{log.damaged} damaged lines are left out"] if log.damaged else []
    problems += [f"the end of trial {', '.join(missing[:_MAX_TRIALS])} is missing"] if missing else []
    return [f"{EVENTS}: {problem}; the trials' own files are complete" for problem in problems]


def _causes(records: Iterable[TrialRecord], state: State) -> tuple[Mapping[str, Any], ...]:
    return tuple(
        {"number": record.number, "cause": record.cause or "no cause recorded"}
        for record in records
        if record.state == state
    )
