"""Verification: which drafts of a tree are accepted, and which token follows them.

All rules, trees and drafters use the same loop; a chain has no siblings and needs no loop. As in
SpecInfer and EAGLE, siblings are tested in order, each against the residual of the target's probs
after the rejections before it (rejection sampling without replacement). This module supplies the
random numbers, so the rules are deterministic functions.
"""

from __future__ import annotations

from dataclasses import astuple, dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from search_spaces.acceptance import AcceptanceRule, Relaxation
from search_spaces.modulations import NO_MODULATION, Nodes
from search_spaces.neighbourhoods import NeighbourhoodMass, NeighbourTables
from search_spaces.trial import Sampling
from search_spaces.verification import ChainTests, TreeTests, TreeVerification
from workers.data.grid import Grid
from workers.decoding.kernels import FusedRule, accept_tree, is_available
from workers.decoding.rng import CounterRNG, Purpose
from workers.decoding.sampling import to_probs
from workers.decoding.state import Batch
from workers.decoding.tree import DraftTree, gather_rows, row_starts, with_root


@dataclass(slots=True)
class AcceptResult:
    """The outcome of a pass for B rows. W = deepest level reached + 1."""

    # [B, W] tree slots: the root, then the accepted nodes. Entries past a row's own length repeat
    # its last slot. None if the path is the first W slots, as in any chain.
    path: Tensor | None
    # [B, W] the accepted drafts, then the resampled or bonus token at index num_accepted. Entries
    # after it are undefined.
    tokens: Tensor
    num_accepted: Tensor  # [B] accepted drafts
    next_root: Tensor  # [B] the resampled or bonus token
    nonfinite: Tensor  # [B] whether the probs that it was sampled from were not finite
    # [B, N+1, V] the target's probs after each slot of a chain. None if they were not computed.
    probs: Tensor | None = None
    # [B] how many of the accepted drafts were not verified. None if all were.
    unverified: Tensor | None = None
    num_emitted: Tensor = field(init=False)  # [B] num_accepted + 1

    def __post_init__(self) -> None:
        self.num_emitted = self.num_accepted + 1


def all_done(pending: Tensor) -> bool:
    """True if no row is pending and the host can read that without waiting for the device.

    On a CPU a flag costs nothing to read, so loops stop as soon as every row is decided. On an
    accelerator the read would wait for all queued kernels: loops run to their fixed bounds, and
    masks keep decided rows unchanged.
    """
    return pending.is_cpu and not bool(pending.any())


def max_on_host(depth: Tensor, bound: int) -> int:
    """The largest of depths [B] if the host can read it without waiting for the device, else
    `bound`.
    """
    if not depth.is_cpu:
        return bound
    deepest: int = max(depth.tolist())
    return deepest


# How many entries top-p may sort at once; more of them would need gigabytes of temporaries.
_MAX_SORTED = 1 << 26


class _Tests(NamedTuple):
    """The inputs of a tree's acceptance tests."""

    eligible: Tensor  # [B, N+1] whether a slot may be accepted
    tokens: Tensor  # [B, N+1] the slots' tokens
    uniforms: Tensor  # [B, levels, C] random numbers by depth and sibling rank
    omegas: Tensor  # [B, levels + 1] relaxation budgets by depth
    positions: Tensor  # [B, levels] positions of the tokens by depth


class _Level(NamedTuple):
    """The inputs that all acceptance tests at one depth share."""

    tree: DraftTree
    eligible: Tensor  # [B, N+1] whether a slot may be accepted
    tokens: Tensor  # [B, N+1] the slots' tokens
    uniforms: Tensor  # [B, C] random numbers by sibling rank
    relaxation: Relaxation


