"""Reference features: the features of real images that generated images are compared with, stored as Parquet.

Distances are comparable only on the same features of the same images. So a reference records its extractor, a hash of
the images in `source`, and the resize rule, which changes FID (Parmar et al. 2022).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import pyarrow as pa
import torch
from torch import Tensor

from workers.data.folder import check_images
from workers.data.real_images import SCENES, real_images, select_files
from workers.data.records import FEATURES, features_of, float_lists, matrix_of, read_shard, write_shard
from workers.data.storage import Storage

FILE, _KIND = "reference.parquet", "reference"
_FIX = "create it again: specfrontier reference DIR --out FILE, with --inception and --vgg as in the models.yaml entry"


class Extractor(Protocol):
    """A feature extractor. identity: its name and weight hash. name: its column as an additional extractor."""

    name: str
    identity: str

    def extract(self, images: Tensor) -> Tensor:
        """Features [n, d], float32 on the CPU, of images [n, 3, size, size] in [0, 1]."""


class ExtractedFeatures(NamedTuple):
    """Features [n, d] float32 and the identity of their extractor."""

    features: Tensor
    identity: str


@dataclass(frozen=True, slots=True, eq=False)
class Reference:
    """Features [n, d] float32 of n real images.

    identity: the extractor's. source: name and content hash of the images. resize: the resize rule. also: the features
    of additional extractors by name.
    """

    features: Tensor
    identity: str
    source: str
    resize: str
    also: Mapping[str, ExtractedFeatures] = field(default_factory=dict)

    @property
    def count(self) -> int:
        return self.features.shape[0]

    @property
    def facts(self) -> dict[str, Any]:
        """Everything but the features, as plain data."""
        also = {name: extracted.identity for name, extracted in self.also.items()}
        return _facts(self.identity, self.source, self.resize, self.count, also)


def build_reference(
    source: str | Path,
    extractor: Extractor,
    *,
    size: int,
    count: int | None = None,
    seed: int = 0,
    also: Sequence[Extractor] = (),
    on_progress: Callable[[int, int], None] | None = None,
) -> Reference:
    """Features of real images (see `real_images`), or the first `count` of a reference file.

    also: additional extractors of the same images. on_progress: called after every batch with the number of finished
    images and the total.

    Raises:
        ValueError: see `real_images` and `read_reference`; an unreadable image; at most as many images as features,
            which leaves the covariance singular; features that are not finite.
    """
    if is_reference_file(source):
        identities = {extra.name: extra.identity for extra in also}
        return _validated(read_reference(source, identity=extractor.identity, count=count, also=identities))
    images, extractors = real_images(source, size=size, count=count, seed=seed), (extractor, *also)
    parts: list[list[Tensor]] = [[] for _ in extractors]
    for batch in images.batches():
        for each, features_of_each in zip(extractors, parts, strict=True):
            features_of_each.append(each.extract(batch))
        if on_progress is not None:
            on_progress(sum(map(len, parts[0])), images.count)
    features, *more = map(torch.cat, parts)
    others = {extra.name: ExtractedFeatures(found, extra.identity) for extra, found in zip(also, more, strict=True)}
    return _validated(Reference(features, extractor.identity, images.source, images.resize, others))


def reference_facts(
    source: str | Path,
    identity: str,
    *,
    size: int,
    count: int | None = None,
    seed: int = 0,
    also: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """The facts of `build_reference` without computing features. All files of a folder are read for their hash.

    also: the identities of additional extractors by name.

    Raises:
        ValueError: see `real_images` and `read_reference`.
    """
    if is_reference_file(source):
        return read_reference(source, identity=identity, count=count, also=also).facts
    images = real_images(source, size=size, count=count, seed=seed)
    return _facts(identity, images.source, images.resize, images.count, also or {})


def check_reference(
    source: str | Path,
    identity: str,
    *,
    size: int,
    width: int,
    count: int | None = None,
    seed: int = 0,
    also: Mapping[str, str] | None = None,
) -> None:
    """Check quickly that `build_reference` can compute `width` features: only the headers of images are read.

    Raises:
        ValueError: see `build_reference`.
    """
    if is_reference_file(source):
        _validated(read_reference(source, identity=identity, count=count, also=also))
    elif source == SCENES:
        _check_count(real_images(source, size=size, count=count, seed=seed).count, width, SCENES)
    else:
        paths = select_files(Path(source).expanduser(), count, seed)
        _check_count(len(paths), width, str(source))
        check_images(paths)


def is_reference_file(source: str | Path) -> bool:
    """Whether a source names a stored reference, by path or URI."""
    return str(source).partition("?")[0].lower().endswith(".parquet")


def write_reference(storage: Storage, name: str, reference: Reference) -> None:
    """Store a reference: one row per image, column `features` of float32 lists, `facts` in the metadata. The features
    of additional extractors are in columns `features.<name>`.
    """
    others = {FEATURES + other: float_lists(seen.features) for other, seen in reference.also.items()}
    table = pa.table({"features": float_lists(reference.features), **others})
    write_shard(storage, name, table, {"kind": _KIND, **reference.facts})


def read_reference(
    place: Storage | str | Path,
    name: str | None = None,
    *,
    identity: str | None = None,
    count: int | None = None,
    also: Mapping[str, str] | None = None,
) -> Reference:
    """A stored reference: file `name` of a storage, or the path or URI of a file. count: limits its images.

    also: the identities of additional extractors by name, whose features are read too.

    Raises:
        ValueError: the file does not exist, is damaged, is not a reference, or has features of other extractors.
    """
    also = also or {}
    storage, name = (place, name or FILE) if isinstance(place, Storage) else Storage.holding(place)
    where = f"{storage.shown}/{name}"
    try:
        table, meta = read_shard(storage, name, ["features"], kind=_KIND, fix=_FIX)
    except FileNotFoundError:
        raise ValueError(f"{where}: no such file; {_FIX}") from None
    if identity is not None and meta["identity"] != identity:
        raise ValueError(
            f"{where}: has features of {meta['identity']}, but the models' extractor is {identity}; features of two "
            f"extractors cannot be compared; {_FIX}"
        )
    features = matrix_of(table, "features")
    if len(features) != meta["count"]:
        raise ValueError(f"{where}: has {len(features)} images instead of {meta['count']}; {_FIX}")
    others = {
        other: ExtractedFeatures(x[:count], also[other]) for other, x in _others(storage, name, meta, also).items()
    }
    return Reference(features[:count], meta["identity"], meta["source"], meta["resize"], others)


def _others(storage: Storage, name: str, meta: Mapping[str, Any], also: Mapping[str, str]) -> dict[str, Tensor]:
    """The features of additional extractors by name."""
    held: Mapping[str, str] = meta.get("also", {})
    for other, identity in also.items():
        if held.get(other) != identity:
            raise ValueError(
                f"{storage.shown}/{name}: has features of {held.get(other, f'no {other}')}, but the models also use "
                f"{identity}; {_FIX}"
            )
    table, _ = read_shard(storage, name, [FEATURES + other for other in also], kind=_KIND, fix=_FIX)
    return {other: features_of(table, other) for other in also}


def _facts(identity: str, source: str, resize: str, count: int, also: Mapping[str, str]) -> dict[str, Any]:
    facts: dict[str, Any] = {"identity": identity, "source": source, "resize": resize, "count": count}
    return facts | {"also": dict(also)} if also else facts


def _validated(reference: Reference) -> Reference:
    _check_count(reference.count, reference.features.shape[1], reference.source)
    for features, identity in ((reference.features, reference.identity), *reference.also.values()):
        if not features.isfinite().all():
            raise ValueError(f"reference {reference.source}: {identity} gave features that are not finite")
    return reference


def _check_count(count: int, width: int, source: str) -> None:
    if count <= width:
        raise ValueError(f"reference {source}: {count} images are too few for {width} features; use more than {width}")
