"""`doctor --plan`: what a sweep will need, before anything is bought or run: memory, images, hours on given GPUs.

Memory is that of the engine's own code on tensors without numbers (`workers.loading.dry_run`). Time follows from the
work that the same dry run counts and a plain model of a GPU: a step takes as long as the slowest of moving its
bytes, doing its arithmetic, and starting its kernels one by one. Each assumption is part of what is printed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from itertools import islice
from typing import Any

import torch

from orchestrator.run.resolve import resolve_sweep
from search_spaces.acceptance import neighbour_key
from search_spaces.params import ConfigError
from search_spaces.space import MOST_BRANCHES, resolve_config
from search_spaces.sweep import SweepConfig
from search_spaces.trial import DecodingConfig
from workers.evaluate import IMAGES_PER_DECODE
from workers.loading.dry_run import Footprint, Work, footprint, largest_batch
from workers.loading.models_yaml import BUILTIN_NAME, find_entry
from workers.loading.shape_only import ShapeOnlyModels, add_drafter, published_models, shape_only_models
from workers.metrics.extractors import weight_keys
from workers.metrics.registry import uses_timings

GIB = 2**30
BANDWIDTH_SHARE, COMPUTE_SHARE = 0.7, 0.5  # of what a GPU's data sheet promises
KERNEL_SECONDS = 10e-6  # to start one kernel from Python
RESERVE = 1 * GIB  # the device's context, and what the allocator cannot use


@dataclass(frozen=True, slots=True)
class Gpu:
    """memory: bytes. bandwidth: bytes a second. compute: 16-bit operations a second."""

    name: str
    memory: int
    bandwidth: float
    compute: float

    def seconds(self, work: Work) -> float:
        """For one step."""
        moving = work.moved / (self.bandwidth * BANDWIDTH_SHARE)
        return max(moving, work.flops / (self.compute * COMPUTE_SHARE), work.kernels * KERNEL_SECONDS)


#: By the makers' data sheets (dense bfloat16).
GPUS = (
    Gpu("RTX 3090", 24 * GIB, 936e9, 71e12),
    Gpu("A100 40 GB", 40 * GIB, 1555e9, 312e12),
    Gpu("L40S", 48 * GIB, 864e9, 362e12),
    Gpu("A100 80 GB", 80 * GIB, 2039e9, 312e12),
    Gpu("H200", 141 * GIB, 4800e9, 989e12),
)


def gpu_of(memory: float, bandwidth: float | None = None, compute: float | None = None) -> Gpu:
    """A GPU of so many GiB: as fast as the nearest known one, unless GB/s and TFLOP/s are given."""
    like = min(GPUS, key=lambda known: abs(known.memory - memory * GIB))
    return Gpu(
        f"as {like.name}",
        int(memory * GIB),
        like.bandwidth if bandwidth is None else bandwidth * 1e9,
        like.compute if compute is None else compute * 1e12,
    )


def plan(sweep: SweepConfig, shapes: ShapeOnlyModels, gpus: int, gpu: Gpu, accepted: float) -> dict[str, Any]:
    """What a sweep of these models will need on `gpus` GPUs, as plain data.

    accepted: tokens that a pass of the target emits on average in trials other than vanilla.

    Raises:
        ValueError: the models cannot serve the sweep's settings.
    """
    target = shapes.models.target
    sweep = resolve_sweep(sweep, target.sampling)
    nets = sum(shapes.metric_bytes.get(key, 0) for key in weight_keys(sweep.asked))
    label, config, shapes, notes = heaviest(sweep, shapes)
    batches = batches_of(sweep)
    models, pictures = shapes.models, batches["pictures"]
    small = footprint(models, config, batches["timing"], 1)
    big = footprint(models, config, batches["quality"], pictures)
    vanilla = DecodingConfig(sampling=sweep.sampling)
    plain = {kind: footprint(models, vanilla, batches[kind], 1) for kind in ("timing", "quality")}
    images, tokens = images_of(sweep), target.grid.tokens

    def hours(length: float) -> dict[str, float]:
        """The sweep's, at this many tokens a pass."""
        clocked = seconds(gpu, small, tokens / length, batches["timing"])
        drawn = seconds(gpu, big, tokens / length, batches["quality"])
        slow = {kind: seconds(gpu, plain[kind], tokens, batches[kind]) for kind in plain}
        others, made = images["trials"] - 1, gpu.seconds(big.picture) / pictures
        shots = sweep.timing.images * sweep.timing.repetitions * uses_timings(sweep.asked)
        total = images["quality"] * made + images["per trial"] * (slow["quality"] + others * drawn)
        total += shots * (slow["timing"] + others * (slow["timing"] + clocked))
        return {
            "accepted length": length,
            "seconds per timed image": clocked,
            "seconds per image": drawn + made,
            "hours": total / 3600 / gpus,
        }

    room = gpu.memory - RESERVE - nets
    other = small if batches["timing"] != batches["quality"] else footprint(models, config, 2 * batches["quality"], 1)
    at = batches["timing"] if other is small else 2 * batches["quality"]  # two batches say how memory grows
    return {
        "sweep": sweep.name,
        "target": target.name,
        "models": str(sweep.models),
        "dtype": str(target.dtype).removeprefix("torch."),
        "heaviest setting": label,
        "batches": batches,
        "memory": {"timing": memory_of(small), "quality": memory_of(big), "metric nets": nets},
        "fits": big.bytes <= room and (small.bytes <= room or not uses_timings(sweep.asked)),
        "largest batch": largest_batch((at, drawing(other)), (batches["quality"], drawing(big)), room),
        "images": images,
        "target passes per image": {"vanilla": tokens, "assumed": tokens / accepted},
        "time": [hours(1.0), *([hours(accepted)] if accepted != 1 else [])],
        "gpus": gpus,
        "gpu": asdict(gpu),
        "assumed": [*shapes.assumptions, *notes, *assumptions(gpu, label)],
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


def seconds(gpu: Gpu, found: Footprint, passes: float, batch: int) -> float:
    """For one of the images that are drawn together."""
    return (gpu.seconds(found.prefill) + passes * gpu.seconds(found.round)) / batch


def batches_of(sweep: SweepConfig) -> dict[str, int]:
    """Images that are drawn at once, of both kinds of shards, and turned into pixels at once."""
    shard = sweep.quality.shard * sweep.quality.samples
    return {
        "timing": min(sweep.timing.batch, sweep.timing.images),
        "quality": min(sweep.quality.batch, shard),
        "pictures": min(IMAGES_PER_DECODE, shard),
    }


def images_of(sweep: SweepConfig) -> dict[str, int]:
    """How many images a sweep draws, vanilla's turns at the timing included."""
    each, budget, timing = sweep.captions.count * sweep.quality.samples, sweep.budget, sweep.timing
    trials = budget.trials if budget.images is None else max(1, min(budget.trials, -(-budget.images // each)))
    shots = timing.images * timing.repetitions * uses_timings(sweep.asked)
    return {"trials": trials, "per trial": each, "quality": trials * each, "timing": shots * (2 * trials - 1)}


def drawing(found: Footprint) -> int:
    """Bytes while tokens are drawn."""
    return found.parameters + found.cache + found.activations


def memory_of(found: Footprint) -> dict[str, int]:
    """Bytes by what they are for, and the most at once."""
    kinds = ("parameters", "cache", "activations", "pictures", "bytes")
    return {("total" if kind == "bytes" else kind): getattr(found, kind) for kind in kinds}


def heaviest(sweep: SweepConfig, shapes: ShapeOnlyModels) -> tuple[str, DecodingConfig, ShapeOnlyModels, list[str]]:
    """Of all settings that a sweep may try, the one with the most drafted nodes; its label; what was left out and why.

    Raises:
        ConfigError: the models can serve none of them.
    """
    notes: dict[str, None] = {}
    best: tuple[str, DecodingConfig, ShapeOnlyModels] | None = None
    for label, config in sorted(settings_of(sweep), key=weight, reverse=True):
        found = add_drafter(shapes, config)
        if found is None:
            notes[f"settings of the {config.drafter.kind} drafter are left out: give its file"] = None
            continue
        best = (label, config, found)
        break
    if best is None:
        raise ConfigError(("space",), "no setting can be planned: give the drafters' files")
    return *best, list(notes)


def weight(setting: tuple[str, DecodingConfig]) -> tuple[int, int, int]:
    """How heavy a setting is: nodes, levels, columns of the neighbour table."""
    policy, table = setting[1].policy, neighbour_key(setting[1].acceptance)
    return policy.max_nodes, policy.max_depth, table[1] if table else 0


def settings_of(sweep: SweepConfig) -> Iterator[tuple[str, DecodingConfig]]:
    """The enqueued settings, and each branch of the space with all knobs at their highest that go together."""
    assert sweep.sampling is not None
    yield from ((entry.label, entry.config) for entry in sweep.enqueue)
    for branch in islice(sweep.space.branches(), MOST_BRANCHES):
        ends = [leaf.domain.corners() for leaf in branch.leaves]
        highest = [end[-1] for end in ends]
        for place in range(
            -1, len(ends)
        ):  # all at their highest; or, where these do not go together, one at its lowest
            values = [end[0] if at == place else high for at, (end, high) in enumerate(zip(ends, highest, strict=True))]
            try:
                yield "the largest of the space", resolve_config(branch.setting(values), sweep.sampling)
            except ConfigError:
                continue
            break


def assumptions(gpu: Gpu, label: str) -> list[str]:
    """What the hours rest on, in words."""
    return [
        f"each GPU moves {gpu.bandwidth / 1e9:.0f} GB/s and computes {gpu.compute / 1e12:.0f} TFLOP/s ({gpu.name}); "
        f"{BANDWIDTH_SHARE:.0%} and {COMPUTE_SHARE:.0%} of that are reached; starting a kernel takes "
        f"{KERNEL_SECONDS * 1e6:.0f} µs; a step takes as long as the slowest of the three",
        f"every trial but vanilla costs as much as {label}, at full caches",
        f"{RESERVE / GIB:.0f} GiB of each GPU go to its context and to fragments; loading does not count, nor do "
        "metric nets whose files are not there",
    ]


def plan_in_words(found: Mapping[str, Any]) -> list[str]:
    """The plan as lines for a person."""
    memory, images = found["memory"], found["images"]
    lines = [
        f"{found['sweep']} on {found['gpus']} x {found['gpu']['memory'] / GIB:.0f} GiB ({found['gpu']['name']})",
        f"  target      {found['target']}, {found['dtype']}; heaviest setting: {found['heaviest setting']}",
    ]
    for kind in ("timing", "quality"):
        parts = memory[kind]
        shown = ", ".join(
            f"{name} {parts[name] / GIB:.2f}" for name in ("parameters", "cache", "activations", "pictures")
        )
        lines.append(f"  memory      {kind}, batch {found['batches'][kind]}: {parts['total'] / GIB:.2f} GiB ({shown})")
    if memory["metric nets"]:
        lines.append(f"  memory      metric nets, by their files: {memory['metric nets'] / GIB:.2f} GiB beside that")
    fit = "fits" if found["fits"] else "DOES NOT FIT"
    lines += [
        f"  {fit:<11} the largest batch that does is {found['largest batch']}",
        f"  images      {images['trials']} trials x {images['per trial']} = {images['quality']:,}, and "
        f"{images['timing']:,} that are timed",
    ]
    for time in found["time"]:
        lines.append(
            f"  hours       {time['hours']:.1f} if a pass emits {time['accepted length']:g} tokens on average "
            f"({time['seconds per image']:.3g} s an image)"
        )
    return [*lines, *(f"  assumed     {words}" for words in found["assumed"])]
