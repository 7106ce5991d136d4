"""The forecast of what is left, exact on made-up histories of shards."""

from __future__ import annotations

from typing import Any

import pytest

from orchestrator.run.forecast import Forecast, Range


class History:
    """Events of a sweep on W workers, each of which is always busy or idle for `idle` seconds after a shard."""

    def __init__(
        self, workers: int = 1, idle: float = 0.0, trials: int | None = None, images: int | None = None
    ) -> None:
        self.forecast, self.now, self.idle, self.number = Forecast(trials, images), 100.0, idle, 0
        self.forecast.update({"event": "workers", "alive": workers}, self.now)

    def start(self, kind: str = "chain", label: str = "", images: int = 0, shards: int = 1) -> int:
        config = {"drafter.kind": "eagle", "tree.policy": kind}
        event = {"trial": self.number, "label": label, "config": config, "images": images, "shards": shards}
        self.forecast.update({"event": "trial_started", **event}, self.now)
        self.number += 1
        return self.number - 1

    def shard(self, trial: int, seconds: float, worker: str = "w", images: int = 10, kind: str = "quality") -> None:
        self.now += seconds + self.idle
        event: dict[str, Any] = {"trial": trial, "kind": kind, "images": images, "seconds": seconds, "worker": worker}
        self.forecast.update({"event": "shard", **event}, self.now)

    def finish(self, trial: int, images: int = 10, state: str = "complete", *, new: bool = True) -> None:
        event = {"event": "trial_finished", "trial": trial, "images": images, "state": state, "new": new}
        self.forecast.update(event, self.now)

    def run(self, *seconds: float, kind: str = "chain", label: str = "") -> None:
        """A trial of shards that take these seconds."""
        trial = self.start(kind, label, shards=len(seconds))
        for each in seconds:
            self.shard(trial, each)
        self.finish(trial)

    @property
    def remaining(self) -> Range | None:
        return self.forecast.remaining(self.now)


def test_equal_trials_leave_no_doubt() -> None:
    history = History(trials=10)
    for _ in range(4):
        history.run(3.0, 5.0)
    assert history.remaining == pytest.approx((48, 48, 48))


def test_the_first_images_give_a_first_estimate() -> None:
    """Ten trials of 20 images; ten images took 5 s of quality shards and 2 s of timings: 190 are left for 2 workers."""
    history = History(workers=2, trials=10)
    trial = history.start(images=20)
    history.shard(trial, 2.0, images=3, kind="timing")
    assert history.remaining is None
    history.shard(trial, 5.0)
    assert history.remaining == pytest.approx((66.5, 26.6, 99.75), rel=0.1)
    history.now += 1000.0
    assert history.remaining == pytest.approx(((133 - 7) / 2, 25.2, 94.5)), "a slow shard does not end the sweep"


def test_the_share_that_is_done_grows_with_every_shard() -> None:
    """Of each of four trials: two shards with images, one that times, and the measurement."""
    history = History(trials=4)
    assert history.forecast.share_done() == 0
    first, second = history.start(images=20, shards=3), history.start(images=20, shards=3)
    history.shard(first, 1.0)
    assert history.forecast.share_done() == pytest.approx(1 / 16)
    history.shard(second, 1.0, kind="timing")
    assert history.forecast.share_done() == pytest.approx(2 / 16)
    history.finish(first, state="stopped")
    assert history.forecast.share_done() == pytest.approx(5 / 16)
    images = History(images=40)
    images.shard(images.start(images=20, shards=3), 1.0)
    assert images.forecast.share_done() == pytest.approx(1 / 8)
    assert History().forecast.share_done() is None, "no budget that can be counted"


def test_a_sweep_is_not_done_before_its_launch_returns() -> None:
    """The last shard is followed by a measurement, and the last trial perhaps by stopped ones that go on."""
    history = History(trials=4, images=30)
    for _ in range(3):
        history.run(8.0)
    last = history.start(images=10)
    history.shard(last, 8.0)
    assert history.forecast.share_done() == pytest.approx(0.99), "the images are drawn"
    assert history.remaining == (0, 0, 0), "the measurement is not forecast"
    history.finish(last)
    assert history.forecast.share_done() == pytest.approx(0.99)
    assert history.remaining == (0, 0, 0)
    done = History(trials=2)
    for _ in range(2):
        done.finish(0, new=False)
    assert done.remaining == (0, 0, 0), "a resumed sweep that has no trial left"


