"""`doctor --plan`: the memory, images and hours that a sweep needs on a kind of machine, without running it.

Memory and work are counted by a dry run of the engine's own code on meta tensors (`workers.loading.dry_run`). Time
follows from a simple model of a GPU: a pass takes as long as the slowest of moving its bytes, computing, and launching
its kernels one by one. The plan lists every assumption.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from itertools import islice
from typing import Any, Self

import torch

from orchestrator.doctor.checkup import describe_memory, memory_parts
from orchestrator.results.text import describe_duration
from search_spaces.params import ConfigError
from search_spaces.space import MAX_CHECKED_BRANCHES
from search_spaces.sweep import SweepConfig
from search_spaces.trial import DecodingConfig
from workers.loading.dry_run import Footprint, Work, footprint, largest_batch
from workers.loading.models import Models
from workers.loading.models_yaml import (
    BUILTIN_NAME,
    Entry,
    add_drafter,
    find_entry,
    metric_bytes,
    published_entry,
    shape_only_models,
)
from workers.metrics.registry import uses_timings, weight_keys
from workers.runtime.loaded import IMAGES_PER_DECODE
from workers.runtime.memory import RESERVED_BYTES, format_bytes

GIB = 2**30
BANDWIDTH_SHARE, COMPUTE_SHARE = 0.7, 0.5  # reached shares of a data sheet's figures
KERNEL_LAUNCH_S = 10e-6  # from Python


@dataclass(frozen=True, slots=True)
class Gpu:
    """memory: bytes. bandwidth: bytes/s. compute: 16-bit operations/s."""

    name: str
    memory: int
    bandwidth: float
    compute: float

    def seconds(self, work: Work) -> float:
        """Seconds that a pass takes. The GPU moves bytes, computes and launches kernels at the same time."""
        moving, computing = work.moved / (self.bandwidth * BANDWIDTH_SHARE), work.flops / (self.compute * COMPUTE_SHARE)
        return max(moving, computing, work.kernels * KERNEL_LAUNCH_S)


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
        f"assumed as fast as {like.name}",
        int(memory * GIB),
        like.bandwidth if bandwidth is None else bandwidth * 1e9,
        like.compute if compute is None else compute * 1e12,
    )


@dataclass(frozen=True)
class Workload:
    """What a sweep's trials cost. label, config: the setting that every trial except vanilla is taken for. batches: of
    timing, quality and decoding to pixels. small, big: its footprints at the batches of timing and of quality; plain:
    vanilla's at both. images: see `_image_counts`.
    """

    sweep: SweepConfig
    label: str
    config: DecodingConfig
    shapes: Models
    batches: dict[str, int]
    small: Footprint
    big: Footprint
    plain: dict[str, Footprint]
    images: dict[str, int]
    notes: list[str]

    @classmethod
    def of(cls, sweep: SweepConfig, shapes: Models) -> Self:
        """The workload of a sweep whose trials are all like its heaviest setting.

        Raises:
            ConfigError: the models support none of the settings.
        """
        label, config, shapes, notes = _heaviest(sweep, shapes)
        batches, vanilla = _batches(sweep), DecodingConfig(sampling=sweep.sampling)
        small = footprint(shapes, config, batches["timing"], 1).with_graphs()
        big = footprint(shapes, config, batches["quality"], batches["pictures"]).with_graphs()
        plain = {kind: footprint(shapes, vanilla, batches[kind], 1) for kind in ("timing", "quality")}
        return cls(sweep, label, config, shapes, batches, small, big, plain, _image_counts(sweep), notes)

    @property
    def tokens(self) -> int:
        """Tokens of an image."""
        return self.shapes.target.grid.tokens

    @property
    def _timed_images(self) -> int:
        timing = self.sweep.timing
        return timing.images * timing.repetitions * uses_timings(self.sweep.requested_metrics)

    def hours(self, gpu: Gpu, length: float, gpus: int = 1) -> dict[str, float]:
        """The sweep's hours at a mean accepted length of all trials except vanilla, if all of them are timed."""
        timed_image = _seconds(gpu, self.small, self.tokens / length, self.batches["timing"])
        quality_image = _seconds(gpu, self.big, self.tokens / length, self.batches["quality"])
        slow = {kind: _seconds(gpu, self.plain[kind], self.tokens, self.batches[kind]) for kind in self.plain}
        others, made = self.images["trials"] - 1, gpu.seconds(self.big.picture) / self.batches["pictures"]
        total = self.images["quality"] * made + self.images["per trial"] * (slow["quality"] + others * quality_image)
        total += self._timed_images * (slow["timing"] + others * (slow["timing"] + timed_image))
        return {
            "accepted length": length,
            "seconds per timed image": timed_image,
            "seconds per image": quality_image + made,
            "hours": total / 3600 / gpus,
        }


def models_for_plan(sweep: SweepConfig) -> Models:
    """The sweep's models on the meta device, in the dtype of a GPU: by their files, or by the published architecture.

    Raises:
        ValueError: no such entry or folder; a file is damaged; or nothing determines the architecture.
    """
    entry = _entry(sweep)
    return shape_only_models(entry, entry.dtype_on(torch.device("cuda")))


