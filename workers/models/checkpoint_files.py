"""Weight files on disk: opened lazily, never unpickled, with error messages that say why a file is
unreadable.

Formats: one `.safetensors` file, a folder of shards with its `*.index.json`, and files of
`torch.save` (`.pt`, `.pth`, `.bin`, `.ckpt`), which are read with `torch.load(weights_only=True)`
only.

Training wraps models: DDP, FSDP and `torch.compile` put components such as `module.` and
`_orig_mod.` into the tensors' names, and training loops put several state dicts into one file. Both
are undone here, for every checkpoint.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import re
import warnings
import zipfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import lru_cache
from itertools import takewhile
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from search_spaces.documents import parse_json
from search_spaces.paths import check_utf8
from workers.data.folders import find_files
from workers.models.layouts import find_layout

PICKLED = (".pt", ".pth", ".bin", ".ckpt")
# Keys of the state dict in files of plain training loops, DeepSpeed and Lightning; FSDP files are
# the state dict itself.
WRAPPERS = ("model", "module", "state_dict")
# Components that torch.compile, FSDP and activation checkpointing add to tensors' names, at any
# depth.
_ADDED = {"_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"}
HASH_NOT_READ = "0" * 16  # hash of a file of which only the shapes are read

_INDEX = ".index.json"  # ending of the name of a list of shards
_SHAPES_ONLY: ContextVar[bool] = ContextVar("shapes_only", default=False)
_NOTES: ContextVar[dict[str, None] | None] = ContextVar("notes", default=None)


class WeightsError(ValueError):
    """A weight file is not usable; the message names the file, the problem and the fix."""


class Tensors(dict[str, Tensor]):
    """The named tensors of a checkpoint."""

    part: str = ""  # which of the file's state dicts they are, and which others it has, if several
    is_renamed: bool = False  # whether the names in the file differ


@contextmanager
def shapes_only() -> Iterator[None]:
    """While the block runs, checkpoints load as tensors on the meta device, with shape and dtype
    but no values.

    Code that loads a model then checks only its files, names and shapes, in milliseconds and
    without memory.
    """
    token = _SHAPES_ONLY.set(True)
    try:
        yield
    finally:
        _SHAPES_ONLY.reset(token)


def is_shapes_only() -> bool:
    """Whether the caller runs inside `shapes_only`."""
    return _SHAPES_ONLY.get()


@contextmanager
def collect_notes() -> Iterator[Collection[str]]:
    """While the block runs, what users should know of weights that were loaded is collected, each
    sentence once.
    """
    notes: dict[str, None] = {}
    token = _NOTES.set(notes)
    try:
        yield notes.keys()
    finally:
        _NOTES.reset(token)


def add_note(text: str) -> None:
    """Tell the user of a file's weights, through `collect_notes`, or as a warning if nobody
    collects.
    """
    notes = _NOTES.get()
    if notes is None:
        warnings.warn(text, stacklevel=2)
    else:
        notes[text] = None


def load_tensors(path: str | Path, landmarks: Collection[str] = ()) -> Tensors:
    """The named tensors of a checkpoint, which is a file or a folder with one. Their values are
    read on access.

    `landmarks` are names of tensors, some of which the checkpoint should have (see
    `without_prefix`).

    Raises:
        WeightsError: the path does not exist, or is damaged, not a weight file, or contains more
            than tensors.
    """
    return without_prefix(_read_tensors(Path(path)), landmarks)


def without_prefix(tensors: Tensors, landmarks: Collection[str]) -> Tensors:
    """The tensors without what training added to their names: wrappers' components, and that part
    of their common prefix that `landmarks` do not have. A prefix of the model's own names stays.
    """
    plain = {
        name: ".".join(part for part in name.split(".") if part not in _ADDED) for name in tensors
    }
    if len(set(plain.values())) < len(plain):  # two tensors would have one name
        plain = {name: name for name in tensors}
    parts = (name.split(".")[:-1] for name in plain.values())
    shared = [
        column[0]
        for column in takewhile(lambda column: len(set(column)) == 1, zip(*parts, strict=False))
    ]
    least = next((count for count, part in enumerate(shared) if part != "module"), len(shared))
    prefixes = [
        "".join(f"{part}." for part in shared[:count]) for count in (least, *range(len(shared) + 1))
    ]
    expected = set(landmarks)
    prefix = max(
        prefixes,
        key=lambda start: sum(name.removeprefix(start) in expected for name in plain.values()),
    )
    found = Tensors((plain[name].removeprefix(prefix), value) for name, value in tensors.items())
    found.part = tensors.part
    found.is_renamed = tensors.is_renamed or found.keys() != tensors.keys()
    return found


def read_part(path: Path) -> str:
    """Which of several state dicts in a file is read, and which others it has; empty if there is
    one.

    Raises:
        WeightsError: see `load_tensors`.
    """
    with shapes_only():
        if path.suffix.lower() not in PICKLED:
            return ""
        return _read_tensors(path).part


def describe_contents(tensors: Mapping[str, Tensor]) -> str:
    """The kind of the tensors' file, by their names, with the fix if this project does not read it,
    and which of its state dicts they are: sentences to append to a message, or "".
    """
    text = ""
    layout = find_layout(tensors)
    if layout is not None:
        text = f". By its names the file is {layout.kind}"
        if layout.fix:
            text += f": {layout.fix}"
    if isinstance(tensors, Tensors) and tensors.part:
        text += f". Of the file, {tensors.part}"
    return text


def _read_tensors(path: Path) -> Tensors:
    """The tensors of a checkpoint under the names in the file."""
    if path.is_dir():
        path = _find_checkpoint(path)
    if not path.exists():
        raise WeightsError(f"{path}: no such file or folder; check the path")
    if path.stat().st_size == 0:
        raise WeightsError(f"{path}: the file is empty; copy or download it again")
    if path.name.lower().endswith(_INDEX):
        return _shards(path)
    if path.suffix.lower() == ".safetensors":
        with _open_safetensors(path) as file:
            tensors = Tensors((name, file.get_tensor(name)) for name in file.keys())  # noqa: SIM118
    elif path.suffix.lower() in PICKLED:
        tensors = _pickled(path)
    else:
        raise WeightsError(
            f"{path}: the ending {path.suffix!r} is not supported; convert it to .safetensors or "
            f"{', '.join(PICKLED)}"
        )
    if is_shapes_only():
        tensors.update({name: value.to("meta") for name, value in tensors.items()})
    return tensors


@contextmanager
def _open_safetensors(path: Path) -> Iterator[Any]:
    """The file, whose tensors are memory-mapped. Checks the header against the file's length."""
    try:
        with safe_open(path, framework="pt") as file:
            yield file
    except (SafetensorError, OSError) as error:
        problem = (
            f"the file is truncated, damaged, or not a safetensors file ({error}); copy or "
            "download it again"
        )
        if "Dtype not understood" in str(error):  # such as F6_E2M3
            problem = (
                f"its weights have a type that torch does not have ({error}); give the original "
                "weights"
            )
        raise WeightsError(f"{path}: {other_format(path) or problem}") from error


