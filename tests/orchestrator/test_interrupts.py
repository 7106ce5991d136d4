"""Signals that end a command: cleanly, at once, within a time limit. Each command is a real
process.
"""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.fakes.real_sweeps import ROOT
from tests.fakes.waiting import HANG_S, wait_until

COMMAND = """
import signal, sys, time
from unittest import mock
from orchestrator.cli import app
from orchestrator.errors import CommandError
from orchestrator.interrupts import cleaned_up, ending_within

def wait(seconds):
    "In steps: a signal just before a system call does not end it."
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        time.sleep(0.02)

def command():
    clean_end_s, limit_s = map(float, sys.argv[1:])
    with cleaned_up(lambda: print("cleaned up", flush=True)), ending_within(limit_s, "resume with: this"):
        try:
            print("ready", flush=True)
            wait(3600)
        except KeyboardInterrupt:
            print("ending", flush=True)
            wait(clean_end_s)
            raise CommandError("ended cleanly", 130) from None

signal.signal(signal.SIGHUP, signal.SIG_DFL)  # the tests may run below `nohup`
with mock.patch.object(app, "app", command):
    app.main()
"""
INT, TERM, HUP = signal.SIGINT, signal.SIGTERM, signal.SIGHUP


@pytest.mark.parametrize(
    ("clean_end_s", "limit_s", "signals", "code", "printed"),
    [
        (0.0, 3600.0, [INT], 130, "Ended cleanly"),
        (0.0, 3600.0, [TERM], 143, "Ended cleanly"),
        (3600.0, 3600.0, [INT, TERM], 143, "cleaned up"),
        (3600.0, 3600.0, [TERM, INT], 130, "cleaned up"),
        (3600.0, 0.2, [TERM], 143, "cleaned up"),
        (0.0, 3600.0, [HUP], 129, "Ended cleanly"),
        (3600.0, 3600.0, [HUP, HUP, TERM], 143, "cleaned up"),
    ],
)
def test_how_a_command_ends(
    clean_end_s: float,
    limit_s: float,
    signals: Sequence[signal.Signals],
    code: int,
    printed: str,
    tmp_path: Path,
) -> None:
    words = [sys.executable, "-c", COMMAND, str(clean_end_s), str(limit_s)]
    process = subprocess.Popen(
        words, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    for place, number in enumerate(signals):
        process.send_signal(number)
        if place == 0:
            assert process.stdout.readline() == "ending\n"
    out, err = process.communicate(timeout=HANG_S)
    assert process.returncode == code
    assert printed in out + err
    at_once = printed == "cleaned up"
    assert ("Resume with: this" in err) == at_once
    assert ("cleaned up" in out) == at_once


ON_TERMINAL = """
import signal, sys, time
from pathlib import Path
from unittest import mock
from orchestrator.cli import app
from orchestrator.errors import CommandError
from orchestrator.run.progress import event_sink, recorded_end, show_lines
from orchestrator.store.progress import SweepProgress

def command():
    file = Path(sys.argv[1])
    progress = SweepProgress(1, 1, is_upper_bound=False)
    try:
        with recorded_end(event_sink(progress, show_lines(progress), file)):
            print("ready", file=sys.stderr, flush=True)
            while not (is_ignored and file.with_suffix(".gone").exists()):
                time.sleep(0.02)
    except KeyboardInterrupt:
        raise CommandError("ended cleanly", 130) from None
    print("goes on", file=sys.stderr, flush=True)

is_ignored = sys.argv[2] == "ignored"
signal.signal(signal.SIGHUP, signal.SIG_IGN if is_ignored else signal.SIG_DFL)
with mock.patch.object(app, "app", command):
    app.main()
"""


@pytest.mark.parametrize(
    ("handling", "code", "state"), [("default", 129, "interrupted"), ("ignored", 0, "finished")]
)
def test_a_command_whose_terminal_is_closed_records_its_end(
    handling: str, code: int, state: str, tmp_path: Path
) -> None:
    """With SIGHUP ignored, as by `nohup`, it goes on without the terminal."""
    file = tmp_path / "events"
    child, terminal = pty.fork()
    if child == 0:
        os.chdir(ROOT)
        os.execv(sys.executable, [sys.executable, "-c", ON_TERMINAL, str(file), handling])
    shown = b""
    while b"ready\r\n" not in shown:
        shown += os.read(terminal, 1024)
    os.close(terminal)
    file.with_suffix(".gone").touch()
    wait_until(lambda: os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == code
    assert [json.loads(line)["state"] for line in file.read_text().splitlines()] == [state]
