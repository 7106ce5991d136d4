"""Storage: whole files or none, whoever is killed; places that are no local folder; nothing secret
in sight.
"""

from __future__ import annotations

import os
import pickle
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock
from urllib.parse import quote

import pytest
from pyarrow import fs

from tests.fakes.waiting import HANG_S
from workers.data import files
from workers.data.files import hidden_name
from workers.data.storage import Storage, StorageError, in_parallel

ROOT = Path(__file__).parents[3]


def places(folder: Path) -> Iterator[Storage]:
    yield Storage(str(folder / "plain"))
    yield Storage("mock:///sweeps/a")
    yield Storage("anything", filesystem=fs.SubTreeFileSystem(str(folder), fs.LocalFileSystem()))
    yield Storage(
        "", filesystem=fs.SubTreeFileSystem("/deep/er", fs.FileSystem.from_uri("mock:///")[0])
    )


@pytest.fixture(params=range(4), ids=["local", "mock", "subtree", "root of a subtree"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Storage:
    number: int = request.param
    return list(places(tmp_path))[number]


def test_what_is_written_is_there(storage: Storage) -> None:
    storage.write("shards/quality-1.parquet", b"one")
    storage.write("shards/quality-1.parquet", b"two")
    storage.write("shards/a/b.json", b"")
    storage.write("sweep.yaml", b"\x00\xff")
    assert storage.read("shards/quality-1.parquet") == b"two"
    assert storage.read("shards/a/b.json") == b""
    assert storage.names("shards") == ["quality-1.parquet"]
    assert storage.names() == ["sweep.yaml"]
    assert storage.exists("shards/a/b.json")


def test_names_that_are_not_utf8_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Results have the storage's path in them. A relative one has that of the working folder."""
    with pytest.raises(ValueError, match=r"'.*/caf\\udce9': not UTF-8; rename it"):
        Storage(tmp_path / "caf\udce9")
    folder = tmp_path / os.fsdecode(b"caf\xe9")
    folder.mkdir()
    monkeypatch.chdir(folder)
    with pytest.raises(ValueError, match=r"caf\\udce9/sweeps': not UTF-8"):
        Storage("sweeps")
    Storage(tmp_path / "café")


def test_what_is_not_there(storage: Storage) -> None:
    assert storage.names("trials") == []
    assert not storage.exists("trials/00001.json")
    with pytest.raises(FileNotFoundError, match=r"trials/00001\.json"):
        storage.read("trials/00001.json")
    storage.write("trials/00001.json", b"{}")
    assert not storage.exists("trials"), "a folder is no file"


def test_a_moved_file_has_one_name(storage: Storage) -> None:
    storage.write("shards/a.parquet", b"one")
    storage.write("damaged/b.parquet", b"earlier")
    storage.move("shards/a.parquet", "damaged/b.parquet")
    assert storage.read("damaged/b.parquet") == b"one"
    assert storage.names("shards") == []
    storage.move("damaged/b.parquet", "other/deeper/c.parquet")
    assert storage.read("other/deeper/c.parquet") == b"one"
    with pytest.raises(FileNotFoundError):
        storage.move("shards/a.parquet", "damaged/b.parquet")


@pytest.mark.parametrize(
    "name",
    ["", "/etc/passwd", "../up", "a/../../up", "a//b", "a/", ".", "a/.hidden", "a\\b", "a\0b"],
)
def test_names_cannot_lead_elsewhere(name: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="cannot be a file's name"):
        Storage(tmp_path).write(name, b"")
    assert list(tmp_path.iterdir()) == []


def test_paths_and_file_uris(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    (tmp_path / "with space").mkdir()
    for given, root in {
        "sweeps/../sweeps/a": tmp_path / "sweeps" / "a",
        "~/sweeps": tmp_path / "home" / "sweeps",
        f"file://{tmp_path}/with%20space": tmp_path / "with space",
        f"file://localhost{tmp_path}/b": tmp_path / "b",
    }.items():
        storage = Storage(given)
        assert storage.path("x/y.json") == root / "x" / "y.json"
        assert storage.uri == storage.display_name == str(root)
    assert Storage("mock:///a").path("x") is None
    for wrong, message in {
        "": "empty",
        "file://elsewhere/a": "names no host",
        "~nobody-here/a": "full path",
    }.items():
        with pytest.raises(ValueError, match=message):
            Storage(wrong)


def test_the_storage_that_holds_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for given, root in {
        "a.parquet": tmp_path,
        "x/a.parquet": tmp_path / "x",
        "file:///y/a.parquet": "/y",
    }.items():
        storage, name = Storage.holding(given)
        assert (storage.display_name, name) == (str(root), "a.parquet")
    storage, name = Storage.holding("s3://KEYID:hunter22@bucket/a/b.parquet?region=x")
    assert (storage.display_name, name) == ("s3://bucket/a?region=x", "b.parquet")
    with pytest.raises(ValueError, match=r"^s3://bucket/a: names no file"):
        Storage.holding("s3://KEYID:hunter22@bucket/a/")


def test_one_storage_serves_other_processes() -> None:
    storage = pickle.loads(pickle.dumps(Storage("/tmp/a")))
    assert storage.uri == "/tmp/a"


WRITER = """
import os, sys
from workers.data.storage import Storage
storage = Storage(sys.argv[1])
print("ready", flush=True)
value = os.urandom(1) * (1 << 24)
while True:
    storage.write("shards/one.bin", value)
"""


def test_a_killed_writer_leaves_nothing_torn(tmp_path: Path) -> None:
    """Killed at several moments of a stream of writes: what is visible is always one whole
    value.
    """
    storage = Storage(tmp_path)
    for delay in (0.0, 0.013, 0.031, 0.052):
        command = [sys.executable, "-c", WRITER, str(tmp_path)]
        with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE) as writer:
            assert writer.stdout is not None
            assert writer.stdout.readline() == b"ready\n"
            time.sleep(delay)
            os.kill(writer.pid, signal.SIGKILL)
        assert storage.names("shards") in ([], ["one.bin"])
        if storage.exists("shards/one.bin"):
            value = storage.read("shards/one.bin")
            assert len(value) == 1 << 24
            assert value == value[:1] * len(value)


DIES_IN_THE_MIDDLE = """
import os, signal, sys
from workers.data.storage import Storage
os.fsync = lambda handle: os.kill(os.getpid(), signal.SIGKILL)
Storage(sys.argv[1]).write("one.bin", b"half")
"""


def test_a_writer_killed_before_the_end_is_not_seen(tmp_path: Path) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", DIES_IN_THE_MIDDLE, str(tmp_path)], cwd=ROOT, check=False
    )
    assert ended.returncode == -signal.SIGKILL
    assert [path.name[:9] for path in tmp_path.iterdir()] == [".one.bin."], (
        "it did get as far as writing"
    )
    storage = Storage(tmp_path)
    assert storage.names() == []
    assert not storage.exists("one.bin")
    assert storage.remove_unfinished(age_s=3600) == 0, "another process may be writing it"
    assert storage.remove_unfinished() == 1
    assert list(tmp_path.iterdir()) == []


def test_only_unfinished_files_of_its_own_are_removed(tmp_path: Path) -> None:
    folder, unfinished = tmp_path / "shards", hidden_name("x.parquet")
    storage = Storage(tmp_path)
    storage.write("shards/x.parquet", b"whole")
    others = [
        ".x.parquet.swp",
        ".nfs0000000000000001",
        f".{32 * 'a'}",
        f"x.{32 * 'a'}",
        f".x.{31 * 'a'}",
        f".x.{32 * 'A'}",
        f".x.{32 * 'a'}.bak",
    ]
    for name in (unfinished, *others):
        (folder / name).write_bytes(b"1")
    (folder / hidden_name("folder")).mkdir()
    link = folder / hidden_name("link")
    link.symlink_to(folder / "x.parquet")
    os.utime(folder / unfinished, (0, 0))
    assert storage.remove_unfinished("shards", age_s=3600) == 1
    assert not (folder / unfinished).exists()
    left = sorted(path.name for path in folder.iterdir())
    assert storage.remove_unfinished("shards") == 0
    assert sorted(path.name for path in folder.iterdir()) == left
    assert set(others) | {"x.parquet", link.name} < set(left)
    assert storage.remove_unfinished("no such folder") == 0


def test_unfinished_files_of_other_filesystems_are_removed(tmp_path: Path) -> None:
    storage = Storage(
        "anything", filesystem=fs.SubTreeFileSystem(str(tmp_path), fs.LocalFileSystem())
    )
    storage.write("shards/x.parquet", b"whole")
    folder = tmp_path / "anything" / "shards"
    for name in (hidden_name("x.parquet"), ".x.parquet.swp"):
        (folder / name).write_bytes(b"1")
    assert storage.remove_unfinished("shards", age_s=3600) == 0
    assert storage.remove_unfinished("shards") == 1
    assert sorted(path.name for path in folder.iterdir()) == [".x.parquet.swp", "x.parquet"]


def test_a_failed_write_keeps_the_old_value(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = Storage(tmp_path)
    storage.write("a", b"old")

    def full(handle: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(StorageError, match="No space"):
        storage.write("a", b"new")
    assert storage.read("a") == b"old"
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


@pytest.mark.parametrize("storage", [0, 2], indirect=True)  # pyarrow's mock is not for threads
def test_writers_of_one_name_do_not_mix(storage: Storage) -> None:
    values = [bytes([65 + i]) * 100_000 for i in range(4)]
    seen: list[bytes] = []

    def write(value: bytes) -> None:
        for _ in range(5):
            storage.write("one", value)
            seen.append(storage.read("one"))

    threads = [threading.Thread(target=write, args=(value,)) for value in values]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(seen) == 20
    assert set(seen) <= set(values)
    assert storage.names() == ["one"]


def test_many_names_are_listed_without_a_look_at_each_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The folder's own entries say what is a file; on a network's file system a look at each takes
    a minute.
    """
    folder = tmp_path / "trials"
    folder.mkdir()
    for number in range(5_000):
        os.close(os.open(folder / f"{number:05d}.json", os.O_CREAT | os.O_WRONLY))
    storage = Storage(tmp_path)
    looks = [mock.Mock(side_effect=getattr(os, name)) for name in ("stat", "lstat", "open")]
    with monkeypatch.context() as patch:
        for name, look in zip(("stat", "lstat", "open"), looks, strict=True):
            patch.setattr(os, name, look)
        names = storage.names("trials")
    assert sum(look.call_count for look in looks) < 100, "of the folder's path alone"
    assert names[:2] == ["00000.json", "00001.json"]
    assert len(names) == 5_000


SECRET = "wJalr%2FXUtnFEMI"


@pytest.mark.parametrize(
    ("uri", "shown"),
    [
        (f"s3://AKIAKEY:{SECRET}@bucket/sweeps/?region=x", "s3://bucket/sweeps?region=x"),
        (
            f"s3://AKIAKEY:{SECRET}@bucket/a?region=eu-1&scheme=http",
            "s3://bucket/a?region=eu-1&scheme=http",
        ),
        (
            f"s3://bucket/a?endpoint_override=localhost:9000&session_token={SECRET}",
            "s3://bucket/a?endpoint_override=localhost:9000",
        ),
    ],
)
def test_credentials_are_not_shown(uri: str, shown: str) -> None:
    try:
        storage = Storage(uri)
    except ValueError as error:  # an option that this pyarrow does not know
        assert "session_token" in uri
        seen = str(error)
        assert seen.startswith(shown)
    else:
        assert storage.display_name == shown
        assert storage.uri == uri, "workers connect with what the user gave"
        seen = repr(storage) + storage.display_name
    assert not any(part in seen for part in (SECRET, "wJalr/XUtnFEMI", "AKIAKEY"))


@pytest.mark.parametrize("scheme", ["mock:///", "s3://", "gs://", "abfs://container@"])
@pytest.mark.parametrize(
    "character", [" ", "#", "%", "é", "\n", "[", "]", "{", "|", "^", "\\", '"', "<", "`", "\u2028"]
)
def test_a_character_that_must_be_quoted_is_named_with_its_quoted_form(
    scheme: str, character: str
) -> None:
    given, quoted = f"{scheme}bucket/a{character}", f"{scheme}bucket/a{quote(character)}"
    for act in (lambda: Storage(given), lambda: Storage.holding(f"{given}/b.parquet")):
        with pytest.raises(ValueError, match="must be quoted") as raised:
            act()
        assert repr(character) in str(raised.value)
        assert quoted in str(raised.value)
        assert "\n" not in str(raised.value)
    if scheme.startswith("mock"):
        storage = Storage(quoted)
        storage.write("b c.parquet", b"1")
        assert storage._root == f"bucket/a{character}"
        found, name = Storage.holding(f"{quoted}/b%20c.parquet")
        assert (found._root, name) == (f"bucket/a{character}", "b c.parquet"), (
            "folders and names are decoded alike"
        )


def test_a_question_mark_in_a_folders_name_is_named() -> None:
    with pytest.raises(ValueError, match=r"'\?' must be quoted.*s3://bucket/what%3F/a"):
        Storage("s3://bucket/what?/a")


@pytest.mark.parametrize(
    ("uri", "parts"),
    [
        ("s3://KEYID:hunter 22@bucket/a", ("a space as %20",)),
        ("s3://KEYID:hunter|22@bucket/a", ("'|'", "%7C", "s3://bucket/a")),
        ("s3://KEYID:hunter%22@bucket/a b", ("' '", "s3://bucket/a%20b")),
        ("s3://KEYID:hunter@22@bucket/a", ("@ as %40",)),
        ("s3://KEYID:hunter/22@bucket/a", ("/ as %2F",)),
        ("s3://KEYID:hunter#22@bucket/a", ("# as %23",)),
        ("s3://KEYID:hunter22@bucket/a#b", ("'#'", "s3://bucket/a%23b")),
        ("abfs://box:hunter|22@account/a", ("'|'", "%7C", "abfs://box@account/a")),
    ],
)
def test_credentials_are_not_in_quoted_forms(uri: str, parts: tuple[str, ...]) -> None:
    with pytest.raises(ValueError, match="URI") as raised:
        Storage(uri)
    for part in parts:
        assert part in str(raised.value)
    for secret in ("KEYID", "hunter", "22@"):
        assert secret not in str(raised.value)


@pytest.mark.parametrize(
    ("given", "good"),
    [
        ("file:///tmp/a#b", "file:///tmp/a%23b"),
        ("file:///tmp/a?b", "file:///tmp/a%3Fb"),
        ("s3:/bucket/a", "s3://bucket/a"),
        ("s3:bucket/a", "s3://bucket/a"),
        (" s3://bucket/a", "s3://bucket/a"),
        ("GS:/bucket/a", "gs://bucket/a"),
    ],
)
def test_what_would_be_another_folder_is_refused(given: str, good: str) -> None:
    with pytest.raises(ValueError, match="URI") as raised:
        Storage(given)
    assert f"write {good}" in str(raised.value)


@pytest.mark.parametrize("scheme", ["s3", "gs"])
def test_a_server_that_does_not_respond_takes_seconds(scheme: str) -> None:
    """A silent server, or none. (pyarrow itself tries for a quarter of an hour.) With keys, as no
    file has any here.
    """
    assert HANG_S < 15 * 60
    start = time.monotonic()
    user = {"s3": "KEYID:hunter22", "gs": "anonymous"}[scheme]
    options = "scheme=http" + ("&region=x" if scheme == "s3" else "")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        # Google's library waits two minutes for a byte
        port = silent.getsockname()[1] if scheme == "s3" else 1
        with pytest.raises(StorageError, match=r"check that the server runs"):
            Storage(
                f"{scheme}://{user}@bucket/a?endpoint_override=127.0.0.1:{port}&{options}"
            ).check_bucket()
    assert time.monotonic() - start < HANG_S


@pytest.mark.parametrize(
    "given",
    [
        "s3://bucket/a?region=r",
        "s3://a%2B:b%2Fc@bucket/x%20y/?region=r&scheme=http&endpoint_override=127.0.0.1:9",
        "s3://key:secret@bucket?region=r&allow_bucket_creation=TRUE&allow_bucket_deletion=1",
        "s3://key:secret@bucket/a?region=r&allow_delayed_open=true&tls_ca_file_path=/ca",
    ],
)
def test_all_that_an_s3_uri_says_reaches_the_filesystem(given: str) -> None:
    connected, path = files.connect(given)
    plain, plain_path = fs.FileSystem.from_uri(given)
    assert path == plain_path
    assert pickle.dumps(connected) == pickle.dumps(plain)


def test_a_scheme_has_no_case() -> None:
    assert Storage("MOCK:///a").uri == "mock:///a"


@pytest.mark.parametrize(
    "uri",
    [
        "nope://AKIAKEY:hunter22@host/a",
        "s3://AKIAKEY:hun/ter22@bucket/a",
        "s3://AKIAKEY:99/hunter22@bucket/a",
    ],
)
def test_credentials_are_not_in_errors(uri: str) -> None:
    with pytest.raises(ValueError, match=r"storage") as raised:
        Storage(uri)
    for part in ("AKIAKEY", "hunter22", "ter22", "99/"):
        assert part not in str(raised.value)
    assert raised.value.__context__ is None, (
        "the original error, URI and all, must not be printed along"
    )


def test_errors_of_a_place_elsewhere_are_cleaned() -> None:
    class Broken:
        """Refuses everything, and says the password."""

        type_name = "s3"

        def refuse(self, *arguments: object, **options: object) -> None:
            raise OSError("denied for s3://AKIAKEY:hunter%2F22@bucket with hunter/22")

        get_file_info = open_input_stream = open_output_stream = refuse

    place: Any = Broken()
    storage = Storage("s3://AKIAKEY:hunter%2F22@bucket/a", filesystem=place)
    for act in (
        lambda: storage.read("x.json"),
        lambda: storage.write("x.json", b""),
        lambda: storage.exists("x.json"),
        lambda: storage.names("x.json"),
    ):
        with pytest.raises(StorageError, match=r"^s3://bucket/a/x\.json: ") as raised:
            act()
        assert "hunter" not in str(raised.value)
        assert "AKIAKEY" not in str(raised.value)


def test_items_are_read_in_order_and_no_more_than_are_needed() -> None:
    begun, gate = list[int](), threading.Event()

    def read(item: int) -> int:
        begun.append(item)
        if item == 0:
            assert gate.wait(HANG_S), "later ones do not begin while the first one waits"
        if item == 1:
            gate.set()
        if item == 50:
            raise ValueError(item)
        return 10 * item

    assert list(in_parallel(read, range(40))) == list(range(0, 400, 10))
    begun.clear()
    taken = in_parallel(read, range(1000))
    assert [next(taken) for _ in range(3)] == [0, 10, 20]
    taken.close()
    assert len(begun) < 50
    with pytest.raises(ValueError, match="50"):
        list(in_parallel(read, range(1000)))
    assert list(in_parallel(read, [])) == []
