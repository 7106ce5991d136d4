"""Storage in an S3-compatible object store: whole files, wrong keys and buckets, a server that goes
away.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import pytest

from tests.fakes.object_store import ObjectStore, object_store
from tests.fakes.real_sweeps import ROOT
from workers.data import storage as storage_module
from workers.data.storage import Storage

pytestmark = pytest.mark.slow(seconds=12)


@pytest.fixture(scope="module")
def server() -> Iterator[ObjectStore]:
    with object_store() as store:
        store.bucket("bucket")
        yield store


def test_files_are_written_listed_moved_and_removed(server: ObjectStore) -> None:
    storage = Storage(server.uri("bucket/a"))
    started = time.time() - 1
    with server.checking_keys():
        storage.check_bucket()
        assert storage.names("shards") == []
        storage.write("shards/one.bin", b"one")
        storage.write("shards/one.bin", b"two" * 1_000_000)
        storage.write("shards/deeper/three.bin", b"")
        assert storage.names("shards") == ["one.bin"]
        assert storage.read("shards/one.bin") == b"two" * 1_000_000
        assert storage.read("shards/deeper/three.bin") == b""
        assert started < storage.modified("shards")["one.bin"] < time.time() + 1
        storage.move("shards/one.bin", "damaged/one.bin")
        assert storage.names("shards") == []
        assert storage.exists("damaged/one.bin")
        for _ in range(2):
            storage.remove("damaged/one.bin")
        assert not storage.exists("damaged/one.bin")
        with pytest.raises(FileNotFoundError, match=r"bucket/a/damaged/one\.bin"):
            storage.read("damaged/one.bin")


DIES_IN_THE_MIDDLE = """
import os, signal, sys
from workers.data.storage import Storage
storage = Storage(sys.argv[1])
stream = storage._files.fs.open_output_stream("bucket/cut/one.bin", compression=None)
stream.write(b"new" * 5_000_000)  # more than one part
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_writer_killed_before_the_end_leaves_the_old_file(server: ObjectStore) -> None:
    """The parts of an upload appear as a file when it is completed, and not before."""
    storage = Storage(server.uri("bucket/cut"))
    storage.write("one.bin", b"old")
    ended = subprocess.run(
        [sys.executable, "-c", DIES_IN_THE_MIDDLE, storage.uri], cwd=ROOT, check=False
    )
    assert ended.returncode == -signal.SIGKILL
    assert server.client().list_multipart_uploads(Bucket="bucket")["Uploads"], (
        "it did get as far as writing"
    )
    assert storage.names() == ["one.bin"]
    assert storage.read("one.bin") == b"old"


def refusals(storage: Storage) -> list[str]:
    found = []
    for act in (
        lambda: storage.write("x.json", b""),
        lambda: storage.exists("x.json"),
        lambda: storage.names("x"),
    ):
        try:
            act()
        except OSError as error:
            found.append(str(error))
    return found


def test_wrong_keys_and_missing_rights_are_said_without_the_keys(server: ObjectStore) -> None:
    reader, secret = server.add_user("reader", "s3:GetObject", "s3:ListBucket")
    cases = {
        server.uri("bucket/a", key="AKIAWRONG"): 3,
        server.uri("bucket/a", secret="hunter22"): 3,
        server.uri("bucket/a", reader, secret): 1,
    }
    with server.checking_keys():
        for uri, count in cases.items():
            messages = refusals(Storage(uri))
            assert len(messages) == count
            for message in messages:
                assert message.startswith("s3://bucket/a/x")
                assert message.endswith("check the keys, and what the bucket's policy allows")
                assert "\n" not in message
                assert not any(
                    word in message
                    for word in ("AKIAWRONG", "hunter22", reader, secret, server.key)
                )


def test_a_bucket_that_does_not_exist_is_refused_before_anything_is_written(
    server: ObjectStore,
) -> None:
    storage = Storage(server.uri("none/a"))
    with pytest.raises(FileNotFoundError, match="no such bucket"):
        storage.check_bucket()
    assert storage.names() == []
    with pytest.raises(OSError, match="create the bucket"):
        storage.write("x.json", b"")
    Storage(server.uri("bucket/not/yet/there")).check_bucket()


def test_a_server_that_comes_back_is_waited_for(server: ObjectStore) -> None:
    storage = Storage(server.uri("bucket/away"))
    storage.write("one.bin", b"one")
    server.stop()
    back = threading.Timer(1.0, server.start)
    back.start()
    try:
        assert storage.read("one.bin") == b"one"
    finally:
        back.join()
    server.stop()
    back = threading.Timer(1.0, server.start)
    back.start()
    try:
        storage.write("two.bin", b"two" * 3_000_000)
    finally:
        back.join()
    assert storage.read("two.bin") == b"two" * 3_000_000


def test_a_server_that_stays_away_ends_the_waiting(
    server: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage, waits = Storage(server.uri("bucket/gone")), list[float]()
    storage.write("one.bin", b"one")
    with monkeypatch.context() as patch:
        clock = iter(range(0, 10_000, 20))
        patch.setattr(storage_module.time, "monotonic", lambda: float(next(clock)))  # type: ignore[attr-defined]
        patch.setattr(storage_module.time, "sleep", waits.append)  # type: ignore[attr-defined]
        attempts: list[str] = []

        def unreachable(fs: object) -> bytes:
            attempts.append("one")
            raise OSError("AWS Error NETWORK_CONNECTION during HeadObject operation: curlCode: 7")

        with pytest.raises(OSError, match=r"bucket/gone/one\.bin.*check that the server runs"):
            storage._call("one.bin", unreachable)
        assert len(attempts) == len(waits) + 1 == 6
        assert waits == [0.5, 1.0, 2.0, 4.0, 8.0]
        with pytest.raises(OSError, match="check that the server runs"):
            storage._call("one.bin", unreachable)
        assert len(attempts) == 7, "the waiting is over: other files are not waited for"
    assert storage.read("one.bin") == b"one"
    with pytest.raises(OSError, match="NO_SUCH_UPLOAD"):
        storage._call("one.bin", refused)


def refused(fs: object) -> None:
    raise OSError("AWS Error NO_SUCH_UPLOAD")
