"""A driver that dies leaves no process of its cluster, whatever its group, session, state or
environment.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from orchestrator.cluster.cluster_guard import ClusterGuard
from tests.fakes.real_sweeps import ROOT, ray_folder
from tests.fakes.waiting import HANG_S, wait_until

OVERWRITES = """
import time
words = open("/proc/self/stat").read().rpartition(")")[2].split()
start, end = int(words[47]), int(words[48])  # of the environment
with open("/proc/self/mem", "r+b", buffering=0) as memory:
    memory.seek(start)
    memory.write(b"-" * (end - start - 1))
print("overwritten", flush=True)
time.sleep(300)
"""
# A cluster's processes, and others; prints the folder, and the ids of the guard, of the first and
# of the others.
DRIVER = f"""
import json, os, subprocess, sys, time
from orchestrator.cluster.cluster_guard import ClusterGuard
guard = ClusterGuard()
(guard.folder / "session").mkdir()
log = guard.folder / "session" / "log"
log.touch()
own_log = open(guard.folder / "session" / "driver.log", "w")  # Ray's driver has one while it is connected
marked, sleep = os.environ | guard.mark, ["sleep", "300"]
overwrites = [sys.executable, "-c", {OVERWRITES!r}]

def start(words, **options):
    return subprocess.Popen(words, env=marked, **options)

def orphan(words, **options):
    "Its parent has the mark, and dies first."
    code = "import subprocess, sys; print(subprocess.Popen(sys.argv[1:], stdout=subprocess.DEVNULL).pid)"
    return int(subprocess.check_output([sys.executable, "-c", code, *words], env=marked, **options))

stopped = start(sleep)
stopped.send_signal(19)  # SIGSTOP
cluster = [
    start(sleep).pid,
    start(sleep, start_new_session=True).pid,
    orphan(sleep),
    stopped.pid,
    start(["sh", "-c", "while true; do sleep 0.01; done"]).pid,  # starts others all the time
]
# Overwritten environments: a child of a process with the mark, and an orphan that writes a log, as
# Ray's agents do.
code = "import subprocess, sys; child = subprocess.Popen(sys.argv[1:]); print(child.pid, flush=True); child.wait()"
parent = start([sys.executable, "-c", code, *overwrites], stdout=subprocess.PIPE, text=True)
cluster += [parent.pid, int(parent.stdout.readline())]
assert parent.stdout.readline() == "overwritten\\n"
code = "import subprocess, sys; print(subprocess.Popen(sys.argv[2:], stdout=open(sys.argv[1], 'a')).pid)"
cluster.append(int(subprocess.check_output([sys.executable, "-c", code, str(log), *overwrites], env=marked)))
while log.read_text() != "overwritten\\n":
    time.sleep(0.01)
others = [subprocess.Popen(sleep).pid, subprocess.Popen(["tail", "-f", str(log)], stdout=subprocess.DEVNULL).pid]
print(json.dumps([str(guard.folder), guard._guard.pid, cluster, others]), flush=True)
exec(sys.argv[1])
"""


@pytest.fixture
def folder() -> Iterator[Path]:
    with ray_folder() as made:
        yield made


def is_alive(pid: int) -> bool:
    with suppress(psutil.NoSuchProcess):
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    return False


@pytest.mark.parametrize(
    "end", ["time.sleep(3600)", "guard.kill(); guard.kill()", "guard.close()", "os.abort()"]
)
def test_nothing_of_a_cluster_outlives_its_driver(end: str, folder: Path) -> None:
    environment = os.environ | {"RAY_TMPDIR": str(folder), "PYTHONPATH": str(ROOT)}
    driver = subprocess.Popen(
        [sys.executable, "-c", DRIVER, end],
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert driver.stdout is not None
    made, guard, cluster, others = json.loads(driver.stdout.readline())
    assert Path(made).parent == folder
    if end.startswith("time"):
        assert all(map(is_alive, cluster))
        # as a scheduler sends them to all
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            os.kill(guard, number)
        driver.kill()
    assert driver.wait(HANG_S) == {"t": -signal.SIGKILL, "o": -signal.SIGABRT}.get(end[0], 0)
    wait_until(lambda: not is_alive(guard))
    assert [pid for pid in cluster if is_alive(pid)] == []
    assert not Path(made).exists()
    assert all(map(is_alive, others)), "who only reads its files is not of the cluster"
    for pid in others:
        os.kill(pid, signal.SIGKILL)


def test_a_signal_does_not_end_a_guard_that_is_still_starting(
    monkeypatch: pytest.MonkeyPatch, folder: Path
) -> None:
    monkeypatch.setenv("RAY_TMPDIR", str(folder))
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    guard = ClusterGuard()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        guard._guard.send_signal(number)
    with pytest.raises(subprocess.TimeoutExpired):
        guard._guard.wait(0.5)
    assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == before
    guard.close()


def test_a_guard_that_is_killed_is_not_needed_for_a_clean_end(
    monkeypatch: pytest.MonkeyPatch, folder: Path
) -> None:
    monkeypatch.setenv("RAY_TMPDIR", str(folder))
    guard = ClusterGuard()
    worker = subprocess.Popen(["sleep", "300"], env=os.environ | guard.mark)
    guard._guard.kill()
    guard.close()
    assert worker.wait(HANG_S) == -signal.SIGKILL
    assert not guard.folder.exists()


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("x" * 60, ("67 bytes", "at most 27")),
        ("none", ("no such folder",)),
        ("file", ("no such folder",)),
    ],
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


def test_the_longest_folder_has_room_for_sockets(
    monkeypatch: pytest.MonkeyPatch, folder: Path
) -> None:
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
