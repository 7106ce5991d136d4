"""The pool on real Ray: scheduling, actors and nodes that die, requests that no node can meet."""

from __future__ import annotations

import ctypes
import logging
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import ray
from ray.core.generated import common_pb2

from orchestrator.cluster import pool as pool_module
from orchestrator.cluster import pool_worker
from orchestrator.cluster.placement import Slots
from orchestrator.cluster.pool import Pool
from orchestrator.cluster.pool_worker import Attempts, AwakeClock, describe_error
from orchestrator.cluster.ray_internals import without_services
from orchestrator.cluster.tasks import PoolError, SweepError, Task, TaskResult
from orchestrator.store.events import Event, Workers
from tests.fakes.ray_starts import start_ray
from tests.fakes.waiting import HANG_S, wait_until
from workers.data.storage import StorageError
from workers.runtime.process import cores

pytestmark = pytest.mark.slow(seconds=100)


# Of Ray 2.60, without most of its advice.
LOW_ON_MEMORY = """1 worker(s) were killed due to the node running low on memory. \
Memory on the node (IP: 192.0.2.2, ID: 7e2ba2e82bd2) was 15.65GB used / 16.54GB limit (0.954964)
OOM kill reason: Memory usage 15824865280B exceeded threshold of 15505530272B (95.0% of 16276514304B limit)
Selected to kill: (Task: job ID=01000000, task name=A.__init__, required resources={CPU: 1}, pid=8105)
Refer to the documentation on how to address the out of memory issue: https://docs.ray.io/ Consider provisioning more \
memory on this node. To disable worker killing, set `RAY_memory_monitor_refresh_ms` to zero."""


class Echo:
    """A worker without models. Its tasks sleep, die or raise on request, and append a line to a
    file.
    """

    def __init__(self, spec: dict[str, Any]) -> None:
        if spec.get("broken"):
            raise ValueError("weights: no such folder")
        self.log, self.odd, self.name = Path(spec["log"]), spec.get("odd"), spec["worker"]
        while (
            (self.odd or spec.get("one_broken"))
            and self.name != "worker-0"
            and not self.log.exists()
        ):
            time.sleep(0.05)  # until the test says that the pool has the first worker's facts
        if spec.get("one_broken") and self.name != "worker-0":
            raise ValueError("this node has no weights")
        self.hangs = Path(spec["hangs"]) if "hangs" in spec else None  # the first one, as it loads
        if self.hangs and spec["how"] != "heartbeats" and not self.hangs.exists():
            self.hangs.write_text(str(os.getpid()))
            if spec["how"] == "stopped":
                os.kill(os.getpid(), signal.SIGSTOP)
            ctypes.PyDLL(None).sleep(3600)  # no other thread runs meanwhile
        self.cancelled = threading.Event()
        self.threads = {}
        if spec.get("computes"):
            import torch

            self.threads = {
                "threads": torch.get_num_threads(),
                "waits": os.environ["OMP_WAIT_POLICY"],
            }
            self.threads["start"] = Path("/proc/self/environ").read_text()

    def facts(self) -> dict[str, Any]:
        if self.hangs and not self.hangs.exists():
            self.hangs.write_text(str(os.getpid()))
            time.sleep(3600)
        odd = {"kernels": "triton"} if self.odd == self.name else {}
        # there are three: workers that replace others start on the last
        node = min(self.name, "worker-2")
        return {"pid": os.getpid(), "kernels": "torch", "node": node} | odd | self.threads

    def run(self, task: dict[str, Any]) -> dict[str, Any]:
        with self.log.open("a") as lines:
            lines.write(f"{task['n']} {os.getpid()}\n")
        if task.get("raises"):
            raise ValueError("the model does not support it")
        if task.get("dies") and (task["dies"] == "always" or not Path(task["dies"]).exists()):
            if task["dies"] != "always":
                Path(task["dies"]).touch()
            os.kill(os.getpid(), signal.SIGKILL)
        runs = self.log.read_text().split()[::2].count(str(task["n"]))
        if runs <= task.get("full", 0):
            raise StorageError(28, "No space left on device", "/store/shards/a.parquet")
        self.cancelled.clear()
        if task.get("hangs_once") and runs == 1:
            time.sleep(3600)
        if self.cancelled.wait(
            task.get("seconds", 0.0) if runs == 1 else task.get("again", task.get("seconds", 0.0))
        ):
            raise RuntimeError("cancelled")
        return {"n": task["n"]}

    def ping(self) -> None: ...

    def cancel(self, task: dict[str, Any]) -> None:
        self.cancelled.set()


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    # workers need not import this module, and pytest with it
    ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])  # type: ignore[no-untyped-call]
    options: dict[str, Any] = {
        "num_cpus": 3,
        "include_dashboard": False,
        "object_store_memory": 80 << 20,
    }
    with without_services():
        start_ray(
            lambda: ray.init("local", **options, logging_level=logging.ERROR, log_to_driver=False)
        )
    yield
    ray.shutdown()
    ray.cloudpickle.unregister_pickle_by_value(sys.modules[__name__])  # type: ignore[no-untyped-call]


