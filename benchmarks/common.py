"""What the benchmarks share: the methods' rows, drawing with one setting, paired timing, and memory
that runs out.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

import torch
from torch import Tensor

from search_spaces.presets import CATALOGUE, PRESETS
from search_spaces.trial import DecodingConfig, Sampling
from workers.data.captions import read_captions
from workers.decoding.engine import Engine
from workers.decoding.state import Request
from workers.decoding.statistics import ImageStatistics
from workers.loading.models import Models
from workers.runtime.memory import OutOfMemory, guard_memory
from workers.runtime.timing import time_images
from workers.scenes.images import sample_captions

Output = TypeVar("Output")


@dataclass(frozen=True, slots=True)
class Drawn:
    """Images of one setting, in the order of their requests."""

    tokens: Tensor  # [n, image_len]
    statistics: list[ImageStatistics]
    # of the whole call, by the clock of timing sessions (see `workers.runtime.timing`)
    seconds: float
    wall: float  # the same by the wall clock

    @property
    def passes(self) -> float:
        """Target passes of an image, prefill excluded: the mean."""
        return statistics.fmean(s.passes for s in self.statistics)

    @property
    def mean_accepted_length(self) -> float:
        passes = sum(s.passes for s in self.statistics)
        return sum(int(s.emitted.sum()) for s in self.statistics) / passes

    @property
    def step_compression(self) -> float:
        return statistics.fmean(s.step_compression for s in self.statistics)

    @property
    def mean_tree_depth(self) -> float:
        return statistics.fmean(s.mean_tree_depth for s in self.statistics)

    def share(self, phase: str) -> float:
        """Seconds per image in a phase."""
        return statistics.fmean(s.seconds[phase] for s in self.statistics)


def engine_for(
    models: Models,
    config: DecodingConfig,
    *,
    batch: int,
    seed: int = 0,
    sampling: Sampling | None = None,
) -> Engine:
    """An engine for one setting of the built-in model."""
    if sampling is not None:
        config = replace(config, sampling=sampling)
    return Engine(
        models.target, config, models.drafters.get(config.drafter.kind), seed=seed, batch_size=batch
    )


def draw(engine: Engine, requests: Sequence[Request]) -> Drawn:
    """Draw every request; results in the requests' order."""
    seconds, wall, found = time_images(
        lambda requests: list(engine.run(requests)), requests, engine.device
    )
    results = {(r.request.caption_id, r.request.sample): r for r in found}
    ordered = [results[request.caption_id, request.sample] for request in requests]
    return Drawn(
        torch.stack([r.tokens for r in ordered]), [r.statistics for r in ordered], seconds, wall
    )


@dataclass(frozen=True, slots=True)
class Paired:
    """Speed-up over vanilla: the median of per-repetition ratios, and their range."""

    speedup: float
    low: float
    high: float
    latency: float  # s/image, median
    vanilla: float  # s/image, median
    drawn: Drawn


def paired_speedup(
    vanilla: Engine, method: Engine, requests: Sequence[Request], repetitions: int
) -> Paired:
    """Vanilla and the method in turn on the same captions in one process, after one unmeasured
    image each, by the clock of timing sessions.
    """
    warm = requests[: max(1, min(len(requests), method.batch_size))]
    draw(vanilla, warm), draw(method, warm)
    slow, fast, drawn = [], [], None
    for _ in range(repetitions):
        slow.append(draw(vanilla, requests).seconds / len(requests))
        drawn = draw(method, requests)
        fast.append(drawn.seconds / len(requests))
    assert drawn is not None
    ratios = [a / b for a, b in zip(slow, fast, strict=True)]
    return Paired(
        statistics.median(ratios),
        min(ratios),
        max(ratios),
        statistics.median(fast),
        statistics.median(slow),
        drawn,
    )


def held_out_requests(models: Models, count: int, seed: int = 1) -> list[Request]:
    """Requests for the captions of held-out scenes 0..count-1."""
    return [Request(index, caption) for index, caption in enumerate(sample_captions(seed, count))]


def folder_requests(folder: Path, count: int, seed: int = 1) -> list[Request]:
    """Requests for `count` captions of a folder of captioned images, which the seed selects.

    Raises:
        ValueError: see `read_captions`.
    """
    captions = read_captions(folder, count=count, seed=seed)
    return [Request(caption.id, caption.text) for caption in captions]


def chosen(names: Iterable[str] | None) -> dict[str, DecodingConfig]:
    """Presets by name; all of them for None."""
    return {name: PRESETS[name] for name in (names or CATALOGUE)}


def within_memory(work: Callable[[], Output]) -> Output | None:
    """The output of `work`; None if memory runs out."""
    try:
        return guard_memory(work, "this size")
    except OutOfMemory:
        return None
