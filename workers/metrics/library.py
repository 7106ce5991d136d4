"""Metrics by the name of their class in torchmetrics, as an entry of a sweep's `metrics` gives it.

Every class is updated with one block of captions at a time. The blocks' states, merged by
torchmetrics' `merge_state`, give the value, and the value without each block for the jackknife.
Images are floats from 0 to 1; distances between sets of images (classes with the argument
`feature`) read the features of the sweep's own extractor.
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any, Final, NoReturn
from unittest import mock

import torch
from torch import Tensor, nn

from search_spaces.params import ConfigError, as_tuples, at, unknown_choice, unknown_key
from search_spaces.paths import local_path
from search_spaces.sweep_sections import CLIP_FOLDER
from workers.metrics.clip_files import folder_identity
from workers.metrics.definition import BASELINE, CLASSIFIER, FEATURES, IMAGES, REFERENCE, TOKENS
from workers.metrics.estimate import Estimate, MetricUnavailable, block_sizes
from workers.metrics.metric import (
    POSITION,
    ComputedMetric,
    MetricInputs,
    ReferenceFeatures,
    Rows,
)

_PACKAGES = ("image", "multimodal")
_SINGLE = "images"
_PAIR = "pairs of images"
_CAPTIONS = "images and captions"
_SETS = "sets of images"
# What a class reads, by the parameters of its `update`.
_KINDS: Final[Mapping[tuple[str, ...], str]] = {
    **dict.fromkeys([("img",), ("imgs",), ("images",)], _SINGLE),
    **dict.fromkeys([("preds", "target"), ("img1", "img2")], _PAIR),
    ("source", "target"): _CAPTIONS,
    ("imgs", "real"): _SETS,
}
# Values of `against` by kind; the first one is the default.
_AGAINST: Final = {_PAIR: ("vanilla",), _SETS: ("reference", "vanilla")}
# Arguments of a class's feature network, which the sweep's own extractor replaces.
_OF_NETWORK = (
    "feature",
    "normalize",
    "reset_real_features",
    "input_img_size",
    "feature_extractor_weights_path",
    "antialias",
)
_CHUNK = 64  # images decoded together
_TRIED = 4  # images on which a metric is tried
State = Mapping[str, Any]


class _Given(nn.Module):
    """Returns its input: features that were extracted before."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.num_features = width  # torchmetrics reads the width by this name

    def forward(self, features: Tensor) -> Tensor:
        return features


@cache
def classes() -> Mapping[str, type[Any]]:
    """torchmetrics' metrics over images by name, `image.TotalVariation`, those without their
    dependencies included.
    """
    from torchmetrics import Metric

    found = {}
    for package in _PACKAGES:
        module = importlib.import_module(f"torchmetrics.{package}")
        for info in pkgutil.iter_modules(module.__path__, f"{module.__name__}."):
            for name, member in vars(importlib.import_module(info.name)).items():
                is_own = (
                    isinstance(member, type)
                    and issubclass(member, Metric)
                    and member.__module__ == info.name
                )
                if is_own and not name.startswith("_"):
                    found[f"{package}.{name}"] = member
    return dict(sorted(found.items()))


def library_metrics(entries: Mapping[str, Mapping[str, Any]]) -> dict[str, LibraryMetric]:
    """The metrics of a sweep's entries (see `search_spaces.sweep_sections.read_metric`), by name.
    Reads no weights.

    Raises:
        ConfigError: an unknown class or argument; its path has the metric's name and the key.
    """
    found = {}
    for name, entry in entries.items():
        with at(name):
            found[name] = _read(name, {key: part for key, part in entry.items() if key != "name"})
    return found


