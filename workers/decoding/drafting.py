"""Drafting: the interface that makes the draft tree of a pass. Each tree policy, and each drafter
without weights, implements it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Generic, TypeVar

import torch
from torch import Tensor

from search_spaces.trial import DecodingConfig
from workers.decoding.accept import Acceptor, AcceptResult
from workers.decoding.drafter import Drafter
from workers.decoding.sampling import to_probs, top_log_probs
from workers.decoding.state import Batch
from workers.decoding.tree import DraftTree, fixed_shape
from workers.models.target import Prompt, Target

AnyBatch = TypeVar("AnyBatch", bound=Batch)


class Drafting(ABC, Generic[AnyBatch]):
    """Makes one draft tree a pass.

    A tree policy names its subclass by the attribute `implementation`; the engine makes it with the
    config (its sampling resolved), the target and the loaded drafter (None for methods without
    weights). `AnyBatch` is the class of batch that the drafter's declaration names.
    """

    max_levels: int  # most levels of a tree
    max_nodes: int  # most nodes of a tree
    capturable: ClassVar[bool] = False  # see `Drafter.capturable`

    def __init__(self, config: DecodingConfig, target: Target, drafter: Drafter | None) -> None:
        assert config.sampling is not None, "the sampling is resolved"
        self.sampling = config.sampling

    @property
    def parts(self) -> tuple[Drafting[Any], ...]:
        """Itself, and the drafting that it is built around."""
        return (self,)

    @property
    def verified_levels(self) -> int:
        """Most levels of a tree that are verified."""
        return self.max_levels

    def plan(self, batch: AnyBatch) -> tuple[int, ...]:
        """What the host decides about the next `draft`, and all that may change its shapes from
        pass to pass. It is called before `draft`, outside a CUDA graph.
        """
        return ()

    @abstractmethod
    def draft(self, batch: AnyBatch) -> DraftTree:
        """The tree below each row's root."""

    def accept(
        self, acceptor: Acceptor, tree: DraftTree, logits: Tensor, batch: AnyBatch
    ) -> AcceptResult:
        """Decide a pass by the target's logits [B, N+1, V]. All drafts are verified here."""
        return acceptor(tree, logits, batch)

    def prepare(self, batch: AnyBatch) -> None:
        """Allocate what `batch` needs, and add the tensors that passes replace to `batch.buffers`,
        which removes the rows of finished captions. Called before the first caption is admitted.
        """

    def admit(
        self,
        indices: Tensor,
        prompt: Prompt,
        captions: list[str],
        features: Tensor,
        first_tokens: Tensor,
    ) -> None:
        """Put new captions at batch indices [n] (see `Drafter.admit`)."""

    def commit(
        self,
        batch: AnyBatch,
        tree: DraftTree,
        result: AcceptResult,
        logits: Tensor,
        features: Tensor,
    ) -> None:
        """Take the outcome of the pass, with the target's guided logits [B, N+1, V] and its
        features [R, W, D] along the accepted path.
        """

    def next_bounds(self, batch: AnyBatch) -> Tensor | None:
        """Integers [n] that the host must know before the next `plan`, or None. The engine reads
        them after a pass, with the counts, and gives them to `set_bounds`.
        """
        return None

    def set_bounds(self, bounds: Sequence[int]) -> None:
        """Take the values of `next_bounds`."""

    def usual_bounds(self, images: int) -> Mapping[tuple[int, ...], float]:
        """For plans: the values of `next_bounds` that change what a pass of so many images costs,
        with the share of passes that have them.
        """
        return {(): 1.0}


class VanillaDrafting(Drafting[Batch]):
    """Vanilla AR decoding: nothing is drafted; the target's pass has one query, the root."""

    max_levels = max_nodes = 0
    capturable = True

    def __init__(self, config: DecodingConfig, target: Target, drafter: Drafter | None) -> None:
        super().__init__(config, target, drafter)
        self._shape = fixed_shape((), (), target.device)
        self._zero = torch.zeros(1, dtype=torch.int64, device=target.device)
        self._all_exist = torch.ones(1, 0, dtype=torch.bool, device=target.device)

    def draft(self, batch: Batch) -> DraftTree:
        none = batch.root.new_empty(batch.size, 0)
        exists = self._all_exist.expand(batch.size, -1)
        zeros = self._zero.expand(batch.size)
        return DraftTree(none, exists, self._shape, zeros, counts=zeros)


class TreeDrafting(Drafting[Batch]):
    """Drafting with a drafter that expands nodes on demand."""

    expanded: int  # nodes that the drafter expands below the root, over all levels of a pass

    def __init__(self, config: DecodingConfig, target: Target, drafter: Drafter | None) -> None:
        super().__init__(config, target, drafter)
        assert drafter is not None, "the engine has checked that there is a drafter"
        self.drafter = drafter

    def prepare(self, batch: Batch) -> None:
        self.drafter.prepare(batch, self.max_levels, self.expanded)

    def admit(
        self,
        indices: Tensor,
        prompt: Prompt,
        captions: list[str],
        features: Tensor,
        first_tokens: Tensor,
    ) -> None:
        self.drafter.admit(indices, prompt, captions, features, first_tokens)

    def commit(
        self, batch: Batch, tree: DraftTree, result: AcceptResult, logits: Tensor, features: Tensor
    ) -> None:
        self.drafter.commit(batch, result.tokens, features, result.num_emitted)

    def top_children(self, logits: Tensor, width: int) -> tuple[Tensor, Tensor]:
        """Log probabilities and tokens [B, F, width] of the most likely tokens, from drafter logits
        [B, F, V].
        """
        nodes = logits.shape[1]
        if nodes > 1 and logits.stride(1) == 0:
            log_probs, tokens = self.top_children(logits[:, :1], width)
            return log_probs.expand(-1, nodes, -1), tokens.expand(-1, nodes, -1)
        return top_log_probs(logits.float(), self.sampling, width)

    def probs(self, logits: Tensor) -> Tensor:
        """Probs [B, F, V] of drafter logits [B, F, V], processed as the target's are."""
        nodes = logits.shape[1]
        # one distribution repeated (Medusa): processed once
        if nodes > 1 and logits.stride(1) == 0:
            return self.probs(logits[:, :1]).expand(-1, nodes, -1)
        return to_probs(logits.float(), self.sampling)