def safetensors_metadata(path: Path) -> dict[str, str]:
    """The free metadata of a safetensors file's header.

    Raises:
        WeightsError: the file is missing or not a complete safetensors file.
    """
    if not path.is_file():
        raise WeightsError(f"{path}: no such file; check the path")
    with _open_safetensors(path) as file:
        return dict(file.metadata() or {})


def read_json_object(path: Path) -> dict[str, Any]:
    """The JSON object of a file such as config.json.

    Raises:
        WeightsError: the file is missing or not a JSON object.
    """
    if not path.is_file():
        raise WeightsError(
            f"{path}: no such file; give the folder of a model in Hugging Face's layout"
        )
    try:
        content = parse_json(path.read_text("utf-8"))
    except ValueError as error:
        raise WeightsError(f"{path}: not JSON ({error}); download it again") from error
    if not isinstance(content, dict):
        raise WeightsError(f"{path}: not a JSON object; download it again")
    return content


def weight_files(path: str | Path) -> list[Path]:
    """The files of which `content_hash` makes its hash. Raises the same errors."""
    path = Path(path)
    if not path.exists():
        raise WeightsError(f"{path}: no such file or folder; check the path")
    if path.is_dir():
        try:
            entries = find_files(path).entries
        except ValueError as error:
            raise WeightsError(str(error)) from error
        return [path / name for name, entry in entries.items() if entry.is_file()]
    if path.name.lower().endswith(_INDEX):
        return [path, *(path.parent / name for name in sorted(set(_weight_map(path).values())))]
    return [path]


