"""How long the rest of a sweep takes, and how that is said."""

from __future__ import annotations

from typing import Any

import pytest

from orchestrator.run.progress import headline
from orchestrator.run.time_left import (
    TimeLeft,
    describe_time_left,
    estimate_time_left,
    format_duration,
)
from orchestrator.store import events
from orchestrator.store.progress import SweepProgress
from tests.fakes.sweep_events import finished, shard, started


@pytest.mark.parametrize(
    ("remaining", "text"),
    [
        (None, "? left"),
        (TimeLeft(0.4, 0.0, 20.0), "finishing"),
        (TimeLeft(60.0, 60.2, 59.8), "1:00 left"),
        (TimeLeft(600.0, 480.0, 7200.0), "10:00 left (8:00 to 2:00:00)"),
    ],
)
def test_remaining_time_has_a_range(remaining: TimeLeft | None, text: str) -> None:
    assert describe_time_left(remaining) == text
    bound = describe_time_left(remaining, is_upper_bound=True)
    assert bound == (f"at most {text}" if text[0].isdigit() else text)


class History:
    """Events of a sweep, by a clock of its own. Each trial has two shards, which take 5 s."""

    def __init__(self, trials: int | None, images: int | None = None, workers: int = 1) -> None:
        self.progress, self.now, self.number = SweepProgress(trials, images), 100.0, 0
        self.add(events.Workers(workers))

    def add(self, event: events.Event, seconds: float = 0.0) -> None:
        self.now += seconds
        self.progress.update(event, self.now)

    def start(
        self, missing: int = 2, kind: type[events.TrialStarted] = events.TrialStarted
    ) -> None:
        self.add(started(self.number, shards=missing, total=2, kind=kind))

    def shard(self, seconds: float = 5.0) -> None:
        self.add(shard(self.number, seconds=seconds), seconds)

    def finish(self, **changes: Any) -> None:
        self.add(finished(self.number, **changes))
        self.number += 1

    def run(self, *seconds: float) -> None:
        """One trial with these shards, or with two that take 5 s."""
        self.start()
        for each in seconds or (5.0, 5.0):
            self.shard(each)
        self.finish()

    @property
    def left(self) -> TimeLeft | None:
        return estimate_time_left(self.progress, self.now)


@pytest.mark.parametrize(("trials", "images"), [(10, None), (None, 80), (10, 800), (100, 80)])
def test_equal_trials_leave_no_doubt(trials: int | None, images: int | None) -> None:
    history = History(trials, images)
    for _ in range(4):
        history.run()
    assert history.progress.share == pytest.approx(0.4)
    assert history.left == pytest.approx((60, 60, 60))
    history.add(events.Note(), 3)
    assert history.left == pytest.approx((57, 57, 57))
    history.add(events.Note(), 70)
    assert history.left == pytest.approx((6, 6, 6)), "the next shard is late"


def test_the_share_that_is_done_grows_with_every_shard() -> None:
    """The measurement counts as a shard."""
    history = History(4)
    assert (history.progress.share, history.left) == (0, None)
    history.start()
    history.shard()
    assert history.progress.share == pytest.approx(1 / 12)
    assert history.left == pytest.approx((55, 0.4 * 55, 1.5 * 55)), "an early estimate"
    history.finish(state="stopped")
    assert history.progress.share == pytest.approx(1 / 4)
    history.shard()
    assert history.progress.share == pytest.approx(1 / 4), (
        "a damaged shard of a finished trial is drawn again"
    )


def test_the_range_is_that_of_the_mean_so_far_and_of_the_mean_to_come() -> None:
    """Costs 4, 8, 12: mean 8, standard deviation 4; three more trials."""
    history = History(6)
    for seconds in (4.0, 8.0, 12.0):
        history.run(seconds / 2, seconds / 2)
    half = 1.645 * 4 / 8 * (1 / 3 + 1 / 3) ** 0.5 * 24
    assert history.left == pytest.approx((24, 24 - half, 24 + half))


def test_workers_that_wait_for_the_first_shards_or_are_at_work_on_others_are_no_pace() -> None:
    """Two workers prepare for 20 s, and then finish a shard every 5 s, of 10 s each: 8 trials of 2
    shards take 85 s.

    Half of the work in flight and a measurement for each trial are not seen, so estimates are up to
    a third too high.
    """
    history = History(8, workers=2)
    history.add(events.Note(), 20)
    values = list[tuple[float, float, float]]()
    for number in range(6):
        history.start()
        for _ in range(2):
            seconds = 5.0 if history.progress.images else 10.0
            history.add(shard(number, seconds=10.0), seconds)
            assert history.left is not None
            values.append((history.left.low, 75 - 5 * len(values), history.left.high))
        history.finish()
    assert all(0.7 * low <= true <= 1.3 * high for low, true, high in values), values


def test_what_earlier_launches_did_takes_no_time() -> None:
    """Five trials are stored, and half of the shards of the sixth."""
    history = History(10)
    for _ in range(5):
        history.finish(new=False)
    history.start(missing=1)
    assert history.left is None
    assert history.progress.share == pytest.approx((5 + 1 / 3) / 10)
    history.shard(4.0)
    history.finish()
    assert history.left is not None
    assert history.left.value == pytest.approx(24)


def test_copied_images_take_no_time_and_are_not_generated() -> None:
    """Two trials are copied from an earlier sweep, in no time at all, and half of a third one."""
    history = History(10)
    for _ in range(2):
        history.start()
        for _ in range(2):
            history.add(shard(history.number, seconds=0.01, taken_from="sweeps/mine"), 0.01)
        history.finish()
    assert history.left is None
    history.start()
    history.add(shard(history.number, seconds=0.01, taken_from="sweeps/mine"), 0.01)
    history.shard(5.0)
    history.finish()
    history.run()
    assert history.left is not None
    assert history.left.value == pytest.approx(6 / (1 + 2 / 3) * 15, rel=0.01)
    assert (history.progress.images.total(), history.progress.copied.total()) == (8 * 8, 5 * 8)
    assert "24 new images and 40 taken over" in headline(history.progress)


def test_nothing_is_said_without_a_budget_or_workers_and_nothing_is_left_of_a_budget_that_is_spent() -> (
    None
):
    without, idle, done = History(None), History(4, workers=0), History(2)
    for history in (without, idle, done):
        history.run()
        history.run()
    assert (without.progress.share, without.left, idle.left) == (None, None, None)
    assert done.left == (0, 0, 0)
    done.start(kind=events.TrialResumed)
    assert (done.progress.share, done.left) == (
        1,
        (0, 0, 0),
    ), "stopped trials that go on are not counted"


def test_another_cluster_begins_anew() -> None:
    history = History(4)
    history.run()
    history.add(events.Launch(), 1000)
    history.add(events.Workers(1))
    history.finish(new=False)
    assert history.left is None
    history.run()
    assert history.left is not None
    assert history.left.value == pytest.approx(20)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0:00"), (59.6, "1:00"), (247, "4:07"), (3599, "59:59"), (7800, "2:10:00")],
)
def test_durations(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text
