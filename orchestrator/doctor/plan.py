"""`doctor --plan`: the memory, images and hours that a sweep needs on given GPUs, without running it.

Memory is that of the engine's own code on meta tensors; see `workload` for the hours. The plan lists every assumption.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from orchestrator.doctor.checkup import describe_memory, memory_parts
from orchestrator.doctor.workload import (
    BANDWIDTH_SHARE,
    COMPUTE_SHARE,
    KERNEL_LAUNCH_S,
    Gpu,
    Workload,
)
from orchestrator.results.describe import describe_duration
from search_spaces.sweep import SweepConfig
from workers.loading.dry_run import Footprint, footprint, largest_batch
from workers.loading.shape_only import ShapeOnlyModels
from workers.metrics.registry import uses_timings, weight_keys
from workers.runtime.memory import RESERVED_BYTES, format_bytes


def plan(sweep: SweepConfig, shapes: ShapeOnlyModels, gpus: int, gpu: Gpu, accepted: float) -> dict[str, Any]:
    """What a sweep of these models needs on `gpus` GPUs, as plain data.

    accepted: mean accepted length of all trials except vanilla.

    Raises:
        ValueError: the models do not support the sweep's settings.
    """
    target = shapes.models.target
    sweep = sweep.resolve(target.sampling)
    nets = sum(shapes.metric_bytes.get(key, 0) for key in weight_keys(sweep.requested_metrics))
    work = Workload.of(sweep, shapes)
    batches, small, big, images, models = work.batches, work.small, work.big, work.images, work.shapes.models

    available = gpu.memory - RESERVED_BYTES - nets
    other = (
        small
        if batches["timing"] != batches["quality"]
        else footprint(models, work.config, 2 * batches["quality"], 1).with_graphs()
    )
    at = batches["timing"] if other is small else 2 * batches["quality"]  # two batch sizes show how memory grows
    return {
        "sweep": sweep.name,
        "target": target.name,
        "models": str(sweep.models),
        "dtype": str(target.dtype).removeprefix("torch."),
        "heaviest setting": work.label,
        "batches": batches,
        "memory": {"timing": memory_parts(small), "quality": memory_parts(big), "metric nets": nets},
        "fits": big.bytes <= available and (small.bytes <= available or not uses_timings(sweep.requested_metrics)),
        "largest batch": largest_batch(
            (at, _decoding_bytes(other)), (batches["quality"], _decoding_bytes(big)), available
        ),
        "images": images,
        "target passes per image": {"vanilla": work.tokens, "assumed": work.tokens / accepted},
        "time": [work.hours(gpu, length, gpus) for length in dict.fromkeys((1.0, accepted))],
        "gpus": gpus,
        "gpu": asdict(gpu),
        "assumed": [*work.shapes.assumptions, *work.notes, *_assumptions(gpu, work.label)],
    }


def _decoding_bytes(found: Footprint) -> int:
    """Peak memory of decoding tokens."""
    return found.parameters + found.cache + found.graphs + found.activations


def _assumptions(gpu: Gpu, label: str) -> list[str]:
    """The assumptions behind the hours."""
    return [
        f"each GPU moves {gpu.bandwidth / 1e9:.0f} GB/s and computes {gpu.compute / 1e12:.0f} TFLOP/s ({gpu.name}); "
        f"{BANDWIDTH_SHARE:.0%} and {COMPUTE_SHARE:.0%} of that are reached; launching a kernel takes "
        f"{KERNEL_LAUNCH_S * 1e6:.0f} µs; a step takes as long as the slowest of the three",
        f"every trial except vanilla costs as much as {label}, with full caches",
        f"{format_bytes(RESERVED_BYTES)} of each GPU are reserved for its context and fragmentation; loading time and "
        "metric nets without files are not included",
    ]


def describe_plan(found: Mapping[str, Any]) -> list[str]:
    """The plan as lines of text."""
    memory, images = found["memory"], found["images"]
    lines = [
        f"{found['sweep']} on {found['gpus']} x {format_bytes(found['gpu']['memory'])} ({found['gpu']['name']})",
        f"  target      {found['target']}, {found['dtype']}; heaviest setting: {found['heaviest setting']}",
    ]
    for kind in ("timing", "quality"):
        parts = memory[kind]
        lines.append(f"  memory      {kind}, batch {found['batches'][kind]}: {describe_memory(parts)}")
    if memory["metric nets"]:
        lines.append(f"  memory      metric nets: another {format_bytes(memory['metric nets'])}")
    fit = "fits" if found["fits"] else "DOES NOT FIT"
    lines += [
        f"  {fit:<11} largest batch that fits: {found['largest batch']}",
        f"  images      {images['trials']} trials x {images['per trial']} = {images['quality']:,}, and "
        f"at most {images['timing']:,} in timing shards",
    ]
    for time in found["time"]:
        lines.append(
            f"  duration    {describe_duration(3600 * time['hours'])} at mean accepted length "
            f"{time['accepted length']:g} ({time['seconds per image']:.3g} s/image)"
        )
    return [*lines, *(f"  assumed     {text}" for text in found["assumed"])]
