"""Random inputs of metrics: correlated samples of captions, a baseline of the same captions, and
real images.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from search_spaces.trial import DecodingConfig, Sampling
from workers.data.records import write_shard
from workers.data.storage import Storage
from workers.metrics.definition import FEATURES
from workers.metrics.estimate import Estimate
from workers.metrics.metric import MetricInputs, ReferenceFeatures, Rows
from workers.metrics.networks import SCORERS, ScoreContext, Scorer
from workers.metrics.readings import Session
from workers.metrics.registry import compute_metrics
from workers.metrics.timings import (
    TIME_WORKER,
    Device,
    Load,
    PriceList,
    TimedSession,
    session_table,
)

DIM = 6


def columns(
    captions: int, samples: int = 1, *, seed: int = 0, shift: float = 0.0, scale: float = 1.0
) -> dict[str, Tensor]:
    """Rows of `captions` x `samples` images. Images of one caption share most of their features."""
    generator = torch.Generator().manual_seed(seed)
    n = captions * samples
    caption = torch.arange(captions).repeat_interleave(samples)
    shared = torch.randn(captions, DIM, generator=generator)[caption]
    passes = torch.randint(20, 60, (n,), generator=generator)
    return keys(captions, samples) | {
        "features": (
            ((0.8 * shared + 0.6 * torch.randn(n, DIM, generator=generator)) * scale + shift).half()
        ),
        "score.clip_score": shared[:, 0] / 10 + torch.rand(n, generator=generator),
        "score.caption_accuracy": torch.rand(n, generator=generator),
        "emitted": torch.full((n,), 143),
        "passes": passes,
        "depth": 143 / passes,
    }


def keys(captions: int, samples: int = 1) -> dict[str, Tensor]:
    """The columns that say which image a row is: captions 0, 1, ... in the order of the sweep."""
    caption = torch.arange(captions).repeat_interleave(samples)
    return {
        "caption_id": caption,
        "position": caption,
        "sample": torch.arange(samples).repeat(captions),
    }


VANILLA = DecodingConfig(sampling=Sampling())
CHAIN = DecodingConfig.from_mapping(
    {"drafter": "eagle", "tree": {"policy": "chain", "length": 3}}, Sampling()
)


def timed_session(
    costs: Mapping[DecodingConfig, Sequence[float]] | None = None, *, batch: int = 1, prefill: float = 0.2,
    device: str = "a processor", threads: int = 1, name: str = "timings/one.parquet", is_later: bool = False,
    started: str = "2026-01-01T00:00:00+00:00", call: str = "", host: str = "", load: Load | None = None,
) -> TimedSession:  # fmt: skip
    """A session of 143 passes of vanilla and 50 of the others. costs: of a pass of each on each
    unit, vanilla's first; by default 3 and 6 hundredths of a second with noise.
    """
    noise = np.random.default_rng(0).normal(0, 0.03, (2, 6))
    costs = costs or {VANILLA: list(0.03 * np.exp(noise[0])), CHAIN: list(0.06 * np.exp(noise[1]))}
    per_pass = np.array(list(costs.values()))
    passes = np.array(
        [[143.0 if config.is_vanilla else 50.0] * per_pass.shape[1] for config in costs]
    )
    prefills = np.full(per_pass.shape, prefill)
    shapes = tuple(config.shape for config in costs)
    settings = tuple(config.digest() for config in costs)
    session = Session(
        name, shapes, settings, prefills, per_pass, passes, prefills + passes * per_pass
    )
    return TimedSession(
        Device(device, threads),
        started,
        next(iter(costs)),
        {batch: session},
        is_later,
        call,
        host,
        load or Load(),
    )


def write_session(
    storage: Storage, costs: Mapping[DecodingConfig, Sequence[float]] | None = None, **options: Any
) -> None:
    """The file of such a session. options: of `timed_session`."""
    session = timed_session(costs, **options)
    ((batch, readings),) = session.readings.items()
    configs = list(costs or (VANILLA, CHAIN))
    clock = np.stack([readings.seconds, readings.passes], axis=-1)
    rows = [
        {
            "setting": setting,
            "caption_ids": [unit],
            "repetition": 0,
            "batch": batch,
            "turn": row,
            "prefill": 0.2,
            "seconds": clock[row, unit, 0],
            "wall": clock[row, unit, 0],
            "passes": clock[row, unit, 1],
        }
        for unit in range(readings.units)
        for row, setting in enumerate(readings.settings)
    ]
    facts = {
        "kind": "timing",
        "configs": [config.to_mapping() for config in configs],
        "started": session.started,
        "timed_on": session.device.name,
        "threads": session.device.threads,
        "clock": session.device.clock,
        "worker": TIME_WORKER if session.is_later else "worker-0",
        "call": session.call,
        "host": session.host,
        "load": session.load._asdict(),
    }
    write_shard(storage, readings.name, session_table(rows), facts)


def price_list(*sessions: TimedSession) -> PriceList:
    return PriceList(sessions)


def reference(count: int = 500, seed: int = 9) -> ReferenceFeatures:
    return ReferenceFeatures(
        torch.randn(count, DIM, generator=torch.Generator().manual_seed(seed)).half()
    )


def trial_inputs(captions: int = 60, samples: int = 2) -> MetricInputs:
    """A trial with all inputs but a classifier."""
    return MetricInputs(
        images=Rows(columns(captions, samples, seed=1, shift=0.1, scale=1.1)),
        baseline=Rows(columns(captions, samples, seed=1)),
        config=CHAIN,
        timings=price_list(timed_session()),
        references={FEATURES: reference()},
    )


def fid_of(images: Rows, real: ReferenceFeatures) -> Estimate:
    """The metric `fid`."""
    return compute_metrics(MetricInputs(images=images, references={FEATURES: real}), ["fid"])[0][
        "fid"
    ]


def mean_score(name: str, scores: Tensor) -> Estimate:
    """The metric of a per-image score [n], each image of a caption of its own."""
    rows = Rows(keys(len(scores)) | {f"score.{name}": scores})
    return compute_metrics(MetricInputs(images=rows), [name])[0][name]


def load_scorer(name: str, weights: Mapping[str, Path]) -> Scorer:
    """A per-image score on a user's weights, as a sweep of 48-pixel images with free captions loads
    it.
    """
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
