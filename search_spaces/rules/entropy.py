"""The modulation by the entropy of the target's probs. Shapes as in `modulations`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar

from search_spaces.modulations import MODULATIONS, Modulation, Nodes
from search_spaces.params import Range, Symbol

if TYPE_CHECKING:
    from torch import Tensor


@MODULATIONS.register
@dataclass(frozen=True, slots=True)
class EntropyModulation(Modulation):
    """m = min(limit, (H / reference)^gamma), H the entropy of the target's probs in nats, after
    temperature and filters.

    With gamma > 0 flat distributions are relaxed more, with gamma < 0 peaked ones. Where one token
    has all the mass, m is 0 or the limit (1 with gamma = 0).
    """

    kind: ClassVar[str] = "entropy"
    short: ClassVar[str] = "ent"
    summary: ClassVar[str] = (
        "the relaxation is multiplied by the entropy of the target's probs over {reference} nats, "
        "to the power {gamma}, and by {limit} at most"
    )
    reads_probs: ClassVar[bool] = True
    gamma: Annotated[
        float,
        "power of the factor; negative: peaked distributions are relaxed more",
        Range(-8, 8),
        Symbol("g"),
    ] = 1.0
    reference: Annotated[float, "entropy in nats at which the factor is 1", Range(0.001, 1000)] = (
        3.0
    )
    limit: Annotated[float, "largest factor", Range(0, 1000, open_low=True)] = 4.0

    def factor(self, nodes: Nodes) -> Tensor:
        # `abs` and not a minus sign: a power of -0.0 may be -inf
        entropy = nodes.probs.xlogy(nodes.probs).sum(1).abs()
        return (entropy / self.reference).pow(self.gamma).clamp_max(self.limit)
