"""What a process computes with: the threads of torch, NumPy and SciPy, and memory that it keeps
when it is freed.

OpenMP reads its environment once, when torch or another library loads it. So commands call
`use_threads` before they import one, and worker processes start with `process_environment`. This
module imports none of them.

Threads wait passively: one that waits for the others of a parallel loop spins for some ten
microseconds, then sleeps. By default it would spin on, and with other work on the machine the
threads that still compute would wait for cores on which others spin. If it slept at once, the many
short loops of a small model would wait for it to wake.

By default glibc gives a block of more than 32 MiB back to the system when it is freed, and the next
one is made of new pages, which the kernel clears when they are first used. The steps of a tree over
a large vocabulary make many such tensors. Other systems' allocators are left as they are.
"""

from __future__ import annotations

import ctypes
import os
import sys
from pathlib import Path

THREADS_VARIABLE = "OMP_NUM_THREADS"
WAIT_POLICY = "OMP_WAIT_POLICY"
SPINS = "GOMP_SPINCOUNT"
# How threads wait. SPINS is read by GNU's OpenMP, which torch brings.
_PASSIVE = {WAIT_POLICY: "PASSIVE", SPINS: "6000"}
_CPU_LIMIT = Path("/sys/fs/cgroup/cpu.max")
_LOAD = Path("/proc/loadavg")

# Parameters of mallopt(3).
_MMAP_MAX = -4
_TRIM_THRESHOLD = -1
# Freed memory that is kept at the end of the heap; more goes back to the system.
_KEPT_BYTES = (1 << 31) - 1
# Environment of child processes. One arena: others would return large blocks to the system.
_VARIABLES = {
    "MALLOC_MMAP_MAX_": "0",
    "MALLOC_TRIM_THRESHOLD_": str(_KEPT_BYTES),
    "MALLOC_ARENA_MAX": "1",
}

_user_threads = os.environ.get(THREADS_VARIABLE)  # the user's, read before a command sets it


def use_threads(count: int | None = None) -> None:
    """Make this process compute with `count` threads; None: as many as the user's OMP_NUM_THREADS
    says, else one for each free core. A wait policy that the user has set stays.
    """
    os.environ.update(_wait_policy())
    if count is None and THREADS_VARIABLE in os.environ:
        return
    count = count or free_cores()
    os.environ[THREADS_VARIABLE] = str(count)
    if "torch" in sys.modules:  # it has read the environment
        sys.modules["torch"].set_num_threads(count)


def prefer_threads(count: int) -> None:
    """Make this process compute with `count` threads, at most one for each core, unless the user's
    OMP_NUM_THREADS says otherwise.
    """
    if _user_threads is None:
        use_threads(min(count, cores()))


def check_working_directory() -> None:
    """Check that the working directory exists: without it MKL ends the process at the first use of
    torch.

    Raises:
        FileNotFoundError: it was deleted.
    """
    try:
        os.getcwd()
    except FileNotFoundError:
        raise FileNotFoundError(
            "the working directory was deleted; change to another folder"
        ) from None


def process_environment(count: int) -> dict[str, str]:
    """Environment of a process that computes with `count` threads, and keeps in all of them the
    memory that it frees. A wait policy and glibc's variables that the user has set stay.
    """
    return {THREADS_VARIABLE: str(count), **_wait_policy(), **(_user_variables() or _VARIABLES)}


def _wait_policy() -> dict[str, str]:
    """How threads wait: as the user has set it, else passively."""
    given = {name: os.environ[name] for name in _PASSIVE if name in os.environ}
    if WAIT_POLICY in given:
        return given
    return {**_PASSIVE, **given}


def free_cores() -> int:
    """The cores that this process may use and that no other work keeps busy; at least 1."""
    return max(1, min(cores(), round((os.cpu_count() or 1) - _busy_cores())))


def cores() -> int:
    """Cores that this process may use, by its affinity and its container's limit; at least 1."""
    if hasattr(os, "sched_getaffinity"):
        count = len(os.sched_getaffinity(0))
    else:
        count = os.cpu_count() or 1
    try:
        quota, period = _CPU_LIMIT.read_text().split()
        return max(1, min(count, int(quota) // int(period)))
    except (OSError, ValueError):  # no such file; or no limit: "max"
        return count


def _busy_cores() -> float:
    """Cores of the machine that other work keeps busy: the load average of the last minute, or the
    number of tasks that run now if it is lower, as just after a long command.
    """
    try:
        average, _, _, running, *_ = _LOAD.read_text().split()
        return min(float(average), int(running.split("/")[0]) - 1)
    except (OSError, ValueError):  # not Linux
        if hasattr(os, "getloadavg"):
            return os.getloadavg()[0]
        return 0.0


def keep_freed_memory() -> None:
    """Make the main thread of this process keep the memory that it frees, unless the user has set
    glibc's variables.
    """
    if os.name != "posix" or _user_variables():
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_MMAP_MAX, 0)
        mallopt(_TRIM_THRESHOLD, _KEPT_BYTES)


def _user_variables() -> dict[str, str]:
    """glibc's variables of memory that the user has set."""
    return {name: value for name, value in os.environ.items() if name.startswith("MALLOC_")}
