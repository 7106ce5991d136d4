"""Dynamic temperatures: what the temperature is multiplied by at each token of an image."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar

from search_spaces.params import Params, Range, Symbol
from search_spaces.plugins import Registry

if TYPE_CHECKING:
    from torch import Tensor


class DynamicTemperature(Params, ABC):
    """A factor of the temperature that depends on the probs."""

    __slots__ = ()
    is_constant: ClassVar[bool] = False  # whether the factor is always 1

    @abstractmethod
    def factor(self, probs: Tensor) -> Tensor:
        """The factor [..., 1], greater than 0, for probs [..., V] at temperature 1 after top-k and
        top-p.
        """


DYNAMIC_TEMPERATURES: Registry[type[DynamicTemperature]] = Registry(
    "dynamic temperature", "search_spaces.rules"
)


@DYNAMIC_TEMPERATURES.register
@dataclass(frozen=True, slots=True)
class ConstantTemperature(DynamicTemperature):
    """The same temperature everywhere."""

    kind: ClassVar[str] = "constant"
    summary: ClassVar[str] = "the same temperature for every token"
    is_constant: ClassVar[bool] = True

    def factor(self, probs: Tensor) -> Tensor:
        return probs.new_ones(*probs.shape[:-1], 1)


@DYNAMIC_TEMPERATURES.register
@dataclass(frozen=True, slots=True)
class EntropyTemperature(DynamicTemperature):
    """amplitude exp(-E / scale) + theta, E the entropy in nats: flat probs are sharpened, peaked
    ones are flattened (entropy-aware sampling). The defaults are those of the authors' code for
    LlamaGen, where they are A, a and theta.
    """

    kind: ClassVar[str] = "entropy"
    summary: ClassVar[str] = "the temperature depends on the entropy of the probs"
    paper: ClassVar[str] = "entropy-aware sampling (arXiv:2510.09012)"
    amplitude: Annotated[
        float, "increase of the factor at zero entropy (A)", Range(0), Symbol("A")
    ] = 2.5
    scale: Annotated[
        float,
        "entropy at which the increase is 1/e of it, in nats (a)",
        Range(0, open_low=True),
        Symbol("a"),
    ] = 3.0
    theta: Annotated[float, "factor at a large entropy", Range(0, open_low=True), Symbol("th")] = (
        0.6
    )

    def factor(self, probs: Tensor) -> Tensor:
        negative_entropy = probs.xlogy(probs).sum(-1, keepdim=True)
        return (negative_entropy / self.scale).exp() * self.amplitude + self.theta


CONSTANT_TEMPERATURE = ConstantTemperature()
