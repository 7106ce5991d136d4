"""The walk: from the root down the draft tree, accepting children one trial at a time.

One loop serves every rule, tree and drafter; a chain, which has no siblings, does without. As in SpecInfer and EAGLE,
children are tried in order, each against what its rejected siblings left of the target's law; the random numbers stay
here, so that the rules themselves are deterministic functions.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from search_spaces.acceptance import AcceptanceRule, NeighbourhoodMass, NeighbourTables
from search_spaces.trial import Sampling
from workers.decoding import rng
from workers.decoding.rng import CounterRNG
from workers.decoding.sampling import sample_with_exponentials, to_probs
from workers.decoding.state import Batch
from workers.decoding.tree import DraftTree, gather_rows


@dataclass(slots=True)
class AcceptResult:
    """What a round decided, for B rows. W = deepest level walked + 1.

    path [B, W]: slots, root first, then the accepted nodes; entries past a row's own length repeat its last slot. None:
    the first W slots, as in any chain. tokens [B, W]: accepted drafts, then the resampled or bonus token, at the row's
    `accepted` index; arbitrary after it. accepted [B]: accepted drafts; `emitted` = accepted + 1. last [B]: the token
    at the end, the next root. broken [B]: the law it was taken from was not finite.
    """

    path: Tensor | None
    tokens: Tensor
    accepted: Tensor
    last: Tensor
    broken: Tensor
    emitted: Tensor = field(init=False)

    def __post_init__(self) -> None:
        self.emitted = self.accepted + 1


def all_done(pending: Tensor) -> bool:
    """True when nothing is pending and the host may know it for free.

    On a CPU a flag is read at no cost, so loops stop as soon as every row has decided. On an accelerator reading it
    would stall the queue: there the loops run to their fixed bounds and masks do the rest.
    """
    return pending.device.type == "cpu" and not bool(pending.any())


def max_on_host(depth: Tensor, bound: int) -> int:
    """The largest of depths [B] where the host may know it for free, else their bound."""
    return int(depth.max()) if depth.device.type == "cpu" else bound


class _Trial(NamedTuple):
    """What the trials at one depth have in common: by slot, whether it may be tried and its token, both [B, N+1]; by
    rank, the uniform numbers [B, C]; the budget omega [B]."""

    tree: DraftTree
    allowed: Tensor
    tokens: Tensor
    chance: Tensor
    budget: Tensor


class Acceptor:
    """Walks trees by one acceptance rule. `max_levels` bounds the drafted depth."""

    def __init__(
        self, rule: AcceptanceRule, tables: NeighbourTables, sampling: Sampling, max_levels: int, device: torch.device
    ) -> None:
        self.rule, self.tables, self.sampling = rule, tables, sampling
        omegas = torch.ones(max_levels + 1, max_levels + 1, device=device)
        for levels in range(1, max_levels + 1):
            omegas[levels, 1 : levels + 1] = torch.tensor(rule.schedule.omegas(levels), device=device)
        self.omegas = omegas  # [drafted levels, depth]
        self.exact_greedy = rule.neighbourhood.at_temperature_zero.exact and rule.schedule.exact

    def __call__(self, tree: DraftTree, logits: Tensor, batch: Batch) -> AcceptResult:
        """Decide a round. logits [B, N+1, V]: the target's guided logits after each slot.

        At most batch.missing - 1 drafts are accepted: the token at the end is the last one.
        """
        if self.sampling.temperature == 0:
            return self.greedy(tree, logits, batch.missing)
        return self.chain(tree, logits, batch) if tree.shape.chain else self.sampled(tree, logits, batch)

    def chain(self, tree: DraftTree, logits: Tensor, batch: Batch) -> AcceptResult:
        """A chain has no siblings: each draft is tried against the target's own law, so that all are tried at once."""
        laws, levels = to_probs(logits, self.sampling), tree.shape.max_depth
        if levels:
            accepted, residual = self.verify_chain(tree, laws, batch)
        else:
            accepted, residual = torch.zeros_like(batch.emitted), laws[:, 0]
        last = self.draw(residual, batch.numbers, batch.emitted + accepted)[:, None]
        tokens = torch.cat([tree.tokens, last], dim=1).scatter_(1, accepted[:, None], last)
        walked = max_on_host(accepted, levels) + 1
        return AcceptResult(None, tokens[:, :walked], accepted, last[:, 0], residual[:, 0].isnan())

    def verify_chain(self, tree: DraftTree, laws: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
        """How many drafts [B] of a chain stand, and what is left of the target's law [B, V] after them.

        laws [B, N+1, V]: the target's after each slot. Trials are rows: B times N, one for each draft.
        """
        levels = tree.shape.max_depth
        allowed = tree.exists & (batch.places[:, 1 : levels + 1] < batch.image_len)
        x, omega = tree.tokens.flatten(), self.omegas.index_select(0, tree.levels)[:, 1 : levels + 1].flatten()
        r, p = laws[:, :-1].flatten(0, 1), None if tree.laws is None else tree.laws.flatten(0, 1)
        mass = self.rule.neighbourhood.mass(r, p, x, self.tables)
        chance = batch.numbers.uniforms(batch.places[:, :levels], 1).view_as(allowed)
        stands = allowed & (chance < self.rule.acceptance_prob(mass, omega).view_as(allowed))
        accepted = stands.cumprod(1).sum(1)
        residual = gather_rows(laws, accepted)
        decisive = accepted.clamp(max=levels - 1) + torch.arange(0, stands.numel(), levels, device=accepted.device)
        rejected = (allowed ^ stands).flatten().index_select(0, decisive)
        if all_done(rejected):
            return accepted, residual

        def of(trials: Tensor) -> Tensor:
            return trials.index_select(0, decisive)

        mass = NeighbourhoodMass(*(part if part is None else of(part) for part in mass))  # type: ignore[arg-type]
        rest = self.rule.residual(residual, None if p is None else of(p), of(x), of(omega), mass, self.tables)
        return accepted, torch.where(rejected[:, None], rest, residual)

    def sampled(self, tree: DraftTree, logits: Tensor, batch: Batch) -> AcceptResult:
        """A tree: level by level, the children of the node that was accepted last."""
        node, levels = torch.zeros_like(batch.emitted), tree.shape.max_depth
        path = [node]
        residual = to_probs(logits[:, 0], self.sampling)
        chance = batch.numbers.uniforms(batch.places[:, :levels], tree.shape.width)
        budgets = self.omegas.index_select(0, tree.levels)
        # by slot; the root's own entry, which stands for "no child", is never tried
        allowed = pad(tree.exists & (tree.shape.depth < batch.missing[:, None]), (1, 0))
        tokens = pad(tree.tokens, (1, 0))
        active = torch.ones_like(allowed[:, 0])
        for depth in range(1, levels + 1):
            trial = _Trial(tree, allowed, tokens, chance[:, depth - 1], budgets[:, depth])
            child, residual = self.verify_children(trial, node, residual, active)
            active = child > 0
            if all_done(active):
                break
            node = torch.where(active, child, node)
            residual = torch.where(active[:, None], to_probs(gather_rows(logits, node), self.sampling), residual)
            path.append(node)
        accepted = gather_rows(tree.shape.offsets, node)
        last = self.draw(residual, batch.numbers, batch.emitted + accepted)[:, None]
        walked = torch.stack(path, dim=1)
        drafts = tokens.gather(1, walked[:, 1:])
        tokens = torch.cat([drafts, last], dim=1).scatter_(1, accepted[:, None], last)
        return AcceptResult(walked, tokens, accepted, last[:, 0], residual[:, 0].isnan())

    def verify_children(self, trial: _Trial, node: Tensor, residual: Tensor, active: Tensor) -> tuple[Tensor, Tensor]:
        """Try the children of slots `node` [B] in order, in rows `active` [B]: the accepted child's slot [B], 0 for
        none, and what is left of the target's law [B, V] after the rejections before it.
        """
        child = torch.zeros_like(node)
        kids = gather_rows(trial.tree.shape.children, node)
        allowed, tokens = trial.allowed.gather(1, kids), trial.tokens.gather(1, kids)
        proposal = trial.tree.proposal(node)
        for rank in range(kids.shape[1]):
            trying = active & allowed.select(1, rank)
            if all_done(trying):
                break
            x = tokens.select(1, rank)
            mass = self.rule.neighbourhood.mass(residual, proposal, x, self.tables)
            accept = trying & (trial.chance.select(1, rank) < self.rule.acceptance_prob(mass, trial.budget))
            child = torch.where(accept, kids.select(1, rank), child)
            rejected = trying ^ accept
            if all_done(rejected):
                break
            active = active ^ accept
            rest = self.rule.residual(residual, proposal, x, trial.budget, mass, self.tables)
            residual = torch.where(rejected[:, None], rest, residual)
            if proposal is not None and rank + 1 < kids.shape[1]:
                proposal = without(proposal, x, rejected)
        return child, residual

    def draw(self, law: Tensor, numbers: CounterRNG, position: Tensor) -> Tensor:
        """Tokens [B] drawn from laws [B, V] for token positions [B]: by the same clocks as plain decoding uses there;
        at temperature 0, the likeliest.
        """
        if self.sampling.temperature == 0:
            return law.argmax(-1)
        return sample_with_exponentials(
            law, numbers.exponential_noise(rng.Purpose.TARGET, position[:, None], law.shape[1])[:, 0]
        )

    def greedy(self, tree: DraftTree, logits: Tensor, missing: Tensor) -> AcceptResult:
        """Temperature 0: a node stands if the rule lets it stand for the most likely token, and so do all its
        ancestors; of several such paths the longest is taken, the first on a tie. The last token is the target's own
        choice."""
        batch, slots, vocabulary = logits.shape
        device = logits.device
        row = torch.arange(batch, device=device)
        depth = tree.shape.depth.expand(batch, -1)
        best = torch.zeros(batch, dtype=torch.int64, device=device)
        if slots > 1:
            parent = (tree.shape.parents + 1).expand(batch, -1)
            if not self.exact_greedy:
                above = logits.softmax(-1).gather(1, parent[..., None].expand(-1, -1, vocabulary)).flatten(0, 1)
                omega = self.omegas[tree.levels[:, None], depth].flatten()
                stands = self.rule.greedy(above, tree.tokens.flatten(), omega, self.tables).view(batch, -1)
            else:  # by logits, as plain decoding chooses: a softmax may round two of them to one probability
                stands = tree.tokens == logits.argmax(-1).gather(1, parent)
            stands &= tree.exists & (depth < missing[:, None])
            lineage = tree.shape.visible[:, 1:, 1:].expand(batch, -1, -1)
            stands = ~(lineage & ~stands[:, None]).any(-1)
            best = pad(depth * stands, (1, 0)).argmax(1)
        accepted = pad(depth, (1, 0))[row, best]
        highest, last = logits[row, best].max(-1)
        path, tokens = self.trace(tree, best, accepted)
        ends = torch.arange(tokens.shape[1], device=device) == accepted[:, None]
        tokens = torch.where(ends, last[:, None], tokens)
        return AcceptResult(None if tree.shape.chain else path, tokens, accepted, last, ~highest.isfinite())

    def trace(self, tree: DraftTree, best: Tensor, accepted: Tensor) -> tuple[Tensor, Tensor]:
        """Slots [B, W] from the root to slot `best` [B] at depth `accepted` [B], and the tokens after each of them."""
        batch = best.shape[0]
        lineage = tree.shape.visible.expand(batch, -1, -1)[torch.arange(batch, device=best.device), best]
        offsets = tree.shape.offsets.expand(batch, -1)
        steps = torch.arange(tree.shape.max_depth + 1, device=best.device)
        on_path = lineage[:, None] & (offsets[:, None] == steps[:, None])  # [B, W, N+1]
        path = torch.where(steps <= accepted[:, None], on_path.to(torch.int8).argmax(-1), best[:, None])
        drafts = tree.tokens.gather(1, (path[:, 1:] - 1).clamp(min=0)) if tree.shape.nodes else path[:, 1:]
        return path, pad(drafts, (0, 1))


def without(law: Tensor, x: Tensor, where: Tensor) -> Tensor:
    """The law [B, V] of the next draw without replacement after x [B], in rows `where` [B]; zero if nothing else was
    possible.
    """
    rest = law.scatter(1, x[:, None], 0.0)
    rest = rest / rest.sum(1, keepdim=True).clamp(min=torch.finfo(law.dtype).tiny)
    return torch.where(where[:, None], rest, law)
