"""`doctor --plan`: the memory, images and hours that a sweep needs on a kind of machine, without
running it.

Memory and work are counted by a dry run of the engine's own code on meta tensors
(`workers.loading.dry_run`). Time follows from a simple model of a GPU (`orchestrator.doctor.gpus`).
The plan lists every assumption.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property, partial
from itertools import islice
from typing import Any, Self

import torch

from orchestrator.doctor.checkup import describe_memory, memory_parts
from orchestrator.doctor.gpus import Gpu
from orchestrator.launch.inspection import models_entry
from orchestrator.replay.predict import random_settings
from orchestrator.run.timing import planned_sizes, session_of
from orchestrator.text import counted, describe_duration
from search_spaces.params import ConfigError
from search_spaces.sweep import SweepConfig
from search_spaces.trial import DecodingConfig
from workers.data.shards import MAX_SHAPES
from workers.loading.dry_run import Footprint, footprint, largest_batch
from workers.loading.models import Models
from workers.loading.models_yaml import shape_only_models
from workers.runtime.batch_size import IMAGES_PER_DECODE, automatic_batch
from workers.runtime.memory import format_bytes
from workers.runtime.peak_memory import heaviest_setting, network_bytes

_UNLIMITED = 2**63  # bytes, where the memory of a machine is unknown


@dataclass(frozen=True)
class Sessions:
    """The timing sessions of a sweep."""

    sizes: Sequence[int]  # settings of each, vanilla included
    images: int  # of a setting in a session at one batch size, repetitions included
    batches: Sequence[int]
    shapes: int  # the number of the trials' shapes, without vanilla's

    @classmethod
    def of(cls, sweep: SweepConfig, trials: int) -> Self:
        """The sessions of a resolved sweep if the search's trials are random ones of the space.

        Raises:
            ConfigError: too few captions.
        """
        timing = sweep.timing
        vanilla = DecodingConfig(sampling=sweep.sampling)
        configs = dict.fromkeys([vanilla, *(entry.config for entry in sweep.enqueue)])
        found = (
            config for config, _ in random_settings(sweep, lambda config: config not in configs)
        )
        configs |= dict.fromkeys(islice(found, trials - len(configs)))
        shapes = len({config.shape for config in configs} - {vanilla.shape})
        sizes = planned_sizes(sweep, list(configs)[:trials], min(shapes, MAX_SHAPES))
        if not sizes:
            return cls((), 0, (), shapes)
        try:
            session = session_of(sweep, [vanilla], sweep.captions.count)
        except ValueError as error:
            raise ConfigError(("timing",), str(error)) from None
        return cls(sizes, session.images * timing.repetitions, timing.batches, shapes)

    @property
    def timed_images(self) -> int:
        """Images of all settings at all batch sizes, at most."""
        return sum(self.sizes) * self.images * len(self.batches)

    def seconds(self, small: Mapping[int, float], plain: Mapping[int, float]) -> float:
        """Seconds of all sessions, from those of an image of a setting and of vanilla at each batch
        size. Each setting first generates a batch that is not timed.
        """
        count = len(self.sizes)
        others = sum(self.sizes) - len(self.sizes)
        return sum(
            (self.images + batch) * (count * plain[batch] + others * small[batch])
            for batch in self.batches
        )


@dataclass(frozen=True)
class Workload:
    """What a sweep's trials cost, if each except vanilla is like the heaviest setting."""

    sweep: SweepConfig
    label: str  # of the heaviest setting
    config: DecodingConfig  # the heaviest setting
    shapes: Models
    batches: dict[str, int]  # of timing (the largest one), quality and decoding to pixels
    small: Mapping[int, Footprint]  # of the setting in timing sessions, by batch
    plain: Mapping[int, Footprint]  # of vanilla in timing sessions, by batch
    big: Footprint  # of the setting at the batch of quality
    slow: Footprint  # of vanilla at the batch of quality
    images: dict[str, int]  # see `_image_counts`
    notes: list[str]

    @classmethod
    def of(cls, sweep: SweepConfig, shapes: Models, memory: int) -> Self:
        """The workload of a sweep whose trials are all like its heaviest setting. memory: bytes of
        a GPU for it.

        Raises:
            ConfigError: the models support none of the settings.
        """
        label, config, shapes, notes = heaviest_setting(sweep, shapes)
        batches = _batches(sweep)
        vanilla = DecodingConfig(sampling=sweep.sampling)
        timed = sweep.timing.batches
        small = {batch: footprint(shapes, config, batch, 1) for batch in timed}
        plain = {batch: footprint(shapes, vanilla, batch, 1) for batch in timed}
        big = footprint(shapes, config, batches["quality"], batches["pictures"]).with_graphs()
        while big.bytes > memory and batches["pictures"] > 1:
            batches["pictures"] //= 2  # as workers do when memory runs out
            big = footprint(shapes, config, batches["quality"], batches["pictures"]).with_graphs()
        slow = footprint(shapes, vanilla, batches["quality"], 1)
        return cls(
            sweep,
            label,
            config,
            shapes,
            batches,
            small,
            plain,
            big,
            slow,
            _image_counts(sweep),
            notes,
        )

    @cached_property
    def sessions(self) -> Sessions:
        """Raises ConfigError for too few captions."""
        return Sessions.of(self.sweep, self.images["trials"])

    @property
    def tokens(self) -> int:
        """Tokens of an image."""
        return self.shapes.target.grid.tokens

    def in_session(self, settings: int) -> Footprint:
        """The footprint of a timing session of so many settings, which all keep their caches and
        graphs.
        """
        return self.small[self.batches["timing"]].with_graphs(settings)

    def hours(self, gpu: Gpu, length: float, gpus: int = 1) -> dict[str, float]:
        """The sweep's hours at a mean accepted length of all trials except vanilla."""
        timed = {
            batch: gpu.seconds_per_image(self.small[batch], self.tokens / length, batch)
            for batch in self.small
        }
        plain = {
            batch: gpu.seconds_per_image(self.plain[batch], self.tokens, batch)
            for batch in self.plain
        }
        quality_image = gpu.seconds_per_image(
            self.big, self.tokens / length, self.batches["quality"]
        )
        vanilla_image = gpu.seconds_per_image(self.slow, self.tokens, self.batches["quality"])
        others = self.images["trials"] - 1
        made = gpu.seconds(self.big.picture) / self.batches["pictures"]
        total = self.images["quality"] * made + self.images["per trial"] * (
            vanilla_image + others * quality_image
        )
        total += self.sessions.seconds(timed, plain)
        return {
            "accepted length": length,
            "seconds per timed image": timed[self.batches["timing"]],
            "seconds per image": quality_image + made,
            "hours": total / 3600 / gpus,
        }


