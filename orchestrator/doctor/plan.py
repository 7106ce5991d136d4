"""`doctor --plan`: the memory, images and hours that a sweep needs on a kind of machine, without running it.

Memory and work are counted by a dry run of the engine's own code on meta tensors (`workers.loading.dry_run`). Time
follows from a simple model of a machine: a pass on a GPU takes as long as the slowest of moving its bytes, computing,
and launching its kernels one by one; on a core of a CPU, which does one after the other, as long as all three. The plan
lists every assumption.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
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
BANDWIDTH_SHARE, COMPUTE_SHARE = 0.7, 0.5  # of the GPU's data sheet
KERNEL_LAUNCH_S = 10e-6  # from Python
LENGTHS = (1.5, 3.0)  # mean accepted lengths of most settings
_CALIBRATION_S = 0.1  # of each of a CPU's three measurements


@dataclass(frozen=True, slots=True)
class Gpu:
    """memory: bytes. bandwidth: bytes/s. compute: 16-bit operations/s. launch: seconds to launch a kernel. overlaps:
    whether it moves, computes and launches at the same time.
    """

    name: str
    memory: int
    bandwidth: float
    compute: float
    launch: float = KERNEL_LAUNCH_S
    overlaps: bool = True

    def seconds(self, work: Work) -> float:
        """Seconds that a pass takes."""
        moving, computing = work.moved / (self.bandwidth * BANDWIDTH_SHARE), work.flops / (self.compute * COMPUTE_SHARE)
        parts = (moving, computing, work.kernels * self.launch)
        return max(parts) if self.overlaps else sum(parts)


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


def this_core(memory: int) -> Gpu:
    """One core of this machine, measured: a copy, a matrix product, and many small additions."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        large, copy = torch.zeros(1 << 23), torch.ones(1 << 23)  # written once: a new page costs more than a copy
        square, small = torch.ones(384, 384), torch.ones(16)
        copied = 2 * large.nbytes / _seconds_per_call(lambda: copy.copy_(large))
        computed = 2 * 384**3 / _seconds_per_call(lambda: square @ square)
        launch = _seconds_per_call(lambda: small + small)
    finally:
        torch.set_num_threads(threads)
    # measured rates are reached: `seconds` takes a share of a data sheet's
    return Gpu("a core of this machine", memory, copied / BANDWIDTH_SHARE, computed / COMPUTE_SHARE, launch, False)


def _seconds_per_call(function: Callable[[], Any]) -> float:
    """The shortest of many calls: other processes only add to it."""
    end, shortest = time.perf_counter() + _CALIBRATION_S, float("inf")
    while (start := time.perf_counter()) < end:
        function()
        shortest = min(shortest, time.perf_counter() - start)
    return shortest


@dataclass(frozen=True)
class Workload:
    """What a sweep's trials cost. label, config: the setting that every trial except vanilla is taken for. batches: of
    timing, quality and decoding to pixels. small, big: its footprints at the batches of timing and quality shards;
    plain: vanilla's at both. images: see `_image_counts`. timed_trials: except vanilla.
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
    timed_trials: int
    notes: list[str]

    @classmethod
    def of(
        cls,
        sweep: SweepConfig,
        shapes: Models,
        *,
        heaviest: bool = True,
        plain: dict[str, Footprint] | None = None,
    ) -> Self:
        """The workload of a sweep whose trials are all like its heaviest setting, or its lightest with a drafter.

        plain: vanilla's footprints, if they are known.

        Raises:
            ConfigError: the models support none of the settings.
        """
        label, config, shapes, notes = _extreme(sweep, shapes, heaviest)
        batches, vanilla = _batches(sweep), DecodingConfig(sampling=sweep.sampling)
        small = footprint(shapes, config, batches["timing"], 1).with_graphs()
        big = footprint(shapes, config, batches["quality"], batches["pictures"]).with_graphs()
        if plain is None:
            plain = {kind: footprint(shapes, vanilla, batches[kind], 1) for kind in ("timing", "quality")}
        images = _image_counts(sweep)
        # those of equal shapes share their costs: at most all trials are timed, and at least the enqueued shapes
        enqueued = {entry.config.shape for entry in sweep.enqueue if not entry.config.is_vanilla}
        timed = images["trials"] - 1
        timed = timed if heaviest else min(timed, max(1, len(enqueued)) * sweep.timing.direct)
        return cls(sweep, label, config, shapes, batches, small, big, plain, images, timed, notes)

    @property
    def tokens(self) -> int:
        """Tokens of an image."""
        return self.shapes.target.grid.tokens

    def passes(self, length: float) -> float:
        """Target passes of the whole sweep at a mean accepted length, vanilla's and timing shards' included."""
        others = self.images["quality"] - self.images["per trial"]
        timed = self._timed_images * self.timed_trials  # and as many of vanilla's
        slow = self.images["per trial"] + self._timed_images + timed
        return self.tokens * (slow + (others + timed) / length)

    @property
    def _timed_images(self) -> int:
        timing = self.sweep.timing
        return timing.images * timing.repetitions * uses_timings(self.sweep.requested_metrics)

    def hours(self, gpu: Gpu, length: float, gpus: int = 1) -> dict[str, float]:
        """The sweep's hours at a mean accepted length of all trials except vanilla."""
        timed_image = _seconds(gpu, self.small, self.tokens / length, self.batches["timing"])
        quality_image = _seconds(gpu, self.big, self.tokens / length, self.batches["quality"])
        slow = {kind: _seconds(gpu, self.plain[kind], self.tokens, self.batches[kind]) for kind in self.plain}
        others, made = self.images["trials"] - 1, gpu.seconds(self.big.picture) / self.batches["pictures"]
        total = self.images["quality"] * made + self.images["per trial"] * (slow["quality"] + others * quality_image)
        total += self._timed_images * (slow["timing"] + self.timed_trials * (slow["timing"] + timed_image))
        return {
            "accepted length": length,
            "seconds per timed image": timed_image,
            "seconds per image": quality_image + made,
            "hours": total / 3600 / gpus,
        }


