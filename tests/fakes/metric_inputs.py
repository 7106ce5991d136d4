"""Made-up columns of trials: correlated samples of a caption, a baseline beside them, real images."""

from __future__ import annotations

import torch
from torch import Tensor

from workers.metrics.metric import TIMING_KEYS, MetricInputs, Reference, Rows

DIM = 6


def columns(
    captions: int, samples: int = 1, *, seed: int = 0, shift: float = 0.0, scale: float = 1.0
) -> dict[str, Tensor]:
    """Rows of `captions` x `samples` images. Images of one caption share most of their features."""
    generator = torch.Generator().manual_seed(seed)
    n = captions * samples
    caption = torch.arange(captions).repeat_interleave(samples)
    shared = torch.randn(captions, DIM, generator=generator)[caption]
    rounds = torch.randint(20, 60, (n,), generator=generator)
    return {
        "caption_id": caption,
        "sample": torch.arange(samples).repeat(captions),
        "features": ((0.8 * shared + 0.6 * torch.randn(n, DIM, generator=generator)) * scale + shift).half(),
        "score.clip_score": shared[:, 0] / 10 + torch.rand(n, generator=generator),
        "score.caption_accuracy": torch.rand(n, generator=generator),
        "emitted": torch.full((n,), 143),
        "rounds": rounds,
        "depth": 143 / rounds,
    }


def timings(pairs: int, seed: int = 0) -> dict[str, Tensor]:
    """Rows of `pairs` (caption batch, repetition) pairs, four repetitions each."""
    noise = torch.rand(2, pairs, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return {
        "caption_id": torch.arange(pairs) // 4,
        "repetition": torch.arange(pairs) % 4,
        "images": torch.full((pairs,), 2),
        "seconds_vanilla": 3 + noise[0],
        "seconds": 1.5 + 0.2 * noise[1],
    }


def reference(count: int = 500, seed: int = 9) -> Reference:
    return Reference(torch.randn(count, DIM, generator=torch.Generator().manual_seed(seed)).half())


def evidence(captions: int = 60, samples: int = 2) -> MetricInputs:
    """A trial with everything but a feature net."""
    return MetricInputs(
        images=Rows(columns(captions, samples, seed=1, shift=0.1, scale=1.1)),
        baseline=Rows(columns(captions, samples, seed=1)),
        timings=Rows(timings(12), TIMING_KEYS),
        reference=reference(),
    )
