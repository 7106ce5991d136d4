"""A driver that dies leaves no process with its cluster's mark, whatever its group, session or state."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from orchestrator.run.cluster_guard import MARK, ClusterGuard
from tests.fakes.real_sweeps import ROOT, ray_folder

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


@pytest.fixture
def folder() -> Iterator[Path]:
    with ray_folder() as made:
        yield made


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
def test_nothing_of_a_cluster_outlives_its_driver(end: str, folder: Path) -> None:
    environment = os.environ | {"RAY_TMPDIR": str(folder), "PYTHONPATH": str(ROOT)}
    driver = subprocess.Popen(
        [sys.executable, "-c", DRIVER, end], env=environment, stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    assert driver.stdout is not None
    made, unmarked = driver.stdout.readline().split()
    assert Path(made).parent == folder
    if end.startswith("time"):
        assert len(marked(made)) >= 5
        guard = next(child for child in psutil.Process(driver.pid).children() if made in child.cmdline())
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):  # as a scheduler sends them to all
            guard.send_signal(number)
        driver.kill()
    deadline = time.monotonic() + 10
    while (marked(made) or Path(made).exists()) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not marked(made)
    assert not Path(made).exists()
    assert driver.wait(10) == {"t": -signal.SIGKILL, "o": -signal.SIGABRT}.get(end[0], 0)
    os.kill(int(unmarked), signal.SIGKILL)  # still there


def test_a_signal_does_not_end_a_guard_that_is_still_starting(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    monkeypatch.setenv("RAY_TMPDIR", str(folder))
    guard = ClusterGuard()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        guard._guard.send_signal(number)
    with pytest.raises(subprocess.TimeoutExpired):
        guard._guard.wait(0.5)
    assert not signal.pthread_sigmask(signal.SIG_BLOCK, ())
    guard.close()


def test_a_guard_that_is_killed_is_not_needed_for_a_clean_end(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    monkeypatch.setenv("RAY_TMPDIR", str(folder))
    guard = ClusterGuard()
    worker = subprocess.Popen(["sleep", "300"], env=os.environ | guard.mark)
    guard._guard.kill()
    guard.close()
    assert worker.wait(5) == -signal.SIGKILL
    assert not guard.folder.exists()


@pytest.mark.parametrize(
    ("name", "parts"),
    [("x" * 60, ("67 bytes", "at most 27")), ("none", ("no such folder",)), ("file", ("no such folder",))],
)
def test_a_folder_that_cannot_hold_sockets_is_named(
    name: str, parts: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, folder: Path
) -> None:
    (folder / "file").touch()
    given = f"/tmp/z/{name}" if len(name) > 20 else str(folder / name)
    monkeypatch.setenv("RAY_TMPDIR", given)
    with pytest.raises(ValueError, match=f"RAY_TMPDIR={given}: ") as raised:
        ClusterGuard()
    for part in parts:
        assert part in str(raised.value)


def test_the_longest_folder_has_room_for_sockets(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """A socket of Ray can be bound there; one byte more is refused."""
    root = folder / ("y" * (27 - len(str(folder)) - 1))
    for path, is_valid in ((root, True), (root.with_name(root.name + "y"), False)):
        path.mkdir()
        monkeypatch.setenv("RAY_TMPDIR", str(path))
        if not is_valid:
            with pytest.raises(ValueError, match="RAY_TMPDIR"):
                ClusterGuard()
            return
        guard = ClusterGuard()
        deep = guard.folder / "ray" / "session_2026-11-25_01-43-58_123456_4194304" / "sockets"
        deep.mkdir(parents=True)
        with socket.socket(socket.AF_UNIX) as made:
            made.bind(str(deep / "plasma_store"))
        guard.close()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_read_only_folder_is_named(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    folder.chmod(0o500)
    monkeypatch.setenv("RAY_TMPDIR", str(folder))
    with pytest.raises(ValueError, match=r"RAY_TMPDIR=.*not writable"):
        ClusterGuard()
    folder.chmod(0o700)
