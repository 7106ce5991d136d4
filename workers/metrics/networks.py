"""Networks that read images: feature extractors, on which distances are measured, and per-image
scores.

A network is one module that calls `register_extractor` or `register_score`, in this package or in a
plugin. The user gives its weights under `metrics` of a models.yaml entry. An extractor of the role
"features" replaces the built-in one (`features.py`) in every metric; one of the role "manifold"
only in precision and recall. One whose role is its own key is read by metrics of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import torch
from torch import Tensor, nn

from search_spaces.plugins import Registry
from workers.metrics.definition import SCORE_PREFIX, Direction
from workers.metrics.estimate import Estimate, MetricUnavailable, block_mean
from workers.metrics.metric import MetricInputs, register_metric
from workers.models.checkpoint_files import WeightsError, content_hash, load_tensors, shapes_only
from workers.models.weights import KeyMapping, load_weights, skip_init, source_names
from workers.scenes.captions import parse

M = TypeVar("M", bound=nn.Module)


class Extractor(nn.Module):
    """A feature extractor: `forward` maps what `prepare` returns to features [n, width]."""

    name = ""  # the stored column is `features.<name>`
    identity = "untrained"  # architecture, preprocessing and weight hash
    width: int  # number of features
    side: int  # pixels to which real images are resized for it
    image_size: int | None = None  # the only size in pixels that it reads; None: it resizes any
    batch = 64  # images at a time

    def prepare(self, images: Tensor) -> Tensor:
        """The input of `forward` from images [n, 3, H, W] in [0, 1]."""
        return images

    @torch.no_grad()
    def extract(self, images: Tensor) -> Tensor:
        """Features [n, width], float32 on the CPU, of any number of images [n, 3, H, W] in [0,
        1].
        """
        weight = next(self.parameters())
        parts = (
            self.prepare(part).to(weight.device, weight.dtype)
            for part in torch.split(images, self.batch)
        )
        return torch.cat([self(part).float().cpu() for part in parts])


@dataclass(frozen=True, slots=True, kw_only=True)
class ExtractorFactory:
    """Loads an extractor; `register_extractor` explains the fields."""

    key: str
    role: str
    architecture: str
    load: Callable[[Path], Extractor]
    file: str = ""

    def load_from(self, path: Path, device: torch.device) -> Extractor:
        """The extractor of a weight file; on the meta device only its sizes and identity. Raises
        WeightsError.
        """
        identity = f"{self.architecture}@{content_hash(path)}"
        with shapes_only() if device.type == "meta" else nullcontext():
            extractor = self.load(path).to(device)
        extractor.name = self.key
        extractor.identity = identity
        return extractor


EXTRACTORS: Registry[ExtractorFactory] = Registry("feature extractor", "workers.metrics")


def register_extractor(
    key: str, *, role: str, architecture: str, load: Callable[[Path], Extractor], file: str = ""
) -> None:
    """Make an extractor known under the key of its weights; the stored column is `features.<key>`.

    Args:
        key: key of the weights under `metrics` of a models.yaml entry.
        role: the metrics that read the features: "features", "manifold", or the key (see the
            module).
        architecture: name of architecture and preprocessing; the identity is this name and the hash
            of the weights.
        load: makes the extractor from the path of its weights; raises WeightsError, which names the
            file.
        file: what the weights are, such as "folder of DINOv2"; for messages.

    Raises:
        ConfigError: another module has registered the key.
    """
    factory = ExtractorFactory(key=key, role=role, architecture=architecture, load=load, file=file)
    EXTRACTORS.add(key, factory, module=getattr(load, "func", load).__module__)


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreContext:
    """The images that scores are computed for, and the files and device of their networks."""

    image_size: int  # pixels along a side
    captions: Sequence[str]  # captions of the images
    folder: Path  # folder of the model
    device: torch.device
    weights: Mapping[str, str] = field(default_factory=dict)  # paths by key, from models.yaml

    def path(self, key: str) -> Path:
        """Path of the user's weights."""
        return Path(self.weights[key]).expanduser()

    def require_scenes(self, user: str, image_size: int) -> None:
        """Raises MetricUnavailable for images of another size, and for a caption that is not one of
        a scene.
        """
        if self.image_size != image_size:
            raise MetricUnavailable(
                f"{user} reads images of {image_size} pixels, not {self.image_size}"
            )
        try:
            for text in self.captions:
                parse(text)
        except ValueError as error:
            raise MetricUnavailable(f"{user} reads captions of scenes only: {error}") from None


