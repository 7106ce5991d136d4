"""Predictions of a setting from recorded steps: how many tokens a pass emits, and what the relaxation costs.

Recorded steps start at the positions that the exact rule visits; a rule that accepts more visits others. Acceptance
depends on the place in the image, so steps are averaged by row of the image first: in a row whose steps emit m tokens
in the mean, 1 / m passes are made per token.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from workers.metrics.estimate import Estimate, jackknife_error
from workers.replay.walk import StepOutcomes

MEASURES = ("total_variation", "excess", "code_distance", "surprise")


@dataclass(frozen=True, slots=True)
class Prediction:
    """mean_accepted_length: tokens per target pass, prefill excluded. cost: by measure of `StepOutcomes`, the mean per
    emitted token. Standard errors are over images. approximate: what is drafted depends on the rule or on what was
    accepted before, so that the walked drafts are not quite the setting's own.
    """

    mean_accepted_length: Estimate
    cost: Mapping[str, Estimate]
    approximate: bool = False


def predict(outcomes: StepOutcomes, image: Tensor, image_row: Tensor) -> Prediction:
    """The prediction from the outcomes of S steps.

    image [S]: index of each step's image, from 0. image_row [S]: row of the image in which the step starts.

    Raises:
        ValueError: fewer than two images.
    """
    images, rows = int(image.max()) + 1, int(image_row.max()) + 1
    if images < 2:
        raise ValueError(f"a prediction with an error needs the steps of at least 2 images, got {images}: record more")
    columns = [torch.ones_like(outcomes.emitted), outcomes.emitted, *(getattr(outcomes, name) for name in MEASURES)]
    cell = image * rows + image_row
    sums = torch.zeros(len(columns), images * rows, dtype=torch.float64)
    sums.index_add_(1, cell.cpu(), torch.stack(columns).double().cpu())
    by_image = sums.view(len(columns), images, rows)
    total = by_image.sum(1, keepdim=True)
    values = torch.cat([_per_token(total), _per_token(total - by_image)], dim=1)  # [1 + measures, 1 + images]
    values[0] = 1 / values[0]  # passes per token to tokens per pass
    estimates = [Estimate(line[0].item(), jackknife_error(line[1:]).item(), images) for line in values]
    return Prediction(estimates[0], dict(zip(MEASURES, estimates[1:], strict=True)))


def _per_token(sums: Tensor) -> Tensor:
    """Passes and measures per token [1 + measures, n], from sums over steps [2 + measures, n, rows]."""
    steps, emitted, measures = sums[0], sums[1], sums[2:]
    started = steps > 0  # a row in which no step starts counts as the others do
    parts = torch.cat([steps[None], measures]) / emitted
    parts = torch.where(started, parts, 0.0)
    mean: Tensor = parts.sum(-1) / started.sum(-1)
    return mean
