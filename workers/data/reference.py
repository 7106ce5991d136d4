"""Reference features: the features of real images that generated images are compared with, stored as Parquet.

Distances are comparable only if both use the same features of the same images. So a reference records its extractor, a
hash of the images in `source`, and the resize rule, which changes FID (Parmar et al. 2022).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa
import torch
from torch import Tensor

from workers.data.real_images import RealImages, real_images
from workers.data.records import FEATURES, float_lists, matrix_of, read_shard, write_shard
from workers.data.storage import Storage

FILE, _KIND = "reference.parquet", "reference"
_FIX = "create it again: specfrontier reference DIR --out FILE, with --inception and --vgg as in the models.yaml entry"


class Extractor(Protocol):
    """A feature extractor. name: of its column in the file, if it is an additional extractor. identity: architecture
    and weight hash. width: number of features.
    """

    name: str
    identity: str
    width: int

    def extract(self, images: Tensor) -> Tensor:
        """Features [n, width], float32 on the CPU, of images [n, 3, size, size] in [0, 1]."""


@dataclass(frozen=True, slots=True, eq=False)
class Reference:
    """Features [n, d] float32 of n real images, by one or more extractors.

    facts: plain data: `identity` of the first extractor, `source` (name and content hash of the images), `resize`
    rule, `count` n, and `also`, the identities of additional extractors by name, if there are any.
    """

    features: tuple[Tensor, ...]
    facts: Mapping[str, Any]


def build_reference(
    source: str | Path,
    extractors: Sequence[Extractor],
    *,
    size: int,
    count: int | None = None,
    seed: int = 0,
    on_progress: Callable[[int, int], None] | None = None,
) -> Reference:
    """Features of real images (see `real_images`) by each extractor, or the first `count` of a reference file.

    on_progress: called after every batch with the number of finished images and the total.

    Raises:
        ValueError: see `real_images` and `read_reference`; an unreadable image; at most as many images as features,
            which leaves the covariance singular; features that are not finite.
    """
    if is_reference_file(source):
        return _validated(read_reference(source, extractors=extractors, count=count))
    images = real_images(source, size=size, count=count, seed=seed)
    parts: list[list[Tensor]] = [[] for _ in extractors]
    for batch in images.batches():
        for extractor, features in zip(extractors, parts, strict=True):
            features.append(extractor.extract(batch))
        if on_progress is not None:
            on_progress(sum(map(len, parts[0])), images.count)
    return _validated(Reference(tuple(map(torch.cat, parts)), _facts(images, extractors)))


def reference_facts(
    source: str | Path, extractors: Sequence[Extractor], *, size: int, count: int | None = None, seed: int = 0
) -> Mapping[str, Any]:
    """The facts of `build_reference` without computing features. All files of a folder are read for their hash.

    Raises:
        ValueError: see `real_images` and `read_reference`.
    """
    if is_reference_file(source):
        return read_reference(source, extractors=extractors, count=count).facts
    return _facts(real_images(source, size=size, count=count, seed=seed), extractors)


def check_reference(
    source: str | Path, extractors: Sequence[Extractor], *, size: int, count: int | None = None, seed: int = 0
) -> None:
    """Check quickly that `build_reference` can compute the features: only the headers of images are read.

    Raises:
        ValueError: see `build_reference`.
    """
    if is_reference_file(source):
        _validated(read_reference(source, extractors=extractors, count=count))
        return
    images = real_images(source, size=size, count=count, seed=seed)
    _check_count(images.count, extractors[0].width, str(source))
    images.check()


def is_reference_file(source: str | Path) -> bool:
    """Whether a source names a stored reference, by path or URI."""
    return str(source).partition("?")[0].lower().endswith(".parquet")


def write_reference(storage: Storage, name: str, reference: Reference) -> None:
    """Store a reference: one row per image, `facts` in the metadata.

    The first extractor's features are in column `features` (float32 lists), those of others in `features.<name>`.
    """
    columns = ["features", *(FEATURES + other for other in reference.facts.get("also", ()))]
    table = pa.table(dict(zip(columns, map(float_lists, reference.features), strict=True)))
    write_shard(storage, name, table, {"kind": _KIND, **reference.facts})


def read_reference(
    location: Storage | str | Path,
    name: str | None = None,
    *,
    extractors: Sequence[Extractor] = (),
    count: int | None = None,
    fix: str = _FIX,
) -> Reference:
    """A stored reference: file `name` of a storage, or the path or URI of a file.

    extractors: those whose features are read (default: the first one of the file). count: largest number of images
    read. fix: what the user can do about an unusable file.

    Raises:
        ValueError: the file does not exist, is damaged, is not a reference, or has features of other extractors.
    """
    storage, name = (location, name or FILE) if isinstance(location, Storage) else Storage.holding(location)
    where, also = storage.locate(name), {extractor.name: extractor.identity for extractor in extractors[1:]}
    columns = ["features", *(FEATURES + other for other in also)]
    try:
        _, meta = read_shard(storage, name, [], kind=_KIND, fix=fix)
    except FileNotFoundError:
        raise ValueError(f"{where}: no such file; {fix}") from None
    if extractors and meta["identity"] != extractors[0].identity:
        raise ValueError(
            f"{where}: has features of {meta['identity']}, but the models' extractor is {extractors[0].identity}; "
            f"features of two extractors cannot be compared; {fix}"
        )
    for other, identity in also.items():
        if (found := meta.get("also", {}).get(other, f"no {other}")) != identity:
            raise ValueError(f"{where}: has features of {found}, but the models also use {identity}; {fix}")
    table, _ = read_shard(storage, name, columns, kind=_KIND, fix=fix)
    if table.num_rows != meta["count"]:
        raise ValueError(f"{where}: has {table.num_rows} images instead of {meta['count']}; {fix}")
    features = tuple(matrix_of(table, column)[:count] for column in columns)
    facts = {key: meta[key] for key in ("identity", "source", "resize")} | {"count": len(features[0])}
    return Reference(features, facts | {"also": also} if also else facts)


def _facts(images: RealImages, extractors: Sequence[Extractor]) -> dict[str, Any]:
    first, *more = extractors
    facts = {"identity": first.identity, "source": images.describe(), "resize": images.resize, "count": images.count}
    return facts | {"also": {extractor.name: extractor.identity for extractor in more}} if more else facts


def _validated(reference: Reference) -> Reference:
    facts = reference.facts
    _check_count(facts["count"], reference.features[0].shape[1], facts["source"])
    for features, identity in zip(
        reference.features, [facts["identity"], *facts.get("also", {}).values()], strict=True
    ):
        if not features.isfinite().all():
            raise ValueError(f"reference {facts['source']}: {identity} gave features that are not finite")
    return reference


def _check_count(count: int, width: int, source: str) -> None:
    if count <= width:
        raise ValueError(f"reference {source}: {count} images are too few for {width} features; use more than {width}")
