"""The pool on nodes of several kinds: who generates and who times, nodes that come and go, and
Ray's autoscaler.
"""

from __future__ import annotations

import itertools
import logging
import os
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import ray

from orchestrator.cluster import pool as pool_module
from orchestrator.cluster import pool_worker
from orchestrator.cluster.cluster import alive_nodes, connected
from orchestrator.cluster.placement import ANYWHERE, Placement, Slots, check_demand
from orchestrator.cluster.pool import Pool
from orchestrator.cluster.ray_internals import without_services
from orchestrator.cluster.tasks import PoolError, Task, TaskResult
from orchestrator.store.events import Event, EventSink, Timing, Workers
from tests.fakes.autoscaling import autoscaling_cluster
from tests.fakes.ray_starts import start_ray
from tests.fakes.waiting import HANG_S, wait_until

pytestmark = pytest.mark.slow(seconds=85)
H100, A10G = {"gpu": "h100"}, {"gpu": "a10g"}
NODE = {"num_cpus": 1, "object_store_memory": 80 << 20, "dashboard_agent_listen_port": 0}


class Kinds:
    """A worker without models, whose numbers and device are those of its node's kind."""

    def __init__(self, spec: dict[str, Any]) -> None:
        self.labels = ray.get_runtime_context().get_node_labels()
        self.precision = spec.get("precision", "bfloat16")

    def facts(self) -> dict[str, Any]:
        kind = self.labels.get("gpu", "")
        numerics = {"digest": kind, "logits": [1.0, 2.0], "features": []}
        facts = {
            "device": kind,
            "kernels": "triton",
            "precision": self.precision,
            "numerics": numerics,
        }
        return facts | {"labels": self.labels, "node": kind}

    def run(self, task: dict[str, Any]) -> dict[str, Any]:
        if (begun := Path(task.get("hangs_once", "/"))).exists():
            time.sleep(task.get("seconds", 0.1))
        else:
            begun.touch()
            time.sleep(3600)
        return {"kind": self.labels.get("gpu", "")}

    def ping(self) -> None: ...

    def cancel(self, task: dict[str, Any]) -> None: ...


@pytest.fixture(scope="module", autouse=True)
def actors() -> Iterator[None]:
    """Pools start `Kinds`; nodes that come are found within a second."""
    ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])  # type: ignore[no-untyped-call]
    remote: Any = ray.remote
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pool_module, "actor_class", lambda: remote(max_concurrency=2)(Kinds))
        patch.setattr(pool_module, "_GROW_INTERVAL_S", 0.5)
        patch.setattr(pool_module, "_WATCH_INTERVAL_S", 0.5)
        patch.setattr(pool_worker, "_PING_INTERVAL_S", 0.5)
        yield
    ray.cloudpickle.unregister_pickle_by_value(sys.modules[__name__])  # type: ignore[no-untyped-call]


@pytest.fixture(scope="module")
def mixed() -> Iterator[Any]:
    """A head without CPUs, a node with H100s and one with A10Gs, by their labels."""
    from ray.cluster_utils import Cluster

    head: dict[str, Any] = {**NODE, "num_cpus": 0, "include_dashboard": False}
    with without_services():
        cluster: Any = start_ray(lambda: Cluster(initialize_head=True, head_node_args=head))
        for labels in (H100, A10G):
            start_ray(partial(cluster.add_node, **NODE, labels=labels))
    cluster.wait_for_nodes()
    ray.init(cluster.address, logging_level=logging.ERROR, log_to_driver=False)
    yield cluster
    ray.shutdown()
    logging.disable(logging.WARNING)
    cluster.shutdown()
    logging.disable(logging.NOTSET)


@pytest.fixture
def make() -> Iterator[Any]:
    pools: list[Pool] = []

    def make(
        slots: Slots,
        placement: Placement = ANYWHERE,
        emit: EventSink = lambda event: None,
        **spec: Any,
    ) -> Pool:
        pools.append(Pool(spec, slots, None, emit, placement))
        return pools[-1]

    yield make
    for made in pools:
        made.close()


