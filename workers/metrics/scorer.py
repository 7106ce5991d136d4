"""Per-image scores, such as CLIP score: the networks that compute them, and the metric that is their mean.

A new score is one module that calls `register_score`, inside this package or in a plugin.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from search_spaces.plugins import Registry
from workers.metrics.estimate import Estimate, MetricUnavailable, grouped_mean
from workers.metrics.features import SceneFeatures
from workers.metrics.metric import Direction, Metric, MetricInputs, register_metrics
from workers.models.checkpoint_files import WeightsError
from workers.scenes.captions import parse

SCORE_PREFIX = "score."  # column `score.<name>` of the images


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreContext:
    """What scores are computed for: images of `image_size` pixels, drawn from captions, on a device.

    folder: of the model. scene_features: the scenes' feature extractor, if it reads images of this size. weights: paths
    by key, from `metrics` of the models.yaml entry.
    """

    image_size: int
    captions: Sequence[str]
    folder: Path
    device: torch.device
    scene_features: SceneFeatures | None
    weights: Mapping[str, str] = field(default_factory=dict)

    def path(self, key: str) -> Path:
        """Path of the user's weights."""
        return Path(self.weights[key]).expanduser()

    def require_scenes(self, user: str) -> None:
        """Raises MetricUnavailable when a caption is not one of a scene; `user` begins the message."""
        try:
            for text in self.captions:
                parse(text)
        except ValueError as error:
            raise MetricUnavailable(f"{user} captions of scenes only: {error}") from None


@dataclass(frozen=True, slots=True)
class Scorer:
    """A loaded score. `score` maps images [n, 3, H, W] in [0, 1], their captions and the scenes' features [n, d] (None
    when they are not computed) to [n].
    """

    identity: str
    score: Callable[[Tensor, Sequence[str], Tensor | None], Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class ScorerFactory:
    """Loads a score; see `register_score`."""

    name: str
    load: Callable[[ScoreContext], Scorer]
    weights: Mapping[str, str] = field(default_factory=dict)
    optional_weights: tuple[str, ...] = ()

    @property
    def weight_keys(self) -> tuple[str, ...]:
        """Keys of the weights that it reads."""
        return (*self.weights, *self.optional_weights)

    def load_for(self, context: ScoreContext) -> Scorer:
        """The loaded score.

        Raises:
            MetricUnavailable: its weights are not given, or it does not apply to the context.
            WeightsError: a weight file is missing, damaged or of another model, or only some of the weights are given.
        """
        missing = [key for key in self.weights if key not in context.weights]
        if missing:
            needed = " and ".join(f"metrics.{key} ({what})" for key, what in self.weights.items())
            main, *_ = self.weights
            if main in missing:
                raise MetricUnavailable(f"its weights are not given: set {needed}")
            raise WeightsError(f"metrics.{main}: {self.name} needs {needed}; set metrics.{missing[0]} too")
        return self.load(context)


SCORERS: Registry[ScorerFactory] = Registry("per-image score")


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

    load: makes the score; raises MetricUnavailable when the score does not apply to the context, and WeightsError when
    a weight file is wrong. weights: keys that a models.yaml entry must give under `metrics`, each with what the file
    is; without the first one the score is unavailable. optional_weights: keys of networks that `load` uses if given.

    Raises:
        ConfigError: another module has registered the name.
    """
    factory = ScorerFactory(name=name, load=load, weights=weights or {}, optional_weights=optional_weights)
    SCORERS.add(name, factory, module=load.__module__)
    column = SCORE_PREFIX + name

    def compute(inputs: MetricInputs) -> Estimate:
        return grouped_mean(inputs.column(column), inputs.column("caption_id"))

    compute.__module__ = load.__module__
    metric = Metric(name=name, direction=direction, unit=unit, about=about, needs=(column,), compute=compute)
    register_metrics(metric)
