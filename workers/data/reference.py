"""Real images (procedural scenes, or the image files of a folder), and their features, with which
generated images are compared; stored as Parquet.

Distances are comparable only if both use the same features of the same images. So a reference
records its extractor, a hash of the images in `source`, and the resize rule, which changes FID
(Parmar et al. 2022).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa
import torch
from torch import Tensor

from search_spaces.paths import local_path
from workers.data.captions import SCENES
from workers.data.image_folder import any_transparent, check_images, find_images, load_images
from workers.data.records import FEATURES, float_lists, matrix_of, read_shard, write_shard
from workers.data.shards import digest
from workers.data.storage import Storage
from workers.scenes.images import IMAGE_SIZE, render, sample_attributes

_BATCH = 256  # images in memory
_MIN_IMAGES = 4  # of `precision`: an image and its three nearest neighbours
FILE = "reference.parquet"
_KIND = "reference"
_FIX = (
    "create it again: specfrontier reference DIR --out FILE, with the weights of the models.yaml "
    "entry"
)


class Extractor(Protocol):
    """A feature extractor."""

    name: str  # the file's column of an additional extractor is `features.<name>`
    identity: str  # its architecture and the hash of its weights
    width: int  # number of features

    def extract(self, images: Tensor) -> Tensor:
        """Features [n, width], float32 on the CPU, of images [n, 3, size, size] in [0, 1]."""


@dataclass(frozen=True, slots=True, eq=False)
class Reference:
    """Features of n real images."""

    features: tuple[Tensor, ...]  # [n, d] float32 of each extractor
    # Plain data: `identity` of the first extractor, `source` (name and content hash of the images),
    # `resize` rule, `count` n, and `also`, the identities of additional extractors by name, if
    # there are any.
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
    """Features of real images (see `real_images`) by each extractor, or the first `count` of a
    reference file.

    Args:
        source: "scenes", a folder, or the path or URI of a reference file.
        extractors: the extractors.
        size: pixels along a side of the images.
        count: largest number of images.
        seed: selects the images (see `real_images`).
        on_progress: called after every batch with the number of finished images and the total.

    Raises:
        ValueError: see `real_images` and `read_reference`; an unreadable image; fewer than four
            images; features that are not finite.
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
    source: str | Path,
    extractors: Sequence[Extractor],
    *,
    size: int,
    count: int | None = None,
    seed: int = 0,
) -> Mapping[str, Any]:
    """The facts of `build_reference` without computing features. All files of a folder are read for
    their hash.

    Raises:
        ValueError: see `real_images` and `read_reference`.
    """
    if is_reference_file(source):
        return read_reference(source, extractors=extractors, count=count).facts
    return _facts(real_images(source, size=size, count=count, seed=seed), extractors)


def check_reference(
    source: str | Path,
    extractors: Sequence[Extractor],
    *,
    size: int,
    count: int | None = None,
    seed: int = 0,
    has_features: bool = False,
) -> None:
    """Check that `build_reference` can compute the features: all images are read, with less work
    than for their pixels. The arguments are those of `build_reference`; with `has_features` the
    features are stored already, and no image is read.

    Raises:
        ValueError: see `build_reference`.
    """
    if is_reference_file(source):
        _validated(read_reference(source, extractors=extractors, count=count))
        return
    images = real_images(source, size=size, count=count, seed=seed)
    _check_count(images.count, str(source))
    if not has_features:
        check_images(images.paths)


def count_images(source: str | Path, *, count: int | None = None) -> tuple[int, str]:
    """How many images a reference has, and which files of a folder are left out, in words. Opens no
    image.

    Raises:
        ValueError: see `real_images` and `read_reference`.
    """
    if is_reference_file(source):
        return read_reference(source, count=count).facts["count"], ""
    if source == SCENES and count is not None:
        return count, ""
    files = find_images(local_path(source))
    files.check()
    return len(list(files.images)[:count]), files.left_out()


def is_reference_file(source: str | Path) -> bool:
    """Whether a source names a stored reference, by path or URI."""
    return str(source).partition("?")[0].lower().endswith(".parquet")


