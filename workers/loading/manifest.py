"""models.yaml: where checkpoints lie, under names that sweeps and commands use.

mine:
  family: llamagen
  transformer: ckpt/t2i_XL_stage1_256.pt     # the family's own keys; paths are relative to this file
  vq: ckpt/vq_ds16_t2i.pt
  text: ckpt/flan-t5-xl
  image_size: 256
  dtype: auto                                # float32 | bfloat16 | float16; auto: bfloat16 on a GPU
  drafters: {eagle: ckpt/eagle.safetensors}
  metrics: {inception: pt_inception.pth}
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import torch

from search_spaces.documents import Node, as_node, read_document
from search_spaces.params import ConfigError, Params, not_one_of, unknown_key
from workers.loading.bundle import Models
from workers.models.checkpoint_files import WeightsError, shapes_only
from workers.models.families.catalogue import Family, families
from workers.models.families.scenes import BUILTIN, DRAFTERS, load_drafter
from workers.models.target import Target
from workers.models.weights import content_hash

METRICS = ("inception", "inception_tf", "vgg", "clip", "clip_l14", "hpsv2", "image_reward", "aesthetic")
_SECTIONS = {"drafters": DRAFTERS, "metrics": METRICS}


@dataclass(frozen=True, slots=True)
class General(Params):
    """The keys of an entry that all families share, beside `drafters` and `metrics`."""

    family: Annotated[str, "family of the target"]
    dtype: Annotated[
        Literal["auto", "float32", "bfloat16", "float16"], "numbers of the target; auto is bfloat16 on a GPU"
    ] = "auto"


@dataclass(frozen=True, slots=True)
class Entry:
    """An entry of models.yaml, its paths absolute. where: "file:line". settings: the family's own keys."""

    name: str
    family: Family
    settings: Params
    dtype: str = "auto"
    drafters: Mapping[str, str] = field(default_factory=dict)
    metrics: Mapping[str, str] = field(default_factory=dict)
    where: str = ""

    @property
    def files(self) -> dict[str, str]:
        """Every file and folder that the target and its drafters are loaded from, by key."""
        own = {key: path for key, path in _paths(self.settings).items() if path is not None}
        return own | {f"drafters.{kind}": path for kind, path in self.drafters.items()}

    @property
    def folder(self) -> Path:
        """Where a feature net of the model's own would lie; the built-in model's folder for most families."""
        return Path(getattr(self.settings, "folder", BUILTIN))

    def type_on(self, device: torch.device) -> torch.dtype:
        """The type of the target's numbers on a device."""
        if self.dtype == "auto":
            return torch.bfloat16 if device.type == "cuda" else torch.float32
        kind = getattr(torch, self.dtype)
        assert isinstance(kind, torch.dtype)
        return kind

    def to_mapping(self) -> dict[str, Any]:
        """Plain data, for workers."""
        return {
            "name": self.name,
            "family": self.family.name,
            "settings": self.settings.to_mapping(),
            "dtype": self.dtype,
            "drafters": dict(self.drafters),
            "metrics": dict(self.metrics),
            "where": self.where,
        }

    @classmethod
    def from_mapping(cls, mapping: Mapping[str, Any]) -> Self:
        """Read what `to_mapping` wrote."""
        family = families()[mapping["family"]]
        return cls(**{**mapping, "family": family, "settings": family.entry.from_mapping(mapping["settings"])})


def read_manifest(file: str | Path) -> dict[str, Entry]:
    """All entries of a models.yaml by name, in its order. Whether the files are there is not looked at.

    Raises:
        ConfigError: with file, line and key, what is wrong and the mend.
        OSError: the file cannot be read.
    """
    path = Path(file).expanduser()
    text = path.read_bytes()
    if not text.strip():
        raise ConfigError((), "the file is empty; give at least one entry with its family and files", f"{file}:1")
    entries = {name: _entry(name, node, path.parent) for name, node in read_document(text, str(file)).mapping().items()}
    if not entries:
        raise ConfigError((), "there is no entry; give at least one with its family and files", f"{file}:1")
    return entries


def read_entry(file: str | Path, name: str | None = None) -> Entry:
    """An entry by its name; without one, the only entry.

    Raises:
        ConfigError, OSError: see `read_manifest`; no such entry, or several and none is named.
    """
    entries = read_manifest(file)
    if name is None:
        if len(entries) > 1:
            known = ", ".join(entries)
            raise ConfigError((), f"has several entries; name one, {file}#NAME: {known}", str(file))
        return next(iter(entries.values()))
    if name not in entries:
        raise ConfigError((), f"no entry {name!r}: it {not_one_of(name, entries)}", str(file))
    return entries[name]


def published_entries() -> dict[str, Entry]:
    """The published models by their usual names, with no files behind them: enough to plan with."""
    found: dict[str, Entry] = {}
    for family in families().values():
        for name, given in family.published.items():
            found[name] = Entry(name, family, family.entry.from_mapping(given), where="published models")
    return found


