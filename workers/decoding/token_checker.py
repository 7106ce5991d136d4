"""Checks whether emitted tokens are samples of the target's own distribution: what a lossless
setting claims, tested on its images without a second image.

Given the tokens before it, each token of a lossless setting is a sample of the target's probs q at
its position, whatever was drafted. So the target reads a finished image in one pass, and at each
position three things are known:

- f = max(log q(x), log 0.01) has a mean and a variance under q. The sum of its differences from
  the mean is a martingale of bounded steps: over its standard deviation a standard normal number,
  once the variance is large. Without the bound, single rare tokens would decide.
- The randomised probability integral transform u = P(more likely than x) + v q(x), with an
  independent uniform v, is uniform on [0, 1) (Rosenblatt 1952), and independent of those before
  it. Its bins have a chi-square test.
- So are pairs of neighbours' u in the image, which have Good's serial test (1953), and pairs of
  one position in two images that follow each other, where u counts the codes before x in their
  order: equal uniform numbers give equal u if tokens are sampled by inversion.
- Two images that follow each other have the same token at a position with probability sum_v q(v)
  q'(v), if their random numbers are independent. That they have it more often than the sum of
  these (Poisson's law: it is rare) shows numbers that images share, if tokens are sampled by a race
  of all codes.

The pass shares no tree, mask, cache or acceptance with the decoding that is tested.

At temperature 0 each token is the argmax, but for rounding: passes of other shapes round in other
orders. How much that moves the logits, a second pass measures, whose inputs are changed by their
rounding (as in Monte Carlo arithmetic, Parker 1997). A token further below the largest logit than
that can move it is wrong.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from search_spaces.trial import Sampling
from workers.decoding.row_ends import teacher_forced
from workers.decoding.sampling import guided_logits, stream_count, to_probs
from workers.decoding.token_check import BINS, TESTS, TokenCheck
from workers.models.target import Target

PAIR_BINS = 4  # of u in a pair, squared
_POSITIONS = 256  # whose probs are held at once
READ_TOGETHER = 4  # images that the target reads at once
_FLOOR = math.log(0.01)  # of log probs in the martingale
_LEAST_VARIANCE = 1000.0  # of the martingale, in nats squared, below which it is no test
# Greedy decoding: by how much a logit may be below the largest one, in standard deviations of the
# rounding noise in the difference of two logits, which a normal variable exceeds once in 1e9; and
# at least, in units of the dtype's precision, relative to the largest magnitude.
_TIE_DEVIATIONS = 6.0
_LEAST_TIE = 4.0


def check_images(
    target: Target, sampling: Sampling, captions: Sequence[str], tokens: Tensor, seed: int = 0
) -> TokenCheck:
    """Check the tokens [n, N] of images of captions (see `TokenChecker`).

    Raises:
        ValueError: no images.
    """
    checker = TokenChecker(target, sampling, seed)
    for start in range(0, len(captions), READ_TOGETHER):
        stop = start + READ_TOGETHER
        checker.add(captions[start:stop], tokens[start:stop])
    return checker.result()


class _Reading(NamedTuple):
    """What the target says of tokens."""

    surplus: float  # of the martingale over its expectation
    variance: float  # of the martingale
    impossible: int  # tokens whose probability is 0
    u: Tensor  # [B, n]
    u_of_codes: Tensor  # [B, n] the same, by the codes before the token in their order
    equal: int  # tokens that an image and the next one share
    expected_equal: float


class TokenChecker:
    """Checks the images of one setting, added in batches.

    Args:
        target: the target that generated them.
        sampling: the sampling that the tokens claim to have.
        seed: of the uniform numbers v.
    """

    def __init__(self, target: Target, sampling: Sampling, seed: int = 0) -> None:
        self._target = target
        self._sampling = sampling
        self._generator = torch.Generator().manual_seed(seed)
        self._images = 0
        self._surplus = 0.0
        self._variance = 0.0
        self._impossible = 0
        self._equal = 0
        self._expected_equal = 0.0
        self._bins = torch.zeros(BINS, dtype=torch.float64)
        self._neighbours = torch.zeros(PAIR_BINS, PAIR_BINS, dtype=torch.float64)
        self._across = torch.zeros(PAIR_BINS, PAIR_BINS, dtype=torch.float64)
        self._last: Tensor | None = None  # bins of the image before

    @torch.inference_mode()
    def add(self, captions: Sequence[str], tokens: Tensor) -> None:
        """Check images: tokens [B, N] of as many captions.

        Raises:
            ValueError: a caption that the target cannot read.
        """
        target = self._target
        tokens = tokens.to(target.device)
        streams = stream_count(self._sampling.cfg)
        prompt = target.encode(list(captions), guided=streams == 2)
        inputs = tokens[:, :-1].repeat(streams, 1)
        features = teacher_forced(target, prompt, inputs)[:, target.prompt_len - 1 :]
        chunks = [slice(at, at + _POSITIONS) for at in range(0, tokens.shape[1], _POSITIONS)]
        # Nothing is counted before all is read, so that images can be added again if memory runs
        # out.
        if self._sampling.temperature == 0:
            again = teacher_forced(target, prompt, inputs, change=self._round_otherwise)
            again = again[:, target.prompt_len - 1 :]
            others = sum(
                self._count_others(features[:, part], again[:, part], tokens[:, part])
                for part in chunks
            )
            self._impossible += others
        else:
            read = [self._read(features[:, part], tokens[:, part]) for part in chunks]
            self._surplus += sum(part.surplus for part in read)
            self._variance += sum(part.variance for part in read)
            self._impossible += sum(part.impossible for part in read)
            self._equal += sum(part.equal for part in read)
            self._expected_equal += sum(part.expected_equal for part in read)
            self._count(
                torch.cat([part.u for part in read], dim=1),
                torch.cat([part.u_of_codes for part in read], dim=1),
            )
        self._images += len(tokens)

    def result(self) -> TokenCheck:
        """What all images together say. Raises ValueError without images."""
        if not self._images:
            raise ValueError("no image was added")
        tokens = self._images * self._target.grid.tokens
        if self._sampling.temperature == 0:
            p_value = 0.0 if self._impossible else 1.0
            return TokenCheck(self._images, tokens, 0.0, p_value, self._impossible, True)
        z = 0.0
        if self._variance >= _LEAST_VARIANCE:
            z = self._surplus / math.sqrt(self._variance)
        p_values = [
            math.erfc(abs(z) / math.sqrt(2)),
            _poisson_tail(self._equal, self._expected_equal),
            _chi_square_tail(_statistic(self._bins), BINS - 1),
            _serial_tail(self._neighbours),
            _serial_tail(self._across),
        ]
        p_value = min(1.0, TESTS * min(p_values))
        return TokenCheck(self._images, tokens, z, p_value, self._impossible)

    def _read(self, features: Tensor, tokens: Tensor) -> _Reading:
        """What the features [R, n, D] that predict tokens [B, n] say of them."""
        logits = guided_logits(self._target.head, features, self._sampling.cfg)
        probs = to_probs(logits, self._sampling).double()
        own = _at(probs, tokens)
        logs = probs.log().clamp_min(_FLOOR)
        mean = (probs * logs).sum(-1)
        v = torch.rand(own.shape, generator=self._generator, dtype=torch.float64)
        chance = (probs[:-1] * probs[1:]).sum(-1)  # of a token that the next image has as well
        return _Reading(
            # A token of probability 0 counts as an unlikely one: rounding may move a token over the
            # edge of a filter such as top-k. Many such tokens show in every test.
            surplus=float((_at(logs, tokens) - mean).sum()),
            variance=float(((probs * logs.square()).sum(-1) - mean.square()).sum()),
            impossible=int((own == 0).sum()),
            u=_read_u(probs, _is_likelier(probs, tokens), tokens, v),
            u_of_codes=_read_u(probs, _is_before(probs, tokens), tokens, v),
            equal=int((tokens[:-1] == tokens[1:]).sum()),
            expected_equal=float(chance.sum()),
        )

    def _round_otherwise(self, x: Tensor) -> Tensor:
        """Embeddings that are changed by at most the precision of their dtype."""
        part = torch.rand(x.shape, generator=self._generator).to(x.device) * 2 - 1
        changed: Tensor = (x.float() * (1 + torch.finfo(x.dtype).eps * part)).to(x.dtype)
        return changed

    def _count_others(self, features: Tensor, again: Tensor, tokens: Tensor) -> int:
        """The number of tokens [B, n] that are not the argmax of the logits of features [R, n, D].
        again: the features of a pass that rounds otherwise.
        """
        cfg = self._sampling.cfg
        logits = guided_logits(self._target.head, features, cfg).double()
        moved = guided_logits(self._target.head, again, cfg).double() - logits
        # a shift of all logits changes no argmax
        variance = moved.var(-1, correction=0)
        noise = (2 * variance.clamp_min(float(variance.mean()))).sqrt()  # of a difference
        unit = logits.abs().amax(-1) * torch.finfo(self._target.dtype).eps
        gap = logits.amax(-1) - _at(logits, tokens)
        return int((gap > (_TIE_DEVIATIONS * noise).maximum(_LEAST_TIE * unit)).sum())

    def _count(self, u: Tensor, u_of_codes: Tensor) -> None:
        """Count the bins of both u [B, N], and of their pairs."""
        u = u.cpu()
        self._bins += torch.bincount((u * BINS).long().flatten(), minlength=BINS)
        coarse = (u * PAIR_BINS).long()
        self._neighbours += _pairs(coarse[:, :-1], coarse[:, 1:])
        coarse = (u_of_codes.cpu() * PAIR_BINS).long()
        chain = coarse if self._last is None else torch.cat([self._last, coarse])
        self._across += _pairs(chain[:-1], chain[1:])
        self._last = coarse[-1:]


def _read_u(probs: Tensor, before: Tensor, tokens: Tensor, v: Tensor) -> Tensor:
    """The randomised transform u [B, n] of tokens [B, n] with probs [B, n, V], where the codes that
    are `before` [B, n, V] a token count.
    """
    u = (probs * before).sum(-1) + v.to(probs.device) * _at(probs, tokens)
    return u.clamp(0, 1 - 1e-12)


def _is_before(probs: Tensor, tokens: Tensor) -> Tensor:
    """The codes [B, n, V] before the tokens [B, n]."""
    codes = torch.arange(probs.shape[-1], device=probs.device)
    return codes < tokens[..., None]


def _is_likelier(probs: Tensor, tokens: Tensor) -> Tensor:
    """The codes [B, n, V] that are likelier than the tokens [B, n]; of one probability, those
    before them.
    """
    own = _at(probs, tokens)[..., None]
    return (probs > own) | ((probs == own) & _is_before(probs, tokens))


def _poisson_tail(count: int, mean: float) -> float:
    """The probability that a Poisson variable is at least the count."""
    if count == 0:
        return 1.0
    both = torch.tensor([float(count), mean], dtype=torch.float64)
    return float(torch.special.gammainc(both[0], both[1]))


def _at(values: Tensor, tokens: Tensor) -> Tensor:
    """The entries [B, n] of values [B, n, V] at tokens [B, n]."""
    found: Tensor = values.gather(-1, tokens[..., None].long())[..., 0]
    return found


def _pairs(first: Tensor, second: Tensor) -> Tensor:
    """How often each pair of bins occurs."""
    counts = torch.bincount((first * PAIR_BINS + second).flatten(), minlength=PAIR_BINS**2)
    return counts.double().view(PAIR_BINS, PAIR_BINS)


def _statistic(counts: Tensor) -> float:
    """Pearson's statistic of counts that are expected to be equal; 0 without counts."""
    expected = float(counts.sum()) / counts.numel()
    return float(((counts - expected) ** 2).sum() / expected) if expected else 0.0


def _serial_tail(pairs: Tensor) -> float:
    """The p-value of Good's serial test: the pairs' statistic without that of their first parts."""
    statistic = _statistic(pairs) - _statistic(pairs.sum(1))
    return _chi_square_tail(statistic, PAIR_BINS**2 - PAIR_BINS)


def _chi_square_tail(statistic: float, dof: int) -> float:
    """The probability that a chi-square variable exceeds the statistic."""
    half = torch.tensor([dof / 2, max(0.0, statistic) / 2], dtype=torch.float64)
    return float(torch.special.gammaincc(half[0], half[1]))
