"""Predicts the time of a pass from the size of its draft tree, so that a setting that was never
timed has a speed.

What a pass costs depends on drafter, tree, sampling and kind of neighbourhood, and not on the
rule's numbers. Within one such group it is taken as linear in the levels and nodes of the tree.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from search_spaces.trial import DecodingConfig
from workers.decoding.statistics import ImageStatistics
from workers.metrics.estimate import Estimate

_TIMED_SHAPES = 3  # trees timed in each group: the smallest, the largest, and one between

Group = tuple[object, ...]


class ImageCost(NamedTuple):
    """Seconds of one image."""

    prefill: float  # once
    per_pass: float  # for each pass of the target after the prefill
    error: float  # standard error of `per_pass`

    @classmethod
    def of(cls, images: Iterable[ImageStatistics]) -> ImageCost:
        """The cost of timed images. The error is over images; it is 0 for a single one."""
        timed = list(images)
        prefills = [image.seconds["prefill"] for image in timed]
        rates = np.array(
            [(image.latency - p) / image.passes for image, p in zip(timed, prefills, strict=True)]
        )
        error = 0.0
        if len(timed) > 1:
            error = float(rates.std(ddof=1) / len(timed) ** 0.5)
        return cls(float(np.mean(prefills)), float(rates.mean()), error)


def _group(config: DecodingConfig) -> Group:
    """The group of a setting: settings of one group differ only in the tree's size and the rule's
    numbers.
    """
    shape = config.shape
    return shape.drafter, shape.policy.kind, shape.sampling, shape.work


def configs_to_time(configs: Iterable[DecodingConfig]) -> list[DecodingConfig]:
    """At most three settings of each group, by the size of their trees."""
    groups: dict[Group, dict[tuple[int, int], DecodingConfig]] = {}
    for config in configs:
        groups.setdefault(_group(config), {}).setdefault(_size(config), config)
    chosen = []
    for by_size in groups.values():
        sizes = sorted(by_size)
        places = np.linspace(0, len(sizes) - 1, min(_TIMED_SHAPES, len(sizes))).round().astype(int)
        chosen += [by_size[sizes[place]] for place in places]
    return chosen


@dataclass(frozen=True, slots=True)
class CostModel:
    """Costs of timed settings, and of all others of their groups."""

    timed: Mapping[DecodingConfig, ImageCost]

    def cost(self, config: DecodingConfig) -> ImageCost:
        """The cost of a setting: least squares over its group's timed settings, and never outside
        their range.

        Raises:
            KeyError: nothing of its group was timed.
        """
        group = {
            other: cost for other, cost in self.timed.items() if _group(other) == _group(config)
        }
        if not group:
            raise KeyError(_group(config))
        sizes = [_terms(other) for other in group]
        costs = list(group.values())
        weights = _terms(config) @ np.linalg.pinv(np.array(sizes))  # weights of the timed costs
        rates = [cost.per_pass for cost in costs]
        per_pass = float(np.clip(weights @ rates, min(rates), max(rates)))
        error = float(np.linalg.norm(weights * [cost.error for cost in costs]))
        return ImageCost(float(np.mean([cost.prefill for cost in costs])), per_pass, error)


def speedup(
    accepted_length: Estimate, cost: ImageCost, vanilla: ImageCost, tokens: int
) -> Estimate:
    """Vanilla's seconds for an image over a setting's.

    The errors of the accepted length and of both costs are taken as independent.

    Args:
        accepted_length: mean tokens per pass of the setting.
        cost: seconds of an image with the setting.
        vanilla: seconds of an image with vanilla.
        tokens: tokens of an image.
    """
    passes = (tokens - 1) / accepted_length.value
    own = cost.prefill + passes * cost.per_pass
    baseline = vanilla.prefill + (tokens - 1) * vanilla.per_pass
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