def collect(pool: Pool, count: int) -> list[TaskResult]:
    done, end = list[TaskResult](), time.monotonic() + HANG_S
    while len(done) < count:
        assert time.monotonic() < end, f"{len(done)} of {count} came back"
        done += pool.collect(0.2)
    return done


def wait(pool: Pool, workers: int) -> None:
    end = time.monotonic() + HANG_S
    while pool.alive != workers:
        assert time.monotonic() < end, f"{pool.alive} workers instead of {workers}"
        pool.collect(0.2)


def timing(name: str, **work: Any) -> Task:
    """The task of a timing session of two settings."""
    return Task(name, {"kind": "timing", "configs": [{}, {}], **work})


def run_both(pool: Pool, each: int = 5) -> dict[str, set[str]]:
    """The kinds of nodes that ran timing sessions, and three times as many quality shards."""
    for n in range(4 * each):
        # each of two idle workers that generate gets one of the first two
        task = Task(f"quality-{n}", {"kind": "quality"})
        pool.submit(timing(f"timing-{n}") if n % 4 == 3 else task)
    found: dict[str, set[str]] = {"timing": set(), "quality": set()}
    for result in collect(pool, 4 * each):
        assert result.output is not None, result.cause
        found[result.task.kind].add(result.output["kind"])
    return found


@pytest.mark.skipif(
    os.environ.get("SPECFRONTIER_SLOW_TESTS") != "1",
    reason="takes minutes; SPECFRONTIER_SLOW_TESTS=1 runs it",
)
def test_an_autoscaling_cluster_grows_and_shrinks_while_tasks_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """0 nodes, then 2 (one of them by its label), then 1, and 2 again. No task is lost.

    It is the first test of the file, because a process has one connection to Ray.
    """
    resources = {"CPU": 1, "object_store_memory": 80 << 20}
    types = {
        "draws": {"resources": resources, "labels": H100, "min_workers": 0, "max_workers": 2},
        "times": {"resources": resources, "labels": A10G, "min_workers": 0, "max_workers": 2},
    }
    placement = Placement({}, A10G)

    def cpus() -> float:
        return sum(node.resources.get("CPU", 0) for node in alive_nodes())

    with (
        autoscaling_cluster(types, idle_s=2.0) as address,
        connected(address, Slots(2, 1.0), 1, placement=placement) as slots,
        closing(Pool({"precision": "float32"}, slots, placement=placement)) as pool,
    ):
        assert cpus() == 0
        wait(pool, 2)
        assert cpus() == 2
        assert run_both(pool)["timing"] == {"a10g"}
        # Not before: the first worker has nothing to do until the second node, which a busy machine
        # starts late, is up.
        monkeypatch.setattr(pool_module, "_RELEASE_TIMEOUT_S", 2.0)
        shard, end = itertools.count(), time.monotonic() + HANG_S
        while cpus() > 1:  # the worker that times goes on alone
            assert time.monotonic() < end, "no node was stopped"
            pool.submit(replace(timing(f"timing-{next(shard)}", seconds=0.5), trial=1))
            collect(pool, 1)
        assert pool.alive == 1
        for n in range(4):
            pool.submit(Task(f"quality-{n}", {"kind": "quality", "seconds": 4.0}, trial=2))
        wait(pool, 2)
        assert cpus() == 2
        collect(pool, 4)


@pytest.mark.skipif(
    os.environ.get("SPECFRONTIER_SLOW_TESTS") != "1",
    reason="takes minutes; SPECFRONTIER_SLOW_TESTS=1 runs it",
)
@pytest.mark.parametrize(("gpus", "kind"), [(0.0, "a10g"), (1.0, "h100")])
def test_an_autoscaler_starts_the_nodes_that_workers_ask_for(gpus: float, kind: str) -> None:
    """While there are none, the number of GPUs must be given: the autoscaler takes silence for
    workers on CPUs.
    """
    cpu = {"CPU": 1, "object_store_memory": 80 << 20}
    types = {
        "small": {"resources": cpu, "labels": A10G, "min_workers": 0, "max_workers": 1},
        "large": {
            "resources": cpu | {"GPU": 1},
            "labels": H100,
            "min_workers": 0,
            "max_workers": 1,
        },
    }
    with (
        autoscaling_cluster(types, idle_s=60.0) as address,
        connected(address, Slots(1), 1) as slots,
    ):
        assert slots.gpus == 0.0
        with pytest.raises(PoolError, match="--gpus-per-worker"):
            check_demand(Slots(1), alive_nodes())
        check_demand(Slots(1, 1.0, gpus), alive_nodes())
        with closing(Pool({}, Slots(1, 1.0, gpus))) as pool:
            wait(pool, 1)
            assert {label for node in alive_nodes() if (label := node.labels.get("gpu"))} == {kind}


