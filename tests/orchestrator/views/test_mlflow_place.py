"""The place to which a sweep is logged: which one is used, what is remembered of it, and that
`sync` returns to it after a server failed.
"""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from orchestrator.errors import FAILED
from orchestrator.store.files import MLFLOW_PLACE
from orchestrator.store.launches import load_identity
from orchestrator.store.records import read_trials
from orchestrator.store.sweep import Sweep
from orchestrator.views.follower import Follower, Views
from orchestrator.views.mlflow import MlflowView
from orchestrator.views.mlflow_client import default_uri
from orchestrator.views.mlflow_place import TrackingPlace
from orchestrator.views.mlflow_sync import find_location
from tests.fakes.command_line import CommandResult, error_of, specfrontier
from tests.fakes.mlflow_proxy import FAULTS, failing_proxy
from tests.fakes.synthetic_sweeps import write_sweep
from tests.fakes.waiting import HANG_S
from workers.data.checked_json import load_checked
from workers.data.storage import Storage

TRIALS, LOGGED_BEFORE = 5, 2
EXPERIMENT = "frontier of the lab"


@pytest.fixture
def storage(tmp_path: Path) -> Storage:
    """A sweep with the name of its test's folder, so that the sweeps on one server differ."""
    name = tmp_path.name.strip("_")
    write_sweep(tmp_path / "sweeps" / name, TRIALS, name=name, failed=())
    return Storage(str(tmp_path / "sweeps" / name))


def run(line: str) -> CommandResult:
    """Run a command that another one printed."""
    program, *words = shlex.split(line)
    assert program == "specfrontier"
    return specfrontier(*words)


def until_idle(follower: Follower[Sweep]) -> None:
    """Wait for the end of a follower's thread, which a launch would not wait for."""
    follower._thread.join(HANG_S)
    assert not follower._thread.is_alive()


def logged_runs(storage: Storage, base: str) -> list[str]:
    """The ids of all runs of the sweep on a server, in the experiment that the sweep remembers."""
    found = find_location(Sweep.open(storage), base)
    return sorted([found.parent, *found.runs.values()])


