"""A real MLflow server that comes late, goes and comes back, or loses its answers; and the commands around it."""

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

from orchestrator.results.store import read_trials, trial_file, write_trial
from orchestrator.results.trials import TrialRecord
from orchestrator.tracking.outbox import Ledger, TrackingError
from orchestrator.tracking.server import free_port, serving
from orchestrator.tracking.tracker import Pending, Synced, Tracker, sync
from tests.fakes.synthetic_sweeps import write_sweep
from workers.data.storage import Storage

if TYPE_CHECKING:
    from mlflow.entities import Run

pytestmark = pytest.mark.slow(seconds=90)
HOST, TRIALS = "127.0.0.1", 8
COMMANDS = "from orchestrator.cli.app import main; main()"


@pytest.fixture(autouse=True)
def _no_other_server(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("MLFLOW_TRACKING_URI", "MLFLOW_EXPERIMENT_NAME"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A database with its tables: making them takes seconds."""
    root = tmp_path_factory.mktemp("empty")
    write_sweep(root / "none", 0, name="none", failed=())
    sync(Storage(str(root / "none")), f"sqlite:///{root}/mlflow.db")
    return root / "mlflow.db"


@pytest.fixture
def storage(tmp_path: Path) -> Storage:
    """A sweep that bears the name of its test's folder, so that sweeps at one server differ."""
    name = tmp_path.name.strip("_")
    write_sweep(tmp_path / "sweeps" / name, TRIALS, name=name, failed=(5,))
    return Storage(str(tmp_path / "sweeps" / name))


@contextmanager
def running(folder: Path, port: int) -> Iterator[str]:
    """A server on the database in a folder, and its address."""
    with serving(Storage(str(folder / "x")), f"sqlite:///{folder}/mlflow.db", HOST, port) as (base, _):
        yield base


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, database: Path) -> Iterator[str]:
    """The address of a server that several tests use."""
    folder = tmp_path_factory.mktemp("server")
    shutil.copy(database, folder / "mlflow.db")
    with running(folder, 0) as base:
        yield base


def children(base: str, storage: Storage) -> dict[int, Run]:
    """The sweep's trials at a server, by number: fails if there is one twice, or there are two parents."""
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


def until(truth: Callable[[], bool], seconds: float = 120.0) -> None:
    end = time.monotonic() + seconds
    while not truth():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.1)


def take_away(storage: Storage, records: list[TrialRecord]) -> None:
    for record in records:
        path = storage.path(trial_file(record.number))
        assert path is not None
        path.unlink()


def test_a_server_that_is_down_at_first_and_goes_half_way_gets_everything_once(
    storage: Storage, database: Path, tmp_path: Path
) -> None:
    shutil.copy(database, tmp_path / "mlflow.db")
    records = read_trials(storage)
    take_away(storage, records[3:])
    port = free_port(HOST, 0)
    base = f"http://{HOST}:{port}"
    tracker = Tracker(storage, uri=base)
    tracker.start()
    until(lambda: tracker.problem is not None)
    assert tracker.pending().count == 3
    with running(tmp_path, port):
        until(lambda: tracker.problem is None and tracker.pending().count == 0)
        assert children(base, storage).keys() == {0, 1, 2}
        assert tracker.link is not None
    for record in records[3:]:
        write_trial(storage, record)
        tracker.nudge()
    until(lambda: tracker.problem is not None)
    assert tracker.pending().count == TRIALS - 3
    with running(tmp_path, port):
        assert tracker.finish(120) == Pending(0, None)
        found = children(base, storage)
        assert found.keys() == set(range(TRIALS))
        assert {run.info.status for number, run in found.items() if number != 5} == {"FINISHED"}
        assert all("speedup" in run.data.metrics for number, run in found.items() if number != 5)
        with urllib.request.urlopen(f"{base}/get-artifact?run_uuid={found[0].info.run_id}&path=images.png") as answer:
            assert answer.read() == storage.read(f"pictures/{records[0].digest}.png")
        assert sync(storage, base) == Synced(0, TRIALS)


class Forgetful(http.server.BaseHTTPRequestHandler):
    """Passes requests on to a server, and loses the answers to some of those that make runs."""

    target, lost, made = "", frozenset[int](), 0

    def log_message(self, format: str, *args: object) -> None:
        """Nothing: the test reads the server's pages, not this."""

    def _pass(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0)) or None
        kept = {key: value for key, value in self.headers.items() if key.lower() not in ("host", "content-length")}
        request = urllib.request.Request(self.target + self.path, body, kept, method=self.command)
        try:
            with urllib.request.urlopen(request, timeout=240) as answer:
                code, data, kind = answer.status, answer.read(), answer.headers.get("Content-Type", "")
        except urllib.error.HTTPError as error:
            code, data, kind = error.code, error.read(), error.headers.get("Content-Type", "")
        if self.path.endswith("/runs/create"):
            type(self).made += 1
            if self.made in self.lost:
                self.close_connection = True
                return
        self.send_response(code)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = _pass


