"""The networks that read a trial's images: feature extractors and per-image scores, those that
apply.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Self

import torch
from torch import Tensor

from search_spaces.params import unknown_choice
from workers.metrics import features
from workers.metrics.definition import (
    ATTRIBUTES,
    CLASSIFIER,
    FEATURES,
    IMAGES,
    MANIFOLD,
    OF_CODES,
    REFERENCE,
    SCORE_PREFIX,
)
from workers.metrics.estimate import MetricUnavailable
from workers.metrics.metric import METRICS, Classifier, ComputedMetric
from workers.metrics.networks import (
    EXTRACTORS,
    SCORERS,
    Extractor,
    ExtractorFactory,
    ScoreContext,
    Scorer,
    own_or_builtin,
)
from workers.metrics.registry import required_inputs, select_metrics, weight_keys
from workers.models.checkpoint_files import WeightsError, shapes_only


@dataclass(frozen=True, slots=True)
class ImageScores:
    """What the networks read from images; rows are in the order of the images."""

    features: Mapping[str, Tensor]  # [n, d] float32 by name of the extractor
    scores: Mapping[str, Tensor]  # [n] by name of the score

    @classmethod
    def concat(cls, parts: Sequence[Self]) -> Self:
        """The features and scores of all parts' images, one part after the other."""

        def join(columns: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
            return {name: torch.cat([column[name] for column in columns]) for name in columns[0]}

        return cls(join([part.features for part in parts]), join([part.scores for part in parts]))


@dataclass(frozen=True, slots=True)
class Extractors:
    """The loaded networks."""

    # Feature extractors by the column of `MetricInputs.images` that they fill: "features",
    # "manifold" if precision and recall have an extractor of their own, and the keys of those that
    # metrics of their own read.
    by_role: Mapping[str, Extractor]
    scorers: Mapping[str, Scorer]  # by name
    unavailable: Mapping[str, str]  # why networks cannot be used with these images or captions
    no_images: str = ""  # why the target cannot decode images (see `Target.no_images`)

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
        no_images: str = "",
    ) -> Self:
        """The networks that read a model's images: those of its folder, or the built-in ones; none
        if it cannot decode images.

        Args:
            folder: folder of the model.
            image_size: pixels along a side of its images.
            captions: captions of the sweep.
            device: device of the networks; on the meta device they have no weights.
            weights: the user's own files by key (inception, vgg, ...), used instead of ours.
            metrics: names of the requested metrics (None: all); scores that none of them needs are
                not loaded.
            no_images: why the model cannot decode images; "" if it can.

        Raises:
            WeightsError: a weight file is missing, damaged or of another model, or a key is
                unknown; or extractors read real images of several sizes.
        """
        if no_images:
            return cls({}, {}, dict.fromkeys((FEATURES, IMAGES), no_images), no_images)
        weights = check_keys(weights)
        unavailable = dict[str, str]()
        by_role = load_extractors(folder, weights, device)
        only_size = by_role[FEATURES].image_size
        if only_size not in (None, image_size):
            unavailable[FEATURES] = (
                f"the feature extractor reads images of {only_size} pixels, not {image_size}"
            )
            del by_role[FEATURES]
            for other in by_role.values():
                raise WeightsError(
                    f"metrics.{other.name}: only some metrics use it; give metrics.inception for "
                    "the others as well"
                )
        _check_sides(by_role, image_size)
        context = ScoreContext(
            image_size=image_size, captions=captions, folder=folder, device=device, weights=weights
        )
        if isinstance(by_role.get(FEATURES), features.SceneFeatures):
            try:
                context.require_scenes("the scenes' feature extractor", image_size)
            except MetricUnavailable as reason:
                unavailable[ATTRIBUTES] = str(reason)
        else:
            unavailable[ATTRIBUTES] = "the feature extractor reads no attributes of scenes"
        scorers, without = _load_scorers(context, metrics)
        return cls(by_role, scorers, unavailable | without)

    @property
    def columns(self) -> dict[str, str]:
        """For each column of features, the name under which shards store it."""
        return {role: extractor.name for role, extractor in self.by_role.items()}

    @property
    def classifier(self) -> Classifier | None:
        """The network that predicts classes from the features."""
        extractor: object = self.by_role.get(FEATURES)
        if isinstance(extractor, Classifier):
            return extractor
        return None

    @property
    def identities(self) -> dict[str, str]:
        """Name and weight hash of each extractor and score."""
        networks: dict[str, Extractor | Scorer] = {**self.by_role, **self.scorers}
        return {name: network.identity for name, network in networks.items()}

    def available(self, *, reference: bool) -> set[str]:
        """The inputs of metrics that a sweep with these networks provides. `reference` says whether
        the sweep has real images.
        """
        inputs = set(OF_CODES)
        if self.no_images:
            return inputs
        inputs |= {IMAGES, *(SCORE_PREFIX + name for name in self.scorers)}
        inputs |= self.by_role.keys() | ({ATTRIBUTES} - self.unavailable.keys())
        if reference:
            inputs.add(REFERENCE)
        if self.classifier is not None:
            inputs.add(CLASSIFIER)
        return inputs

    def score(self, images: Tensor, captions: Sequence[str]) -> ImageScores:
        """Features and scores of images [n, 3, H, W] in [0, 1], generated from captions.

        Raises:
            ValueError: there is not one caption per image.
        """
        if len(images) != len(captions):
            raise ValueError(
                f"{len(images)} images and {len(captions)} captions: give one caption per image"
            )
        columns = {extractor.name: extractor.extract(images) for extractor in self.by_role.values()}
        scores = {}
        for name, scorer in self.scorers.items():
            inputs = images
            if (extractor := scorer.extractor) is not None:
                if extractor.name in columns:
                    inputs = columns[extractor.name]
                else:
                    inputs = extractor.extract(images)
            scores[name] = scorer.score(inputs, captions).float().cpu()
        return ImageScores(columns, scores)


