"""What a drafter is, and the part that all drafters with a cache of their own share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

import torch
from torch import Tensor, nn

from workers.decoding.state import AttentionMask, Batch
from workers.models.cache import KVCache
from workers.models.target import Prompt, Target
from workers.models.transformer import Body


class Drafter(nn.Module, ABC):
    """Proposes laws for the tokens after the root, level by level. All logits have one row per stream (R), fp32 or
    lower.

    The engine calls, in this order: `prepare` once per run; `admit` for every new caption; then per round `root_logits`
    once, `expand` once per further level, and after verification `commit`; `keep` when captions have finished.
    """

    kind: ClassVar[str]  # as settings name it
    max_levels: int | None = None  # None: any depth

    def agree(self, what: str, own: int, wanted: int) -> None:
        """ValueError unless a size of the drafter equals the target's."""
        if own != wanted:
            raise ValueError(
                f"{self.kind} drafter: its {what} is {own}, the target's {wanted}; it was made for another target"
            )

    @abstractmethod
    def prepare(self, batch: Batch, levels: int, expanded: int) -> None:
        """Allocate for `batch`: trees of `levels` levels at most, with `expanded` nodes expanded below the root per
        round.
        """

    @abstractmethod
    def admit(self, captions: Tensor, prompt: Prompt, names: list[str], features: Tensor, first: Tensor) -> None:
        """New captions at indices [n]: the target's prompt, the caption texts, its prompt features [n * streams, P,
        D], first tokens [n].
        """

    @abstractmethod
    def root_logits(self, batch: Batch) -> Tensor:
        """Logits [R, V] of the token after the root."""

    @abstractmethod
    def expand(self, batch: Batch, tokens: Tensor, parents: Tensor | None) -> Tensor:
        """Logits [R, F, V] of the tokens after F nodes of the next level.

        tokens [B, F]; parents [B|1, F]: each node's parent among the nodes of the previous call (None: it had only one,
        the root at first).
        """

    @abstractmethod
    def commit(self, batch: Batch, tokens: Tensor, features: Tensor, counts: Tensor) -> None:
        """What the round emitted: tokens [B, W], the target's features [R, W, D] of the tokens before them, counts [B]
        <= W.
        """

    @abstractmethod
    def keep(self, captions: Tensor) -> None:
        """Keep only captions [n] (indices), in that order."""


