"""Medusa heads (Cai et al. 2024): head m reads the target's feature of token t and predicts token
t+1+m directly.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from workers.decoding.drafter import Drafter
from workers.decoding.sampling import stream_rows
from workers.decoding.state import Batch
from workers.models.linear import PackedLinear
from workers.models.own_files import read_module
from workers.models.target import Prompt, Target


class MedusaHeads(nn.Module):
    """K heads, logits_m = W_m (f + SiLU(V_m f + b_m)). With `shared_head`, every W_m is the
    target's own head.
    """

    taps: tuple[int, ...] = ()  # see `Drafter.taps`

    def __init__(self, dim: int, vocab_size: int, heads: int, *, shared_head: bool) -> None:
        super().__init__()
        self.dim = dim
        self.vocab_size = vocab_size
        self.residuals = nn.ModuleList(PackedLinear(dim, dim) for _ in range(heads))
        for parameter in self.residuals.parameters():
            nn.init.zeros_(parameter)  # starts as the target's head
        if shared_head:
            self.heads = None
        else:
            self.heads = nn.ModuleList(
                PackedLinear(dim, vocab_size, bias=False) for _ in range(heads)
            )

    def hidden(self, features: Tensor, head: int) -> Tensor:
        """The inputs [..., D] of W_m, of features [..., D]. `head` is 0-based: 0 predicts the token
        after the root.
        """
        return features + torch.nn.functional.silu(self.residuals[head](features))

    def projection(self, head: int, target_head: nn.Module) -> nn.Module:
        """W_m: the head's own projection, or the target's head."""
        return target_head if self.heads is None else self.heads[head]

    def forward(self, features: Tensor, head: int, target_head: nn.Module) -> Tensor:
        """Logits [..., V] of head `head` on features [..., D]."""
        out: Tensor = self.projection(head, target_head)(self.hidden(features, head))
        return out


class MedusaDrafter(Drafter):
    """All nodes of a level share one distribution: a head does not see which path it continues."""

    kind = "medusa"
    capturable = True
    feature: Tensor  # [R, D] the target's feature of the token before the root

    def __init__(self, target: Target, heads: MedusaHeads) -> None:
        super().__init__()
        self.check_size("dim", heads.dim, target.transformer.config.dim)
        self.check_size("vocab_size", heads.vocab_size, target.vocab_size)
        self.heads = heads
        self.max_levels = len(heads.residuals)
        # In a tuple, so that the target's modules are not registered as the drafter's.
        self._target = (target,)

    @classmethod
    def load(cls, path: Path, target: Target) -> MedusaDrafter:
        return cls(target, read_module(path, "Medusa heads", build_medusa)[0])

    @classmethod
    def usual(cls, target: Target, levels: int) -> tuple[MedusaDrafter, str]:
        with torch.device("meta"):
            heads = MedusaHeads(
                target.transformer.config.dim, target.vocab_size, levels, shared_head=True
            )
        drafter = cls(target, heads.to(target.dtype)).eval().requires_grad_(False)
        return drafter, "Medusa's heads share the target's own head"

    def prepare(self, batch: Batch, levels: int, expanded: int) -> None:
        target = self._target[0]
        self._streams = batch.streams
        shape = (batch.streams * batch.size, target.transformer.config.dim)
        self.feature = torch.zeros(shape, dtype=target.dtype, device=target.device)
        batch.buffers.add(self, "feature")

    def admit(
        self,
        indices: Tensor,
        prompt: Prompt,
        captions: list[str],
        features: Tensor,
        first_tokens: Tensor,
    ) -> None:
        self.feature = self.feature.clone()
        self.feature[self._rows(indices)] = features[:, -1]

    def root_logits(self, batch: Batch) -> Tensor:
        self._level = 0
        return self._logits(batch)

    def expand(self, batch: Batch, tokens: Tensor, parents: Tensor | None) -> Tensor:
        self._level += 1
        return self._logits(batch)[:, None].expand(-1, tokens.shape[1], -1)

    def _logits(self, batch: Batch) -> Tensor:
        head = self.heads.projection(self._level, self._target[0].head)
        return batch.guided_logits(head, self.heads.hidden(self.feature, self._level))

    def commit(self, batch: Batch, tokens: Tensor, features: Tensor, counts: Tensor) -> None:
        last = (batch.per_row(counts) - 1)[:, None, None].expand(-1, 1, features.shape[2])
        self.feature = features.gather(1, last)[:, 0]

    def _rows(self, indices: Tensor) -> Tensor:
        return stream_rows(indices, self._streams, len(self.feature) // self._streams)


def build_medusa(config: Mapping[str, Any]) -> MedusaHeads:
    """Medusa heads from {"dim", "vocab_size", "heads", "shared_head"}."""
    return MedusaHeads(
        config["dim"], config["vocab_size"], config["heads"], shared_head=config["shared_head"]
    )