def _check_sides(by_role: Mapping[str, Extractor], image_size: int) -> None:
    """Raises WeightsError if real images are resized for the first extractor to a size that suits
    no other: others would compare them with images that were not reduced.
    """
    first = by_role.get(FEATURES)
    if first is None or first.side == image_size:
        return
    for other in by_role.values():
        if other.side != first.side:
            raise WeightsError(
                f"metrics.{other.name}: reads real images of {other.side} pixels, but they are "
                f"resized to {first.side} for metrics.{first.name}; give one of the two"
            )


def _load_scorers(
    context: ScoreContext, metrics: Collection[str] | None
) -> tuple[dict[str, Scorer], dict[str, str]]:
    """The scores that these metrics need (None: all), by name, and by column why others cannot be
    used. Raises WeightsError (see `Extractors.load`).
    """
    needed = None if metrics is None else required_inputs(metrics)
    scorers: dict[str, Scorer] = {}
    unavailable: dict[str, str] = {}
    for name, factory in SCORERS.all().items():
        if needed is not None and SCORE_PREFIX + name not in needed:
            unavailable[SCORE_PREFIX + name] = "no requested metric needs it"
            continue
        try:
            scorers[name] = factory.load_for(context)
        except MetricUnavailable as reason:
            unavailable[SCORE_PREFIX + name] = str(reason)
    return scorers, unavailable


def check_keys(weights: Mapping[str, str] | None) -> dict[str, str]:
    """The user's paths by key, with `~` expanded.

    Raises:
        WeightsError: no metric reads the key, or two keys have the same role.
    """
    given = {key: str(Path(path).expanduser()) for key, path in (weights or {}).items()}
    known = weight_keys()
    for key in given:
        if key not in known:
            raise WeightsError(f"metrics: {unknown_choice(key, known)}")
    extractors = EXTRACTORS.all()
    for role in (FEATURES, MANIFOLD):
        keys = [key for key in given if key in extractors and extractors[key].role == role]
        if len(keys) > 1:
            raise WeightsError(
                f"metrics: {' and '.join(keys)} exclude each other; give one of them"
            )
    return given


