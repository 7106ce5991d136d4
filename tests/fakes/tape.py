"""A CUDA graph's stand-in on a CPU: it repeats captured operations on the memory that they had at
capture.

As with a CUDA graph, a capture computes nothing, a replay runs no Python of the captured function,
and every tensor keeps its shape and address. So a step that reads a number of the host's, or a
tensor that has been replaced since, gives other results than the same step run eagerly.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from workers.decoding import accept, skipping

Operation = tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any], list[Tensor]]


def without_shortcuts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take away what the engine does on a CPU only: it stops loops early, so shapes depend on
    values.
    """
    for module in (accept, skipping):
        monkeypatch.setattr(module, "all_done", lambda pending: False)
    monkeypatch.setattr(accept, "max_on_host", lambda depth, bound: bound)


def tensors(value: Any) -> list[Tensor]:
    """The tensors of an operation's argument or result."""
    if isinstance(value, Tensor):
        return [value]
    found: list[Tensor] = []
    if isinstance(value, tuple | list):
        for part in value:
            if isinstance(part, Tensor):
                found.append(part)
            elif isinstance(part, tuple | list):
                found += tensors(part)
    return found


@cache
def written_arguments(function: Any) -> list[tuple[int, str]]:
    """Places and names of the arguments that an operation writes."""
    return [
        (place, argument.name)
        for place, argument in enumerate(function._schema.arguments)
        if argument.alias_info is not None and argument.alias_info.is_write
    ]


@cache
def may_be_views(function: Any) -> bool:
    """Whether all results of an operation are views of its arguments where that is possible:
    `reshape`, for one, copies where it must.
    """
    results = [result.alias_info for result in function._schema.returns]
    return bool(results) and all(info is not None and not info.is_write for info in results)


def memory_of(x: Tensor) -> Tensor:
    """The bytes of all memory that x is a view of."""
    return torch.empty(0, dtype=torch.uint8).set_(x.untyped_storage())


class Tape(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Captures the operations that run under it, with their results; a mode while it captures, then
    a graph.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.operations: list[Operation] = []
        # by address: memory that was written, and its contents
        self._before: dict[int, tuple[Tensor, Tensor]] = {}

    def __torch_dispatch__(
        self,
        function: Any,
        types: object,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if function is torch.ops.aten._local_scalar_dense.default:
            raise RuntimeError("the host reads a value while a graph is captured")
        for written in self._written(function, args, kwargs):
            self._remember(written)
        result = function(*args, **kwargs)
        self.operations.append((function, args, kwargs, tensors(result)))
        return result

    @staticmethod
    def _written(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[Tensor]:
        for place, name in written_arguments(function):
            yield from tensors(args[place] if place < len(args) else kwargs.get(name))

    def _remember(self, written: Tensor) -> None:
        storage = written.untyped_storage()
        if storage.data_ptr() not in self._before:
            whole = memory_of(written)
            self._before[storage.data_ptr()] = whole, whole.clone()

    def rewind(self) -> None:
        """Undo what the captured operations have written, and forget what they have computed."""
        inputs: set[int] = set()
        computed: dict[int, Tensor] = {}
        replayed = []
        for function, args, kwargs, result in self.operations:
            read = {x.untyped_storage().data_ptr() for x in tensors((args, tuple(kwargs.values())))}
            inputs |= read.difference(computed)
            places = [x.untyped_storage().data_ptr() for x in result]
            for x, place in zip(result, places, strict=True):
                if place not in inputs and place not in computed:
                    computed[place] = memory_of(x)
            # views stay where they are, as those of a CUDA graph
            if not (may_be_views(function) and read.issuperset(places)):
                replayed.append((function, args, kwargs, result))
        for memory in computed.values():
            memory.fill_(0xFF)  # not a number
        for memory, contents in self._before.values():
            if memory.untyped_storage().data_ptr() in inputs:
                memory.copy_(contents)
        self._before.clear()
        self.operations = replayed

    def replay(self) -> None:
        for function, args, kwargs, captured in self.operations:
            result = function(*args, **kwargs)
            for old, new in zip(captured, tensors(result), strict=True):
                assert old.shape == new.shape
                if old.data_ptr() != new.data_ptr():  # neither a view nor in place
                    old.copy_(new)


def capture(function: Callable[[], Any]) -> tuple[Tape, Any]:
    """See `workers.decoding.graphs.Capture`."""
    tape = Tape()
    with tape:
        result = function()
    tape.rewind()
    return tape, result
