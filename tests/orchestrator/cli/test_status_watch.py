"""`status --watch` in a pipe and on a terminal, until the launch has ended or the reader interrupts
it.
"""

from __future__ import annotations

import codecs
import json
import os
import pty
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest

from orchestrator.errors import INTERRUPTED
from orchestrator.store.locks import driver_lock
from tests.fakes.command_line import specfrontier
from tests.fakes.synthetic_sweeps import write_sweep
from workers.data.storage import Storage

COMMAND = (sys.executable, "-c", "from orchestrator.cli.app import main; main()", "status")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_sweep(tmp_path / "mine", trials=4, budget=10)
    return tmp_path / "mine"


@contextmanager
def watching(folder: Path, output: int, *options: str) -> Iterator[subprocess.Popen[str]]:
    words, pipe = [*COMMAND, str(folder), "--watch", "0.2", *options], subprocess.PIPE
    with subprocess.Popen(words, stdout=output, stderr=pipe, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def blocks(process: subprocess.Popen[str], count: int) -> list[str]:
    """The lines of a pipe until so many updates have begun."""
    assert process.stdout is not None
    lines: list[str] = []
    while sum(line.startswith("launch ") for line in lines) < count:
        lines.append(process.stdout.readline())
        assert lines[-1], "it has ended"
    return lines


def test_a_pipe_gets_a_block_for_each_update_until_the_launch_ends(folder: Path) -> None:
    with ExitStack() as launch:
        launch.enter_context(driver_lock(Storage(folder)))
        with watching(folder, subprocess.PIPE) as process:
            assert "running" in blocks(process, 3)[-1]
            assert process.poll() is None
            launch.close()
            rest, error = process.communicate()
    assert (process.returncode, error) == (0, "")
    last = rest.rpartition("launch ")[2]
    assert "not running" in last
    assert "4 of 10 finished" in last


def test_an_interrupt_is_no_error(folder: Path) -> None:
    with driver_lock(Storage(folder)), watching(folder, subprocess.PIPE) as process:
        blocks(process, 1)
        process.send_signal(signal.SIGINT)
        _, error = process.communicate()
    assert process.returncode == INTERRUPTED
    assert error.startswith("Interrupted")
    assert "Traceback" not in error


def test_a_terminal_is_updated_in_place(folder: Path) -> None:
    """The last status stays as it is without --watch."""
    master, slave = pty.openpty()
    shown, text = "", codecs.getincrementaldecoder("utf-8")()  # a part may end inside a letter
    with driver_lock(Storage(folder)), watching(folder, slave) as process:
        os.close(slave)
        while shown.count("launch ") < 3:
            shown += text.decode(os.read(master, 65536))
        process.send_signal(signal.SIGINT)
        with suppress(OSError):  # the terminal of a process that has ended
            while part := os.read(master, 65536):
                shown += text.decode(part)
        assert process.wait() == INTERRUPTED
    os.close(master)
    assert "\x1b[1A" in shown
    assert "trials    4 of 10 finished" in shown.rpartition("\x1b[2K")[2]
    assert "\x1b[?25h" in shown, "the cursor is back"


@pytest.mark.parametrize("option", ["--watch", "--watch=0.2"])
def test_a_sweep_that_does_not_run_is_shown_once(folder: Path, option: str) -> None:
    once, watched = specfrontier("status", str(folder)), specfrontier("status", option, str(folder))
    assert (watched.code, watched.out.partition("last event")[0]) == (
        0,
        once.out.partition("last event")[0],
    )
    assert json.loads(specfrontier("status", "--watch", "--json", str(folder)).out)["finished"] == 4


@pytest.mark.parametrize("given", ["0", "-1", "nan"])
def test_the_seconds_are_checked(folder: Path, given: str) -> None:
    assert specfrontier("status", str(folder), "--watch", given).code == 2
