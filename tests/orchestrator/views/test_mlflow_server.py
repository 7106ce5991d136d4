"""A real MLflow server that starts late, goes away and comes back, or drops answers; and the
commands for it.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import closing, contextmanager
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING
from unittest import mock

import psutil
import pytest

from orchestrator.errors import FAILED, WRONG_USAGE
from orchestrator.store.launches import load_identity
from orchestrator.store.records import TrialRecord, read_trials, trial_file, write_trial
from orchestrator.store.sweep import Sweep
from orchestrator.views.follower import Views
from orchestrator.views.mlflow import MlflowView
from orchestrator.views.mlflow_client import TrackingError, free_port
from orchestrator.views.mlflow_place import TrackingPlace
from orchestrator.views.mlflow_sync import find_location, sync
from tests.fakes.command_line import error_of, specfrontier
from tests.fakes.mlflow_processes import sync_result
from tests.fakes.mlflow_proxy import Address, proxy
from tests.fakes.mlflow_views import read_view
from tests.fakes.odd_servers import HTTP, odd_server
from tests.fakes.ports import HOST
from tests.fakes.synthetic_sweeps import write_sweep
from tests.fakes.waiting import HANG_S, give_time, wait_until
from workers.data.storage import Storage

if TYPE_CHECKING:
    from mlflow.entities import Run

pytestmark = pytest.mark.slow(seconds=50)
TRIALS = 8
COMMAND = "from orchestrator.cli.app import main; main()"


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    give_time(monkeypatch, MlflowView)


@pytest.fixture
def address() -> Iterator[Address]:
    """Where no server runs yet."""
    with closing(Address()) as kept:
        yield kept


@pytest.fixture
def storage(tmp_path: Path) -> Storage:
    """A sweep with the name of its test's folder, so that the sweeps on one server differ."""
    name = tmp_path.name.strip("_")
    write_sweep(tmp_path / "sweeps" / name, TRIALS, name=name, failed=(5,))
    return Storage(str(tmp_path / "sweeps" / name))


def children(base: str, storage: Storage) -> dict[int, Run]:
    """The runs of the sweep's trials on a server, by number; fails if there is a duplicate or a
    second parent.
    """
    from mlflow.tracking import MlflowClient

    client = MlflowClient(base)
    experiment = client.get_experiment_by_name(f"specfrontier/{Path(storage.uri).name}")
    assert experiment is not None
    runs = client.search_runs([experiment.experiment_id])
    (parent,) = (run.info.run_id for run in runs if "mlflow.parentRunId" not in run.data.tags)
    below = [run for run in runs if run.data.tags.get("mlflow.parentRunId") == parent]
    found = {int(run.data.tags["specfrontier.trial"]): run for run in below}
    assert len(runs) == len(below) + 1 == len(found) + 1
    return found


def logged(base: str, storage: Storage) -> int:
    """The number of the sweep's trials that a server has completely."""
    from mlflow.exceptions import MlflowException

    try:
        found = find_location(Sweep.open(storage), base)
        return (
            sum(run.info.status != "RUNNING" for run in children(base, storage).values())
            if found.parent
            else 0
        )
    except (TrackingError, MlflowException):
        return 0


def remove(storage: Storage, records: list[TrialRecord]) -> None:
    for record in records:
        path = storage.path(trial_file(record.number))
        assert path is not None
        path.unlink()


