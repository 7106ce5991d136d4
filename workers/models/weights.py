"""Checkpoint tensors into a module by a table of names, all or nothing; and the project's own weight files.

A *name table* is a list of `Row`s. In a template `{i}` (any word) stands for one component of a dotted name and `{...}`
for any part of it; what they matched is put into the target's template:

    Row("layers.{i}.attention.wo.weight", "transformer.layers.{i}.attention.wo.weight")
    Row(("{...}.w1.weight", "{...}.w3.weight"), "transformer.{...}.w13.weight")    # two become one
    Row("quantize.codebook_used", None)                                            # known, and not needed

so that a checkpoint of another origin is another table and never another model.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from workers.models.checkpoint_files import WeightsError, load_tensors, reading_shapes, safetensors_metadata, some

__all__ = [
    "Row",
    "WeightsError",
    "content_hash",
    "interleave",
    "load_into",
    "load_tensors",
    "read_config",
    "save",
    "unfilled",
]

M = TypeVar("M", bound=nn.Module)

UNREAD = "0" * 16  # the hash of a file of which only the shapes are read

# Names that only one kind of file has, so that a wrong file can be told by what it is.
KNOWN_FILES = (
    ("tok_embeddings.weight", "an official LlamaGen transformer"),
    ("model.cls_embedding.", "a LlamaGen transformer in Hugging Face naming"),
    ("model.vqmodel.", "a Chameleon model in Hugging Face naming"),
    ("encoder.conv_blocks.", "a VQ tokenizer (LlamaGen's layout)"),
    ("encoder.down.", "a VQGAN tokenizer (taming's layout)"),
    ("encoder.block.0.layer.0.SelfAttention.", "a T5 text encoder"),
    ("Mixed_5b.", "an Inception network"),
    ("visual.transformer.resblocks.", "a CLIP model in open_clip's naming"),
    ("blip.visual_encoder.", "ImageReward"),
    ("classifier.6.", "a VGG network"),
    ("text_model.", "a CLIP model"),
    ("vision_model.", "a CLIP model"),
    ("fc.weight", "an EAGLE drafter"),
    ("model.layers.0.self_attn.", "a decoder in Hugging Face naming"),
)


class Row(NamedTuple):
    """One line of a name table: the checkpoint's name(s), the module's, and how several (or one) become its tensor.

    target None: the tensor is known and not needed. merge gets the sources in their order; by default they are stacked
    along dimension 0.
    """

    source: str | tuple[str, ...]
    target: str | None
    merge: Callable[[Sequence[Tensor]], Tensor] | None = None

    @property
    def sources(self) -> tuple[str, ...]:
        return (self.source,) if isinstance(self.source, str) else self.source


@dataclass(frozen=True, slots=True)
class _Fill:
    """What becomes one tensor of the module: checkpoint names in order (None: not in the checkpoint), and how."""

    names: list[str | None]
    wanted: list[str]
    merge: Callable[[Sequence[Tensor]], Tensor] | None

    @property
    def present(self) -> list[str]:
        return [name for name in self.names if name is not None]


def interleave(weight: Tensor, channels: int) -> Tensor:
    """Rows [heads * channels, ...] in the half-split rotary convention (i turns with i + C/2), as adjacent pairs.

    LLaMA and Chameleon in Hugging Face's layout rotate halves; our transformer rotates neighbours (2i, 2i + 1).
    """
    return weight.reshape(-1, 2, channels // 2, *weight.shape[1:]).transpose(1, 2).reshape(weight.shape)


class _ShapesOnly(TorchFunctionMode):
    """Makes `torch.empty`, with which torch's layers allocate their weights, allocate nothing; and passes over their
    first values, for some of which torch would import its compiler, which takes seconds.
    """

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        given = kwargs or {}
        if getattr(func, "__module__", "") == "torch.nn.init" and given["tensor"].is_meta:
            return given["tensor"]
        return func(*args, **{**given, **({"device": "meta"} if func is torch.empty else {})})


def unfilled(build: Callable[[], M]) -> M:
    """build(), with weights that have a shape but no storage until `load_into` fills them.

    No time is lost on random numbers, and a weight that was forgotten fails loudly at its first use. Computed buffers
    (rotation tables) are real.
    """
    with _ShapesOnly():
        return build()


def load_into(
    module: nn.Module,
    tensors: Mapping[str, Tensor],
    table: Sequence[Row],
    *,
    where: str | Path,
    dtype: torch.dtype = torch.float32,
) -> None:
    """Fill every parameter and persistent buffer of `module`, using every tensor of the checkpoint.

    Parameters that exist keep their dtype and device; those of an `unfilled` module are made on the CPU in `dtype`.

    Under `shapes_only` everything is checked but the values, and what was unfilled stays so.

    Raises:
        WeightsError: tensors that no row knows, parameters that no tensor fills, other shapes, values that are not
            finite. The module is not fit for use then.
    """
    slots = module.state_dict(keep_vars=True)
    fills, unknown = _plan(tensors, table)
    missing = [_named(name, table) for name in slots if name not in fills]
    missing += [w for fill in fills.values() for name, w in zip(fill.names, fill.wanted, strict=True) if name is None]
    extra = unknown + [name for target, fill in fills.items() if target not in slots for name in fill.present]
    if missing or extra:
        raise WeightsError(f"{where}: {_mismatch(missing, extra, tensors)}")
    for target, fill in fills.items():
        slot = slots[target]
        names = " + ".join(fill.present)
        parts = [tensors[name] for name in fill.present]
        value = fill.merge(parts) if fill.merge else parts[0] if len(parts) == 1 else torch.cat(parts)
        if value.shape != slot.shape:
            raise WeightsError(
                f"{where}: {names} has shape {list(value.shape)}, {target} needs {list(slot.shape)}: "
                f"the file is of another size than the one asked for{_origin(tensors)}"
            )
        if slot.is_floating_point() and not value.is_meta and not bool(value.isfinite().all()):
            raise WeightsError(f"{where}: {names} holds NaN or infinite values; the file is damaged")
        _set(module, target, slot, value, dtype)
    left = [name for name, value in [*module.named_parameters(), *module.named_buffers()] if value.is_meta]
    assert not left or reading_shapes(), f"still without storage: {left}"


def _pattern(template: str) -> re.Pattern[str]:
    """The regular expression of a template; {i} becomes a group of that name, {...} the group `rest`."""
    rule = ""
    for part in re.split(r"(\{\w+\}|\{\.\.\.\})", template):
        if part == "{...}":
            rule += "(?P<rest>.+)"
        else:
            rule += f"(?P<{part[1:-1]}>[^.]+)" if part.startswith("{") else re.escape(part)
    return re.compile(rule)


def _fit(template: str, match: re.Match[str]) -> str:
    return re.sub(r"\{(\w+|\.\.\.)\}", lambda slot: match["rest" if slot[1] == "..." else slot[1]], template)


def _plan(tensors: Mapping[str, Tensor], table: Sequence[Row]) -> tuple[dict[str, _Fill], list[str]]:
    """What fills which name of the module, and the tensors without a row. The first row that matches counts."""
    patterns = [(row, place, _pattern(source)) for row in table for place, source in enumerate(row.sources)]
    fills: dict[str, _Fill] = {}
    unknown = []
    for name in tensors:
        found = next(((row, place, match) for row, place, rule in patterns if (match := rule.fullmatch(name))), None)
        if found is None:
            unknown.append(name)
            continue
        row, place, match = found
        if row.target is None:
            continue
        wanted = [_fit(source, match) for source in row.sources]
        fill = fills.setdefault(_fit(row.target, match), _Fill([None] * len(wanted), wanted, row.merge))
        if fill.names[place] is None:
            fill.names[place] = name
        else:  # the place is taken: two tensors claim the same parameter
            unknown.append(name)
    return fills, unknown


def _named(target: str, table: Sequence[Row]) -> str:
    """A name of the module's, with the checkpoint's own in brackets where that differs."""
    for row in table:
        if row.target is not None and (match := _pattern(row.target).fullmatch(target)):
            sources = " + ".join(_fit(source, match) for source in row.sources)
            return target if sources == target else f"{target} ({sources})"
    return target


def _mismatch(missing: list[str], extra: list[str], tensors: Mapping[str, Tensor]) -> str:
    said = []
    if missing:
        said.append(f"missing weights ({len(missing)}): {some(missing)}")
    if extra:
        said.append(f"tensors without a place in this model ({len(extra)}): {some(extra)}")
    return f"{'; '.join(said)}{_origin(tensors)}. Give a file of the family and size asked for"


def _origin(tensors: Mapping[str, Tensor]) -> str:
    """What the file looks like, judged by its names."""
    what = next((words for start, words in KNOWN_FILES if any(name.startswith(start) for name in tensors)), None)
    return f". By its names the file is {what}" if what else ""


def _set(module: nn.Module, name: str, slot: Tensor, value: Tensor, dtype: torch.dtype) -> None:
    if not slot.is_meta:
        with torch.no_grad():
            slot.copy_(slot if value.is_meta else value)  # of a value that is a mere shape there is nothing to copy
        return
    kind = dtype if slot.is_floating_point() else slot.dtype
    made = torch.empty(slot.shape, dtype=kind, device=value.device).copy_(value)
    path, _, leaf = name.rpartition(".")
    owner = module.get_submodule(path)
    is_parameter = isinstance(slot, nn.Parameter)
    setattr(owner, leaf, nn.Parameter(made, requires_grad=slot.requires_grad) if is_parameter else made)


def save(
    path: str | Path,
    weights: nn.Module | Mapping[str, Tensor],
    config: Mapping[str, Any],
    *,
    dtype: torch.dtype = torch.float16,
) -> None:
    """Write safetensors with `config` as JSON in the header (key `config`); floating tensors are stored as `dtype`.

    The file appears whole or not at all.

    Raises:
        WeightsError: a value is not finite, or becomes so in `dtype`.
    """
    path = Path(path)
    named = weights.state_dict() if isinstance(weights, nn.Module) else weights
    stored = {}
    for name, tensor in named.items():
        value = tensor.detach().to("cpu", dtype if tensor.is_floating_point() else tensor.dtype, copy=True).contiguous()
        if value.is_floating_point() and not bool(value.isfinite().all()):
            raise WeightsError(f"{path}: {name} is not finite as {dtype}; not saved (did training diverge?)")
        stored[name] = value
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        save_file(stored, partial, metadata={"config": json.dumps(config, sort_keys=True)})
        partial.chmod(0o644)  # the writer leaves it readable by its owner alone
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)


def read_config(path: str | Path) -> dict[str, Any]:
    """The config that `save` wrote into a file's header.

    Raises:
        WeightsError: no such file, a damaged one, or one without a config.
    """
    text = safetensors_metadata(Path(path)).get("config")
    try:
        config = json.loads(text) if text is not None else None
    except ValueError as error:
        raise WeightsError(f"{path}: the config in its header is not JSON; did specfrontier write it?") from error
    if not isinstance(config, dict):
        raise WeightsError(f"{path}: no config in its header, so this is not one of specfrontier's own weight files")
    return config


def content_hash(path: str | Path) -> str:
    """The first 16 hex digits of the SHA-256 of a file, or of a folder's files with their names.

    A file is read once in a process, unless its size or time changes; inside `shapes_only`, not at all.

    Raises:
        WeightsError: nothing is there.
    """
    path = Path(path)
    if reading_shapes() and path.exists():
        return UNREAD
    if path.is_dir():
        files = sorted(file for file in path.rglob("*") if file.is_file())
        listing = "".join(f"{file.relative_to(path).as_posix()}\0{content_hash(file)}\n" for file in files)
        return hashlib.sha256(listing.encode()).hexdigest()[:16]
    if not path.exists():
        raise WeightsError(f"{path}: no such file or folder; check the path")
    status = path.stat()
    return _file_hash(path.resolve(), status.st_size, status.st_mtime_ns)


@lru_cache(maxsize=256)
def _file_hash(path: Path, _size: int, _time: int) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:16]