def peak_bytes(sweep: SweepConfig) -> int:
    """Memory that the sweep's heaviest setting takes of a GPU, with the networks of its metrics.

    Raises:
        ValueError: see `models_for_plan`, `Workload.of`.
    """
    shapes = models_for_plan(sweep)
    return Workload.of(sweep.resolve(shapes.target.sampling), shapes).big.bytes + _network_bytes(sweep)


def _network_bytes(sweep: SweepConfig) -> int:
    """Size of the networks of the sweep's metrics, as far as their files exist. ValueError: no such entry or folder."""
    sizes = metric_bytes(_entry(sweep))
    return sum(sizes.get(key, 0) for key in weight_keys(sweep.requested_metrics))


def _entry(sweep: SweepConfig) -> Entry:
    models = sweep.models
    if models.name is not None and models.file == BUILTIN_NAME:
        return published_entry(models.name)
    return find_entry(models.file, models.name)


def _seconds(gpu: Gpu, found: Footprint, passes: float, batch: int) -> float:
    """Seconds for each image of a batch."""
    return (gpu.seconds(found.prefill) + passes * gpu.seconds(found.one_pass)) / batch


def _batches(sweep: SweepConfig) -> dict[str, int]:
    """Batch sizes of timing sessions, of quality shards, and of decoding tokens to pixels."""
    shard = sweep.quality.shard * sweep.quality.samples
    return {
        "timing": min(max(sweep.timing.batches), max(sweep.timing.images, 2 * max(sweep.timing.batches))),
        "quality": min(sweep.quality.batch, shard),
        "pictures": min(IMAGES_PER_DECODE, shard),
    }


def _image_counts(sweep: SweepConfig) -> dict[str, int]:
    """The number of images, including vanilla's in the timing sessions if all trials are timed."""
    each, budget, timing = sweep.captions.count * sweep.quality.samples, sweep.budget, sweep.timing
    trials = budget.trials if budget.images is None else max(1, min(budget.trials, -(-budget.images // each)))
    shots = timing.images * timing.repetitions * uses_timings(sweep.requested_metrics)
    return {"trials": trials, "per trial": each, "quality": trials * each, "timing": shots * (2 * trials - 1)}


def _heaviest(sweep: SweepConfig, shapes: Models) -> tuple[str, DecodingConfig, Models, list[str]]:
    """The config with the most drafted nodes that a sweep may try: label, config, models, notes on omitted configs.

    Raises:
        ConfigError: the models support none of the configs.
    """
    notes: dict[str, None] = {}
    for label, config in sorted(_configs(sweep), key=_weight, reverse=True):
        if (found := add_drafter(shapes, config)) is not None:
            return label, config, found, list(notes)
        notes[f"the plan omits the {config.drafter.kind} drafter, because its file is missing"] = None
    raise ConfigError(("space",), "no config can be planned: give the drafters' files")


def _weight(setting: tuple[str, DecodingConfig]) -> tuple[int, int, int]:
    """Sort key: nodes, levels, columns of the neighbour table."""
    policy, table = setting[1].policy, setting[1].acceptance.neighbourhood.table_key
    return policy.bounds.nodes, policy.bounds.depth, table[1] if table else 0


def _configs(sweep: SweepConfig) -> Iterator[tuple[str, DecodingConfig]]:
    """The enqueued configs, and the largest valid config of each branch of the space."""
    assert sweep.sampling is not None
    yield from ((entry.label, entry.config) for entry in sweep.enqueue)
    for branch in islice(sweep.space.branches(), MAX_CHECKED_BRANCHES):
        highest = [leaf.domain.corners[-1] for leaf in branch.leaves]
        with suppress(ConfigError):  # the sweep's sampling does not suit all branches
            yield "the largest of the space", branch.config(highest, sweep.sampling)


def plan(sweep: SweepConfig, shapes: Models, gpus: int, gpu: Gpu, accepted: float) -> dict[str, Any]:
    """What a sweep of these models needs on `gpus` GPUs, as plain data.

    accepted: mean accepted length of all trials except vanilla.

    Raises:
        ValueError: the models do not support the sweep's settings.
    """
    target = shapes.target
    sweep = sweep.resolve(target.sampling)
    nets = _network_bytes(sweep)
    work = Workload.of(sweep, shapes)
    batches, small, big, images, models = work.batches, work.small, work.big, work.images, work.shapes

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
        f"{KERNEL_LAUNCH_S * 1e6:.0f} µs; a pass takes as long as the slowest of the three",
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
        f"  {fit:<11} at batches of up to {found['largest batch']} images",
        f"  images      {images['trials']} trials x {images['per trial']} = {images['quality']:,}, and "
        f"about {images['timing']:,} in timing sessions if no two trials share their costs",
    ]
    lines += [
        f"  duration    {describe_duration(3600 * case['hours'])} at mean accepted length "
        f"{case['accepted length']:g} ({case['seconds per image']:.3g} s/image)"
        for case in found["time"]
    ]
    return [*lines, *(f"  assumed     {text}" for text in found["assumed"])]