def content_hash(path: str | Path) -> str:
    """The first 16 hex digits of the SHA-256 of a file, of an index with its shards, or of a
    folder's files.

    The files of a folder are those of `find_files`: links are followed, hidden files are ignored. A
    process reads a file once, unless its size or modification time changes; inside `shapes_only` it
    reads none.

    Raises:
        WeightsError: the path does not exist, an index is damaged, or a folder has a link without a
            target.
    """
    path = Path(path)
    if is_shapes_only() and path.exists():
        return HASH_NOT_READ
    files = weight_files(path)
    if path.is_dir():
        return _files_hash(path, files)
    if path.name.lower().endswith(_INDEX):
        return _files_hash(path.parent, files)
    return _file_hash(path)


def _files_hash(folder: Path, files: Sequence[Path]) -> str:
    for file in files:
        check_utf8(str(file))
        if not file.is_file():
            raise WeightsError(f"{file}: no such file; download it")
    listing = "".join(f"{os.path.relpath(file, folder)}\0{_file_hash(file)}\n" for file in files)
    return hashlib.sha256(listing.encode()).hexdigest()[:16]


def _file_hash(path: Path) -> str:
    status = path.stat()
    return _cached_hash(path.resolve(), status.st_size, status.st_mtime_ns)


@lru_cache(maxsize=256)
def _cached_hash(path: Path, _size: int, _time: int) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:16]


def _find_checkpoint(folder: Path) -> Path:
    """The index of shards, or the only weight file of a folder; safetensors files are preferred to
    pickles.
    """
    for endings in ((".safetensors",), PICKLED):
        visible = sorted(folder.glob("[!.]*"))
        files = [file for file in visible if file.suffix.lower() in endings]
        indices = [
            file
            for file in visible
            if file.name.lower().endswith(tuple(end + _INDEX for end in endings))
        ]
        if len(indices) == 1 or (not indices and len(files) == 1):
            return (indices or files)[0]
        if indices or files:
            break
    found = ", ".join(file.name for file in indices or files) or "none"
    raise WeightsError(
        f"{folder}: a checkpoint folder needs one *{_INDEX}, or one weight file (.safetensors, "
        f"{', '.join(PICKLED)}); found {found}. Give the path of the file itself"
    )


def _shards(index: Path) -> Tensors:
    """The tensors of all shards. Checks that every shard exists, is complete, and contains its
    tensors.
    """
    files = _weight_map(index)
    shards = sorted(set(files.values()))
    if outside := [file for file in shards if Path(file).name != file]:
        raise WeightsError(
            f"{index}: shards must be in the folder of the index; {outside[0]!r} is not"
        )
    if missing := [file for file in shards if not (index.parent / file).is_file()]:
        raise WeightsError(
            f"{index}: {len(missing)} of {len(shards)} shards missing: {preview(missing)}; download"
        )
    held = {file: _read_tensors(index.parent / file) for file in shards}
    if absent := [name for name, file in files.items() if name not in held[file]]:
        raise WeightsError(
            f"{index}: the shards lack {preview(absent)}, which the index lists; download both "
            "again"
        )
    if unlisted := sorted({name for tensors in held.values() for name in tensors} - files.keys()):
        raise WeightsError(
            f"{index}: lacks {preview(unlisted)}, which the shards hold; download the index again"
        )
    return Tensors((name, held[file][name]) for name, file in files.items())


def _weight_map(index: Path) -> dict[str, str]:
    """Tensor name -> name of its shard, as an index lists them."""
    weight_map = read_json_object(index).get("weight_map")
    if not isinstance(weight_map, dict):
        raise WeightsError(
            f"{index}: not an index of shards (JSON with `weight_map`); download it again"
        )
    return {str(name): str(file) for name, file in weight_map.items()}


