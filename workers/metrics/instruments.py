"""What is read off a trial's images while they are there: features, and the per-image scores that apply."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from workers.metrics import features
from workers.metrics.catalogue import scorers
from workers.metrics.estimate import Unmeasurable
from workers.metrics.features import SceneFeatures, load_features
from workers.metrics.metric import BASELINE, NET, REFERENCE, TIMINGS, Score, Subject

EXTRACTOR = "scenes"  # of the column `features.scenes`
PICTURES_AT_ONCE = 256


@dataclass(frozen=True, slots=True)
class Readings:
    """features: [n, d] float32 by extractor; scores: [n] by name; in the images' order."""

    features: Mapping[str, Tensor]
    scores: Mapping[str, Tensor]

    @classmethod
    def joined(cls, parts: Sequence[Readings]) -> Readings:
        """The readings of all parts' images, one part after the other."""

        def together(columns: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
            return {name: torch.cat([column[name] for column in columns]) for name in columns[0]}

        return cls(together([part.features for part in parts]), together([part.scores for part in parts]))


@dataclass(frozen=True, slots=True)
class Instruments:
    """The loaded nets. `absent`: for each that does not apply to these images or captions, why."""

    net: SceneFeatures | None
    scores: Mapping[str, Score]
    absent: Mapping[str, str]

    @classmethod
    def load(
        cls,
        folder: Path,
        *,
        image_size: int,
        captions: Sequence[str],
        device: torch.device,
        weights: Mapping[str, str] | None = None,
    ) -> Instruments:
        """The nets of a model's folder (its own, or the built-in ones) for images of a size and captions.

        Raises:
            WeightsError: a weight file is damaged.
            ValueError: `weights` of a net that no metric reads.
        """
        if weights:
            raise ValueError(f"metrics: no metric here reads weights of {', '.join(weights)}; remove the keys")
        absent: dict[str, str] = {}
        net: SceneFeatures | None = features_for(folder).to(device)
        assert net is not None
        if net.config.image_size != image_size:
            absent["features"] = f"the feature net takes images of {net.config.image_size} pixels, not {image_size}"
            net = None
        subject = Subject(image_size=image_size, captions=captions, folder=folder, device=device, net=net)
        scores: dict[str, Score] = {}
        for name, scorer in scorers().items():
            try:
                scores[name] = scorer.load(subject)
            except Unmeasurable as reason:
                absent[f"score.{name}"] = str(reason)
        return cls(net, scores, absent)

    @property
    def identities(self) -> dict[str, str]:
        """The name and weight hash of what gave the features, and of what gave each score."""
        found = {name: score.identity for name, score in self.scores.items()}
        return found if self.net is None else {"features": self.net.identity} | found

    @property
    def columns(self) -> set[str]:
        """What metrics may need, and images get from here."""
        found = {f"score.{name}" for name in self.scores}
        return found if self.net is None else found | {"features", NET}

    def read(self, images: Tensor, captions: Sequence[str]) -> Readings:
        """Readings of images [n, 3, H, W] in [0, 1], drawn from captions."""
        seen = None if self.net is None else self.net.extract(images, PICTURES_AT_ONCE)
        scores = {name: score.read(images, captions, seen).float().cpu() for name, score in self.scores.items()}
        return Readings({} if seen is None else {EXTRACTOR: seen}, scores)


def features_for(folder: Path) -> SceneFeatures:
    """The feature net of a model's folder, or the built-in one if it has none."""
    return load_features(features_file(folder))


def features_file(folder: Path) -> Path:
    """The weight file of that net."""
    own = folder / features.BUILTIN.name
    return own if own.is_file() else features.BUILTIN


def served(columns: Set[str], *, reference: bool) -> set[str]:
    """What metrics may need, and a sweep serves: these columns of its images, its timings, vanilla's images, and the
    reference where there is one.
    """
    return {"emitted", "rounds", "depth", TIMINGS, BASELINE, *columns, *((REFERENCE,) if reference else ())}