def test_everything_is_logged_once_though_the_server_starts_late_and_goes_away(
    storage: Storage, mlflow_server: str, address: Address
) -> None:
    records = read_trials(storage)
    remove(storage, records[3:])
    base = address.url
    views = Views(storage, [MlflowView(storage, base)])
    (follower,) = views._followers
    views.start(load_identity(storage), records[:3])
    wait_until(lambda: follower.problem is not None)
    with proxy(mlflow_server, at=address):
        wait_until(lambda: follower.problem is None and logged(base, storage) == 3)
        assert children(base, storage).keys() == {0, 1, 2}
    for record in records[3:]:
        write_trial(storage, record)
        views.update(record)
    wait_until(lambda: follower.problem is not None)
    with proxy(mlflow_server, at=address):
        wait_until(lambda: follower.problem is None)
        assert views.end("finished") == []
        found = children(base, storage)
        assert found.keys() == set(range(TRIALS))
        assert {run.info.status for number, run in found.items() if number != 5} == {"FINISHED"}
        assert all("speedup" in run.data.metrics for number, run in found.items() if number != 5)
        with urllib.request.urlopen(
            f"{base}/get-artifact?run_uuid={found[0].info.run_id}&path=images.png"
        ) as answer:
            assert answer.read() == storage.read(f"pictures/{records[0].digest}.png")
        assert sync(storage, base) == sync_result(0, TRIALS)


def test_a_run_whose_creation_went_unanswered_is_found_again(
    storage: Storage, mlflow_server: str
) -> None:
    with proxy(mlflow_server, 1, 2, 5) as base:
        views = Views(storage, [MlflowView(storage, base)])
        views.start(load_identity(storage), read_trials(storage))
        assert views.end("finished") == []
    assert children(mlflow_server, storage).keys() == set(range(TRIALS))


