"""From logits to probabilities, and from probabilities to tokens; the two rows that guidance needs
for each caption.

Target, drafter and vanilla decoding share one order of processing: guidance, temperature, top-k,
top-p, softmax, all in fp32; a dynamic temperature comes after the filters. (The published code
filters in one order in vanilla decoding and in another in speculative decoding, so that its
"lossless" compares two different distributions.)
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor, nn

from search_spaces.trial import Sampling
from workers.decoding.operators import cpu_operator
from workers.models.linear import fp32_logits, is_linear

_NUMPY_ENTRIES = 1 << 16  # of so many entries, or more, NumPy finds the largest faster than torch


def apply_cfg(x: Tensor, cfg: float) -> Tensor:
    """Classifier-free guidance: u + cfg (c - u) in fp32, [B, ...], of logits or features [R, ...],
    conditional rows first.
    """
    x = x.float()
    if cfg == 1.0:
        return x
    half = x.shape[0] // 2
    return torch.lerp(x[half:], x[:half], cfg)


def guided_logits(head: nn.Module, features: Tensor, cfg: float) -> Tensor:
    """Guided logits [B, ..., V] in fp32, from features [R, ..., D] before a head.

    A linear head, or the last layer of a sequential one, is applied to guided features: equal up to
    rounding, for half of the work.
    """
    if type(head) is nn.Sequential:
        features = head[:-1](features)
        head = head[-1]
    if not is_linear(head):
        return apply_cfg(head(features), cfg)
    if cfg != 1.0:
        features = apply_cfg(features, cfg).to(features.dtype)
    return fp32_logits(head, features)


def stream_count(cfg: float) -> int:
    """Rows of the transformer per caption: the conditional one and, under guidance, the
    unconditional one.
    """
    if cfg == 1.0:
        return 1
    return 2


def repeat_streams(x: Tensor, streams: int) -> Tensor:
    """Repeat a tensor [B, ...] for every stream, [R, ...]: the conditional rows, then the
    unconditional ones.
    """
    if streams == 1:
        return x
    return torch.cat([x] * streams)


def repeat_streams_unless_shared(x: Tensor, streams: int) -> Tensor:
    """`repeat_streams` of a tensor [B|1, ...]; a single entry serves all rows and is returned as it
    is.
    """
    if x.shape[0] == 1:
        return x
    return repeat_streams(x, streams)


def stream_rows(indices: Tensor, streams: int, batch_size: int) -> Tensor:
    """Transformer rows of the captions at `indices` [n]: the conditional rows, then the
    unconditional ones.
    """
    return torch.cat([indices + stream * batch_size for stream in range(streams)])


def to_probs(logits: Tensor, sampling: Sampling) -> Tensor:
    """Probabilities [..., V] of guided logits [..., V].

    At temperature 0 no filter applies: nothing is sampled, and the relaxed greedy rules read the
    plain softmax. All tokens tied with the k-th largest are kept. Top-p keeps the smallest set
    whose mass reaches p (at least one token).
    """
    if sampling.temperature == 0:
        return logits.softmax(-1)
    dynamic = sampling.dynamic_temperature
    if dynamic.is_constant:
        return _filtered_probs(logits, sampling, sampling.temperature)
    probs = _filtered_probs(logits, sampling, 1.0)
    return (probs.log() / (sampling.temperature * dynamic.factor(probs))).softmax(-1)


def _filtered_probs(logits: Tensor, sampling: Sampling, temperature: float) -> Tensor:
    """Probabilities [..., V] after temperature, top-k and top-p."""
    probs = _filtered(logits, sampling, temperature, 0)[0].softmax(-1)
    if sampling.top_p < 1:
        sorted_probs, order = probs.sort(dim=-1, descending=True, stable=True)
        removed = sorted_probs.cumsum(-1) - sorted_probs >= sampling.top_p
        # in the order of the tokens
        removed = torch.empty_like(removed).scatter_(-1, order, removed)
        probs = probs.masked_fill(removed, 0.0)
        probs = probs / probs.sum(-1, keepdim=True)
    return probs


def top_log_probs(logits: Tensor, sampling: Sampling, count: int) -> tuple[Tensor, Tensor]:
    """The logs of the `count` largest of `to_probs`, in falling order, and their tokens, both [...,
    count].

    Which of several equal ones are taken, and in which order, depends on the device.
    """
    if (
        sampling.temperature == 0
        or sampling.top_p < 1
        or not sampling.dynamic_temperature.is_constant
    ):
        probs, tokens = to_probs(logits, sampling).topk(count, dim=-1)
        return probs.log(), tokens
    filtered, largest = _filtered(logits, sampling, sampling.temperature, count)
    log_probs = filtered.log_softmax(-1)
    if largest is None:
        log_probs, largest = log_probs.topk(count, dim=-1)
        return log_probs, largest
    return log_probs.gather(-1, largest), largest


def _filtered(
    logits: Tensor, sampling: Sampling, temperature: float, count: int
) -> tuple[Tensor, Tensor | None]:
    """Logits [..., V] after temperature and top-k, and their `count` largest tokens. The tokens are
    None where no selection was needed.
    """
    if temperature != 1:
        logits = logits / temperature
    if not 0 < sampling.top_k < logits.shape[-1]:
        return logits, None
    if logits.device.type == "cpu":
        kth = kth_largest(logits, sampling.top_k)
        tokens = None
        if count:
            tokens = logits.topk(count, dim=-1).indices
    elif count:  # one sort for both
        largest, order = logits.topk(max(count, sampling.top_k), dim=-1)
        kth = largest[..., sampling.top_k - 1, None]
        tokens = order[..., :count]
    else:
        kth = logits.topk(sampling.top_k, dim=-1, sorted=False).values.amin(-1, keepdim=True)
        tokens = None
    return logits.masked_fill(logits < kth, -torch.inf), tokens


@cpu_operator("kth_largest(Tensor x, int k) -> Tensor")
def kth_largest(x: Tensor, k: int) -> Tensor:
    """The k-th largest entry [..., 1] of every row of x [..., n] on a CPU. NumPy's selection uses
    vector instructions; `torch.topk` takes four times as long for k = 1000 of n = 16384.
    """
    return torch.from_numpy(
        np.ascontiguousarray(np.partition(x.numpy(), -k, axis=-1)[..., -k, None])
    )


def sample_with_exponentials(probs: Tensor, noise: Tensor) -> Tensor:
    """Sample a token [...] from each of probs [..., V], which need not be normalised: the argmax of
    probs / noise.

    The noise [..., V] is of standard exponential numbers (the Gumbel-max trick in another form).
    That of a token position is the same under every config, so similar probs mostly give the same
    token.
    """
    return largest_index(probs / noise)


def largest_index(x: Tensor) -> Tensor:
    """The index [...] of the first largest entry of x [..., V]. On a CPU, NumPy's takes an eighth
    of the time of `torch.argmax`, and the call 30 us more.
    """
    if not x.is_cpu or x.numel() < _NUMPY_ENTRIES:
        return x.argmax(-1)
    index: Tensor = _largest_index_by_numpy(x)
    return index


@cpu_operator("largest_index(Tensor x) -> Tensor")
def _largest_index_by_numpy(x: Tensor) -> Tensor:
    return torch.from_numpy(np.asarray(x.numpy().argmax(-1)))


def sample_by_inversion(probs: Tensor, uniforms: Tensor) -> Tensor:
    """Sample a token [...] from each of probs [..., V], which need not be normalised, with one fp64
    number [...] in [0, 1): the first token at which the sum of the probs exceeds that share of
    their total.

    Only the sums of blocks of tokens are summed up, and then the probs of one block.
    """
    size = math.gcd(probs.shape[-1], 128)
    blocks = probs.view(*probs.shape[:-1], -1, size)
    masses = blocks.sum(-1)
    ends = masses.cumsum(-1, dtype=torch.float64)
    place = uniforms[..., None] * ends[..., -1:]
    block = _first_above(ends, place)
    # the share of the block's mass that follows the place
    left = (ends.gather(-1, block) - place) / masses.gather(-1, block)
    ends = (
        blocks.gather(-2, block[..., None].expand(*block.shape, size))
        .squeeze(-2)
        .cumsum(-1, dtype=torch.float64)
    )
    token = _first_above(ends, (1 - left).clamp(0, 1 - 2.0**-53) * ends[..., -1:])
    return torch.add(token, block, alpha=size).squeeze(-1)


def _first_above(ends: Tensor, place: Tensor) -> Tensor:
    """The index [..., 1] of the first of the rising ends [..., n] that is above place [..., 1]. Its
    token or block has mass. Where no end is above, as where all are 0, it is the last one.
    """
    return torch.searchsorted(ends, place, right=True).clamp_(max=ends.shape[-1] - 1)
