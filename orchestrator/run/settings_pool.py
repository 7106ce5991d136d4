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

Floats: TypeAlias = NDArray[np.float64]

ERRORS = "errors"  # attribute of a trial: standard errors of its values, in their order
FEATURES = "features"  # attribute of a trial whose setting is not in the pool
SETTING = "setting"  # instead of its features: the digest by which `outside` has them


@dataclass(frozen=True, slots=True, eq=False)
class SettingsPool:
    """N settings. params: each one's parameters in an Optuna study. features [N, d]: the numbers that describe it.

    guesses [N, g]: of the objectives, less is better; the first trials come from their front. outside: features [d] of
    settings that no parameters describe, by their digest. enqueued: number of settings of the pool that run in any
    case.

    Raises:
        ValueError: the lengths differ, a feature is not finite, or two settings have the same parameters.
    """

    params: Sequence[Mapping[str, Any]]
    features: Floats
    guesses: Floats | None = None
    outside: Mapping[str, Floats] = field(default_factory=dict)
    enqueued: int = 0
    _rows: dict[Hashable, int] = field(init=False, default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        if self.features.ndim != 2 or len(self.features) != len(self.params) or not np.isfinite(self.features).all():
            raise ValueError(f"a pool of {len(self.params)} settings needs a row of finite features for each, got an "
                             f"array of shape {self.features.shape}")  # fmt: skip
        for row, params in enumerate(self.params):
            first = self._rows.setdefault(_key(params), row)
            if first != row:
                raise ValueError(f"settings {first} and {row} of the pool have the same parameters {dict(params)}")

    @classmethod
    def empty(cls) -> SettingsPool:
        return cls((), np.zeros((0, 1)))

    def __len__(self) -> int:
        return len(self.params)

    def find(self, params: Mapping[str, Any]) -> int | None:
        """The row of the setting with these parameters; None if the pool does not have it."""
        return self._rows.get(_key(params))


def _key(params: Mapping[str, Any]) -> Hashable:
    return tuple(sorted(params.items()))
