"""Rendered scenes in memory for the small nets of the metrics, as bytes: 6.9 kB a scene."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from workers.data.scenes import render, sample_attributes

#: What the built-in nets are trained on, and what they are measured on.
TRAINING_SCENES, TRAINING_SEED = 20_000, 0
HELD_OUT_SCENES, HELD_OUT_SEED = 2_000, 1


@dataclass(frozen=True, slots=True, eq=False)
class SceneSet:
    """Images uint8 [n, 3, 48, 48] and their attribute rows int64 [n, 12]."""

    images: Tensor
    rows: Tensor

    def __len__(self) -> int:
        return len(self.rows)

    def floats(self, chosen: Tensor | slice) -> Tensor:
        """The chosen images as float32 in [0, 1]."""
        return self.images[chosen].float() / 255


def scene_set(
    seed: int, scenes: int, *, chunk: int = 250, report: Callable[[str], None] = lambda line: None
) -> SceneSet:
    """The first `scenes` scenes of a seed."""
    rows = sample_attributes(seed, range(scenes))
    parts: list[Tensor] = []
    for start in range(0, scenes, chunk):
        indices = range(start, min(start + chunk, scenes))
        parts.append((render(rows[start : start + chunk], seed, indices) * 255).round().byte())
        if len(parts) % 20 == 0:
            report(f"rendered {indices.stop} of {scenes} scenes")
    return SceneSet(torch.cat(parts), rows)
