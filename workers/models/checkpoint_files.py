"""Weight files on disk: opened lazily, never unpickled, and diagnosed in words when they cannot be read.

Read are one `.safetensors` file, a folder of shards with its `*.index.json`, and what `torch.save` wrote (`.pt`,
`.pth`, `.bin`, `.ckpt`), the last through `torch.load(weights_only=True)` only.
"""

from __future__ import annotations

import argparse
import json
import re
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

PICKLED = (".pt", ".pth", ".bin", ".ckpt")
WRAPPERS = ("model", "module", "state_dict")  # plain training, DeepSpeed, Lightning; FSDP files are the dict itself


_SHAPES_ONLY: ContextVar[bool] = ContextVar("shapes_only", default=False)
_TYPES = {
    "F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn, "F8_E5M2": torch.float8_e5m2,
    "I64": torch.int64, "I32": torch.int32, "I16": torch.int16, "I8": torch.int8, "U8": torch.uint8, "BOOL": torch.bool,
}  # fmt: skip


class WeightsError(ValueError):
    """A weight file that cannot be used; the message names the file, what is wrong and how to mend it."""


@contextmanager
def shapes_only() -> Iterator[None]:
    """Inside, checkpoints give tensors with shape and type but without numbers (on the meta device).

    So whatever loads a model checks its files, names and shapes, in a moment and in no memory.
    """
    token = _SHAPES_ONLY.set(True)
    try:
        yield
    finally:
        _SHAPES_ONLY.reset(token)


def reading_shapes() -> bool:
    """Whether `shapes_only` is in force."""
    return _SHAPES_ONLY.get()


class SafetensorsFiles(Mapping[str, Tensor]):
    """The tensors of one or more safetensors files by name; each is read from the disk when it is asked for."""

    def __init__(self, files: Mapping[str, Path]) -> None:
        """`files` says which file holds which tensor. The files must have been checked (see `safetensors_names`)."""
        self._files = files
        self._open = {path: safe_open(path, framework="pt") for path in sorted(set(files.values()))}

    def __getitem__(self, name: str) -> Tensor:
        if reading_shapes():
            part = self._open[self._files[name]].get_slice(name)  # type: ignore[no-untyped-call]
            if (kind := part.get_dtype()) not in _TYPES:
                raise WeightsError(
                    f"{self._files[name]}: {name} is of type {kind}, as quantised weights are; give the original ones"
                )
            return torch.empty(part.get_shape(), dtype=_TYPES[kind], device="meta")
        tensor: Tensor = self._open[self._files[name]].get_tensor(name)  # type: ignore[no-untyped-call]
        return tensor

    def __iter__(self) -> Iterator[str]:
        return iter(self._files)

    def __len__(self) -> int:
        return len(self._files)


def load_tensors(path: str | Path) -> Mapping[str, Tensor]:
    """The named tensors of a checkpoint: a file, or a folder of safetensors. Large ones stay on disk until asked for.

    Raises:
        WeightsError: nothing is there, or it is damaged, or it is not a weight file, or it holds more than tensors.
    """
    path = Path(path)
    if path.is_dir():
        return SafetensorsFiles(_folder(path))
    if not path.exists():
        raise WeightsError(f"{path}: no such file or folder; check the path")
    if path.stat().st_size == 0:
        raise WeightsError(f"{path}: the file is empty; copy or download it again")
    if path.name.endswith(".index.json"):
        return SafetensorsFiles(_shards(path))
    if path.suffix == ".safetensors":
        return SafetensorsFiles(dict.fromkeys(safetensors_names(path), path))
    if path.suffix in PICKLED:
        return _pickled(path)
    raise WeightsError(f"{path}: the ending {path.suffix!r} is none of .safetensors, {', '.join(PICKLED)}; convert it")


def safetensors_names(path: Path) -> list[str]:
    """Names of the tensors of one safetensors file, whose header is checked against its length.

    Raises:
        WeightsError: no file, or not a whole safetensors file.
    """
    if not path.is_file():
        raise WeightsError(f"{path}: no such file; check the path")
    try:
        with safe_open(path, framework="pt") as file:
            return list(file.keys())
    except (SafetensorError, OSError) as error:
        raise WeightsError(f"{path}: {_broken_safetensors(path)}") from error


def safetensors_metadata(path: Path) -> dict[str, str]:
    """The free metadata of a safetensors file's header.

    Raises:
        WeightsError: no file, or not a whole safetensors file.
    """
    safetensors_names(path)
    with safe_open(path, framework="pt") as file:
        return dict(file.metadata() or {})


def read_object(path: Path) -> dict[str, Any]:
    """The JSON object of a file that lies beside weights, such as config.json.

    Raises:
        WeightsError: no such file, or not a JSON object.
    """
    if not path.is_file():
        raise WeightsError(f"{path}: no such file; give the folder of a model as Hugging Face lays it out")
    try:
        said = json.loads(path.read_text("utf-8"))
    except ValueError as error:
        raise WeightsError(f"{path}: not JSON ({error}); download it again") from error
    if not isinstance(said, dict):
        raise WeightsError(f"{path}: not a JSON object; download it again")
    return said


