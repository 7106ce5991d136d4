"""Small tensors that never change, made once for each engine: its CUDA graphs read them later."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any, ParamSpec, TypeAlias, TypeVar

import torch
from torch import Tensor

_Key = ParamSpec("_Key")
_Made = TypeVar("_Made")

Constants: TypeAlias = dict[tuple[Any, ...], Any]  # what each function made of its arguments
# The constants of every `kept_in` whose block is running, the innermost last. Torch's compiler can
# trace a list.
_owners: list[Constants] = []


@contextmanager
def kept_in(constants: Constants) -> Iterator[None]:
    """In its block, constants are looked up and kept in `constants`. Elsewhere each call makes its
    own.
    """
    _owners.append(constants)
    try:
        yield
    finally:
        _owners.pop()


def constant(make: Callable[_Key, _Made]) -> Callable[_Key, _Made]:
    """Keeps what a function returns, by its positional arguments (see `kept_in`)."""

    @wraps(make)
    def get(*key: _Key.args, **named: _Key.kwargs) -> _Made:
        if not _owners:
            return make(*key, **named)
        constants = _owners[-1]
        if (make, *key) not in constants:
            constants[make, *key] = make(*key, **named)
        found: _Made = constants[make, *key]
        return found

    return get


@constant
def arange(start: int, stop: int, step: int, device: torch.device) -> Tensor:
    """`torch.arange`."""
    return torch.arange(start, stop, step, device=device)


@constant
def identity(size: int, device: torch.device) -> Tensor:
    """A matrix [size, size] that is True on the diagonal."""
    return torch.eye(size, dtype=torch.bool, device=device)
