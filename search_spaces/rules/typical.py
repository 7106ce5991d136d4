"""The threshold test of Medusa's typical acceptance. Shapes as in `neighbourhoods`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar

from search_spaces.neighbourhoods import NEIGHBOURHOODS, FusedBound, ThresholdTest
from search_spaces.params import Range, Symbol

if TYPE_CHECKING:
    from torch import Tensor

_SMALLEST = 1e-5  # added to probs in the logarithm of the entropy, as in Medusa's code


@NEIGHBOURHOODS.register
@dataclass(frozen=True, slots=True)
class Typical(ThresholdTest):
    """Medusa: a token is accepted iff r(x) > min(epsilon, delta exp(-H(r))), H in nats, without a
    random number. After a rejection a token is sampled from r itself.

    The names are the paper's; its code calls delta `posterior_alpha`. The test does not read the
    draft's probs. Medusa then takes the longest accepted path of a tree, here children are tested
    in their order, and the first accepted one is taken. At temperature 0 it accepts the most likely
    token alone, as the exact rule does. A modulation divides the threshold. As exp(-H) is at most
    1, an epsilon of delta or more changes nothing.
    """

    kind: ClassVar[str] = "typical"
    short: ClassVar[str] = "typ"
    summary: ClassVar[str] = (
        "a draft is accepted if the target gives it more than {epsilon}, or less where the target "
        "is unsure"
    )
    paper: ClassVar[str] = "Medusa (arXiv:2401.10774)"
    epsilon: Annotated[
        float,
        "probability above which a token is always accepted",
        Range(0, 1, open_low=True),
        Symbol("e"),
    ] = 0.09
    delta: Annotated[
        float,
        "threshold where the target is sure; it falls with exp(-entropy)",
        Range(0, 1, open_low=True),
        Symbol("d"),
    ] = 0.3

    @property
    def fused(self) -> FusedBound:
        return FusedBound("typical", 1, self.epsilon, self.delta)

    def accepts(self, r: Tensor, p: Tensor | None, factor: Tensor | float) -> Tensor:
        negative_entropy = (r * (r + _SMALLEST).log()).sum(1, keepdim=True)
        threshold = negative_entropy.exp() * (self.delta / factor)
        return r > threshold.clamp_max(self.epsilon / factor)
