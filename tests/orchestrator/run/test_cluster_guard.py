"""A driver that dies leaves no process with its cluster's mark, whatever its group, session or state."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from orchestrator.run.cluster_guard import MARK, ClusterGuard
from tests.fakes.real_sweeps import ROOT

DRIVER = """
import os, subprocess, sys, time
from orchestrator.run.cluster_guard import ClusterGuard
guard = ClusterGuard()
(guard.folder / "session").mkdir()
marked, sleep = os.environ | guard.mark, ["sleep", "300"]
subprocess.Popen(sleep, env=marked)
subprocess.Popen(sleep, env=marked, start_new_session=True)
subprocess.Popen(["sh", "-c", "(sleep 300 &) ; sleep 0.1"], env=marked).wait()  # the inner one is an orphan
subprocess.Popen(sleep, env=marked).send_signal(19)  # SIGSTOP
subprocess.Popen(["sh", "-c", "while true; do sleep 0.01; done"], env=marked)  # starts others all the time
print(guard.folder, subprocess.Popen(sleep).pid, flush=True)
exec(sys.argv[1])
"""


def marked(folder: str) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get(MARK) == folder and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except psutil.Error:
            continue
    return found


@pytest.mark.parametrize("end", ["time.sleep(300)", "guard.kill(); guard.kill()", "guard.close()", "os.abort()"])
def test_nothing_of_a_cluster_outlives_its_driver(end: str, tmp_path: Path) -> None:
    environment = os.environ | {"RAY_TMPDIR": str(tmp_path), "PYTHONPATH": str(ROOT)}
    driver = subprocess.Popen(
        [sys.executable, "-c", DRIVER, end], env=environment, stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    assert driver.stdout is not None
    folder, unmarked = driver.stdout.readline().split()
    assert Path(folder).parent == tmp_path
    if end.startswith("time"):
        assert len(marked(folder)) >= 5
        guard = next(child for child in psutil.Process(driver.pid).children() if folder in child.cmdline())
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):  # as a scheduler sends them to all
            guard.send_signal(number)
        driver.kill()
    deadline = time.monotonic() + 10
    while (marked(folder) or Path(folder).exists()) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not marked(folder)
    assert not Path(folder).exists()
    assert driver.wait(10) == {"t": -signal.SIGKILL, "o": -signal.SIGABRT}.get(end[0], 0)
    os.kill(int(unmarked), signal.SIGKILL)  # still there


def test_a_signal_does_not_end_a_guard_that_is_still_starting(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    guard = ClusterGuard()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        guard._guard.send_signal(number)
    with pytest.raises(subprocess.TimeoutExpired):
        guard._guard.wait(0.5)
    assert not signal.pthread_sigmask(signal.SIG_BLOCK, ())
    guard.close()


def test_a_guard_that_is_killed_is_not_needed_for_a_clean_end(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    guard = ClusterGuard()
    worker = subprocess.Popen(["sleep", "300"], env=os.environ | guard.mark)
    guard._guard.kill()
    guard.close()
    assert worker.wait(5) == -signal.SIGKILL
    assert not guard.folder.exists()
