"""Steps of the exact rule, recorded for replay, which predicts from them what other rules would
accept: the drafts, the drafter's probs and the target's, and nothing else.

A step takes (rows of target + rows of proposal) x V x 4 bytes: one row of the target's probs for
each slot with children, and one of the drafter's where children are sampled. At V = 16384 a chain
of 5 takes 0.63 MiB, and an EAGLE-2 tree of 58 nodes, 21 of them with children, 1.32 MiB (python -m
benchmarks.replay --memory).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Self

import torch
from torch import Tensor
from torch.nn.functional import pad

from search_spaces.trial import Sampling
from workers.decoding import rng
from workers.decoding.sampling import to_probs
from workers.decoding.state import Batch
from workers.decoding.tree import DraftTree

_EMPTY = {"children": -1}  # what fills the columns of smaller trees; 0 in all others


class StepColumns:
    """Base of dataclasses whose fields are tensors with a row per step, or None."""

    __slots__ = ()

    def select(self, rows: Tensor) -> Self:
        """The steps at indices [n]."""
        columns: dict[str, Any] = {field.name: getattr(self, field.name) for field in fields(self)}  # type: ignore[arg-type]
        return type(self)(
            **{name: None if column is None else column[rows] for name, column in columns.items()}
        )

    @classmethod
    def concat(cls, parts: Sequence[Self]) -> Self:
        """All steps of recordings of one tree policy; smaller trees are padded."""
        names = [field.name for field in fields(cls)]  # type: ignore[arg-type]
        return cls(
            **{
                name: _concat([getattr(part, name) for part in parts], _EMPTY.get(name, 0))
                for name in names
            }
        )


@dataclass(frozen=True, slots=True, eq=False)
class RecordedSteps(StepColumns):
    """S steps whose trees have at most N nodes, C children of a slot, and I slots with children."""

    image: Tensor  # [S] key of the image's random numbers
    position: Tensor  # [S] index of the first token that the step emits
    remaining: Tensor  # [S] tokens that the image still needs
    levels: Tensor  # [S] levels drafted
    tokens: Tensor  # [S, N]
    depth: Tensor  # [S, N] 1-based, 0 for a node that was not drafted
    # [S, I] the slots with children, parents first (slot 0 is the root, slot i is node i - 1).
    inner: Tensor
    children: Tensor  # [S, I, C] node of each child by rank, -1 for none
    target: Tensor  # [S, I, V] the target's probs after each inner slot
    # [S, I, V] the probs that its children were sampled from; None if they were chosen.
    proposal: Tensor | None
    scores: Tensor | None  # [S, N] the log confidence by which a dynamic tree chose its nodes
    # [S, N] the mean squared distance in code space of a node's token from one of the target's.
    code_distance: Tensor
    # [S, N] the mean difference in log probs, in nats, of a node's token from one of the target's.
    surprise: Tensor
    # [S, I, V], int32: the tokens by rising target probs, ties by index. Kept only for rules that
    # need it, never in files.
    ranking: Tensor | None = None

    def __len__(self) -> int:
        return self.image.numel()

    def ranked(self) -> Self:
        """The steps with their ranking."""
        return replace(self, ranking=self.target.sort(dim=2, stable=True).indices.int())


def _concat(columns: Sequence[Tensor | None], empty: int) -> Tensor | None:
    tensors = [column for column in columns if column is not None]
    if not tensors:
        return None
    sizes = [max(sizes) for sizes in zip(*(tensor.shape[1:] for tensor in tensors), strict=True)]
    padded = []
    for tensor in tensors:
        missing = [size - present for size, present in zip(sizes, tensor.shape[1:], strict=True)]
        padded.append(
            pad(tensor, [side for count in reversed(missing) for side in (0, count)], value=empty)
        )
    return torch.cat(padded)


class StepRecorder:
    """An engine's observer that keeps the passes of every image, or a random share of them.

    Args:
        sampling: sampling of the engine.
        codebook: [V, d] the vectors that codes are decoded from.
        share: probability with which a pass is kept.
    """

    def __init__(self, sampling: Sampling, codebook: Tensor, share: float = 1.0) -> None:
        self._sampling = sampling
        self._codebook = codebook.float()
        self._share = share
        self._parts: list[RecordedSteps] = []

    def __call__(self, batch: Batch, tree: DraftTree, logits: Tensor) -> None:
        """Record a pass with the target's guided logits [B, N + 1, V]."""
        numbers = rng.uniform(
            batch.keys, batch.emitted, rng.Purpose.RECORD, torch.zeros_like(batch.emitted)
        )
        rows = (numbers < self._share).nonzero()[:, 0]
        if len(rows):
            self._parts.append(
                _steps(batch, tree, logits, self._sampling, self._codebook).select(rows)
            )

    def steps(self) -> RecordedSteps:
        """All passes so far."""
        return RecordedSteps.concat(self._parts)


def _steps(
    batch: Batch, tree: DraftTree, logits: Tensor, sampling: Sampling, codebook: Tensor
) -> RecordedSteps:
    """The pass of every row."""
    children = tree.shape.children.expand(batch.size, -1, -1) - 1  # slots to nodes
    is_leaf = (children < 0).all(2)
    count = 0
    if tree.shape.nodes:
        count = int((~is_leaf).sum(1).max())
    inner = is_leaf.int().sort(dim=1, stable=True).indices[:, :count]
    row = torch.arange(batch.size, device=inner.device)[:, None]
    proposal = None
    if tree.probs is not None and tree.probs_index is not None:
        proposal = tree.probs[row, tree.probs_index.expand(batch.size, -1)[row, inner]]
    node = children[row, inner]
    target = to_probs(logits[row, inner], sampling)
    scores = tree.scores
    if scores is not None:
        scores = scores.clamp_min(torch.finfo(scores.dtype).min)
    code_distance, surprise = _node_measures(tree.tokens, node, target, codebook)
    return RecordedSteps(
        image=batch.keys,
        position=batch.emitted,
        remaining=batch.remaining,
        levels=tree.levels,
        tokens=tree.tokens,
        depth=tree.shape.depth * tree.exists,
        inner=inner,
        children=node,
        target=target,
        proposal=proposal,
        scores=scores,
        code_distance=code_distance,
        surprise=surprise,
    )


def _node_measures(
    tokens: Tensor, children: Tensor, target: Tensor, codebook: Tensor
) -> tuple[Tensor, Tensor]:
    """Code distance and surprise [B, N] of tokens [B, N], the children [B, I, C] of slots with
    probs [B, I, V].
    """
    batch, nodes = tokens.shape
    x = tokens.gather(1, children.clamp(min=0).flatten(1)).view_as(children)
    squares = codebook.square().sum(1)
    logs = target.clamp_min(torch.finfo(target.dtype).tiny).log()
    products = (codebook[x] * (target @ codebook)[:, :, None]).sum(-1)
    distance = squares[x] - 2 * products + (target @ squares)[..., None]
    surprise = (target * logs).sum(-1, keepdim=True) - logs.gather(2, x)
    # Entries without a child go to an extra last column, which is dropped.
    place = torch.where(children < 0, nodes, children).flatten(1)
    both = [
        distance.new_zeros(batch, nodes + 1).scatter(1, place, measure.flatten(1))[:, :nodes]
        for measure in (distance, surprise)
    ]
    return both[0], both[1]
