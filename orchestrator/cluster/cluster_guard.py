"""The guard of a local Ray cluster: it removes the cluster's processes and files, however the
driver ends.

Every process that Ray starts inherits an environment variable, whatever its parent, process group
or session. Ray's agents and workers then overwrite their environment with their title, but they
write their logs to the cluster's folder. The guard kills all processes that have the variable, or a
file of the folder open for writing, and their descendants. The kernel's own means do not reach all
of them: PR_SET_PDEATHSIG works for children but not for grandchildren, and Ray's workers are not in
the driver's process group. Ray's agents check once a minute whether their parent lives, and a
stopped worker checks nothing.

This file is also the guard's program: a process that waits until the driver has ended. It needs
Linux's /proc.
"""

from __future__ import annotations

import os
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

# environment variable of the cluster's processes; its value is the cluster's folder
MARK = "SPECFRONTIER_CLUSTER"
_KILL_TIMEOUT_S = 30.0  # the kernel may take seconds to end a process, such as one with a GPU
_DEAD = ("Z", "X")  # states of processes
# in the guard: schedulers send them to all processes
_BLOCKED = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}
_PARENT_VARIABLE = "RAY_TMPDIR"  # environment variable in which users name the parent folder
# The most bytes of the parent folder's path. A socket's path has at most 107, and Ray adds 80:
# /sf-RANDOM8/ray/session_DATE_TIME_PID/sockets/plasma_store.
_MAX_PARENT_LENGTH = 27


class ClusterGuard:
    """A new folder for a cluster's files, and a process that removes folder and cluster when this
    process dies.

    Only this user can enter the folder. Ray opens its own folders and sockets to every user of the
    machine.
    """

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="sf-", dir=parent_folder()))
        read_end, self._write_end = os.pipe()  # the kernel closes it when this process dies
        before = signal.pthread_sigmask(signal.SIG_BLOCK, _BLOCKED)  # the guard inherits the mask
        try:
            self._guard = subprocess.Popen(
                # quick, without site-packages and PYTHON*
                [sys.executable, "-I", "-S", __file__, str(self.folder)],
                stdin=read_end,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,  # Ctrl-C and the end of a terminal do not reach it
            )
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        os.close(read_end)

    @property
    def mark(self) -> dict[str, str]:
        """The environment variable of the cluster's processes."""
        return {MARK: str(self.folder)}

    def kill(self) -> None:
        """Kill the cluster's processes and remove its folder. Can be repeated, in any thread or
        signal handler.
        """
        kill_cluster(self.folder)

    def close(self) -> None:
        """Kill the cluster's processes, remove its folder, and end the guard."""
        self.kill()
        with suppress(BrokenPipeError):
            # a child that was forked meanwhile may keep the pipe open
            os.write(self._write_end, b".")
        os.close(self._write_end)
        self._guard.wait()


def parent_folder() -> str:
    """The folder for Ray's files: RAY_TMPDIR, else that of temporary files, or /tmp if its path is
    too long.

    Raises:
        ValueError: its path is too long for sockets, or there is no such folder, or it is not
            writable.
    """
    chosen = os.environ.get(_PARENT_VARIABLE)
    folder = tempfile.gettempdir()
    if chosen or len(os.fsencode(folder)) > _MAX_PARENT_LENGTH:
        folder = os.path.abspath(chosen or "/tmp")
    problem = ""
    if (length := len(os.fsencode(folder))) > _MAX_PARENT_LENGTH:
        problem = (
            f"{length} bytes are too long for the paths of Ray's sockets, which leave at most "
            f"{_MAX_PARENT_LENGTH}"
        )
    elif not os.path.isdir(folder):
        problem = "there is no such folder"
    elif not os.access(folder, os.W_OK | os.X_OK):
        problem = "this folder is not writable"
    if problem:
        where = f"{_PARENT_VARIABLE}={chosen}" if chosen else folder
        raise ValueError(f"{where}: {problem}; name another folder by {_PARENT_VARIABLE}")
    return folder


def kill_cluster(folder: Path) -> None:
    """Kill the cluster's processes, those that start meanwhile included, for at most half a minute;
    then remove the folder.
    """
    end = time.monotonic() + _KILL_TIMEOUT_S
    while (found := _processes(folder)) and time.monotonic() < end:
        for pid in found:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.02)
    shutil.rmtree(folder, ignore_errors=True)


def _processes(folder: Path) -> set[int]:
    """Ids of the cluster's processes: those with the folder's mark, those that write to its files,
    and descendants of both. Dead ones have neither environment nor files.

    Neither this process nor its parent is one: they are the driver, which writes to Ray's logs
    while it is connected, and its guard. The driver's other children stay too.
    """
    children: defaultdict[int, list[int]] = defaultdict(list)
    found: set[int] = set()
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            pid = int(process.name)
            state, parent = (
                (process / "stat").read_text(errors="replace").rpartition(")")[2].split()[:2]
            )
            if state not in _DEAD:
                children[int(parent)].append(pid)
            if _has_mark(process, folder) or _writes_to(process, folder):
                found.add(pid)
    found -= {os.getpid(), os.getppid()}
    new = set(found)
    while new:
        new = {child for pid in new for child in children[pid]} - found
        found |= new
    return found - {os.getpid(), os.getppid()}


def _has_mark(process: Path, folder: Path) -> bool:
    return f"{MARK}={folder}".encode() in (process / "environ").read_bytes().split(b"\0")


def _writes_to(process: Path, folder: Path) -> bool:
    """Whether the process has a file of the folder open for writing. Who only reads them, such as
    `tail`, is left.
    """
    return any(target.startswith(f"{folder}/") for target in _written_files(process))


def _written_files(process: Path) -> Iterator[str]:
    for descriptor in (process / "fd").iterdir():
        with suppress(FileNotFoundError):  # closed meanwhile
            # the mode of the link is that of the descriptor
            if descriptor.lstat().st_mode & stat.S_IWUSR:
                yield os.readlink(descriptor)


def _wait_and_kill(folder: Path) -> None:
    """Wait until the driver closes its end of the pipe or dies, then kill the cluster."""
    sys.stdin.buffer.read(1)
    kill_cluster(folder)


if __name__ == "__main__":
    _wait_and_kill(Path(sys.argv[1]))
