"""Loads checkpoint tensors into a module through key mappings; every tensor must have a mapping, or
loading fails.

The names in a checkpoint are described by a list of `KeyMapping`s. In a template `{i}` (any word)
stands for one component of a dotted name and `{...}` for any part of it; the matched text is put
into the target's template:

    KeyMapping("layers.{i}.attention.wo.weight", "transformer.layers.{i}.attention.wo.weight")
    KeyMapping(("{...}.w1.weight", "{...}.w3.weight"), "transformer.{...}.w13.weight")  # two in one
    KeyMapping("quantize.codebook_used", None)  # known and unused

A tensor of the module may have several mappings: the first one with a source in the checkpoint is
used.

A checkpoint with other names needs other mappings, not another model class.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from workers.models.checkpoint_files import (
    WeightsError,
    add_note,
    describe_contents,
    is_shapes_only,
    preview,
)

_FLOATS = (torch.float32, torch.bfloat16, torch.float16)
# Types whose values bfloat16 can hold; torch has few functions for them.
_FLOATS_8 = (torch.float8_e4m3fn, torch.float8_e4m3fnuz, torch.float8_e5m2, torch.float8_e5m2fnuz)
_NO_WEIGHTS = (torch.bool, torch.complex32, torch.complex64, torch.complex128)
# Part of the names of tensors that hold the scales of quantised weights.
_SCALES = re.compile(r"scale|zero_?point|absmax|amax|qzeros|scb", re.IGNORECASE)

M = TypeVar("M", bound=nn.Module)
Merge = Callable[[Sequence[Tensor]], Tensor]


class KeyMapping(NamedTuple):
    """How tensors of a checkpoint become a tensor of the module; names are templates."""

    source: str | tuple[str, ...]  # one or several names in the checkpoint
    target: str | None  # the name in the module; None: the tensor is known and unused
    # Makes one tensor of the sources, in their order; by default they are concatenated along
    # dimension 0.
    merge: Merge | None = None

    @property
    def sources(self) -> tuple[str, ...]:
        """The names in the checkpoint, also if there is only one."""
        if isinstance(self.source, str):
            return (self.source,)
        return self.source


def interleave_rotary(weight: Tensor, channels: int) -> Tensor:
    """Rows [heads * channels, ...] in the half-split rotary convention (i pairs with i + C/2), as
    adjacent pairs.

    LLaMA and Chameleon in Hugging Face's layout rotate halves; this project's transformer rotates
    pairs (2i, 2i + 1).
    """
    return (
        weight.reshape(-1, 2, channels // 2, *weight.shape[1:])
        .transpose(1, 2)
        .reshape(weight.shape)
    )


def hf_layer_mappings(source: str, target: str, channels: int | None = None) -> list[KeyMapping]:
    """The tensors of a decoder layer in Hugging Face's layout, for a `Layer` of this project's
    transformer.

    Args:
        source: the layer's name in the file, such as "model.layers.{l}".
        target: its name in the module.
        channels: channels of a head, if the file rotates halves (see `interleave_rotary`).
    """

    def interleave(weight: Tensor) -> Tensor:
        # a wrong size is reported later, when shapes are compared
        if channels is None or weight.shape[0] % channels:
            return weight
        return interleave_rotary(weight, channels)

    def merge_qkv(parts: Sequence[Tensor]) -> Tensor:
        query, key, value = parts
        return torch.cat([interleave(query), interleave(key), value])

    def merge_norm(parts: Sequence[Tensor]) -> Tensor:
        norm, projection = parts  # [rows, C]: a row for each head, or for all heads of a shard
        norm = norm.repeat_interleave(max(1, projection.shape[0] // norm.numel()), dim=0)
        return interleave(norm.flatten()).view(norm.shape)

    projections = tuple(f"{source}.self_attn.{part}_proj.weight" for part in "qkv")
    return [
        KeyMapping(projections, f"{target}.attention.wqkv.weight", merge_qkv),
        KeyMapping(f"{source}.self_attn.o_proj.weight", f"{target}.attention.wo.weight"),
        *(
            KeyMapping(
                (
                    f"{source}.self_attn.{part}_norm.{{kind}}",
                    f"{source}.self_attn.{part}_proj.weight",
                ),
                f"{target}.attention.{part}_norm.{{kind}}",
                merge_norm,
            )
            for part in "qk"
        ),
        KeyMapping(
            (f"{source}.mlp.gate_proj.weight", f"{source}.mlp.up_proj.weight"),
            f"{target}.feed_forward.w13.weight",
        ),
        KeyMapping(f"{source}.mlp.down_proj.weight", f"{target}.feed_forward.w2.weight"),
        KeyMapping(f"{source}.input_layernorm.weight", f"{target}.attention_norm.weight"),
        KeyMapping(f"{source}.post_attention_layernorm.weight", f"{target}.ffn_norm.weight"),
    ]


def check_dtypes(tensors: Mapping[str, Tensor], names: Iterable[str], *, where: str | Path) -> None:
    """Check the types of the tensors with these names, which a model reads as floating-point
    numbers.

    The types of models are read as they are. float64 and 8-bit floats are converted, with a note.
    All others are refused, and 8-bit floats with scales: without them, the values would be wrong.

    Raises:
        WeightsError: names the file, a tensor and its type.
    """
    found = {name: tensors[name].dtype for name in names}
    for name, dtype in found.items():
        if dtype not in (*_FLOATS, *_FLOATS_8, torch.float64):
            kind = "type" if dtype in _NO_WEIGHTS else "quantised type"
            raise WeightsError(f"{where}: {name} has the {kind} {dtype}; give the original weights")
    short = next((name for name, dtype in found.items() if dtype in _FLOATS_8), None)
    scales = [name for name in tensors if name not in found and _SCALES.search(name)]
    if short is not None and scales:
        raise WeightsError(
            f"{where}: {short} has the quantised type {found[short]}, with scales "
            f"({preview(scales)}) that are not read; give the original weights"
        )
    for dtype, count in Counter(found.values()).items():
        if dtype not in _FLOATS:
            if dtype == torch.float64:
                how = "rounded"
            else:
                how = "converted; the file has no scales for them"
            add_note(
                f"{where}: {count} of {len(found)} weights have the type {dtype}, and are {how}"
            )


def with_wide_floats(tensor: Tensor) -> Tensor:
    """A tensor of 8-bit floats in bfloat16, with the same values; others as they are."""
    if tensor.dtype in _FLOATS_8:
        return tensor.bfloat16()
    return tensor


# transformers puts functions of its own in the place of torch's while it initialises a model
_INITIALISATIONS = ("torch.nn.init", "transformers.initialization")


class _SkipInit(TorchFunctionMode):
    """Puts tensors that layers allocate with `torch.empty` on the meta device, and skips their
    initialisation, because parts of it import torch's compiler, which takes seconds.
    """

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        options = kwargs or {}
        if getattr(func, "__module__", "") in _INITIALISATIONS and options["tensor"].is_meta:
            return options["tensor"]
        if func is torch.empty:
            options = {**options, "device": "meta"}
        return func(*args, **options)


def skip_init(build: Callable[[], M]) -> M:
    """build(), with weights that have no storage until `load_weights` sets them.

    This skips the random initialisation, and a weight that was not loaded raises an error at its
    first use. Computed buffers (rotation tables) have values.
    """
    with _SkipInit():
        return build()


def load_weights(
    module: nn.Module,
    tensors: Mapping[str, Tensor],
    mappings: Sequence[KeyMapping],
    *,
    where: str | Path,
    dtype: torch.dtype = torch.float32,
) -> None:
    """Set every parameter and persistent buffer of `module`, using every tensor of the checkpoint.

    Parameters keep their dtype and device; those of a `skip_init` module are created on the CPU in
    `dtype`. Inside `shapes_only` everything is checked except the values, and parameters stay on
    the meta device.

    Raises:
        WeightsError: tensors without a mapping, parameters without a tensor, wrong types (see
            `check_dtypes`) or shapes, or values that are not finite. The module must not be used
            then.
    """
    slots = module.state_dict(keep_vars=True)
    names = set(tensors)
    found = {slot: _find_sources(slot, mappings, names) for slot in slots}
    floating: set[str] = set()
    for slot, (_, sources) in found.items():
        if slots[slot].is_floating_point():
            floating.update(sources)
    check_dtypes(tensors, [name for name in tensors if name in floating], where=where)
    _check_names(tensors, {slot: sources for slot, (_, sources) in found.items()}, mappings, where)
    values = {}
    for target, (merge, sources) in found.items():
        slot = slots[target]
        label = " + ".join(sources)
        value = _merged([with_wide_floats(tensors[name]) for name in sources], merge)
        if value.shape != slot.shape:
            raise WeightsError(
                f"{where}: {label} has shape {list(value.shape)}, {target} needs "
                f"{list(slot.shape)}: the file is of another size than "
                f"requested{describe_contents(tensors)}"
            )
        if value.is_meta and not slot.is_meta:
            continue
        kind = dtype if slot.is_meta and slot.is_floating_point() else slot.dtype
        values[target] = value.to(kind, copy=True, memory_format=torch.contiguous_format)
        has_values = kind.is_floating_point and not value.is_meta
        if has_values and not bool(values[target].isfinite().all()):
            raise WeightsError(f"{where}: {label} {_describe_infinite(value, kind)}")
    created = any(slot.is_meta for slot in slots.values())
    module.load_state_dict(values, strict=False, assign=created)
    unset = [
        name
        for name, value in [*module.named_parameters(), *module.named_buffers()]
        if value.is_meta
    ]
    assert not unset or is_shapes_only(), f"still without storage: {unset}"


def _merged(parts: list[Tensor], merge: Merge | None) -> Tensor:
    """A tensor of the module from its sources; without `merge`, they are concatenated."""
    if merge:
        return merge(parts)
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def _check_names(
    tensors: Mapping[str, Tensor],
    sources_of: Mapping[str, list[str]],
    mappings: Sequence[KeyMapping],
    where: str | Path,
) -> None:
    """Raises WeightsError if the checkpoint lacks a source of the module's tensors, or has a tensor
    that no mapping knows.
    """
    names = set(tensors)
    used: set[str] = set()
    missing: dict[str, None] = {}  # an ordered set
    for slot, sources in sources_of.items():
        used.update(sources)
        missing |= dict.fromkeys(_describe_missing(slot, sources, names))
    unused: list[re.Pattern[str]] = []
    for mapping in mappings:
        if mapping.target is None:
            unused += map(_pattern, mapping.sources)
    extra = [
        name
        for name in tensors
        if name not in used and not any(rule.fullmatch(name) for rule in unused)
    ]
    if missing or extra:
        raise WeightsError(f"{where}: {_mismatch(list(missing), extra, tensors)}")


def source_names(module: nn.Module, mappings: Sequence[KeyMapping]) -> set[str]:
    """The names that a checkpoint may have for the tensors of `module`; see `load_tensors`."""
    names: set[str] = set()
    for slot in module.state_dict():
        for mapping, match in _mappings_to(slot, mappings):
            names.update(_substitute(source, match) for source in mapping.sources)
    return names


def _mappings_to(
    slot: str, mappings: Sequence[KeyMapping]
) -> Iterator[tuple[KeyMapping, re.Match[str]]]:
    """The mappings to a tensor of the module, each with the match of its target's template."""
    for mapping in mappings:
        if mapping.target is not None and (match := _pattern(mapping.target).fullmatch(slot)):
            yield mapping, match


