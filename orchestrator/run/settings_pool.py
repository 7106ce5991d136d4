"""The settings that a sampler chooses from, each described by a few numbers.

In a conditional space settings of different branches share few parameters. What replay predicts of them is the same
for all: how many passes an image takes, how much is drafted in them, and how far the emitted tokens are from the
target's. Measured objectives are smooth functions of these numbers.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from search_spaces.trial import DecodingConfig

Floats: TypeAlias = NDArray[np.float64]

_LENGTH = "mean_accepted_length"


@dataclass(frozen=True, slots=True, eq=False)
class SettingsPool:
    """N settings. params: each one's parameters in an Optuna study. features [N, d]: the numbers that describe it.

    The search is quick to learn if objectives are smooth in the features, and finds good settings early if they mostly
    improve as the first `costs` features fall.

    Raises:
        ValueError: the lengths differ, a feature is not finite, or two settings have the same parameters.
    """

    params: Sequence[Mapping[str, Any]]
    features: Floats
    costs: int | None = None
    _rows: dict[Hashable, int] = field(init=False, default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        if self.features.ndim != 2 or len(self.features) != len(self.params) or not np.isfinite(self.features).all():
            raise ValueError(f"a pool of {len(self.params)} settings needs a row of finite features for each, got an "
                             f"array of shape {self.features.shape}")  # fmt: skip
        for row, params in enumerate(self.params):
            first = self._rows.setdefault(_key(params), row)
            if first != row:
                raise ValueError(f"settings {first} and {row} of the pool have the same parameters {dict(params)}")

    def __len__(self) -> int:
        return len(self.params)

    def find(self, params: Mapping[str, Any]) -> int | None:
        """The row of the setting with these parameters; None if the pool does not have it."""
        return self._rows.get(_key(params))


def _key(params: Mapping[str, Any]) -> Hashable:
    return tuple(sorted(params.items()))


def describe_settings(configs: Sequence[DecodingConfig], values: Mapping[str, Sequence[float]]) -> tuple[Floats, int]:
    """Features [N, d] of settings from their predictions, and how many of them are costs.

    values: [N] by name: the mean accepted length, and what the relaxation costs per token (`MEASURES` of replay).

    Costs come first: the logs of the passes per token, and of the levels and nodes that are drafted per token; then
    what the relaxation costs, on a scale of square roots, since most rules are close to the exact one. The others say
    which drafter, tree and neighbourhood the setting has: 1 for its own, 0 for others.
    """
    passes = 1 / np.array(values[_LENGTH], dtype=np.float64)
    bounds = [config.policy.bounds for config in configs]
    columns = [np.log(passes)]
    columns += [np.log(passes * [1 + b.depth for b in bounds]), np.log(passes * [1 + b.nodes for b in bounds])]
    for name, entries in values.items():
        if name != _LENGTH:
            cost = np.array(entries, dtype=np.float64)
            columns.append(np.sign(cost) * np.sqrt(np.abs(cost)))
    count = len(columns)
    kinds = [(c.drafter.kind, c.policy.kind, c.acceptance.neighbourhood.kind) for c in configs]
    for labels in zip(*kinds, strict=True):
        names = sorted(set(labels))
        columns += [np.array([float(label == name) for label in labels]) for name in names if len(names) > 1]
    return np.stack(columns, axis=1), count
