"""Commands whose standard streams are closed, as by a shell's `>&-`, end as they do with the null
device.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.fakes.synthetic_sweeps import write_sweep
from tests.fakes.waiting import HANG_S

_COMMAND = [sys.executable, "-c", "from orchestrator.cli.app import main; main()"]
# Exits with the numbers of standard descriptors that are the null device, of a process (tens) and
# of its child (ones).
_DESCRIPTORS = """
import os, subprocess, sys
from orchestrator.streams import open_closed_streams
open_closed_streams()
code = "import os, sys; sys.exit([os.readlink(f'/proc/self/fd/{n}') for n in range(3)].count('/dev/null'))"
own = [os.readlink(f"/proc/self/fd/{number}") for number in range(3)].count("/dev/null")
sys.exit(10 * own + subprocess.run([sys.executable, "-c", code]).returncode)
"""


def run_without(redirections: str, *words: str) -> subprocess.CompletedProcess[str]:
    """Run a command with redirections of a POSIX shell."""
    shell = ["sh", "-c", f'exec "$@" {redirections}', "sh"]
    return subprocess.run(
        [*shell, *words], capture_output=True, text=True, timeout=HANG_S, check=False
    )


@pytest.mark.parametrize(
    "words",
    [("pareto", "swept"), ("status", "swept"), ("launch", "quickstart", "--check")],
    ids=lambda words: words[0],
)
def test_a_command_without_its_output_succeeds(
    words: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_sweep(tmp_path / "sweeps" / "swept", 3, failed=())
    monkeypatch.chdir(tmp_path)
    ran = run_without(">&-", *_COMMAND, *words)
    assert (ran.returncode, "Traceback" in ran.stderr) == (0, False), ran.stderr
    if words[0] != "launch":  # it takes seconds
        assert run_without("<&- >&- 2>&-", *_COMMAND, *words).returncode == 0


def test_closed_input_has_no_captions() -> None:
    ran = run_without("<&-", *_COMMAND, "generate", "--captions", "-")
    assert ran.returncode == 2
    assert ran.stderr.splitlines() == ["Error: no captions: standard input is empty"]


@pytest.mark.parametrize(
    ("redirections", "closed"), [("<&-", 1), (">&- 2>&-", 2), ("<&- >&- 2>&-", 3)]
)
def test_closed_descriptors_belong_to_no_other_file_of_the_process_or_its_children(
    redirections: str, closed: int
) -> None:
    ran = run_without(redirections, sys.executable, "-c", _DESCRIPTORS)
    own, of_child = divmod(ran.returncode, 10)
    assert own == of_child >= closed
