"""What a drafter is, and the part that all drafters with a cache of their own share."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor, nn

from workers.decoding.state import Batch, block_mask
from workers.decoding.tree import barrier
from workers.models.cache import KVCache
from workers.models.target import Prompt, Target
from workers.models.transformer import Transformer


class Drafter(nn.Module, ABC):
    """Proposes laws for the tokens after the root, level by level. All logits have one row per stream (R), fp32 or
    lower.

    The engine calls, in this order: `prepare` once per run; `admit` for every new caption; then per round `root_logits`
    once, `expand` once per further level, and after verification `commit`; `keep` when captions have finished.
    """

    max_levels: int | None = None  # None: any depth

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
    committed: Tensor
    pending: tuple[Tensor, Tensor, Tensor]

    def __init__(self, target: Target, decoder: Transformer, base: int) -> None:
        super().__init__()
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
        device = self.cache.storage.device
        # additive masks: what committed tokens may be seen, and (for a round's queries) what the last level's nodes may
        self.committed = torch.full(
            (self.cache.rows, columns), -torch.inf, dtype=self.cache.storage.dtype, device=device
        )
        self.column = torch.arange(columns, device=device)
        self.levels, self.expanded = levels, expanded
        self.causal = barrier(torch.ones(1, levels + 1, levels + 1, dtype=torch.bool, device=device).tril())
        width = self.target.transformer.config.dim
        self.pending = (
            torch.zeros(batch.size, 1, dtype=torch.int64, device=device),
            torch.zeros(self.cache.rows, 1, width, dtype=self.cache.storage.dtype, device=device),
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
        padded = torch.nn.functional.pad(valid, (0, self.committed.shape[1] - self.base))
        self.committed[rows] = barrier(padded).to(self.committed.dtype)
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
        first = self.per_row(self.fed)[:, None] + self.column[:width]
        columns = first + self.base
        mask = block_mask(self.committed, columns[:, 0], self.causal[:, :width, :width], self.committed.shape[1])
        span = self.span(batch, width)
        out = self.decoder(
            self.inputs(self.per_row(tokens), features),
            first + self.target.prompt_len,
            mask=mask[..., :span],
            cache=self.cache,
            columns=columns,
            span=span,
        )
        self.fed = self.fed + counts
        if width > 1:  # the last real token's output and view; what padding fed is forgotten
            last = (self.per_row(counts) - 1)[:, None, None]
            out = out.gather(1, last.expand(-1, 1, out.shape[2]))
            mask = mask.gather(2, last[:, None].expand(-1, 1, 1, mask.shape[3]))
        self.outputs, self.mask, self.committed = out, mask, mask[:, 0, 0]
        start = columns[:, :1] + self.per_row(counts)[:, None]
        self.columns = start + self.column[: self.expanded]
        self.positions = start + (self.column[: self.levels] + (self.target.prompt_len - self.base))
        self.level, self.used = 0, 0
        return self.logits(out[:, 0])

    def expand(self, batch: Batch, tokens: Tensor, parents: Tensor | None) -> Tensor:
        nodes = tokens.shape[1]
        if parents is None:
            before, mask = self.outputs.expand(-1, nodes, -1), self.mask.repeat(1, 1, nodes, 1)
        else:
            up = self.per_row(parents.expand(batch.size, -1))[..., None]
            before = self.outputs.gather(1, up.expand(-1, -1, self.outputs.shape[2]))
            mask = self.mask.gather(2, up[:, None].expand(-1, -1, -1, self.mask.shape[3]))
        columns = self.columns[:, self.used : self.used + nodes]
        self.mask = mask.scatter_(3, columns[:, None, :, None], 0.0)  # a node sees what its parent sees, and itself
        self.used += nodes
        span = self.span(batch, self.used)
        self.outputs = self.decoder(
            self.inputs(self.per_row(tokens), before),
            self.positions[:, self.level, None].expand(-1, nodes),
            mask=self.mask[..., :span],
            cache=self.cache,
            columns=columns,
            span=span,
        )
        self.level += 1
        return self.logits(self.outputs)

    def commit(self, batch: Batch, tokens: Tensor, features: Tensor, counts: Tensor) -> None:
        self.pending = (tokens, features, counts)

    def keep(self, captions: Tensor) -> None:
        rows = torch.cat([captions + s * self.fed.shape[0] for s in range(self.streams)])
        self.cache.keep(rows)
        self.committed, self.fed = self.committed[rows], self.fed[captions]
        tokens, features, counts = self.pending
        self.pending = (tokens[captions], features[rows], counts[captions])

    def per_row(self, x: Tensor) -> Tensor:
        return torch.cat([x] * self.streams) if self.streams > 1 else x

    def span(self, batch: Batch, width: int) -> int:
        """Columns that any row can have in use: the furthest row's tokens (known on the host) and this round's
        block.
        """
        return min(self.cache.columns, self.base + batch.furthest + width)
