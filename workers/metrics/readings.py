"""What a timing session read: the seconds of its settings on the same batches, in turn.

This module needs numpy alone.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from workers.metrics.estimate import MetricUnavailable

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Session:
    """The readings of a timing session at one batch size: S settings on each of U units."""

    name: str
    shapes: tuple[Hashable, ...]  # [S] what the costs of each setting depend on, vanilla's first
    settings: tuple[str, ...]  # [S] digests of their configs
    prefill: Floats  # [S, U] seconds of the prefill
    per_pass: Floats  # [S, U] seconds of a pass after the prefill
    passes: Floats  # [S, U] number of these passes
    seconds: Floats  # [S, U] seconds of all
    sitting: str = ""  # sessions with the same name are a sitting
    is_busy: bool = False  # whether other processes disturbed it

    def __post_init__(self) -> None:
        """Raises MetricUnavailable for a single unit, whose noise is not known."""
        if self.units < 2:
            raise MetricUnavailable(
                f"{self.name}: a single batch of captions was timed once, but a standard error "
                "needs at least 2: raise timing.images"
            )

    @property
    def units(self) -> int:
        return int(self.prefill.shape[1])

    def rows(self, shape: Hashable) -> list[int]:
        """The settings of a shape."""
        return [row for row, other in enumerate(self.shapes) if other == shape]

    def log_seconds(self, shape: Hashable, passes: Floats) -> Floats:
        """Log seconds [K, U] of a shape at numbers of passes [K], the mean over its settings. An
        infinite number of passes stands for one pass without the prefill.
        """
        rows = self.rows(shape)
        counts = passes[:, None, None]
        prefill = np.where(np.isinf(counts), 0.0, self.prefill[rows])
        seconds = prefill + np.where(np.isinf(counts), 1.0, counts) * self.per_pass[rows]
        mean: Floats = np.log(seconds).mean(axis=1)
        return mean

    def timed_passes(self, shape: Hashable) -> float:
        """The mean number of passes of a timed batch."""
        return float(self.passes[self.rows(shape)].mean())

    @property
    def noise_dof(self) -> int:
        return max(1, len(self.prefill) - 1) * (self.units - 1)

    @cached_property
    def noise(self) -> float:
        """Variance of a log reading that neither its setting nor its unit explains; with a single
        setting, the variance over units.
        """
        logs = np.log(self.prefill + self.passes.mean(axis=1, keepdims=True) * self.per_pass)
        residuals = logs - logs.mean(axis=1, keepdims=True)
        if len(logs) > 1:
            residuals -= residuals.mean(axis=0)
        return float(np.square(residuals).sum()) / self.noise_dof
