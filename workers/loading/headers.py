"""What the headers of a model's weight files say, without the weights: enough to refuse what cannot be drawn."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from search_spaces.trial import Sampling
from workers.loading.bundle import Models
from workers.loading.models import image_size
from workers.metrics.extractors import feature_info, manifold_infos
from workers.models.families.conditioners import CodedConditioner, build_conditioner
from workers.models.families.scenes import DRAFTERS, SAMPLING
from workers.models.transformer import TransformerConfig
from workers.models.vq import VQConfig
from workers.models.weights import WeightsError, read_config, unfilled

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Headers:
    """A model by its headers.

    image_size: pixels along the longer side. drafters: kinds that there is a file for. read: makes of captions what the
    target sees; ValueError for one that it cannot read. features_size: pixels that the feature net takes (image_size,
    if it resizes any); features: its identity, and `width` the length of its features. beside:
    identities by name of the extractors that serve beside it.
    """

    vocab: int
    rows: int
    cols: int
    image_size: int
    sampling: Sampling
    drafters: tuple[str, ...]
    medusa_heads: int | None
    read: Callable[[Sequence[str]], object]
    features: str
    features_size: int
    width: int
    beside: Mapping[str, str] = field(default_factory=dict)

    @property
    def image_tokens(self) -> int:
        return self.rows * self.cols

    def unreadable(self, texts: Sequence[str]) -> list[tuple[int, str]]:
        """The captions that the target cannot read, by their places, and why."""
        with suppress(ValueError):  # all at once is much quicker, and nearly always enough
            self.read(texts)
            return []
        found = []
        for place, text in enumerate(texts):
            try:
                self.read([text])
            except ValueError as error:
                found.append((place, str(error)))
        return found


def read_headers(folder: Path, metric_weights: Mapping[str, str] | None = None) -> Headers:
    """The headers of a model's folder; every file's length is held against its header as well.

    metric_weights: the user's own files for metrics, by key.

    Raises:
        WeightsError: the tokenizer or the target is missing; a file is truncated or another piece's; sizes do not fit.
    """
    codec = _as(folder / "tokenizer.safetensors", "a VQ tokenizer", lambda config: VQConfig(**config))
    path = folder / "target.safetensors"
    body, conditioner, sampling = _as(path, "an AR model", _target)
    if codec.codebook_size != body.vocab_size:
        raise WeightsError(
            f"{folder}: the tokenizer has {codec.codebook_size} codes, the target {body.vocab_size}; train the target "
            "on this tokenizer's tokens"
        )
    drafters = {kind: folder / f"{kind}.safetensors" for kind in DRAFTERS}
    configs = {kind: read_config(path) for kind, path in drafters.items() if path.exists()}
    net = feature_info(folder, metric_weights)
    side = max(body.rows, body.cols) << (len(codec.multipliers) - 1)
    return Headers(
        vocab=body.vocab_size,
        rows=body.rows,
        cols=body.cols,
        image_size=side,
        sampling=sampling,
        drafters=tuple(configs),
        medusa_heads=configs.get("medusa", {}).get("heads"),
        read=conditioner.codes,
        features=net.identity,
        features_size=net.takes or side,
        width=net.width,
    )


def headers_of_models(models: Models, folder: Path, metric_weights: Mapping[str, str] | None = None) -> Headers:
    """The same of models that have shapes and no numbers (`sketch_entry`); `folder` is where their own feature net
    would lie.

    Raises:
        WeightsError: the feature net is damaged.
    """
    target, net, medusa = models.target, feature_info(folder, metric_weights), models.drafters.get("medusa")
    side = image_size(target)
    return Headers(
        vocab=target.vocab_size,
        rows=target.grid.rows,
        cols=target.grid.cols,
        image_size=side,
        sampling=target.sampling,
        drafters=tuple(models.drafters),
        medusa_heads=medusa.max_levels if medusa else None,
        read=target.check,
        features=net.identity,
        features_size=net.takes or side,
        width=net.width,
        beside=manifold_infos(metric_weights),
    )


def _as(path: Path, what: str, build: Callable[[Mapping[str, Any]], T]) -> T:
    config = read_config(path)
    try:
        return build(config)
    except (KeyError, TypeError) as error:
        raise WeightsError(f"{path}: its header does not describe {what}; is it another piece's file?") from error


def _target(config: Mapping[str, Any]) -> tuple[TransformerConfig, CodedConditioner, Sampling]:
    body = TransformerConfig(**config["transformer"])
    if not body.vocab_size:
        raise TypeError("no vocabulary")
    conditioner = unfilled(lambda: build_conditioner(config["conditioner"], body.dim))
    return body, conditioner, Sampling(**config["sampling"]) if "sampling" in config else SAMPLING
