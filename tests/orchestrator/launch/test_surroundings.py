"""What surrounds a sweep. What it would write to belongs to it: everything else is refused, and
stays as it was. Resources that this machine lacks may be those of a cluster.
"""

from __future__ import annotations

import socket
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any
from unittest import mock

import optuna
import pytest
import torch
from optuna.study import Study
from optuna.trial import TrialState

from orchestrator.errors import StudyError
from orchestrator.launch.inspection import Inspection
from orchestrator.launch.options import LaunchOptions
from orchestrator.launch.read import LaunchRequest
from orchestrator.launch.surroundings import check_owners, check_resources
from orchestrator.store.identity import Identity, write_identity
from orchestrator.store.sweep import Sweep
from orchestrator.views.study import StudyView, open_storage, own_trials
from search_spaces.sweep import SweepConfig
from tests.fakes.mlflow_processes import open_studies_together
from tests.fakes.postgresql import PASSWORD, PostgreSQL, postgresql
from tests.fakes.studies import named_config, plain_record, study_identity, study_view
from workers.data.storage import Storage
from workers.metrics.definition import Direction

NAME = "mine"
DIRECTIONS: tuple[Direction, ...] = ("maximize", "minimize")
OURS = study_identity(named_config(NAME))


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("sweeps").mkdir()
    return tmp_path


@pytest.fixture(scope="module")
def server() -> Iterator[PostgreSQL]:
    with postgresql() as running:
        yield running


@pytest.fixture(
    params=[
        "study.log",
        "sqlite:///study.db",
        pytest.param("postgresql", marks=pytest.mark.slow(seconds=20)),
    ]
)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A storage of each kind."""
    if request.param != "postgresql":
        return str(request.param)
    server: PostgreSQL = request.getfixturevalue("server")
    return server.create(tmp_path.name.replace("[", "_").replace("]", "_").lower()[-60:])


def check(
    study: str | None = None,
    tracking: str = "",
    known: Identity | None = None,
    storage: Storage | None = None,
) -> None:
    options = LaunchOptions(study=study)
    place = storage or Storage("sweeps/mine")
    found = Inspection(LaunchRequest(options, named_config(NAME), place))
    with (
        mock.patch.object(Inspection, "identity", known),
        mock.patch.object(Inspection, "tracking_uri", tracking),
    ):
        check_owners(found)


def refusal(*arguments: Any, **options: Any) -> str:
    """The message of a check, which leaves all files as they were."""
    before = files()
    with pytest.raises(ValueError) as refused:
        check(*arguments, **options)
    assert files() == before
    message = str(refused.value)
    assert "\n" not in message
    assert PASSWORD not in message
    return message


def files() -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in Path().rglob("*") if path.is_file()}


def create(url: str, *directions: Direction, name: str = NAME) -> Study:
    return optuna.create_study(
        study_name=name, storage=open_storage(url), directions=list(directions or DIRECTIONS)
    )


def contents(url: str) -> list[Any]:
    studies = [
        optuna.load_study(study_name=s.study_name, storage=open_storage(url))
        for s in optuna.get_all_study_summaries(open_storage(url))
    ]
    return [
        (
            s.study_name,
            s.directions,
            s.user_attrs,
            [(t.number, t.state, t.params, t.user_attrs) for t in s.trials],
        )
        for s in studies
    ]


def write(url: str, numbers: Sequence[int] = (), **changed: object) -> StudyView:
    """Write the sweep's study with these trials. changed: parts of its identity."""
    view = study_view(named_config(NAME), url, is_own=False)
    identity = study_identity(named_config(NAME), **changed)
    view.update(Sweep(Storage("sweeps/mine"), identity, tuple(map(plain_record, numbers))))
    return view


def add_trial(study: Study) -> None:
    study.add_trial(optuna.create_trial(values=[9.0] * len(study.directions)))


