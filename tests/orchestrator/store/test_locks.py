"""Locks of folders, and in object stores, which have none: one holder at a time, dead holders
replaced.
"""

from __future__ import annotations

import errno
import fcntl
import queue
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from orchestrator.errors import explain
from orchestrator.store import locks
from orchestrator.store.locks import (
    LEASE_S,
    LockError,
    check_lock,
    driver_lock,
    exclusive,
    read_holder,
    waiting_lock,
)
from tests.fakes.object_store import ObjectStore, object_store
from tests.fakes.real_sweeps import ROOT
from tests.fakes.waiting import HANG_S, wait_until
from workers.data.storage import Storage

pytestmark = pytest.mark.slow(seconds=15)
NAME = "driver.lock"


class FakeBucket:
    """Files with the moments of a clock that the test sets. before: called before every action.
    is_down: nothing can be written.
    """

    display_name = "s3://bucket"

    def __init__(self) -> None:
        self.now, self.files = 1000.0, dict[str, tuple[bytes, float]]()
        self.before: Callable[[str], object] = lambda action: None
        self.writing, self.is_down = threading.Lock(), False

    def path(self, name: str) -> Path | None:
        return None

    def write(self, name: str, data: bytes) -> None:
        self.before("write")
        with self.writing:
            if self.is_down:
                raise OSError("no connection")
            self.files[name] = data, self.now

    def read(self, name: str) -> bytes:
        if name not in self.files:
            raise FileNotFoundError(name)
        return self.files[name][0]

    def modified(self, folder: str) -> dict[str, float]:
        self.before("list")
        names = {name.removeprefix(f"{folder}/"): facts[1] for name, facts in self.files.items()}
        return {name: moment for name, moment in names.items() if "/" not in name}

    def names(self, folder: str) -> list[str]:
        return sorted(self.modified(folder))

    def remove(self, name: str) -> None:
        self.before("remove")
        self.files.pop(name, None)


@pytest.fixture
def bucket() -> Any:
    return FakeBucket()


def test_one_process_at_a_time(bucket: Any) -> None:
    with exclusive(bucket, NAME) as first:
        assert (first.acquired, first.holder) == (True, None)
        with exclusive(bucket, NAME) as second, exclusive(bucket, "mlflow.lock") as other:
            assert not second.acquired
            assert second.holder is not None
            assert second.holder.startswith("process ")
            assert other.acquired
        assert len(bucket.files) == 1, "who was refused leaves nothing"
    assert bucket.files == {}
    with exclusive(bucket, NAME) as third:
        assert (third.acquired, third.holder) == (True, None)


@pytest.mark.parametrize("age", [LEASE_S, LEASE_S + 1])
def test_a_claim_that_is_not_renewed_expires(bucket: Any, age: float) -> None:
    bucket.write(f"{NAME}/dead.json", b'{"pid": 7, "host": "there", "since": "noon"}')
    bucket.now += age
    with exclusive(bucket, NAME) as lock:
        assert lock.acquired == (age > LEASE_S)
        assert lock.holder == "process 7 on there, since noon"
        assert (f"{NAME}/dead.json" in bucket.files) == (age <= LEASE_S)


class Turns:
    """Threads of which one acts at a time, until its next action in the bucket or its end. A seed
    says which.
    """

    def __init__(self, bucket: Any, rng: random.Random) -> None:
        self._rng, self._own = rng, threading.local()
        # threads, and whether they go on
        self._stopped: queue.SimpleQueue[tuple[int, bool]] = queue.SimpleQueue()
        self._may_act: list[threading.Semaphore] = []
        bucket.before = lambda action: self.pause()

    def pause(self) -> None:
        """Let another thread act; a thread that renews a claim has no turns."""
        if (number := getattr(self._own, "number", None)) is not None:
            self._stopped.put((number, True))
            self._may_act[number].acquire()

    def run(self, jobs: Sequence[Callable[[], object]]) -> None:
        self._may_act = [threading.Semaphore(0) for _ in jobs]
        for number, job in enumerate(jobs):
            threading.Thread(target=self._work, args=(number, job), daemon=True).start()
        waiting = sorted(self._stopped.get(timeout=HANG_S)[0] for _ in jobs)
        while waiting:
            chosen = self._rng.choice(waiting)
            self._may_act[chosen].release()
            number, goes_on = self._stopped.get(timeout=HANG_S)
            assert number == chosen
            if not goes_on:
                waiting.remove(chosen)

    def _work(self, number: int, job: Callable[[], object]) -> None:
        self._own.number = number
        try:
            self.pause()
            job()
        finally:
            self._stopped.put((number, False))


def test_of_many_that_start_at_once_at_most_one_gets_it(bucket: Any) -> None:
    """Actions of the processes are mixed at random: two that are both in would have to miss each
    other's claim.
    """
    inside, most = list[int](), list[int]()
    turns = Turns(bucket, random.Random(0))

    def run() -> None:
        with exclusive(bucket, NAME) as lock:
            if lock.acquired:
                inside.append(1)
                turns.pause()
                most.append(len(inside))
                inside.pop()

    for _ in range(200):
        turns.run([run] * 4)
    assert set(most) == {1}
    assert 0 < len(most) < 800, "some of them"


