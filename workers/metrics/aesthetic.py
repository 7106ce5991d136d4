"""Aesthetic score: LAION's improved predictor (sac+logos+ava1, V2), a linear head on CLIP ViT-L/14's image embedding.

`metrics.aesthetic` is its file (`sac+logos+ava1-l14-linearMSE.pth`), `metrics.clip_l14` the folder of OpenAI's CLIP
ViT-L/14 as Hugging Face lays it out; another CLIP of the same width would give numbers without meaning. Scores are
those of people who rated pictures from 1 to 10; the caption plays no part.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from workers.metrics.clip_files import AT_ONCE, Clip, combined_hash, folder_identity, load_clip_folder
from workers.metrics.estimate import Estimate, MetricUnavailable, grouped_mean
from workers.metrics.linear_head import LinearHead
from workers.metrics.metric import Metric, MetricInputs, ScoreContext, Scorer, ScorerFactory
from workers.metrics.pixels import squares
from workers.models.checkpoint_files import WeightsError, load_tensors
from workers.models.weights import KeyMapping, load_weights, skip_init

KEY, CLIP_KEY = "aesthetic", "clip_l14"


def load_head(path: Path, inputs: int) -> LinearHead:
    """The predictor of a weight file; frozen, in evaluation mode, fp32.

    Raises:
        WeightsError: the file is missing, damaged, or another model's; it is named.
    """
    head = skip_init(lambda: LinearHead(inputs))
    load_weights(head, load_tensors(path), [KeyMapping("{...}", "{...}")], where=path)
    return head.eval().requires_grad_(False)


@torch.no_grad()
def aesthetic_scores(clip: Clip, head: LinearHead, images: Tensor) -> Tensor:
    """Scores [n] of images [n, 3, H, W] in [0, 1], float32 on the CPU."""
    parts = [head(clip.embed_pictures(squares(part, None))).cpu() for part in torch.split(images, AT_ONCE)]
    return torch.cat(parts)


def _load_score(subject: ScoreContext) -> Scorer:
    if KEY not in subject.weights:
        raise MetricUnavailable(
            f"no weights are given for it: metrics.{KEY} (LAION's predictor) and metrics.{CLIP_KEY}"
        )
    if CLIP_KEY not in subject.weights:
        raise WeightsError(
            f"metrics.{KEY}: it reads the embeddings of CLIP ViT-L/14; give that one's folder as metrics.{CLIP_KEY} too"
        )
    path, folder = (Path(subject.weights[key]).expanduser() for key in (KEY, CLIP_KEY))
    clip = load_clip_folder(folder, texts=False).to(subject.device)
    head = load_head(path, clip.width).to(subject.device)

    def read(images: Tensor, captions: Sequence[str], features: Tensor | None) -> Tensor:
        return aesthetic_scores(clip, head, images)

    return Scorer(f"laion-aesthetic@{combined_hash([path])}+{folder_identity('clip', folder)}", read)


def _compute(evidence: MetricInputs) -> Estimate:
    return grouped_mean(evidence.column("score.aesthetic"), evidence.column("caption_id"))


SCORERS = (ScorerFactory(name="aesthetic", load=_load_score, takes=(KEY, CLIP_KEY)),)
METRICS = (
    Metric(
        name="aesthetic",
        direction="maximize",
        unit="points of 10",
        about="LAION's aesthetic predictor on CLIP ViT-L/14; the caption plays no part",
        needs=("score.aesthetic",),
        compute=_compute,
    ),
)
