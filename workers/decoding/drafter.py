"""The drafter interface, and the bases of parts with weights and of drafters with a KV cache of
their own.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from pathlib import Path
from typing import ClassVar, Self

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from search_spaces.drafters import DrafterChoice
from workers.decoding.sampling import repeat_streams, stream_rows
from workers.decoding.state import Batch
from workers.models.attention import aligned
from workers.models.cache import KVCache
from workers.models.masks import AttentionMask, causal_padding_mask
from workers.models.target import Prompt, Target
from workers.models.transformer import Body


class TrainedPart(nn.Module):
    """What a weight file under `drafters` adds to a target: a drafter, or a head that changes what
    its passes predict.
    """

    kind: ClassVar[str]  # its name in configs
    max_levels: int | None = None  # most levels that it can draft; None for any number
    # The layers of the target whose inputs, before their norms, it reads in place of the features.
    taps: tuple[int, ...] = ()
    # Whether a CUDA graph can repeat a pass: which kernels a class launches, and the shapes of its
    # tensors, depend on nothing but the arguments' shapes. Each class says it for itself; it is not
    # inherited.
    capturable: ClassVar[bool] = False

    @classmethod
    def load(cls, path: Path, target: Target) -> Self:
        """The part from its weight file (or folder), for `target`.

        Raises:
            WeightsError: the file is missing, damaged, of another kind, or made for another target.
            ValueError: its sizes do not fit the target.
        """
        raise TypeError(
            f"the {cls.kind} drafter has no weight files: {cls.__name__} does not define `load`"
        )

    @classmethod
    def usual(cls, target: Target, levels: int) -> tuple[Self, str] | None:
        """For plans: a part of the usual size for `target`, on the meta device, that drafts so
        many levels, and the sentence that describes the assumption. None if there is no usual size.
        """
        return None

    def check_size(self, name: str, size: int, target_size: int) -> None:
        """Raises ValueError unless a size of the drafter equals the target's."""
        if size != target_size:
            raise ValueError(
                f"{self.kind} drafter: its {name} is {size}, the target's {target_size}; it was "
                "made for another target"
            )

    def target_for(self, choice: DrafterChoice, target: Target) -> Target:
        """The target whose passes the engine runs for a declaration of this kind: the given one, or
        one that is made of it and of this part.
        """
        return target


class Drafter(TrainedPart, ABC):
    """Proposes probs for the tokens after the root, level by level. All logits are guided, in fp32
    (see `Batch.guided_logits`).

    The engine calls, in this order: `prepare` once per batch; `admit` for every new caption; then
    per pass `root_logits` once, `expand` once per further level, and after verification `commit`.
    Each engine has a shallow copy of the loaded drafter: the weights are shared, and what it
    assigns from `prepare` on belongs to one batch.
    """

    @abstractmethod
    def prepare(self, batch: Batch, levels: int, expanded: int) -> None:
        """Allocate caches for `batch` and for trees of at most `levels` levels, in which at most
        `expanded` nodes below the root are expanded per pass. Add the caches, and the tensors with
        a row per caption that later calls replace, to `batch.buffers`, which removes the rows of
        finished captions.
        """

    @abstractmethod
    def admit(
        self,
        indices: Tensor,
        prompt: Prompt,
        captions: list[str],
        features: Tensor,
        first_tokens: Tensor,
    ) -> None:
        """Put new captions at indices of the batch.

        Args:
            indices: [n] where the captions are put.
            prompt: the target's prompt.
            captions: their texts.
            features: [n * streams, P, D] the target's features of the prompt. A drafter with `taps`
                gets those layers' inputs instead, side by side: [n * streams, P, taps * D].
            first_tokens: [n] the first tokens.
        """

    @abstractmethod
    def root_logits(self, batch: Batch) -> Tensor:
        """Logits [B, V] of the token after the root."""

    @abstractmethod
    def expand(self, batch: Batch, tokens: Tensor, parents: Tensor | None) -> Tensor:
        """Logits [B, F, V] of the tokens after F nodes of the next level.

        Args:
            batch: the images.
            tokens: [B, F] the nodes' tokens.
            parents: [B|1, F] each node's parent among the nodes of the previous call; None if that
                call had only one node. Before the first call, the parent is the root.
        """

    @abstractmethod
    def commit(self, batch: Batch, tokens: Tensor, features: Tensor, counts: Tensor) -> None:
        """Take the first counts[b] of the tokens [B, W], which the pass has emitted, with the
        target's features [R, W, D] of the tokens before them.
        """