def test_the_last_shard_runs_on_one_worker() -> None:
    """The other one idles, and 3 s ago the one with the shard finished another. They worked 70 of 70 + 60 s."""
    history = History(workers=2, trials=4)
    for worker in "aab":
        trial = history.start(shards=2)
        for _ in range(2):
            history.shard(trial, 10.0, worker)
        history.finish(trial)
    last = history.start(shards=2)
    history.shard(last, 10.0, "a")
    history.now += 3
    assert history.remaining is not None
    assert history.remaining.value == pytest.approx(10 * 130 / 70 - 3)


def test_a_shard_that_takes_longer_is_not_the_work_of_others() -> None:
    history = History(trials=4)
    for _ in range(3):
        history.run(10.0, 10.0)
    history.start(shards=2)
    history.now += 1000
    assert history.remaining is not None
    assert history.remaining.value == pytest.approx(10), "one of two equal shards"


def test_a_trial_that_costs_more_than_its_kind_goes_on_at_its_own_rate() -> None:
    history = History(trials=4)
    for _ in range(3):
        history.run(4.0, 4.0)
    trial = history.start(shards=3)
    history.shard(trial, 10.0)
    history.shard(trial, 20.0)
    assert history.remaining is not None
    assert history.remaining.value == pytest.approx(15)


def test_trials_in_flight_cost_what_their_kind_does() -> None:
    """Two chains of 4 s and two dynamic trees of 12 s: a chain costs (4 + 4 + 8) / 3; 2 s of it are done."""
    history = History(trials=5)
    for kind, seconds in (("chain", 4.0), ("dynamic", 12.0), ("chain", 4.0), ("dynamic", 12.0)):
        history.run(seconds, kind=kind)
    trial = history.start("chain", shards=2)
    history.shard(trial, 2.0)
    assert history.remaining is not None
    assert history.remaining.value == pytest.approx(16 / 3 - 2)


def test_workers_share_the_work_and_idle_time_counts() -> None:
    """One worker known to work 8 of 10 seconds; three of them take a third of the time."""
    history = History(workers=3, idle=2.0, trials=7)
    for _ in range(4):
        history.run(8.0)
    assert history.remaining == pytest.approx((10, 10, 10))


def test_stopped_trials_count_at_the_share_so_far() -> None:
    """Half of the proposed trials stopped after a quarter of their shards; the enqueued ones never do."""
    history = History(trials=16)
    history.run(40.0, label="vanilla")
    history.run(40.0, label="exact chain")
    for index in range(4):
        trial = history.start()
        history.shard(trial, 10.0 if index % 2 else 40.0)
        history.finish(trial, state="stopped" if index % 2 else "complete")
    assert history.remaining is not None
    assert history.remaining.value == pytest.approx(10 * 25)


def test_the_range_is_that_of_a_mean_and_of_new_costs() -> None:
    """Costs 4, 8, 12 (variance 16), two to come: 2 x 8 +- 1.645 x sqrt(16 (2 + 4 / 3))."""
    history = History(trials=5)
    for seconds in (4.0, 8.0, 12.0):
        history.run(seconds)
    half = 1.6449 * (16 * (2 + 4 / 3)) ** 0.5
    assert history.remaining == pytest.approx((16, 16 - half if half < 16 else 0, 16 + half), abs=0.01)


def test_time_since_the_last_shard_is_work_done() -> None:
    history = History(trials=5)
    for _ in range(4):
        history.run(8.0)
    history.start()
    history.now += 3
    assert history.remaining == pytest.approx((5, 5, 5))
    history.now += 30
    assert history.remaining is not None
    assert history.remaining.value == 0


def test_the_budget_of_images_ends_a_sweep_too() -> None:
    """40 images are done, 10 a trial: at most 6 more trials, whatever the budget of trials."""
    for trials in (50, None):
        history = History(trials=trials, images=100)
        for _ in range(4):
            history.run(8.0)
        assert history.remaining is not None
        assert history.remaining.value == pytest.approx(48)


def test_nothing_is_said_without_a_budget_workers_or_enough_trials() -> None:
    for budget, trials, workers in ((None, 4, 1), (9, 2, 1), (9, 4, 0)):
        history = History(workers, trials=budget)
        for _ in range(trials):
            history.run(8.0)
        assert history.remaining is None


def test_resumed_trials_are_done_and_cost_nothing() -> None:
    history = History(trials=10)
    for _ in range(5):
        history.forecast.update({"event": "trial_finished", "trial": history.number, "images": 10, "new": False}, 100.0)
        history.number += 1
    for _ in range(3):
        history.run(8.0)
    assert history.remaining == pytest.approx((16, 16, 16))
