"""Features of real images, which generated ones are held against: made once, kept as Parquet.

Distances are comparable only on the same features of the same images. So a reference says which extractor made it, and
its `source` carries a hash of the images; how images were resized (Parmar et al. 2022: it moves FID) is part of it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import pyarrow as pa
import torch
from torch import Tensor

from workers.data.folder import ENDINGS, check_images, load_images
from workers.data.records import FEATURES, features_of, float_lists, matrix_of, read_shard, write_shard
from workers.data.shards import digest
from workers.data.storage import Storage
from workers.scenes.images import IMAGE_SIZE, render, sample_attributes

SCENES, FILE, KIND = "scenes", "reference.parquet", "reference"
AT_ONCE = 256  # images in memory
_FIX = "create it again: specfrontier reference DIR --out FILE, with the --inception and --vgg that the entry names"


class Extractor(Protocol):
    """A feature net. `identity`: its name and the hash of its weights; `name`: of the column of a second one."""

    name: str
    identity: str

    def extract(self, images: Tensor) -> Tensor:
        """Features [n, d], float32 on the CPU, of images [n, 3, size, size] in [0, 1]."""


class Seen(NamedTuple):
    """What one extractor saw in the real images: features [n, d] float32, and its identity."""

    features: Tensor
    identity: str


@dataclass(frozen=True, slots=True, eq=False)
class Reference:
    """features [n, d] float32; identity: the extractor's; source: name and content hash; resize: the rule in words.

    also: the same images by further extractors, by their names.
    """

    features: Tensor
    identity: str
    source: str
    resize: str
    also: Mapping[str, Seen] = field(default_factory=dict)

    @property
    def count(self) -> int:
        return self.features.shape[0]

    @property
    def facts(self) -> dict[str, Any]:
        """All but the features, as plain data."""
        also = {name: seen.identity for name, seen in self.also.items()}
        return _facts(self.identity, self.source, self.resize, self.count, also)


@dataclass(frozen=True, slots=True)
class RealImages:
    """Images that are drawn or read batch by batch; `source` and `resize` as in Reference."""

    source: str
    resize: str
    count: int
    batch: Callable[[range], Tensor]  # positions -> [n, 3, size, size] in [0, 1]

    def batches(self) -> Iterator[Tensor]:
        for start in range(0, self.count, AT_ONCE):
            yield self.batch(range(start, min(start + AT_ONCE, self.count)))


def real_images(source: str | Path, *, size: int, count: int | None = None, seed: int = 0) -> RealImages:
    """The images of "scenes" (numbers 0..count-1 of a seed; training used seed 0) or of a folder and its subfolders.

    Of a folder at most `count` are taken, chosen by the hash of (seed, name). Each is cut to its centre square and
    resized by Pillow's Lanczos filter (antialiased) to 8 bits, as for training; one of the right size is left alone.

    Raises:
        ValueError: no such folder, no images in it, or a count below 1 or (scenes) not given.
    """
    if count is not None and count < 1:
        raise ValueError(f"reference: {count} images are asked for; ask for at least 1")
    if source != SCENES:
        return _folder(Path(source).expanduser(), size, count, seed)
    if count is None:
        raise ValueError("reference: say how many scenes (count); there is no end of them")
    if size != IMAGE_SIZE:
        raise ValueError(f"reference: scenes are {IMAGE_SIZE} pixels wide, the model's images {size}; give a folder")
    return RealImages(
        source=f"scenes (seed {seed})",
        resize="none",
        count=count,
        batch=lambda indices: render(sample_attributes(seed, indices), seed, indices),
    )


def build_reference(
    source: str | Path,
    extractor: Extractor,
    *,
    size: int,
    count: int | None = None,
    seed: int = 0,
    also: Sequence[Extractor] = (),
    tell: Callable[[int, int], None] | None = None,
) -> Reference:
    """Features of real images (see `real_images`), or of a reference file: its first `count`.

    also: further extractors of the same images. tell: called with the images done and the images in all, after every
    batch.

    Raises:
        ValueError: see `real_images` and `read_reference`; an image that cannot be read; no more images than features,
        so that they have no covariance; features that are not finite.
    """
    if is_reference_file(source):
        wanted = {net.name: net.identity for net in also}
        return _enough(read_reference(source, identity=extractor.identity, count=count, also=wanted))
    images, nets = real_images(source, size=size, count=count, seed=seed), (extractor, *also)
    parts: list[list[Tensor]] = [[] for _ in nets]
    for part in images.batches():
        for net, seen in zip(nets, parts, strict=True):
            seen.append(net.extract(part))
        if tell is not None:
            tell(sum(map(len, parts[0])), images.count)
    features, *more = map(torch.cat, parts)
    others = {net.name: Seen(seen, net.identity) for net, seen in zip(also, more, strict=True)}
    return _enough(Reference(features, extractor.identity, images.source, images.resize, others))


def reference_facts(
    source: str | Path,
    identity: str,
    *,
    size: int,
    count: int | None = None,
    seed: int = 0,
    also: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """What `build_reference(...).facts` would say, without the features; of a folder all files are read for their hash.

    also: the identities of further extractors by name.

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
    """Refuse a reference that `build_reference` could not make `width` features of, as far as a quick look can tell:
    of a folder's images only the heads are read.

    Raises:
        ValueError: see `build_reference`.
    """
    if is_reference_file(source):
        _enough(read_reference(source, identity=identity, count=count, also=also))
    elif source == SCENES:
        _fills(real_images(source, size=size, count=count, seed=seed).count, width, SCENES)
    else:
        paths = _chosen_files(Path(source).expanduser(), count, seed)
        _fills(len(paths), width, str(source))
        check_images(paths)