def _folder(path: Path) -> dict[str, Path]:
    indices, singles = sorted(path.glob("*.safetensors.index.json")), sorted(path.glob("*.safetensors"))
    if len(indices) == 1:
        return _shards(indices[0])
    if not indices and len(singles) == 1:
        return dict.fromkeys(safetensors_names(singles[0]), singles[0])
    found = [file.name for file in (indices or singles)] or "neither"
    raise WeightsError(
        f"{path}: a checkpoint folder needs one *.safetensors.index.json, or one .safetensors file; found {found}. "
        "Give the path of the file itself"
    )


def _shards(index: Path) -> dict[str, Path]:
    """Tensor name -> shard, after checking that every shard is there, whole, and holds its share."""
    try:
        weight_map = json.loads(index.read_text("utf-8"))["weight_map"]
        files = {str(name): str(file) for name, file in weight_map.items()}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise WeightsError(f"{index}: not an index of shards (JSON with `weight_map`); download it again") from error
    shards = sorted(set(files.values()))
    if outside := [file for file in shards if Path(file).name != file]:
        raise WeightsError(f"{index}: shards must lie beside the index; {outside[0]!r} points elsewhere")
    if missing := [file for file in shards if not (index.parent / file).is_file()]:
        raise WeightsError(f"{index}: {len(missing)} of {len(shards)} shards missing: {some(missing)}; download them")
    held = {file: set(safetensors_names(index.parent / file)) for file in shards}
    if absent := [name for name, file in files.items() if name not in held[file]]:
        raise WeightsError(f"{index}: the shards lack {some(absent)}, which the index lists; download both again")
    if unlisted := sorted({name for names in held.values() for name in names} - files.keys()):
        raise WeightsError(f"{index}: lacks {some(unlisted)}, which the shards hold; download the index again")
    return {name: index.parent / file for name, file in files.items()}


def _pickled(path: Path) -> dict[str, Tensor]:
    zipped = zipfile.is_zipfile(path)
    try:
        # argparse.Namespace: training scripts store their arguments beside the weights; it is a bag of plain values
        with torch.serialization.safe_globals([argparse.Namespace]):
            loaded: Any = torch.load(path, map_location="cpu", weights_only=True, mmap=zipped)
    except Exception as error:  # a damaged pickle stream can raise anything at all
        raise WeightsError(f"{path}: {_broken_pickle(path, zipped, error)}") from error
    for wrapper in WRAPPERS:
        if isinstance(loaded, dict) and isinstance(loaded.get(wrapper), dict):
            loaded = loaded[wrapper]
            break
    if not isinstance(loaded, dict) or not loaded:
        raise WeightsError(f"{path}: holds a {type(loaded).__name__}, no named tensors; give a checkpoint's state dict")
    if strange := [str(name) for name, value in loaded.items() if not isinstance(value, Tensor)]:
        raise WeightsError(
            f"{path}: {some(strange)} {'is' if len(strange) == 1 else 'are'} no tensor; the weights are expected "
            f"under one of the keys {', '.join(WRAPPERS)}, or alone"
        )
    return {str(name): value.to("meta") if reading_shapes() else value for name, value in loaded.items()}


def _foreign(path: Path) -> str | None:
    """What a file that is no weight file looks like, from its first bytes."""
    with path.open("rb") as file:
        head = file.read(64)
    if head.startswith(b"version https://git-lfs"):
        return "this is a git-lfs pointer, not the file it points to; run `git lfs pull`, or download the file itself"
    if head.lstrip().startswith((b"<!", b"<html", b"<?xml")):
        return "this is a web page, not weights: the download went wrong; download it again"
    return None


def _broken_safetensors(path: Path) -> str:
    if foreign := _foreign(path):
        return foreign
    size = path.stat().st_size
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if size > 8 and file.read(1) != b"{":
            return "not a safetensors file, whatever its name says; give it its true ending, or convert it"
        file.seek(8)
        if size < 8 + length:
            return f"the file is truncated within its header ({size} bytes); copy or download it again"
        try:
            header = json.loads(file.read(length))
            ends = [entry["data_offsets"][1] for name, entry in header.items() if name != "__metadata__"]
        except (ValueError, KeyError, TypeError, IndexError):
            return "its header is damaged; copy or download it again"
    expected = 8 + length + max(ends, default=0)
    if size < expected:
        return f"the file is truncated: {size} of the {expected} bytes its header promises; copy or download it again"
    return "its header does not describe its contents; copy or download it again"


def _broken_pickle(path: Path, zipped: bool, error: Exception) -> str:
    if foreign := _foreign(path):
        return foreign
    if found := re.search(r"GLOBAL ([\w.]+)", str(error)):
        return (
            f"the file would run code ({found[1]}) when it is read, which is refused; "
            "save only the tensors (`torch.save(model.state_dict(), ...)`), or convert it to safetensors"
        )
    if "TorchScript" in str(error):
        return (
            "a TorchScript archive, which is a program and not only weights; give a file of the weights alone "
            "(for FID: pt_inception-2015-12-05-6726825d.pth)"
        )
    with path.open("rb") as file:
        head = file.read(4)
    if head == b"PK\x03\x04" and not zipped:
        return f"the file is truncated: it ends after {path.stat().st_size} bytes without its table; download it again"
    return "not a readable PyTorch weight file: damaged, cut short, or something else by this name; download it again"


def some(names: list[str], show: int = 4) -> str:
    """The first few names, and how many more there are."""
    listed = ", ".join(names[:show])
    return listed if len(names) <= show else f"{listed} and {len(names) - show} more"