def _read(name: str, given: dict[str, Any]) -> LibraryMetric:
    known = classes()
    label = given.pop("torchmetrics")
    if label not in known:
        raise ConfigError(("torchmetrics",), unknown_choice(label, known))
    cls = known[label]
    against = given.pop("against", None)
    updated = list(inspect.signature(cls.update).parameters.values())[1:]
    kind = _KINDS.get(tuple(parameter.name for parameter in updated))
    if kind is None or any("dict" in str(parameter.annotation).lower() for parameter in updated):
        raise ConfigError(
            ("torchmetrics",), f"{label} does not read images alone, or images and captions"
        )
    choices = _AGAINST.get(kind, ())
    if against is not None and against not in choices:
        if choices:
            problem = unknown_choice(against, choices)
        else:
            problem = f"{label} compares with no other images; remove it"
        raise ConfigError(("against",), problem)
    against = against or next(iter(choices), None)
    arguments = _arguments(cls, label, {key: as_tuples(part) for key, part in given.items()})
    has_features = "feature" in inspect.signature(cls).parameters
    needs = [FEATURES if has_features else IMAGES]
    if against == "vanilla":
        needs.append(BASELINE)
    elif against == "reference":
        needs.append(REFERENCE)
    elif has_features:
        needs.append(CLASSIFIER)
    folder = arguments.get(CLIP_FOLDER)
    shown = dict(given)
    if folder is not None:
        shown[CLIP_FOLDER] = folder_identity("clip", Path(folder))
    text = f"{label}({', '.join(f'{key}={value}' for key, value in shown.items())})"
    if against:
        text += f" against {against}"
    library = _Library(cls, kind, has_features, against, arguments)
    return LibraryMetric(
        name=name,
        direction="maximize" if cls.higher_is_better else "minimize",
        about=f"torchmetrics' {text}",
        needs=tuple(needs),
        compute=library.compute,
        library=library,
        definition=f"torchmetrics {importlib.import_module('torchmetrics').__version__}: {text}",
    )


def _arguments(cls: type[Any], label: str, given: dict[str, Any]) -> dict[str, Any]:
    """The arguments of a class's constructor: those given, and those that follow from what images
    are.
    """
    parameters = {
        name: parameter.default
        for name, parameter in inspect.signature(cls).parameters.items()
        if parameter.kind is not parameter.VAR_KEYWORD
    }
    fixed: dict[str, Any] = {"data_range": 1.0} if "data_range" in parameters else {}
    if isinstance(parameters.get("normalize"), bool) and "feature" not in parameters:
        fixed["normalize"] = True
    own = {*fixed, *(_OF_NETWORK if "feature" in parameters else ())}
    for key, value in given.items():
        if key in own:
            problem = (
                f"cannot be set: {label} reads floats from 0 to 1, or features of the sweep's own "
                "extractor"
            )
            raise ConfigError((key,), f"{problem} (`metrics` in models.yaml); remove it")
        if key not in parameters:
            raise ConfigError((key,), unknown_key(key, sorted(parameters.keys() - own), "argument"))
        if (key, value) == ("reduction", "sum"):
            raise ConfigError((key,), "a sum grows with the number of images; use the mean")
    if CLIP_FOLDER in parameters:
        given = given | {CLIP_FOLDER: _clip_folder(given.get(CLIP_FOLDER))}
    if parameters.get("reduction") == "sum":
        fixed["reduction"] = "mean"
    return fixed | given


def _clip_folder(given: object) -> str:
    """The path of a CLIP's folder. Raises ConfigError if there is none."""
    problem = f"must be the folder of a CLIP on this machine, got {given!r}; nothing is downloaded"
    try:
        folder = local_path(str(given))
    except ValueError as error:
        raise ConfigError((CLIP_FOLDER,), problem) from error
    if not folder.is_dir():
        raise ConfigError((CLIP_FOLDER,), problem)
    return str(folder)


