"""The numbers of a row are of what their names say."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from benchmarks.gpu import clock, kernels, memory, plan, precision, speed
from benchmarks.gpu import graphs as graphs_part
from benchmarks.gpu.models import XL, random_models
from benchmarks.gpu.record import Setup
from search_spaces.acceptance import AcceptanceRule
from search_spaces.presets import preset
from tests.fakes import tape
from workers.decoding import graphs
from workers.decoding.engine import Engine
from workers.decoding.state import Request
from workers.loading.models import Models
from workers.runtime.timing import time_images

CPU, CUDA = Setup(torch.device("cpu"), is_tiny=True), Setup(torch.device("cuda"), is_tiny=True)


@pytest.fixture(scope="module")
def models() -> Models:
    return random_models(CPU, XL)


def test_seconds_are_of_a_finished_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a device that runs behind its launches: the clock stops after it is idle, and the mean is
    of one call.
    """
    device = SimpleNamespace(now=0.0, busy_until=0.0)

    def launch() -> None:
        device.now += 1
        device.busy_until = max(device.busy_until, device.now) + 10

    def wait(_: torch.device) -> None:
        device.now = max(device.now, device.busy_until)

    monkeypatch.setattr(clock, "synchronize", wait)
    monkeypatch.setattr(time, "perf_counter", lambda: device.now)
    assert clock.seconds_of(launch, Setup(CPU.device, is_tiny=False))["eager_s"] == pytest.approx(
        10, rel=0.02
    )
    assert clock.seconds_of(launch, CPU, is_first=True)["eager_s"] == 11


def test_rows_of_all_seeds_are_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel is wrong for the first seed alone."""
    path, count, residual = torch.zeros(32, 2), torch.ones(32), torch.ones(32, 4) / 4

    def inputs(*_: Any, seed: int, **__: Any) -> SimpleNamespace:
        found = path + 1 if seed == 0 else path
        return SimpleNamespace(
            plain=lambda: (path, count, residual), launch=lambda: lambda: (found, count, residual)
        )

    monkeypatch.setattr(kernels, "inputs", inputs)
    row = kernels.agreement(Setup(CPU.device, is_tiny=False), AcceptanceRule(), 4, sampled=False)
    assert row == {
        "rows": 32 * kernels.SEEDS,
        "differing": 32,
        "residual_error": 0.0,
        "mean_accepted": 1.0,
    }


def test_each_mode_runs_as_it_is_named(models: Models, monkeypatch: pytest.MonkeyPatch) -> None:
    """Static batches with graphs, static ones without, and batches that shrink."""
    monkeypatch.setattr(graphs.PassGraphs, "failure", None)
    monkeypatch.setattr(graphs, "are_supported", lambda device: True)
    monkeypatch.setattr(graphs, "CudaCapture", lambda device: tape.capture)
    tape.without_shortcuts(monkeypatch)
    step, found = Engine.step, dict[tuple[bool, bool], None]()

    def noted(self: Engine, batch: Any) -> Any:
        found[batch.static, graphs.PassGraphs.failure is None] = None
        return step(self, batch)

    monkeypatch.setattr(Engine, "step", noted)
    graphs_part.compare(lambda: models, "vanilla", 2, 2)
    assert list(found) == [(True, True), (True, False), (False, False)]


def test_pools_are_those_of_graphs_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    segments = [((0, 0), 500), ((0, 1), 30), ((0, 1), 10), ((2, 0), 2)]
    snapshot = [{"segment_pool_id": pool, "total_size": size} for pool, size in segments] + [
        {"total_size": 1000}
    ]
    monkeypatch.setattr(torch.cuda, "memory_snapshot", lambda: snapshot)
    for name in ("memory_allocated", "memory_reserved", "max_memory_allocated"):
        monkeypatch.setattr(torch.cuda, name, lambda _: 0)
    row = memory.device_memory(CUDA)
    assert (row["pools"], row["pool_bytes"]) == (2, 42)


def test_seconds_of_an_image_are_a_share_of_its_batch(
    models: Models, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        plan, "time_images", lambda *arguments: (0.0, 8.0, time_images(*arguments)[2])
    )
    assert plan.images(CPU, lambda: models, "vanilla", 2)["eager_image_s"] == 4.0


def test_greedy_images_need_no_random_numbers(
    models: Models, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So images of one caption are equal whatever their numbers are, and a method has vanilla's,
    but for rounding.
    """
    numbers = iter(range(4))
    monkeypatch.setattr(
        precision, "held_out_requests", lambda *_: [Request(next(numbers), "a dog")]
    )
    found = [
        precision.greedy(lambda: models, preset(name), 1)
        for name in ("vanilla", "vanilla", "eagle2", "eagle2")
    ]
    assert all(tokens.equal(found[0]) for tokens in found)


def test_rates_are_of_all_images(models: Models, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three steps of a batch of two, each image with six tokens after them."""
    steps = [speed.Step(seconds, 10, 4.0) for seconds in (1.0, 2.0, 3.0)]
    monkeypatch.setattr(speed, "decode", lambda *_: (steps, 6))
    row = speed.measure(CPU, XL, lambda: models, preset("eagle1"), 2, bandwidth=20.0)
    assert (row["tokens_per_second"], row["tokens_per_step"]) == (2.0, 2.0)
    assert (row["step_s"], row["floor_s"], row["times_floor"]) == (2.0, 0.5, 4.0)
