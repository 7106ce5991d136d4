"""Locks of a sweep: one process at a time runs it, and one logs it to MLflow.

In a folder a lock is the system's, which releases it when its process dies; the file says who held
it last. Object stores have no locks. There a lock is a folder of claims: whoever writes a claim,
and then finds the claim of another process, withdraws. Listings of object stores show all that was
written before, so of two processes at least one finds the other. A claim is renewed while its
process lives, and counts as long as the store's clock says that it is fresh.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import platform
import random
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import IO

from orchestrator.store.files import DRIVER_LOCK
from search_spaces.documents import parse_json
from workers.data.files import open_regular
from workers.data.storage import Storage

# for another process that creates something; the slowest take some 20 s
_CREATION_TIMEOUT_S = 300.0
_POLL_INTERVAL_S = 0.05
_ATTEMPTS = 5  # at a file's lock, which `read_holder` has for a moment
_UNSUPPORTED = (errno.ENOSYS, errno.ENOLCK, errno.ENOTSUP)  # of file systems without locks
RENEWAL_S = 8.0  # between two renewals of a claim
LEASE_S = 30.0  # a claim that was not renewed for so long is that of a dead process
_DRIVER_TIMEOUT_S = LEASE_S + RENEWAL_S  # for the claim of a driver that may be dead
# at random: of two processes that refuse each other, one comes first
_DRIVER_INTERVAL_S = (1.0, 3.0)
_JOIN_TIMEOUT_S = 2.0
_UNKNOWN = "an unknown process"
_MAX_FACTS = 4096  # bytes of a lock's file that are read


@dataclass(slots=True)
class Lock:
    """A lock that this process holds, or another one."""

    acquired: bool  # whether this process holds it
    holder: str | None  # the other process that holds it, or that held it last and died
    # in object stores: the other process's claim, and when that was renewed
    renewal: tuple[str, float] | None = None
    # whether another process has taken over, as this one did not renew its claim in time
    is_lost: bool = False


def exclusive(storage: Storage, name: str) -> AbstractContextManager[Lock]:
    """Hold a lock while the block runs, unless another process holds it. Does not wait for it.

    Raises:
        OSError: the storage cannot be written.
    """
    if storage.path(name) is None:
        return _claim(storage, name)
    return _lock_file(storage, name)


class LockError(RuntimeError):
    """Another launch runs the sweep."""


@contextmanager
def driver_lock(
    storage: Storage, note: Callable[[str], object] = lambda text: None
) -> Iterator[Lock]:
    """Hold the lock of a sweep's driver while the block runs; `holder` is who held it and died.

    In object stores a dead driver's claim stays for a while, which is waited for. note: called with
    a sentence then.

    Raises:
        LockError: another launch holds it.
    """
    end = time.monotonic() + _DRIVER_TIMEOUT_S
    waiting = False
    seen: dict[str, float] = {}  # when the claims of other processes were renewed first
    while True:
        with exclusive(storage, DRIVER_LOCK) as lock:
            if lock.acquired:
                yield lock
                return
        claim, renewed = lock.renewal or ("", 0.0)
        if not claim or renewed > seen.setdefault(claim, renewed) or time.monotonic() > end:
            raise LockError(
                f"{storage.display_name}: another launch ({lock.holder or 'just started'}) is "
                "running this sweep; wait until it ends, or stop it"
            )
        if not waiting:
            waiting = True
            note(
                f"{lock.holder} was running this sweep; waiting until it renews its lock, at most "
                f"{LEASE_S:g} s"
            )
        time.sleep(random.uniform(*_DRIVER_INTERVAL_S))


def check_lock(storage: Storage, lock: Lock) -> None:
    """Raise LockError if another launch has taken over."""
    if lock.is_lost:
        raise LockError(
            f"{storage.display_name}: another launch has taken over, because this one did not "
            f"renew its lock for {LEASE_S:g} s"
        )


@dataclass(frozen=True, slots=True)
class Holder:
    """The process that a lock names."""

    name: str
    # Whether it holds the lock now. One that does not has died with it, because a process that
    # releases a lock removes its name.
    is_alive: bool


def read_holder(storage: Storage, name: str) -> Holder | None:
    """The process that holds a lock, or died with it; None if there is none.

    Writes nothing, so the storage may be read-only. In object stores it relies on this machine's
    clock.
    """
    path = storage.path(name)
    if path is None:
        claims = storage.modified(name)
        if not claims:
            return None
        last = max(claims, key=lambda claim: claims[claim])
        return Holder(
            _describe(_read_claim(storage, name, last)) or _UNKNOWN,
            time.time() - claims[last] <= LEASE_S,
        )
    try:
        file = storage.open(name, "rb")
    except FileNotFoundError:
        return None
    assert file is not None
    with file:
        holder = _describe(file.read(_MAX_FACTS))
        if holder is None:
            return None
        return Holder(holder, not _flock(file.fileno(), fcntl.LOCK_SH))


@contextmanager
def waiting_lock(path: Path) -> Iterator[None]:
    """Hold the lock of a file while the block runs; waits for other processes, unless the file
    system has no locks. Leaves no file.

    Raises:
        OSError: the file cannot be written, or another process holds the lock for minutes.
    """
    end = time.monotonic() + _CREATION_TIMEOUT_S
    while True:
        with open_regular(path, "ab+") as file:
            try:
                is_acquired = _flock(file.fileno())
            except OSError as error:
                if error.errno not in _UNSUPPORTED:
                    raise
                is_acquired = True
            if is_acquired and _is_file_at(file.fileno(), path):
                try:
                    yield
                finally:
                    path.unlink(missing_ok=True)
                return
        if time.monotonic() > end:
            raise TimeoutError(errno.ETIMEDOUT, "another process holds this lock", str(path))
        time.sleep(_POLL_INTERVAL_S)


def _is_file_at(descriptor: int, path: Path) -> bool:
    """Whether an open file is still at its path: whoever held its lock before has removed it."""
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False


@contextmanager
def _lock_file(storage: Storage, name: str) -> Iterator[Lock]:
    file = storage.open(name, "ab+")
    assert file is not None
    with file:
        try:
            for _ in range(_ATTEMPTS):
                if acquired := _flock(file.fileno()):
                    break
                time.sleep(_POLL_INTERVAL_S)
        except OSError as error:
            if error.errno not in _UNSUPPORTED:
                raise
            problem = (
                "this file system has no locks; mount it with them, or keep the sweep in another "
                "folder (--out)"
            )
            raise OSError(error.errno, problem, storage.locate(name)) from error
        file.seek(0)
        lock = Lock(acquired, _describe(file.read(_MAX_FACTS)))
        if not acquired:
            yield lock
            return
        _rewrite(file, _own_facts())  # in place: the lock belongs to its inode
        try:
            yield lock
        finally:
            # the store may be full or read-only by now; the lock itself is released
            with suppress(OSError):
                _rewrite(file, b"")


def _rewrite(file: IO[bytes], data: bytes) -> None:
    file.truncate(0)
    file.write(data)
    file.flush()


def _flock(descriptor: int, kind: int = fcntl.LOCK_EX) -> bool:
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


@contextmanager
def _claim(storage: Storage, name: str) -> Iterator[Lock]:
    own = f"{uuid.uuid4().hex}.json"
    facts = _own_facts()
    storage.write(f"{name}/{own}", facts)
    try:
        renewed = storage.modified(name)
        now = renewed.pop(own, None)  # None: others took this process for dead
        fresh = sorted(
            claim for claim, moment in renewed.items() if now is None or now - moment <= LEASE_S
        )
        is_free = now is not None and not fresh
        lock = Lock(is_free, None)
        if fresh:
            lock.renewal = (fresh[0], renewed[fresh[0]])
        if fresh or renewed:
            lock.holder = _describe(_read_claim(storage, name, min(fresh or renewed)))
        if not lock.acquired:
            yield lock
            return
        for claim in renewed:
            storage.remove(f"{name}/{claim}")
        stop = threading.Event()
        renewing = threading.Thread(
            target=_renew, args=(storage, name, own, lock, stop), daemon=True
        )
        renewing.start()
        try:
            yield lock
        finally:
            stop.set()
            renewing.join(_JOIN_TIMEOUT_S)
    finally:
        with suppress(OSError):  # the claim expires
            storage.remove(f"{name}/{own}")


def _renew(storage: Storage, name: str, own: str, lock: Lock, stop: threading.Event) -> None:
    facts = _own_facts()
    while not stop.wait(RENEWAL_S):
        # after an error the next renewal is in time, or other processes have no store either
        with suppress(OSError):
            if own not in storage.names(name):
                lock.is_lost = True
                return
            storage.write(f"{name}/{own}", facts)


def _read_claim(storage: Storage, name: str, claim: str) -> bytes:
    try:
        return storage.read(f"{name}/{claim}")
    except FileNotFoundError:  # released meanwhile
        return b"?"


def _own_facts() -> bytes:
    since = datetime.now(UTC).isoformat(timespec="seconds")
    return json.dumps({"pid": os.getpid(), "host": platform.node(), "since": since}).encode()


def _describe(data: bytes) -> str | None:
    """The process that a lock's file names, None for an empty file. A file that cannot be parsed
    names an unknown one.
    """
    if not data:
        return None
    with suppress(ValueError, TypeError, KeyError):
        facts = parse_json(data)
        return f"process {facts['pid']} on {facts['host']}, since {facts['since']}"
    return _UNKNOWN
