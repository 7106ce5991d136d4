"""models.yaml: names for checkpoints, with the paths of their files, and how the models of an entry
are loaded.

A model is always an entry. The built-in model, and a folder of weights like its own, are entries of
the family `scenes` that no file has to spell out. For plans, models are loaded on the meta device:
from their files' headers if the files exist, else from the architecture.

    mine:
      family: llamagen
      # The family's own keys; paths are relative to this file.
      transformer: ckpt/t2i_XL_stage1_256.pt
      vq: ckpt/vq_ds16_t2i.pt
      text: ckpt/flan-t5-xl
      image_size: 256
      dtype: auto  # float32 | bfloat16 | float16; auto: bfloat16 on a GPU
      drafters: {eagle: ckpt/eagle.safetensors}
      metrics: {inception: pt_inception.pth}

Every path may be a file of the Hugging Face Hub: hf://ORG/REPO[/FILE][@REVISION] (see
`workers.loading.hub`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from shlex import quote
from typing import Annotated, Any, Literal, Self

import torch

from search_spaces.documents import read_document
from search_spaces.params import ConfigError, Params, at, expect_mapping, unknown_choice
from search_spaces.paths import local_path
from search_spaces.plugins import PluginNames
from search_spaces.trial import DecodingConfig
from workers.decoding.build import drafter_class, kinds_with_weights, load_drafter
from workers.loading import hub, packages
from workers.loading.models import Models
from workers.metrics.registry import weight_keys
from workers.models.checkpoint_files import WeightsError, add_note, content_hash, shapes_only
from workers.models.families.catalogue import FAMILIES, Family
from workers.models.families.scenes import BUILTIN, Scenes

BUILTIN_NAME = "builtin"
ENTRY_SIGN = "#"
_UNFETCHED = hub.SCHEME.rstrip("/")  # beginning of a path below a reference that was not fetched


@dataclass(frozen=True, slots=True)
class CommonKeys(Params):
    """The keys of an entry that all families share, except `drafters` and `metrics`."""

    family: Annotated[str, "family of the target"]
    dtype: Annotated[
        Literal["auto", "float32", "bfloat16", "float16"],
        "numbers of the target; auto is bfloat16 on a GPU",
    ] = "auto"


@dataclass(frozen=True, slots=True)
class Entry:
    """An entry of models.yaml with absolute paths."""

    name: str
    family: Family  # the keys of its family
    dtype: str = "auto"
    drafters: Mapping[str, str] = field(default_factory=dict)  # paths by drafter kind
    metrics: Mapping[str, str] = field(default_factory=dict)  # paths by metric key
    where: str = ""  # "file:line"; empty for the built-in model and other folders
    # References to files of the Hub, as the file has them, by key (`drafters.eagle`). The path of
    # such a key is the reference itself as long as the cache does not have the file.
    hub: Mapping[str, str] = field(default_factory=dict)

    @property
    def files(self) -> dict[str, str]:
        """The paths that the target and its drafters are loaded from, by key."""
        return self.family.target_files | {
            f"drafters.{kind}": path for kind, path in self.drafters.items()
        }

    def check_files(self, metric_keys: Collection[str] = (), *, on_hub: bool = True) -> None:
        """Check that `files`, and the files under `metrics` with these keys, exist. Without
        `on_hub`, files of the Hub may be missing from the cache.

        Raises:
            WeightsError: names all that are missing.
        """
        nets = {f"metrics.{key}": path for key, path in self.metrics.items() if key in metric_keys}
        drafters = {f"drafters.{kind}": path for kind, path in self.drafters.items()}
        own = {**self.family.paths, **drafters, **nets}
        absent = [
            f"{key} ({path})" for key, path in own.items() if (path or "").startswith(hub.SCHEME)
        ]
        paths = {
            key: path
            for key, path in (self.files | nets).items()
            if not path.startswith(_UNFETCHED)
        }
        missing = [f"{key} ({path})" for key, path in paths.items() if not Path(path).exists()]
        problems = []
        if absent and on_hub:
            problems.append(
                f"not in the cache of the Hugging Face Hub: {', '.join(absent)}; {self.pull_fix}"
            )
        if missing:
            fix = f"check the path{'s' * (len(missing) > 1)}, or download the weights"
            problems.append(f"no such file or folder: {', '.join(missing)}; {fix}")
        if problems:
            place = f"{self.where}: {self.name}: " if self.where else ""
            raise WeightsError(place + "; ".join(problems))

    @property
    def pull_fix(self) -> str:
        """The commands that fetch its files of the Hub."""
        source = f"{quote(self.where.rpartition(':')[0])}#{quote(self.name)}"
        return f"fetch with `specfrontier models pull {source}`, or with `launch --pull`"

    @property
    def hashes(self) -> dict[str, str]:
        """The content hash of each of `files`. Raises WeightsError if one does not exist."""
        return {key: content_hash(path) for key, path in self.files.items()}

    @property
    def folder(self) -> Path:
        """The folder that may hold the model's own feature network; the built-in model's for most
        families.
        """
        return Path(getattr(self.family, "folder", BUILTIN))

    def dtype_on(self, device: torch.device) -> torch.dtype:
        """The target's dtype on a device."""
        if self.dtype == "auto":
            name = "bfloat16" if device.type == "cuda" else "float32"
        else:
            name = self.dtype
        dtype = getattr(torch, name)
        assert isinstance(dtype, torch.dtype)
        return dtype

    def to_mapping(self) -> dict[str, Any]:
        """Plain data, for workers, which find files of the Hub in their own machine's cache."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {**values, "family": self.family.kind, "settings": self.family.to_mapping()}

    @classmethod
    def from_mapping(cls, mapping: Mapping[str, Any]) -> Self:
        """Read what `to_mapping` wrote."""
        values = dict(mapping)
        settings = _on_this_machine(values.pop("settings"))
        values |= {key: _on_this_machine(values[key]) for key in ("drafters", "metrics")}
        return cls(
            **values | {"family": FAMILIES.all().lookup(mapping["family"]).from_mapping(settings)}
        )


def read_models_yaml(file: str | Path) -> dict[str, Entry | ConfigError]:
    """All entries of a models.yaml by name, in file order; in the place of an invalid entry, its
    error with line, key and fix. Does not check that their files exist.

    Raises:
        ConfigError: the file is not YAML, or has no entries.
        OSError: the file cannot be read.
    """
    path = local_path(file)
    text = path.read_bytes()
    if not text.strip():
        raise ConfigError(
            (), "the file is empty; give at least one entry with its family and files", f"{file}:1"
        )
    document = read_document(text, str(file))
    entries: dict[str, Entry | ConfigError] = {}
    with document.locate_errors():
        listed = expect_mapping(document.data)
    for name, keys in listed.items():
        try:
            with document.locate_errors(), at(name):
                entries[name] = _entry(name, keys, path.parent, document.location((name,)))
        except ConfigError as error:
            entries[name] = error
    if not entries:
        raise ConfigError(
            (), "the file has no entries; give at least one with its family and files", f"{file}:1"
        )
    return entries


def read_entry(file: str | Path, name: str | None = None) -> Entry:
    """An entry of a models.yaml by its name, which may be omitted if the file has only one.

    Raises:
        ConfigError, OSError: see `read_models_yaml`; the entry is invalid; no such entry, or no
            name although there are several.
    """
    entries = read_models_yaml(file)
    if name is None and len(entries) > 1:
        raise ConfigError(
            (), f"has several entries; name one, {file}#NAME: {', '.join(entries)}", str(file)
        )
    if name is not None and name not in entries:
        raise ConfigError((), f"no entry {name!r}: it {unknown_choice(name, entries)}", str(file))
    entry = entries[next(iter(entries)) if name is None else name]
    if isinstance(entry, ConfigError):
        raise entry
    return entry


def split_entry(source: str) -> tuple[str, str | None]:
    """File and entry name of FILE[#ENTRY]. If a file with the full text as its name exists, there
    is no entry name.
    """
    file, _, name = source.rpartition(ENTRY_SIGN)
    is_uri = source.lower().startswith("file://")  # the path of a URI cannot have the sign
    if not file or (not is_uri and local_path(source).exists()):
        return (source, None)
    return (file, name)


def absolute_source(source: str) -> str:
    """FILE[#ENTRY] with the absolute path of the file or folder, if that exists; any other source,
    such as "builtin", as given.
    """
    try:
        file, _ = split_entry(source)
        path = local_path(file)
    except ValueError:  # a path of another machine, where the sweep ran
        return source
    if file != BUILTIN_NAME and path.exists():
        return f"{path.absolute()}{source[len(file) :]}"
    return source


def find_entry(source: str, name: str | None = None) -> Entry:
    """The entry that `source` stands for: "builtin", a folder that `specfrontier train` made, or
    FILE[#ENTRY] of a models.yaml. `name` is the entry's name, unless `source` has one.

    Raises:
        ValueError: no such file or folder; an entry's name without a models.yaml; see `read_entry`.
        OSError: the file cannot be read.
    """
    file, entry = split_entry(source)
    path = BUILTIN if file == BUILTIN_NAME else local_path(file)
    name = entry or name
    if path.is_file():
        return read_entry(file, name)
    if not path.is_dir():
        raise ValueError(
            f"{path}: no such file or folder; give builtin, a folder that `specfrontier train` "
            "made, or a models.yaml"
        )
    if name is not None:
        raise ValueError(f"{file}: a folder, which has no entry {name!r}; give a models.yaml")
    return folder_entry(path)


def folder_entry(folder: Path = BUILTIN) -> Entry:
    """The entry of the built-in model, or of a folder that `specfrontier train` made. Its dtype is
    float32.
    """
    family = Scenes(folder=str(folder.absolute()))
    return Entry(folder.name, family, "float32", _folder_drafters(family))


def published_entries() -> dict[str, Entry]:
    """The published models by their usual names. Their files need not exist: this is enough to plan
    with.
    """
    return {
        name: Entry(name, family.from_mapping(keys), where="published models")
        for family in FAMILIES.all().values()
        for name, keys in family.published.items()
    }


def load_entry(entry: Entry, device: torch.device) -> Models:
    """Target and drafters of an entry on a device.

    Raises:
        WeightsError: a file is missing, damaged, or of another family or size; the message names
            the entry.
    """
    models = _load(entry, device, entry.dtype_on(device))
    return replace(models, hashes=entry.hashes)


def load_on_meta(entry: Entry, dtype: torch.dtype = torch.float32) -> Models:
    """The models of `load_entry`, on the meta device and without hashes: checks the names and
    shapes in every file against the architecture, in milliseconds and without memory. It does not
    see whether the values are finite.
    """
    with shapes_only():
        return _load(entry, torch.device("meta"), dtype)


def load_folder(folder: Path = BUILTIN, device: torch.device | str = "cpu") -> Models:
    """Target and drafters of the built-in model, or of a folder that `specfrontier train` made, in
    float32.

    Raises:
        WeightsError: see `load_entry`.
    """
    return load_entry(folder_entry(folder), torch.device(device))


def _load(entry: Entry, device: torch.device, dtype: torch.dtype) -> Models:
    entry.check_files()
    for text in entry.family.name_notes:
        add_note(f"{entry.where}: {entry.name}: {text}")
    try:
        target = entry.family.load(device, dtype)
        drafters = {
            kind: load_drafter(target, kind, Path(path)) for kind, path in entry.drafters.items()
        }
    except ValueError as error:
        place = f"{entry.where}: {entry.name}: " if entry.where else ""
        raise WeightsError(f"{place}{error}") from error
    if target.no_images:
        add_note(f"{entry.where}: {entry.name}: there are no images: {target.no_images}")
    return Models(target, drafters)


def _folder_drafters(family: Family) -> dict[str, str]:
    """Paths of the drafters in the target's own folder, by kind."""
    paths = {kind: family.drafter_file(kind) for kind in kinds_with_weights()}
    return {kind: str(path) for kind, path in paths.items() if path is not None and path.exists()}


def _entry(name: str, keys: object, base: Path, where: str) -> Entry:
    """The entry of plain data. Relative paths start from the folder `base`."""
    given = expect_mapping(keys)
    if "family" not in given:
        raise ConfigError(("family",), f"missing; give one of {', '.join(FAMILIES.all())}")
    with at("family"):
        kind = FAMILIES.all().lookup(given["family"])
    common = CommonKeys.fields()
    own = kind.fields()
    expect_mapping(given, [*own, *common, "drafters", "metrics"])
    shared = CommonKeys.from_mapping({key: given[key] for key in common if key in given})
    family = kind.from_mapping({key: given[key] for key in own if key in given})
    targets = {key: path for key, path in family.paths.items() if path is not None}
    family = replace(
        family, **{own[key].name: path for key, path in _absolute(targets, base).items()}
    )
    with at("drafters"):
        drafters = _read_paths(given.get("drafters"), kinds_with_weights())
        found = _folder_drafters(family) | _absolute(drafters, base)
    with at("metrics"):
        metrics = _read_paths(given.get("metrics"), weight_keys())
        nets = _absolute(metrics, base)
    sections = {"": targets, "drafters.": drafters, "metrics.": metrics}
    paths = {
        f"{section}{key}": path for section, keys in sections.items() for key, path in keys.items()
    }
    references = {key: path for key, path in paths.items() if path.startswith(hub.SCHEME)}
    return Entry(name, family, shared.dtype, found, nets, where, references)


def _read_paths(section: object, keys: PluginNames) -> dict[str, str]:
    """A section that maps known keys to paths."""
    if section is None:
        return {}
    paths: dict[str, str] = {}
    for key, path in expect_mapping(section, keys).items():
        if not isinstance(path, str) or not path:
            raise ConfigError((key,), f"must be the path of a file or folder, got {path!r}")
        paths[key] = path
    return paths


def _absolute(paths: Mapping[str, str], base: Path) -> dict[str, str]:
    """Absolute paths of paths that are relative to the folder `base`, of references to the Hub in
    its cache, and of files of installed packages.
    """
    schemes = {hub.SCHEME: hub.local_path, packages.SCHEME: packages.local_path}
    found = {}
    for key, path in paths.items():
        scheme = next((scheme for scheme in schemes if path.startswith(scheme)), None)
        if scheme is not None:
            try:
                found[key] = schemes[scheme](path)
            except ValueError as error:
                raise ConfigError((key,), str(error)) from error
            continue
        try:
            found[key] = str(local_path(path, base).absolute())
        except ValueError as error:
            raise ConfigError(
                (key,), f"{error}, or a file of the Hub as hf://ORG/REPO/FILE"
            ) from error
    return found


def _on_this_machine(values: Mapping[str, Any]) -> dict[str, Any]:
    """Values with the paths of another machine's cache of the Hub replaced by this one's."""
    return {
        key: hub.on_this_machine(value) if isinstance(value, str) else value
        for key, value in values.items()
    }


def shape_only_models(entry: Entry, dtype: torch.dtype) -> Models:
    """An entry's models on the meta device: from its files if all exist, else of the published
    architecture that it names.

    Raises:
        WeightsError: a file is damaged or of another family; or files are missing and the entry
            does not determine the architecture.
    """
    missing = [key for key, path in entry.files.items() if not Path(path).exists()]
    if not missing:
        return load_on_meta(entry, dtype)
    try:
        target = entry.family.build_on_meta(dtype)
    except ValueError as error:
        files = ", ".join(f"{key} ({entry.files[key]})" for key in missing)
        raise WeightsError(
            f"{entry.where}: {entry.name}: no such file: {files}, and {error}"
        ) from error
    with shapes_only():
        drafters = {
            kind: load_drafter(target, kind, Path(path)).to("meta", dtype)
            for kind, path in entry.drafters.items()
            if Path(path).exists()
        }
    assumption = f"{target.name} by its published architecture; missing files: {', '.join(missing)}"
    return Models(target, drafters, assumptions=(assumption,))


def metric_bytes(entry: Entry) -> dict[str, int]:
    """Size of the entry's metric networks by key, as stored (mostly fp32); of a folder, its weight
    files only.
    """
    sizes = {}
    for key, name in entry.metrics.items():
        path = Path(name)
        files = [path]
        if path.is_dir():
            files = [*path.glob("*.safetensors")] or [*path.glob("*.bin")] or [*path.glob("*.pt")]
        sizes[key] = sum(file.stat().st_size for file in files if file.is_file())
    return sizes


def published_entry(name: str) -> Entry:
    """A published model by the name that sweeps use.

    Raises:
        ValueError: no published model has that name.
    """
    entries = published_entries()
    if name not in entries:
        raise ValueError(
            f"{name} is not a published model, so give its models.yaml (--models FILE); published: "
            f"{', '.join(entries)}"
        )
    return entries[name]


def add_drafter(models: Models, config: DecodingConfig) -> Models | None:
    """The models with the drafter that a setting needs; a missing drafter is made in the usual size
    for the target. None if drafters of that kind have no usual size.
    """
    kind = config.drafter.kind
    implementation = drafter_class(config.drafter)
    if implementation is None or kind in models.drafters:
        return models
    usual = implementation.usual(models.target, config.policy.bounds.depth)
    if usual is None:
        return None
    drafter, assumption = usual
    drafters = {**models.drafters, kind: drafter}
    assumptions = (*models.assumptions, assumption)
    return replace(models, drafters=drafters, assumptions=assumptions)
