"""A real MLflow server that starts late, goes away and comes back, or drops answers; and the commands for it."""

from __future__ import annotations

import http.server
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from typer.testing import CliRunner, Result

from orchestrator.cli.app import app
from orchestrator.errors import CommandError
from orchestrator.results.store import read_trials, trial_file, write_trial
from orchestrator.results.trials import TrialRecord
from orchestrator.tracking.client import TrackingError
from orchestrator.tracking.run_log import RunLog
from orchestrator.tracking.server import free_port, serving
from orchestrator.tracking.tracker import SweepTracker, SyncResult, sync
from tests.fakes.synthetic_sweeps import write_sweep
from workers.data.storage import Storage

if TYPE_CHECKING:
    from mlflow.entities import Run

pytestmark = pytest.mark.slow(seconds=50)
HOST, TRIALS = "127.0.0.1", 8
COMMAND = "from orchestrator.cli.app import main; main()"


@pytest.fixture
def storage(tmp_path: Path) -> Storage:
    """A sweep with the name of its test's folder, so that the sweeps on one server differ."""
    name = tmp_path.name.strip("_")
    write_sweep(tmp_path / "sweeps" / name, TRIALS, name=name, failed=(5,))
    return Storage(str(tmp_path / "sweeps" / name))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, empty_database: Path) -> Iterator[str]:
    """The address of a server that all tests share."""
    folder = tmp_path_factory.mktemp("server")
    shutil.copy(empty_database, folder / "mlflow.db")
    with serving(Storage(str(folder / "x")), f"sqlite:///{folder}/mlflow.db", HOST, 0) as (base, _):
        yield base


def children(base: str, storage: Storage) -> dict[int, Run]:
    """The runs of the sweep's trials on a server, by number; fails if there is a duplicate or a second parent."""
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


def until(reached: Callable[[], bool], seconds: float = 120.0) -> None:
    end = time.monotonic() + seconds
    while not reached():
        assert time.monotonic() < end, "timed out"
        time.sleep(0.1)


def logged(storage: Storage) -> int:
    """The number of trials in the run log."""
    return len(RunLog(storage).runs())


def remove(storage: Storage, records: list[TrialRecord]) -> None:
    for record in records:
        path = storage.path(trial_file(record.number))
        assert path is not None
        path.unlink()


def test_everything_is_logged_once_though_the_server_starts_late_and_goes_away(storage: Storage, server: str) -> None:
    records = read_trials(storage)
    remove(storage, records[3:])
    port = free_port(HOST, 0)
    base = f"http://{HOST}:{port}"
    tracker = SweepTracker(storage, uri=base)
    tracker.start()
    until(lambda: tracker.problem is not None)
    assert logged(storage) == 0
    with proxy(server, port=port):
        until(lambda: tracker.problem is None and logged(storage) == 3)
        assert children(base, storage).keys() == {0, 1, 2}
    for record in records[3:]:
        write_trial(storage, record)
        tracker.nudge()
    until(lambda: tracker.problem is not None)
    assert logged(storage) == 3
    with proxy(server, port=port):
        assert tracker.finish(120) is None
        assert (logged(storage), tracker.problem) == (TRIALS, None)
        found = children(base, storage)
        assert found.keys() == set(range(TRIALS))
        assert {run.info.status for number, run in found.items() if number != 5} == {"FINISHED"}
        assert all("speedup" in run.data.metrics for number, run in found.items() if number != 5)
        with urllib.request.urlopen(f"{base}/get-artifact?run_uuid={found[0].info.run_id}&path=images.png") as answer:
            assert answer.read() == storage.read(f"pictures/{records[0].digest}.png")
        assert sync(storage, base) == SyncResult(0, TRIALS)


class Forwarding(http.server.BaseHTTPRequestHandler):
    """Forwards requests to a server, and drops the answers to some of those that create runs."""

    target, dropped, created = "", frozenset[int](), 0

    def log_message(self, format: str, *args: object) -> None:
        """Print nothing."""

    def _forward(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0)) or None
        kept = {key: value for key, value in self.headers.items() if key.lower() not in ("host", "content-length")}
        request = urllib.request.Request(self.target + self.path, body, kept, method=self.command)
        try:
            with urllib.request.urlopen(request, timeout=240) as answer:
                code, data, kind = answer.status, answer.read(), answer.headers.get("Content-Type", "")
        except urllib.error.HTTPError as error:
            code, data, kind = error.code, error.read(), error.headers.get("Content-Type", "")
        if self.path.endswith("/runs/create"):
            type(self).created += 1
            if self.created in self.dropped:
                self.close_connection = True
                return
        self.send_response(code)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = _forward


