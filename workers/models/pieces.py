"""The project's own weight files: safetensors whose header holds the config that the module is built from."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from torch import nn

from workers.models.families.conditioners import build_conditioner
from workers.models.transformer import Transformer, TransformerConfig
from workers.models.weights import Row, WeightsError, load_into, load_tensors, read_config, unfilled

M = TypeVar("M", bound=nn.Module)


def read_piece(path: Path, what: str, build: Callable[[Mapping[str, Any]], M]) -> M:
    """A module from a weight file whose header holds its config; `what` says what it should be.

    Raises:
        WeightsError: the file is missing, damaged, or not `what`.
    """
    return read_with_config(path, what, build)[0]


def read_with_config(path: Path, what: str, build: Callable[[Mapping[str, Any]], M]) -> tuple[M, dict[str, Any]]:
    """The same, and the header's config.

    Raises:
        WeightsError: the file is missing, damaged, or not `what`.
    """
    config = read_config(path)
    try:
        module = unfilled(lambda: build(config))
    except (KeyError, TypeError) as error:
        raise WeightsError(f"{path}: its header does not describe {what}; is it another piece's file?") from error
    load_into(module, load_tensors(path), [Row("{...}", "{...}")], where=path)
    return module.eval(), config


def build_ar_model(config: Mapping[str, Any]) -> nn.ModuleDict:
    """`transformer` and `conditioner` of an AR model, from {"transformer": its fields, "conditioner": its settings}."""
    body = TransformerConfig(**config["transformer"])
    if not body.vocab_size:
        raise TypeError("no vocabulary")
    conditioner = build_conditioner(config["conditioner"], body.dim)
    return nn.ModuleDict({"transformer": Transformer(body), "conditioner": conditioner})
