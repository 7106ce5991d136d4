"""Metrics of the images' tokens against vanilla's, which need neither pixels nor networks.

The tokens of a preview count as all others.
"""

from __future__ import annotations

from torch import Tensor

from workers.metrics.definition import BASELINE, TOKENS
from workers.metrics.estimate import (
    Estimate,
    MetricUnavailable,
    block_mean,
    block_sizes,
    with_left_out,
)
from workers.metrics.metric import MetricInputs, register_metric

_NEEDS = (TOKENS, BASELINE)


@register_metric("token_agreement", direction="maximize", unit="share", needs=_NEEDS, vanilla=1.0)
def token_agreement(inputs: MetricInputs) -> Estimate:
    """Share of an image's tokens that vanilla's image of the same caption and sample has at the
    same place.
    """
    same = inputs.column(TOKENS) == inputs.baseline_column(TOKENS)
    return block_mean(same.double().mean(1), inputs.blocks)


@register_metric(
    "token_drift", direction="minimize", unit="relative", needs=_NEEDS, vanilla=0.0, unbiased=True
)
def token_drift(inputs: MetricInputs) -> Estimate:
    """Squared distance of the images' code frequencies to those of vanilla's images of the same
    captions, over the squared length of vanilla's.

    Frequencies are over all places of an image. With d the difference of two images of a caption
    and v vanilla's, it is the mean of <d, d'> over that of <v, v'>, both over pairs of images from
    different blocks of captions: what images have in common because they share a caption or random
    numbers does not count, and the mean is 0 for equal distributions.
    """
    blocks = inputs.blocks
    sizes = block_sizes(blocks)
    if sizes.numel() < 3:
        raise MetricUnavailable("a distance of frequencies needs captions in 3 blocks: use more")
    tokens = inputs.column(TOKENS)
    vanilla = inputs.baseline_column(TOKENS)
    codes = 1 + int(max(tokens.max(), vanilla.max()))
    own = _counts(vanilla, blocks, codes)
    length = _products(own)
    if not bool((length > 0).all()):
        raise MetricUnavailable("vanilla's images of different captions share no code: use more")
    return Estimate.from_replicates(
        _products(_counts(tokens, blocks, codes) - own) / length, tokens.shape[0]
    )


def _counts(tokens: Tensor, blocks: Tensor, codes: int) -> Tensor:
    """How often each block has each code, [G, V], of tokens [n, N] of images in blocks [n]."""
    groups = int(blocks.max()) + 1
    places = blocks[:, None] * codes + tokens
    return places.flatten().bincount(minlength=groups * codes).view(groups, codes).double()


def _products(counts: Tensor) -> Tensor:
    """The sums of inner products of pairs of different blocks [1 + G]: of all blocks, and without
    each.
    """
    total = with_left_out(counts).square().sum(1)
    return total - with_left_out(counts.square().sum(1))
