"""Lumina-mGPT (Liu et al., 2024): Chameleon's architecture, for images of any aspect ratio with a
token after each row.

The official sequence of an image is [8197, height, width, row, 8803, row, 8803, ..., 8196]. The
three tokens before the first row are forced and belong to the prompt. The row ends are processed
together with the row's last code (`workers.decoding.row_ends`) and are not tokens of the image;
tokens after the last code have no effect. So an image of 48 x 48 codes has 2304 tokens here, while
the published code counts 2353 generated ones: its accepted lengths include the forced tokens, and
its vanilla decoding spends a pass on each of them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from search_spaces.params import ConfigError, Range
from workers.models.families.catalogue import FAMILIES
from workers.models.families.chameleon import (
    BEGIN_IMAGE,
    END_TURN,
    SPECIAL_TOKENS,
    ChameleonFamily,
    ImageFormat,
)

ROW_END = 8803
_SIZE_ZERO = 8804  # a size token is this plus the side in units of 32 px: 8828 means 768
_UNIT_PX = 32
_CODE_PX = 16
_MAX_UNITS = 2048 // _UNIT_PX  # the longest side of a 1024 px model at the widest aspect ratio, 4:1


@FAMILIES.register
@dataclass(frozen=True, slots=True)
class Lumina(ChameleonFamily):
    """Lumina-mGPT for images of one size."""

    kind: ClassVar[str] = "lumina"
    published: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "lumina-mgpt-7b-768": {"transformer": "Lumina-mGPT-7B-768", "vq": "vqgan.ckpt"}
    }
    on_hub: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "lumina-mgpt-7b-768": {
            "transformer": "hf://Alpha-VLLM/Lumina-mGPT-7B-768",
            "vq": "vqgan.ckpt",
        }
    }
    width: Annotated[int, "of the images, pixels", Range(_UNIT_PX, _MAX_UNITS * _UNIT_PX)] = 768
    height: Annotated[int, "of the images, pixels", Range(_UNIT_PX, _MAX_UNITS * _UNIT_PX)] = 768

    def check(self) -> None:
        for key, pixels in (("width", self.width), ("height", self.height)):
            if pixels % _UNIT_PX:
                raise ConfigError((key,), f"must be a multiple of {_UNIT_PX}, got {pixels}")

    @property
    def name_notes(self) -> list[str]:
        if not (found := re.search(r"Lumina-mGPT-7B-(512|768|1024)", self.transformer)):
            return []
        side = int(found[1])
        # other shapes have about the same area
        if 0.75 <= self.width * self.height / side**2 <= 1.33:
            return []
        size = f"the entry has width {self.width} and height {self.height}"
        return [
            f"by its name, {found[0]} makes images of about {side} x {side} pixels, {size}; set "
            f"them to {side}"
        ]

    @property
    def image(self) -> ImageFormat:
        """The unconditional prompt has only the image's first tokens."""
        start = (
            BEGIN_IMAGE,
            _SIZE_ZERO + self.height // _UNIT_PX,
            _SIZE_ZERO + self.width // _UNIT_PX,
        )
        return ImageFormat(
            name=f"lumina-mgpt-{self.width}"
            + ("" if self.width == self.height else f"x{self.height}"),
            prefix=(
                f"Generate an image of {self.width}x{self.height} according to the following "
                "prompt:\n"
            ),
            suffix=(END_TURN, *start),
            null=start,
            rows=self.height // _CODE_PX,
            cols=self.width // _CODE_PX,
            row_end=ROW_END,
            special_tokens={**SPECIAL_TOKENS, "<reserved08799>": ROW_END},
        )
