"""The model of a GPU that plans use, and which known one a device is taken for."""

from __future__ import annotations

import pytest
import torch

from orchestrator.doctor.cpu import Cpu
from orchestrator.doctor.gpus import Gpu, gpu_of
from workers.loading.dry_run import Work


def test_a_step_takes_as_long_as_its_slowest_part() -> None:
    gpu = Gpu("g", 1 << 30, 1e9, 1e12)
    assert gpu.seconds(Work(flops=0, moved=7_000_000_000, kernels=1)) == pytest.approx(10)
    assert gpu.seconds(Work(flops=10**12, moved=1, kernels=1)) == pytest.approx(2)
    assert gpu.seconds(Work(flops=1, moved=1, kernels=1000)) == pytest.approx(0.01)
    assert gpu_of(24).name == "assumed as fast as RTX 3090"
    assert gpu_of(80, bandwidth=3350, compute=990).compute == 990e12


def test_a_cpu_begins_each_operation_after_the_one_before() -> None:
    cpu = Cpu("c", 1 << 30, bandwidth=1e9, compute=1e10, operation_s=1e-5)
    work = Work(flops=2 * 10**10, moved=10**9, kernels=1000)
    assert cpu.seconds(work) == pytest.approx((0.01 + 2) / 0.45)
    threads = torch.get_num_threads()
    here = Cpu.here()
    assert torch.get_num_threads() == threads
    assert here.compute > 1e8
    assert here.bandwidth > 1e8
    assert 0 < here.operation_s < 0.01


@pytest.mark.parametrize(
    ("device", "memory", "like"),
    [
        ("NVIDIA H100 80GB HBM3", 79.1, "H100"),
        ("NVIDIA H100 NVL", 93.6, "H100"),
        ("NVIDIA A100-SXM4-40GB", 39.4, "A100 40 GB"),
        ("NVIDIA A100-SXM4-80GB", 79.2, "A100 80 GB"),
        ("NVIDIA GeForce RTX 3090", 23.7, "RTX 3090"),
        ("NVIDIA RTX A6000", 47.5, "L40S"),
        ("", 80.0, "A100 80 GB"),
    ],
)
def test_a_device_is_taken_for_a_known_one_of_its_kind(
    device: str, memory: float, like: str
) -> None:
    found = gpu_of(memory, device=device)
    assert found.name == f"assumed as fast as {like}"
    assert found.memory == int(memory * 2**30)
