"""Logging to MLflow while a sweep or a training runs. MLflow is a view of the store: it can be rebuilt at any time.

A tracker runs in its own thread. If the tracking server is unreachable, it retries for as long as needed: logging is
delayed, the sweep is not. `sync` logs everything that is missing once, from another process.

An experiment groups comparable runs. By default it is `specfrontier/<sweep's name>`, so sweeps of one space with other
seeds, samplers or machines share it.
"""

from __future__ import annotations

import os
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from orchestrator.results.launches import load_identity
from orchestrator.results.store import planned_trials
from orchestrator.views.client import Event, TrackingError, as_tracking_error, public_uri, resolve_uri
from orchestrator.views.damage import restore_tracking
from orchestrator.views.mirror import SweepMirror
from orchestrator.views.run_log import RunLog, sole_writer
from orchestrator.views.tables import replace_damaged
from orchestrator.views.training_mirror import TrainingMirror
from workers.data.storage import Storage

RETRY_S = (1.0, 60.0)  # the first wait after a failure, and the longest; each wait doubles the last
JOURNAL_INTERVAL_S = 2.0  # between two reads of a training's journal
TRAINING_TIMEOUT_S = 30.0  # for logging the rest at the end of a training
_EXPERIMENT_VARIABLE = "MLFLOW_EXPERIMENT_NAME"


class Mirror(Protocol):
    """Copies a source to MLflow. Every call may raise, and can then be repeated."""

    def update(self) -> object:
        """Log everything that MLflow lacks."""

    def end(self, event: Event) -> None:
        """Log how the source ended, after `update`."""


class Tracker(ABC):
    """Keeps MLflow up to date with a source that grows. No method raises for anything that MLflow does.

    interval_s: seconds between two updates; None updates only when `nudge` is called.
    """

    def __init__(self, uri: str, interval_s: float | None = None) -> None:
        self.uri = uri
        self._interval_s = interval_s
        self._mirror: Mirror | None = None
        self._problem: str | None = None
        self._news, self._closing = threading.Event(), threading.Event()
        self._deadline = float("inf")
        self._event: Event = "interrupted"
        self._thread = threading.Thread(target=self._run, name="mlflow", daemon=True)

    @abstractmethod
    def open(self, resources: ExitStack) -> Mirror:
        """The source's mirror; `resources` are released when the tracker ends."""

    @property
    def problem(self) -> str | None:
        """Why the last attempt failed, with credentials redacted; None if it succeeded."""
        return self._problem

    @property
    def public_uri(self) -> str:
        """The tracking URI with credentials redacted."""
        return public_uri(self.uri)

    def start(self) -> None:
        """Start logging, if it has not started. Returns at once."""
        if self._thread.ident is None:
            self._thread.start()

    def nudge(self) -> None:
        """Announce news in the source. Returns at once."""
        self._news.set()

    def finish(self, timeout_s: float, event: Event = "finished") -> str | None:
        """Log the rest within a timeout, and how the source ended. Returns the problem, None if all was logged."""
        self._event, self._deadline = event, time.monotonic() + timeout_s
        self._closing.set()
        self._news.set()
        if self._thread.is_alive():
            self._thread.join(timeout_s)
        return f"no response from MLflow at {self.public_uri}" if self._thread.is_alive() else self._problem

    def _run(self) -> None:
        """Update, then wait for news; after a failure, wait longer each time."""
        with ExitStack() as resources:
            wait = RETRY_S[0]
            while True:
                self._news.clear()
                closing = self._closing.is_set()
                if self._try(resources, closing):
                    if closing:
                        return
                    wait = RETRY_S[0]
                    self._news.wait(self._interval_s)
                    continue
                left = self._deadline - time.monotonic()
                if left <= 0:
                    return
                if closing:
                    time.sleep(min(RETRY_S[0], left))
                else:
                    self._closing.wait(wait)
                    wait = min(2 * wait, RETRY_S[1])

    def _try(self, resources: ExitStack, closing: bool) -> bool:
        """Update once; whether it succeeded."""
        try:
            with as_tracking_error(self.uri):
                self._mirror = self._mirror or self.open(resources)
                self._mirror.update()
                if closing:
                    self._mirror.end(self._event)
        except TrackingError as error:
            self._problem = str(error)
            return False
        self._problem = None
        return True


