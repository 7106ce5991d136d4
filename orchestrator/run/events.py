"""The events of trials and workers: what progress, logs and `status` know of them."""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import Any

from orchestrator.results.names import SettingNames
from orchestrator.results.text import counted
from orchestrator.results.trials import TrialRecord
from orchestrator.run.pending import PendingTrial
from orchestrator.run.study import Proposal
from orchestrator.run.tasks import Loss


def trial_event(event: str, trial: Proposal | TrialRecord, names: SettingNames) -> dict[str, Any]:
    """An event of a trial, with its label and the name of its setting."""
    return {"event": event, "trial": trial.number, "label": trial.label, "setting": names.name(trial.config)}


def lost_event(loss: Loss, alive: int) -> dict[str, Any]:
    """The event of a worker or node that was lost; `alive` workers are left."""
    note = f"lost {loss.what} ({loss.cause}); {counted(alive, 'worker')} left"
    return {"event": "workers", "alive": alive, "lost": loss.what, "note": note}


def started_event(pending: PendingTrial, existing: Collection[str], names: SettingNames) -> dict[str, Any]:
    """The event of a trial that starts, with the number of its shards that are not among the `existing` files. Racing
    may stop it before the last.
    """
    return _event_with_work("trial_started", pending, _own_shards(pending).difference(existing), names)


def resumed_event(pending: PendingTrial, names: SettingNames) -> dict[str, Any]:
    """The event of a stopped trial that goes on, with the number of shards that its next rung lacks."""
    return _event_with_work("trial_resumed", pending, pending.missing, names)


def _event_with_work(event: str, pending: PendingTrial, shards: Collection[str], names: SettingNames) -> dict[str, Any]:
    work = {"images": pending.images, "shards": len(shards), "total_shards": len(_own_shards(pending))}
    return trial_event(event, pending.proposal, names) | work | {"config": pending.config.flat()}


def _own_shards(pending: PendingTrial) -> set[str]:
    return {*pending.files["quality"], *pending.files["own_timing"]}


def finished_event(event: str, record: TrialRecord, names: SettingNames) -> dict[str, Any]:
    """The event of a trial that has a new record."""
    return trial_event(event, record, names) | {
        "state": record.state,
        "cause": record.cause,
        "feasible": record.feasible,
        "images": record.images,
        "metrics": {name: entry.value for name, entry in record.metrics.items()},
        "errors": {name: entry.error for name, entry in record.metrics.items() if math.isfinite(entry.error)},
    }