def test_a_server_of_this_machine_is_reached_without_a_proxy(
    storage: Storage, mlflow_server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with odd_server(HTTP) as proxy_server:
        monkeypatch.setenv("no_proxy", "")
        monkeypatch.setenv("http_proxy", f"http://{proxy_server.address}")
        assert sync(storage, mlflow_server).logged == TRIALS
        assert proxy_server.requests == []


def test_credentials_in_the_address_are_not_stored(
    storage: Storage, mlflow_server: str, shared_folder: Path, tmp_path: Path
) -> None:
    assert sync(storage, mlflow_server.replace("//", "//me:hidden-word@")).logged == TRIALS
    assert TrackingPlace.resolve(storage).uri == mlflow_server
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    database = shared_folder / "server" / "mlflow.db"
    assert [path for path in (*files, database) if b"hidden-word" in path.read_bytes()] == []


@contextmanager
def ui(place: str) -> Iterator[tuple[dict[str, str], subprocess.Popen[str]]]:
    """The running `ui` command, and the addresses that it printed."""
    command = [sys.executable, "-u", "-c", COMMAND, "ui", place, "--port", "0"]
    pipe = subprocess.PIPE
    with subprocess.Popen(
        command, stdout=pipe, stderr=pipe, text=True, start_new_session=True
    ) as process:
        assert process.stdout is not None
        links: dict[str, str] = {}
        for line in process.stdout:
            if line.startswith("Ctrl-C"):
                break
            name, link = line.split()
            links[name] = link
        try:
            yield links, process
        finally:
            process.kill()


def test_ui_logs_the_sweep_first_and_leaves_no_server_behind(
    storage: Storage, empty_database: Path, tmp_path: Path
) -> None:
    shutil.copy(empty_database, tmp_path / "sweeps" / "mlflow.db")
    with ui(storage.uri) as (links, process):
        assert list(links) == ["charts", "sweep", "trials", "compare"]
        assert len(children(links["charts"].partition("/#")[0], storage)) == TRIALS
        servers = psutil.Process(process.pid).children(recursive=True)
        assert servers
        os.killpg(process.pid, signal.SIGINT)  # as the terminal does for Ctrl-C
        assert process.wait(HANG_S) == 0
        assert process.stderr is not None
        assert process.stderr.read() == ""
    assert psutil.wait_procs(servers, HANG_S)[1] == []


def test_ui_ends_well_on_sigterm(storage: Storage) -> None:
    class Server:
        def wait(self) -> int:
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(HANG_S)
            return 0

    @contextmanager
    def serving(*arguments: object) -> Iterator[tuple[str, Server]]:
        yield f"http://{HOST}:5000", Server()

    before = signal.getsignal(signal.SIGTERM)
    with (
        mock.patch("orchestrator.views.mlflow_client.serving", serving),
        mock.patch("orchestrator.views.mlflow_sync.sync"),
    ):
        shown = specfrontier("ui", storage.uri)
    assert (shown.code, shown.err) == (0, "")
    assert signal.getsignal(signal.SIGTERM) == before


def test_sync_and_ui_print_the_pages_of_a_server(
    storage: Storage, mlflow_server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", mlflow_server.replace("//", "//me:hidden-word@"))
    ran = specfrontier("sync", storage.uri, "--json")
    assert (ran.json["logged"], ran.json["already"], ran.json["uri"]) == (TRIALS, 0, mlflow_server)
    assert "viewStateShareKey=" in ran.json["links"]["compare"]
    assert ran.json["links"]["trials"].startswith(f"{mlflow_server}/#/experiments/")
    assert "hidden-word" not in ran.out + ran.err
    monkeypatch.delenv("MLFLOW_TRACKING_URI")
    assert specfrontier("sync", storage.uri, "--uri", mlflow_server).out.startswith(
        "0 trials logged, "
    )
    shown = specfrontier("ui", storage.uri)
    assert shown.code == 0
    assert shown.out.split()[1::2] == list(ran.json["links"].values())


def test_ui_makes_the_view_that_an_earlier_version_did_not(
    storage: Storage, mlflow_server: str
) -> None:
    from mlflow.tracking import MlflowClient

    def views() -> dict[str, str]:
        experiment = client.get_experiment(sync(storage, mlflow_server).location.experiment_id)
        return {
            key: tag
            for key, tag in experiment.tags.items()
            if key.startswith("mlflow.sharedViewState.")
        }

    client = MlflowClient(mlflow_server)
    no_view = mock.patch("orchestrator.views.mlflow.write_shared_views")
    with no_view:
        assert not views()
    assert specfrontier("ui", storage.uri).code == 0
    with no_view:
        filters = [read_view(view)["searchFilter"] for view in views().values()]
        assert sorted("specfrontier.pareto" in text for text in filters) == [False, True]
    refused = mock.patch(
        "orchestrator.views.mlflow_sync.write_shared_views",
        side_effect=PermissionError("read-only"),
    )
    with refused:
        shown = specfrontier("ui", storage.uri)
    assert shown.code == 0, "the links are worth having"
    assert "viewStateShareKey=" in shown.out
    assert "read-only" in shown.err


@pytest.mark.parametrize(
    "path", ["", "api/2.0/mlflow/experiments/search", "ajax-api/3.0/mlflow/assistant/config"]
)
def test_a_page_of_another_site_whose_name_leads_here_gets_nothing(
    path: str, mlflow_server: str
) -> None:
    request = urllib.request.Request(f"{mlflow_server}/{path}", headers={"Host": "evil.example"})
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(request)
    assert refused.value.code == HTTPStatus.FORBIDDEN
    assert b"Invalid Host" in refused.value.read()


def test_the_first_page_has_the_headers_of_mlflows_others(mlflow_server: str) -> None:
    with urllib.request.urlopen(f"{mlflow_server}/") as answer:
        assert answer.headers["X-Frame-Options"] == "SAMEORIGIN"
        assert b"panelOpen_v1" in answer.read()


def test_mistakes_are_one_message(storage: Storage, tmp_path: Path) -> None:
    error_of("ui", str(tmp_path / "nothing"), code=WRONG_USAGE)
    away = error_of("sync", storage.uri, "--uri", "http://me:hidden-word@127.0.0.1:9", code=FAILED)
    assert "MLflow at http://127.0.0.1:9: " in away
    assert "hidden-word" not in away
    with socket.socket() as taken:
        taken.bind((HOST, 0))
        taken.listen()
        with pytest.raises(TrackingError, match="choose another --port"):
            free_port(HOST, taken.getsockname()[1])