def forecast(sweep: SweepConfig, here: Gpu, cores: int) -> dict[str, Any]:
    """Images, target passes and hours of a sweep before it starts: ranges from the lightest setting at the larger of
    `LENGTHS` to the heaviest one at the smaller. hours: by kind of machine, this one with all of its cores.

    Raises:
        ValueError: see `models_for_plan`, `Workload.of`.
    """
    short, long = LENGTHS
    shapes = models_for_plan(sweep)
    resolved = sweep.resolve(shapes.target.sampling)
    heavy = Workload.of(resolved, shapes)
    light = Workload.of(resolved, shapes, heaviest=False, plain=heavy.plain)
    single = replace(here, bandwidth=here.bandwidth / 2)  # a CPU decodes in 32 bits, and these shapes have 16
    machines = {"this machine": (single, cores), **{gpu.name: (gpu, 1) for gpu in GPUS}}
    hours = {}
    for name, (gpu, count) in machines.items():
        ends = (light.hours(gpu, long, count)["hours"], heavy.hours(gpu, short, count)["hours"])
        hours[name] = min(ends), max(ends)
    return {"images": heavy.images, "target passes": (light.passes(long), heavy.passes(short)), "hours": hours}


def models_for_plan(sweep: SweepConfig) -> Models:
    """The sweep's models on the meta device, in the dtype of a GPU: by their files, or by the published architecture.

    Raises:
        ValueError: no such entry or folder; a file is damaged; or nothing determines the architecture.
    """
    entry = _entry(sweep)
    return shape_only_models(entry, entry.dtype_on(torch.device("cuda")))


def network_bytes(sweep: SweepConfig) -> int:
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


def _extreme(sweep: SweepConfig, shapes: Models, heaviest: bool) -> tuple[str, DecodingConfig, Models, list[str]]:
    """The config with the most drafted nodes that a sweep may try, or with the fewest but not none: label, config,
    models, notes on omitted configs.

    Raises:
        ConfigError: the models support none of the configs.
    """
    notes: dict[str, None] = {}
    best: tuple[str, DecodingConfig, Models] | None = None
    for label, config in sorted(_configs(sweep), key=_weight, reverse=heaviest):
        if not heaviest and config.is_vanilla:
            continue
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


def plan(sweep: SweepConfig, shapes: Models, gpus: int, gpu: Gpu, accepted: float) -> dict[str, Any]:
    """What a sweep of these models needs on `gpus` GPUs, as plain data.

    accepted: mean accepted length of all trials except vanilla.

    Raises:
        ValueError: the models do not support the sweep's settings.
    """
    target = shapes.target
    sweep = sweep.resolve(target.sampling)
    nets = network_bytes(sweep)
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
        f"  {fit:<11} largest batch that fits: {found['largest batch']}",
        f"  images      {images['trials']} trials x {images['per trial']} = {images['quality']:,}, and "
        f"at most {images['timing']:,} in timing shards",
    ]
    lines += [
        f"  duration    {describe_duration(3600 * case['hours'])} at mean accepted length "
        f"{case['accepted length']:g} ({case['seconds per image']:.3g} s/image)"
        for case in found["time"]
    ]
    return [*lines, *(f"  assumed     {text}" for text in found["assumed"])]
