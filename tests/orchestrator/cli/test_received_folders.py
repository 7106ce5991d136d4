"""Sweep folders that somebody else made: no command reads or writes a file outside of them, or
waits for ever.
"""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from orchestrator.store.checked_text import append_line
from orchestrator.store.files import (
    DRIVER_LOCK,
    EVENTS,
    IDENTITY,
    MLFLOW_LOCK,
    REPORT,
    STUDY,
    SWEEP,
    write_sweep_text,
)
from orchestrator.store.locks import exclusive, read_holder, waiting_lock
from orchestrator.views.study import default_journal
from search_spaces.documents import write_document
from search_spaces.sweep import SweepConfig
from tests.fakes.command_line import error_of, specfrontier
from tests.fakes.synthetic_sweeps import write_sweep
from tests.fakes.waiting import HANG_S
from workers.data.files import hidden_name
from workers.data.storage import Storage
from workers.runtime.logs import open_log

SECRET = "secret: hunter2\n"
READ = (IDENTITY, SWEEP, EVENTS, "trials/00001.json")
READERS = (
    ("status",),
    ("pareto",),
    ("compare", "--by", "drafter"),
    ("report",),
    ("export", "--trial", "0", "--out", "out"),
)


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sweeps") / "received"
    write_sweep(folder, 4, name="received", failed=())
    return folder


@pytest.fixture
def received(original: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "secret").write_text(SECRET)
    return Path(shutil.copytree(original, tmp_path / "received"))


def replace_by_link(file: Path, target: Path) -> None:
    file.unlink(missing_ok=True)
    file.parent.mkdir(exist_ok=True)
    file.symlink_to(target)


def replace_by_pipe(file: Path, target: Path) -> None:
    file.unlink(missing_ok=True)
    os.mkfifo(file)


def replace_by_device(file: Path, target: Path) -> None:
    replace_by_link(file, Path("/dev/zero"))


@pytest.mark.parametrize("name", READ)
@pytest.mark.parametrize("replace", [replace_by_link, replace_by_pipe, replace_by_device])
def test_no_command_reads_outside(
    replace: Callable[[Path, Path], None], name: str, received: Path
) -> None:
    replace(received / name, received.parent / "secret")
    for command, *options in READERS:
        signal.alarm(int(HANG_S))  # ends the tests if a command waits for a pipe
        done = specfrontier(command, str(received), *options)
        signal.alarm(0)
        assert "hunter2" not in done.out + done.err
        # others need not read it
        if command == "status" or name in (IDENTITY, "trials/00001.json"):
            assert done.code == 1, (command, done.err)
            assert name in done.err
        assert done.code in (0, 1), (command, done.err)


def test_no_command_follows_a_folder_outside(received: Path) -> None:
    shutil.move(received / "trials", received.parent / "trials")
    (received / "trials").symlink_to(received.parent / "trials")
    for command, *options in READERS:
        done = specfrontier(command, str(received), *options)
        assert done.code == 1, (command, done.err)
        assert "trials: a link leads out of" in done.err


def test_links_within_the_folder_and_to_it_are_followed(received: Path) -> None:
    (received / "kept").mkdir()
    shutil.move(received / EVENTS, received / "kept" / EVENTS)
    (received / EVENTS).symlink_to(Path("kept", EVENTS))
    (received.parent / "link").symlink_to(received)
    assert specfrontier("status", "link").code == 0


def writers(folder: Path) -> dict[str, Callable[[], object]]:
    storage = Storage(folder)

    def hold(name: str) -> None:
        with exclusive(storage, name):
            pass

    def wait() -> None:
        with waiting_lock(folder / f".{STUDY}.creating"):
            pass

    return {
        DRIVER_LOCK: lambda: hold(DRIVER_LOCK),
        MLFLOW_LOCK: lambda: hold(MLFLOW_LOCK),
        EVENTS: lambda: append_line(folder / EVENTS, {"event": "note"}),
        STUDY: lambda: default_journal(storage, "received"),
        f".{STUDY}.creating": wait,
        "logs/worker-1.log": lambda: open_log(storage, "worker-1"),
    }