@pytest.fixture
def warnings() -> list[str]:
    """The pool's warnings."""
    return []


@pytest.fixture(scope="module")
def echoes(cluster: None) -> Iterator[None]:
    """Pools start `Echo` workers."""
    actors: Any = ray.remote
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pool_module, "actor_class", lambda: actors(max_concurrency=2)(Echo))
        yield


@pytest.fixture
def lost() -> list[Workers]:
    """The workers that the pool lost."""
    return []


def build(log: Path, count: int, warnings: list[str], lost: list[Workers], **spec: Any) -> Pool:
    slots = Slots(count, 0.5)
    # with an environment of its own, Ray starts each worker's process twice
    environment = slots.environment(spec["threads"]) if "threads" in spec else None

    def emit(event: Event) -> None:
        if isinstance(event, Workers) and event.lost is not None:
            lost.append(event)
        else:
            warnings.append(event.note or "")

    return Pool({"log": str(log), **spec}, slots, environment, emit)


@pytest.fixture
def make(echoes: None, tmp_path: Path, warnings: list[str], lost: list[Workers]) -> Iterator[Any]:
    pools: list[Pool] = []

    def make(count: int = 2, **spec: Any) -> Pool:
        pools.append(build(tmp_path / "log", count, warnings, lost, **spec))
        return pools[-1]

    yield make
    for made in pools:
        made.close()


@pytest.fixture(scope="module")
def single(echoes: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pool]:
    """A pool of one worker for tests that leave it alive and idle."""
    pool = build(tmp_path_factory.mktemp("single") / "log", 1, [], [])
    pool.first_facts(HANG_S)
    yield pool
    pool.close()


def task(n: int, trial: int = 0, kind: str = "quality", **payload: Any) -> Task:
    return Task(f"shard-{n}", {"kind": kind, "n": n, **payload}, trial=trial)


def collect_all(pool: Pool, count: int) -> list[TaskResult]:
    end = time.monotonic() + HANG_S
    done: list[TaskResult] = []
    while len(done) < count:
        assert time.monotonic() < end, f"{len(done)} of {count} came back"
        done += pool.collect(0.5)
    return done


def names(pool: Pool) -> list[str]:
    """Names of the workers that have started."""
    return sorted(worker.name for worker in pool._workers if worker.ready)


def collect_until(pool: Pool, reached: Callable[[], object]) -> None:
    """Collect until this holds; no task returns meanwhile."""
    end = time.monotonic() + HANG_S
    while not reached():
        assert time.monotonic() < end
        assert pool.collect(0.05) == []


def both_up(pool: Pool) -> None:
    collect_until(pool, lambda: pool.alive >= 2)


def test_a_worker_that_the_memory_monitor_ended_says_how_much_memory_was_used() -> None:
    context = common_pb2.ActorDiedErrorContext(error_message=LOW_ON_MEMORY, actor_id=b"0" * 16)  # type: ignore[attr-defined]
    ended = ray.exceptions.OutOfMemoryError(LOW_ON_MEMORY)  # type: ignore[no-untyped-call]
    for error in (ended, ray.exceptions.ActorDiedError(context)):
        assert "(15.65GB used / 16.54GB limit)" in (said := describe_error(error))
        assert "RAY_" not in said


