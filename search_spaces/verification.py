"""Verification: how drafts are accepted, one at a time or together, and which are emitted without a
test.

Shapes: B rows, N drafts, V tokens. A rule's ratios are omega S_q(x) / p(x) (see `acceptance`); q_i
and p_i are the target's and the drafter's probs at draft i, and x_i is its token. Everything here
uses tensors' methods only.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar, NamedTuple

from search_spaces.drafters import DRAFTERS, DrafterChoice
from search_spaces.params import ConfigError, Params, Range, Symbol
from search_spaces.plugins import Registry
from search_spaces.trees import TreePolicy

if TYPE_CHECKING:
    from torch import Tensor


class ChainTests(NamedTuple):
    """What decides whether the drafts of a chain are accepted."""

    eligible: Tensor  # [B, N] whether a draft may be accepted; a prefix of the chain
    tokens: Tensor  # [B, N]
    ratios: Tensor  # [B, N] the rule's ratios; 0 where p(x) is 0 or the draft is not eligible
    target: Tensor  # [B, N, V] q
    proposal: Tensor | None  # [B, N, V] p; None: the drafts were chosen, so p is 1 at them


class Lengths(NamedTuple):
    """How many drafts of a chain are accepted, and what follows them."""

    # [B, N] the probability that the first i drafts, and maybe more, are accepted; it falls with i.
    # The last is NaN in a row whose probs are not finite.
    at_least: Tensor
    # [B, N + 1] if i drafts are accepted and the next is not, a token is sampled from
    # norm([weight_i q - p]_+) in its place; None: 1 everywhere.
    weight: Tensor | None = None


class Siblings(NamedTuple):
    """The slots of one depth that have children, and the children."""

    parents: Tensor  # [F] slots, those with the most children first
    children: Tensor  # [C] the slots of their children, by rank
    counts: list[int]  # how many of the parents have a child of each rank


class TreeTests(NamedTuple):
    """What decides which draft of a tree is accepted last, for the S = N + 1 slots of a tree that
    all rows share: slot 0 is the root, slot i is draft i - 1.
    """

    levels: tuple[Siblings, ...]  # from the root down
    # [B, S] whether a draft may be accepted if its ancestors may; if it may, so may its siblings of
    # lower ranks.
    eligible: Tensor
    tokens: Tensor  # [B, S]
    target: Tensor  # [B, S, V] q after each slot; may be overwritten
    proposal: Tensor  # [B, M, V] p, the distributions that children were sampled from
    proposal_index: Tensor  # [S] which of them the children of a slot were sampled from


class Stops(NamedTuple):
    """Which slot of a tree is accepted last, and what follows it."""

    # [B, S] the probability that a slot is accepted last if none of those before it is: its
    # descendants, and the earlier siblings of it and of its ancestors with theirs. 1 for the root,
    # NaN in a row whose probs are not finite.
    passes: Tensor
    residual: Tensor  # [B, S, V] what a token is sampled from behind a slot that is accepted last


class Verification(Params, ABC):
    """How many drafts of a chain are accepted."""

    __slots__ = ()
    # Whether tokens follow the target's distribution with the exact rule and fresh drafts.
    exact: ClassVar[bool]
    # Whether the acceptance of a draft depends on the drafts after it. Then the rule must be exact,
    # the tree a chain (unless it is a `TreeVerification`), and the drafts of a pass need random
    # numbers that no earlier pass has used. Otherwise each draft is tested alone, by its ratio and
    # a number of its own, and `lengths` is not called.
    reads_later_drafts: ClassVar[bool] = True
    # "module:Class" of a drafting around the tree policy's own, which decides what is not verified;
    # "" if all drafts are verified.
    implementation: ClassVar[str] = ""

    @property
    def work(self) -> str | Verification:
        """What the cost of a pass depends on: the kind alone, if its numbers do not change the
        cost.
        """
        return self.kind

    @abstractmethod
    def lengths(self, tests: ChainTests) -> Lengths:
        """The probabilities of the accepted lengths."""

    def check_drafts(self, drafter: DrafterChoice, policy: TreePolicy) -> None:
        """Raise ConfigError, with the key of the rule, if it is not defined for such drafts: they
        are not a chain, or depend on the drafts of earlier passes.
        """
        if not self.reads_later_drafts:
            return
        self.check_tree(drafter, policy)
        if self.exact and not drafter.draws_afresh:
            problem = (
                f"{self.kind!r} is exact only if no pass reuses the numbers of drafts; set "
                "drafter.redraw to fresh"
            )
            raise ConfigError(("verification",), problem)

    def check_tree(self, drafter: DrafterChoice, policy: TreePolicy) -> None:
        """Raise ConfigError if it does not test the trees of a policy together."""
        if policy.fixed is None or policy.bounds.width > 1:
            problem = (
                f"{self.kind!r} verifies chains alone; set tree.policy to chain, not "
                f"{policy.kind!r}"
            )
            raise ConfigError(("verification",), problem)


class TreeVerification(Verification, ABC):
    """A verification that also tests the drafts of a fixed tree together. They must be sampled, the
    children of each slot with random numbers of their own.
    """

    __slots__ = ()

    @abstractmethod
    def stops(self, tests: TreeTests) -> Stops:
        """The probabilities of the slots of a tree that branches."""

    def check_tree(self, drafter: DrafterChoice, policy: TreePolicy) -> None:
        if not policy.is_sampled:
            problem = (
                f"{self.kind!r} accepts no more of chosen drafts than {TOKEN.kind!r} does; use a "
                "fixed tree with children: sampled"
            )
            raise ConfigError(("verification",), problem)
        if policy.fixed is None:
            problem = (
                f"{self.kind!r} needs a tree that is the same in every pass, and {policy.kind!r} "
                "is not; set tree.policy to static or chain"
            )
            raise ConfigError(("verification",), problem)
        if not drafter.has_weights and policy.bounds.width > 1:
            problem = (
                f"{self.kind!r} needs branches with drafts of their own, and those of "
                f"{drafter.kind!r} share theirs; set tree.policy to chain"
            )
            raise ConfigError(("verification",), problem)


VERIFICATIONS: Registry[type[Verification]] = Registry("verification", "search_spaces.rules")


@VERIFICATIONS.register
@dataclass(frozen=True, slots=True)
class TokenVerification(Verification):
    """Each draft is tested alone, and the first rejection ends the chain (Leviathan et al.)."""

    kind: ClassVar[str] = "token"
    summary: ClassVar[str] = "each draft is tested alone"
    exact: ClassVar[bool] = True
    reads_later_drafts: ClassVar[bool] = False

    def lengths(self, tests: ChainTests) -> Lengths:
        return Lengths(tests.ratios.clamp_max(1).cumprod(1))


@VERIFICATIONS.register
@dataclass(frozen=True, slots=True)
class BlockVerification(Verification):
    """All drafts together (block verification, Sun et al.): as exact as testing each alone, and
    never shorter in the mean.

    P_0 = 1, P_i = min(1, P_{i-1} q_i(x_i) / p_i(x_i)). The accepted length is the largest i whose
    own test passes, with probability h_i = S_i / (S_i + 1 - P_i) and S_i = sum_x [P_i q_{i+1}(x) -
    p_{i+1}(x)]_+; h_N = P_N. The next token is sampled from norm([P_i q_{i+1} - p_{i+1}]_+).
    """

    kind: ClassVar[str] = "block"
    summary: ClassVar[str] = "the drafts of a chain are tested together"
    paper: ClassVar[str] = "block verification (arXiv:2403.10444)"
    exact: ClassVar[bool] = True

    def lengths(self, tests: ChainTests) -> Lengths:
        # P_i is the least product of any number of the last ratios up to i.
        logs = tests.ratios.new_zeros(tests.ratios.shape[0], tests.ratios.shape[1] + 1).double()
        logs[:, 1:] = tests.ratios.log().cumsum(1, dtype=logs.dtype)
        reach = (logs - logs.cummax(1).values).exp()  # P_0 .. P_N
        rank = tests.eligible.cumsum(1)
        # The last eligible draft has h = P; the drafts after it have P = 0.
        is_last = (rank == rank[:, -1:])[:, :-1]
        passes = reach[:, 1:].clone()
        passes[:, :-1] = reach[:, 1:-1].where(
            is_last, self._tests_before_last(tests, reach[:, 1:-1])
        )
        return Lengths((1 - (1 - passes).flip(1).cumprod(1).flip(1)).to(tests.target.dtype), reach)

    def _tests_before_last(self, tests: ChainTests, reach: Tensor) -> Tensor:
        """h_1 .. h_{N-1} [B, N - 1], from P_1 .. P_{N-1}."""
        if tests.proposal is None:  # p is 1 at the next draft: all other tokens remain
            drafted = tests.target[:, 1:].gather(2, tests.tokens[:, 1:, None])[..., 0]
            remaining = reach * (1 - drafted).clamp_min(0)
        else:
            scaled = tests.target[:, 1:] * reach.to(tests.target.dtype)[..., None]
            remaining = (scaled - tests.proposal[:, 1:]).clamp_min(0).sum(2, dtype=reach.dtype)
        total = remaining + (1 - reach)
        return (remaining / total).masked_fill(total == 0, 1)


@VERIFICATIONS.register
@dataclass(frozen=True, slots=True)
class JointVerification(Verification):
    """Runs of drafts that the target is ever surer of are accepted together (SJD-SV). Biased.

    The chain is cut where q_i(x_i) falls. A run's last drafts, as few as hold the share `alpha` of
    the run's sum of q_i(x_i), are accepted with probability min(1, product of q_i / p_i), the
    drafts before them untested; if they are not, the same is tried without the last of them, and so
    on, with one random number for a run. After a rejection the token is sampled from norm([q -
    p]_+). A draft with q_i(x_i) = 0 is a run of its own here, so it is never accepted.
    """

    kind: ClassVar[str] = "joint"
    summary: ClassVar[str] = "runs of drafts are tested together, their first drafts not at all"
    paper: ClassVar[str] = "SJD-SV (arXiv:2609.13245)"
    exact: ClassVar[bool] = False
    alpha: Annotated[
        float,
        "share of a run's probability that its tested drafts hold; 1 tests all",
        Range(0, 1, open_low=True),
        Symbol("a"),
    ] = 0.8

    def lengths(self, tests: ChainTests) -> Lengths:
        drafted = tests.target.gather(2, tests.tokens[..., None])[..., 0] * tests.eligible
        impossible = drafted == 0
        starts = impossible.clone()
        starts[:, 1:] |= impossible[:, :-1]
        starts[:, 1:] |= drafted[:, 1:] < drafted[:, :-1]
        run = starts.cumsum(1)
        same = run[:, :, None] == run[:, None]  # [B, i, j]: drafts i and j are of one run
        later = same.triu()
        held, in_run = ((drafted[:, None] * part).sum(2) for part in (later, same))
        untested = (same.triu(1) & (held >= self.alpha * in_run)[:, None]).any(2)
        logs = tests.ratios.log()[:, None].masked_fill(~same.tril() | untested[:, None], 0).sum(2)
        chance = logs.clamp_max(0).exp()
        within = chance[:, None].masked_fill(~later, 0).amax(2).masked_fill(untested, 1)
        # At the start of a run, the probability of the whole run before it, which is that of its
        # last draft; 1 elsewhere.
        before = within.new_ones(within.shape)
        before[:, 1:] = within[:, :-1].masked_fill(~starts[:, 1:], 1)
        return Lengths(within * before.cumprod(1))


class Skipping(TokenVerification, ABC):
    """Some drafts are emitted unverified (VVS): the token at the end of a random path of the tree
    is the root of a second tree, which is verified. It is not lossless.
    """

    __slots__ = ()
    exact: ClassVar[bool] = False
    implementation: ClassVar[str] = "workers.decoding.skipping:SkippingDrafting"

    @property
    def work(self) -> Verification:
        return self

    def check_drafts(self, drafter: DrafterChoice, policy: TreePolicy) -> None:
        """Raise ConfigError if the drafter or the tree cannot go on after unverified tokens."""
        if not drafter.goes_on_unverified:
            able = ", ".join(name for name, choice in DRAFTERS.items() if choice.goes_on_unverified)
            problem = (
                f"{self.kind!r} needs a drafter that goes on behind unverified tokens; choose one "
                f"of {able}"
            )
            raise ConfigError(("verification",), problem)
        if policy.adapts_to_rule:
            problem = (
                f"{self.kind!r} cannot be combined with {policy.kind!r} trees, which follow "
                "accepted lengths"
            )
            raise ConfigError(("verification",), f"{problem}; use another tree")


@VERIFICATIONS.register
@dataclass(frozen=True, slots=True)
class UniformSkipping(Skipping):
    """Of every `interval` rounds of drafting, the second one is not verified."""

    kind: ClassVar[str] = "uniform_skipping"
    short: ClassVar[str] = "uskip"
    summary: ClassVar[str] = "one round of drafts in {interval} is accepted without a test"
    paper: ClassVar[str] = "VVS (arXiv:2511.13587)"
    interval: Annotated[
        int, "rounds of drafting, of which one is not verified", Range(2), Symbol("i")
    ] = 5


@VERIFICATIONS.register
@dataclass(frozen=True, slots=True)
class DynamicSkipping(Skipping):
    """A verified round is followed by one that is not, if the paths of its tree are similar.

    The similarity of two paths at a level is the cosine of their tokens' codebook rows there, 0 if
    one of them is shorter. It is averaged over all pairs of every second path, depth first, and
    over the longest one's levels l with weights 0.9^l.
    """

    kind: ClassVar[str] = "dynamic_skipping"
    short: ClassVar[str] = "dskip"
    summary: ClassVar[str] = (
        "drafts are accepted without a test where the paths of their tree are similar"
    )
    paper: ClassVar[str] = "VVS (arXiv:2511.13587)"
    threshold: Annotated[
        float,
        "mean similarity of the paths from which a round is not verified",
        Range(-1, 1),
        Symbol("t"),
    ] = 0.7


TOKEN = TokenVerification()