NAMES = tuple(writers(Path()))


@pytest.mark.parametrize("name", NAMES)
def test_nothing_is_written_through_a_link(name: str, received: Path) -> None:
    secret = received.parent / "secret"
    for target in (secret, received.parent / "new"):
        replace_by_link(received / name, target)
        with pytest.raises(OSError, match=r"link|device"):
            writers(received)[name]()
    assert secret.read_text() == SECRET
    assert not (received.parent / "new").exists()


@pytest.mark.parametrize("name", NAMES)
def test_nothing_is_written_to_a_file_with_another_name(name: str, received: Path) -> None:
    (received / name).unlink(missing_ok=True)
    (received / name).parent.mkdir(exist_ok=True)
    os.link(received.parent / "secret", received / name)
    with pytest.raises(OSError, match="hard link"):
        writers(received)[name]()
    assert (received.parent / "secret").read_text() == SECRET


@pytest.mark.parametrize("name", NAMES)
def test_nothing_waits_for_a_pipe(name: str, received: Path) -> None:
    (received / name).parent.mkdir(exist_ok=True)
    replace_by_pipe(received / name, received)
    with pytest.raises(OSError, match="pipe"):
        writers(received)[name]()


def test_the_logs_of_workers_stay_in_the_folder(received: Path) -> None:
    (received.parent / "elsewhere").mkdir()
    (received / "logs").symlink_to(received.parent / "elsewhere")
    with pytest.raises(OSError, match="a link leads out of"):
        open_log(Storage(received), "worker-1")
    assert list((received.parent / "elsewhere").iterdir()) == []


def test_a_launch_writes_through_no_link(received: Path) -> None:
    secret = received.parent / "secret"
    replace_by_link(received.parent / "new" / DRIVER_LOCK, secret)
    done = specfrontier("launch", "quickstart", "--set", "name=new", "--out", str(received.parent))
    assert done.code == 1
    assert f"{DRIVER_LOCK}: a link leads out of" in done.err
    assert secret.read_text() == SECRET
    assert [path.name for path in (received.parent / "new").iterdir()] == [DRIVER_LOCK]


def test_nothing_is_removed_from_another_folder(received: Path) -> None:
    other = received.parent / "other"
    other.mkdir()
    storage = Storage(received)
    (other / hidden_name("00001.json")).write_text("mine")
    shutil.rmtree(received / "trials")
    (received / "trials").symlink_to(other)
    for act in (storage.remove_unfinished, lambda folder: storage.remove(f"{folder}/00001.json")):
        with pytest.raises(OSError, match="a link leads out of"):
            act("trials")
    assert len(list(other.iterdir())) == 1


@pytest.mark.parametrize("replace", [replace_by_pipe, replace_by_device, replace_by_link])
def test_a_lock_that_is_none_is_named(
    replace: Callable[[Path, Path], None], received: Path
) -> None:
    replace(received / DRIVER_LOCK, received.parent / "secret")
    with pytest.raises(OSError, match=DRIVER_LOCK):
        read_holder(Storage(received), DRIVER_LOCK)


def test_a_result_replaces_a_link(received: Path) -> None:
    """It is written to a new file, so that the link's target stays."""
    secret = received.parent / "secret"
    replace_by_link(received / REPORT, secret)
    assert specfrontier("report", str(received)).code == 0
    assert not (received / REPORT).is_symlink()
    assert secret.read_text() == SECRET


def test_a_check_names_a_lock_that_is_a_pipe(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    storage = Storage("sweeps/quickstart")
    write_sweep_text(storage, write_document(SweepConfig.read("quickstart").to_mapping()))
    replace_by_pipe(Path(storage.uri, DRIVER_LOCK), tmp_path)
    assert DRIVER_LOCK in error_of("launch", "quickstart", "--resume", "--check", code=2)
