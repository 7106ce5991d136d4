"""The events of trials: what progress, logs and `status` know of them."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from orchestrator.results.names import SettingNames
from orchestrator.results.trials import TrialRecord
from orchestrator.run.pending import PendingTrial
from orchestrator.run.study import Proposal


def trial_event(event: str, trial: Proposal | TrialRecord, names: SettingNames) -> dict[str, Any]:
    """An event of a trial, with its label and the name of its setting."""
    return {"event": event, "trial": trial.number, "label": trial.label, "setting": names.name(trial.config)}


def started_event(pending: PendingTrial, existing: Collection[str], names: SettingNames) -> dict[str, Any]:
    """The event of a trial that starts, with its images and the number of shards that are not among the `existing`
    files. Racing may stop it before the last.
    """
    files = {*pending.files["quality"], *pending.files["own_timing"]}
    shards = sum(name not in existing for name in files)
    facts = {"images": pending.images, "shards": shards, "config": pending.config.flat()}
    return trial_event("trial_started", pending.proposal, names) | facts


def finished_event(event: str, record: TrialRecord, names: SettingNames) -> dict[str, Any]:
    """The event of a trial that has a new record."""
    return trial_event(event, record, names) | {
        "state": record.state,
        "cause": record.cause,
        "feasible": record.feasible,
        "images": record.images,
        "metrics": {name: entry.value for name, entry in record.metrics.items()},
        "errors": {name: entry.error for name, entry in record.metrics.items() if entry.error is not None},
    }
