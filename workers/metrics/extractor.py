"""Feature extractors: networks that turn images into the features that distances are measured on.

The built-in one reads scenes (`features.py`). A user's own is registered here under the key that its weights have in
`metrics` of a models.yaml entry. An extractor of the role "features" replaces the built-in one in every metric; one of
the role "manifold" only in precision and recall.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol, runtime_checkable

import torch
from torch import Tensor

from search_spaces.plugins import Registry
from workers.models.checkpoint_files import content_hash

Role = Literal["features", "manifold"]


class Extractor(Protocol):
    """A feature extractor. `name`: of the stored column `features.<name>`. `identity`: architecture, preprocessing and
    weight hash. `width`: number of features. `side`: size in pixels to which real images are resized for it.
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
    """A network that predicts classes from its own features."""

    def class_logits(self, features: Tensor) -> Tensor:
        """Logits [n, classes], float64 on the CPU, of features [n, d]."""
        ...


class ExtractorModule(Extractor, Protocol):
    """An extractor that can be moved to a device."""

    def to(self, device: torch.device) -> ExtractorModule: ...


@dataclass(frozen=True, slots=True)
class ExtractorInfo:
    """An extractor before it is loaded. `image_size`: the only size in pixels that it reads; None: it resizes any."""

    name: str
    identity: str
    width: int
    image_size: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ExtractorFactory:
    """Loads an extractor from the weights that a user gives as `metrics.<key>`.

    `name`: architecture and preprocessing; the identity is this name and the hash of the weights. `load` takes the
    path and the identity and raises WeightsError, which names the file. The stored column is `features.<key>`.
    """

    key: str
    role: Role
    name: str
    width: int
    load: Callable[[Path, str], ExtractorModule]

    def info(self, path: Path) -> ExtractorInfo:
        """The extractor of a weight file. Raises WeightsError when the file is missing."""
        return ExtractorInfo(self.key, f"{self.name}@{content_hash(path)}", self.width)

    def load_from(self, path: Path) -> ExtractorModule:
        """The loaded extractor of a weight file. Raises WeightsError."""
        return self.load(path, self.info(path).identity)


EXTRACTORS: Registry[ExtractorFactory] = Registry("feature extractor")


def register_extractor(factory: ExtractorFactory) -> None:
    """Make an extractor known under its key. Raises ConfigError when another module has registered the key."""
    EXTRACTORS.add(factory.key, factory, module=factory.load.__module__)
