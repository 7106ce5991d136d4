"""The modulation by the margin of the target's most likely token. Shapes as in `modulations`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar

from search_spaces.modulations import MODULATIONS, Modulation, Nodes
from search_spaces.params import Range, Symbol

if TYPE_CHECKING:
    from torch import Tensor


@MODULATIONS.register
@dataclass(frozen=True, slots=True)
class MarginModulation(Modulation):
    """m = min(limit, ((1 - margin) / (1 - reference))^gamma), where the margin is the difference of
    the target's two largest probs, after temperature and filters.

    With gamma > 0 a token is relaxed more where the target hesitates between two, with gamma < 0
    where it is sure.
    """

    kind: ClassVar[str] = "margin"
    short: ClassVar[str] = "marg"
    summary: ClassVar[str] = (
        "the relaxation is multiplied by 1 minus the margin of the target's two largest probs, "
        "over 1 minus {reference}, to the power {gamma}, and by {limit} at most"
    )
    reads_probs: ClassVar[bool] = True
    gamma: Annotated[
        float,
        "power of the factor; negative: drafts are relaxed more where the target is sure",
        Range(-8, 8),
        Symbol("g"),
    ] = 1.0
    reference: Annotated[float, "margin at which the factor is 1", Range(0, 0.99)] = 0.1
    limit: Annotated[float, "largest factor", Range(0, 1000, open_low=True)] = 4.0

    def factor(self, nodes: Nodes) -> Tensor:
        first, second = nodes.probs.topk(2, dim=1).values.unbind(1)
        hesitation = (1 - (first - second)).clamp_min(0)
        return (hesitation / (1 - self.reference)).pow(self.gamma).clamp_max(self.limit)