def is_reference_file(source: str | Path) -> bool:
    """Whether a source names a stored reference, by path or URI."""
    return str(source).partition("?")[0].lower().endswith(".parquet")


def write_reference(storage: Storage, name: str, reference: Reference) -> None:
    """Store a reference: one row per image, column `features` of float32 lists, `facts` in the metadata; the features
    of further extractors in columns `features.<name>`.
    """
    others = {FEATURES + other: float_lists(seen.features) for other, seen in reference.also.items()}
    table = pa.table({"features": float_lists(reference.features), **others})
    write_shard(storage, name, table, {"kind": KIND, **reference.facts})


def read_reference(
    place: Storage | str | Path,
    name: str | None = None,
    *,
    identity: str | None = None,
    count: int | None = None,
    also: Mapping[str, str] | None = None,
) -> Reference:
    """A stored reference: file `name` of a storage, or a file's own path or URI. `count`: only so many of its images.

    also: the identities of further extractors by name, whose features are wanted too.

    Raises:
        ValueError: no such file, one that is damaged or no reference, or one of other extractors than those named.
    """
    also = also or {}
    storage, name = (place, name or FILE) if isinstance(place, Storage) else Storage.holding(place)
    where = f"{storage.shown}/{name}"
    try:
        table, meta = read_shard(storage, name, ["features"], kind=KIND, fix=_FIX)
    except FileNotFoundError:
        raise ValueError(f"{where}: no such file; {_FIX}") from None
    if identity is not None and meta["identity"] != identity:
        raise ValueError(
            f"{where}: holds features of {meta['identity']}, but images are read by {identity}; a distance between "
            f"the two means nothing; {_FIX}"
        )
    features = matrix_of(table, "features")
    if len(features) != meta["count"]:
        raise ValueError(f"{where}: holds {len(features)} images instead of {meta['count']}; {_FIX}")
    others = {other: Seen(seen[:count], also[other]) for other, seen in _others(storage, name, meta, also).items()}
    return Reference(features[:count], meta["identity"], meta["source"], meta["resize"], others)


def _others(storage: Storage, name: str, meta: Mapping[str, Any], also: Mapping[str, str]) -> dict[str, Tensor]:
    """The features of further extractors, by their names."""
    held: Mapping[str, str] = meta.get("also", {})
    for other, identity in also.items():
        if held.get(other) != identity:
            raise ValueError(
                f"{storage.shown}/{name}: holds features of {held.get(other, f'no {other}')}, but images are read by "
                f"{identity} as well; {_FIX}"
            )
    table, _ = read_shard(storage, name, [FEATURES + other for other in also], kind=KIND, fix=_FIX)
    return {other: features_of(table, other) for other in also}


def _facts(identity: str, source: str, resize: str, count: int, also: Mapping[str, str]) -> dict[str, Any]:
    facts: dict[str, Any] = {"identity": identity, "source": source, "resize": resize, "count": count}
    return facts | {"also": dict(also)} if also else facts


def _enough(reference: Reference) -> Reference:
    _fills(reference.count, reference.features.shape[1], reference.source)
    for features, identity in ((reference.features, reference.identity), *reference.also.values()):
        if not features.isfinite().all():
            raise ValueError(f"reference {reference.source}: {identity} gave features that are not finite")
    return reference


def _fills(count: int, width: int, source: str) -> None:
    if count <= width:
        raise ValueError(
            f"reference {source}: {count} images cannot fill a covariance of {width} features; give more than {width} "
            "images"
        )


def _folder(folder: Path, size: int, count: int | None, seed: int) -> RealImages:
    paths = _chosen_files(folder, count, seed)
    return RealImages(
        source=f"{folder.resolve().name}@{_contents(paths)}",
        resize=f"centre square, Pillow Lanczos to {size} x {size}",
        count=len(paths),
        batch=lambda indices: load_images([paths[i] for i in indices], size).float() / 255,
    )


def _chosen_files(folder: Path, count: int | None, seed: int) -> list[Path]:
    """The images of a folder and its subfolders, at most `count` of them, by name."""
    if not folder.is_dir():
        raise ValueError(f"{folder}: no such folder of images")
    files = {
        path.relative_to(folder).as_posix(): path
        for path in folder.rglob("*")
        if path.suffix.lower() in ENDINGS and path.is_file()
    }
    if not files:
        raise ValueError(f"{folder}: no images ({', '.join(ENDINGS)}) in it or below it; give a folder of images")
    names = sorted(files, key=lambda name: digest([seed, name], 64))[:count]
    return [files[name] for name in sorted(names)]


def _contents(paths: Sequence[Path]) -> str:
    """16 hex digits of the files' bytes, in order; names and places do not matter."""
    whole = hashlib.sha256()
    for path in paths:
        whole.update(hashlib.sha256(path.read_bytes()).digest())
    return whole.hexdigest()[:16]
