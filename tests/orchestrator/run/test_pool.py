"""The pool on real Ray: tasks to whichever worker is free, actors and nodes that die, requests that cannot be met."""

from __future__ import annotations

import logging
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import ray

from orchestrator.run import pool as pool_module
from orchestrator.run.cluster import Slots, fit, room
from orchestrator.run.pool import Pool, _Census, unlike
from orchestrator.run.tasks import Done, PoolError, Task

PATIENCE = 240.0  # seconds, of a busy machine


class Echo:
    """A worker without models. Its tasks sleep, die or raise as they are told, and leave a line in a file."""

    def __init__(self, spec: dict[str, Any]) -> None:
        if spec.get("broken"):
            raise ValueError("weights: no such folder")
        if spec.get("one_broken") and spec["worker"] != "worker-0":
            raise ValueError("this node has no weights")
        self.log, self.odd, self.name = Path(spec["log"]), spec.get("odd"), spec["worker"]
        self.first = spec.get("first", "worker-0")
        while self.odd and self.name != self.first and not self.log.exists():
            time.sleep(0.05)  # the first one that answers is the measure of the others

    def facts(self) -> dict[str, Any]:
        if self.odd and self.name == self.first:
            self.log.touch()
        odd = {"device": "other"} if self.odd == self.name else {}
        return {"pid": os.getpid(), "device": "cpu", "node": self.name} | odd

    def run(self, task: dict[str, Any]) -> dict[str, Any]:
        with self.log.open("a") as lines:
            lines.write(f"{task['n']} {os.getpid()}\n")
        if task.get("raises"):
            raise ValueError("the model cannot serve it")
        if task.get("dies") and (task["dies"] == "always" or not Path(task["dies"]).exists()):
            if task["dies"] != "always":
                Path(task["dies"]).touch()
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(task.get("seconds", 0.0))
        return {"n": task["n"]}

    def cancel(self, task: dict[str, Any]) -> None: ...


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    ray.init("local", num_cpus=3, include_dashboard=False, object_store_memory=80 << 20, logging_level=logging.ERROR,
             log_to_driver=False)  # fmt: skip
    yield
    ray.shutdown()


@pytest.fixture
def said() -> list[str]:
    """What the pool tells."""
    return []


@pytest.fixture
def make(cluster: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: list[str]) -> Iterator[Any]:
    actors: Any = ray.remote
    monkeypatch.setattr(pool_module, "actor_class", lambda: actors(max_concurrency=2)(Echo))
    pools: list[Pool] = []

    def build(count: int = 2, **spec: Any) -> Pool:
        pools.append(Pool({"log": str(tmp_path / "log"), **spec}, Slots(count, 0.5), tell=said.append))
        return pools[-1]

    yield build
    for made in pools:
        made.close()


def task(n: int, trial: int = 0, urgent: bool = False, **payload: Any) -> Task:
    return Task(trial, f"shard-{n}", {"kind": "quality", "n": n, **payload}, urgent)


def everything(pool: Pool, count: int, seconds: float = PATIENCE) -> list[Done]:
    end = time.monotonic() + seconds
    done: list[Done] = []
    while len(done) < count:
        assert time.monotonic() < end, f"{len(done)} of {count} came back"
        done += pool.collect(0.5)
    return done


def both_up(pool: Pool) -> None:
    end = time.monotonic() + PATIENCE
    while pool.alive < 2:
        assert time.monotonic() < end, "two workers were to come up"
        pool.collect(0.5)


def test_every_task_comes_back_once(make: Any, tmp_path: Path) -> None:
    pool = make()
    both_up(pool)
    for n in range(40):
        pool.submit(task(n, seconds=0.02))
    done = everything(pool, 40)
    assert sorted(d.result["n"] for d in done if d.result) == list(range(40))
    assert pool.collect(0.2) == []
    lines = (tmp_path / "log").read_text().split()
    assert sorted(map(int, lines[::2])) == list(range(40))
    assert len(set(lines[1::2])) == 2, "both workers took part"
    assert pool.alive == 2


def test_the_oldest_trial_goes_first_and_what_is_urgent_before_the_rest_of_it(make: Any) -> None:
    pool = make(1)
    pool.first_facts(PATIENCE)
    pool.submit(task(0, trial=9, seconds=0.3))
    for n, trial, urgent in ((1, 5, False), (2, 3, False), (3, 5, True), (4, 3, False)):
        pool.submit(task(n, trial=trial, urgent=urgent))
    assert [d.task.payload["n"] for d in everything(pool, 5)] == [0, 2, 4, 3, 1]


def test_an_error_in_a_task_comes_back_in_words_and_the_worker_lives(make: Any) -> None:
    pool = make(1)
    pool.submit(task(0, raises=True))
    pool.submit(task(1))
    first, second = everything(pool, 2)
    assert first.result is None
    assert first.cause == "ValueError: the model cannot serve it"
    assert not first.lasting
    assert second.result == {"n": 1}


def test_a_worker_that_is_killed_costs_only_its_task_which_runs_again(make: Any, tmp_path: Path) -> None:
    pool = make()
    for n in range(6):
        pool.submit(task(n, dies=str(tmp_path / "died")) if n == 2 else task(n, seconds=0.05))
    done = everything(pool, 6)
    assert sorted(d.result["n"] for d in done if d.result) == list(range(6))
    runs = [int(n) for n in (tmp_path / "log").read_text().split()[::2]]
    assert sorted(runs) == [0, 1, 2, 2, 3, 4, 5]
    pool.submit(task(7))
    pool.submit(task(8))
    everything(pool, 2)
    both_up(pool)  # a new worker took its place


