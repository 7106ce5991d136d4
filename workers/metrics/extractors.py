"""What is read off a trial's images while they are there: features, and the per-image scores that apply."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from search_spaces.params import unknown_choice
from workers.metrics import features
from workers.metrics.estimate import MetricUnavailable
from workers.metrics.extractor import Classifier, Extractor, ExtractorFactory, ExtractorInfo, Role
from workers.metrics.features import SceneFeatures, announce_features, load_features
from workers.metrics.metric import BASELINE, MANIFOLD, NET, REFERENCE, TIMINGS, ScoreContext, Scorer
from workers.metrics.registry import extractors, required_inputs, scorers
from workers.models.checkpoint_files import WeightsError, shapes_only


@dataclass(frozen=True, slots=True)
class ImageScores:
    """features: [n, d] float32 by extractor; scores: [n] by name; in the images' order."""

    features: Mapping[str, Tensor]
    scores: Mapping[str, Tensor]

    @classmethod
    def joined(cls, parts: Sequence[ImageScores]) -> ImageScores:
        """The readings of all parts' images, one part after the other."""

        def together(columns: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
            return {name: torch.cat([column[name] for column in columns]) for name in columns[0]}

        return cls(together([part.features for part in parts]), together([part.scores for part in parts]))


@dataclass(frozen=True, slots=True)
class Extractors:
    """The loaded nets. `absent`: for each that does not apply to these images or captions, why.

    features: of everything that is measured on features; manifold: of precision and recall alone, where there is one.
    """

    features: Extractor | None
    manifold: Extractor | None
    scores: Mapping[str, Scorer]
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
        metrics: Collection[str] | None = None,
    ) -> Extractors:
        """The nets of a model's folder (its own, or the built-in ones) for images of a size and captions.

        weights: the user's own files by key (inception, vgg, clip, ...), which go before the built-in nets.
        metrics: names of those that are asked for (None: all); nets of scores that none of them needs are not loaded.

        Raises:
            WeightsError: a weight file is missing or damaged or another net's, or a key is unknown.
        """
        given = check_keys(weights)
        absent: dict[str, str] = {}
        scenes: SceneFeatures | None = load_scene_features(folder).to(device)
        assert scenes is not None
        if scenes.config.image_size != image_size:
            absent["features"] = f"the feature net takes images of {scenes.config.image_size} pixels, not {image_size}"
            scenes = None
        net, manifold = (_load(role, given, device) for role in ("features", "manifold"))
        if net is not None:
            absent.pop("features", None)
        elif manifold is not None and scenes is None:
            raise WeightsError("metrics.vgg: it serves precision and recall beside other features; give inception too")
        subject = ScoreContext(
            image_size=image_size, captions=captions, folder=folder, device=device, net=scenes, weights=given
        )
        scores: dict[str, Scorer] = {}
        for name, scorer in scorers().items():
            if metrics is not None and f"score.{name}" not in required_inputs(metrics):
                absent[f"score.{name}"] = "no metric that is asked for needs it"
                continue
            try:
                scores[name] = scorer.load(subject)
            except MetricUnavailable as reason:
                absent[f"score.{name}"] = str(reason)
        return cls(net or scenes, manifold, scores, absent)

    @property
    def roles(self) -> dict[str, Extractor]:
        """The extractors that are there, by the column that metrics know their features by."""
        both = {"features": self.features, MANIFOLD: self.manifold}
        return {role: extractor for role, extractor in both.items() if extractor is not None}

    @property
    def stored(self) -> dict[str, str]:
        """What shards call the features of each role."""
        return {role: extractor.name for role, extractor in self.roles.items()}

    @property
    def reader(self) -> Classifier | None:
        """What reads classes off the features."""
        net: object = self.features
        return net if isinstance(net, Classifier) else None

    @property
    def identities(self) -> dict[str, str]:
        """The name and weight hash of what gave the features, and of what gave each score."""
        nets = {role: extractor.identity for role, extractor in self.roles.items()}
        return nets | {name: score.identity for name, score in self.scores.items()}

    @property
    def columns(self) -> set[str]:
        """What metrics may need, and images get from here."""
        found = {f"score.{name}" for name in self.scores}
        found |= set() if self.features is None else {"features"}
        return found if self.reader is None else found | {NET}

    def read(self, images: Tensor, captions: Sequence[str]) -> ImageScores:
        """Readings of images [n, 3, H, W] in [0, 1], drawn from captions."""
        seen = {extractor.name: extractor.extract(images) for extractor in self.roles.values()}
        known = seen.get(features.COLUMN)
        scores = {name: score.read(images, captions, known).float().cpu() for name, score in self.scores.items()}
        return ImageScores(seen, scores)