class SweepTracker(Tracker):
    """Logs a sweep: one run for the sweep, one child run per trial.

    uri: tracking server or database (None: see `resolve_uri`). experiment: its name (None: MLFLOW_EXPERIMENT_NAME, else
    `specfrontier/<sweep's name>`). A trial's images must be in the store before its record: a run is logged once.
    """

    def __init__(self, storage: Storage, *, uri: str | None = None, experiment: str | None = None) -> None:
        super().__init__(resolve_uri(storage, uri))
        self._storage, self._experiment = storage, experiment
        self._log = RunLog(storage)
        self.notes: list[str] = []  # about damaged files that were restored

    def open(self, resources: ExitStack) -> Mirror:
        resources.enter_context(sole_writer(self._storage))
        self.notes += restore_tracking(self._storage, self.uri)
        name = _experiment_name(self._storage, self._experiment)
        mirror = SweepMirror(self._storage, self.uri, name, self.notes.append)
        if not self._closing.is_set():
            self._log.add_event("started")
        return mirror

    def finish(self, timeout_s: float, event: Event = "finished") -> str | None:
        """As `Tracker.finish`. `sync` logs what remains; it reads the ending from the run log."""
        try:
            self._log.add_event(event)
        except OSError as error:
            self._problem = str(error)
        return super().finish(timeout_s, event)


class TrainingTracker(Tracker):
    """Logs the curve of a training from its journal. A resumed training continues its run.

    uri: tracking server or database (None: see `resolve_uri`).
    """

    def __init__(
        self, journal: Path, storage: Storage, *, uri: str | None, params: Mapping[str, Any], resume: bool
    ) -> None:
        super().__init__(resolve_uri(storage, uri), JOURNAL_INTERVAL_S)
        self._training = TrainingMirror(journal, self.uri, params)
        if not resume:
            self._training.forget()

    def open(self, resources: ExitStack) -> Mirror:
        return self._training

    def finish(self, timeout_s: float = TRAINING_TIMEOUT_S, event: Event = "finished") -> str | None:
        return super().finish(timeout_s, event)


@dataclass(frozen=True, slots=True)
class SyncResult:
    """logged: runs that were logged or completed now. already: runs that were complete before."""

    logged: int
    already: int


def sync(
    storage: Storage,
    uri: str | None = None,
    experiment: str | None = None,
    note: Callable[[str], object] = lambda text: None,
) -> SyncResult:
    """Log every trial that MLflow lacks, complete interrupted runs, and close the run of a sweep that has ended.

    note: called with a sentence about each damaged file that is restored first.

    Raises:
        TrackingError: there is no sweep, MLflow cannot be reached or refuses, or another process is logging the sweep.
    """
    uri = resolve_uri(storage, uri)
    with as_tracking_error(uri), sole_writer(storage):
        for text in [*restore_tracking(storage, uri), *replace_damaged(storage)]:
            note(text)
        mirror = SweepMirror(storage, uri, _experiment_name(storage, experiment), note)
        logged = mirror.update(running=False)
        trials, planned = len(mirror.records), planned_trials(storage)
        untracked: Event = "interrupted" if planned and trials < planned else "finished"
        mirror.end(RunLog(storage).last_event() or untracked)
        return SyncResult(logged, trials - logged)


def _experiment_name(storage: Storage, name: str | None) -> str:
    return name or os.environ.get(_EXPERIMENT_VARIABLE) or f"specfrontier/{load_identity(storage).name}"
