"""What workers with given facts may do: draw, time, neither; and when their differences end a sweep."""

from __future__ import annotations

from typing import Any

import pytest

from orchestrator.run.agreement import WorkerAgreement
from orchestrator.run.placement import Placement
from orchestrator.run.tasks import PoolError


def facts(
    device: str = "cuda (A10G)", *, precision: str = "bfloat16", shift: float = 0.0, gpu: str = "", **other: Any
) -> dict[str, Any]:
    """Of a worker whose numbers are shifted against another's."""
    numerics = {"digest": f"{shift}", "logits": [0.0, 4.0 + 4.0 * shift], "features": [1.0]}
    labels = {"gpu": gpu} if gpu else {}
    found = {"device": device, "precision": precision, "kernels": "triton", "threads": 1, "node": device}
    return found | {"numerics": numerics, "labels": labels, **other}


@pytest.mark.parametrize(
    ("precision", "device", "shift", "draws", "times"),
    [
        ("bfloat16", "cuda (A10G)", 0.0, True, True),
        ("bfloat16", "cuda (A10G)", 1e-9, False, True),  # another driver, say: other bits
        ("bfloat16", "cuda (L4)", 0.0, False, False),  # equal by chance: other shapes use other kernels
        ("float32", "cuda (L4)", 1e-6, True, False),
        ("float32", "cuda (L4)", 1e-3, False, False),  # TF32
        ("float32", "cuda (A10G)", 1e-6, True, True),
    ],
)
def test_numbers_decide_who_draws_and_the_device_who_times(
    precision: str, device: str, shift: float, draws: bool, times: bool
) -> None:
    agreement = WorkerAgreement(set())
    first = agreement.add("worker-0", facts(precision=precision))
    assert (first.draws, first.times) == (True, True)
    roles = agreement.add("worker-1", facts(device, precision=precision, shift=shift))
    assert (roles.draws, roles.times) == (draws, times)


@pytest.mark.parametrize("key", ["models", "extractors", "captions", "precision", "kernels"])
def test_another_experiment_or_other_kernels_exclude_a_worker(key: str) -> None:
    agreement = WorkerAgreement(set())
    agreement.add("worker-0", facts() | {key: "first"})
    roles = agreement.add("worker-1", facts() | {key: "second"})
    assert not roles.draws
    assert not roles.times
    assert str(roles.drawing_problem).startswith(f"{key}: second")


@pytest.mark.parametrize("order", [(0, 1, 2), (1, 0, 2), (2, 1, 0)])
def test_labels_decide_who_may_draw_and_time_in_any_order(order: tuple[int, ...]) -> None:
    agreement = WorkerAgreement(set("abc"), Placement({"gpu": "h100"}, {"gpu": "a10g"}))
    workers = [
        (facts("cuda (H100)", gpu="h100"), (True, False)),
        (facts("cuda (A10G)", shift=0.01, gpu="a10g"), (False, True)),
        (facts("cuda (T4)", shift=0.02, gpu="t4"), (False, False)),
    ]
    for index in order:
        found, expected = workers[index]
        roles = agreement.add("abc"[index], found)
        assert (roles.draws, roles.times) == expected
    agreement.check()


def test_a_label_does_not_hide_another_device() -> None:
    agreement = WorkerAgreement(set(), Placement({}, {"gpu": "a10g"}))
    agreement.add("worker-0", facts(gpu="a10g"))
    assert not agreement.add("worker-1", facts("cuda (T4)", gpu="a10g")).times


def test_a_resumed_sweep_is_drawn_and_timed_as_it_began() -> None:
    """Whoever starts first; timings without labels stay on the device of the first worker."""
    first = facts(precision="float32")
    stored = {key: first[key] for key in ("device", "numerics")}
    agreement = WorkerAgreement({"a", "b"}, stored=stored)
    other = agreement.add("a", facts("cuda (L4)", precision="float32", shift=1e-6))
    assert (other.draws, other.times) == (True, False)
    same = agreement.add("b", first)
    assert (same.draws, same.times) == (True, True)
    agreement.check()


@pytest.mark.parametrize(
    ("placement", "found", "message"),
    [
        (Placement(), facts("cuda (L4)"), "draw"),
        (Placement(), facts("cuda (L4)", precision="float32"), "time"),
        (Placement({}, {"gpu": "a10g"}), facts(), "gpu=a10g"),
    ],
)
def test_a_sweep_that_nobody_can_draw_or_time_ends(placement: Placement, found: dict[str, Any], message: str) -> None:
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
    assert agreement.add("worker-0", facts("cuda (L4)", precision="float32")).draws
    agreement.check()


def test_a_store_without_numbers_needs_the_same_device() -> None:
    agreement = WorkerAgreement(set(), stored={"device": "cuda (A10G)"})
    assert not agreement.add("worker-0", facts("cuda (L4)", precision="float32")).draws
    assert agreement.add("worker-1", facts(precision="float32")).draws


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
