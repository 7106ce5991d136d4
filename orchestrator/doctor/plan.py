"""`doctor --plan`: the memory, images and hours that a sweep needs on given GPUs, without running it.

Memory is that of the engine's own code on meta tensors (`workers.loading.dry_run`). Time follows from the work that the
same dry run counts and a simple model of a GPU: a step takes as long as the slowest of moving its bytes, computing, and
launching its kernels one by one. The plan lists every assumption.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from itertools import islice
from typing import Any

import torch

from orchestrator.doctor.checkup import describe_memory, memory_parts
from search_spaces.params import ConfigError
from search_spaces.space import MAX_CHECKED_BRANCHES
from search_spaces.sweep import SweepConfig
from search_spaces.trial import DecodingConfig
from workers.evaluate import IMAGES_PER_DECODE
from workers.loading.dry_run import Footprint, footprint, largest_batch
from workers.loading.meter import Work
from workers.loading.models_yaml import BUILTIN_NAME, find_entry
from workers.loading.shape_only import ShapeOnlyModels, add_drafter, published_models, shape_only_models
from workers.metrics.registry import uses_timings, weight_keys
from workers.runtime.memory import format_bytes

GIB = 2**30
_BANDWIDTH_SHARE, _COMPUTE_SHARE = 0.7, 0.5  # of the GPU's data sheet
_KERNEL_LAUNCH_S = 10e-6  # from Python
_RESERVED_BYTES = 1 * GIB  # CUDA context and fragmentation


@dataclass(frozen=True, slots=True)
class Gpu:
    """memory: bytes. bandwidth: bytes/s. compute: 16-bit operations/s."""

    name: str
    memory: int
    bandwidth: float
    compute: float

    def seconds(self, work: Work) -> float:
        """Of one step."""
        moving = work.moved / (self.bandwidth * _BANDWIDTH_SHARE)
        return max(moving, work.flops / (self.compute * _COMPUTE_SHARE), work.kernels * _KERNEL_LAUNCH_S)


#: From data sheets (dense bfloat16).
GPUS = (
    Gpu("RTX 3090", 24 * GIB, 936e9, 71e12),
    Gpu("A100 40 GB", 40 * GIB, 1555e9, 312e12),
    Gpu("L40S", 48 * GIB, 864e9, 362e12),
    Gpu("A100 80 GB", 80 * GIB, 2039e9, 312e12),
    Gpu("H200", 141 * GIB, 4800e9, 989e12),
)


def gpu_of(memory: float, bandwidth: float | None = None, compute: float | None = None) -> Gpu:
    """A GPU with this memory in GiB, as fast as the most similar known one unless GB/s and TFLOP/s are given."""
    like = min(GPUS, key=lambda known: abs(known.memory - memory * GIB))
    return Gpu(
        f"as {like.name}",
        int(memory * GIB),
        like.bandwidth if bandwidth is None else bandwidth * 1e9,
        like.compute if compute is None else compute * 1e12,
    )


def plan(sweep: SweepConfig, shapes: ShapeOnlyModels, gpus: int, gpu: Gpu, accepted: float) -> dict[str, Any]:
    """What a sweep of these models needs on `gpus` GPUs, as plain data.

    accepted: mean accepted length of all trials except vanilla.

    Raises:
        ValueError: the models do not support the sweep's settings.
    """
    target = shapes.models.target
    sweep = sweep.resolve(target.sampling)
    nets = sum(shapes.metric_bytes.get(key, 0) for key in weight_keys(sweep.requested_metrics))
    label, config, shapes, notes = _heaviest(sweep, shapes)
    batches = _batches(sweep)
    models, pictures = shapes.models, batches["pictures"]
    small = footprint(models, config, batches["timing"], 1)
    big = footprint(models, config, batches["quality"], pictures)
    vanilla = DecodingConfig(sampling=sweep.sampling)
    plain = {kind: footprint(models, vanilla, batches[kind], 1) for kind in ("timing", "quality")}
    images, tokens = _image_counts(sweep), target.grid.tokens

    def hours(length: float) -> dict[str, float]:
        """The sweep's hours at this mean accepted length."""
        timed_image = _seconds(gpu, small, tokens / length, batches["timing"])
        quality_image = _seconds(gpu, big, tokens / length, batches["quality"])
        slow = {kind: _seconds(gpu, plain[kind], tokens, batches[kind]) for kind in plain}
        others, made = images["trials"] - 1, gpu.seconds(big.picture) / pictures
        shots = sweep.timing.images * sweep.timing.repetitions * uses_timings(sweep.requested_metrics)
        total = images["quality"] * made + images["per trial"] * (slow["quality"] + others * quality_image)
        total += shots * (slow["timing"] + others * (slow["timing"] + timed_image))
        return {
            "accepted length": length,
            "seconds per timed image": timed_image,
            "seconds per image": quality_image + made,
            "hours": total / 3600 / gpus,
        }

    available = gpu.memory - _RESERVED_BYTES - nets
    other = small if batches["timing"] != batches["quality"] else footprint(models, config, 2 * batches["quality"], 1)
    at = batches["timing"] if other is small else 2 * batches["quality"]  # two batch sizes show how memory grows
    return {
        "sweep": sweep.name,
        "target": target.name,
        "models": str(sweep.models),
        "dtype": str(target.dtype).removeprefix("torch."),
        "heaviest setting": label,
        "batches": batches,
        "memory": {"timing": memory_parts(small), "quality": memory_parts(big), "metric nets": nets},
        "fits": big.bytes <= available and (small.bytes <= available or not uses_timings(sweep.requested_metrics)),
        "largest batch": largest_batch(
            (at, _decoding_bytes(other)), (batches["quality"], _decoding_bytes(big)), available
        ),
        "images": images,
        "target passes per image": {"vanilla": tokens, "assumed": tokens / accepted},
        "time": [hours(1.0), *([hours(accepted)] if accepted != 1 else [])],
        "gpus": gpus,
        "gpu": asdict(gpu),
        "assumed": [*shapes.assumptions, *notes, *_assumptions(gpu, label)],
    }


