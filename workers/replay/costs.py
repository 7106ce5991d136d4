"""Seconds of a pass by the shape of what is drafted, so that a setting that was never timed has a speed.

What a pass costs depends on drafter, tree, sampling and kind of neighbourhood, and not on the rule's numbers. Within
one such family it is taken as linear in the levels and nodes of the tree.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from search_spaces.trial import DecodingConfig
from workers.decoding.statistics import ImageStatistics
from workers.metrics.estimate import Estimate

_TIMED_SHAPES = 3  # of a family: the smallest tree, the largest, and one between

Family = tuple[object, ...]


class ImageCost(NamedTuple):
    """Seconds of one image: `prefill` once, `per_pass` for each pass of the target after it; error: of `per_pass`."""

    prefill: float
    per_pass: float
    error: float

    @classmethod
    def of(cls, images: Iterable[ImageStatistics]) -> ImageCost:
        """The cost that timed images show. The error is over images, 0 for a single one."""
        timed = list(images)
        prefills = [image.seconds["prefill"] for image in timed]
        rates = np.array([(image.latency - p) / image.rounds for image, p in zip(timed, prefills, strict=True)])
        error = float(rates.std(ddof=1) / len(timed) ** 0.5) if len(timed) > 1 else 0.0
        return cls(float(np.mean(prefills)), float(rates.mean()), error)


def cost_family(config: DecodingConfig) -> Family:
    """Settings of one family differ only in the tree's size and the rule's numbers."""
    shape = config.shape
    return shape.drafter, shape.policy.kind, shape.sampling, shape.work


def configs_to_time(configs: Iterable[DecodingConfig]) -> list[DecodingConfig]:
    """At most three settings of each family, by the size of their trees."""
    families: dict[Family, dict[tuple[int, int], DecodingConfig]] = {}
    for config in configs:
        families.setdefault(cost_family(config), {}).setdefault(_size(config), config)
    chosen = []
    for by_size in families.values():
        sizes = sorted(by_size)
        places = np.linspace(0, len(sizes) - 1, min(_TIMED_SHAPES, len(sizes))).round().astype(int)
        chosen += [by_size[sizes[place]] for place in places]
    return chosen


@dataclass(frozen=True, slots=True)
class CostModel:
    """Costs of timed settings, and of all others of their families."""

    timed: Mapping[DecodingConfig, ImageCost]

    def cost(self, config: DecodingConfig) -> ImageCost:
        """The cost of a setting: least squares over its family's timed settings, and never outside their range.

        Raises:
            KeyError: nothing of its family was timed.
        """
        family = {other: cost for other, cost in self.timed.items() if cost_family(other) == cost_family(config)}
        if not family:
            raise KeyError(cost_family(config))
        sizes, costs = [_terms(other) for other in family], list(family.values())
        weights = _terms(config) @ np.linalg.pinv(np.array(sizes))  # of the timed costs
        rates = [cost.per_pass for cost in costs]
        per_pass = float(np.clip(weights @ rates, min(rates), max(rates)))
        error = float(np.linalg.norm(weights * [cost.error for cost in costs]))
        return ImageCost(float(np.mean([cost.prefill for cost in costs])), per_pass, error)


def speedup(accepted_length: Estimate, cost: ImageCost, vanilla: ImageCost, tokens: int) -> Estimate:
    """Vanilla's seconds for an image of so many tokens over a setting's.

    The errors of the accepted length and of both costs are taken as independent.
    """
    passes = (tokens - 1) / accepted_length.value
    own, baseline = cost.prefill + passes * cost.per_pass, vanilla.prefill + (tokens - 1) * vanilla.per_pass
    relative = (
        passes * cost.per_pass / own * accepted_length.error / accepted_length.value,
        passes * cost.error / own,
        (tokens - 1) * vanilla.error / baseline,
    )
    value = baseline / own
    return Estimate(value, value * float(np.linalg.norm(relative)), accepted_length.n)


def _size(config: DecodingConfig) -> tuple[int, int]:
    bounds = config.policy.bounds
    return bounds.nodes, bounds.depth


def _terms(config: DecodingConfig) -> np.ndarray:
    nodes, depth = _size(config)
    return np.array([1.0, depth, nodes])