def test_every_task_returns_once(make: Any, tmp_path: Path) -> None:
    pool = make()
    both_up(pool)
    for n in range(40):
        pool.submit(task(n, seconds=0.02))
    done = collect_all(pool, 40)
    assert sorted(d.output["n"] for d in done if d.output) == list(range(40))
    assert pool.collect(0.2) == []
    lines = (tmp_path / "log").read_text().split()
    assert sorted(map(int, lines[::2])) == list(range(40))
    assert len(set(lines[1::2])) == 2, "both workers took part"
    assert pool.alive == 2


@pytest.mark.parametrize(("threads", "expected"), [(2, min(2, cores())), (None, 1)])
def test_a_worker_computes_with_its_threads_which_wait_passively(
    threads: int | None, expected: int, make: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
    facts = make(1, computes=True, threads=threads).first_facts(HANG_S)
    assert (facts["threads"], facts["waits"]) == (expected, "PASSIVE")
    assert "MALLOC_MMAP_MAX_=0" in facts["start"].split("\0"), (
        "glibc reads it when the process starts"
    )


def test_the_oldest_trial_goes_first_and_measurements_first_within_it(single: Pool) -> None:
    pool = single
    pool.submit(task(0, trial=9, seconds=0.3))
    for n, trial, kind in (
        (1, 5, "quality"),
        (2, 3, "quality"),
        (3, 5, "measure"),
        (4, 3, "quality"),
    ):
        pool.submit(task(n, trial=trial, kind=kind))
    assert [d.task.payload["n"] for d in collect_all(pool, 5)] == [0, 2, 4, 3, 1]


def test_an_error_in_a_task_is_reported_and_the_worker_lives(single: Pool) -> None:
    pool = single
    pool.submit(task(0, raises=True))
    pool.submit(task(1))
    first, second = collect_all(pool, 2)
    assert first.output is None
    assert first.cause == "ValueError: the model does not support it"
    assert not first.permanent
    assert second.output == {"n": 1}


def test_a_store_that_cannot_be_used_for_a_moment_is_no_fault_of_a_trial(single: Pool) -> None:
    """The task runs again; if it is in vain, the sweep ends: a failed trial would change what the
    search proposes.
    """
    single.submit(task(20, full=2))
    (done,) = collect_all(single, 1)
    assert done.output == {"n": 20}
    single.submit(task(21, full=3))
    with pytest.raises(SweepError, match="No space left on device"):
        collect_all(single, 1)


def test_the_task_of_a_killed_worker_runs_again(
    make: Any, tmp_path: Path, lost: list[Workers]
) -> None:
    pool = make()
    for n in range(6):
        pool.submit(task(n, dies=str(tmp_path / "died")) if n == 2 else task(n, seconds=0.05))
    done = collect_all(pool, 6)
    assert sorted(d.output["n"] for d in done if d.output) == list(range(6))
    runs = [int(n) for n in (tmp_path / "log").read_text().split()[::2]]
    assert sorted(runs) == [0, 1, 2, 2, 3, 4, 5]
    pool.submit(task(7))
    pool.submit(task(8))
    collect_all(pool, 2)
    both_up(pool)  # a new worker took its place
    (dead,) = lost
    assert dead.lost in (
        "worker-0 on worker-0",
        "worker-1 on worker-1",
    ), "the facts of `Echo` name the node so"
    assert re.fullmatch(r"lost worker-\d on worker-\d \(.+\); \d workers? left", dead.note or "")


def test_a_task_that_kills_its_workers_is_given_up(make: Any, tmp_path: Path) -> None:
    pool = make(captions={"source": "prompts.txt"})
    pool.submit(task(0, dies="always", start=14, stop=28))
    pool.submit(task(1))
    done = {d.task.payload["n"]: d for d in collect_all(pool, 2)}
    assert done[1].output == {"n": 1}
    assert "died 3 times while running shard-0 (quality of captions 14 to 27 of prompts.txt)" in (
        done[0].cause or ""
    )


def test_workers_that_died_idle_do_not_count_against_a_task(make: Any, tmp_path: Path) -> None:
    """A node dies with its idle workers; the next task must not be given to one of them after
    another.
    """
    pool = make(3)
    collect_until(pool, lambda: pool.alive == 3)
    for n in range(3):
        pool.submit(task(n, seconds=1.0))
    collect_all(pool, 3)
    for pid in {int(pid) for pid in (tmp_path / "log").read_text().split()[1::2]}:
        os.kill(pid, signal.SIGKILL)
    pool.submit(task(3))
    (done,) = collect_all(pool, 1)
    assert done.output == {"n": 3}


class StoppedClock:
    """The pool's clock, which the test moves."""

    def __init__(self) -> None:
        self.now = 0.0

    def advance(self) -> None: ...


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> StoppedClock:
    """Pools look after their workers whenever they collect, by this clock."""
    made = StoppedClock()
    monkeypatch.setattr(pool_module, "AwakeClock", lambda: made)
    monkeypatch.setattr(pool_module, "_WATCH_INTERVAL_S", 0.0)
    return made


def pids(log: Path, n: int) -> list[int]:
    """The processes that ran a task."""
    words = log.read_text().split() if log.exists() else []
    return [
        int(pid) for number, pid in zip(words[::2], words[1::2], strict=True) if int(number) == n
    ]


def test_a_silent_worker_is_replaced(
    make: Any, tmp_path: Path, clock: StoppedClock, lost: list[Workers]
) -> None:
    """One worker is stopped while it runs a task."""
    pool, log = make(), tmp_path / "log"
    both_up(pool)
    pool.submit(task(1, seconds=3600.0, again=0.0))
    collect_until(pool, lambda: pids(log, 1))
    (stopped,) = pids(log, 1)
    os.kill(stopped, signal.SIGSTOP)
    clock.now += pool_worker._PING_INTERVAL_S
    pool.collect(0.0)
    # the other one answered
    collect_until(pool, lambda: sum(worker._ping is None for worker in pool._workers) == 1)
    clock.now += pool_worker._SILENCE_TIMEOUT_S - 1
    assert pool.collect(0.0) == []
    assert lost == []
    clock.now += 2
    (done,) = collect_all(pool, 1)
    assert done.output == {"n": 1}
    assert len(set(pids(log, 1))) == 2
    both_up(pool)
    (loss,) = lost
    assert "no heartbeat for 60 s" in (loss.note or "")
    wait_until(lambda: not Path(f"/proc/{stopped}").exists())


def test_an_idle_worker_that_died_is_replaced(
    make: Any, tmp_path: Path, clock: StoppedClock, lost: list[Workers]
) -> None:
    """By its heartbeat: no task finds it dead."""
    pool = make()
    both_up(pool)
    pool.submit(task(2))
    collect_all(pool, 1)
    (idle,) = pids(tmp_path / "log", 2)
    before = names(pool)
    os.kill(idle, signal.SIGKILL)
    clock.now += pool_worker._PING_INTERVAL_S
    collect_until(pool, lambda: lost)
    both_up(pool)
    assert names(pool) != before
    assert len(lost) == 1


def test_a_worker_that_does_not_stop_a_withdrawn_task_is_replaced(
    make: Any, tmp_path: Path, clock: StoppedClock, lost: list[Workers]
) -> None:
    pool, log = make(1), tmp_path / "log"
    pool.submit(task(0, trial=1, hangs_once=True))
    collect_until(pool, lambda: pids(log, 0))
    pool.withdraw([task(0, trial=1).name])
    pool.submit(task(1, trial=2))
    clock.now += pool_worker._CANCEL_TIMEOUT_S + 1
    (done,) = collect_all(pool, 1)
    assert done.output == {"n": 1}
    assert ["did not stop its task within 60 s" in (loss.note or "") for loss in lost] == [True]


@pytest.mark.parametrize("how", ["heartbeats", "holds Python", "stopped"])
def test_a_worker_that_hangs_while_it_loads_is_replaced(
    how: str, make: Any, tmp_path: Path, clock: StoppedClock, warnings: list[str]
) -> None:
    """Whether it sends heartbeats or none, such as one with a library that does not let other
    threads run.
    """
    hung = tmp_path / "hung"
    pool = make(1, hangs=str(hung), how=how)
    collect_until(pool, lambda: hung.exists() and hung.read_text())
    assert pool.collect(0.0) == []
    assert pool._workers[0].since == 0, "it has a process"
    clock.now += pool_worker.START_TIMEOUT_S - 1
    assert pool.collect(0.0) == []
    assert warnings == []
    clock.now += 2
    pool.first_facts(HANG_S)
    pool.submit(task(0))
    (done,) = collect_all(pool, 1)
    assert done.output == {"n": 0}
    assert warnings == [
        "worker-0 cannot be used: did not load its models within 1800 s; retrying in 0 s"
    ]
    wait_until(lambda: not Path(f"/proc/{hung.read_text()}").exists())


def test_a_worker_that_waits_for_a_node_is_not_late(
    echoes: None, tmp_path: Path, clock: StoppedClock
) -> None:
    events: list[Event] = []
    with closing(
        Pool({"log": str(tmp_path / "log")}, Slots(1, cpus=99.0), None, events.append)
    ) as pool:
        for _ in range(10):
            clock.now += pool_worker.START_TIMEOUT_S
            assert pool.collect(0.1) == []
        with pytest.raises(PoolError, match=r"no worker started within 0\.1 s"):
            pool.first_facts(0.1)
        assert [worker.name for worker in pool._workers] == ["worker-0"]
    assert events == []


def test_withdrawn_tasks_do_not_return(single: Pool) -> None:
    pool = single
    pool.submit(task(0, trial=1, seconds=0.5))
    pool.submit(task(1, trial=1))
    pool.submit(task(2, trial=2))
    pool.withdraw([task(n).name for n in (0, 1)])
    assert [d.task.payload["n"] for d in collect_all(pool, 1)] == [2]
    assert pool.collect(0.3) == []


def test_a_broken_node_does_not_stop_the_others(
    make: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool_module, "_GROW_INTERVAL_S", 0.1)
    pool, done = make(2, one_broken=True), list[TaskResult]()
    pool.first_facts(HANG_S)
    (tmp_path / "log").touch()
    while pool._failed_starts < 3:  # it is tried again meanwhile
        pool.submit(task(len(done), seconds=0.1))
        done += collect_all(pool, 1)
    assert [d.output["n"] for d in done if d.output] == list(range(len(done)))
    assert pool.alive == 1


def test_a_worker_on_other_hardware_is_not_used_and_warned_about(
    make: Any, tmp_path: Path, warnings: list[str]
) -> None:
    pool = make(2, odd="worker-1")
    pool.first_facts(HANG_S)
    (tmp_path / "log").touch()
    both_up(pool)
    assert "worker-1" not in names(pool)
    assert len(names(pool)) == 2
    assert len(warnings) == 1
    assert warnings[0].startswith("worker-1 cannot be used: kernels: ")


def test_a_first_worker_that_differs_from_all_others_ends_the_sweep(
    make: Any, tmp_path: Path
) -> None:
    """Two nodes agree, and the first worker differs. Nothing has been drawn yet; other tasks do not
    matter.
    """
    pool = make(3, odd="worker-0")
    pool.first_facts(HANG_S)
    (tmp_path / "log").touch()
    pool.submit(Task("reference", {"kind": "reference", "n": 0}))
    with pytest.raises(PoolError, match="2 nodes agree"):
        collect_all(pool, 2)  # waits until the third worker has started


def test_workers_that_fail_to_start_end_the_sweep_with_the_reason(
    make: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    # the first refusal is enough, if no other node starts
    monkeypatch.setattr(pool_module, "_GROW_INTERVAL_S", 600.0)
    pool = make(1, broken=True)
    with pytest.raises(PoolError, match="weights: no such folder"):
        pool.first_facts(HANG_S)


def test_a_task_is_given_up_after_three_attempts() -> None:
    attempts = Attempts()
    assert [attempts.last(task(0)) for _ in range(3)] == [None, None, 3]
    attempts.forget(task(0))
    assert attempts.last(task(0)) is None


def test_attempts_on_nodes_that_were_lost_count_a_quarter() -> None:
    """Whether a node was lost may be known only when the next attempt fails."""
    attempts, alive = Attempts(), [f"node-{n}" for n in range(20)]
    counts = [attempts.last(task(0), f"node-{n}", alive[n:]) for n in range(9)]
    assert counts == [None] * 8 + [9]


def test_time_in_which_the_process_was_stopped_does_not_count() -> None:
    times = iter([0.0, 0.5, 1.0, 601.0, 601.5])
    clock = AwakeClock(lambda: next(times))
    for _ in range(4):
        clock.advance()
    assert clock.now == 0.5 + 0.5 + 5.0 + 0.5
