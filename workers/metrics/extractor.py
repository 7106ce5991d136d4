"""What measures distances: nets that turn images into features, and the weight files that a user gives for them.

Each module of this package may define EXTRACTORS. One of the role "features" takes the place of the built-in feature
net in everything that is measured on features; one of the role "manifold" only in precision and recall.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol, runtime_checkable

import torch
from torch import Tensor

Role = Literal["features", "manifold"]


class Extractor(Protocol):
    """A feature net. `name`: of the stored column `features.<name>`. `identity`: name, resizing and weights' hash.

    `width`: length of the features. `side`: pixels to which real images are brought for it.
    """

    name: str
    identity: str

    @property
    def width(self) -> int: ...

    @property
    def side(self) -> int: ...

    def extract(self, images: Tensor, batch: int = ...) -> Tensor:
        """Features [n, d], float32 on the CPU, of images [n, 3, H, W] in [0, 1]."""
        ...


@runtime_checkable
class Classifier(Protocol):
    """A net that reads classes off its own features."""

    def class_logits(self, features: Tensor) -> Tensor:
        """Logits [n, classes], float64 on the CPU, of features [n, d]."""
        ...


@dataclass(frozen=True, slots=True)
class ExtractorInfo:
    """An extractor before it is loaded; `takes`: the only size of images that it reads, None if it resizes any."""

    identity: str
    width: int
    takes: int | None


@dataclass(frozen=True, slots=True)
class ExtractorFactory:
    """A weight file that a user may give as `metrics.<key>`. Both functions raise WeightsError, naming the file."""

    key: str
    role: Role
    announce: Callable[[Path], ExtractorInfo]
    load: Callable[[Path], ExtractorModule]


class ExtractorModule(Extractor, Protocol):
    """An extractor that can be put on a device."""

    def to(self, device: torch.device) -> ExtractorModule: ...
