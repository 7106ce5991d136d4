"""How many workers nodes hold, which nodes a sweep needs, and which workers may generate and
time.
"""

from __future__ import annotations

from typing import Any

import pytest

from orchestrator.cluster.placement import (
    Node,
    Placement,
    Slots,
    WorkerAgreement,
    check_demand,
    fit,
)
from orchestrator.cluster.tasks import PoolError
from search_spaces.sweep import SweepConfig

H100, A10G = {"gpu": "h100"}, {"gpu": "a10g"}


@pytest.mark.parametrize(
    ("slots", "nodes", "message"),
    [
        (
            Slots(None, 1.0, 2.0),
            [{"CPU": 4.0, "GPU": 1.0}] * 2,
            "needs 2 GPU, but the largest node has 1",
        ),
        (Slots(None, 16.0), [{"CPU": 4.0}] * 8, "needs 16 CPU, but the largest node has 4"),
        (Slots(None, 1.0, 1.0), [{"CPU": 4.0}], "--gpus-per-worker"),
        (Slots(None), [{"CPU": 0.0}], "--workers N on an autoscaling cluster"),
    ],
)
def test_resources_that_no_node_has_are_refused(
    slots: Slots, nodes: list[dict[str, float]], message: str
) -> None:
    with pytest.raises(PoolError, match=message):
        fit(slots, [Node(resources) for resources in nodes])


def test_workers_get_a_gpu_if_nodes_have_one() -> None:
    assert fit(Slots(), [Node({"CPU": 8.0}), Node({"CPU": 8.0, "GPU": 2.0})]).gpus == 1.0
    assert fit(Slots(), [Node({"CPU": 8.0})]).gpus == 0.0
    assert fit(Slots(gpus=0.0), [Node({"CPU": 8.0, "GPU": 2.0})]).gpus == 0.0, "asked for"
    assert fit(Slots(4, 1.0, 1.0), [Node({"CPU": 0.0})]) == Slots(4, 1.0, 1.0), (
        "nodes come on demand"
    )


def test_nodes_to_come_have_gpus_only_if_workers_ask_for_them() -> None:
    """Ray's autoscaler starts the smallest nodes that do; nobody tells the sweep which ones there
    are.
    """
    head, small, gpu = Node({"CPU": 0.0}), Node({"CPU": 2.0}), Node({"CPU": 2.0, "GPU": 1.0})
    for nodes in ([head], [head, small]):
        with pytest.raises(
            PoolError, match=r"--workers 4: .*--gpus-per-worker 1 .*--gpus-per-worker 0"
        ):
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
def test_capacity_counts_what_fits_each_node(
    slots: Slots, nodes: list[dict[str, float]], count: int
) -> None:
    assert Placement().capacity(slots, [Node(resources) for resources in nodes]) == count


def placement(
    quality: dict[str, str] | None, timing: dict[str, str] | None, *metrics: str
) -> Placement:
    sections = {
        "quality": {"nodes": quality} if quality else {},
        "timing": {"nodes": timing} if timing else {},
    }
    objectives = {"objectives": list(metrics), "metrics": list(metrics)} if metrics else {}
    tree = {"policy": "chain", "length": 3}
    space = {"drafter": "eagle", "tree": tree}
    return Placement.of(
        SweepConfig.from_mapping({"name": "x", "space": space, **sections, **objectives})
    )


def test_timing_follows_its_own_labels_else_those_of_quality() -> None:
    assert placement(None, None) == Placement({}, {})
    assert placement(None, A10G) == Placement({}, A10G)
    assert placement(H100, None) == Placement(H100, H100)
    assert placement(H100, A10G) == Placement(H100, A10G)
    assert placement(None, A10G, "step_compression", "fid") == Placement({}, None)


def test_nodes_without_work_are_left_out_only_if_both_kinds_are_named() -> None:
    nodes = [Node({"CPU": 1.0}, labels) for labels in (H100, A10G, {"gpu": "t4"}, {})]
    assert Placement({}, A10G).capacity(Slots(), nodes) == 4
    assert (
        Placement(H100, A10G).capacity(Slots(), nodes)
        == Placement(H100, A10G).capacity(Slots(), nodes[:2])
        == 2
    )