class CachedDrafter(Drafter):
    """A drafter that is itself a small transformer over the tokens, and over the target's features
    if it uses them.

    Its cache is one pass behind: the tokens that a pass emitted are fed at the start of the next
    pass (`root_logits`), with the target's true features if the drafter uses them. They overwrite
    the drafts of the pass before. Token n is at column `base + n` of the cache and at position
    `prompt_len + n` of the target's rotation table.
    """

    cache: KVCache
    attention_mask: AttentionMask

    def __init__(self, target: Target, decoder: Body, base: int) -> None:
        super().__init__()
        for name in ("prompt_len", "rows", "cols"):
            self.check_size(
                name, getattr(decoder.config, name), getattr(target.transformer.config, name)
            )
        self.decoder = decoder
        self.base = base
        # a tuple keeps the target's modules from being registered as the drafter's
        self._target = (target,)

    @property
    def target(self) -> Target:
        return self._target[0]

    @abstractmethod
    def inputs(self, tokens: Tensor, features: Tensor) -> Tensor:
        """Decoder inputs [R, S, D'] of tokens [R, S] and the features [R, S, D] that precede
        them.
        """

    @property
    @abstractmethod
    def head(self) -> nn.Module:
        """Gives logits [..., V] of decoder outputs [..., D']."""

    @abstractmethod
    def prompt_inputs(
        self, prompt: Prompt, captions: list[str], features: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Decoder inputs [r, base, D'] of new captions' prompts, and which of them may be attended
        to [r, base].
        """

    def prompt_positions(self, order: Tensor) -> Tensor:
        """Positions of the prompt's inputs [base]."""
        return order

    def logits(self, batch: Batch, outputs: Tensor) -> Tensor:
        """Guided logits [B, ..., V] of decoder outputs [R, ..., D']."""
        return batch.guided_logits(self.head, outputs)

    def prepare(self, batch: Batch, levels: int, expanded: int) -> None:
        columns = aligned(self.base + batch.image_len + levels + expanded + 1)
        self.cache = self.decoder.new_cache(batch.streams * batch.size, columns)
        dtype = self.cache.storage.dtype
        device = self.cache.storage.device
        self.attention_mask = AttentionMask(self.cache.rows, columns, dtype=dtype, device=device)
        order = torch.arange(max(levels, expanded) + 1, device=device)
        # the columns of the fed tokens are the first one's index in the image plus these, and those
        # of the root and the drafted nodes are the root's position plus the others
        self._token_columns = order + self.base
        self._node_columns = order[: expanded + 1] + (self.base - self.target.prompt_len)
        self._streams = batch.streams
        # what is fed next: tokens, the features before them and their counts; and how many tokens
        # the cache holds
        feed_width = levels + 1 if batch.static else 1
        width = self.target.transformer.config.dim
        self._tokens = torch.zeros(batch.size, feed_width, dtype=torch.int64, device=device)
        self._features = torch.zeros(self.cache.rows, feed_width, width, dtype=dtype, device=device)
        self._counts = torch.ones(batch.size, dtype=torch.int64, device=device)
        self._cached = torch.zeros(batch.size, dtype=torch.int64, device=device)
        batch.buffers.add_cache(self.cache)
        batch.buffers.add(self.attention_mask, "padding")
        batch.buffers.add(self, "_tokens", "_features", "_counts", "_cached")

    def admit(
        self,
        indices: Tensor,
        prompt: Prompt,
        captions: list[str],
        features: Tensor,
        first_tokens: Tensor,
    ) -> None:
        rows = stream_rows(indices, self._streams, len(self._cached))
        x, valid = self.prompt_inputs(prompt, captions, features)
        if self.base:
            positions = self.prompt_positions(torch.arange(self.base, device=x.device))
            self.decoder(
                x,
                positions,
                mask=causal_padding_mask(valid),
                cache=self.cache.prompts(rows, self.base),
            )
        self.attention_mask.admit(rows, valid)
        # these tensors may be shared with the engine, so change copies
        self._cached = self._cached.index_fill(0, indices, 0)
        self._tokens = self._tokens.clone()
        self._features = self._features.clone()
        self._counts = self._counts.clone()
        self._tokens[indices] = 0
        self._features[rows] = 0
        self._counts[indices] = 1
        self._tokens[indices, 0] = first_tokens
        self._features[rows, 0] = features[:, -1]

    def root_logits(self, batch: Batch) -> Tensor:
        width = self._tokens.shape[1]
        columns = self._per_row(self._cached)[:, None] + self._token_columns[:width]
        span = self._span(batch, width)
        outputs = self.decoder(
            self.inputs(self._per_row(self._tokens), self._features),
            columns + (self.target.prompt_len - self.base),
            mask=self.attention_mask.chain(columns)[..., :span],
            cache=self.cache.at(columns, span),
        )
        if width > 1:  # the output of each row's last token; entries past it are never read
            last = (self._per_row(self._counts) - 1)[:, None, None]
            outputs = outputs.gather(1, last.expand(-1, 1, outputs.shape[2]))
        # drafted nodes use the columns after the last token's; each level has the next position
        self._positions = batch.rope_positions
        columns = self._positions[:, :1] + self._node_columns
        self._outputs = outputs
        self._mask = self.attention_mask.chain(columns[:, :1])[:, 0]
        self._columns = columns[:, 1:]
        self._drafted = 0
        self._level = 0
        return self.logits(batch, outputs[:, 0])

    def expand(self, batch: Batch, tokens: Tensor, parents: Tensor | None) -> Tensor:
        nodes = tokens.shape[1]
        features = self._of_parents(self._outputs, parents, nodes)
        columns = self._columns[:, self._drafted : self._drafted + nodes]
        # a node attends to what its parent attends to, and to itself
        self._mask = self._of_parents(self._mask, parents, nodes).scatter(
            2, columns[..., None], 0.0
        )
        self._drafted += nodes
        self._level += 1
        span = self._span(batch, self._drafted)
        self._outputs = self.decoder(
            self.inputs(self._per_row(tokens), features),
            self._positions[:, self._level, None],
            mask=self._mask[:, None, :, :span],
            cache=self.cache.at(columns, span),
        )
        return self.logits(batch, self._outputs)

    def look_ahead(self, batch: Batch, tokens: Tensor, features: Tensor, counts: Tensor) -> None:
        """Let the next tree follow tokens that no pass has verified: the first counts[b] of tokens
        [B, W], with features [R, W, D] in place of the target's. Where the count is 0, the tokens
        of this pass are fed again. `commit` replaces all of it.
        """
        is_fed = counts > 0
        width = max(tokens.shape[1], self._tokens.shape[1])
        tokens, own_tokens = (pad(x, (0, width - x.shape[1])) for x in (tokens, self._tokens))
        features, own_features = (
            pad(x, (0, 0, 0, width - x.shape[1])) for x in (features, self._features)
        )
        self._tokens = torch.where(is_fed[:, None], tokens, own_tokens)
        self._features = torch.where(self._per_row(is_fed)[:, None, None], features, own_features)
        self._counts = torch.where(is_fed, counts, self._counts)
        self._cached = torch.where(is_fed, batch.emitted, self._cached)

    def commit(self, batch: Batch, tokens: Tensor, features: Tensor, counts: Tensor) -> None:
        self._tokens = tokens
        self._features = features
        self._counts = counts
        self._cached = batch.emitted

    def _of_parents(self, x: Tensor, parents: Tensor | None, nodes: int) -> Tensor:
        """The entries [R, nodes, n] of x [R, F, n] at the nodes' parents [B|1, nodes]; with
        `parents` None, x has one entry, which is every node's.
        """
        if parents is None:
            return x.expand(-1, nodes, -1)
        if parents.shape[0] == 1:
            return x.index_select(1, parents[0])
        index = parents[..., None].expand(self._streams, -1, -1, x.shape[2])
        return x.view(self._streams, -1, *x.shape[1:]).gather(2, index).flatten(0, 1)

    def _per_row(self, x: Tensor) -> Tensor:
        return repeat_streams(x, self._streams)

    def _span(self, batch: Batch, width: int) -> int:
        """How many columns any row may use: those of the longest row's tokens, whose number the
        host knows, and `width` more.
        """
        return min(self.cache.columns, self.base + batch.max_emitted + width)