@dataclass(frozen=True, slots=True)
class Scorer:
    """A loaded score."""

    identity: str  # name and hash of the weights
    score: Callable[[Tensor, Sequence[str]], Tensor]  # [n] of images [n, 3, H, W] and captions
    extractor: Extractor | None = None  # `score` takes its features [n, width] instead of images


@dataclass(frozen=True, slots=True, kw_only=True)
class ScorerFactory:
    """Loads a score; `register_score` explains the fields."""

    name: str
    load: Callable[[ScoreContext], Scorer]
    weights: Mapping[str, str]
    optional_weights: tuple[str, ...]

    @property
    def weight_keys(self) -> tuple[str, ...]:
        """Keys of the weights that it reads."""
        return (*self.weights, *self.optional_weights)

    def load_for(self, context: ScoreContext) -> Scorer:
        """The loaded score.

        Raises:
            MetricUnavailable: its weights are not given, or it does not apply to the context.
            WeightsError: a weight file is missing, damaged or of another model, or only some of the
                weights are given.
        """
        missing = [key for key in self.weights if key not in context.weights]
        if missing:
            needed = " and ".join(f"metrics.{key} ({what})" for key, what in self.weights.items())
            main, *_ = self.weights
            if main in missing:
                raise MetricUnavailable(f"its weights are not given: set {needed}")
            raise WeightsError(
                f"metrics.{main}: {self.name} needs {needed}; set metrics.{missing[0]} too"
            )
        return self.load(context)


SCORERS: Registry[ScorerFactory] = Registry("per-image score", "workers.metrics")


def register_score(
    name: str,
    *,
    unit: str,
    about: str,
    load: Callable[[ScoreContext], Scorer],
    weights: Mapping[str, str] | None = None,
    optional_weights: tuple[str, ...] = (),
    direction: Direction = "maximize",
) -> None:
    """Register a per-image score and the metric `name`, its mean over a trial's images.

    Args:
        name: name of the metric and of the score's column.
        unit: unit of the score.
        about: what it measures, in one line.
        load: makes the score; raises MetricUnavailable when the score does not apply to the
            context, and WeightsError when a weight file is wrong.
        weights: keys that a models.yaml entry must give under `metrics`, each with what the file
            is; without the first one the score is unavailable.
        optional_weights: keys of networks that `load` uses if given.
        direction: whether more or less is better.

    Raises:
        ConfigError: another module has registered the name.
    """
    factory = ScorerFactory(
        name=name, load=load, weights=weights or {}, optional_weights=optional_weights
    )
    SCORERS.add(name, factory, module=load.__module__)
    column = SCORE_PREFIX + name

    def compute(inputs: MetricInputs) -> Estimate:
        return block_mean(inputs.column(column), inputs.blocks)

    compute.__module__ = load.__module__
    compute.__doc__ = about
    register_metric(name, direction=direction, unit=unit, needs=(column,))(compute)


def load_frozen(
    build: Callable[[], M],
    path: Path,
    table: Sequence[KeyMapping] = (KeyMapping("{...}", "{...}"),),
    *,
    part: str = "",
    split: Callable[[Mapping[str, Tensor]], Mapping[str, Tensor]] = lambda tensors: tensors,
) -> M:
    """build() with the weights of a file: frozen, in evaluation mode, fp32.

    Args:
        build: makes the module.
        path: the weight file.
        table: names in the file and in the module.
        part: name of the submodule that the file fills; all of it by default.
        split: applied to the file's tensors first, where one of them holds several weights.

    Raises:
        WeightsError: the file is missing, damaged, or of another model or size; it is named.
    """
    module = skip_init(build)
    filled = module.get_submodule(part)
    load_weights(filled, split(load_tensors(path, source_names(filled, table))), table, where=path)
    return module.eval().requires_grad_(False)


def own_or_builtin(folder: Path, builtin: Path) -> Path:
    """The weight file of that name in a model's folder, or the built-in one."""
    own = folder / builtin.name
    return own if own.is_file() else builtin
