"""A meter of memory and work on the meta device: follows every tensor from allocation to release."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry


@dataclass(frozen=True, slots=True)
class Work:
    """flops: multiplications and additions of matrix products. moved: bytes read and written. kernels: their number."""

    flops: int = 0
    moved: int = 0
    kernels: int = 0

    def __add__(self, other: Work) -> Work:
        return Work(self.flops + other.flops, self.moved + other.moved, self.kernels + other.kernels)


class FusedAttention(TorchFunctionMode):
    """Attention on the meta device as fused kernels compute it: without storing scores.

    Its work: two products of [S, C] and [T, C] for every row and head; each operand is read once.
    """

    def __init__(self) -> None:
        super().__init__()
        self.work = Work()

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        options = kwargs or {}
        if func is not nn.functional.scaled_dot_product_attention or not args[0].is_meta:
            return func(*args, **options)
        query, key, value = args[:3]
        mask = options.get("attn_mask")
        out = query.new_empty(*query.shape[:-1], value.shape[-1])
        flops = 4 * query.numel() * key.shape[-2]
        moved = size_of([query, key, value, out, *([] if mask is None else [mask])])
        self.work += Work(flops, moved, 1)
        return out


class Meter(TorchDispatchMode):
    """Tracks the memory of every tensor allocated inside, and counts the work."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.live = self.peak = 0
        self._counted = Work()
        self._attention = FusedAttention()
        self._tracked: set[int] = set()

    def __enter__(self) -> Self:
        self._attention.__enter__()  # type: ignore[no-untyped-call]
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)  # type: ignore[no-untyped-call]
        self._attention.__exit__(*error)  # type: ignore[no-untyped-call]

    def take_work(self) -> Work:
        """The work since the last call."""
        work = self._counted + self._attention.work
        self._counted = self._attention.work = Work()
        return work

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        options = kwargs or {}
        allocates, mutates = _effects(func)
        result = call_on_meta(func, args, options)
        outputs = [leaf for leaf in _leaves([result]) if isinstance(leaf, Tensor)] if allocates else []
        fresh = [tensor for tensor in outputs if self._track(tensor)]
        if fresh or mutates:
            self._count(func, args, options, result, fresh)
        return result

    def _track(self, tensor: Tensor) -> bool:
        """Count a tensor's storage until its release. Returns whether it is new."""
        storage = tensor.untyped_storage()
        key, size = _address(tensor), storage.nbytes()
        if key in self._tracked:
            return False
        self._tracked.add(key)
        self.live += size
        self.peak = max(self.peak, self.live)
        weakref.finalize(storage, self._release, key, size)
        return True

    def _release(self, key: int, size: int) -> None:
        self._tracked.discard(key)
        self.live -= size

    def _count(self, func: Any, args: Any, kwargs: Any, result: Any, fresh: Sequence[Tensor]) -> None:
        counted = flop_registry.get(func._overloadpacket)
        inputs = [leaf for leaf in _leaves([*args, *kwargs.values()]) if isinstance(leaf, Tensor)]
        if counted is not None:  # a matrix product reads all of its operands
            flops, moved = int(counted(*args, **kwargs, out_val=result)), size_of([*inputs, *fresh])
        elif fresh:
            flops, moved = 0, 2 * size_of(fresh)
        else:  # in place: twice the smallest operand, which excludes the tensor written to
            flops, moved = 0, 2 * min((size_of([tensor]) for tensor in inputs[1:]), default=0)
        self._counted += Work(flops, moved, 1)


# of results, by the call; None: the call changes its first argument's values, and returns it
_shapes: dict[object, tuple[torch.Size, tuple[int, ...], torch.dtype] | None] = {}


def call_on_meta(func: Any, args: tuple[Any, ...], options: Mapping[str, Any]) -> Any:
    """The function's result. A call like an earlier one only allocates: most meta kernels take a millisecond.

    func: as `__torch_dispatch__` gets it.
    """
    allocates, mutates = _effects(func)
    key = _signature(func, args, options) if allocates or mutates else None
    if key in _shapes:
        shape = _shapes[key]
        return args[0] if shape is None else torch.empty_strided(*shape[:2], dtype=shape[2], device="meta")
    result = func(*args, **options)
    if key is None or not isinstance(result, Tensor) or not result.is_meta:
        return result
    inputs = [leaf for leaf in _leaves([*args, *options.values()]) if isinstance(leaf, Tensor)]
    if mutates and result is args[0] and key == _signature(func, args, options):
        _shapes[key] = None
    elif allocates and _address(result) not in map(_address, inputs):  # some functions may return an argument
        _shapes[key] = (result.shape, result.stride(), result.dtype)
    return result


@cache
def _effects(func: Any) -> tuple[bool, bool]:
    """Whether a function's results are no views of its arguments, and whether it writes to an argument."""
    return all(output.alias_info is None for output in func._schema.returns), func._schema.is_mutable


def _signature(func: Any, args: tuple[Any, ...], options: Mapping[str, Any]) -> object:
    """Everything that the shape of a function's result depends on; None where it may be more than arguments' shapes."""
    parts: list[object] = [func, torch.get_default_dtype(), *options]
    for leaf in _leaves([*args, *options.values()]):
        if isinstance(leaf, Tensor):
            if not leaf.is_meta or not leaf.dim():  # a number's type counts for less than a tensor's
                return None
            parts.append((leaf.shape, leaf.stride(), leaf.dtype))
        else:
            parts.append((type(leaf), leaf))
    return tuple(parts)


def _leaves(values: Iterable[Any]) -> Iterator[Any]:
    """The values, and in place of lists and tuples their entries: operators nest them no deeper."""
    for value in values:
        if isinstance(value, list | tuple):
            yield from value
        else:
            yield value


def _address(tensor: Tensor) -> int:
    """Identifies a tensor's storage."""
    address: int = tensor.untyped_storage()._cdata
    return address


def size_of(tensors: Iterable[Tensor]) -> int:
    """Bytes of the tensors' elements."""
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)