@pytest.mark.parametrize(
    ("placement", "precision", "kinds"),
    [
        (Placement({}, A10G), "float32", {"timing": {"a10g"}, "quality": {"a10g", "h100"}}),
        (Placement(H100, A10G), "bfloat16", {"timing": {"a10g"}, "quality": {"h100"}}),
    ],
)
def test_timing_sessions_run_on_their_kind_alone(
    mixed: Any, make: Any, placement: Placement, precision: str, kinds: dict[str, set[str]]
) -> None:
    pool = make(Slots(None, 1.0), placement, precision=precision)
    wait(pool, 2)
    assert run_both(pool) == kinds


def test_one_worker_goes_where_it_can_time(mixed: Any, make: Any) -> None:
    pool = make(Slots(1, 1.0), Placement({}, A10G))
    wait(pool, 1)
    assert run_both(pool, 1) == {"timing": {"a10g"}, "quality": {"a10g"}}


def test_a_kind_that_no_node_has_ends_the_sweep_at_once(mixed: Any) -> None:
    with pytest.raises(PoolError, match=r"timing\.nodes: .*gpu=t4 \(there is gpu=a10g, gpu=h100\)"):
        Placement({}, {"gpu": "t4"}).check(Slots(None, 1.0), alive_nodes())


def test_timings_wait_for_their_kind_while_others_draw(
    mixed: Any, make: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The only node that times goes while it runs a shard, and another one joins."""
    monkeypatch.setattr(pool_module, "_TIMING_DELAY_S", 1.0)
    events: list[Event] = []

    def lost() -> list[tuple[str, int]]:
        return [(e.lost, e.alive) for e in events if isinstance(e, Workers) and e.lost is not None]

    pool: Pool = make(Slots(None, 1.0), Placement({}, A10G), events.append, precision="float32")
    wait(pool, 2)
    pool.submit(timing("timing", hangs_once=str(tmp_path / "begun")))
    wait_until((tmp_path / "begun").exists)
    node = next(node for node in mixed.worker_nodes if node._ray_params.labels == A10G)
    mixed.remove_node(node, allow_graceful=False)
    wait(pool, 1)
    pool.submit(Task("quality", {"kind": "quality"}, trial=1))
    (drawn,) = collect(pool, 1)
    assert drawn.output == {"kind": "h100"}
    assert pool._attempts._nodes == {"timing": [node.node_id]}
    end = time.monotonic() + HANG_S
    while len(lost()) < 2 or not any("wait for a worker" in (event.note or "") for event in events):
        assert time.monotonic() < end  # Ray takes some seconds to call a node dead
        pool.collect(0.2)
    for _ in range(10):  # it is said once
        pool.collect(0.2)
    assert [(what.split(" ", 1)[1], left) for what, left in lost()] == [
        ("on a10g", 1),
        ("a10g", 1),
    ], "worker, node"
    notes = [event.note or "" for event in events]
    assert [note for note in notes if "gpu=a10g" in note] == [
        "timing sessions wait for a worker on gpu=a10g"
    ]
    with without_services():
        mixed.add_node(**NODE, labels=A10G)
    (timed,) = collect(pool, 1)
    assert (timed.task.name, timed.output) == ("timing", {"kind": "a10g"})
    assert [e.settings for e in events if isinstance(e, Timing)] == [2, 0, 2, 0], (
        "a session that is lost has ended, and begins again"
    )
