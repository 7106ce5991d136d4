"""Views of what grows: result files, Optuna's study and MLflow of a sweep, MLflow of a training.

A view can be rebuilt from its source at any time. A follower keeps it up to date in a thread of its
own: a server or database that is slow or away delays its view, never the source.
"""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from functools import partial
from typing import Generic, Literal, TypeVar

from orchestrator.store.identity import Identity
from orchestrator.store.lossless import QualityGroups
from orchestrator.store.records import TrialRecord
from orchestrator.store.sweep import Sweep
from workers.data.storage import Storage

Ending = Literal["finished", "interrupted", "failed"]
Source = TypeVar("Source")
_MAX_ATTEMPTS = 5
RETRY_S = (1.0, 60.0)  # the first wait after a failure, and the longest; each wait doubles the last


class View(ABC, Generic[Source]):
    """A view of a source. `update` and `end` may raise anything and can then be repeated: what
    arrived stays.

    notes: sentences for the user, such as those about damaged files that were replaced.
    """

    interval_s: float = 0.0  # between two updates, at least
    # the pause after an update is at least this many times as long as the update
    cost_factor: float = 0.0
    poll_s: float | None = None  # after which the view is updated without any news
    may_recover: bool = True  # whether a failure at the end is worth another attempt
    end_timeout_s: float = 60.0
    short_timeout_s: float = 3.0  # at the end, if the view failed before or the user interrupts
    # whether it sees a sweep that has ended with its final speeds; if not, with those that the
    # search was told
    is_priced: bool = True

    def __init__(self) -> None:
        self.notes: list[str] = []
        self.is_abandoned = False  # nobody waits for its end any more, and it starts no more writes
        self._attempts: Counter[int] = Counter()  # at each trial that it lacks

    def update(self, source: Source) -> object:
        """Add everything that the view lacks."""

    def end(self, source: Source, how: Ending) -> None:
        """Complete the view when its source has ended, after an `update`."""

    def in_turn(
        self, records: Iterable[TrialRecord], done: Container[int]
    ) -> Iterator[TrialRecord]:
        """The records whose numbers are not done, each of which counts as an attempt. One that was
        refused several times comes after all others, so that it does not keep them out.
        """
        for record in sorted(
            records, key=lambda record: self._attempts[record.number] >= _MAX_ATTEMPTS
        ):
            if record.number not in done:
                self._attempts[record.number] += 1
                yield record

    def close(self) -> None:
        """Release what the view holds, such as a lock."""

    def explain(self, error: Exception) -> str:
        """An error in one line and with credentials redacted."""
        return str(error) or type(error).__name__

    @abstractmethod
    def describe(self, problem: str) -> str:
        """A sentence for the user: what the view lacks at the end because of a problem, and how to
        add it.
        """


class Follower(Generic[Source]):
    """Keeps a view up to date with its source. No method raises for anything that the view does.

    source: returns the source as it is now.
    """

    def __init__(self, view: View[Source], source: Callable[[], Source]) -> None:
        self.view = view
        self.problem: str | None = None  # of the last attempt
        self._source = source
        self._news = threading.Event()
        self._ending = threading.Event()
        self._how: Ending = "interrupted"
        self._deadline = float("inf")
        self._thread = threading.Thread(target=self._run, name=type(view).__name__, daemon=True)

    def notify(self) -> None:
        """Announce news in the source; starts the thread if necessary. Returns at once."""
        if self._thread.ident is None:
            self._thread.start()
        self._news.set()

    def end(self, how: Ending) -> str | None:
        """Add the rest within the view's timeout; returns a sentence if something is missing. how:
        the source ended.

        A view that was never notified is left as it is.
        """
        if self._thread.ident is None:
            return None
        is_short = self.problem is not None or how == "interrupted"
        timeout_s = self.view.short_timeout_s if is_short else self.view.end_timeout_s
        self._how = how
        self._deadline = time.monotonic() + timeout_s
        self._ending.set()
        self._news.set()
        self._thread.join(timeout_s)
        if self._thread.is_alive():
            self.view.is_abandoned = True
            self.problem = self.problem or "no response"
        return None if self.problem is None else self.view.describe(self.problem)

    def abandon(self) -> None:
        """Stop after the present update: another process keeps the view up to date. Returns at
        once.
        """
        self.view.is_abandoned = True
        self._news.set()

    def _run(self) -> None:
        """Update, then wait for news; after a failure, wait longer each time."""
        retry_s = RETRY_S[0]
        try:
            while not self.view.is_abandoned:
                self._news.clear()
                is_last = self._ending.is_set()
                begin = time.monotonic()
                if self._try(is_last):
                    if is_last:
                        return
                    retry_s = RETRY_S[0]
                    took_s = time.monotonic() - begin
                    self._ending.wait(max(self.view.interval_s, self.view.cost_factor * took_s))
                    self._news.wait(self.view.poll_s)
                elif not is_last:
                    self._ending.wait(retry_s)
                    retry_s = min(2 * retry_s, RETRY_S[1])
                elif self.view.may_recover and (left_s := self._deadline - time.monotonic()) > 0:
                    time.sleep(min(RETRY_S[0], left_s))
                else:
                    return
        finally:
            self.view.close()

    def _try(self, is_last: bool) -> bool:
        """Update once; returns whether it succeeded."""
        try:
            source = self._source()
            self.view.update(source)
            if is_last:
                self.view.end(source, self._how)
        except Exception as error:  # servers, databases and their drivers share no base class
            self.problem = self.view.explain(error)
            return False
        self.problem = None
        return True


