"""Sizes of a VQ codec from the names and shapes of its tensors."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

from torch import Tensor

from workers.models.vq import VQConfig


def infer_config(tensors: Mapping[str, Tensor], defaults: VQConfig, down: str, up: str, block: str) -> VQConfig:
    """A codec's sizes from the names and shapes of its tensors, or `defaults` if they are incomplete: loading will then
    report what is missing.

    down, up: prefixes of the encoder's and decoder's levels. block: name of a level's residual blocks.
    """

    def count(prefix: str) -> int:
        return len({hit[1] for name in tensors if (hit := re.match(rf"{re.escape(prefix)}\.(\d+)\.", name))})

    try:
        channels, blocks = tensors["encoder.conv_in.weight"].shape[0], count(f"{down}.0.{block}")
        widths = [tensors[f"{down}.{level}.{block}.0.conv1.weight"].shape[0] for level in range(count(down))]
        codes, dim = tensors["quantize.embedding.weight"].shape
        return replace(
            defaults,
            codebook_size=codes,
            code_dim=dim,
            channels=channels,
            multipliers=tuple(width // channels for width in widths),
            encoder_blocks=blocks,
            decoder_blocks=count(f"{up}.0.{block}") or blocks + 1,
            z_channels=tensors["encoder.conv_out.weight"].shape[0],
        )
    except (KeyError, ValueError):
        return defaults
