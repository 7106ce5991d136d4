"""Modulations: how much of a rule's relaxation each node of a draft tree gets.

A schedule knows the depth of a draft alone. A modulation sees where it falls: how flat the target's
probs are there, and which row of the image it is in. It gives a factor m >= 0 for each node. A
budget omega over 1 becomes 1 + m (omega - 1), and m multiplies the bound of a neighbourhood: a
factor of 1 changes nothing, and 0 takes all relaxation away. Budgets below 1 and exact rules stay
as they are.

Modulations are this project's own, from no paper.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from search_spaces.params import Params
from search_spaces.plugins import Registry

if TYPE_CHECKING:
    from torch import Tensor


class Nodes(NamedTuple):
    """Nodes whose children are tested."""

    probs: Tensor  # [B, V] the target's probs after the node, before any child was rejected
    # [B] the row of the image that the token after the node is in: 0 for the first row, 1 for the
    # last, evenly spaced between.
    row: Tensor


class Modulation(Params, ABC):
    """A factor of the relaxation at each node."""

    __slots__ = ()
    # Whether the factor depends on the probs. There are none at temperature 0.
    reads_probs: ClassVar[bool] = False
    # Whether the factor depends on the row. Images then need more than one.
    reads_row: ClassVar[bool] = False

    @abstractmethod
    def factor(self, nodes: Nodes) -> Tensor:
        """The factors [B], finite and at least 0. A node's probs that are not a number may give
        one that is not.
        """


MODULATIONS: Registry[type[Modulation]] = Registry("modulation", "search_spaces.rules")


@MODULATIONS.register
@dataclass(frozen=True, slots=True)
class NoModulation(Modulation):
    """The same relaxation at every node of one depth."""

    kind: ClassVar[str] = "none"
    summary: ClassVar[str] = "drafts are relaxed alike wherever they fall"

    def factor(self, nodes: Nodes) -> Tensor:
        return nodes.row.new_ones(nodes.row.shape)


NO_MODULATION = NoModulation()
