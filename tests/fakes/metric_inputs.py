"""Random inputs of metrics: correlated samples of captions, a baseline of the same captions, and real images."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from workers.metrics.definition import FEATURES
from workers.metrics.estimate import Estimate
from workers.metrics.metric import TIMING_KEYS, MetricInputs, ReferenceFeatures, Rows
from workers.metrics.networks import SCORERS, ScoreContext, Scorer
from workers.metrics.registry import compute_metrics

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
    return keys(captions, samples) | {
        "features": ((0.8 * shared + 0.6 * torch.randn(n, DIM, generator=generator)) * scale + shift).half(),
        "score.clip_score": shared[:, 0] / 10 + torch.rand(n, generator=generator),
        "score.caption_accuracy": torch.rand(n, generator=generator),
        "emitted": torch.full((n,), 143),
        "rounds": rounds,
        "depth": 143 / rounds,
    }


def keys(captions: int, samples: int = 1) -> dict[str, Tensor]:
    """The columns that say which image a row is: captions 0, 1, ... in the order of the sweep."""
    caption = torch.arange(captions).repeat_interleave(samples)
    return {"caption_id": caption, "position": caption, "sample": torch.arange(samples).repeat(captions)}


def timings(pairs: int, seed: int = 0) -> dict[str, Tensor]:
    """Rows of `pairs` (caption batch, repetition) pairs, four repetitions each."""
    noise = torch.rand(2, pairs, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return {
        "caption_id": torch.arange(pairs) // 4,
        "repetition": torch.arange(pairs) % 4,
        "images": torch.full((pairs,), 2),
        "seconds_vanilla": 3 + noise[0],
        "prefill_vanilla": torch.full((pairs,), 0.1),
        "passes_vanilla": torch.full((pairs,), 143),
        "seconds": 1.5 + 0.2 * noise[1],
        "prefill": torch.full((pairs,), 0.2),
        "passes": torch.full((pairs,), 50),
    }


def reference(count: int = 500, seed: int = 9) -> ReferenceFeatures:
    return ReferenceFeatures(torch.randn(count, DIM, generator=torch.Generator().manual_seed(seed)).half())


def trial_inputs(captions: int = 60, samples: int = 2) -> MetricInputs:
    """A trial with all inputs but a classifier."""
    return MetricInputs(
        images=Rows(columns(captions, samples, seed=1, shift=0.1, scale=1.1)),
        baseline=Rows(columns(captions, samples, seed=1)),
        timings=Rows(timings(12), TIMING_KEYS),
        own_timings=Rows(timings(12), TIMING_KEYS),
        references={FEATURES: reference()},
    )


def fid_of(images: Rows, real: ReferenceFeatures) -> Estimate:
    """The metric `fid`."""
    return compute_metrics(MetricInputs(images=images, references={FEATURES: real}), ["fid"])[0]["fid"]


def mean_score(name: str, scores: Tensor) -> Estimate:
    """The metric of a per-image score [n], each image of a caption of its own."""
    rows = Rows(keys(len(scores)) | {f"score.{name}": scores})
    return compute_metrics(MetricInputs(images=rows), [name])[0][name]


def load_scorer(name: str, weights: Mapping[str, Path]) -> Scorer:
    """A per-image score on a user's weights, as a sweep of 48-pixel images with free captions loads it."""
    context = ScoreContext(
        image_size=48,
        captions=("a dog",),
        folder=Path("none"),
        device=torch.device("cpu"),
        weights={key: str(path) for key, path in weights.items()},
    )
    return SCORERS.all()[name].load_for(context)


def paler_and_red(images: Tensor) -> Tensor:
    """Images [n, 3, H, W] with a strong shift of colour."""
    return 0.3 * images + torch.tensor([0.7, 0.0, 0.0]).view(3, 1, 1)