@dataclass(slots=True)
class _Library:
    """Computes a metric by its class in torchmetrics."""

    cls: type[Any]
    kind: str  # what it reads; a value of `_KINDS`
    has_features: bool  # reads features in place of images
    against: str | None  # what images are compared with: "vanilla", "reference" or nothing
    arguments: Mapping[str, Any]  # arguments of the constructor
    metric: Any = None  # the instance, made when first needed

    def compute(self, inputs: MetricInputs) -> Estimate:
        """The value on all images, and without each block of captions.

        Raises:
            MetricUnavailable: a network's weights or a library are missing, or torchmetrics refuses
                these images.
        """
        blocks = inputs.blocks
        count = block_sizes(inputs.blocks).numel()
        values = self.values(inputs, [(blocks == block).nonzero()[:, 0] for block in range(count)])
        return Estimate.from_replicates(torch.tensor(values, dtype=torch.float64), blocks.numel())

    def values(self, inputs: MetricInputs, blocks: Sequence[Tensor]) -> list[float]:
        """The value on the images of all blocks, and without each block if there are several. A
        block is the numbers of its rows.

        Raises:
            MetricUnavailable: see `compute`.
        """
        try:
            with (
                torch.no_grad(),
                torch.random.fork_rng(),
                _no_downloads(),
                warnings.catch_warnings(),
            ):
                warnings.simplefilter("ignore")
                metric = self._prepared(inputs)
                real = self._state(metric, self._real(inputs))
                states = [self._state(metric, self._updates(inputs, rows)) for rows in blocks]
                kept = [states]
                if len(states) > 1:
                    kept += [[*states[:left], *states[left + 1 :]] for left in range(len(states))]
                return [_merged(metric, [real, *part]) for part in kept]
        except (MetricUnavailable, torch.OutOfMemoryError):
            raise
        except Exception as error:  # any class, for sizes or arguments that it cannot have
            raise MetricUnavailable(
                f"{self.cls.__name__}: {' '.join(str(error).split())}"
            ) from error

    def _prepared(self, inputs: MetricInputs) -> Any:
        """The instance, without a state.

        `full_state_update` is off: torchmetrics does not merge classes that ask for it, but only
        their `forward` needs it, which is never called.
        """
        if self.metric is None:
            arguments = dict(self.arguments)
            if self.has_features:
                arguments["feature"] = _Given(inputs.column(FEATURES).shape[1])
            if folder := arguments.get(CLIP_FOLDER):
                arguments[CLIP_FOLDER] = partial(_load_clip, Path(folder))
            mergeable = type(self.cls.__name__, (self.cls,), {"full_state_update": False})
            self.metric = mergeable(**arguments, compute_on_cpu=True)
        return self.metric

    def _state(self, metric: Any, updates: Iterator[tuple[Any, ...]]) -> State:
        metric.reset()
        for update in updates:
            device = next((part.device for part in update if isinstance(part, Tensor)), None)
            metric.to(device).update(*update)
        return {
            name: list(part) if isinstance(part, list) else part
            for name, part in metric.metric_state.items()
        }

    def _real(self, inputs: MetricInputs) -> Iterator[tuple[Any, ...]]:
        """The arguments of `update` that belong to no block of captions: the real images."""
        if self.against == "reference":
            yield inputs.reference().features.float(), True

    def _updates(self, inputs: MetricInputs, rows: Tensor) -> Iterator[tuple[Any, ...]]:
        """The arguments of `update` for some of the images."""
        if self.kind == _SETS:
            yield inputs.column(FEATURES)[rows].float(), False
            if self.against == "vanilla":
                yield inputs.baseline_column(FEATURES)[rows].float(), True
        elif self.has_features:
            yield (inputs.class_logits()[rows],)
        else:
            for part in torch.split(rows, _CHUNK):
                images = inputs.decode_rows(inputs.column(TOKENS)[part])
                if self.kind == _PAIR:
                    yield images, inputs.decode_rows(inputs.baseline_column(TOKENS)[part])
                elif self.kind == _CAPTIONS:
                    texts = [
                        inputs.captions[position]
                        for position in inputs.column(POSITION)[part].tolist()
                    ]
                    yield (images * 255).round().byte(), texts
                else:
                    yield (images,)