@pytest.mark.parametrize(
    ("make", "parts"),
    [
        (lambda url: create(url, "minimize"), ("directions minimize,", "maximize, minimize")),
        (lambda url: create(url, "minimize", "minimize"), ("directions minimize, minimize",)),
        (lambda url: add_trial(create(url)), ("1 trial",)),
        (lambda url: create(url).set_user_attr("owner", "somebody"), ("attributes owner",)),
        (
            lambda url: write(url, started="2025-12-24T00:00:00+00:00"),
            ("another sweep", "2025-12-24"),
        ),
    ],
)
def test_a_study_of_somebody_else_is_refused(
    make: Callable[[str], Any], parts: tuple[str, ...], url: str
) -> None:
    make(url)
    before = contents(url)
    for known in (None, OURS):
        message = refusal(url, known=known)
        for part in ("--study", "--name", repr(NAME), *parts):
            assert part in message
    with pytest.raises(StudyError, match="--name"):
        write(url, [0])
    assert contents(url) == before


def test_an_empty_study_with_our_directions_becomes_ours(url: str) -> None:
    create(url)
    create(url, "minimize", name="of somebody else")
    check(url)
    write(url, [0])
    check(url, known=OURS)
    assert "another sweep" in refusal(url), "its identity is gone"


def test_a_storage_without_the_study_stays_without_it(url: str, folder: Path) -> None:
    check(url)
    assert [path.name for path in folder.iterdir()] == ["sweeps"]
    create(url, "minimize", name="of somebody else")
    before = contents(url)
    check(url)
    assert contents(url) == before


def test_a_trial_of_somebody_else_in_our_study_shifts_none_of_ours(url: str) -> None:
    write(url, [0, 1, 2])
    study = optuna.load_study(study_name=NAME, storage=open_storage(url))
    add_trial(study)
    check(url, known=OURS)
    write(url, range(5))
    trials = optuna.load_study(study_name=NAME, storage=open_storage(url)).trials
    assert [trial.values[0] for trial in trials] == [1.0, 2.0, 3.0, 9.0, 4.0, 5.0]
    assert {number: trial.user_attrs["label"] for number, trial in own_trials(trials).items()} == {
        number: f"trial {number}" for number in range(5)
    }


def test_what_others_add_to_the_default_journal_is_no_damage() -> None:
    journal = Path("sweeps/mine/study.log")
    journal.parent.mkdir()
    write(str(journal), [0])
    add_trial(optuna.load_study(study_name=NAME, storage=open_storage(str(journal))))
    add_trial(create(str(journal), "minimize", name="of somebody else"))
    before = contents(str(journal))
    view = study_view(named_config(NAME), journal, is_own=True)
    view.update(Sweep(Storage("sweeps/mine"), OURS, (plain_record(0),)))
    assert view.notes == []
    assert contents(str(journal)) == before


def test_a_default_journal_of_somebody_else_is_refused() -> None:
    create("mine-study.log", "minimize")
    before = files()
    with pytest.raises(ValueError, match=r"mine-study\.log: the study 'mine'"):
        check(storage=FakeBucket())
    assert files() == before


class FakeBucket(Storage):
    """A storage without local paths."""

    def __init__(self) -> None:
        super().__init__("sweeps/mine")

    def path(self, name: str) -> Path | None:
        return None


@pytest.mark.parametrize(
    "data",
    [b"a text\n", b"a text", b'"a"\n', b"3\n", b'{"a": 1}\n', b"[]\n", b"\x89PNG\r\n\x00" * 400],
)
@pytest.mark.parametrize("prefix", ["", "sqlite:///"])
def test_a_file_that_is_something_else_is_refused(data: bytes, prefix: str) -> None:
    Path("notes").write_bytes(data)
    assert "notes" in refusal(f"{prefix}notes")
    if prefix:
        assert "--tracking-uri" in refusal(None, f"{prefix}notes")


@pytest.mark.parametrize(
    "study", ["sweeps", "sqlite:///sweeps", "none/study.log", "sqlite:///none/study.db"]
)
def test_a_place_without_a_file_is_refused(study: str) -> None:
    assert study in refusal(study)


