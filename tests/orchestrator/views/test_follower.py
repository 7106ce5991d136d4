"""A follower keeps its view up to date: news, pauses, failures, and the end within a timeout."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from orchestrator.store.sweep import Sweep
from orchestrator.views import follower
from orchestrator.views.follower import Ending, Follower, View, Views
from tests.fakes.studies import named_config, plain_record, study_identity
from tests.fakes.waiting import HANG_S, wait_until
from workers.data.storage import Storage


class Counted(View[int]):
    """Records what it was updated with; fails while it is away, and is back for the attempt
    `back_at`.
    """

    end_timeout_s = short_timeout_s = HANG_S

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[int | str] = []
        self.is_away, self.is_closed = False, False
        self.silent = threading.Event()
        self.silent.set()
        self.attempts, self.back_at = 0, 0

    def update(self, source: int) -> None:
        self.attempts += 1
        self.silent.wait(HANG_S)
        if self.is_away and self.attempts != self.back_at:
            raise ConnectionError("away")
        self.seen.append(source)

    def end(self, source: int, how: Ending) -> None:
        self.seen.append(how)

    def close(self) -> None:
        self.is_closed = True

    def describe(self, problem: str) -> str:
        return f"incomplete ({problem})"


@pytest.fixture(autouse=True)
def _quick_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(follower, "RETRY_S", (0.02, 0.1))


def test_a_view_follows_its_source_to_the_end() -> None:
    state, view = [1], Counted()
    kept = Follower(view, lambda: state[0])
    kept.notify()
    wait_until(lambda: view.seen == [1])
    state[0] = 2
    kept.notify()
    wait_until(lambda: view.seen == [1, 2])
    state[0] = 3
    assert kept.end("finished") is None
    assert view.seen == [1, 2, 3, "finished"]
    assert view.is_closed


def test_a_view_that_was_never_notified_is_left_alone() -> None:
    view = Counted()
    assert Follower(view, lambda: 1).end("failed") is None
    assert view.seen == []


def test_a_view_that_is_away_is_updated_when_it_is_back() -> None:
    view = Counted()
    view.is_away = True
    kept = Follower(view, lambda: 1)
    kept.notify()
    wait_until(lambda: view.attempts > 3)
    assert kept.problem == "away"
    view.is_away = False
    wait_until(lambda: view.seen == [1])
    wait_until(lambda: kept.problem is None)
    assert kept.end("interrupted") is None
    assert view.seen == [1, 1, "interrupted"]


def test_the_end_waits_for_a_view_that_is_away() -> None:
    view = Counted()
    view.is_away = True
    kept = Follower(view, lambda: 1)
    kept.notify()
    wait_until(lambda: kept.problem)
    view.back_at = view.attempts + 9
    assert kept.end("finished") is None
    assert view.seen == [1, "finished"]


def test_the_end_does_not_wait_for_ever_for_a_view_that_is_away() -> None:
    view = Counted()
    view.is_away, view.end_timeout_s, view.short_timeout_s = True, 0.3, 0.3
    kept = Follower(view, lambda: 1)
    kept.notify()
    assert kept.end("finished") == "incomplete (away)"
    wait_until(lambda: view.is_closed)


def test_a_failure_that_no_attempt_mends_ends_at_once() -> None:
    view = Counted()
    view.is_away, view.may_recover = True, False
    kept = Follower(view, lambda: 1)
    kept.notify()
    wait_until(lambda: kept.problem)
    before = view.attempts
    assert kept.end("finished") == "incomplete (away)"
    assert view.attempts <= before + 2, "one that had begun, and the last"


def test_the_end_does_not_wait_for_a_view_that_does_not_answer() -> None:
    view = Counted()
    view.silent.clear()
    view.end_timeout_s = 0.2
    kept = Follower(view, lambda: 1)
    kept.notify()
    wait_until(lambda: view.attempts)
    assert kept.end("finished") == "incomplete (no response)"
    view.silent.set()
    wait_until(lambda: view.is_closed)
    assert view.seen == [1], "it starts nothing more: the next launch may write by now"


def test_updates_keep_their_distance_and_the_end_does_not_wait_for_it() -> None:
    view = Counted()
    view.interval_s = 600.0
    kept = Follower(view, lambda: 1)
    kept.notify()
    wait_until(lambda: view.seen == [1])
    for _ in range(10):
        kept.notify()
    assert view.seen == [1]
    assert kept.end("finished") is None
    assert view.seen == [1, 1, "finished"]


def test_a_view_without_news_is_polled() -> None:
    view = Counted()
    view.poll_s = 0.01
    kept = Follower(view, lambda: 1)
    kept.notify()
    wait_until(lambda: len(view.seen) > 3)
    assert kept.end("finished") is None


class Numbers(View[Sweep]):
    """The numbers of the trials at each update."""

    def __init__(self) -> None:
        super().__init__()
        self.sweeps: list[Sweep] = []

    def update(self, source: Sweep) -> None:
        self.notes += [] if len(self.sweeps) > 1 else ["restored"]
        self.sweeps.append(source)

    def end(self, source: Sweep, how: Ending) -> None:
        return

    def describe(self, problem: str) -> str:
        return problem


def test_all_views_share_one_state_of_the_sweep(tmp_path: Path) -> None:
    first, second, config = Numbers(), Numbers(), named_config("shared")
    first.end_timeout_s = second.end_timeout_s = HANG_S
    notes: list[str] = []
    views = Views(Storage(tmp_path), [first, second], notes.append)
    assert views.end("failed") == []
    views.start(study_identity(config), [plain_record(1), plain_record(0)])
    wait_until(lambda: first.sweeps and second.sweeps)
    views.update(plain_record(2))
    wait_until(lambda: len(first.sweeps) > 1)
    views.update(plain_record(2))
    assert notes == ["restored"], "what a view repeats is said once"
    assert views.end("finished") == []
    assert [record.number for record in first.sweeps[-1].records] == [0, 1, 2]
    assert first.sweeps[-1] is second.sweeps[-1]