class CachedDrafter(Drafter):
    """A drafter that is itself a small transformer over the tokens, whatever it feeds on beside them.

    It lags one round behind: the tokens that a round emitted are fed at the start of the next one (`root_logits`),
    with the target's true features where the drafter uses them; drafts of the round before are simply overwritten.
    Token n stands at column `base + n` of its cache and at position `prompt_len + n` of the target's rotation table.
    """

    cache: KVCache
    attention_mask: AttentionMask
    pending: tuple[Tensor, Tensor, Tensor]

    def __init__(self, target: Target, decoder: Body, base: int) -> None:
        super().__init__()
        own, wanted = decoder.config, target.transformer.config
        for what in ("prompt_len", "rows", "cols"):
            self.agree(what, getattr(own, what), getattr(wanted, what))
        self.decoder = decoder
        self.base = base
        # the target's own embedding, head and prompt length; not registered again as modules of the drafter
        self._target = (target,)

    @property
    def target(self) -> Target:
        return self._target[0]

    @abstractmethod
    def inputs(self, tokens: Tensor, features: Tensor) -> Tensor:
        """Decoder inputs [R, S, D'] of tokens [R, S] and the features [R, S, D] that precede them."""

    @abstractmethod
    def logits(self, outputs: Tensor) -> Tensor:
        """Logits [..., V] of decoder outputs [..., D']."""

    @abstractmethod
    def prompt_inputs(self, prompt: Prompt, names: list[str], features: Tensor) -> tuple[Tensor, Tensor]:
        """Decoder inputs [r, base, D'] of new captions' prompts, and which of them may be attended to [r, base]."""

    def prepare(self, batch: Batch, levels: int, expanded: int) -> None:
        columns = self.base + batch.image_len + levels + expanded + 1
        self.cache = self.decoder.new_cache(batch.streams * batch.size, columns)
        dtype, device = self.cache.storage.dtype, self.cache.storage.device
        self.attention_mask = AttentionMask(self.cache.rows, columns, dtype=dtype, device=device)
        self.order = torch.arange(max(levels, expanded) + 1, device=device)
        self.expanded = expanded
        width = self.target.transformer.config.dim
        self.pending = (
            torch.zeros(batch.size, 1, dtype=torch.int64, device=device),
            torch.zeros(self.cache.rows, 1, width, dtype=dtype, device=device),
            torch.ones(batch.size, dtype=torch.int64, device=device),
        )
        self.streams = batch.streams
        self.fed = torch.zeros(batch.size, dtype=torch.int64, device=device)

    def admit(self, captions: Tensor, prompt: Prompt, names: list[str], features: Tensor, first: Tensor) -> None:
        rows = torch.cat([captions + s * self.fed.shape[0] for s in range(self.streams)])
        x, valid = self.prompt_inputs(prompt, names, features)
        if self.base:
            scratch = self.decoder.new_cache(x.shape[0], self.base)
            order = torch.arange(self.base, device=x.device)
            causal = (order[:, None] >= order) & valid[:, None] | torch.eye(
                self.base, dtype=torch.bool, device=x.device
            )
            positions = self.prompt_positions(order)
            self.decoder(x, positions, mask=causal[:, None], cache=scratch, columns=order.expand(x.shape[0], -1))
            self.cache.put(rows, scratch)
        self.attention_mask.admit(rows, valid)
        self.fed[captions] = 0
        tokens, before, counts = self.pending
        tokens, before, counts = tokens.clone(), before.clone(), counts.clone()
        tokens[captions], before[rows], counts[captions] = 0, 0, 1
        tokens[captions, 0], before[rows, 0] = first, features[:, -1]
        self.pending = (tokens, before, counts)

    def prompt_positions(self, order: Tensor) -> Tensor:
        """Positions of the prompt's inputs [base]."""
        return order

    def root_logits(self, batch: Batch) -> Tensor:
        tokens, features, counts = self.pending
        width = tokens.shape[1]
        numbers = self.per_row(self.fed)[:, None] + self.order[:width]
        columns, span = numbers + self.base, self.span(batch, width)
        outputs = self.decoder(
            self.inputs(self.per_row(tokens), features),
            numbers + self.target.prompt_len,
            mask=self.attention_mask.chain(columns)[..., :span],
            cache=self.cache,
            columns=columns,
            span=span,
        )
        if width > 1:  # the last real token's output; what padding fed is forgotten
            last = (self.per_row(counts) - 1)[:, None, None]
            outputs = outputs.gather(1, last.expand(-1, 1, outputs.shape[2]))
        # the nodes to come stand in the columns after the last token's, level by level in the positions after its
        root = batch.positions[:, :1]
        start = root + (self.base + 1 - self.target.prompt_len)
        self.outputs, self.mask = outputs, self.attention_mask.chain(start - 1)[:, 0]
        self.columns, self.positions = start + self.order[: self.expanded], root + 1
        self.used = 0
        return self.logits(outputs[:, 0])

    def expand(self, batch: Batch, tokens: Tensor, parents: Tensor | None) -> Tensor:
        nodes = tokens.shape[1]
        before, mask = self.above(self.outputs, parents, nodes), self.above(self.mask, parents, nodes)
        columns = self.columns[:, self.used : self.used + nodes]
        # a node sees what its parent sees, and itself
        self.mask = mask.scatter(2, columns[..., None], 0.0)
        self.used += nodes
        span = self.span(batch, self.used)
        self.outputs = self.decoder(
            self.inputs(self.per_row(tokens), before),
            self.positions,
            mask=self.mask[:, None, :, :span],
            cache=self.cache,
            columns=columns,
            span=span,
        )
        self.positions = self.positions + 1
        return self.logits(self.outputs)

    def above(self, x: Tensor, parents: Tensor | None, nodes: int) -> Tensor:
        """The entries of x [R, F, n] that belong to the parents [B|1, nodes] (None: its only one)."""
        if parents is None:
            return x.expand(-1, nodes, -1)
        if parents.shape[0] == 1:
            return x.index_select(1, parents[0])
        return x.gather(1, self.per_row(parents)[..., None].expand(-1, -1, x.shape[2]))

    def commit(self, batch: Batch, tokens: Tensor, features: Tensor, counts: Tensor) -> None:
        self.pending, self.fed = (tokens, features, counts), batch.emitted

    def keep(self, captions: Tensor) -> None:
        rows = torch.cat([captions + s * self.fed.shape[0] for s in range(self.streams)])
        self.cache.keep(rows)
        self.attention_mask.keep(rows)
        self.fed = self.fed[captions]
        tokens, features, counts = self.pending
        self.pending = (tokens[captions], features[rows], counts[captions])

    def per_row(self, x: Tensor) -> Tensor:
        return torch.cat([x] * self.streams) if self.streams > 1 else x

    def span(self, batch: Batch, width: int) -> int:
        """Columns that any row can have in use: the furthest row's tokens (known on the host) and this round's
        block.
        """
        return min(self.cache.columns, self.base + batch.max_emitted + width)
