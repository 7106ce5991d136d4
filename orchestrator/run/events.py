"""The events of trials and workers: what progress, logs and `status` know of them."""

from __future__ import annotations

import math
from datetime import UTC, datetime
from typing import Any

from orchestrator.results.names import SettingNames
from orchestrator.results.text import counted
from orchestrator.results.trials import TrialRecord
from orchestrator.run.study import Proposal
from orchestrator.run.tasks import Loss


def utc_now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def trial_event(event: str, trial: Proposal | TrialRecord, names: SettingNames) -> dict[str, Any]:
    """An event of a trial, with its label and the name of its setting."""
    return {"event": event, "trial": trial.number, "label": trial.label, "setting": names.name(trial.config)}


def lost_event(loss: Loss, alive: int) -> dict[str, Any]:
    """The event of a worker or node that was lost; `alive` workers are left."""
    note = f"lost {loss.what} ({loss.cause}); {counted(alive, 'worker')} left"
    return {"event": "workers", "alive": alive, "lost": loss.what, "note": note}


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
