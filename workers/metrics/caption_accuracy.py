"""Caption accuracy: the share of a caption's attributes that the scenes' feature extractor finds in the image."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor

from workers.metrics.features import BUILTIN, SceneFeatures, load_features
from workers.metrics.networks import ScoreContext, Scorer, own_or_builtin, register_score
from workers.scenes.captions import SLOTS, parse

_NAMES = [name for name, _ in SLOTS]
_RELATION, _POSITION = _NAMES.index("relation"), _NAMES.index("position")
_SECOND = [i for i, name in enumerate(_NAMES) if name.startswith("second_")]


def applicable(rows: Tensor) -> Tensor:
    """Which attributes count, bool [n, slots], of the scenes in `rows` [n, slots], which hold an index into each slot's
    values (see `SLOTS`): a single object has no second one, and a pair has no position.

    Otherwise the four attributes of a second object would count as right in every image of one object, although
    "relation" already says that there is none.
    """
    single = rows[:, _RELATION] == 0  # the first value is "none"
    counted = torch.ones(rows.shape, dtype=torch.bool)
    counted[:, _POSITION] = single
    counted[:, _SECOND] = ~single[:, None]
    return counted


def image_accuracies(extractor: SceneFeatures, features: Tensor, captions: Sequence[str]) -> Tensor:
    """Share [n] of each caption's attributes that the extractor reads correctly from its image's features [n, d].

    An attribute that the caption does not mention counts at its default ("a red circle" is large, plain, centred, on
    smooth grey), because the target is conditioned on exactly that.

    Raises:
        ValueError: a caption is not one of a scene.
    """
    rows = torch.tensor([parse(text) for text in captions], dtype=torch.int64).view(-1, len(SLOTS))
    counted = applicable(rows)
    with torch.no_grad():
        is_correct = extractor.read(features.to(extractor.project.weight)).cpu() == rows
    return (is_correct & counted).sum(1) / counted.sum(1)


def _load(context: ScoreContext) -> Scorer:
    extractor = load_features(own_or_builtin(context.folder, BUILTIN)).to(context.device)
    context.require_scenes("the scenes' feature extractor", extractor.side)
    return Scorer(extractor.identity, partial(image_accuracies, extractor), extractor)


register_score(
    "caption_accuracy",
    unit="share",
    about="Share of a scene's attributes in the caption that the feature extractor finds in the image",
    load=_load,
)