def test_a_kind_that_no_node_has_is_refused_unless_nodes_may_come() -> None:
    nodes = [Node({"CPU": 4.0}, H100), Node({"CPU": 0.0}, A10G)]
    Placement(H100, H100).check(Slots(), nodes)
    # the node with A10G has no room
    for wanted in (Placement({}, A10G), Placement({}, {"gpu": "t4"})):
        with pytest.raises(PoolError, match=r"timing\.nodes: .*gpu=h100"):
            wanted.check(Slots(), nodes)
        wanted.check(Slots(1), nodes)
    with pytest.raises(PoolError, match=r"quality\.nodes: "):
        Placement({"gpu": "t4"}, H100).check(Slots(), nodes)
    with pytest.raises(PoolError, match=r"--workers 1: .*two kinds"):
        Placement(H100, A10G).check(Slots(1), nodes)


def facts(
    device: str = "cuda (A10G)",
    *,
    precision: str = "bfloat16",
    shift: float = 0.0,
    gpu: str = "",
    **other: Any,
) -> dict[str, Any]:
    """Of a worker whose numbers are shifted against another's."""
    numerics = {"digest": f"{shift}", "logits": [0.0, 4.0 + 4.0 * shift], "features": [1.0]}
    labels = {"gpu": gpu} if gpu else {}
    found = {
        "device": device,
        "precision": precision,
        "kernels": "triton",
        "threads": 1,
        "node": device,
    }
    return found | {"numerics": numerics, "labels": labels, **other}


def granted(problems: dict[str, str]) -> tuple[bool, bool]:
    """Whether a worker may generate, and time."""
    return "generate" not in problems, "time" not in problems


@pytest.mark.parametrize(
    ("precision", "device", "shift", "generates", "times"),
    [
        ("bfloat16", "cuda (A10G)", 0.0, True, True),
        ("bfloat16", "cuda (A10G)", 1e-9, False, True),  # another driver, say: other bits
        # equal by chance: other shapes use other kernels
        ("bfloat16", "cuda (L4)", 0.0, False, False),
        ("float32", "cuda (L4)", 1e-6, True, False),
        ("float32", "cuda (L4)", 1e-3, False, False),  # TF32
        ("float32", "cuda (A10G)", 1e-6, True, True),
    ],
)
def test_numbers_decide_who_generates_and_the_device_who_times(
    precision: str, device: str, shift: float, generates: bool, times: bool
) -> None:
    agreement = WorkerAgreement(set())
    first = agreement.add("worker-0", facts(precision=precision))
    assert first == {}
    problems = agreement.add("worker-1", facts(device, precision=precision, shift=shift))
    assert granted(problems) == (generates, times)


@pytest.mark.parametrize("key", ["models", "extractors", "captions", "precision", "kernels"])
def test_another_experiment_or_other_kernels_exclude_a_worker(key: str) -> None:
    agreement = WorkerAgreement(set())
    agreement.add("worker-0", facts() | {key: "first"})
    problems = agreement.add("worker-1", facts() | {key: "second"})
    assert granted(problems) == (False, False)
    assert problems["generate"].startswith(f"{key}: second")


@pytest.mark.parametrize("order", [(0, 1, 2), (1, 0, 2), (2, 1, 0)])
def test_labels_decide_who_may_generate_and_time_in_any_order(order: tuple[int, ...]) -> None:
    agreement = WorkerAgreement(set("abc"), Placement({"gpu": "h100"}, {"gpu": "a10g"}))
    workers = [
        (facts("cuda (H100)", gpu="h100"), (True, False)),
        (facts("cuda (A10G)", shift=0.01, gpu="a10g"), (False, True)),
        (facts("cuda (T4)", shift=0.02, gpu="t4"), (False, False)),
    ]
    for index in order:
        found, expected = workers[index]
        problems = agreement.add("abc"[index], found)
        assert granted(problems) == expected
    agreement.check()


def test_a_label_does_not_hide_another_device() -> None:
    agreement = WorkerAgreement(set(), Placement({}, {"gpu": "a10g"}))
    agreement.add("worker-0", facts(gpu="a10g"))
    assert "time" in agreement.add("worker-1", facts("cuda (T4)", gpu="a10g"))


def test_a_resumed_sweep_generates_and_times_as_it_began() -> None:
    """Whoever starts first; timings without labels stay on the device of the first worker."""
    first = facts(precision="float32")
    stored = {key: first[key] for key in ("device", "numerics")}
    agreement = WorkerAgreement({"a", "b"}, stored=stored)
    other = agreement.add("a", facts("cuda (L4)", precision="float32", shift=1e-6))
    assert granted(other) == (True, False)
    same = agreement.add("b", first)
    assert granted(same) == (True, True)
    agreement.check()


ZEN, XEON = (
    {"device": "cpu (x86_64)", "precision": "float32", "timing_device": f"{name}, 1 thread"}
    for name in "zx"
)