@pytest.mark.parametrize(
    "study", ["~nobody-here/x", "x" * 5000, "postgresql://[", "nosuch://u:p@h/d", ""]
)
@pytest.mark.parametrize("tracking", ["sqlite:///mlflow.db", "postgresql://127.0.0.1:9/none"])
def test_a_malformed_study_is_refused_by_its_option(study: str, tracking: str) -> None:
    assert refusal(study, tracking).startswith("--study: ")


def mlflow_database(empty_database: Path, place: str) -> None:
    Path(place).write_bytes(empty_database.read_bytes())


def other_database(place: str) -> None:
    with closing(sqlite3.connect(place)) as connection:
        connection.executescript(
            "CREATE TABLE alembic_version (version_num); INSERT INTO alembic_version VALUES "
            "('5f0c');"
        )


def test_a_database_of_another_program_is_refused(empty_database: Path) -> None:
    mlflow_database(empty_database, "mlflow.db")
    create("sqlite:///optuna.db")
    other_database("other.db")
    for study, owner in (("mlflow.db", "MLflow"), ("other.db", "another program")):
        message = refusal(f"sqlite:///{study}")
        assert "--study" in message
        assert owner in message
    for tracking, owner in (("optuna.db", "Optuna"), ("other.db", "another program")):
        message = refusal(None, f"sqlite:///{tracking}")
        assert "--tracking-uri" in message
        assert owner in message
    Path("sweeps/mlflow.db").write_bytes(Path("optuna.db").read_bytes())
    assert "Optuna" in refusal(None, f"sqlite:///{Path('sweeps/mlflow.db').absolute()}"), (
        "the default database"
    )


def test_a_database_with_tables_of_its_program_passes(empty_database: Path) -> None:
    mlflow_database(empty_database, "mlflow.db")
    create("sqlite:///optuna.db", name="of somebody else")
    with closing(sqlite3.connect("data.db")) as connection:
        connection.execute("CREATE TABLE readings (id)")
    before = files()
    check("sqlite:///optuna.db", "sqlite:///mlflow.db")
    check("sqlite:///data.db", "http://127.0.0.1:9")
    check(None, "sqlite:///data.db")
    assert files() == before


def test_a_damaged_database_of_mlflow_is_refused() -> None:
    Path("sweeps/mlflow.db").write_bytes(
        b"no database, but long enough to be told from an empty one" * 20
    )
    message = refusal(None, f"sqlite:///{Path('sweeps/mlflow.db').absolute()}")
    for part in (
        "--tracking-uri",
        "sweeps/mlflow.db: damaged",
        "move it away",
        "specfrontier sync",
    ):
        assert part in message


@pytest.mark.parametrize(
    "study", ["sqlite:///x.db", "sqlite:///sweeps/../x.db?timeout=5", "sqlite:///link.db", "x.db"]
)
@pytest.mark.parametrize("exists", [False, True])
def test_one_file_for_optuna_and_mlflow_is_refused(
    study: str, exists: bool, empty_database: Path
) -> None:
    if exists:
        mlflow_database(empty_database, "x.db")
    Path("link.db").symlink_to("x.db")
    message = refusal(study, f"sqlite:///{Path('x.db').absolute()}")
    assert "--study" in message
    assert "--tracking-uri" in message


@pytest.mark.slow(seconds=20)
def test_one_database_for_optuna_and_mlflow_is_refused(server: PostgreSQL) -> None:
    study, other = server.create("both"), server.create("another")
    spelled = study.replace("postgresql://", "postgresql+psycopg://") + "?connect_timeout=5"
    for tracking in (study, spelled):
        message = refusal(study, tracking)
        assert "--study" in message
        assert "--tracking-uri" in message
    check(study, other)
    server.stop()
    try:
        assert "one database" in refusal(study, study), "a server that is away has the same address"
        check(None, study)
    finally:
        server.start()


