"""A setting's prediction from recorded steps: how many tokens a pass emits, and what the relaxation
costs.

Recorded steps start at the positions that the exact rule visits; a rule that accepts more visits
others. Acceptance depends on the place in the image, so steps are averaged by row of the image
first: in a row whose steps emit m tokens in the mean, 1 / m passes are made per token. The rows of
a preview are shorter, and count by their tokens.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from search_spaces.acceptance import AcceptanceRule
from search_spaces.neighbourhoods import NeighbourTables
from search_spaces.trees import TreePolicy
from search_spaces.trial import DecodingConfig
from workers.data.grid import Grid
from workers.metrics.estimate import Estimate, block_sizes, with_left_out
from workers.replay.outcomes import StepOutcomes, step_outcomes
from workers.replay.recording import RecordedSteps
from workers.replay.subtrees import subtree

LENGTH = "mean_accepted_length"
MEASURES = ("total_variation", "excess", "code_distance", "surprise")
QUANTITIES = (LENGTH, *MEASURES)


@dataclass(frozen=True, slots=True)
class Prediction:
    """Predicted values, with standard errors over blocks of captions.

    The mean accepted length is in tokens per target pass, prefill excluded; the measures of
    `StepOutcomes` are means per emitted token.
    """

    values: Mapping[str, Estimate]  # by name (`QUANTITIES`)
    # Whether drafts depend on the rule or on what was accepted before, so that the replayed ones
    # are not quite the setting's own.
    approximate: bool = False

    @property
    def mean_accepted_length(self) -> Estimate:
        return self.values[LENGTH]

    @classmethod
    def vanilla(cls, images: int) -> Prediction:
        """One token per pass, without any relaxation: known, not predicted."""
        return cls.lossless(Estimate(1.0, 0.0, images))

    @classmethod
    def lossless(cls, length: Estimate, *, approximate: bool = False) -> Prediction:
        """A mean accepted length without any relaxation: a lossless setting has none, whatever
        recorded steps say up to rounding.
        """
        known = {name: Estimate(0.0, 0.0, length.n) for name in MEASURES}
        return cls({LENGTH: length, **known}, approximate)


@dataclass(frozen=True, eq=False)
class Recording:
    """The recorded steps of a setting."""

    config: DecodingConfig
    steps: RecordedSteps
    block: Tensor  # [S] block of each step's caption
    images: int  # number of images
    grid: Grid

    def outcomes(
        self, rule: AcceptanceRule, tables: NeighbourTables, tree: TreePolicy | None = None
    ) -> StepOutcomes:
        """The outcomes of a rule on the recorded trees, or on `tree`, which they must contain."""
        steps = self.steps
        if rule.neighbourhood.reads_ranking:
            steps = self._ranked_steps
        if tree is None:
            return step_outcomes(steps, rule, tables, self.grid)
        kept, levels = subtree(steps, self.config.policy, tree)
        return step_outcomes(steps, rule, tables, self.grid, kept=kept, levels=levels)

    @cached_property
    def _ranked_steps(self) -> RecordedSteps:
        """The steps with their ranking, which is computed once if they lack it."""
        if self.steps.ranking is not None:
            return self.steps
        return self.steps.ranked()

    @cached_property
    def own_speed(self) -> float:
        """Tokens per pass of the recorded rule, which has no neighbourhood."""
        rule = self.config.acceptance
        outcomes = step_outcomes(self.steps, rule, NeighbourTables(), self.grid, costs=False)
        return self.predict(outcomes).mean_accepted_length.value

    def predict(
        self, outcomes: StepOutcomes, step: Tensor | None = None, position: Tensor | None = None
    ) -> Prediction:
        """Predict from the outcomes of the recorded steps, or of R simulated passes at `position`
        [R], for which the recorded steps `step` [R] stand.
        """
        block = self.block
        if step is not None:
            block = block[step]
        if position is None:
            position = self.steps.position
        lines = torch.tensor(self.grid.lines, dtype=torch.float64)
        return predict(outcomes, block, self.grid.line(position), self.images, lines)


def predict(
    outcomes: StepOutcomes,
    block: Tensor,
    image_row: Tensor,
    images: int,
    row_tokens: Tensor | None = None,
) -> Prediction:
    """The prediction from the outcomes of S steps.

    Args:
        outcomes: the outcomes.
        block: [S] block of each step's caption.
        image_row: [S] row of the image in which the step starts.
        images: number of images.
        row_tokens: tokens of each row of an image; None: all rows have as many.

    Raises:
        MetricUnavailable: there are fewer than two blocks.
    """
    blocks = block_sizes(block).numel()
    rows = int(image_row.max()) + 1
    columns = [
        torch.ones_like(outcomes.emitted),
        outcomes.emitted,
        *(getattr(outcomes, name) for name in MEASURES),
    ]
    sums = torch.zeros(blocks * rows, len(columns), dtype=torch.float64)
    sums.index_add_(0, (block * rows + image_row).cpu(), torch.stack(columns, dim=1).double().cpu())
    weights = torch.ones(rows, dtype=torch.float64) if row_tokens is None else row_tokens[:rows]
    # [1 + blocks, 1 + measures]
    values = _per_token(with_left_out(sums.view(blocks, rows, -1)), weights)
    values[:, 0] = 1 / values[:, 0]  # passes per token to tokens per pass
    estimates = (Estimate.from_replicates(column, images) for column in values.unbind(1))
    return Prediction(dict(zip(QUANTITIES, estimates, strict=True)))


def interpolate(first: Prediction, second: Prediction, weight: float) -> Prediction:
    """A prediction between two from recordings of the same captions, with this weight of the
    second: linear in the measures and in the log of the accepted length.
    """
    values = {
        name: _between(estimate, second.values[name], weight, log=name == LENGTH)
        for name, estimate in first.values.items()
    }
    return Prediction(values, first.approximate or second.approximate)


def _between(first: Estimate, second: Estimate, weight: float, *, log: bool) -> Estimate:
    columns = torch.tensor(
        [(entry.value, *entry.replicates) for entry in (first, second)], dtype=torch.float64
    )
    if log:
        columns = columns.log()
    values = (1 - weight) * columns[0] + weight * columns[1]
    if log:
        values = values.exp()
    return Estimate.from_replicates(values, first.n)


def _per_token(sums: Tensor, weights: Tensor) -> Tensor:
    """Passes and measures per token [n, 1 + measures], from sums over steps [n, rows, 2 +
    measures], with these weights [rows] of the rows.
    """
    steps = sums[..., :1]
    emitted = sums[..., 1:2]
    started = steps > 0  # a row in which no step starts counts as the others do
    parts = torch.where(started, torch.cat([steps, sums[..., 2:]], dim=-1) / emitted, 0.0)
    weights = weights[:, None]
    mean: Tensor = (parts * weights).sum(1) / (started * weights).sum(1)
    return mean