@pytest.mark.parametrize("placement", [Placement(), Placement({}, A10G)])
def test_processors_of_two_models_generate_together_and_one_of_them_times(
    placement: Placement,
) -> None:
    """That of the first worker, which two workers may have; labels hide no other one."""
    agreement = WorkerAgreement(set("abcd"), placement)
    workers = [
        facts(gpu="a10g") | kind
        for kind in (ZEN, XEON, ZEN, ZEN | {"timing_device": "z, 2 threads"})
    ]
    problems = [agreement.add(name, found) for name, found in zip("abcd", workers, strict=True)]
    assert [granted(found) for found in problems] == [
        (True, True),
        (True, False),
        (True, True),
        (True, False),
    ]
    assert problems[1]["time"] == "timing_device: x, 1 thread, but the first worker has z, 1 thread"
    agreement.check()
    assert agreement.timing_place == " and ".join(
        ["z, 1 thread", *(["gpu=a10g"] if placement.kinds else [])]
    )


@pytest.mark.parametrize("placement", [Placement(), Placement({}, A10G)])
def test_a_resumed_sweep_is_timed_on_the_device_of_its_speeds(placement: Placement) -> None:
    """And on no other, whoever starts first: without that one it ends before an image is
    generated.
    """
    stored = {
        "device": ZEN["device"],
        "numerics": facts()["numerics"],
        "timing_device": ZEN["timing_device"],
    }
    agreement = WorkerAgreement({"a", "b"}, placement, stored)
    assert granted(agreement.add("a", facts(gpu="a10g") | XEON)) == (True, False)
    assert agreement.timing_place.startswith("z, 1 thread")
    assert granted(agreement.add("b", facts(gpu="a10g") | ZEN)) == (True, True)
    agreement.check()
    alone = WorkerAgreement({"a"}, placement, stored)
    alone.add("a", facts(gpu="a10g") | XEON)
    with pytest.raises(
        PoolError,
        match=r"no worker can time .*: its speeds are those of z, 1 thread, not of x, 1 thread",
    ):
        alone.check()


@pytest.mark.parametrize(
    ("placement", "found", "message"),
    [
        (Placement(), facts("cuda (L4)"), "generate"),
        (Placement(), facts("cuda (L4)", precision="float32"), "time"),
        (Placement({}, {"gpu": "a10g"}), facts(), "gpu=a10g"),
    ],
)
def test_a_sweep_that_no_worker_can_generate_or_time_ends(
    placement: Placement, found: dict[str, Any], message: str
) -> None:
    stored = {key: facts()[key] for key in ("device", "numerics")}
    agreement = WorkerAgreement({"worker-0", "worker-1"}, placement, stored)
    agreement.add("worker-0", found)
    agreement.check()  # the other one may still come
    agreement.add("worker-1", found)
    with pytest.raises(PoolError, match=message):
        agreement.check()


def test_a_sweep_without_timings_needs_no_worker_that_times() -> None:
    stored = {key: facts(precision="float32")[key] for key in ("device", "numerics")}
    agreement = WorkerAgreement({"worker-0"}, Placement({}, None), stored)
    assert "generate" not in agreement.add("worker-0", facts("cuda (L4)", precision="float32"))
    agreement.check()


def test_a_store_without_numbers_needs_the_same_device() -> None:
    agreement = WorkerAgreement(set(), stored={"device": "cuda (A10G)"})
    assert "generate" in agreement.add("worker-0", facts("cuda (L4)", precision="float32"))
    assert "generate" not in agreement.add("worker-1", facts(precision="float32"))


def test_two_odd_workers_that_start_early_stop_nothing() -> None:
    """Six usual workers, one of which starts first; then two odd ones; then the other five."""
    usual, odd = {"kernels": "torch"}, {"kernels": "triton"}
    agreement = WorkerAgreement({f"worker-{n}" for n in range(8)})
    answers = [usual, odd, odd, *[usual] * 5]
    for n, answer in enumerate(answers):
        agreement.add(f"worker-{n}", answer | {"node": f"node-{n}"})
        agreement.check()
    few = WorkerAgreement({f"worker-{n}" for n in range(9)})
    for n in range(9):  # one node of eight workers, against two nodes of one worker each
        few.add(f"worker-{n}", (usual if n < 7 else odd) | {"node": f"node-{0 if n < 7 else n}"})
        if n < 8:
            few.check()
    with pytest.raises(PoolError, match="2 nodes agree"):
        few.check()