@dataclass(frozen=True, slots=True, kw_only=True)
class LibraryMetric(ComputedMetric):
    """A sweep's own metric, which is a class of torchmetrics."""

    library: _Library


def _merged(metric: Any, states: list[State]) -> float:
    """The value of states together: the first entry of a tuple, and the mean where there is a value
    for each image.
    """
    metric.reset()
    # states that are averaged, such as the range of the data, are equal everywhere
    metric._update_count = 1
    for state in states:
        metric.merge_state(dict(state))
    torch.manual_seed(0)  # for classes that shuffle the images
    found = metric.compute()
    if isinstance(found, tuple):
        found = found[0]
    if not isinstance(found, Tensor):
        raise MetricUnavailable(
            f"{type(metric).__name__} gives several numbers ({', '.join(found)}); ask for one"
        )
    return float(found.double().mean())


def _load_clip(folder: Path) -> tuple[Any, Any]:
    """The model and the processor of a folder; torchmetrics expects the model's features as
    tensors.
    """
    from transformers import CLIPModel, CLIPProcessor

    kinds: tuple[Any, ...] = (CLIPModel, CLIPProcessor)
    model, processor = (kind.from_pretrained(folder, local_files_only=True) for kind in kinds)
    for name in ("get_image_features", "get_text_features"):
        setattr(model, name, partial(_pooled, getattr(model, name)))
    return model.eval(), processor


def _pooled(features: Callable[..., Any], *inputs: Tensor) -> Tensor:
    found: Tensor = features(*inputs).pooler_output
    return found


@contextmanager
def _no_downloads() -> Iterator[None]:
    """Inside, torch.hub raises MetricUnavailable, with the file that is missing, instead of a
    download.
    """

    def refuse(url: str, destination: str, *_: object, **__: object) -> NoReturn:
        raise MetricUnavailable(f"nothing is downloaded; put {url} there: {destination}")

    with mock.patch("torch.hub.download_url_to_file", refuse):
        yield


def try_metric(
    metric: LibraryMetric, *, image_size: int, width: int, images: int, own_vanilla: bool
) -> str | None:
    """Why a metric has no number on noise of the sweep's sizes; None if it has one. Loads its
    networks.

    Args:
        metric: the metric to try.
        image_size: pixels along a side.
        width: number of features.
        images: number of images of a trial's smallest jackknife replicate.
        own_vanilla: also try vanilla's images against themselves.
    """
    count = _TRIED if IMAGES in metric.needs else images
    rows = torch.arange(count)
    generator = torch.Generator().manual_seed(0)
    noise = torch.rand(2 * _TRIED, 3, image_size, image_size, generator=generator)
    features = torch.randn(2 * count, width, generator=generator)
    columns = {"caption_id": rows, "sample": 0 * rows, POSITION: rows}
    own = Rows(columns | {TOKENS: rows[:, None], FEATURES: features[:count]})
    other = Rows(columns | {TOKENS: rows[:, None] + count, FEATURES: features[count:]})
    decode: Callable[[Tensor], Tensor] = lambda tokens: noise[tokens[:, 0]]  # noqa: E731
    baselines = [other]
    if own_vanilla:
        baselines.append(own)
    for baseline in baselines:
        inputs = MetricInputs(
            images=own,
            baseline=baseline,
            references={FEATURES: ReferenceFeatures(features[count:])},
            classifier=_Noise(),
            decode=decode,
            captions=["a photo"] * count,
        )
        try:
            (value,) = metric.library.values(inputs, [rows])
        except MetricUnavailable as reason:
            return str(reason)
        if not torch.tensor(value).isfinite():
            return f"it is {value} on {'equal images' if baseline is own else 'noise'}"
    return None


class _Noise:
    """A classifier for `try_metric`: the features themselves are the logits."""

    def class_logits(self, features: Tensor) -> Tensor:
        return features.double()
