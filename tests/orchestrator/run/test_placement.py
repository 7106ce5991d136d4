"""How many workers nodes hold, and which nodes a sweep needs, by resources and labels alone."""

from __future__ import annotations

import pytest

from orchestrator.run.placement import Node, Placement, Slots, check_demand, fit, worker_capacity
from orchestrator.run.tasks import PoolError
from search_spaces.sweep import SweepConfig

H100, A10G = {"gpu": "h100"}, {"gpu": "a10g"}


@pytest.mark.parametrize(
    ("slots", "nodes", "message"),
    [
        (Slots(None, 1.0, 2.0), [{"CPU": 4.0, "GPU": 1.0}] * 2, "needs 2 GPU, but the largest node has 1"),
        (Slots(None, 16.0), [{"CPU": 4.0}] * 8, "needs 16 CPU, but the largest node has 4"),
        (Slots(None, 1.0, 1.0), [{"CPU": 4.0}], "--gpus-per-worker"),
        (Slots(None), [{"CPU": 0.0}], "--workers N on an autoscaling cluster"),
    ],
)
def test_resources_that_no_node_has_are_refused(slots: Slots, nodes: list[dict[str, float]], message: str) -> None:
    with pytest.raises(PoolError, match=message):
        fit(slots, [Node(resources) for resources in nodes])


def test_workers_get_a_gpu_if_nodes_have_one() -> None:
    assert fit(Slots(), [Node({"CPU": 8.0}), Node({"CPU": 8.0, "GPU": 2.0})]).gpus == 1.0
    assert fit(Slots(), [Node({"CPU": 8.0})]).gpus == 0.0
    assert fit(Slots(gpus=0.0), [Node({"CPU": 8.0, "GPU": 2.0})]).gpus == 0.0, "asked for"
    assert fit(Slots(4, 1.0, 1.0), [Node({"CPU": 0.0})]) == Slots(4, 1.0, 1.0), "nodes come on demand"


def test_nodes_to_come_have_gpus_only_if_workers_ask_for_them() -> None:
    """Ray's autoscaler starts the smallest nodes that do; nobody tells the sweep which ones there are."""
    head, small, gpu = Node({"CPU": 0.0}), Node({"CPU": 2.0}), Node({"CPU": 2.0, "GPU": 1.0})
    for nodes in ([head], [head, small]):
        with pytest.raises(PoolError, match=r"--workers 4: .*--gpus-per-worker 1 .*--gpus-per-worker 0"):
            check_demand(Slots(4), nodes)
    check_demand(Slots(4), [small, small])
    check_demand(Slots(4), [head, gpu])
    check_demand(Slots(4, gpus=0.0), [head])
    check_demand(Slots(4, gpus=1.0), [head])
    check_demand(Slots(), [small])


@pytest.mark.parametrize(
    ("slots", "nodes", "count"),
    [
        (Slots(None, 1.0, 1.0), [{"CPU": 8.0, "GPU": 3.0}], 3),
        (Slots(None, 2.0), [{"CPU": 8.0}], 4),
        (Slots(None, 2.0), [{"CPU": 3.0}, {"CPU": 3.0}], 2),  # a worker does not span nodes
        (Slots(None, 1.0, 1.0), [{"CPU": 64.0}, {"CPU": 1.0, "GPU": 4.0}], 1),
        (Slots(None, 1.0, 0.5), [{"CPU": 8.0, "GPU": 2.0}], 4),
        (Slots(None, 1.0, 0.4), [{"CPU": 8.0, "GPU": 2.0}], 4),  # nor GPUs
        (Slots(None, 2.0), [], 1),
    ],
)
def test_capacity_counts_what_fits_each_node(slots: Slots, nodes: list[dict[str, float]], count: int) -> None:
    assert worker_capacity(slots, [Node(resources) for resources in nodes]) == count


def placement(quality: dict[str, str] | None, timing: dict[str, str] | None, *metrics: str) -> Placement:
    sections = {"quality": {"nodes": quality} if quality else {}, "timing": {"nodes": timing} if timing else {}}
    objectives = {"objectives": list(metrics), "metrics": list(metrics)} if metrics else {}
    tree = {"policy": "chain", "length": 3}
    space = {"drafter": "eagle", "tree": tree}
    return Placement.of(SweepConfig.from_mapping({"name": "x", "space": space, **sections, **objectives}))


def test_timing_follows_its_own_labels_else_those_of_quality() -> None:
    assert placement(None, None) == Placement({}, {})
    assert placement(None, A10G) == Placement({}, A10G)
    assert placement(H100, None) == Placement(H100, H100)
    assert placement(H100, A10G) == Placement(H100, A10G)
    assert placement(None, A10G, "step_compression", "fid") == Placement({}, None)


def test_nodes_of_no_use_are_left_out_only_if_both_kinds_are_named() -> None:
    nodes = [Node({"CPU": 1.0}, labels) for labels in (H100, A10G, {"gpu": "t4"}, {})]
    assert [Placement({}, A10G).uses(node) for node in nodes] == [True] * 4
    assert [Placement(H100, A10G).uses(node) for node in nodes] == [True, True, False, False]


def test_a_kind_that_no_node_has_is_refused_unless_nodes_may_come() -> None:
    nodes = [Node({"CPU": 4.0}, H100), Node({"CPU": 0.0}, A10G)]
    Placement(H100, H100).check(Slots(), nodes)
    for wanted in (Placement({}, A10G), Placement({}, {"gpu": "t4"})):  # the node with A10G has no room
        with pytest.raises(PoolError, match=r"timing\.nodes: .*gpu=h100"):
            wanted.check(Slots(), nodes)
        wanted.check(Slots(1), nodes)
    with pytest.raises(PoolError, match=r"quality\.nodes: "):
        Placement({"gpu": "t4"}, H100).check(Slots(), nodes)
    with pytest.raises(PoolError, match=r"--workers 1: .*two kinds"):
        Placement(H100, A10G).check(Slots(1), nodes)