@pytest.mark.slow(seconds=20)
def test_a_user_who_may_not_create_tables_is_told_so(server: PostgreSQL) -> None:
    import psycopg

    url = server.create("closed")
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(f"CREATE USER reader PASSWORD '{PASSWORD}'")
    assert "may not create tables" in refusal(url.replace("specfrontier:", "reader:"))


RESULTS = (
    "trials/00000.json",
    "trials/notes.txt",
    "shards/x.parquet",
    "pictures/a.png",
    "measures/a.json",
    "study.log",
    "trials.parquet",
)


@pytest.mark.parametrize("name", RESULTS)
def test_results_without_an_identity_are_not_adopted(name: str) -> None:
    storage = Storage("sweeps/mine")
    storage.write(name, b"of somebody else")
    message = refusal()
    for part in (name, "identity.json", "--name", "--out"):
        assert part in message
    storage.remove(name)
    check()


def test_a_store_whose_launch_was_killed_early_goes_on() -> None:
    storage = Storage("sweeps/mine")
    for name in (
        "store.id",
        "sweep.yaml",
        "driver.lock",
        "events.jsonl",
        "mlflow.json",
        "logs/worker.log",
        "notes.md",
    ):
        storage.write(name, b"")
        check()
    write_identity(storage, OURS)
    storage.write("trials/00000.json", b"")
    check(known=OURS)


@pytest.mark.slow(seconds=20)
def test_studies_that_are_opened_at_once_share_new_tables(url: str, tmp_path: Path) -> None:
    studies = [(f"study-{number}", number) for number in range(4)]
    assert open_studies_together(studies, url, tmp_path) == ["opened"] * 4
    names = optuna.get_all_study_names(open_storage(url))
    assert sorted(names) == sorted(name for name, _ in studies)


@pytest.mark.slow(seconds=20)
def test_of_two_sweeps_with_one_name_one_gets_the_study(url: str, tmp_path: Path) -> None:
    printed = open_studies_together([(NAME, number) for number in range(3)], url, tmp_path)
    assert sorted(line == "opened" for line in printed) == [False, False, True]
    assert all("another sweep" in line for line in printed if line != "opened")
    study = optuna.load_study(study_name=NAME, storage=open_storage(url))
    assert (
        study.user_attrs["sweep"]
        == f"{OURS.experiment} 2026-01-02T03:00:0{printed.index('opened')}+00:00"
    )
    assert [state for state in TrialState if study.get_trials(states=(state,))] == []


@pytest.mark.slow(seconds=20)
def test_databases_that_do_not_answer_are_refused() -> None:
    """Without a time limit of its own the driver would wait here for ever."""
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        url = f"postgresql://127.0.0.1:{silent.getsockname()[1]}"
        assert "--study" in refusal(f"{url}/optuna", f"{url}/mlflow")


def resources(
    workers: int | None, cpus: float, gpus: float, address: str | None, objective: str
) -> None:
    """Check the resources of the workers of a sweep with this objective."""
    changes = {
        "objectives": [objective, "step_compression"],
        "metrics": [objective],
        "racing": None,
    }
    options = LaunchOptions(
        workers=workers, cpus_per_worker=cpus, gpus_per_worker=gpus, address=address
    )
    sweep = SweepConfig.read("quickstart", changes)
    check_resources(Inspection(LaunchRequest(options, sweep, Storage("sweeps/mine"))))


def test_a_cluster_may_have_what_this_machine_lacks() -> None:
    resources(1000, 64.0, 8.0, "auto", "speedup")
    resources(None, 1.0, 0.0, None, "speedup")
    resources(None, 1.0, float(torch.cuda.device_count()), None, "speedup")
    resources(None, 1.0, 0.5, "auto", "fid")
    with pytest.raises(ValueError, match="timings"):
        resources(None, 1.0, 0.5, "auto", "speedup")
    with pytest.raises(ValueError, match="fraction"):
        resources(None, 1.0, 1.5, "auto", "fid")
    for amount in (float("inf"), float("nan")):
        with pytest.raises(ValueError, match="finite"):
            resources(None, amount, 0.0, "auto", "speedup")