def models_for_plan(sweep: SweepConfig, device: str = "cuda") -> Models:
    """The sweep's models on the meta device, in the dtype of a kind of device: by their files, or
    by the published architecture.

    Raises:
        ValueError: no such entry or folder; a file is damaged; or nothing determines the
            architecture.
    """
    entry = models_entry(sweep, published=True)
    return shape_only_models(entry, entry.dtype_on(torch.device(device)))


def _with_batch(sweep: SweepConfig, shapes: Models, memory: int | None) -> SweepConfig:
    """A resolved sweep with the batch size of its heaviest setting in place of `auto`. memory:
    bytes of a GPU; None: a CPU.
    """
    if isinstance(sweep.quality.batch, int):
        return sweep
    _, config, shapes, _ = heaviest_setting(sweep, shapes)
    return replace(
        sweep, quality=replace(sweep.quality, batch=automatic_batch(shapes, config, memory))
    )


def _batches(sweep: SweepConfig) -> dict[str, int]:
    """Batch sizes of timing sessions, of quality shards, and of decoding tokens to pixels."""
    shard = min(sweep.quality.shard, sweep.captions.count) * sweep.quality.samples
    assert isinstance(sweep.quality.batch, int)  # see `_with_batch`
    return {
        "timing": max(sweep.timing.batches),
        "quality": min(sweep.quality.batch, shard),
        "pictures": min(IMAGES_PER_DECODE, shard),
    }


