"""Memory: running out of it (recognised, freed, retried with less at once), and sizes for
people.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from typing import TypeVar

import torch

RESERVED_BYTES = 1 << 30  # each process's share of a GPU: CUDA's context and fragmentation

_Item = TypeVar("_Item")
_Output = TypeVar("_Output")


class OutOfMemory(RuntimeError):
    """The device's memory does not hold this many images at once."""


def guard_memory(work: Callable[[], _Output], size: str) -> _Output:
    """The output of `work`. If memory runs out, unused memory is freed and the error says at what
    `size`.

    Raises:
        OutOfMemory: memory ran out.
    """
    try:
        return work()
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        # A MemoryError may have no text.
        problem = str(error).partition("\n")[0] or type(error).__name__
    # Outside of the handler: the error holds the frames that it passed, and they hold the memory.
    free_memory()
    raise OutOfMemory(f"out of memory at {size}: {problem}")


def in_chunks(
    work: Callable[[Sequence[_Item]], _Output], items: Sequence[_Item], size: int
) -> list[_Output]:
    """The outputs of `work` on the items in order, at most `size` at a time.

    If memory runs out, that chunk is retried in halves, as often as needed, and later chunks have
    the size that fitted. The output for an item must not depend on the other items of its chunk.

    Raises:
        OutOfMemory: one item alone does not fit.
    """
    outputs: list[_Output] = []
    start = 0
    while start < len(items):
        chunk = items[start : start + size]
        try:
            outputs.append(guard_memory(lambda chunk=chunk: work(chunk), f"{len(chunk)} images"))  # type: ignore[misc]
            start += len(chunk)
        except OutOfMemory:
            if len(chunk) == 1:
                raise
            size = len(chunk) // 2
    return outputs


def limit_memory(device: torch.device, share: float) -> int | None:
    """Limit this process to a share of a GPU's memory; returns the bytes that tensors may take
    (None: on a CPU).

    A process that shares a GPU would otherwise take the memory that another one needs next. Of each
    share, `RESERVED_BYTES` are for what CUDA itself keeps.
    """
    if device.type != "cuda":
        return None
    total = torch.cuda.get_device_properties(device).total_memory
    if share >= 1:
        return int(total - RESERVED_BYTES)
    limit = max(0, int(total * share - RESERVED_BYTES))
    torch.cuda.set_per_process_memory_fraction(limit / total, device.index)
    return limit


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error says that memory ran out, on a GPU or on the CPU."""
    text = str(error).lower()
    by_text = isinstance(error, RuntimeError) and (
        "out of memory" in text or "can't allocate memory" in text
    )
    return by_text or isinstance(error, (MemoryError, torch.OutOfMemoryError))


def free_memory() -> None:
    """Returns unused memory to the device."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def format_bytes(count: float | None) -> str:
    """A number of bytes in powers of 1024, such as "1.5 GiB"; "unknown" for None."""
    if count is None:
        return "unknown"
    value = float(count)
    units = ["B", "KiB", "MiB", "GiB", "TiB"]
    while value >= 1024 and len(units) > 1:
        value = value / 1024
        units = units[1:]
    if units[0] == "B":
        return f"{value:.0f} B"
    return f"{value:.1f} {units[0]}"