def _pickled(path: Path) -> Tensors:
    try:
        # Training scripts store their arguments with the weights, as an argparse.Namespace of plain
        # values.
        with torch.serialization.safe_globals([argparse.Namespace]):
            loaded: Any = torch.load(
                path, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(path)
            )
    except Exception as error:  # a damaged pickle stream can raise any exception
        raise WeightsError(f"{path}: {_diagnose_pickle(path, error)}") from error
    keys = []
    others = []
    while isinstance(loaded, dict) and (key := _state_dict_key(path, loaded)) is not None:
        keys.append(str(key))
        others += [
            str(name) for name, value in loaded.items() if name != key and _has_tensors(value)
        ]
        loaded = loaded[key]
    if not isinstance(loaded, dict) or not loaded:
        raise WeightsError(
            f"{path}: contains a {type(loaded).__name__}, not named tensors; give a state dict"
        )
    if wrong := [str(name) for name, value in loaded.items() if not isinstance(value, Tensor)]:
        raise WeightsError(
            f"{path}: {preview(wrong)}: not a tensor; the weights must be the whole file, or under "
            f"one of the keys {', '.join(WRAPPERS)}"
        )
    for name, value in loaded.items():
        if problem := _describe_unusable(value):
            raise WeightsError(f"{path}: {name} {problem}")
    tensors = Tensors((str(name), value.detach()) for name, value in loaded.items())
    if others:
        tensors.part = (
            f"`{'.'.join(keys)}` is read; it also holds {', '.join(f'`{name}`' for name in others)}"
        )
    return tensors


def _describe_unusable(tensor: Tensor) -> str:
    """Why a tensor of a file is no array of numbers, and the fix; empty if it is one."""
    if tensor.is_nested or tensor.layout != torch.strided:
        kind = str(tensor.layout).removeprefix("torch.")
        if tensor.is_nested:
            kind = "nested"
        return f"is a {kind} tensor; save it as a dense one (`tensor.to_dense()`)"
    if tensor.is_quantized:
        return f"is quantised ({tensor.dtype}); give the original weights"
    if tensor.is_meta:
        return (
            "has a shape but no values (it was saved from the meta device); save the model with "
            "its weights"
        )
    return ""


def _state_dict_key(path: Path, loaded: dict[Any, Any]) -> Any:
    """The key of the state dict in a file's content: one of `WRAPPERS`, or else the only one with
    tensors; None if the content itself has tensors.

    Raises:
        WeightsError: several have tensors, and none of them is one of `WRAPPERS`.
    """
    for wrapper in WRAPPERS:
        if isinstance(loaded.get(wrapper), dict):
            return wrapper
    if any(isinstance(value, Tensor) for value in loaded.values()):
        return None
    found = [name for name, value in loaded.items() if _has_tensors(value)]
    if len(found) > 1:
        raise WeightsError(
            f"{path}: holds several state dicts ({preview([str(name) for name in found])}); save "
            f"one of them alone, or under the key {WRAPPERS[0]}"
        )
    if found:
        return found[0]
    return None


def _has_tensors(value: Any) -> bool:
    """Whether a value is a dict that has a tensor at some depth."""
    return isinstance(value, dict) and any(
        isinstance(v, Tensor) or _has_tensors(v) for v in value.values()
    )


def preview(names: Sequence[str], limit: int = 4) -> str:
    """The first names, and how many more there are."""
    listed = ", ".join(names[:limit])
    if len(names) <= limit:
        return listed
    return f"{listed} and {len(names) - limit} more"


def other_format(path: Path) -> str | None:
    """What a file is, by its first bytes, if it is not a weight file, and the fix; else None."""
    with path.open("rb") as file:
        head = file.read(64)
    if head.startswith(b"version https://git-lfs"):
        return (
            "this is a git-lfs pointer, not the file it points to; run `git lfs pull`, or download "
            "the file itself"
        )
    if head.lstrip().startswith((b"<!", b"<html", b"<?xml")):
        return "this is a web page, not weights: the download went wrong; download it again"
    return None


def _diagnose_pickle(path: Path, error: Exception) -> str:
    """Why a file of `torch.save` cannot be read, and the fix."""
    if other := other_format(path):
        return other
    if found := re.search(r"GLOBAL ([\w.]+)", str(error)):
        return (
            f"reading the file would run code ({found[1]}), which is refused; save only the "
            "tensors (`torch.save(model.state_dict(), ...)`), or convert it to safetensors"
        )
    if "TorchScript" in str(error):
        return (
            "a TorchScript archive, which is a program; give a file with only the weights "
            "(for FID: pt_inception-2015-12-05-6726825d.pth)"
        )
    return (
        "not a readable PyTorch weight file: damaged, truncated, or of another format; download it "
        "again"
    )