def test_a_task_that_kills_its_workers_is_given_up(make: Any, tmp_path: Path) -> None:
    pool = make()
    pool.submit(task(0, dies="always"))
    pool.submit(task(1))
    done = {d.task.payload["n"]: d for d in everything(pool, 2)}
    assert done[1].result == {"n": 1}
    assert "died 3 times while running shard-0" in (done[0].cause or "")


def test_a_task_is_not_blamed_for_workers_that_were_dead_before_it_came(make: Any, tmp_path: Path) -> None:
    """A node takes its idle workers with it; the next task must not be handed from one of them to another."""
    pool = make(3)
    while pool.alive < 3:
        pool.collect(0.5)
    for n in range(3):
        pool.submit(task(n, seconds=1.0))
    everything(pool, 3)
    for pid in {int(pid) for pid in (tmp_path / "log").read_text().split()[1::2]}:
        os.kill(pid, signal.SIGKILL)
    time.sleep(1.0)
    pool.submit(task(3))
    (done,) = everything(pool, 1)
    assert done.result == {"n": 3}


def test_what_is_withdrawn_does_not_come_back(make: Any) -> None:
    pool = make(1)
    pool.first_facts(PATIENCE)
    pool.submit(task(0, trial=1, seconds=0.5))
    pool.submit(task(1, trial=1))
    pool.submit(task(2, trial=2))
    pool.withdraw(1)
    assert [d.task.payload["n"] for d in everything(pool, 1)] == [2]
    assert pool.collect(0.3) == []


def test_a_node_that_cannot_serve_does_not_stop_those_that_can(make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool_module, "LOOK_AROUND", 0.1)
    pool = make(2, one_broken=True)
    pool.first_facts(PATIENCE)
    done, end = list[Done](), time.monotonic() + PATIENCE
    while pool._failed_starts < 3:  # it is tried again meanwhile
        assert time.monotonic() < end
        pool.submit(task(len(done), seconds=0.1))
        done += everything(pool, 1)
    assert [d.result["n"] for d in done if d.result] == list(range(len(done)))
    assert pool.alive == 1


def test_a_worker_on_other_hardware_is_not_used_and_that_is_said(make: Any, said: list[str]) -> None:
    pool = make(2, odd="worker-1")
    both_up(pool)
    assert "worker-1" not in pool.names
    assert len(pool.names) == 2
    assert said == [
        "worker-1 cannot be used: a worker has other device than the first: other and cpu; all must be alike; "
        "another is tried in 0 s"
    ]
    assert unlike({"device": "cpu"}, {"device": "cuda"}) == (
        "a worker has other device than the first: cuda and cpu; all must be alike"
    )
    assert unlike(None, {"device": "cuda"}) is None


def test_the_odd_one_out_does_not_become_the_measure_of_all(make: Any) -> None:
    """Two machines agree, and the one that answered first is another: nothing has been drawn yet, so it stops; what
    the first was asked meanwhile, beside drawing, does not matter.
    """
    pool = make(3, odd="worker-0")
    pool.first_facts(PATIENCE)
    pool.submit(Task(-1, "reference", {"kind": "reference", "n": 0}))
    with pytest.raises(PoolError, match="workers on 2 nodes agree with each other and not with the first"):
        both_up(pool)


def test_two_odd_ones_that_answer_early_stop_nothing(said: list[str]) -> None:
    """Six alike, of which one answers first, then two odd ones, then the others."""
    usual, odd = {"device": "cpu"}, {"device": "other"}
    census = _Census({f"worker-{n}" for n in range(8)})
    answers = [usual, odd, odd, *[usual] * 5]
    for n, facts in enumerate(answers):
        census.hear(f"worker-{n}", facts | {"node": f"node-{n}"})
        census.check(usual)
    few = _Census({f"worker-{n}" for n in range(9)})
    for n in range(9):  # one node of eight workers, against two nodes of one worker each
        few.hear(f"worker-{n}", (usual if n < 7 else odd) | {"node": f"node-{0 if n < 7 else n}"})
        if n < 8:
            few.check(usual)
    with pytest.raises(PoolError, match="2 nodes agree"):
        few.check(usual)


def test_workers_that_cannot_start_end_it_with_their_reason(make: Any) -> None:
    pool = make(1, broken=True)
    with pytest.raises(PoolError, match="weights: no such folder"):
        pool.first_facts(90)


@pytest.mark.parametrize(
    ("slots", "there", "message"),
    [
        (Slots(None, 1.0, 2.0), [{"CPU": 4.0, "GPU": 1.0}] * 2, "wants 2 GPU, the largest node has 1"),
        (Slots(None, 16.0), [{"CPU": 4.0}] * 8, "wants 16 CPU, the largest node has 4"),
        (Slots(None, 1.0, 1.0), [{"CPU": 4.0}], "--gpus-per-worker"),
        (Slots(None), [{"CPU": 0.0}], "say --workers N to a cluster that starts nodes on demand"),
    ],
)
def test_what_no_node_has_is_refused(slots: Slots, there: list[dict[str, float]], message: str) -> None:
    with pytest.raises(PoolError, match=message):
        fit(slots, there)


def test_a_worker_takes_a_gpu_where_there_are_some() -> None:
    assert fit(Slots(), [{"CPU": 8.0}, {"CPU": 8.0, "GPU": 2.0}]).gpus == 1.0
    assert fit(Slots(), [{"CPU": 8.0}]).gpus == 0.0
    assert fit(Slots(4, 1.0, 1.0), [{"CPU": 0.0}]) == Slots(4, 1.0, 1.0), "nodes come on demand"
    assert room(Slots(None, 1.0, 1.0), {"CPU": 8.0, "GPU": 3.0}) == 3
    assert room(Slots(None, 2.0), {"CPU": 8.0}) == 4
    assert room(Slots(None, 2.0), {}) == 1
