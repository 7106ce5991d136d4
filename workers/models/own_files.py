"""The project's own weight files: safetensors whose header holds the config that the module is
built from.
"""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from search_spaces.documents import parse_json
from workers.models.checkpoint_files import (
    PICKLED,
    WeightsError,
    describe_contents,
    load_tensors,
    safetensors_metadata,
)
from workers.models.weights import KeyMapping, load_weights, skip_init

M = TypeVar("M", bound=nn.Module)


def save(
    path: str | Path,
    weights: nn.Module | Mapping[str, Tensor],
    config: Mapping[str, Any],
    *,
    dtype: torch.dtype = torch.float16,
) -> None:
    """Write a weight file. The write is atomic: readers see either the complete file or none.

    Args:
        path: the file.
        weights: a module, or tensors by name.
        config: plain data for the file's header (key `config`, as JSON).
        dtype: type in which floating-point tensors are stored.

    Raises:
        WeightsError: a value is not finite, or overflows in `dtype`.
    """
    path = Path(path)
    tensors = weights.state_dict() if isinstance(weights, nn.Module) else weights
    stored = {}
    for name, tensor in tensors.items():
        kind = dtype if tensor.is_floating_point() else tensor.dtype
        value = tensor.detach().to("cpu", kind, copy=True).contiguous()
        if value.is_floating_point() and not bool(value.isfinite().all()):
            raise WeightsError(
                f"{path}: {name} is not finite as {dtype}; not saved (did training diverge?)"
            )
        stored[name] = value
    partial = path.with_name(f".{path.name}.{uuid.uuid4().hex}.partial")
    try:
        save_file(stored, partial, metadata={"config": json.dumps(config, sort_keys=True)})
        partial.chmod(0o644)  # save_file makes the file readable by its owner only
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)


def read_config(path: str | Path) -> dict[str, Any]:
    """The config that `save` wrote into a file's header.

    Raises:
        WeightsError: the file is missing or damaged, or its header holds no config.
    """
    path = Path(path)
    config = None
    has_header = not path.is_dir() and path.suffix.lower() not in PICKLED
    if has_header and (text := safetensors_metadata(path).get("config")) is not None:
        try:
            config = parse_json(text)
        except ValueError as error:
            raise WeightsError(
                f"{path}: the config in its header is not JSON; did specfrontier write it?"
            ) from error
    if not isinstance(config, dict):
        raise WeightsError(
            f"{path}: no config in its header, so this is not one of specfrontier's own weight "
            f"files{describe_contents(load_tensors(path))}"
        )
    return config


def read_module(
    path: Path, description: str, build: Callable[[Mapping[str, Any]], M]
) -> tuple[M, dict[str, Any]]:
    """A module in fp32 and eval mode, built from its file's header, and the header's config.

    Args:
        path: the file.
        description: what the file should hold, for error messages ("a VQ tokenizer").
        build: makes the module from the config.

    Raises:
        WeightsError: the file is missing, damaged, or holds something else.
    """
    config = read_config(path)
    try:
        module = skip_init(lambda: build(config))
    except (KeyError, TypeError) as error:
        raise WeightsError(
            f"{path}: its header does not describe {description}; give the right file"
            f"{describe_contents(load_tensors(path))}"
        ) from error
    load_weights(
        module, load_tensors(path, module.state_dict()), [KeyMapping("{...}", "{...}")], where=path
    )
    return module.eval(), config