def check_weights(
    folder: Path, weights: Mapping[str, str], metrics: Collection[str] = ()
) -> dict[str, str]:
    """Problems of the user's files by key: names and shapes of a file's tensors are compared with
    those of its network.

    Args:
        folder: folder of the model.
        weights: the user's files by key.
        metrics: names of the requested metrics (default: all); scores that none of them needs are
            not checked.

    Raises:
        WeightsError: see `check_keys`.
    """
    weights = check_keys(weights)
    needed = required_inputs(metrics)
    problems = {
        key: f"{path}: no such file or folder; check the path"
        for key, path in weights.items()
        if not Path(path).exists()
    }
    meta = torch.device("meta")
    context = ScoreContext(image_size=256, captions=(), folder=folder, device=meta, weights=weights)
    loads: dict[str, Callable[[], object]] = {
        factory.key: partial(factory.load_from, path, meta)
        for factory, path in _given_extractors(weights)
    }
    for name, scorer in SCORERS.all().items():
        is_needed = not metrics or SCORE_PREFIX + name in needed
        main = next(iter(scorer.weight_keys), None)
        if is_needed and main in weights:
            loads[main] = partial(scorer.load_for, context)
    for key in loads.keys() - problems.keys():
        with shapes_only():
            try:
                loads[key]()
            except MetricUnavailable:  # because of the captions, not of the file
                continue
            except ValueError as error:
                problems[key] = str(error)
    return {key: problems[key] for key in weights if key in problems}


def unavailable_metrics(
    names: Sequence[str],
    folder: Path,
    *,
    image_size: int,
    captions: Sequence[str],
    weights: Mapping[str, str] | None,
    reference: bool,
    registered: Mapping[str, ComputedMetric] | None = None,
    no_images: str = "",
) -> dict[str, str]:
    """For each metric that this model, its captions and its reference do not provide, the reason.
    No weights are read.

    Args:
        names: names of the requested metrics.
        folder: folder of the model.
        image_size: pixels along a side of its images.
        captions: captions of the sweep.
        weights: the user's own files by key.
        reference: whether the sweep has real images.
        registered: the metrics that exist, by default all that are registered.
        no_images: why the model cannot decode images; "" if it can.

    Raises:
        ValueError: no metric has that name; see also `Extractors.load`.
    """
    registered = METRICS.all() if registered is None else registered
    if no_images:
        missing = select_metrics(names, OF_CODES, registered)[1]
        return dict.fromkeys(missing, f"the target cannot decode images: {no_images}")
    with shapes_only():
        extractors = Extractors.load(
            folder,
            image_size=image_size,
            captions=captions,
            device=torch.device("meta"),
            weights=weights,
            metrics=names,
        )
    reasons = dict(extractors.unavailable)
    if FEATURES in reasons:
        reasons[FEATURES] += (
            "; give Inception's file as metrics.inception of the entry in models.yaml"
        )
    elif not reference:
        reasons[REFERENCE] = "the sweep has no reference images (reference.source: none)"
    for key, factory in EXTRACTORS.items():
        if factory.role == key and key not in extractors.by_role:
            reasons[key] = f"its weights are not given: set metrics.{key} ({factory.file})"
    available = extractors.available(reference=reference and FEATURES in extractors.by_role)
    missing = select_metrics(names, available, registered)[1]
    for name, needs in missing.items():
        found = [reason for need, reason in reasons.items() if need in registered[name].needs]
        missing[name] = "; ".join(found) or needs
    return missing


def load_extractors(
    folder: Path, weights: Mapping[str, str] | None, device: torch.device
) -> dict[str, Extractor]:
    """The feature extractors by role: the user's, else the model's own or the built-in one.

    On the meta device they have no weights, only sizes and identities.

    Raises:
        WeightsError: see `Extractors.load`.
    """
    given = _given_extractors(weights)
    if FEATURES not in {factory.role for factory, _ in given}:
        given.insert(0, (features.SCENES, own_or_builtin(folder, features.BUILTIN)))
    return {factory.role: factory.load_from(path, device) for factory, path in given}


def _given_extractors(weights: Mapping[str, str] | None) -> list[tuple[ExtractorFactory, Path]]:
    """The extractors that the user gives weights for, features first. Raises WeightsError (see
    `check_keys`).
    """
    extractors = EXTRACTORS.all()
    given = [
        (extractors[key], Path(path))
        for key, path in check_keys(weights).items()
        if key in extractors
    ]
    return sorted(given, key=lambda entry: entry[0].role != FEATURES)