@contextmanager
def losing_answers(target: str, *lost: int) -> Iterator[str]:
    """A way to `target` on which the answers to the given creations of runs (counted from 1) get lost."""
    handler = type("Handler", (Forgetful,), {"target": target, "lost": frozenset(lost), "made": 0})
    with http.server.ThreadingHTTPServer((HOST, 0), handler) as proxy:
        threading.Thread(target=proxy.serve_forever, daemon=True).start()
        yield f"http://{HOST}:{proxy.server_address[1]}"
        assert handler.made >= max(lost)  # type: ignore[attr-defined]
        proxy.shutdown()


def test_a_run_that_was_made_unseen_is_found_again(storage: Storage, server: str) -> None:
    with losing_answers(server, 1, 2, 5) as way:
        tracker = Tracker(storage, uri=way)
        tracker.start()
        assert tracker.finish(120) == Pending(0, None)
    assert children(server, storage).keys() == set(range(TRIALS))


def test_credentials_in_the_address_stay_there(storage: Storage, server: str, tmp_path: Path) -> None:
    assert sync(storage, server.replace("//", "//me:hidden-word@")).logged == TRIALS
    assert Ledger(storage).runs()[0].uri == server
    folders = (tmp_path, Path(str(tmp_path)).parent)
    files = {path for folder in folders for path in folder.rglob("*") if path.is_file()}
    assert any(path.name == "mlflow.db" for path in files)
    assert [path for path in files if b"hidden-word" in path.read_bytes()] == []


def specfrontier(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", COMMANDS, *arguments]
    known = os.environ | environment
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120, env=known)


@contextmanager
def ui(place: str) -> Iterator[tuple[dict[str, str], subprocess.Popen[str]]]:
    """The running `ui` command, and the addresses that it printed."""
    command = [sys.executable, "-u", "-c", COMMANDS, "ui", place, "--port", "0"]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, start_new_session=True) as process:
        assert process.stdout is not None
        said: dict[str, str] = {}
        for line in process.stdout:
            if line.startswith("Ctrl-C"):
                break
            name, link = line.split()
            said[name] = link
        try:
            yield said, process
        finally:
            process.kill()


def test_ui_shows_what_was_never_logged_and_leaves_no_server_behind(
    storage: Storage, database: Path, tmp_path: Path
) -> None:
    shutil.copy(database, tmp_path / "sweeps" / "mlflow.db")
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


def test_ui_and_sync_name_the_pages_of_a_server(storage: Storage, server: str) -> None:
    ran = specfrontier("sync", storage.uri, "--json", MLFLOW_TRACKING_URI=server.replace("//", "//me:hidden-word@"))
    facts = json.loads(ran.stdout)
    assert (facts["logged"], facts["already"], facts["uri"]) == (TRIALS, 0, server)
    assert facts["links"]["front"].startswith(f"{server}/#/compare-runs?")
    again = specfrontier("sync", storage.uri, "--uri", server)
    assert again.stdout.startswith(f"0 trials logged, {TRIALS} were there: {server}\n")
    shown = specfrontier("ui", storage.uri)
    assert shown.returncode == 0
    assert shown.stdout.split()[1::2] == list(facts["links"].values())
    assert "hidden-word" not in ran.stdout + ran.stderr


def test_mistakes_get_a_sentence(storage: Storage, tmp_path: Path) -> None:
    nowhere = specfrontier("ui", str(tmp_path / "nothing"))
    assert (nowhere.returncode, nowhere.stdout, nowhere.stderr.count("\n")) == (2, "", 1)
    away = specfrontier("sync", storage.uri, "--uri", "http://me:hidden-word@127.0.0.1:9")
    assert (away.returncode, away.stdout) == (1, "")
    assert away.stderr.startswith("Error: MLflow at http://127.0.0.1:9: ")
    assert "hidden-word" not in away.stderr
    assert "Traceback" not in away.stderr
    with socket.socket() as taken:
        taken.bind((HOST, 0))
        taken.listen()
        with pytest.raises(TrackingError, match="choose another --port"):
            free_port(HOST, taken.getsockname()[1])
