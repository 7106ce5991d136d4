"""How long the rest of a sweep takes, and how that is said."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
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
    """Events of a sweep, by a clock of its own. Each trial has two shards of four images, which
    take 5 s; the first one is vanilla's.
    """

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

    def shard(self, seconds: float = 5.0, **changes: Any) -> None:
        self.add(shard(self.number, 4, seconds=seconds, **changes), seconds)

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
    history = History(4)
    assert (history.progress.share, history.left) == (0, None)
    history.start()
    history.shard()
    assert history.progress.share == pytest.approx(1 / 8)
    assert history.left == pytest.approx((35, 0.4 * 35, 2.0 * 35)), "an early estimate"
    history.finish(state="stopped")
    assert history.progress.share == pytest.approx(1 / 4)
    history.shard()
    assert history.progress.share == pytest.approx(1 / 4), (
        "a damaged shard of a finished trial is drawn again"
    )


def test_the_range_is_that_of_the_mean_so_far_and_of_the_mean_to_come() -> None:
    """Costs 4, 8, 12 after vanilla's: mean 8, standard deviation 4; three more trials."""
    history = History(7)
    for seconds in (40.0, 4.0, 8.0, 12.0):
        history.run(seconds / 2, seconds / 2)
    half = 1.645 * 4 / 8 * (1 / 3 + 1 / 3) ** 0.5 * 24
    assert history.left == pytest.approx((24, 24 - half, 24 + half))


def simulated(
    shards: Sequence[Sequence[float]], *, session: float = 0.0, prepared: float = 0.0
) -> list[tuple[int, float, TimeLeft]]:
    """What is forecast after each shard of images of two workers: its trial, the seconds that are
    left, and the forecast.

    shards: seconds of the trials' shards of four images, vanilla's first. session: seconds of the
    session after these. prepared: seconds after which the second worker begins.
    """
    tasks = [(0, "quality", seconds) for seconds in shards[0]] + [(0, "timing", session)]
    for trial, own in enumerate(shards[1:], start=1):
        tasks += [(trial, "quality", seconds) for seconds in own]
    free = {"a": 0.0, "b": prepared}
    ends = dict[int, float]()
    moments: list[tuple[float, int, events.Event]] = [(prepared, 0, events.Phase(""))]
    for trial, kind, seconds in tasks:
        worker = min(free, key=free.__getitem__)
        count = len(shards[trial])
        if trial not in ends:
            start = replace(started(trial, shards=count, total=count), images=4 * count)
            moments.append((free[worker], 0, start))
        free[worker] += seconds
        moments.append((free[worker], 1, shard(trial, 4, kind, seconds=seconds, worker=worker)))
        ends[trial] = max(ends.get(trial, 0.0), free[worker])
    moments += [
        (end, 2, finished(trial, images=4 * len(shards[trial]))) for trial, end in ends.items()
    ]
    history = History(len(shards), workers=2)
    before = 0.0
    forecasts = []
    for at, _, event in sorted(moments, key=lambda moment: moment[:2]):
        history.add(event, at - before)
        before = at
        if isinstance(event, events.Shard) and event.has_images and history.left is not None:
            forecasts.append((event.trial, max(ends.values()) - at, history.left))
    return forecasts


def test_what_comes_first_and_once_is_no_pace_of_the_rest() -> None:
    """On a busy machine: a session of all settings takes as long as two trials, and one worker
    prepares meanwhile. The last two trials end one after the other.
    """
    forecasts = simulated([[90.0]] + 12 * [[50.0]], session=100.0, prepared=110.0)
    for trial, left, forecast in forecasts[1:-2]:
        assert forecast.value == pytest.approx(left, rel=0.1, abs=12), trial


def test_trials_of_different_lengths_are_counted_by_their_images() -> None:
    """Lossless ones are early and have half of the images of the others."""
    shards = [4 * [10.0]] + 3 * [2 * [10.0]] + 8 * [4 * [10.0]]
    for trial, left, forecast in simulated(shards)[8:-2]:
        assert forecast.value == pytest.approx(left, rel=0.3), trial


def test_workers_without_a_shard_to_draw_do_not_count() -> None:
    """Eight workers, and one trial at a time, whose two shards are drawn at once."""
    history = History(20, workers=8)
    for trial in range(5):
        history.start()
        for number in range(2):
            seconds = 0.0 if number else 10.0
            worker = str((2 * trial + number) % 8)
            event = shard(trial, 4, seconds=10.0, worker=worker)
            history.add(event, seconds)
        history.finish()
        assert history.left is not None
        assert history.left.value == pytest.approx(10 * (19 - trial), rel=0.01)


def test_a_trial_that_needs_more_images_keeps_what_it_took() -> None:
    history = History(10)
    history.run()
    history.start()
    history.shard(6.0)
    history.shard(6.0)
    history.start(missing=1, kind=events.TrialResumed)
    assert history.progress.has_earlier_work is False
    history.shard(6.0)
    history.finish()
    assert history.progress.pace.costs == [18.0]


def test_what_earlier_launches_did_takes_no_time() -> None:
    """Five trials are stored, and half of the shards of the sixth."""
    history = History(10)
    for _ in range(5):
        history.finish(new=False)
    history.start(missing=1)
    assert history.left is None
    assert history.progress.share == pytest.approx((5 + 1 / 2) / 10)
    history.shard(4.0)
    history.finish()
    assert history.left is not None
    assert history.left.value == pytest.approx(4 * 2 * 4)


def test_copied_images_take_no_time_and_are_not_generated() -> None:
    """Two trials are copied from an earlier sweep, in no time at all, and half of a third one."""
    history = History(10)
    for _ in range(2):
        history.start()
        for _ in range(2):
            history.shard(0.01, taken_from="sweeps/mine")
        history.finish()
    assert history.left is None
    history.start()
    history.shard(0.01, taken_from="sweeps/mine")
    history.shard(5.0)
    history.finish()
    history.run()
    assert history.left is not None
    assert history.left.value == pytest.approx(6 * 10, rel=0.01)
    assert (history.progress.images.total(), history.progress.copied.total()) == (8 * 4, 5 * 4)
    assert "12 new images and 20 taken over" in headline(history.progress)


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
