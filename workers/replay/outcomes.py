"""What an acceptance rule would have done at recorded steps, in expectation over the acceptance
tests' random numbers.

Siblings are tried in order, as in decoding, at all inner slots of all steps at once; a node is
reached with the product of the probabilities along its path. The only noise left is that of the
recorded drafts.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn.functional import pad

from search_spaces.acceptance import AcceptanceRule, Relaxation
from search_spaces.modulations import Nodes
from search_spaces.neighbourhoods import NeighbourhoodMass, NeighbourTables
from workers.data.grid import Grid
from workers.decoding.accept import remove_and_renormalise
from workers.replay.recording import RecordedSteps, StepColumns


@dataclass(frozen=True, slots=True, eq=False)
class StepOutcomes(StepColumns):
    """Expectations of a rule at S steps. All but `at_least` are sums over the emitted tokens."""

    at_least: Tensor  # [S, D] probability that so many drafts are accepted; 1 for none
    # [S] between each token's distribution, given the tokens before it, and the target's. Exact
    # where children are chosen, and in the mean over drafts for a chain of sampled ones with
    # optimal resampling (Cool-SD, Theorem 2). With the papers' resampling, or several sampled
    # siblings, an upper bound: the sum over sibling tests of what each adds.
    total_variation: Tensor
    excess: Tensor  # [S] probability mass accepted beyond the exact rule's
    code_distance: Tensor  # [S] excess times this measure of the accepted token
    surprise: Tensor  # [S] excess times this measure of the accepted token

    @property
    def emitted(self) -> Tensor:
        """Tokens emitted [S]: accepted drafts and one more."""
        return self.at_least.sum(1)


def step_outcomes(
    steps: RecordedSteps,
    rule: AcceptanceRule,
    tables: NeighbourTables,
    grid: Grid,
    *,
    kept: Tensor | None = None,
    levels: Tensor | None = None,
    costs: bool = True,
) -> StepOutcomes:
    """Apply a rule to steps.

    Args:
        steps: the steps.
        rule: the acceptance rule.
        tables: its neighbour tables.
        grid: the images' token grid.
        kept: [S, N] bool: use only the sub-tree of these nodes.
        levels: [S] drafted levels of the sub-trees.
        costs: compute `total_variation` too, which takes most of the time of a relaxed rule;
            without it, its values are not those of the rule.
    """
    depth = steps.depth if kept is None else steps.depth * kept
    eligible = (depth > 0) & (depth < steps.remaining[:, None])
    relaxation = _relaxation(steps, rule, tables, grid, levels)
    siblings = _Siblings(steps, rule, relaxation, eligible, costs)
    for rank in range(steps.children.shape[2]):
        siblings.test(rank)
    return _along_paths(steps, siblings, siblings.total_variation().view(steps.inner.shape))


def _relaxation(
    steps: RecordedSteps,
    rule: AcceptanceRule,
    tables: NeighbourTables,
    grid: Grid,
    levels: Tensor | None,
) -> Relaxation:
    """How much the tests of all inner slots of all steps, [S * I], are relaxed."""
    depth = pad(steps.depth, (1, 0)).gather(1, steps.inner)  # of the slots; 0 for the root
    position = (steps.position[:, None] + depth).clamp(max=grid.tokens - 1)
    nodes = Nodes(steps.target.flatten(0, 1), grid.height(position).flatten())
    return rule.relaxation(_omegas(rule, steps, levels, depth).flatten(), nodes, tables)


def _omegas(
    rule: AcceptanceRule, steps: RecordedSteps, levels: Tensor | None, depth: Tensor
) -> Tensor:
    """The schedule's budgets [S, I] of the children of slots at depth [S, I]; 1 where none are
    drafted.
    """
    levels = steps.levels if levels is None else levels
    counts = set(levels.tolist())
    table = torch.ones(max(counts, default=0) + 1, _deepest(steps) + 2, device=levels.device)
    for count in counts:
        budgets = torch.tensor(rule.schedule.checked_omegas(count), device=levels.device)[
            : table.shape[1] - 1
        ]
        table[count, 1 : len(budgets) + 1] = budgets
    return table[levels[:, None], depth + 1]


def _deepest(steps: RecordedSteps) -> int:
    """The largest depth of a node; 0 if there is none."""
    if steps.depth.numel():
        return int(steps.depth.max())
    return 0


class _Siblings:
    """The tests of all inner slots of all steps, flattened to S * I rows.

    `accept` [S, N] is a node's probability of being accepted once its parent is, and `excess`
    [S, N] by how much that is higher than under the exact rule. `bias` [S * I] is the sum over the
    tests of sampled children of the total variation that each adds.
    """

    def __init__(
        self,
        steps: RecordedSteps,
        rule: AcceptanceRule,
        relaxation: Relaxation,
        eligible: Tensor,
        costs: bool,
    ) -> None:
        self.steps = steps
        self.rule = rule
        self.relaxation = relaxation
        self.eligible = eligible
        self.step = torch.arange(len(steps), device=eligible.device).repeat_interleave(
            steps.inner.shape[1]
        )
        self.children = steps.children.flatten(0, 1)
        self.residual = steps.target.flatten(0, 1)
        self.proposal = None
        if steps.proposal is not None:
            self.proposal = steps.proposal.flatten(0, 1)
        self.ranks = steps.children.shape[2]
        if self.ranks > 1 or self.proposal is None:  # a rejection changes them for later siblings
            self.residual = self.residual.clone()
            if self.proposal is not None:
                self.proposal = self.proposal.clone()
        self.tested = torch.zeros(len(self.step), dtype=torch.bool, device=eligible.device)
        # The probability that no earlier sibling was accepted.
        self.open = torch.ones(len(self.step), device=eligible.device)
        self.accept = torch.zeros(steps.tokens.shape, device=eligible.device)
        self.excess = torch.zeros_like(self.accept)
        self.bias = torch.zeros_like(self.open)
        is_paper = costs and rule.resampling == "paper" and not rule.neighbourhood.exact
        self.optimal: AcceptanceRule | None = None
        if is_paper and self.proposal is not None:
            self.optimal = replace(rule, resampling="optimal")

    def test(self, rank: int) -> None:
        """Test the children of one rank. Later ranks may have children where this one has none."""
        child = self.children[:, rank]
        is_tested = (child >= 0) & self.eligible[self.step, child.clamp(min=0)]
        self.tested |= is_tested
        rows = (is_tested & (self.open > 0)).nonzero()[:, 0]
        step = self.step[rows]
        node = child[rows]
        rule = self.rule
        x = self.steps.tokens[step, node]
        r = self.residual[rows]
        p = None if self.proposal is None else self.proposal[rows]
        omega, tables = self._relaxation(rank, rows)
        mass = rule.neighbourhood.mass(r, p, x, tables)
        prob = rule.acceptance_prob(mass, omega)
        exact = r.gather(1, x[:, None])[:, 0]
        if p is not None:
            exact = exact / p.gather(1, x[:, None])[:, 0]
        self.accept[step, node] = self.open[rows] * prob
        bias = (prob - exact).clamp_min(0)
        self.excess[step, node] = self.open[rows] * bias
        self.bias[rows] += self.open[rows] * bias
        self.open[rows] *= 1 - prob
        if self.proposal is None or self.optimal is not None or rank + 1 < self.ranks:
            left = (prob < 1).nonzero()[:, 0]
            mass = NeighbourhoodMass(*(None if part is None else part[left] for part in mass))  # type: ignore[arg-type]
            self._reject(rank, rows[left], x[left], mass)

    def _reject(self, rank: int, rows: Tensor, x: Tensor, mass: NeighbourhoodMass) -> None:
        """Replace the residuals of rows whose children x of this rank may be rejected."""
        r = self.residual[rows]
        p = None if self.proposal is None else self.proposal[rows]
        omega, tables = self._relaxation(rank, rows)
        after_rejection = self.rule.residual(r, p, x, omega, mass, tables)
        if self.optimal is not None:
            best = self.optimal.residual(r, p, x, omega, mass, tables)
            self.bias[rows] += self.open[rows] * _total_variation(after_rejection, best)
        if p is None or rank + 1 < self.ranks:
            self.residual[rows] = after_rejection
        if self.proposal is not None and p is not None and rank + 1 < self.ranks:
            self.proposal[rows] = remove_and_renormalise(p, x, torch.ones_like(x, dtype=torch.bool))

    def _relaxation(self, rank: int, rows: Tensor) -> Relaxation:
        """How much the tests of these rows are relaxed. The tables have the ranking of the target's
        probs if it is recorded and no child was rejected before.
        """
        found = self.relaxation.select(rows)
        if self.steps.ranking is None or rank > 0:
            return found
        ranking = self.steps.ranking.flatten(0, 1)[rows]
        return found._replace(tables=replace(found.tables, ranking=ranking))

    def total_variation(self) -> Tensor:
        """The total variation of the token after each slot, [S * I] (see `StepOutcomes`)."""
        if self.proposal is not None:
            return self.bias
        rows = self.tested.nonzero()[:, 0]
        probs = self.open[rows, None] * self.residual[rows]
        step = self.step[rows, None]
        drafted = self.children[rows].clamp(min=0)
        probs.scatter_add_(
            1,
            self.steps.tokens[step, drafted],
            self.accept[step, drafted] * (self.children[rows] >= 0),
        )
        found = torch.zeros_like(self.open)
        found[rows] = _total_variation(probs, self.steps.target.flatten(0, 1)[rows])
        return found


def _total_variation(a: Tensor, b: Tensor) -> Tensor:
    """The total variation [n] between the rows of a and b [n, V]."""
    return (a - b).abs().sum(1) / 2


def _along_paths(
    steps: RecordedSteps, siblings: _Siblings, total_variation: Tensor
) -> StepOutcomes:
    """Multiply the probabilities along every path. `total_variation` [S, I] is that of the token
    after each slot.
    """
    count, nodes = steps.tokens.shape
    row = torch.arange(count, device=siblings.accept.device)[:, None]
    reach = torch.zeros(count, nodes + 1, device=row.device)  # probability that a slot is reached
    reach[:, 0] = 1
    excess = torch.zeros_like(reach)
    distance = torch.zeros(count, device=row.device)
    for index in range(steps.inner.shape[1]):  # parents come first
        child = steps.children[:, index].clamp(min=0)
        drafted = steps.children[:, index] >= 0
        slot = torch.where(drafted, child + 1, 0)
        at_slot = reach[row, steps.inner[:, index, None]]
        distance += at_slot[:, 0] * total_variation[:, index]
        at_parent = at_slot * drafted
        reach.scatter_add_(1, slot, at_parent * siblings.accept[row, child])
        excess.scatter_add_(1, slot, at_parent * siblings.excess[row, child])
    excess = excess[:, 1:]
    at_least = reach.new_zeros(count, _deepest(steps) + 1).scatter_add_(
        1, pad(steps.depth, (1, 0)), reach
    )
    return StepOutcomes(
        at_least,
        distance,
        excess.sum(1),
        (excess * steps.code_distance).sum(1),
        (excess * steps.surprise).sum(1),
    )
