"""MLflow: one run for a sweep, one below it for each trial. A view of the store that can be made again at any time.

The server being away delays logging, never the sweep: a thread of its own logs what the store has and the ledger has
not, and tries again for as long as it takes. `sync` does the same from outside, once, for whatever is missing.

An experiment holds what is comparable. By default it is `specfrontier/<sweep's name>`: sweeps of one space (with other
seeds, samplers, machines) stand side by side in it, and its charts show no others. Several can be ticked and compared.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from orchestrator.results.store import TRIALS, planned_trials
from orchestrator.tracking.outbox import (
    Event,
    Ledger,
    TrackingError,
    resolve,
    safe,
    shown,
    sole_writer,
)
from orchestrator.tracking.runs import Facts, compare_fragment, run_fragment
from workers.data.storage import Storage

if TYPE_CHECKING:
    from orchestrator.tracking.mirror import Mirror

WAITS = (1.0, 60.0)  # seconds before the first new try, and at most; each wait is twice the last
EXPERIMENT = "MLFLOW_EXPERIMENT_NAME"
MAX_PROBLEM = 400

__all__ = ["Pending", "Synced", "Tracker", "TrackingError", "compare_link", "parent_link", "resolve", "shown", "sync"]


@dataclass(frozen=True, slots=True)
class Pending:
    """How many trials MLflow does not have, and the latest problem (None: there is none)."""

    count: int
    problem: str | None


@dataclass(frozen=True, slots=True)
class Synced:
    """Runs that were logged or completed now, and runs that were whole before."""

    logged: int
    already: int


class Tracker:
    """Logs a sweep to MLflow while it runs. No method raises for what MLflow does or fails to do.

    uri: tracking server or database (None: see `resolve`). experiment: its name (None: MLFLOW_EXPERIMENT_NAME, else
    `specfrontier/<sweep's name>`). A trial's pictures must be in the store before its record is: a run is logged once.
    """

    def __init__(self, storage: Storage, *, uri: str | None = None, experiment: str | None = None) -> None:
        self._storage, self._experiment = storage, experiment
        self._uri = resolve(storage, uri)
        self._ledger = Ledger(storage)
        self._mirror: Mirror | None = None
        self._problem: str | None = None
        self._news, self._closing = threading.Event(), threading.Event()
        self._deadline = float("inf")
        self._end: Event = "interrupted"
        self._thread = threading.Thread(target=self._run, name="mlflow", daemon=True)

    @property
    def problem(self) -> str | None:
        """Why the last try failed, without credentials; None if it did not."""
        return self._problem

    @property
    def shown(self) -> str:
        """The tracking URI without credentials."""
        return shown(self._uri)

    @property
    def link(self) -> str | None:
        """The address of the sweep's run; None if it is not there yet, or no server shows it."""
        mirror = self._mirror
        if mirror is None or not mirror.parent or not self._uri.startswith("http"):
            return None
        return parent_link(self.shown, mirror.experiment_id, mirror.parent)

    def start(self) -> None:
        """Begin to log what the store has. Returns at once."""
        self._thread.start()

    def nudge(self) -> None:
        """Say that there is something new in the store. Returns at once."""
        self._news.set()

    def finish(self, timeout: float, event: Event = "finished") -> Pending:
        """Log what can be logged in `timeout` seconds, with the sweep's views, and say how it ended.

        What remains is for `sync`, which also learns of the ending from the ledger.
        """
        self._end, self._deadline = event, time.monotonic() + timeout
        try:
            self._ledger.note(event)
        except OSError as error:
            self._problem = str(error)
        self._closing.set()
        self._news.set()
        if self._thread.is_alive():
            self._thread.join(timeout)
        return self.pending()

    def pending(self) -> Pending:
        """What MLflow does not have yet, as far as the ledger knows."""
        try:
            logged = self._ledger.trials(self._uri, _experiment(self._storage, self._experiment))
            return Pending(len(set(self._storage.names(TRIALS))) - len(logged), self._problem)
        except (OSError, ValueError) as error:
            return Pending(0, self._problem or str(error))

    def _run(self) -> None:
        """The thread: log, then sleep until there is news; after a failure, wait longer each time."""
        with ExitStack() as held:
            wait = WAITS[0]
            while True:
                self._news.clear()
                closing = self._closing.is_set()
                if self._try(held, closing):
                    if closing:
                        return
                    wait = WAITS[0]
                    self._news.wait()
                    continue
                left = self._deadline - time.monotonic()
                if left <= 0:
                    return
                if closing:
                    time.sleep(min(WAITS[0], left))
                else:
                    self._closing.wait(wait)
                    wait = min(2 * wait, WAITS[1])

    def _try(self, held: ExitStack, closing: bool) -> bool:
        """Log what is new; whether that went well. `held` keeps the lock once it is had."""
        try:
            with _explained(self._uri):
                if self._mirror is None:
                    mirror = _mirror(self._storage, self._uri, self._experiment)
                    held.enter_context(sole_writer(self._storage))
                    if not closing:
                        self._ledger.note("started")
                    self._mirror = mirror
                self._mirror.update()
                if closing:
                    self._mirror.end(self._end)
        except TrackingError as error:
            self._problem = str(error)
            return False
        self._problem = None
        return True


def sync(storage: Storage, uri: str | None = None, experiment: str | None = None) -> Synced:
    """Log everything of a sweep that MLflow lacks, complete what was cut off, and close the runs of a dead sweep.

    Raises:
        TrackingError: there is no sweep, MLflow cannot be reached or refuses, or another process is logging the sweep.
    """
    uri = resolve(storage, uri)
    with _explained(uri), sole_writer(storage):
        mirror = _mirror(storage, uri, experiment)
        logged = mirror.update(running=False)
        mirror.end(mirror.ledger.last_event() or _guess_event(storage, len(mirror.records)))
        return Synced(logged, len(mirror.records) - logged)


def parent_link(base: str, experiment_id: str, run_id: str) -> str:
    """The address of a run's page on the MLflow server at `base`."""
    return f"{base.rstrip('/')}/{run_fragment(run_id, experiment_id)}"


def compare_link(base: str, run_ids: Sequence[str], experiment_id: str) -> str:
    """The address that shows runs side by side on the MLflow server at `base`."""
    return f"{base.rstrip('/')}/{compare_fragment(run_ids, experiment_id)}"


def _experiment(storage: Storage, given: str | None) -> str:
    name = given or os.environ.get(EXPERIMENT)
    return name or f"specfrontier/{Facts.read(storage).name}"


def _mirror(storage: Storage, uri: str, experiment: str | None) -> Mirror:
    from orchestrator.tracking.mirror import Mirror

    return Mirror(storage, uri, _experiment(storage, experiment))


def _guess_event(storage: Storage, trials: int) -> Event:
    """How a sweep ended that nobody tracked: finished, unless it has fewer trials than were planned."""
    planned = planned_trials(storage)
    return "interrupted" if planned and trials < planned else "finished"


@contextmanager
def _explained(uri: str) -> Iterator[None]:
    """Whatever goes wrong on the way to MLflow as a TrackingError: where, and why, without credentials."""
    problem = ""
    try:
        yield
    except TrackingError:
        raise
    except ImportError as error:
        problem = f"{error}; pip install mlflow"
    except Exception as error:  # of MLflow, its database, its transport and the storage: there is no common base
        text = safe(str(error) or type(error).__name__, uri)
        problem = f"MLflow at {shown(uri)}: {text if len(text) <= MAX_PROBLEM else text[:MAX_PROBLEM] + '…'}"
    if problem:
        raise TrackingError(problem)  # outside of the handlers, so that no error with a credential hangs on it
