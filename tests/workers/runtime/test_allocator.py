"""Memory that was freed is used again, without new pages from the system."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

from workers.runtime.process import process_environment

pytestmark = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another allocator")
# Prints the page faults of using a block of 200 MiB for the first time, and of the next nine times.
FAULTS = """
import ctypes, resource, threading
from workers.runtime.process import keep_freed_memory
libc = ctypes.CDLL(None)
libc.malloc.restype, libc.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
libc.free.argtypes = [ctypes.c_void_p]
PR_SET_THP_DISABLE = 41
assert libc.prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0) == 0  # how many huge pages there are depends on the machine

def use():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    block = libc.malloc(200 << 20)
    ctypes.memset(block, 1, 200 << 20)
    libc.free(block)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

def show():
    print(use(), sum(use() for _ in range(9)))

{start}
"""
THREAD = "thread = threading.Thread(target=show); thread.start(); thread.join()"


def allocator_environment() -> dict[str, str]:
    return {
        name: value for name, value in process_environment(1).items() if name.startswith("MALLOC_")
    }


def faults(start: str, **variables: str) -> tuple[int, int]:
    environment = {key: value for key, value in os.environ.items() if not key.startswith("MALLOC_")}
    environment |= {"PYTHONPATH": str(Path(__file__).parents[3])} | variables
    words = [sys.executable, "-c", FAULTS.format(start=start)]
    ran = subprocess.run(words, env=environment, capture_output=True, text=True, check=True)
    first, more = map(int, ran.stdout.split())
    return first, more


@pytest.mark.parametrize(
    ("start", "variables"),
    [("keep_freed_memory(); show()", {}), (THREAD, allocator_environment())],
)
def test_a_large_block_is_used_again(start: str, variables: dict[str, str]) -> None:
    first, more = faults(start, **variables)
    assert more < first / 2


def test_the_users_settings_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    first, more = faults("keep_freed_memory(); show()", MALLOC_ARENA_MAX="2")
    assert more > 5 * first
    monkeypatch.setenv("MALLOC_ARENA_MAX", "2")
    assert allocator_environment() == {"MALLOC_ARENA_MAX": "2"}
