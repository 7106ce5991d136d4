"""How many threads a process has, and how they wait: as the environment that OpenMP reads, and as
torch has it.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from workers.runtime import process as threads
from workers.runtime.process import cores, free_cores, process_environment, use_threads

SHOW = """
import os
from workers.runtime.process import use_threads
use_threads({count})
import torch
print(torch.get_num_threads(), os.environ["OMP_NUM_THREADS"], os.environ["OMP_WAIT_POLICY"])
use_threads(2)  # torch is there
print(torch.get_num_threads(), os.environ["OMP_NUM_THREADS"], os.environ["OMP_WAIT_POLICY"])
"""


def thread_environment(count: int) -> dict[str, str]:
    return {
        name: value
        for name, value in process_environment(count).items()
        if not name.startswith("MALLOC_")
    }


def run(code: str, **variables: str) -> tuple[list[str], str]:
    """The lines that a new process prints, and what OpenMP says of itself when it is loaded."""
    environment = {
        key: value for key, value in os.environ.items() if not key.startswith(("OMP_", "GOMP_"))
    }
    environment |= {
        "OMP_DISPLAY_ENV": "VERBOSE",
        "PYTHONPATH": str(Path(__file__).parents[3]),
    } | variables
    ran = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    return ran.stdout.splitlines(), ran.stderr


@pytest.mark.parametrize(
    ("count", "variables", "expected"),
    [
        (1, {}, "1 1 PASSIVE"),
        (1, {"OMP_NUM_THREADS": "2", "OMP_WAIT_POLICY": "ACTIVE"}, "1 1 ACTIVE"),
        (None, {"OMP_NUM_THREADS": "1"}, "1 1 PASSIVE"),
    ],
)
def test_openmp_and_torch_have_the_threads(
    count: int | None, variables: dict[str, str], expected: str
) -> None:
    lines, openmp = run(SHOW.format(count=count), **variables)
    assert lines[0] == expected
    _, wanted, policy = expected.split()
    assert lines[1] == f"2 2 {policy}"
    spins = [("GOMP_SPINCOUNT", "6000")] if policy == "PASSIVE" else []
    for name, value in (("OMP_NUM_THREADS", wanted), ("OMP_WAIT_POLICY", policy), *spins):
        assert f"{name} = '{value}'" in openmp, "set before OpenMP was loaded"


def test_spins_that_the_user_has_set_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
    monkeypatch.setenv("GOMP_SPINCOUNT", "123")
    assert thread_environment(1) == {
        "OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE", "GOMP_SPINCOUNT": "123",
    }  # fmt: skip


def machine(
    monkeypatch: pytest.MonkeyPatch, folder: Path, *, count: int, own: int, limit: str, load: str
) -> None:
    """A machine of `count` cores, of which this process may use `own`."""
    for name, text in (("_CPU_LIMIT", limit), ("_LOAD", load)):
        file = folder / name
        if text:
            file.write_text(text + "\n")
        monkeypatch.setattr(threads, name, file)
    monkeypatch.setattr(os, "cpu_count", lambda: count)
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(own)), raising=False)
    monkeypatch.setattr(os, "getloadavg", lambda: (2.4, 0.0, 0.0), raising=False)


@pytest.mark.parametrize(
    ("count", "own", "limit", "load", "expected"),
    [
        (8, 8, "max 100000", "0.00 0.00 0.00 1/90 7", (8, 8)),
        (8, 8, "", "3.20 0.00 0.00 9/90 7", (8, 5)),  # other work
        (8, 8, "", "30.5 0.00 0.00 32/90 7", (8, 1)),  # too much of it
        (8, 8, "", "7.90 0.00 0.00 2/90 7", (8, 7)),  # a command that has just ended
        (8, 8, "", "0.10 0.00 0.00 9/90 7", (8, 8)),  # a moment's work
        (8, 2, "", "3.00 0.00 0.00 4/90 7", (2, 2)),  # the others work elsewhere
        (8, 4, "", "6.00 0.00 0.00 7/90 7", (4, 2)),
        (64, 64, "400000 100000", "32.0 0.00 0.00 40/90 7", (4, 4)),  # a container
        (64, 64, "50000 100000", "0.00 0.00 0.00 1/90 7", (1, 1)),
        (8, 8, "", "", (8, 6)),  # not Linux: the load average alone
    ],
)
def test_free_cores_are_those_that_may_be_used_and_that_nothing_keeps_busy(
    count: int, own: int, limit: str, load: str, expected: tuple[int, int],
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    machine(monkeypatch, tmp_path, count=count, own=own, limit=limit, load=load)
    assert (cores(), free_cores()) == expected


def test_by_default_there_is_a_thread_for_each_free_core(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "free_cores", lambda: 7)
    monkeypatch.setattr(sys, "modules", {})
    monkeypatch.setattr(os, "environ", {})
    use_threads()
    expected = {"OMP_NUM_THREADS": "7", "OMP_WAIT_POLICY": "PASSIVE", "GOMP_SPINCOUNT": "6000"}
    assert os.environ == expected == thread_environment(7)
    os.environ["OMP_NUM_THREADS"] = "4,2"  # for nested loops
    use_threads()
    assert os.environ["OMP_NUM_THREADS"] == "4,2"
