"""Events of a sweep with two objectives, with plausible facts."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any

from orchestrator.store import events
from orchestrator.store.progress import SweepProgress

OBJECTIVES = events.Identified(
    (events.Objective("speedup", "maximize"), events.Objective("fid", "minimize"))
)


def started(
    trial: int,
    setting: str = "",
    *,
    label: str = "",
    shards: int = 1,
    total: int = 1,
    kind: type[events.TrialStarted] = events.TrialStarted,
) -> events.TrialStarted:
    return kind(trial, label, setting or f"chain {trial}", 8, shards, total, {})


def shard(trial: int, images: int = 8, kind: str = "quality", **changes: Any) -> events.Shard:
    return replace(events.Shard(trial, kind, images, 1.0, "w"), **changes)


def finished(
    trial: int, speedup: float = 1.0, fid: float = 5.0, **changes: Any
) -> events.TrialFinished:
    event = events.TrialFinished(
        trial=trial,
        label="",
        setting=f"chain {trial}",
        state="complete",
        cause=None,
        feasible=True,
        images=8,
        metrics={"speedup": speedup, "fid": fid},
        errors={"fid": 0.25},
    )
    return replace(event, **changes)


def revived(trial: int, speedup: float, fid: float) -> events.TrialRevived:
    given = asdict(finished(trial, speedup, fid))
    del given["new"]
    return events.TrialRevived(**given)


def failed(trial: int, **changes: Any) -> events.TrialFinished:
    return finished(
        trial,
        state="failed",
        feasible=False,
        metrics={},
        cause="OutOfMemory: at batch 4",
        **changes,
    )


def after(*given: events.Event, trials: int | None = 10, seconds: float = 0.0) -> SweepProgress:
    progress = SweepProgress(trials)
    progress.start_time -= seconds
    for event in (OBJECTIVES, *given):
        progress.update(event)
    return progress