class Views:
    """All views of a sweep that runs. Their source is the sweep, with the records that were written
    so far: with the speeds that were told to the search, and at the end with those priced by all of
    its timing sessions.

    views: in the order in which they end. note: called with what they say to the user while the
    sweep runs, in the thread that calls `start` and `update`.
    """

    def __init__(
        self,
        storage: Storage,
        views: Sequence[View[Sweep]],
        note: Callable[[str], object] = lambda text: None,
    ) -> None:
        self._storage = storage
        self._note = note
        self._followers = [
            Follower(view, partial(self._read_sweep, is_priced=view.is_priced)) for view in views
        ]
        self._lock = threading.Lock()
        self._said: set[str] = set()  # notes, which a view repeats at every attempt
        self._identity: Identity | None = None
        self._groups: QualityGroups | None = None  # as the search knows them
        self._records: dict[int, TrialRecord] = {}
        self._sweep: Sweep | None = None  # one for all views, which share its front
        self._priced: Sweep | None = None  # the same at the end
        self._is_ended = False

    def start(self, identity: Identity, records: Iterable[TrialRecord] = ()) -> None:
        """Begin with the sweep's identity and the records that the store has. Returns at once."""
        with self._lock:
            self._identity = identity
            self._records = {record.number: record for record in records}
            self._sweep = None
        self._notify()

    def update(self, record: TrialRecord) -> None:
        """Announce a record that was written or replaced. Returns at once."""
        with self._lock:
            self._records[record.number] = record
            self._sweep = None
        self._notify()

    def end(self, how: Ending) -> list[str]:
        """End all views, each within its own timeout (see `View`); returns their notes, and a
        sentence about each that lacks something. Views that never started stay as they are.
        """
        with self._lock:
            self._is_ended = True
        problems = [problem for follower in self._followers if (problem := follower.end(how))]
        return [*self._take_notes(), *problems]

    def abandon(self) -> None:
        """Leave all views to another process. Returns at once."""
        for follower in self._followers:
            follower.abandon()

    def _notify(self) -> None:
        for follower in self._followers:
            follower.notify()
        for text in self._take_notes():
            self._note(text)

    def _take_notes(self) -> Iterator[str]:
        for follower in self._followers:
            while follower.view.notes:
                text = follower.view.notes.pop(0)
                if text not in self._said:
                    self._said.add(text)
                    yield text

    def _read_sweep(self, *, is_priced: bool) -> Sweep:
        with self._lock:
            if self._sweep is None:
                assert self._identity is not None, "update before start"
                records = [record for _, record in sorted(self._records.items())]
                if self._groups is None:
                    self._groups = Sweep(self._storage, self._identity, ()).told_groups
                told = self._groups.all_as_told(records)
                self._sweep = Sweep(self._storage, self._identity, tuple(told))
                self._priced = None
            if not (self._is_ended and is_priced):
                return self._sweep
            if self._priced is None:
                ended = Sweep.of(self._storage, self._sweep.identity, self._sweep.records)
                self._priced = ended.priced()
            return self._priced
