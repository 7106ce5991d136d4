"""Rounds without verification (VVS, arXiv 2511.13587).

VVS leaves the target's pass out of some rounds: the tokens of a random path of the draft tree are
emitted as they are, and the next round drafts below its end. That round's pass feeds the unverified
tokens too, whose keys and values are not cached yet, and discards their logits. So here both rounds
are one pass: the path is a chain in front of the tree that is verified, and every pass is one of
the target.

The drafter needs the target's features of the tokens before those that it is fed. After unverified
tokens there are none: it gets the last features that a pass has computed, as many as there are
tokens (stale ones).

The first `MIN_EMITTED` tokens of an image are verified, and so is its last one. Two rounds in a row
are never skipped. The method is not lossless: unverified tokens are what the drafter proposed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import normalize, pad

from search_spaces.params import ConfigError
from search_spaces.trial import DecodingConfig
from search_spaces.verification import DynamicSkipping, UniformSkipping
from workers.decoding import rng
from workers.decoding.accept import Acceptor, AcceptResult, all_done
from workers.decoding.drafter import CachedDrafter
from workers.decoding.drafting import Drafting, TreeDrafting
from workers.decoding.rng import Purpose
from workers.decoding.sampling import stream_rows
from workers.decoding.state import Batch
from workers.decoding.tree import DraftTree, gather_rows, shape_from_parents
from workers.models.target import Prompt, Target

MIN_EMITTED = 6  # tokens of an image, its first one included, before a round may be skipped
_DECAY = 0.9  # weight of a level's similarity over that of the level above


@dataclass(slots=True, kw_only=True)
class SkippedTree(DraftTree):
    """A path in front of a tree. Its slots are the root, the `depth` tokens of the path, and the
    tree's nodes. Its `levels` are those that both trees have drafted in this pass; the first tree's
    may be more than the path's.
    """

    path: Tensor  # [B, depth] tokens
    # [B] how many tokens of the path are emitted unverified; 0 in rows whose whole tree is
    # verified, whose path does not exist.
    skipped: Tensor
    below: DraftTree  # the tree that is verified
    ahead: Batch  # the batch as it is after the path


class SkippingDrafting(Drafting[Batch]):
    """Drafts with `inner`, and a second tree below tokens that are not verified, in the rounds that
    the rule skips.
    """

    capturable = True

    def __init__(self, config: DecodingConfig, target: Target, inner: Drafting[Any]) -> None:
        self.inner, self.drafter = _able(config, inner)
        super().__init__(config, target, self.drafter)
        self.depth = self.inner.max_levels
        self.max_levels = 2 * self.depth
        self.max_nodes = self.depth + self.inner.max_nodes
        self.rule = config.acceptance.verification
        self._codes = normalize(target.codebook.float(), dim=1)
        self._order = torch.arange(self.max_levels + 1, device=target.device)
        self._may_skip = True

    @property
    def parts(self) -> tuple[Drafting[Any], ...]:
        return (self, *self.inner.parts)

    @property
    def verified_levels(self) -> int:
        return self.depth

    def plan(self, batch: Batch) -> tuple[int, ...]:
        return (int(self._may_skip), *self.inner.plan(batch))

    def prepare(self, batch: Batch) -> None:
        self.drafter.prepare(batch, self.max_levels, self.inner.expanded)
        dtype = batch.cache.storage.dtype
        width = self.drafter.target.transformer.config.dim
        # how many rounds each image has had, and the last features that a pass has computed
        self._rounds = torch.zeros_like(batch.emitted)
        self._recent = torch.zeros(
            batch.streams * batch.size, self.depth, width, dtype=dtype, device=batch.emitted.device
        )
        # until a pass has told, plan for the longest pass
        self._may_skip = True
        self._streams = batch.streams
        batch.buffers.add(self, "_rounds", "_recent")

    def admit(
        self,
        indices: Tensor,
        prompt: Prompt,
        captions: list[str],
        features: Tensor,
        first_tokens: Tensor,
    ) -> None:
        self.inner.admit(indices, prompt, captions, features, first_tokens)
        last = (self._order[: self.depth] + (features.shape[1] - self.depth)).clamp_min(0)
        rows = stream_rows(indices, self._streams, len(self._rounds))
        self._rounds = self._rounds.index_fill(0, indices, 0)
        self._recent = self._recent.index_copy(0, rows, features[:, last].to(self._recent.dtype))

    def draft(self, batch: Batch) -> DraftTree:
        first = self.inner.draft(batch)
        if not self._may_skip:
            return first
        path, length = self._random_path(first, batch)
        skipped = (
            torch.where(self._skips(first, batch), length, 0)
            .minimum(batch.remaining - 1)
            .clamp_min(0)
        )
        if all_done(skipped > 0):
            return first
        ahead = self._ahead(batch, path, skipped)
        # indices of the last `skipped` features
        stale = (self._order[: self.depth] + (self.depth - skipped)[:, None]).clamp_max(
            self.depth - 1
        )
        features = self._recent.gather(
            1, batch.per_row(stale)[..., None].expand(-1, -1, self._recent.shape[2])
        )
        self.drafter.look_ahead(batch, path, features, skipped)
        return self._join(first, path, skipped, self.inner.draft(ahead), ahead)

    def _is_due(self, batch: Batch) -> Tensor:
        """[B] whether a round of the image may be skipped now."""
        is_due = batch.so_far > MIN_EMITTED
        if isinstance(self.rule, UniformSkipping):
            is_due = is_due & (self._rounds % self.rule.interval == 1)
        return is_due

    def _skips(self, tree: DraftTree, batch: Batch) -> Tensor:
        """[B] whether the round that has drafted this tree is not verified."""
        is_due = self._is_due(batch)
        if isinstance(self.rule, DynamicSkipping):
            is_due = is_due & (self.similarity(tree) >= self.rule.threshold)
        return is_due

    def similarity(self, tree: DraftTree) -> Tensor:
        """The mean similarity [B] of every second path of a tree (see `DynamicSkipping`); 0 if
        there is only one path.
        """
        leaf = _leaves(tree)
        depth = tree.shape.depth.expand_as(tree.tokens)
        chosen = leaf & (_paths_before(tree, leaf) % 2 == 0)
        # how many chosen paths each node is on; the sum of vectors gives the sum of the cosines of
        # all pairs
        below = tree.shape.mask[:, 1:, 1:].expand(len(chosen), -1, -1)
        paths = (below & chosen[..., None]).sum(1).float()
        # [B, depth, N]
        at_level = (depth[:, None] == self._order[1 : self.depth + 1, None]) * paths[:, None]
        count = at_level.sum(2)
        total = at_level @ self._codes[tree.tokens]
        number = chosen.sum(1)
        weights = (count > 0) * _DECAY ** self._order[: self.depth]
        cosines = ((total.square().sum(2) - count) * weights).sum(1)
        return cosines / (weights.sum(1) * number * (number - 1)).clamp_min(1)

    def _random_path(self, tree: DraftTree, batch: Batch) -> tuple[Tensor, Tensor]:
        """The tokens [B, depth] of a path from below the root to a leaf, chosen uniformly, and how
        many of them are emitted: no more than the mean length of all paths, rounded down.
        """
        leaf = _leaves(tree)
        depth = tree.shape.depth.expand_as(tree.tokens)
        count = leaf.sum(1)
        uniforms = rng.uniform(
            batch.keys[:, None], batch.token_positions[:, :1], Purpose.PATH, self._order[:1]
        )
        rank = (uniforms[:, 0] * count).long().minimum(count - 1)
        end = ((leaf.cumsum(1) - 1 == rank[:, None]) & leaf).long().argmax(1)
        on_path = gather_rows(tree.shape.mask, end + 1)[:, 1:]
        place = torch.where(on_path, depth - 1, self.depth)
        tokens = (
            torch.zeros_like(tree.tokens[:, :1])
            .repeat(1, self.depth + 1)
            .scatter(1, place, tree.tokens)
        )
        mean = (depth * leaf).sum(1) // count.clamp_min(1)
        length = torch.where(count > 0, depth.gather(1, end[:, None])[:, 0], 0)
        return tokens[:, : self.depth], length.minimum(mean)

    def _ahead(self, batch: Batch, path: Tensor, skipped: Tensor) -> Batch:
        """The batch as it is after the path."""
        ahead = copy(batch)
        ahead.emitted = batch.emitted + skipped
        last = path.gather(1, (skipped - 1).clamp_min(0)[:, None])[:, 0]
        ahead.root = torch.where(skipped > 0, last, batch.root)
        ahead.max_emitted = batch.max_emitted + self.depth
        ahead._update_positions()
        return ahead

    def _join(
        self, first: DraftTree, path: Tensor, skipped: Tensor, below: DraftTree, ahead: Batch
    ) -> SkippedTree:
        size = len(path)
        order = self._order[: self.depth].expand(len(path), -1)
        count = skipped[:, None]
        above = below.shape.parents.expand(size, -1)
        exists = torch.cat([order < count, below.exists], 1)
        # the tree's first level is below the path's last token, which is the root where nothing is
        # skipped
        parents = torch.cat([order - 1, torch.where(above < 0, count - 1, above + self.depth)], 1)
        depth = torch.cat([order + 1, below.shape.depth + count], 1)
        shape = shape_from_parents(
            parents, depth, exists, max_depth=self.max_levels, width=max(1, below.shape.width)
        )
        failed = [tree.nonfinite for tree in (first, below) if tree.nonfinite is not None]
        return SkippedTree(
            tokens=torch.cat([path, below.tokens], 1),
            exists=exists,
            shape=shape,
            levels=below.levels + torch.where(skipped > 0, first.levels, 0),
            nonfinite=torch.stack(failed).any(0) if failed else None,
            path=path,
            skipped=skipped,
            below=below,
            ahead=ahead,
        )

    def accept(
        self, acceptor: Acceptor, tree: DraftTree, logits: Tensor, batch: Batch
    ) -> AcceptResult:
        if not isinstance(tree, SkippedTree):
            return acceptor(tree, logits, batch)
        nodes = torch.arange(self.depth + 1, logits.shape[1], device=logits.device).expand(
            len(logits), -1
        )
        slots = torch.cat([tree.skipped[:, None], nodes], 1)[..., None]
        below = acceptor(
            tree.below, logits.gather(1, slots.expand(-1, -1, logits.shape[2])), tree.ahead
        )
        width = below.tokens.shape[1]
        skipped = tree.skipped[:, None]
        order = torch.arange(self.depth + width, device=logits.device).expand(len(logits), -1)
        place = (order - skipped).clamp(0, width - 1)  # index in what was verified
        tokens = torch.where(
            order < skipped, pad(tree.path, (0, width)), below.tokens.gather(1, place)
        )
        slot = place
        if below.path is not None:
            slot = below.path.gather(1, place)
        path = torch.where(order <= skipped, order, slot + self.depth)
        return AcceptResult(
            path,
            tokens,
            below.num_accepted + tree.skipped,
            below.next_root,
            below.nonfinite,
            unverified=tree.skipped,
        )

    def commit(
        self, batch: Batch, tree: DraftTree, result: AcceptResult, logits: Tensor, features: Tensor
    ) -> None:
        counts = result.num_emitted
        last = batch.per_row(counts)[:, None] + self._order[: self.depth]
        known = torch.cat([self._recent, features], 1)
        self._recent = known.gather(1, last[..., None].expand(-1, -1, known.shape[2]))
        self._rounds = self._rounds + 1
        if isinstance(tree, SkippedTree):
            self._rounds = self._rounds + (tree.skipped > 0).long()
        tokens = result.tokens
        if batch.static:  # the drafter's memory has the size of the longest pass
            missing = self.max_levels + 1 - tokens.shape[1]
            tokens = pad(tokens, (0, missing))
            features = pad(features, (0, 0, 0, missing))
        self.drafter.commit(batch, tokens, features, counts)

    def next_bounds(self, batch: Batch) -> Tensor | None:
        if isinstance(self.rule, UniformSkipping):
            return self._is_due(batch).any()[None].long()
        return None

    def set_bounds(self, bounds: Sequence[int]) -> None:
        if bounds:
            self._may_skip = bool(bounds[0])

    def usual_bounds(self, images: int) -> Mapping[tuple[int, ...], float]:
        # the share of an image's passes that may skip; images do not skip in step, and how often
        # trees are similar is not known before
        share = 1.0
        if isinstance(self.rule, UniformSkipping):
            share = 1 / (self.rule.interval - 1)
        shortest = (1 - share) ** images
        return {(1,): 1 - shortest, (0,): shortest}


def _able(config: DecodingConfig, inner: Drafting[Any]) -> tuple[TreeDrafting, CachedDrafter]:
    """The drafting and its drafter. Raises ConfigError if a plugin's class cannot do what its
    config says.
    """
    rule = config.acceptance.verification
    drafter = config.drafter
    tree = config.policy
    if not isinstance(rule, UniformSkipping | DynamicSkipping):
        problem = (
            f"{rule.kind!r} does not say which rounds are skipped; give it a drafting of its own"
        )
        raise ConfigError(("acceptance", "verification"), problem)
    if not isinstance(inner, TreeDrafting):
        if drafter.has_weights:
            key: tuple[str, ...] = ("tree", "policy")
            kind = tree.kind
        else:
            key = ("drafter",)
            kind = drafter.kind
        problem = (
            f"{rule.kind!r} drafts two trees in a pass; {type(inner).__name__} of {kind!r} is no "
            "TreeDrafting"
        )
        raise ConfigError(key, f"{problem}, which could")
    if not isinstance(inner.drafter, CachedDrafter):
        problem = f"{rule.kind!r} drafts behind unverified tokens, which needs a CachedDrafter"
        raise ConfigError(
            ("drafter",), f"{problem}; {type(inner.drafter).__name__} of {drafter.kind!r} is none"
        )
    return inner, inner.drafter


def _leaves(tree: DraftTree) -> Tensor:
    """Whether each node [B, N] exists with all of its ancestors, and has no such children."""
    parents = tree.shape.parents.expand_as(tree.tokens) + 1
    exists = ~(tree.shape.mask[:, 1:, 1:] & ~tree.exists[:, None]).any(2)
    children = parents.new_zeros(len(parents), parents.shape[1] + 1).scatter_add(
        1, parents, exists.long()
    )
    return exists & (children[:, 1:] == 0)


def _paths_before(tree: DraftTree, leaf: Tensor) -> Tensor:
    """How many paths precede each node's, depth first, [B, N]: those of its own earlier siblings
    and of its ancestors'. `leaf` [B, N] marks the paths' ends.
    """
    is_on = tree.shape.mask[:, 1:, 1:]
    parents = tree.shape.parents
    paths = (is_on & leaf[..., None]).sum(1)  # how many paths each node is on
    is_earlier = (parents[:, :, None] == parents[:, None]).tril(-1)
    before_siblings = (is_earlier * paths[:, None]).sum(2)
    return (is_on * before_siblings[:, None]).sum(2)
