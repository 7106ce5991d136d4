"""The forecast of what is left, exact on made-up histories of shards."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest

from orchestrator.run.progress import Forecast, Range


class History:
    """Events of a sweep on W workers, each of which is always busy or idle for `idle` seconds after a shard."""

    def __init__(
        self, workers: int = 1, idle: float = 0.0, trials: int | None = None, images: int | None = None
    ) -> None:
        self.forecast, self.now, self.idle, self.number = Forecast(trials, images), 100.0, idle, 0
        self.forecast.update({"event": "workers", "alive": workers}, self.now)

    def start(self, kind: str = "chain", label: str = "", images: int = 0, shards: int = 1, existing: int = 0) -> int:
        config = {"drafter.kind": "eagle", "tree.policy": kind}
        work = {"images": images, "shards": shards, "total_shards": shards + existing}
        event = {"event": "trial_started", "trial": self.number, "label": label, "config": config, **work}
        self.forecast.update(event, self.now)
        self.number += 1
        return self.number - 1

    def shard(self, trial: int, seconds: float, worker: str = "w", images: int = 10, kind: str = "quality") -> None:
        self.now += seconds + self.idle
        self.add_shard(trial, seconds, worker, images, kind)

    def add_shard(self, trial: int, seconds: float, worker: str = "w", images: int = 10, kind: str = "quality") -> None:
        """Of the seconds until now."""
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


def test_the_first_shards_give_a_first_estimate() -> None:
    """Ten trials of three shards each; two shards took 5 s on two workers: 140 s of work are left for them."""
    history = History(workers=2, trials=10)
    trial = history.start(images=20, shards=3)
    assert history.remaining is None
    history.now += 5
    for worker in "ab":
        history.add_shard(trial, 5.0, worker)
    assert history.remaining == pytest.approx((70, 0.4 * 70, 1.5 * 70))


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


def test_stopped_trials_that_go_on_are_forecast_once_they_do() -> None:
    history = History(trials=3)
    for _ in range(3):
        history.run(4.0, 4.0)
    work = {"images": 10, "shards": 1, "total_shards": 2}
    history.forecast.update({"event": "trial_resumed", "trial": 1, "label": "", "config": {}, **work}, history.now)
    assert history.remaining is not None
    assert history.remaining.value == pytest.approx(4)
    history.shard(1, 4.0)
    history.forecast.update({"event": "trial_revived", "trial": 1}, history.now)
    assert history.remaining == (0, 0, 0)


def test_shards_that_were_not_planned_do_no_harm() -> None:
    """All were there when the trials started, and one of each was damaged."""
    history = History(trials=5)
    for _ in range(3):
        trial = history.start(shards=0, existing=1)
        history.shard(trial, 4.0)
        history.finish(trial)
    history.start(shards=1)
    assert history.remaining == pytest.approx((8, 8, 8))


def test_the_last_shard_runs_on_one_worker() -> None:
    """The other one idles."""
    history = History(workers=2, trials=4)
    for _ in range(3):
        trial = history.start(shards=2)
        history.now += 10
        for worker in "ab":
            history.add_shard(trial, 10.0, worker)
        history.finish(trial)
    last = history.start(shards=2)
    history.now += 10
    for _ in range(2):
        history.add_shard(last, 10.0)
    history.now += 3
    assert history.remaining == (0, 0, 0)
    last = history.start(shards=1)
    assert history.remaining is not None
    assert history.remaining.value == pytest.approx(20 - 3)


def test_a_shard_that_takes_longer_still_takes_a_tenth_of_what_was_left() -> None:
    history = History(trials=4)
    for _ in range(3):
        history.run(10.0, 10.0)
    history.start(shards=2)
    history.now += 60
    assert history.remaining is not None
    assert history.remaining.value == pytest.approx(2)


FOREVER = 10**6


def simulate(shard_seconds: Callable[[int], int], **workers: tuple[int, int]) -> list[tuple[int, int, float, int]]:
    """Forecasts of 20 trials of three shards, which take shard_seconds(trial). workers: from when to when each is up.

    Every second: the time since the start, how many workers are up, the stated time left, and the true one.
    """
    history, waiting, unfinished = History(trials=20), [n // 3 for n in range(60)], [3] * 20
    running: dict[str, tuple[int, int]] = {}  # trial and end of each worker's shard
    begin, finished, stated = history.now, 0, []
    while finished < 20:
        now = int(history.now - begin)
        for worker, (_, down) in workers.items():
            trial, end = running.get(worker, (0, 0))
            if worker in running and down <= now:
                waiting.insert(0, trial)
            elif worker in running and end == now:
                history.add_shard(trial, shard_seconds(trial), worker)
                unfinished[trial] -= 1
            if down <= now or end == now:
                running.pop(worker, None)
        alive = [worker for worker, (up, down) in workers.items() if up <= now < down]
        history.forecast.update({"event": "workers", "alive": len(alive)}, history.now)
        while finished < 20 and not unfinished[finished]:
            history.finish(finished)
            finished += 1
        while history.number < min(20, finished + 3):
            history.start(images=30, shards=3)
        for worker in alive:
            if worker not in running and waiting and waiting[0] < history.number:
                running[worker] = waiting[0], now + shard_seconds(waiting.pop(0))
        if history.remaining is not None:
            stated.append((now, len(alive), history.remaining.value))
        history.now += 1
    return [(now, alive, said, stated[-1][0] - now) for now, alive, said in stated]


def test_the_forecast_of_equal_shards_counts_down() -> None:
    """It is right within a tenth of the whole time, and it never jumps further."""
    stated = simulate(lambda trial: 10, a=(0, FOREVER), b=(0, FOREVER))
    total = stated[0][0] + stated[0][3]
    later = [(said, left) for now, _, said, left in stated[:-1] if now > 60.0]
    assert max(abs(said - left) for said, left in later) < 0.1 * total
    jumps = [abs(after[2] - before[2] + 1.0) for before, after in itertools.pairwise(stated[:-1])]
    assert max(jumps) < 0.1 * total


@pytest.mark.parametrize("dead", ["a", "b"])
def test_a_worker_that_died_is_not_late(dead: str) -> None:
    """Its replacement has another name, and is up two minutes later. Until then, the forecast is that of one worker."""
    workers = {"a": (0, FOREVER), "b": (5, FOREVER), "c": (223, FOREVER)}
    workers[dead] = (workers[dead][0], 103)
    stated = simulate(lambda trial: 10, **workers)
    alone = [said for _, alive, said, _ in stated if alive == 1][1:]
    assert len(alone) > 100
    assert all(after < before for before, after in itertools.pairwise(alone))
    assert max(abs(said - left) for now, _, said, left in stated if now >= 223) < 15


def test_workers_share_the_work_and_idle_time_counts() -> None:
    """Three workers that work 8 of 10 seconds: three trials to come take one round of 10 s."""
    history = History(workers=3, trials=9)
    for _ in range(2):
        history.now += 10
        for worker in "abc":
            trial = history.start()
            history.add_shard(trial, 8.0, worker)
            history.finish(trial)
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
    assert history.remaining == pytest.approx((0.8, 0.8, 0.8)), "late"


def test_the_budget_of_images_ends_a_sweep_too() -> None:
    """40 images are done, 10 a trial: at most 6 more trials, whatever the budget of trials."""
    for trials in (50, None):
        history = History(trials=trials, images=100)
        for _ in range(4):
            history.run(8.0)
        assert history.remaining is not None
        assert history.remaining.value == pytest.approx(48)


def test_nothing_is_said_without_a_budget_workers_or_enough_trials() -> None:
    for budget, trials, workers in ((None, 4, 1), (9, 0, 1), (9, 4, 0)):
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


@pytest.mark.parametrize("state", ["complete", "stopped"])
def test_resumed_trials_count_by_the_shards_that_they_lacked(state: str) -> None:
    """Three trials drew the last of six shards, in 20 / 6 s each; 17 trials of 20 s are to come. Racing may stop them
    before six more, which are not drawn."""
    history = History(trials=20, images=1000)
    for _ in range(3):
        trial = history.start(shards=1 if state == "complete" else 7, existing=5)
        history.shard(trial, 20 / 6)
        history.finish(trial, images=60, state=state)
    assert history.remaining == pytest.approx((820 / 60 * 20,) * 3)
    history.forecast.images = None
    assert history.remaining == pytest.approx((340, 340, 340))


def test_a_resumed_trial_in_flight_costs_what_its_missing_shards_do() -> None:
    history = History(trials=4)
    for _ in range(3):
        history.run(4.0, 4.0, 4.0, 4.0)
    trial = history.start(shards=2, existing=2)
    assert history.forecast.share_done() == pytest.approx((3 + 2 / 5) / 4)
    assert history.remaining == pytest.approx((8, 8, 8), abs=0.01)
    history.shard(trial, 4.0)
    assert history.remaining is not None
    assert history.remaining.value == pytest.approx(4)