def models_for_plan(sweep: SweepConfig) -> ShapeOnlyModels:
    """The sweep's models on the meta device, in the dtype of a GPU: by their files, or by the published architecture.

    Raises:
        ValueError: no such entry or folder; a file is damaged; or nothing determines the architecture.
    """
    models = sweep.models
    if models.name is not None and models.file == BUILTIN_NAME:
        return published_models(models.name, torch.bfloat16)
    entry = find_entry(models.file, models.name)
    return shape_only_models(entry, entry.dtype_on(torch.device("cuda")))


def _seconds(gpu: Gpu, found: Footprint, passes: float, batch: int) -> float:
    """Per image of a batch."""
    return (gpu.seconds(found.prefill) + passes * gpu.seconds(found.round)) / batch


def _batches(sweep: SweepConfig) -> dict[str, int]:
    """Batch sizes of both kinds of shards, and of decoding tokens to pixels."""
    shard = sweep.quality.shard * sweep.quality.samples
    return {
        "timing": min(sweep.timing.batch, sweep.timing.images),
        "quality": min(sweep.quality.batch, shard),
        "pictures": min(IMAGES_PER_DECODE, shard),
    }


def _image_counts(sweep: SweepConfig) -> dict[str, int]:
    """The number of images, including vanilla's in the timing shards if all trials are timed."""
    each, budget, timing = sweep.captions.count * sweep.quality.samples, sweep.budget, sweep.timing
    trials = budget.trials if budget.images is None else max(1, min(budget.trials, -(-budget.images // each)))
    shots = timing.images * timing.repetitions * uses_timings(sweep.requested_metrics)
    return {"trials": trials, "per trial": each, "quality": trials * each, "timing": shots * (2 * trials - 1)}


def _decoding_bytes(found: Footprint) -> int:
    """Peak memory of decoding tokens."""
    return found.parameters + found.cache + found.activations


def _heaviest(sweep: SweepConfig, shapes: ShapeOnlyModels) -> tuple[str, DecodingConfig, ShapeOnlyModels, list[str]]:
    """The config with the most drafted nodes that a sweep may try: label, config, models, notes on omitted configs.

    Raises:
        ConfigError: the models support none of the configs.
    """
    notes: dict[str, None] = {}
    best: tuple[str, DecodingConfig, ShapeOnlyModels] | None = None
    for label, config in sorted(_configs(sweep), key=_weight, reverse=True):
        found = add_drafter(shapes, config)
        if found is None:
            notes[f"the plan omits the {config.drafter.kind} drafter, because its file is missing"] = None
            continue
        best = (label, config, found)
        break
    if best is None:
        raise ConfigError(("space",), "no config can be planned: give the drafters' files")
    return *best, list(notes)


def _weight(setting: tuple[str, DecodingConfig]) -> tuple[int, int, int]:
    """Sort key: nodes, levels, columns of the neighbour table."""
    policy, table = setting[1].policy, setting[1].acceptance.neighbourhood.table_key
    return policy.bounds.nodes, policy.bounds.depth, table[1] if table else 0


def _configs(sweep: SweepConfig) -> Iterator[tuple[str, DecodingConfig]]:
    """The enqueued configs, and the largest valid config of each branch of the space."""
    assert sweep.sampling is not None
    yield from ((entry.label, entry.config) for entry in sweep.enqueue)
    for branch in islice(sweep.space.branches(), MAX_CHECKED_BRANCHES):
        ends = [leaf.domain.corners for leaf in branch.leaves]
        highest = [end[-1] for end in ends]
        for lowest in range(-1, len(ends)):  # all fields at their highest; if that is invalid, one at its lowest
            pairs = enumerate(zip(ends, highest, strict=True))
            values = [end[0] if index == lowest else high for index, (end, high) in pairs]
            try:
                yield "the largest of the space", branch.config(values, sweep.sampling)
            except ConfigError:
                continue
            break


def _assumptions(gpu: Gpu, label: str) -> list[str]:
    """The assumptions behind the hours."""
    return [
        f"each GPU moves {gpu.bandwidth / 1e9:.0f} GB/s and computes {gpu.compute / 1e12:.0f} TFLOP/s ({gpu.name}); "
        f"{_BANDWIDTH_SHARE:.0%} and {_COMPUTE_SHARE:.0%} of that are reached; launching a kernel takes "
        f"{_KERNEL_LAUNCH_S * 1e6:.0f} µs; a step takes as long as the slowest of the three",
        f"every trial except vanilla costs as much as {label}, with full caches",
        f"{format_bytes(_RESERVED_BYTES)} of each GPU are reserved for its context and fragmentation; loading time and "
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
            f"  hours       {time['hours']:.1f} at mean accepted length {time['accepted length']:g} "
            f"({time['seconds per image']:.3g} s/image)"
        )
    return [*lines, *(f"  assumed     {text}" for text in found["assumed"])]