def test_a_holder_renews_its_claim_and_notices_that_it_was_taken_over(
    bucket: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(locks, "RENEWAL_S", 0.01)
    with exclusive(bucket, NAME) as lock:
        bucket.now += LEASE_S / 2
        wait_until(lambda: bucket.now in bucket.modified(NAME).values())
        assert not lock.is_lost
        check_lock(bucket, lock)
        with bucket.writing:
            bucket.is_down = True  # for this holder
            bucket.now += 2 * LEASE_S
            bucket.files.clear()  # as the next holder does
        wait_until(lambda: lock.is_lost)
        with pytest.raises(LockError, match="another launch has taken over"):
            check_lock(bucket, lock)


def test_a_file_system_without_locks_is_named_with_the_fix(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lustre may be mounted without them."""
    unsupported = OSError(errno.ENOSYS, "Function not implemented")
    monkeypatch.setattr("fcntl.flock", mock.Mock(side_effect=unsupported))
    with (
        pytest.raises(OSError, match="no locks") as caught,
        exclusive(Storage(str(tmp_path)), NAME),
    ):
        pytest.fail("the lock is not held")
    message = explain(caught.value)
    assert message.startswith(f"{tmp_path / NAME}: ")
    assert "--out" in message


def test_a_launch_waits_for_a_sign_of_life(bucket: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A claim that is renewed meanwhile is that of a running driver; one that is not, of a dead
    one.
    """
    notes: list[str] = []
    claim = f"{NAME}/other.json"
    bucket.write(claim, b'{"pid": 7, "host": "there", "since": "noon"}')

    def sleep(seconds: float) -> None:
        bucket.now += 5.0
        if renewing:
            bucket.write(claim, bucket.read(claim))

    monkeypatch.setattr(locks.time, "sleep", sleep)  # type: ignore[attr-defined]
    renewing = True
    with pytest.raises(LockError, match="process 7 on there"), driver_lock(bucket, notes.append):
        pass
    renewing = False
    with driver_lock(bucket, notes.append) as lock:
        assert lock.holder == "process 7 on there, since noon"
        assert claim not in bucket.files
    assert len(notes) == 2
    assert bucket.files == {}


@pytest.fixture(scope="module")
def server() -> Iterator[ObjectStore]:
    with object_store() as store:
        store.bucket("bucket")
        yield store


HOLDER = """
import sys, time
from orchestrator.store.locks import driver_lock
from workers.data.storage import Storage
with driver_lock(Storage(sys.argv[1])):
    print("held", flush=True)
    time.sleep(100)
"""


def test_two_drivers_and_a_killed_one_in_a_real_store(
    server: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = Storage(server.uri("bucket/sweep"))
    command = [sys.executable, "-c", HOLDER, storage.uri]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        held = read_holder(storage, NAME)
        assert held is not None
        assert held.is_alive
        assert f"process {holder.pid}" in held.name
        monkeypatch.setattr(locks, "_DRIVER_TIMEOUT_S", 0.0)  # for one more look
        with pytest.raises(LockError, match=f"process {holder.pid}"), driver_lock(storage):
            pass
        holder.send_signal(signal.SIGKILL)
    monkeypatch.setattr(locks, "LEASE_S", 2.0)
    monkeypatch.setattr(locks, "_DRIVER_TIMEOUT_S", 20.0)
    with driver_lock(storage) as lock:
        assert lock.holder == held.name
        assert len(storage.names(NAME)) == 1
    assert storage.names(NAME) == []


@pytest.mark.parametrize("left", [b"", b'{"pid": 1, "host": "h", "since": "s"}'])
def test_reading_who_holds_a_lock_refuses_no_launch(
    left: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reader has the lock for a moment, for which the launch waits."""
    storage, waits = Storage(tmp_path), list[float]()
    (tmp_path / NAME).write_bytes(left)
    read_holder(storage, NAME)
    with (tmp_path / NAME).open("rb") as reader:
        fcntl.flock(reader, fcntl.LOCK_SH)  # in the middle of a read

        def sleep(seconds: float) -> None:
            waits.append(seconds)
            if len(waits) == 3:
                fcntl.flock(reader, fcntl.LOCK_UN)

        monkeypatch.setattr(locks.time, "sleep", sleep)  # type: ignore[attr-defined]
        with exclusive(storage, NAME) as lock:
            assert lock.acquired
    assert len(waits) == 3


def test_a_file_system_without_locks_delays_nothing(tmp_path: Path) -> None:
    with (
        mock.patch("fcntl.flock", side_effect=OSError(errno.ENOSYS, "Function not implemented")),
        waiting_lock(tmp_path / "lock"),
    ):
        assert (tmp_path / "lock").exists()
    assert list(tmp_path.iterdir()) == []
    with (
        open(tmp_path / "other", "w") as file,
        mock.patch("fcntl.flock", side_effect=PermissionError),
        pytest.raises(PermissionError),
        waiting_lock(Path(file.name)),
    ):
        raise AssertionError("the block ran")