@lru_cache(maxsize=4096)
def _pattern(template: str) -> re.Pattern[str]:
    """The regular expression of a template; {i} becomes a group of that name, {...} the group
    `rest`.
    """
    rule = ""
    for part in re.split(r"(\{\w+\}|\{\.\.\.\})", template):
        if part == "{...}":
            rule += "(?P<rest>.+)"
        elif part.startswith("{"):
            rule += f"(?P<{part[1:-1]}>[^.]+)"
        else:
            rule += re.escape(part)
    return re.compile(rule)


def _substitute(template: str, match: re.Match[str]) -> str:
    """The template with the texts that `_pattern` has matched in another one."""

    def matched(slot: re.Match[str]) -> str:
        if slot[1] == "...":
            return match["rest"]
        return match[slot[1]]

    return re.sub(r"\{(\w+|\.\.\.)\}", matched, template)


def _find_sources(
    slot: str, mappings: Sequence[KeyMapping], names: set[str]
) -> tuple[Merge | None, list[str]]:
    """How a tensor of the module is merged, and from which of a checkpoint's names: by the first
    mapping to it with a source among `names`, else by the first one.
    """
    candidates = [
        (mapping.merge, [_substitute(source, match) for source in mapping.sources])
        for mapping, match in _mappings_to(slot, mappings)
    ]
    for candidate in candidates:
        if not names.isdisjoint(candidate[1]):
            return candidate
    if candidates:
        return candidates[0]
    return None, [slot]


def _describe_missing(slot: str, sources: list[str], names: set[str]) -> list[str]:
    """The sources that are not in `names`; if none is, the module's own name, with the sources in
    parentheses.
    """
    if names.isdisjoint(sources):
        return [slot if sources == [slot] else f"{slot} ({' + '.join(sources)})"]
    return [source for source in sources if source not in names]


def _describe_infinite(value: Tensor, kind: torch.dtype) -> str:
    """Why a tensor is not finite as `kind`, and the fix."""
    if bool(value.isfinite().all()):
        if kind == torch.float16:
            fix = "use dtype bfloat16 or float32"
        else:
            fix = "give weights within its range"
        return f"overflows in {str(kind).removeprefix('torch.')}; {fix}"
    return "holds NaN or infinite values; the file is damaged"


def _mismatch(missing: list[str], extra: list[str], tensors: Mapping[str, Tensor]) -> str:
    problems = []
    if missing:
        problems.append(f"missing weights ({len(missing)}): {preview(missing)}")
    if extra:
        problems.append(f"tensors unknown to this model ({len(extra)}): {preview(extra)}")
    return (
        f"{'; '.join(problems)}{describe_contents(tensors)}. Give a file of the requested family "
        "and size"
    )
