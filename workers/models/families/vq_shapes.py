"""Official files of VQ codecs: sizes from the names and shapes of the tensors, checked against the target."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from torch import Tensor

from workers.models.checkpoint_files import WeightsError
from workers.models.vq import VQConfig, VQModel
from workers.models.weights import KeyMapping, load_weights, skip_init

CODEC_LANDMARKS = ("quantize.embedding.weight", "encoder.conv_in.weight")  # see `load_tensors`


def load_codec(
    tensors: Mapping[str, Tensor],
    config: VQConfig,
    mappings: Sequence[KeyMapping],
    *,
    codes: int,
    geometry: VQConfig | None = None,
    where: str | Path,
) -> VQModel:
    """A codec of `config`, as `infer_config` gives it, in fp32, for a target that draws `codes` codes.

    geometry: a codec with the down-sampling and code width that the target needs; None: it takes any.

    Raises:
        WeightsError: tensors do not fit `config`, or the codec does not fit the target.
    """
    codec = skip_init(lambda: VQModel(config))
    load_weights(codec, tensors, mappings, where=where)
    needs = [(config.codebook_size, codes, "codes")]
    if geometry is not None:
        needs.append((config.code_dim, geometry.code_dim, "numbers per code"))
        needs.append((config.factor, geometry.factor, "pixels per code along a side"))
    for found, needed, unit in needs:
        if found != needed:
            raise WeightsError(
                f"{where}: this codec has {found} {unit}, the target needs {needed}; give `vq`, the file of the codec "
                "that the target was trained with"
            )
    return codec.eval()


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