def folder_entry(folder: Path) -> Entry:
    """The entry that a folder of the scenes family would have."""
    family = families()["scenes"]
    settings = family.entry.from_mapping({"folder": str(folder.absolute())})
    assert family.beside is not None
    return Entry(folder.name, family, settings, drafters=family.beside(settings), where=str(folder))


def load_entry(entry: Entry, device: torch.device) -> Models:
    """Target and drafters of an entry on a device.

    Raises:
        WeightsError: a file is missing, damaged, or of another family or size; the entry is named.
    """
    return replace(_loaded(entry, device, entry.type_on(device)), hashes=hashes_of(entry))


def sketch_entry(entry: Entry, dtype: torch.dtype = torch.float32) -> Models:
    """As `load_entry`, in shapes alone (on the meta device, no hashes): every file is held against the architecture,
    in a moment and in no memory. Whether the numbers are finite, only loading sees.
    """
    with shapes_only():
        return _loaded(entry, torch.device("meta"), dtype)


def hashes_of(entry: Entry) -> dict[str, str]:
    """The content's hash of each file and folder of an entry, by key.

    Raises:
        WeightsError: nothing is there.
    """
    return {key: checkpoint_hash(Path(path)) for key, path in entry.files.items()}


def checkpoint_hash(path: Path) -> str:
    """The first 16 hex digits of a SHA-256: of a file, of an index with its shards, of a folder's files.

    Hidden files of a folder do not count. A file is read once in a process, unless its size or time changes.

    Raises:
        WeightsError: nothing is there, or an index is damaged.
    """
    if path.is_dir():
        found = (file.relative_to(path) for file in path.rglob("*") if file.is_file())
        names = sorted(file.as_posix() for file in found if not any(part.startswith(".") for part in file.parts))
        return _listed(path, names)
    if path.name.endswith(".index.json") and path.is_file():
        try:
            shards = sorted(set(json.loads(path.read_text("utf-8"))["weight_map"].values()))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise WeightsError(f"{path}: not an index of shards (JSON with `weight_map`); download it again") from error
        return _listed(path.parent, [path.name, *shards])
    return content_hash(path)


def _listed(folder: Path, names: list[str]) -> str:
    listing = "".join(f"{name}\0{content_hash(folder / name)}\n" for name in names)
    return hashlib.sha256(listing.encode()).hexdigest()[:16]


def _loaded(entry: Entry, device: torch.device, dtype: torch.dtype) -> Models:
    try:
        target = entry.family.load(entry.settings, device, dtype)
        drafters = {kind: _drafter(target, kind, Path(path)) for kind, path in entry.drafters.items()}
    except ValueError as error:
        raise WeightsError(f"{entry.where}: {entry.name}: {error}") from error
    return Models(target, drafters, {})


def _drafter(target: Target, kind: str, path: Path) -> Any:
    """A drafter beside its target: on its device, in its transformer's type."""
    if not path.exists():
        raise WeightsError(f"drafters.{kind}: {path}: no such file or folder; check the path, or remove the key")
    return load_drafter(target, kind, path).to(target.device, target.dtype)


def _entry(name: str, node: Node, base: Path) -> Entry:
    given = node.mapping()
    if "family" not in given:
        raise node.error(f"missing; give one of {', '.join(families())}", "family")
    word = given["family"]
    if word.value not in families():
        raise word.error(not_one_of(word.value, families()))
    family = families()[str(word.value)]
    general, own = General.fields(), family.entry.fields()
    known = ["family", *own, "dtype", *_SECTIONS]
    for key, child in given.items():
        if key not in known:
            raise child.error(unknown_key(key, known))
    with node.with_location():
        common = General.from_mapping({key: given[key].plain() for key in general if key in given})
        settings = family.entry.from_mapping({key: given[key].plain() for key in own if key in given})
    found = {key: _absolute(path, base) for key, path in _paths(settings).items() if path is not None}
    settings = replace(settings, **{own[key].name: path for key, path in found.items()})  # type: ignore[type-var]
    sections = {key: _files(given.get(key, as_node({}, node.where)), words, base) for key, words in _SECTIONS.items()}
    drafters = {**(family.beside(settings) if family.beside else {}), **sections["drafters"]}
    return Entry(name, family, settings, common.dtype, drafters, sections["metrics"], node.where)


def _paths(settings: Params) -> dict[str, str | None]:
    """The values of a family's keys that are paths: texts that are no choice of words."""
    own = settings.fields().values()
    values = {knob.key: getattr(settings, knob.name) for knob in own if not knob.words}
    return {key: value for key, value in values.items() if value is None or isinstance(value, str)}


def _files(node: Node, words: tuple[str, ...], base: Path) -> dict[str, str]:
    """A section of paths under known keys."""
    found: dict[str, str] = {}
    for key, child in ({} if node.value is None else node.mapping(words)).items():
        if not isinstance(child.value, str) or not child.value:
            raise child.error(f"must be the path of a file or folder, got {child.plain()!r}")
        found[key] = _absolute(child.value, base)
    return found


def _absolute(path: str, base: Path) -> str:
    """A path of the file, seen from its folder."""
    return str((base / Path(path).expanduser()).absolute())
