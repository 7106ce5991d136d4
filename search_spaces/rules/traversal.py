"""Traversal verification: the drafts of a whole tree are tested together."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from search_spaces.verification import (
    VERIFICATIONS,
    BlockVerification,
    Siblings,
    Stops,
    TreeTests,
    TreeVerification,
)

if TYPE_CHECKING:
    from torch import Tensor


@VERIFICATIONS.register
@dataclass(frozen=True, slots=True)
class TraversalVerification(BlockVerification, TreeVerification):
    """Block verification of trees: as exact as testing each draft alone, and never shorter in the
    mean. On a chain it is block verification.

    P of the root is 1. A child x gets P(x) = min(1, P q(x) / p(x)) from its parent's P, q and p,
    and is accepted with that probability if it is a leaf. Otherwise the traversal goes through the
    child's own children first. If x is rejected, its parent gets, with S = sum_y [P q(y) -
    p(y)]_+, P <- S / (S + 1 - P), q <- [P q - p]_+ / S and p without x. A slot whose children are
    all rejected is a leaf. The next token is sampled from the q of the accepted slot.
    """

    kind: ClassVar[str] = "traversal"
    short: ClassVar[str] = "trav"
    summary: ClassVar[str] = "the drafts of a tree are tested together"
    paper: ClassVar[str] = "traversal verification (arXiv:2505.12398)"
    exact: ClassVar[bool] = True

    def stops(self, tests: TreeTests) -> Stops:
        # A slot is tested only after all slots before it were rejected: P depends on the drafts,
        # and on no random number.
        passes = tests.target.new_ones(tests.tokens.shape)
        for level in tests.levels:
            _visit(level, tests, passes)
        return Stops(passes, tests.target)


def _visit(level: Siblings, tests: TreeTests, passes: Tensor) -> None:
    """Write P of a level's children to `passes`, and P and q of their F parents, after all of them
    were rejected, to `passes` and `tests.target`.
    """
    reach = passes.index_select(1, level.parents)  # [B, F] P
    q = tests.target.index_select(1, level.parents)  # [B, F, V]
    p = tests.proposal.index_select(1, tests.proposal_index.index_select(0, level.parents))
    tokens = tests.tokens.index_select(1, level.children)
    eligible = tests.eligible.index_select(1, level.children)
    ratios = passes.new_empty(tokens.shape)
    by_rank = (part.split_with_sizes(level.counts, 1) for part in (tokens, eligible, ratios))
    for token, is_eligible, ratio in zip(*by_rank, strict=True):
        x = token[..., None]
        own = slice(x.shape[1])  # the parents that have a child of this rank
        # without p, P and q do not change
        proposal = p[:, own].masked_fill_(is_eligible.logical_not()[..., None], 0)
        left = q[:, own] * reach[:, own, None]
        ratio.copy_((left.gather(2, x) / proposal.gather(2, x))[..., 0])
        left.sub_(proposal).clamp_min_(0)
        mass = left.sum(2)
        total = mass + (1 - reach[:, own])
        reach[:, own] = (mass / total).masked_fill(total == 0, 1)
        q[:, own] = (left / mass[..., None]).where(mass[..., None] > 0, q[:, own])
        # if nothing remains, there is no child of the next rank
        proposal.scatter_(2, x, 0)
        proposal.div_(proposal.sum(2, keepdim=True))
    ratios.clamp_max_(1).masked_fill_(eligible.logical_not(), 0)
    passes.index_copy_(1, level.children, ratios)
    passes.index_copy_(1, level.parents, reach)
    tests.target.index_copy_(1, level.parents, q)