@contextmanager
def proxy(target: str, *dropped: int, port: int = 0) -> Iterator[str]:
    """The address of a proxy to `target` that drops the answers to the given creations of runs (counted from 1)."""
    handler = type("Handler", (Forwarding,), {"target": target, "dropped": frozenset(dropped), "created": 0})
    with http.server.ThreadingHTTPServer((HOST, port), handler) as forwarding:
        threading.Thread(target=forwarding.serve_forever, daemon=True).start()
        yield f"http://{HOST}:{forwarding.server_address[1]}"
        assert handler.created >= max(dropped, default=0)  # type: ignore[attr-defined]
        forwarding.shutdown()


def test_a_run_whose_creation_went_unanswered_is_found_again(storage: Storage, server: str) -> None:
    with proxy(server, 1, 2, 5) as base:
        tracker = SweepTracker(storage, uri=base)
        tracker.start()
        assert tracker.finish(120) is None
    assert children(server, storage).keys() == set(range(TRIALS))


def test_credentials_in_the_address_are_not_stored(storage: Storage, server: str, tmp_path: Path) -> None:
    assert sync(storage, server.replace("//", "//me:hidden-word@")).logged == TRIALS
    assert RunLog(storage).runs()[0].uri == server
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    databases = list(tmp_path.parent.rglob("mlflow.db"))
    assert databases
    assert [path for path in (*files, *databases) if b"hidden-word" in path.read_bytes()] == []


def specfrontier(*arguments: str) -> Result:
    return CliRunner().invoke(app, [*arguments])


@contextmanager
def ui(place: str) -> Iterator[tuple[dict[str, str], subprocess.Popen[str]]]:
    """The running `ui` command, and the addresses that it printed."""
    command = [sys.executable, "-u", "-c", COMMAND, "ui", place, "--port", "0"]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, start_new_session=True) as process:
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
        assert list(links) == ["mlflow", "sweep", "front"]
        assert len(children(links["mlflow"], storage)) == TRIALS
        os.killpg(process.pid, signal.SIGINT)  # as the terminal does for Ctrl-C
        assert process.wait(240) == 0
        assert process.stderr is not None
        assert process.stderr.read() == ""
    port = int(links["mlflow"].rpartition(":")[2])
    assert free_port(HOST, port) == port
    with socket.socket() as probe:
        assert probe.connect_ex((HOST, port)) != 0


def test_sync_and_ui_print_the_pages_of_a_server(
    storage: Storage, server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", server.replace("//", "//me:hidden-word@"))
    ran = specfrontier("sync", storage.uri, "--json")
    facts = json.loads(ran.stdout)
    assert (facts["logged"], facts["already"], facts["uri"]) == (TRIALS, 0, server)
    assert facts["links"]["front"].startswith(f"{server}/#/compare-runs?")
    assert "hidden-word" not in ran.output
    monkeypatch.delenv("MLFLOW_TRACKING_URI")
    assert specfrontier("sync", storage.uri, "--uri", server).stdout.startswith("0 trials logged, ")
    shown = specfrontier("ui", storage.uri)
    assert shown.exit_code == 0
    assert shown.stdout.split()[1::2] == list(facts["links"].values())


def test_mistakes_are_one_message(storage: Storage, tmp_path: Path) -> None:
    nowhere = specfrontier("ui", str(tmp_path / "nothing")).exception
    assert isinstance(nowhere, CommandError)
    assert nowhere.code == 2
    away = specfrontier("sync", storage.uri, "--uri", "http://me:hidden-word@127.0.0.1:9")
    assert isinstance(away.exception, CommandError)
    assert (away.exception.code, away.stdout) == (1, "")
    assert str(away.exception).startswith("MLflow at http://127.0.0.1:9: ")
    assert "hidden-word" not in str(away.exception)
    with socket.socket() as taken:
        taken.bind((HOST, 0))
        taken.listen()
        with pytest.raises(TrackingError, match="choose another --port"):
            free_port(HOST, taken.getsockname()[1])
