"""Loaded models, and what they support."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from typing import Any, Self

import torch

from search_spaces.trial import DecodingConfig, Sampling
from workers.data.grid import Grid
from workers.decoding.drafter import TrainedPart
from workers.decoding.engine import Engine
from workers.models.target import Target


@dataclass(frozen=True, slots=True)
class Models:
    """A target and its drafters."""

    target: Target
    drafters: Mapping[str, TrainedPart]  # by kind
    # The content hash of each weight file by key; empty on the meta device.
    hashes: Mapping[str, str] = field(default_factory=dict)
    assumptions: tuple[str, ...] = ()  # sentences on what missing files did not say, for plans

    @property
    def drafter_levels(self) -> dict[str, int | None]:
        """The levels that each drafter can draft, by kind; None: any number."""
        return {kind: drafter.max_levels for kind, drafter in sorted(self.drafters.items())}

    def engine(self, config: DecodingConfig, *, seed: int, batch_size: int) -> Engine:
        """An engine that generates with a config.

        Raises:
            ConfigError: the models do not support the config.
        """
        config.check_model(self.target.vocab_size, drafters=self.drafter_levels)
        drafter = self.drafters.get(config.drafter.kind)
        return Engine(self.target, config, drafter, seed=seed, batch_size=batch_size)


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """What a target and its drafters support, as plain data: configs can be checked without loading
    weights.
    """

    target: str  # name of the target
    vocab_size: int  # number of image codes
    rows: int  # rows of the token grid
    cols: int  # columns of the token grid
    image_size: int  # pixels along the longer side
    sampling: Sampling  # default sampling of the target
    drafters: Mapping[str, int | None]  # see `Models.drafter_levels`
    preview: tuple[int, ...] = ()  # rows and columns of the image's preview, if it has one

    @classmethod
    def of(cls, models: Models) -> Self:
        """The capabilities of models, loaded or on the meta device.

        Raises:
            ValueError: the target cannot decode images, and does not say how large they would be.
        """
        target = models.target
        return cls(
            target=target.name,
            vocab_size=target.vocab_size,
            rows=target.grid.rows,
            cols=target.grid.cols,
            image_size=_image_size(target),
            sampling=target.sampling,
            drafters=models.drafter_levels,
            preview=target.grid.preview,
        )

    @property
    def grid(self) -> Grid:
        return Grid(self.rows, self.cols, self.preview)

    def check(self, config: DecodingConfig) -> None:
        """Refuse a config that the models do not support.

        Raises:
            ConfigError: names the key, and the limit exceeded or the missing drafter.
        """
        config.check_model(
            self.vocab_size,
            image_tokens=self.grid.tokens,
            image_rows=self.rows,
            has_preview=bool(self.preview),
            drafters=self.drafters,
        )

    def to_mapping(self) -> dict[str, Any]:
        """Plain data that `from_mapping` reads."""
        return asdict(self) | {"sampling": self.sampling.to_mapping()}

    @classmethod
    def from_mapping(cls, mapping: Mapping[str, Any]) -> Self:
        sampling = Sampling.from_mapping(mapping["sampling"])
        return cls(**{**mapping, "sampling": sampling, "preview": tuple(mapping["preview"])})


def unreadable_captions(target: Target, texts: Sequence[str]) -> list[tuple[int, str]]:
    """Indices of the captions that a target cannot read, with the reasons."""
    with suppress(ValueError):  # one call for all captions is fast, and usually enough
        target.check(texts)
        return []
    found = []
    for index, text in enumerate(texts):
        try:
            target.check([text])
        except ValueError as error:
            found.append((index, str(error)))
    return found


def _image_size(target: Target) -> int:
    """Pixels along the longer side of the target's images."""
    # Decoding on the meta device would import torch's compiler, which takes seconds.
    if (factor := getattr(target.codec, "factor", None)) is not None:
        return int(factor) * max(target.grid.rows, target.grid.cols)
    tokens = torch.zeros(1, target.grid.tokens, dtype=torch.int64, device=target.device)
    return max(target.decode(tokens).shape[2:])
