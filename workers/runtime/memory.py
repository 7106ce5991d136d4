"""What to do when memory runs out: give back what lies about, and try with half as much at once."""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from typing import TypeVar

import torch

Item = TypeVar("Item")
Made = TypeVar("Made")


class OutOfMemory(RuntimeError):
    """The device's memory does not hold this many images at once."""


def in_chunks(work: Callable[[Sequence[Item]], Made], items: Sequence[Item], size: int) -> list[Made]:
    """What `work` makes of the items, at most `size` at a time and in their order.

    Where memory runs out, the chunk is tried again in halves, and so are those after it. `work` must make of each item
    the same whatever stands beside it.

    Raises:
        OutOfMemory: not even half a chunk fits.
    """
    made: list[Made] = []
    start, halved = 0, False
    while start < len(items):
        some, problem = items[start : start + size], ""
        try:
            made.append(work(some))
            start += len(some)
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            problem = str(error).partition("\n")[0] or type(error).__name__  # a MemoryError may be without words
        if problem:  # outside of the handler, whose error would keep the memory of the frames that it came through
            free_memory()
            if halved or len(some) == 1:
                raise OutOfMemory(f"out of memory at {len(some)} images: {problem}")
            size, halved = len(some) // 2, True
    return made


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error says that memory ran out, on a GPU or on the CPU."""
    text = str(error).lower()
    told = isinstance(error, RuntimeError) and ("out of memory" in text or "can't allocate memory" in text)
    return told or isinstance(error, (MemoryError, torch.OutOfMemoryError))


def free_memory() -> None:
    """Give unused memory back to the device."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