def write_reference(storage: Storage, name: str, reference: Reference) -> None:
    """Store a reference: one row per image, `facts` in the metadata.

    The first extractor's features are in column `features` (float32 lists), those of others in
    `features.<name>`.
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

    Args:
        location: a storage, or the path or URI of the file.
        name: name of the file in a storage.
        extractors: extractors whose features are read (default: the first one of the file).
        count: largest number of images read.
        fix: what the user can do about an unusable file.

    Raises:
        ValueError: the file does not exist, is damaged, is not a reference, or has features of
            other extractors.
    """
    if isinstance(location, Storage):
        storage = location
        name = name or FILE
    else:
        storage, name = Storage.holding(location)
    where = storage.locate(name)
    also = {extractor.name: extractor.identity for extractor in extractors[1:]}
    columns = ["features", *(FEATURES + other for other in also)]
    try:
        _, meta = read_shard(storage, name, [], kind=_KIND, fix=fix)
    except FileNotFoundError:
        raise ValueError(f"{where}: no such file; {fix}") from None
    if extractors and meta["identity"] != extractors[0].identity:
        raise ValueError(
            f"{where}: has features of {meta['identity']}, but the models' extractor is "
            f"{extractors[0].identity}; features of two extractors cannot be compared; {fix}"
        )
    for other, identity in also.items():
        if (found := meta.get("also", {}).get(other, f"no {other}")) != identity:
            raise ValueError(
                f"{where}: has features of {found}, but the models also use {identity}; {fix}"
            )
    table, _ = read_shard(storage, name, columns, kind=_KIND, fix=fix)
    if table.num_rows != meta["count"]:
        raise ValueError(f"{where}: has {table.num_rows} images instead of {meta['count']}; {fix}")
    features = tuple(matrix_of(table, column)[:count] for column in columns)
    facts = {key: meta[key] for key in ("identity", "source", "resize")}
    facts["count"] = len(features[0])
    if also:
        facts["also"] = also
    return Reference(features, facts)


def _facts(images: RealImages, extractors: Sequence[Extractor]) -> dict[str, Any]:
    first, *more = extractors
    facts = {
        "identity": first.identity,
        "source": images.describe(),
        "resize": images.resize(),
        "count": images.count,
    }
    if more:
        return facts | {"also": {extractor.name: extractor.identity for extractor in more}}
    return facts


def _validated(reference: Reference) -> Reference:
    facts = reference.facts
    _check_count(facts["count"], facts["source"])
    identities = [facts["identity"], *facts.get("also", {}).values()]
    for features, identity in zip(reference.features, identities, strict=True):
        if not features.isfinite().all():
            raise ValueError(
                f"reference {facts['source']}: {identity} gave features that are not finite"
            )
    return reference


def _check_count(count: int, source: str) -> None:
    if count < _MIN_IMAGES:
        raise ValueError(
            f"reference {source}: too few images ({count}); use at least {_MIN_IMAGES}"
        )


@dataclass(frozen=True, slots=True)
class RealImages:
    """Real images at the model's size."""

    resize: Callable[[], str]  # returns the rule by which they were resized; opens all files
    count: int
    describe: Callable[[], str]  # returns name and content hash, for which all files are read
    batch: Callable[[range], Tensor]  # returns images [n, 3, size, size] in [0, 1] at positions
    paths: Sequence[Path] = ()  # their files, if any

    def batches(self) -> Iterator[Tensor]:
        for start in range(0, self.count, _BATCH):
            yield self.batch(range(start, min(start + _BATCH, self.count)))


def real_images(
    source: str | Path, *, size: int, count: int | None = None, seed: int = 0
) -> RealImages:
    """The images of "scenes" (numbers 0..count-1 of a seed; training used seed 0) or of a folder
    and its subfolders.

    At most `count` images of a folder are used, selected by the hash of (seed, name). Each is cut
    to its centre square and resized with Pillow's Lanczos filter (antialiased, 8 bits), as for
    training. An opaque image of the right size stays unchanged; transparent pixels become white.

    Raises:
        ValueError: the folder does not exist or has no images; `count` is below 1, or missing for
            scenes.
    """
    if count is not None and count < 1:
        raise ValueError(f"reference: count is {count}; it must be at least 1")
    if source != SCENES:
        return _folder_images(local_path(source), size, count, seed)
    if count is None:
        raise ValueError("reference: scenes are unlimited; set count")
    if size != IMAGE_SIZE:
        raise ValueError(
            f"reference: scenes are {IMAGE_SIZE} pixels wide, the model's images {size}; give a "
            "folder"
        )
    return RealImages(
        resize=lambda: "none",
        count=count,
        describe=lambda: f"scenes (seed {seed})",
        batch=lambda indices: render(sample_attributes(seed, indices), seed, indices),
    )


def _folder_images(folder: Path, size: int, count: int | None, seed: int) -> RealImages:
    files = find_images(folder)
    files.check()
    names = sorted(files.images, key=lambda name: digest([seed, name], 64))[:count]
    paths = [files.images[name] for name in sorted(names)]
    return RealImages(
        resize=lambda: _resize_rule(paths, size),
        count=len(paths),
        describe=lambda: f"{folder.resolve().name}@{_content_hash(paths)}",
        batch=lambda indices: load_images([paths[i] for i in indices], size).float() / 255,
        paths=paths,
    )


def _resize_rule(paths: Sequence[Path], size: int) -> str:
    """What `load_images` does with these files."""
    rule = f"centre square, Pillow Lanczos to {size} x {size}"
    if any_transparent(paths):
        return f"on white, {rule}"
    return rule


def _content_hash(paths: Sequence[Path]) -> str:
    """16 hex digits over the files' bytes, in order; names and folders do not count."""
    total = hashlib.sha256()
    for path in paths:
        total.update(hashlib.sha256(path.read_bytes()).digest())
    return total.hexdigest()[:16]
