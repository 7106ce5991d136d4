"""The test of fuzzy speculative decoding (FSD). Shapes as in `neighbourhoods`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from search_spaces.neighbourhoods import NEIGHBOURHOODS, FusedBound, ThresholdTest
from search_spaces.params import Range, Symbol

if TYPE_CHECKING:
    from torch import Tensor


@NEIGHBOURHOODS.register
@dataclass(frozen=True, slots=True)
class Fuzzy(ThresholdTest):
    """A draft is accepted iff the distance D(r, p) of the two distributions is at most `distance`,
    whatever the token, without a random number (FSD). After a rejection a token is sampled from r
    itself.

    D is the total variation, KL(r || p), KL(p || r), or the Jensen-Shannon divergence, in nats. A
    distance of 0 is vanilla decoding, not speculative sampling. The authors' code takes
    unprocessed probs, here both are after temperature and filters, so that either KL is infinite
    where one keeps a token that the other drops. What their code calls js is half KL(m || r) plus
    half KL(m || p), with the same defect; it is not here. Drafts must be sampled: chosen ones have
    no distribution.
    """

    kind: ClassVar[str] = "fuzzy"
    short: ClassVar[str] = "fuz"
    summary: ClassVar[str] = (
        "drafts are accepted where target and drafter are within {distance} of each other "
        "({divergence})"
    )
    paper: ClassVar[str] = "FSD (arXiv:2502.20704)"
    needs_sampled: ClassVar[bool] = True
    distance: Annotated[
        float, "largest distance at which drafts are accepted", Range(0), Symbol("d")
    ]
    divergence: Annotated[Literal["tvd", "kl", "reverse_kl", "jsd"], "what the distance is"] = "tvd"

    @property
    def fused(self) -> FusedBound:
        return FusedBound(f"fuzzy_{self.divergence}", 1, self.distance)

    def accepts(self, r: Tensor, p: Tensor | None, factor: Tensor | float) -> Tensor:
        assert p is not None, "the rule needs drafts that were sampled"
        if self.divergence == "tvd":
            found = (r - p).abs().sum(1, keepdim=True) / 2
        elif self.divergence == "kl":
            found = _kl(r, p)
        elif self.divergence == "reverse_kl":
            found = _kl(p, r)
        else:
            middle = (r + p) / 2
            found = (_kl(r, middle) + _kl(p, middle)) / 2
        return found <= self.distance * factor


def _kl(a: Tensor, b: Tensor) -> Tensor:
    """KL(a || b) in nats [B, 1]; infinite where b lacks a token of a."""
    return (a.xlogy(a) - a.xlogy(b)).sum(1, keepdim=True)
