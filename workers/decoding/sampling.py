"""From logits to laws, and from laws to tokens.

One processing order for target, drafter and vanilla alike: guidance, temperature, top-k, top-p, softmax, all in fp32.
(The published code filters in one order when decoding plainly and in another when speculating; then "lossless"
compares two laws.)
"""

from __future__ import annotations

import torch
from torch import Tensor

from search_spaces.trial import Sampling


def apply_cfg(logits: Tensor, cfg: float) -> Tensor:
    """Classifier-free guidance: [R, ..., V] logits, conditional rows first, to [B, ..., V]: u + cfg (c - u). fp32."""
    if cfg == 1.0:
        return logits.float()
    conditional, unconditional = logits.float().chunk(2)
    return torch.lerp(unconditional, conditional, cfg)


def to_probs(logits: Tensor, sampling: Sampling) -> Tensor:
    """The law [..., V] of guided logits [..., V].

    At temperature 0 there is nothing to sample, and relaxed greedy rules look at the plain softmax: no filter applies.
    Tokens tied with the k-th largest all stay. Top-p keeps the smallest set whose mass reaches p (at least one token).
    """
    if sampling.temperature == 0:
        return logits.softmax(-1)
    if sampling.temperature != 1:
        logits = logits / sampling.temperature
    if 0 < sampling.top_k < logits.shape[-1]:
        weakest = logits.topk(sampling.top_k, dim=-1).values[..., -1:]
        logits = logits.masked_fill(logits < weakest, -torch.inf)
    law = logits.softmax(-1)
    if sampling.top_p < 1:
        ordered, order = law.sort(dim=-1, descending=True, stable=True)
        surplus = ordered.cumsum(-1) - ordered >= sampling.top_p
        law = law.masked_fill(surplus.gather(-1, order.argsort(-1)), 0.0)
        law = law / law.sum(-1, keepdim=True)
    return law


def sample_with_exponentials(law: Tensor, exponential_noise: Tensor) -> Tensor:
    """Draw a token [...] from each law [..., V] (need not be normalised): the first of V exponential clocks of rate
    law(x).

    The clocks of one position are the same for every setting, so laws that are close mostly give the same token.
    """
    return (law / exponential_noise).argmax(-1)
