"""Caption accuracy: the share of a caption's attributes that the feature net's heads read off the image."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from workers.metrics.estimate import Estimate, MetricUnavailable, grouped_mean, mean_estimate
from workers.metrics.features import SceneFeatures
from workers.metrics.metric import Metric, MetricInputs, ScoreContext, Scorer, ScorerFactory
from workers.scenes.captions import SLOTS, parse

_NAMES = [name for name, _ in SLOTS]
_RELATION, _POSITION = _NAMES.index("relation"), _NAMES.index("position")
_SECOND = [i for i, name in enumerate(_NAMES) if name.startswith("second_")]


def applicable(rows: Tensor) -> Tensor:
    """Which attributes count, bool [n, slots]: a lone object has no second one to describe, a pair has no position.

    Without this, every picture of one object would collect four attributes for not being two ("relation" tells that).
    """
    alone = rows[:, _RELATION] == 0
    counted = torch.ones(rows.shape, dtype=torch.bool)
    counted[:, _POSITION] = alone
    counted[:, _SECOND] = ~alone[:, None]
    return counted


def image_accuracies(net: SceneFeatures, features: Tensor, captions: Sequence[str]) -> Tensor:
    """Share [n] of each caption's attributes that is read from its image's features [n, d].

    What a caption leaves out counts at its stated default ("a red circle" is large, plain, centred, on smooth grey):
    just that is asked of the target.

    Raises:
        ValueError: a caption that is no scene's, or not one caption per image.
    """
    if len(features) != len(captions):
        raise ValueError(f"features of {len(features)} images and {len(captions)} captions: give one caption per image")
    rows = torch.tensor([parse(text) for text in captions], dtype=torch.int64).view(-1, len(SLOTS))
    counted = applicable(rows)
    with torch.no_grad():
        right = net.read(features.to(net.project.weight)).cpu() == rows
    return (right & counted).sum(1) / counted.sum(1)


def caption_accuracy(net: SceneFeatures, features: Tensor, captions: Sequence[str]) -> Estimate:
    """Mean over images of `image_accuracies`, with its standard error over images."""
    return mean_estimate(image_accuracies(net, features, captions))


def _load_score(subject: ScoreContext) -> Scorer:
    net = subject.net
    if net is None:
        raise MetricUnavailable("no net reads attributes off these images")
    try:
        for text in subject.captions:
            parse(text)
    except ValueError as error:
        raise MetricUnavailable(f"attributes are those of scenes: {error}") from None

    def read(images: Tensor, captions: Sequence[str], features: Tensor | None) -> Tensor:
        return image_accuracies(net, net.extract(images) if features is None else features, captions)

    return Scorer(net.identity, read)


def _compute(evidence: MetricInputs) -> Estimate:
    return grouped_mean(evidence.column("score.caption_accuracy"), evidence.column("caption_id"))


SCORERS = (ScorerFactory(name="caption_accuracy", load=_load_score),)
METRICS = (
    Metric(
        name="caption_accuracy",
        direction="maximize",
        unit="share",
        about="share of a scene's attributes that the feature net reads off its image as the caption says",
        needs=("score.caption_accuracy",),
        compute=_compute,
    ),
)
