"""glibc's allocator: memory that was freed stays with the process.

By default a block of more than 32 MiB goes back to the system when it is freed, and the next one is made of new pages,
which the kernel clears when they are first used. The steps of a tree over a large vocabulary make many such tensors.
Other systems' allocators are left as they are.
"""

from __future__ import annotations

import ctypes
import os

_MMAP_MAX, _TRIM_THRESHOLD = -4, -1  # of mallopt(3)
_KEPT_BYTES = (1 << 31) - 1  # at the end of the heap; more goes back to the system
#: For a process to come. One arena: those of other threads give large blocks back as before.
_VARIABLES = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(_KEPT_BYTES), "MALLOC_ARENA_MAX": "1"}


def keep_freed_memory() -> None:
    """Make the main thread of this process keep the memory that it frees, unless the user has set glibc's variables."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if os.name == "posix" else None
    if mallopt is not None and not _user_variables():
        mallopt(_MMAP_MAX, 0)
        mallopt(_TRIM_THRESHOLD, _KEPT_BYTES)


def allocator_environment() -> dict[str, str]:
    """Environment of a process that keeps the memory that it frees, in all threads; the user's if there is one."""
    return _user_variables() or dict(_VARIABLES)


def _user_variables() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name.startswith("MALLOC_")}