def _image_counts(sweep: SweepConfig) -> dict[str, int]:
    """The number of trials, and of their images, without those of timing sessions."""
    each = sweep.captions.count * sweep.quality.samples
    trials = sweep.budget.trials
    if sweep.budget.images is not None:
        trials = max(1, min(trials, -(-sweep.budget.images // each)))
    return {"trials": trials, "per trial": each, "quality": trials * each}


def plan(
    sweep: SweepConfig, shapes: Models, gpus: int, gpu: Gpu, accepted: float
) -> dict[str, Any]:
    """What a sweep of these models needs on `gpus` GPUs, or workers of a CPU, as plain data.

    accepted: mean accepted length of all trials except vanilla.

    Raises:
        ValueError: the models do not support the sweep's settings, or there are too few captions to
            time them.
    """
    target = shapes.target
    nets = network_bytes(sweep, models_entry(sweep, published=True))
    available = gpu.memory - gpu.reserved - nets if gpu.memory else _UNLIMITED
    sweep = sweep.resolve(target.sampling)
    sweep = _with_batch(sweep, shapes, available if gpu.has_graphs else None)
    work = Workload.of(sweep, shapes, available)
    batches = work.batches
    held = partial(_held, gpu)
    small = held(work.in_session(1))
    big = held(work.big)
    largest = max(work.sessions.sizes, default=1)
    session = held(work.in_session(largest))
    smallest = 0
    if work.sessions.sizes:  # two settings of a session must fit together
        smallest = held(work.in_session(min(2, largest))).bytes
    at, other = _at_another_batch(work)
    return {
        "sweep": sweep.name,
        "target": target.name,
        "models": str(sweep.models),
        "dtype": str(target.dtype).removeprefix("torch."),
        "heaviest setting": work.label,
        "batches": batches,
        "memory": {
            "timing": memory_parts(session),
            "quality": memory_parts(big),
            "metric nets": nets,
        },
        "fits": (max(big.bytes, smallest) <= available) if gpu.memory else None,
        "largest batch": min(
            largest_batch((at, needed(held(other))), (batches["quality"], needed(big)), available)
            for needed in (_tokens_bytes, partial(_pictures_bytes, pictures=small.pictures))
        ),
        "images": work.images | {"timing": work.sessions.timed_images},
        "timing sessions": {"count": len(work.sessions.sizes), "settings of the largest": largest},
        "target passes per image": {"vanilla": work.tokens, "assumed": work.tokens / accepted},
        "time": [work.hours(gpu, length, gpus) for length in dict.fromkeys((1.0, accepted))],
        "bound": "" if sweep.budget.plateau is None else "at most ",
        "gpus": gpus,
        "gpu": asdict(gpu) | {"memory": gpu.memory or None},
        "assumed": [
            *work.shapes.assumptions,
            *work.notes,
            *_assumptions(gpu, work, session.bytes <= available),
        ],
    }


def _held(gpu: Gpu, found: Footprint) -> Footprint:
    """A footprint on a device: a CPU has no CUDA graphs."""
    return found if gpu.has_graphs else replace(found, graphs=0)


def _at_another_batch(work: Workload) -> tuple[int, Footprint]:
    """A batch size other than that of quality, and the footprint there: two show how memory
    grows.
    """
    at = work.batches["timing"]
    if at != work.batches["quality"]:
        return at, work.in_session(1)
    return 2 * at, footprint(work.shapes, work.config, 2 * at, 1).with_graphs()


def _tokens_bytes(found: Footprint) -> int:
    """Peak memory while tokens are generated."""
    return replace(found, pictures=0).bytes


def _pictures_bytes(found: Footprint, pictures: int) -> int:
    """Peak memory while tokens are decoded to pixels, where decoding itself takes `pictures`
    bytes.
    """
    return replace(found, activations=0, pictures=pictures).bytes


def _assumptions(gpu: Gpu, work: Workload, fits_session: bool) -> list[str]:
    """The assumptions behind images and hours. fits_session: whether the largest timing session
    fits.
    """
    shapes = work.sessions.shapes
    sizes = work.sessions.sizes
    checks = work.sweep.quality.lossless == "check"
    timed = [
        f"the trials have {counted(shapes, 'shape')} besides vanilla's: those of `enqueue` and of "
        f"random settings of the space; {min(shapes, MAX_SHAPES)} of them are on the front"
    ]
    if not fits_session:
        timed.append(
            f"{max(sizes, default=1)} settings do not fit a timing session: each shape has one of "
            "its own"
        )
    not_included = "loading time and metric nets without files are not included"
    if gpu.reserved:
        not_included = (
            f"{format_bytes(gpu.reserved)} are reserved for the context and fragmentation of each "
            f"worker; {not_included}"
        )
    return [
        *(timed if sizes else []),
        gpu.assumption,
        f"every trial except vanilla costs as much as {work.label}, with full caches",
        *(["lossless trials draw as many images as others; most need fewer"] if checks else []),
        not_included,
    ]


def _describe_fit(found: Mapping[str, Any]) -> str:
    """Whether the sweep fits the memory, and the batches that would."""
    if found["fits"] is None:
        return "  fits        unknown: this system does not say how much memory it has"
    if found["fits"]:
        return f"  fits        as batches of up to {found['largest batch']} images do"
    if not found["largest batch"]:
        return "  DOES NOT FIT, nor would a batch of one image"
    batches = {key: found["batches"][key] for key in ("timing", "quality")}
    keys = [f"{key}.batch" for key, batch in batches.items() if batch > found["largest batch"]]
    if not keys:
        return "  DOES NOT FIT: two settings of a timing session do not fit together"
    return (
        f"  DOES NOT FIT; batches of up to {found['largest batch']} images would: lower "
        f"{' and '.join(keys)}"
    )


def describe_plan(found: Mapping[str, Any]) -> list[str]:
    """The plan as lines of text."""
    memory = found["memory"]
    images = found["images"]
    lines = [
        (
            f"{found['sweep']} on {found['gpus']} x {format_bytes(found['gpu']['memory'])} "
            f"({found['gpu']['name']})"
        ),
        (
            f"  target      {found['target']}, {found['dtype']}; heaviest setting: "
            f"{found['heaviest setting']}"
        ),
    ]
    sessions = found["timing sessions"]
    for kind, more in (
        ("timing", f", {counted(sessions['settings of the largest'], 'setting')}"),
        ("quality", ""),
    ):
        parts = memory[kind]
        lines.append(
            f"  memory      {kind}, batch {found['batches'][kind]}{more}: {describe_memory(parts)}"
        )
    if memory["metric nets"]:
        lines.append(f"  memory      metric nets: another {format_bytes(memory['metric nets'])}")
    lines += [
        _describe_fit(found),
        (
            f"  images      {found['bound']}{images['trials']} trials x {images['per trial']} = "
            f"{images['quality']:,}, and at most {images['timing']:,} in "
            f"{counted(sessions['count'], 'timing session')}"
        ),
    ]
    lines += [
        f"  duration    {found['bound']}{describe_duration(3600 * case['hours'])} at mean accepted "
        f"length {case['accepted length']:g} ({case['seconds per image']:.3g} s/image)"
        for case in found["time"]
    ]
    return [*lines, *(f"  assumed     {text}" for text in found["assumed"])]
