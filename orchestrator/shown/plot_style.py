"""Colours, sizes and points that a plot and its labels share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from orchestrator.front.front import Front
from orchestrator.front.trial import Trial

if TYPE_CHECKING:
    from orchestrator.front.pareto import Floats

INK = "#1f2328"
SOFT = "#5b636d"
LEADER = "#c3c6ca"
ACCENT = "#1f6f78"
LEGEND_SIZE = 8.0
SMALL_LEGEND = 6.5


def styled(key: str, ours: Any) -> Any:
    """matplotlib's setting, if its style sets one, else ours."""
    import matplotlib

    own = dict(matplotlib.rcParams.items())[key]
    default = dict(matplotlib.rcParamsDefault.items())[key]
    return ours if own == default else own


def ink() -> str:
    return str(styled("text.color", INK))


def points_of(trials: Sequence[Trial], front: Front) -> tuple[Floats, Floats]:
    """The trials' values in the front's first two metrics, and their errors, 0 if unknown: each
    [trials, 2].
    """
    entries = [[trial.metrics[metric.name] for metric in front.metrics[:2]] for trial in trials]
    values = np.array([[entry.value for entry in row] for row in entries], dtype=np.float64)
    errors = np.array(
        [[entry.known_error or 0.0 for entry in row] for row in entries], dtype=np.float64
    )
    return values.reshape(-1, 2), errors.reshape(-1, 2)