class Acceptor:
    """Verifies draft trees by one acceptance rule, for images of `grid`. `max_levels` bounds the
    drafted depth.
    """

    def __init__(
        self,
        rule: AcceptanceRule,
        tables: NeighbourTables,
        sampling: Sampling,
        max_levels: int,
        grid: Grid,
        device: torch.device,
    ) -> None:
        self.rule = rule
        self.tables = tables
        self.sampling = sampling
        omegas = torch.ones(max_levels + 1, max_levels + 1, device=device)
        for levels in range(1, max_levels + 1):
            omegas[levels, 1 : levels + 1] = torch.tensor(
                rule.schedule.checked_omegas(levels), device=device
            )
        self._omegas = omegas  # [drafted levels, depth]
        # the row of each token of an image (see `Nodes`)
        self._row = grid.height(torch.arange(grid.tokens, device=device))
        self._never = torch.zeros(1, 1, dtype=torch.bool, device=device)
        self._fused = [FusedRule.of(rule, sampled=sampled) for sampled in (False, True)]
        self._exact_greedy = rule.is_exact(temperature=0.0)

    def __call__(self, tree: DraftTree, logits: Tensor, batch: Batch) -> AcceptResult:
        """Decide a pass by the target's guided logits after each slot, [B, N+1, V].

        At most batch.remaining - 1 drafts are accepted: the resampled or bonus token is the image's
        last.
        """
        if self.sampling.temperature == 0:
            return self._accept_greedy(tree, logits, batch)
        if tree.shape.is_chain:
            return self._accept_chain(tree, logits, batch)
        return self._accept_tree(tree, logits, batch)

    def _relaxation(self, omega: Tensor, probs: Tensor, positions: Tensor) -> Relaxation:
        """How much tests are relaxed, from the schedule's budgets [n], the target's probs [n, V] at
        their nodes, and the positions, n in all, of the tokens after them.
        """
        if self.rule.modulation == NO_MODULATION:
            return Relaxation(omega, self.tables)
        row = self._row.index_select(0, positions.flatten().clamp(max=len(self._row) - 1))
        return self.rule.relaxation(omega, Nodes(probs, row), self.tables)

    def _accept_chain(self, tree: DraftTree, logits: Tensor, batch: Batch) -> AcceptResult:
        """A chain has no siblings: drafts are tested against the target's own probs, so all are
        tested at once.
        """
        probs = to_probs(logits, self.sampling)
        levels = tree.shape.max_depth
        if not levels:
            last = self.sample(probs[:, 0], batch.rng, batch.emitted)
            return AcceptResult(
                None, last[:, None], tree.levels, last, probs[:, 0, 0].isnan(), probs
            )
        num_accepted, residual = self.verify_chain(tree, probs, batch)
        last = self.sample(residual, batch.rng, batch.emitted + num_accepted)[:, None]
        tokens = torch.cat([tree.tokens, last], dim=1).scatter_(1, num_accepted[:, None], last)
        width = max_on_host(num_accepted, levels) + 1
        return AcceptResult(
            None, tokens[:, :width], num_accepted, last[:, 0], residual[:, 0].isnan(), probs
        )

    def verify_chain(self, tree: DraftTree, probs: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
        """The number of accepted drafts [B] of a chain, and the residual [B, V] that the next token
        is sampled from; it need not be normalised.

        Args:
            tree: the chain. Its acceptance tests are flattened to B * N rows.
            probs: [B, N+1, V] the target's probs after each slot.
            batch: the images, whose random numbers are used.
        """
        levels = tree.shape.max_depth
        # the number of drafts that may be accepted
        limit = tree.num_nodes.minimum((batch.image_len - 1) - batch.emitted).clamp_(min=0)
        x = tree.tokens.flatten()
        omega = self._omegas.index_select(0, tree.levels)[:, 1 : levels + 1].flatten()
        r = probs[:, :-1].flatten(0, 1)
        p = None if tree.probs is None else tree.probs.flatten(0, 1)
        relaxation = self._relaxation(omega, r, batch.token_positions[:, :levels])
        mass = self.rule.neighbourhood.mass(r, p, x, relaxation.tables)
        ratios = self.rule.ratio(mass, relaxation.omega).view_as(tree.tokens)
        lengths = None
        if self.rule.verification.reads_later_drafts:
            eligible = tree.shape.depth <= limit[:, None]
            tests = ChainTests(eligible, tree.tokens, ratios * eligible, probs[:, :-1], tree.probs)
            lengths = self.rule.verification.lengths(tests)
            # one number for the whole chain, that of the first draft's position: no later pass
            # tests there
            uniforms = batch.rng.uniforms(batch.token_positions[:, :1], 1)[..., 0]
            num_accepted = (uniforms < lengths.at_least).sum(1)
            # adds 0, or NaN if a test is NaN
            residual = gather_rows(probs, num_accepted).add(lengths.at_least[:, -1:], alpha=0)
        else:
            uniforms = batch.rng.uniforms(batch.token_positions[:, :levels], 1)[..., 0]
            num_accepted = (uniforms < ratios).cumprod(1).sum(1).minimum(limit)
            residual = gather_rows(probs, num_accepted)
        # the place of each row's last test among the flattened tests
        last = num_accepted.clamp(max=levels - 1) + row_starts(len(limit), levels, limit.device)
        rejected = num_accepted < limit
        if all_done(rejected):
            return num_accepted, residual
        mass = NeighbourhoodMass._make(
            part if part is None else part.index_select(0, last) for part in mass
        )
        if p is not None:
            p = p.index_select(0, last)
        x = x.index_select(0, last)
        omega, tables = relaxation.select(last)
        weighted = residual
        if lengths is not None and lengths.weight is not None:
            weighted = residual * lengths.weight.gather(1, num_accepted[:, None]).to(residual.dtype)
        after_rejection = self.rule.residual(weighted, p, x, omega, mass, tables)
        return num_accepted, torch.where(rejected[:, None], after_rejection, residual)

    def _accept_tree(self, tree: DraftTree, logits: Tensor, batch: Batch) -> AcceptResult:
        """Go from the root to the last accepted node, and sample the token after it."""
        tests = self._tests(tree, batch)
        fused = None
        is_sorted_by_level = self.sampling.top_p < 1 and logits.numel() > _MAX_SORTED
        if is_available(logits.device.type) and not is_sorted_by_level:
            fused = self._fused[tree.probs is not None]
        verification = self.rule.verification
        if isinstance(verification, TreeVerification):
            slots, num_accepted, residual = self._accept_together(verification, tree, tests, logits)
        elif fused is None:
            slots, num_accepted, residual = self._accept(tree, tests, logits)
        else:
            slots, num_accepted, residual = self._accept_at_once(fused, tree, tests, logits)
        last = self.sample(residual, batch.rng, batch.emitted + num_accepted)[:, None]
        drafts = tests.tokens.gather(1, slots[:, 1:])
        tokens = torch.cat([drafts, last], dim=1).scatter_(1, num_accepted[:, None], last)
        return AcceptResult(slots, tokens, num_accepted, last[:, 0], residual[:, 0].isnan())

    def _tests(self, tree: DraftTree, batch: Batch) -> _Tests:
        levels = tree.shape.max_depth
        positions = batch.token_positions[:, :levels]
        uniforms = batch.rng.uniforms(positions, tree.shape.width)
        eligible = tree.exists & (tree.shape.depth < batch.remaining[:, None])
        return _Tests(
            # the root's own entry stands for "no child" and is never eligible
            torch.cat([self._never.expand(len(eligible), 1), eligible], dim=1),
            with_root(tree.tokens),
            uniforms,
            self._omegas[:, : levels + 1].index_select(0, tree.levels),
            positions,
        )

    def _accept_at_once(
        self, rule: FusedRule, tree: DraftTree, tests: _Tests, logits: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """`_accept` as one kernel. The residual is not normalised."""
        proposals: list[Tensor] = []
        if tree.probs is not None and tree.probs_index is not None:
            proposals = [tree.probs, tree.probs_index]
        nodes = [tree.shape.children, tests.tokens, tests.eligible]
        probs = to_probs(logits, self.sampling)
        numbers = [tests.uniforms, tests.omegas]
        if self.rule.modulation != NO_MODULATION:
            numbers = [tests.uniforms, *self._relaxation_of_slots(tree, tests, probs)]
        result: tuple[Tensor, Tensor, Tensor] = accept_tree(
            probs,
            nodes,
            numbers,
            proposals,
            self.tables.neighbours,
            *astuple(rule),
        )
        return result

    def _relaxation_of_slots(
        self, tree: DraftTree, tests: _Tests, probs: Tensor
    ) -> tuple[Tensor, Tensor]:
        """The budgets and the modulation's factors of each slot's children, both [B, N+1]."""
        # the last level's slots have no children
        depth = tree.shape.offsets.expand(len(probs), -1).clamp(max=tests.positions.shape[1] - 1)
        omega = tests.omegas[:, 1:].gather(1, depth).flatten()
        positions = tests.positions.gather(1, depth)
        budget, tables = self._relaxation(omega, probs.flatten(0, 1), positions)
        assert isinstance(tables.factor, Tensor)
        return budget.view_as(depth), tables.factor.view_as(depth)

    def _accept_together(
        self, verification: TreeVerification, tree: DraftTree, tests: _Tests, logits: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """`_accept` of drafts that are tested together."""
        shape = tree.shape
        assert shape.post_order is not None, "the tree is fixed"
        assert tree.probs is not None, "its drafts are sampled"
        assert tree.probs_index is not None, "its drafts are sampled"
        stops = verification.stops(
            TreeTests(
                shape.levels,
                tests.eligible,
                tests.tokens,
                to_probs(logits, self.sampling),
                tree.probs,
                tree.probs_index[0],
            )
        )
        # the probability that a slot up to this one, in the order of the tests, is accepted last
        passes = stops.passes.index_select(1, shape.post_order)
        reached = 1 - (1 - passes[:, :-1]).cumprod(1)
        # one number for the whole tree, that of the first draft: no later pass tests its position
        rank = (tests.uniforms[:, 0, :1] < reached).logical_not().sum(1)
        last = shape.post_order.index_select(0, rank)
        num_accepted = gather_rows(shape.offsets, last)
        path, _ = _trace_path(tree, last, num_accepted)
        width = max_on_host(num_accepted, shape.max_depth) + 1
        # adds 0, or NaN if a test is NaN
        residual = gather_rows(stops.residual, last)
        residual = residual.add(reached[:, -1:].to(residual.dtype), alpha=0)
        return path[:, :width], num_accepted, residual

    def _accept(
        self, tree: DraftTree, tests: _Tests, logits: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Level by level, verify the children of the node accepted last.

        Returns slots [B, W] from the root to the last accepted node (see `AcceptResult.path`), the
        number of accepted nodes [B], and the residual [B, V] that the next token is sampled from.
        """
        node = torch.zeros_like(tree.levels)
        path = [node]
        active = torch.ones_like(node, dtype=torch.bool)
        residual = to_probs(logits[:, 0], self.sampling)
        for depth in range(1, tree.shape.max_depth + 1):
            level = _Level(
                tree,
                tests.eligible,
                tests.tokens,
                tests.uniforms[:, depth - 1],
                self._relaxation(tests.omegas[:, depth], residual, tests.positions[:, depth - 1]),
            )
            child, residual = self._verify_children(level, node, residual, active)
            active = child > 0
            if all_done(active):
                break
            node = torch.where(active, child, node)
            residual = torch.where(
                active[:, None], to_probs(gather_rows(logits, node), self.sampling), residual
            )
            path.append(node)
        return torch.stack(path, dim=1), gather_rows(tree.shape.offsets, node), residual

    def _verify_children(
        self, level: _Level, node: Tensor, residual: Tensor, active: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Test the children of slots `node` [B] in order, in rows `active` [B].

        Returns the accepted child's slot [B], 0 for none, and the residual [B, V] after the
        rejections before it.
        """
        accepted_child = torch.zeros_like(node)
        children = gather_rows(level.tree.shape.children, node)
        eligible = level.eligible.gather(1, children)
        tokens = level.tokens.gather(1, children)
        proposal = level.tree.proposal_probs(node)
        omega, tables = level.relaxation
        for rank in range(children.shape[1]):
            untested = active[:, None] & eligible[:, rank:]
            if all_done(untested):
                break
            tested = untested.select(1, 0)
            x = tokens.select(1, rank)
            mass = self.rule.neighbourhood.mass(residual, proposal, x, tables)
            accepted = tested & (level.uniforms.select(1, rank) < self.rule.ratio(mass, omega))
            accepted_child = torch.where(accepted, children.select(1, rank), accepted_child)
            rejected = tested ^ accepted
            active = active ^ accepted
            # a row without a child of this rank may have one of a later rank
            if all_done(rejected):
                continue
            after_rejection = self.rule.residual(residual, proposal, x, omega, mass, tables)
            residual = torch.where(rejected[:, None], after_rejection, residual)
            if proposal is not None and rank + 1 < children.shape[1]:
                proposal = remove_and_renormalise(proposal, x, rejected)
        return accepted_child, residual

    def sample(self, probs: Tensor, rng: CounterRNG, positions: Tensor) -> Tensor:
        """Sample tokens [B] from probs [B, V] at token positions [B], with the noise that vanilla
        decoding uses there; at temperature 0, the most likely tokens.
        """
        if self.sampling.temperature == 0:
            return probs.argmax(-1)
        return rng.sample_without_table(Purpose.TARGET, probs, positions)

    def _accept_greedy(self, tree: DraftTree, logits: Tensor, batch: Batch) -> AcceptResult:
        """Temperature 0: a node is accepted if the rule accepts it and all of its ancestors in
        place of the target's most likely tokens. The longest accepted path is taken, the first one
        on a tie; the target's argmax follows it. No child is accepted below logits that are not
        finite.
        """
        size, slots, vocab_size = logits.shape
        device = logits.device
        row = torch.arange(size, device=device)
        depth = tree.shape.depth.expand(size, -1)
        best = torch.zeros(size, dtype=torch.int64, device=device)
        if slots > 1:
            parents = (tree.shape.parents + 1).expand(size, -1)
            if not self._exact_greedy:
                parent_probs = (
                    logits.softmax(-1)
                    .gather(1, parents[..., None].expand(-1, -1, vocab_size))
                    .flatten(0, 1)
                )
                omega = self._omegas[tree.levels[:, None], depth].flatten()
                positions = batch.emitted[:, None] + depth - 1
                accepted = self.rule.greedy(
                    parent_probs,
                    tree.tokens.flatten(),
                    *self._relaxation(omega, parent_probs, positions),
                ).view(size, -1)
            else:
                # compare logits, as vanilla decoding does: a softmax may round two of them to one
                # probability
                largest = logits.max(-1)
                accepted = tree.tokens == torch.where(
                    largest.values.isfinite(), largest.indices, -1
                ).gather(1, parents)
            accepted &= tree.exists & (depth < batch.remaining[:, None])
            ancestors = tree.shape.mask[:, 1:, 1:].expand(size, -1, -1)
            accepted = ~(ancestors & ~accepted[:, None]).any(-1)
            best = pad(depth * accepted, (1, 0)).argmax(1)
        num_accepted = pad(depth, (1, 0))[row, best]
        max_logits, last = logits[row, best].max(-1)
        path, tokens = _trace_path(tree, best, num_accepted)
        at_end = torch.arange(tokens.shape[1], device=device) == num_accepted[:, None]
        tokens = torch.where(at_end, last[:, None], tokens)
        return AcceptResult(
            None if tree.shape.is_chain else path,
            tokens,
            num_accepted,
            last,
            ~max_logits.isfinite(),
        )


def _trace_path(tree: DraftTree, last_slots: Tensor, depth: Tensor) -> tuple[Tensor, Tensor]:
    """Slots [B, W] from the root to `last_slots` [B] at `depth` [B], and the tokens after each of
    them.
    """
    batch = last_slots.shape[0]
    device = last_slots.device
    ancestors = tree.shape.mask.expand(batch, -1, -1)[
        torch.arange(batch, device=device), last_slots
    ]
    offsets = tree.shape.offsets.expand(batch, -1)
    steps = torch.arange(tree.shape.max_depth + 1, device=device)
    on_path = ancestors[:, None] & (offsets[:, None] == steps[:, None])  # [B, W, N+1]
    path = torch.where(
        steps <= depth[:, None], on_path.to(torch.int8).argmax(-1), last_slots[:, None]
    )
    drafts = path[:, 1:]
    if tree.shape.nodes:
        drafts = tree.tokens.gather(1, (drafts - 1).clamp(min=0))
    return path, pad(drafts, (0, 1))


def remove_and_renormalise(probs: Tensor, x: Tensor, rows: Tensor) -> Tensor:
    """In the rows where `rows` [B] is True, the probs [B, V] of the next sample without replacement
    after x [B] was removed; all zero if x had all the mass. Other rows are unchanged.
    """
    remaining = probs.scatter(1, x[:, None], 0.0)
    remaining = remaining / remaining.sum(1, keepdim=True).clamp(min=torch.finfo(probs.dtype).tiny)
    return torch.where(rows[:, None], remaining, probs)
