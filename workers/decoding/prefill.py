"""Captions whose prompts the target has read: what a batch needs to start their images."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from workers.decoding.sampling import stream_rows
from workers.models.cache import CacheView
from workers.models.target import Prompt


@dataclass(frozen=True, slots=True)
class Prefill:
    """One pass of the target over the prompts of n captions (R = streams x n transformer rows)."""

    prompt: Prompt  # the captions' prompts
    cached: CacheView  # where the keys and values are
    features: Tensor  # [R, P, D or taps * D] what the drafter reads of the target
    keys: Tensor  # [n] keys of the images' random numbers
    first_tokens: Tensor  # [n] the images' first tokens
    nonfinite: Tensor  # [n] whether the probs that they were sampled from were not finite
    seconds: float  # one caption's share of the pass

    def split(self, count: int) -> tuple[Prefill, Prefill | None]:
        """The first `count` captions (all if there are fewer), and the others or None."""
        if count >= len(self.keys):
            return self, None
        return self._part(0, count), self._part(count, len(self.keys))

    def _part(self, start: int, stop: int) -> Prefill:
        size = len(self.keys)
        features = self.features
        rows = stream_rows(
            torch.arange(start, stop, device=features.device), len(features) // size, size
        )
        return replace(
            self,
            prompt=Prompt(self.prompt.embeds[rows], self.prompt.valid[rows]),
            cached=replace(
                self.cached, flat=self.cached.flat.view(len(features), -1)[rows].flatten()
            ),
            features=features[rows],
            keys=self.keys[start:stop],
            first_tokens=self.first_tokens[start:stop],
            nonfinite=self.nonfinite[start:stop],
        )
