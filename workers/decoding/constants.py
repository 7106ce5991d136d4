"""Small tensors that never change, made once for each device: CUDA graphs read them later."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, ParamSpec, TypeVar

import torch
from torch import Tensor

_Key = ParamSpec("_Key")
_Made = TypeVar("_Made")
_tables: list[dict[tuple[Any, ...], Any]] = []


def constant(make: Callable[_Key, _Made]) -> Callable[_Key, _Made]:
    """Keeps what a function returns, by its positional arguments. The last one is the device."""
    table: dict[tuple[Any, ...], _Made] = {}
    _tables.append(table)

    @wraps(make)
    def get(*key: _Key.args, **named: _Key.kwargs) -> _Made:
        if key not in table:
            table[key] = make(*key, **named)
        return table[key]

    return get


def forget_meta_constants() -> None:
    """Drop those on the meta device, so that a dry run counts all that it needs, whatever ran before it."""
    for table in _tables:
        for key in [key for key in table if key[-1].type == "meta"]:
            del table[key]


@constant
def arange(start: int, stop: int, step: int, device: torch.device) -> Tensor:
    """`torch.arange`."""
    return torch.arange(start, stop, step, device=device)


@constant
def identity(size: int, device: torch.device) -> Tensor:
    """[size, size] True on the diagonal."""
    return torch.eye(size, dtype=torch.bool, device=device)