def check_keys(weights: Mapping[str, str] | None) -> dict[str, str]:
    """The user's files by key.

    Raises:
        WeightsError: a key that no metric takes, or two for one role.
    """
    given = dict(weights or {})
    known = dict.fromkeys([*extractors(), *(key for scorer in scorers().values() for key in scorer.takes)])
    for key in given:
        if key not in known:
            raise WeightsError(f"metrics: {unknown_choice(key, tuple(known))}")
    for role in ("features", "manifold"):
        keys = [key for key in given if key in extractors() and extractors()[key].role == role]
        if len(keys) > 1:
            raise WeightsError(f"metrics: {' and '.join(keys)} are two answers to one question; give one of them")
    return given


def weight_keys(metrics: Collection[str]) -> set[str]:
    """Keys of the users' files that are loaded where these metrics (none: all there are) are asked for."""
    needs = required_inputs(metrics)
    asked = [scorer for name, scorer in scorers().items() if not metrics or f"score.{name}" in needs]
    return {*extractors(), *(key for scorer in asked for key in scorer.takes)}


def check_weights(folder: Path, weights: Mapping[str, str], metrics: Collection[str] = ()) -> dict[str, str]:
    """What is wrong with the user's files, by key: each is held against its net, in shapes alone.

    metrics: names of those that are asked for (none: all); scores that none of them needs are left out.

    Raises:
        WeightsError: see `check_keys`.
    """
    given, needs = check_keys(weights), required_inputs(metrics)
    wrong = {
        key: f"{path}: no such file or folder; check the path" for key, path in given.items() if not Path(path).exists()
    }
    meta = torch.device("meta")
    subject = ScoreContext(image_size=256, captions=(), folder=folder, device=meta, net=None, weights=given)
    loads: dict[str, Callable[[], object]] = {
        key: partial(extractors()[key].load, Path(path)) for key, path in given.items() if key in extractors()
    }
    for name, scorer in scorers().items():
        taken = [key for key in scorer.takes if key in given]
        if taken and (not metrics or f"score.{name}" in needs):
            loads[taken[0]] = partial(scorer.load, subject)
    for key, load in loads.items():
        if key in wrong:
            continue
        with shapes_only():
            try:
                load()
            except MetricUnavailable:  # of these captions; the file is another matter
                continue
            except ValueError as error:
                wrong[key] = str(error)
    return wrong


def feature_info(folder: Path, weights: Mapping[str, str] | None = None) -> ExtractorInfo:
    """The features of a sweep before its nets are loaded: the user's file, else a model's own net, or the built-in one.

    Raises:
        WeightsError: see `check_keys`; the file is missing, or its header is damaged.
    """
    entry, path = _given("features", check_keys(weights))
    return announce_features(scene_features_path(folder)) if entry is None else entry.announce(path)


def manifold_infos(weights: Mapping[str, str] | None = None) -> dict[str, str]:
    """Identities by name of the extractors that serve beside the features: a manifold's, where one is given.

    Raises:
        WeightsError: as of `feature_info`.
    """
    entry, path = _given("manifold", check_keys(weights))
    return {} if entry is None else {entry.key: entry.announce(path).identity}


def load_extractors(weights: Mapping[str, str], device: torch.device) -> tuple[Extractor | None, Extractor | None]:
    """The user's extractors of both roles, loaded.

    Raises:
        WeightsError: see `Extractors.load`.
    """
    given = check_keys(weights)
    return _load("features", given, device), _load("manifold", given, device)


def load_scene_features(folder: Path) -> SceneFeatures:
    """The feature net of a model's folder, or the built-in one if it has none."""
    return load_features(scene_features_path(folder))


def scene_features_path(folder: Path) -> Path:
    """The weight file of that net."""
    own = folder / features.BUILTIN.name
    return own if own.is_file() else features.BUILTIN


def available_inputs(columns: Set[str], *, reference: bool) -> set[str]:
    """What metrics may need, and a sweep serves: these columns of its images, its timings, vanilla's images, and the
    reference where there is one.
    """
    return {"emitted", "rounds", "depth", TIMINGS, BASELINE, *columns, *((REFERENCE,) if reference else ())}


def _given(role: Role, weights: Mapping[str, str]) -> tuple[ExtractorFactory | None, Path]:
    for key, path in weights.items():
        entry = extractors().get(key)
        if entry is not None and entry.role == role:
            return entry, Path(path).expanduser()
    return None, Path()


def _load(role: Role, weights: Mapping[str, str], device: torch.device) -> Extractor | None:
    entry, path = _given(role, weights)
    return None if entry is None else entry.load(path).to(device)