@pytest.mark.slow(seconds=15)
@pytest.mark.parametrize("fault", FAULTS)
def test_sync_returns_to_a_server_that_failed_in_the_middle_of_a_sweep(
    fault: str,
    storage: Storage,
    mlflow_server: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The launch's environment is not that of the later commands."""
    records = read_trials(storage)
    with failing_proxy(mlflow_server) as server:
        with monkeypatch.context() as launch:
            launch.setenv("MLFLOW_TRACKING_URI", server.address)
            launch.setenv("MLFLOW_EXPERIMENT_NAME", EXPERIMENT)
            view = MlflowView(storage)
            view.end_timeout_s = 0.5
            views = Views(storage, [view])
            (follower,) = views._followers
            view.update(Sweep(storage, load_identity(storage), tuple(records[:LOGGED_BEFORE])))
            place = storage.read(MLFLOW_PLACE)
            server.fail(fault)
            views.start(load_identity(storage), records)
            (problem,) = views.end("finished")
        assert len(problem.splitlines()) == 1
        assert server.address in problem or fault in ("hang", "slow")
        assert storage.read(MLFLOW_PLACE) == place
        server.heal()
        until_idle(follower)
        done = specfrontier("sync", storage.uri)
        assert (done.code, done.err) == (0, "")
        assert f"already there: {server.address}" in done.out
        assert TrackingPlace.resolve(storage).experiment == EXPERIMENT
        assert len(runs := logged_runs(storage, server.address)) == TRIALS + 1
        assert run(problem.partition(" with: ")[2]).out.startswith(
            f"0 trials logged, {TRIALS} already"
        )
        assert f"charts  {server.address}/#" in specfrontier("ui", storage.uri).out
        assert logged_runs(storage, server.address) == runs
    assert storage.read(MLFLOW_PLACE) == place
    assert not (tmp_path / "sweeps" / "mlflow.db").exists()


@pytest.mark.parametrize("fault", [fault for fault, answer in FAULTS.items() if answer])
def test_a_server_that_fails_from_the_start_is_remembered(
    fault: str, storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    with failing_proxy("http://127.0.0.1:9") as server:
        server.fail(fault)
        view = MlflowView(storage, server.address.replace("//", "//me:hidden-word@"))
        views = Views(storage, [view])
        views.start(load_identity(storage), read_trials(storage))
        (problem,) = views.end("interrupted")
        until_idle(views._followers[0])
        assert f"--uri '{server.address.replace('//', '//***@')}'" in problem
        assert b"hidden-word" not in storage.read(MLFLOW_PLACE)
        monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
        for command in ("sync", "ui"):
            message = error_of(command, storage.uri, code=FAILED)
            assert len(message.splitlines()) == 2, "of the variable, and of the error"
            assert f"MLflow at {server.address}: " in message
            assert "<html>" not in message


def test_what_is_given_comes_first_and_the_last_place_before_the_environment(
    storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    def places(uri: str | None = None, experiment: str | None = None) -> tuple[str, str]:
        place = TrackingPlace.resolve(storage, uri, experiment)
        return place.uri, place.experiment_of("demo")

    local = default_uri(storage)
    assert places() == (local, "specfrontier/demo")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://me:pw@lab:5000")
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "mine")
    assert places() == ("http://me:pw@lab:5000", "mine")
    TrackingPlace.resolve(storage).write(storage, "demo")
    assert load_checked(storage.read(MLFLOW_PLACE)) == {
        "uri": "http://lab:5000",
        "experiment": "mine",
    }
    assert places() == ("http://me:pw@lab:5000", "mine"), "with the credentials of the environment"
    assert places("http://lab:5000") == ("http://me:pw@lab:5000", "mine")
    assert TrackingPlace.resolve(storage).notes == ()
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://other")
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "others")
    assert places() == ("http://lab:5000", "mine")
    assert places("http://second", "theirs") == ("http://second", "theirs")
    notes = TrackingPlace.resolve(storage).notes
    assert [note.split()[0] for note in notes] == ["MLFLOW_TRACKING_URI", "MLFLOW_EXPERIMENT_NAME"]
    assert TrackingPlace.resolve(storage, "http://second", "theirs").notes == ()
    TrackingPlace(local, "").write(storage, "demo")
    assert places() == (local, "specfrontier/demo")


def test_the_variable_names_the_home_folder_as_the_option_does(
    storage: Storage, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "sqlite:///~/own.db")
    assert TrackingPlace.resolve(storage).uri == f"sqlite:///{tmp_path}/own.db"
    monkeypatch.delenv("MLFLOW_TRACKING_URI")
    assert (
        TrackingPlace.resolve(storage, "sqlite:///~/own.db").uri == f"sqlite:///{tmp_path}/own.db"
    )


def test_a_place_that_cannot_be_read_is_said(
    storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://lab:5000")
    for content, problem in (
        (b'{"uri": 5}', "another version"),
        (b"[" * 9000, "damaged"),
        (b"", "damaged"),
        (b"{}x", "damaged"),
    ):
        storage.write(MLFLOW_PLACE, content)
        place = TrackingPlace.resolve(storage)
        assert place.uri == "http://lab:5000"
        assert [MLFLOW_PLACE in note and problem in note for note in place.notes] == [True]
        assert TrackingPlace.resolve(storage, "http://lab:5000").notes == ()


def test_the_database_of_remote_storage_is_found_from_other_folders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pyarrow.fs import LocalFileSystem

    (tmp_path / "elsewhere").mkdir()
    remote = Storage(f"mock://host{tmp_path}/store/demo", filesystem=LocalFileSystem())
    monkeypatch.chdir(tmp_path)
    TrackingPlace.resolve(remote).write(remote, "demo")
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert TrackingPlace.resolve(remote).uri == f"sqlite:///{tmp_path}/mlflow.db"


@pytest.mark.parametrize(
    ("uri", "stored"),
    [
        (
            "postgresql://me:pw@db/mlflow?sslmode=require&sslpassword=abc",
            "postgresql://db/mlflow?sslmode=require",
        ),
        (
            "postgresql:///mlflow?host=/var/run/postgresql",
            "postgresql:///mlflow?host=/var/run/postgresql",
        ),
        ("https://lab.example:5000/base/?token=abc#x", "https://lab.example:5000/base"),
        ("sqlite:///own.db?timeout=30", "sqlite:///{folder}/own.db?timeout=30"),
    ],
)
def test_a_stored_place_is_complete_but_for_credentials(
    uri: str, stored: str, storage: Storage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    TrackingPlace(uri, "").write(storage, "demo")
    monkeypatch.chdir("/")
    assert TrackingPlace.resolve(storage).uri == stored.format(folder=tmp_path)


def test_the_command_of_a_place_needs_no_environment_and_shows_no_credential(
    storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    def words(uri: str, experiment: str = "") -> list[str]:
        return shlex.split(TrackingPlace(uri, experiment).sync_command(storage))[3:]

    assert words(default_uri(storage)) == []
    assert words("http://lab:5000", "a b") == ["--uri", "http://lab:5000", "--experiment", "a b"]
    assert words("http://me:pw@lab:5000") == ["--uri", "http://***@lab:5000"]
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://me:pw@lab:5000")
    assert words("http://me:pw@lab:5000") == ["--uri", "http://lab:5000"]


@pytest.mark.parametrize("variable", ["MLFLOW_TRACKING_TOKEN", "MLFLOW_TRACKING_PASSWORD", "HOME"])
def test_credentials_are_not_sent_to_a_server_that_only_the_folder_names(
    variable: str, storage: Storage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with failing_proxy("http://127.0.0.1:9") as server:
        TrackingPlace(server.address, EXPERIMENT).write(storage, "tested")
        assert TrackingPlace.resolve(storage).uri == server.address
        monkeypatch.setenv(variable, str(tmp_path))
        if variable == "HOME":
            (tmp_path / ".mlflow").mkdir()
            (tmp_path / ".mlflow" / "credentials").write_text(
                "[mlflow]\nmlflow_tracking_username = me\n"
            )
        for command in ("sync", "ui"):
            message = error_of(command, storage.uri, code=FAILED)
            assert MLFLOW_PLACE in message
            assert f"MLFLOW_TRACKING_URI={server.address}" in message
        assert TrackingPlace.resolve(storage, server.address).uri == server.address
        monkeypatch.setenv("MLFLOW_TRACKING_URI", server.address)
        assert TrackingPlace.resolve(storage).uri == server.address
