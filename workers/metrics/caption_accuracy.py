"""Caption accuracy: the share of a caption's attributes that the scenes' feature extractor finds in
the image.

Three of its kinds have metrics of their own, computed from stored features, as GenEval (Ghosh et
al. 2023) asks a detector for the number of objects, their colours and where one is to another. Here
captions and classifier are those of scenes, so no value is comparable with GenEval's.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor

from workers.metrics.definition import ATTRIBUTES, FEATURES
from workers.metrics.estimate import Estimate, MetricUnavailable, block_mean, ratio_estimate
from workers.metrics.features import BUILTIN, SceneFeatures, load_features
from workers.metrics.metric import POSITION, MetricInputs, register_metric
from workers.metrics.networks import ScoreContext, Scorer, own_or_builtin, register_score
from workers.scenes.captions import SLOT_INDEX, SLOTS, parse

_NAMES = [name for name, _ in SLOTS]
_RELATION = SLOT_INDEX["relation"]
_POSITION = SLOT_INDEX["position"]
_SECOND = [i for i, name in enumerate(_NAMES) if name.startswith("second_")]


def applicable(rows: Tensor) -> Tensor:
    """Which attributes count, bool [n, slots], of the scenes in `rows` [n, slots], which hold an
    index into each slot's values (see `SLOTS`): a single object has no second one, and a pair has
    no position.

    Otherwise the four attributes of a second object would count as right in every image of one
    object, although "relation" already says that there is none.
    """
    single = rows[:, _RELATION] == 0  # the first value is "none"
    counted = torch.ones(rows.shape, dtype=torch.bool)
    counted[:, _POSITION] = single
    counted[:, _SECOND] = ~single[:, None]
    return counted


def image_accuracies(extractor: SceneFeatures, features: Tensor, captions: Sequence[str]) -> Tensor:
    """Share [n] of each caption's attributes that the extractor reads correctly from its image's
    features [n, d].

    An attribute that the caption does not mention counts at its default ("a red circle" is large,
    plain, centred, on smooth grey), because the target is conditioned on exactly that.

    Raises:
        ValueError: a caption is not one of a scene.
    """
    read, rows = _read(extractor, features, captions)
    counted = applicable(rows)
    return ((read == rows) & counted).sum(1) / counted.sum(1)


def _read(
    extractor: SceneFeatures, features: Tensor, captions: Sequence[str]
) -> tuple[Tensor, Tensor]:
    """The attributes [n, slots] that the extractor reads, and the captions'."""
    rows = torch.tensor([parse(text) for text in captions], dtype=torch.int64).view(-1, len(SLOTS))
    with torch.no_grad():
        return extractor.read(features.to(extractor.project.weight)).cpu(), rows


def _load(context: ScoreContext) -> Scorer:
    extractor = load_features(own_or_builtin(context.folder, BUILTIN)).to(context.device)
    context.require_scenes("the scenes' feature extractor", extractor.side)
    return Scorer(extractor.identity, partial(image_accuracies, extractor), extractor)


register_score(
    "caption_accuracy",
    unit="share",
    about=(
        "Share of a scene's attributes in the caption that the feature extractor finds in the image"
    ),
    load=_load,
)


def _attributes(inputs: MetricInputs) -> tuple[Tensor, Tensor]:
    """The attributes [n, slots] read from the images' stored features, and their captions'."""
    extractor = inputs.classifier
    if not isinstance(extractor, SceneFeatures):
        raise MetricUnavailable("the feature extractor reads no attributes of scenes")
    captions = [inputs.captions[position] for position in inputs.column(POSITION).tolist()]
    return _read(extractor, inputs.column(FEATURES), captions)


def _share(inputs: MetricInputs, counted: Tensor) -> Estimate:
    """The share of the attributes `counted` [n, slots] that are right, over all images."""
    read, rows = inputs.cached("attributes", _attributes)
    return ratio_estimate(((read == rows) & counted).sum(1), counted.sum(1), inputs.blocks)


@register_metric(
    "caption_accuracy_count", direction="maximize", unit="share", needs=(FEATURES, ATTRIBUTES)
)
def caption_accuracy_count(inputs: MetricInputs) -> Estimate:
    """Share of images with the caption's number of objects, one or two, wherever they are."""
    read, rows = inputs.cached("attributes", _attributes)
    return block_mean(((read == 0) == (rows == 0))[:, _RELATION].double(), inputs.blocks)


@register_metric(
    "caption_accuracy_colour", direction="maximize", unit="share", needs=(FEATURES, ATTRIBUTES)
)
def caption_accuracy_colour(inputs: MetricInputs) -> Estimate:
    """Share of the colours of captions' objects that the feature extractor finds in the image."""
    colours = ("first_colour", "second_colour")
    others = [slot for slot, name in enumerate(_NAMES) if name not in colours]
    counted = applicable(inputs.cached("attributes", _attributes)[1])
    counted[:, others] = False
    return _share(inputs, counted)


@register_metric(
    "caption_accuracy_relation", direction="maximize", unit="share", needs=(FEATURES, ATTRIBUTES)
)
def caption_accuracy_relation(inputs: MetricInputs) -> Estimate:
    """Share of images of two objects where the first is left of the second or above it, as in the
    caption.
    """
    rows = inputs.cached("attributes", _attributes)[1]
    counted = torch.zeros(rows.shape, dtype=torch.bool)
    counted[:, _RELATION] = rows[:, _RELATION] != 0
    if not counted.any():
        raise MetricUnavailable("no caption has two objects")
    return _share(inputs, counted)
