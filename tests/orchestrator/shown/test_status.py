"""What `status` says of a launch, how it words the latest events, and what it counts."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from orchestrator.cluster.tasks import ClusterLost, PoolError
from orchestrator.shown.status import SweepStatus, sweep_status
from orchestrator.store import events
from orchestrator.store.files import EARLIER, EVENTS, IDENTITY, STORE_ID, NoSweepError
from orchestrator.store.launches import (
    FAILED,
    FINISHED,
    INTERRUPTED,
    KILLED,
    RESUME_CALL,
    RUNNING,
    STOPPED,
    find_launch,
)
from orchestrator.store.locks import driver_lock
from orchestrator.store.sweep import Sweep
from tests.fakes.command_line import specfrontier
from tests.fakes.synthetic_sweeps import write_sweep
from workers.data.storage import Storage

ROOT = Path(__file__).parents[3]
START = datetime(2026, 1, 2, 3, 0, tzinfo=UTC)
HOLDER = """
import sys, time
from orchestrator.store.locks import driver_lock
from workers.data.storage import Storage
with driver_lock(Storage(sys.argv[1])):
    print("locked", flush=True)
    time.sleep(300)
"""


def status_of(folder: Path) -> SweepStatus:
    return sweep_status(Storage(folder), Sweep.open(folder))


def add_events(folder: Path, *given: events.Event) -> None:
    """Events a second apart."""
    folder.mkdir(parents=True, exist_ok=True)
    for second, event in enumerate(given):
        at = (START + timedelta(seconds=second)).isoformat()
        events.append_event(folder / EVENTS, replace(event, at=at))


@contextmanager
def running_driver(folder: Path) -> Iterator[subprocess.Popen[str]]:
    """A process that holds the sweep's lock."""
    words = [sys.executable, "-c", HOLDER, str(folder)]
    with subprocess.Popen(words, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "locked\n"
        yield process
        process.kill()


def test_events_without_a_whole_line_lack_all_trials(tmp_path: Path) -> None:
    """A file that was cut within its first line; a sweep without the file was copied without it."""
    write_sweep(tmp_path, trials=2)
    assert sweep_status(Storage(tmp_path), Sweep.open(tmp_path)).warnings == ()
    (tmp_path / EVENTS).write_text('{"at": "2026-01-02T03:00:00+00:00", "event": "launch"')
    torn, missing = status_of(tmp_path).warnings
    assert torn.startswith("events.jsonl: 1 damaged line is left out")
    assert missing.startswith("events.jsonl: the end of trial 0, 1 is missing")


def test_the_latest_events_say_what_happened(tmp_path: Path) -> None:
    write_sweep(tmp_path / "sweep", trials=2)
    add_events(
        tmp_path / "sweep",
        events.Phase("loading models"),
        events.Phase(""),
        events.Workers(2),
        events.Workers(0, note="no worker is running"),
    )
    assert status_of(tmp_path / "sweep").events == (
        "03:00:00 phase: loading models",
        "03:00:02 2 workers",
        "03:00:03 0 workers: no worker is running",
    )


def test_a_timing_session_is_among_the_latest_events_when_it_begins(tmp_path: Path) -> None:
    write_sweep(tmp_path / "sweep", trials=2)
    sessions = [events.Timing("worker-0", settings) for settings in (10, 0)]
    add_events(tmp_path / "sweep", events.Launch(), *sessions)
    assert status_of(tmp_path / "sweep").events[-1] == "03:00:01 timing: 10 settings on worker-0"


def test_the_plateau_of_the_latest_launch(tmp_path: Path) -> None:
    write_sweep(tmp_path / "sweep", trials=2)
    assert status_of(tmp_path / "sweep").plateau is None
    said = [events.Plateau(0.01, 5, trials, None, False, f"{trials} of 5") for trials in (1, 2)]
    add_events(tmp_path / "sweep", events.Launch(), *said)
    status = status_of(tmp_path / "sweep")
    assert status.plateau == {
        "share": 0.01,
        "patience": 5,
        "trials": 2,
        "added": None,
        "is_reached": False,
        "text": "2 of 5",
    }
    assert status.events[-1].endswith("launch"), "it is no news of its own"
    assert "2 of 5" in specfrontier("status", str(tmp_path / "sweep")).out
    add_events(tmp_path / "sweep", events.Launch())
    assert status_of(tmp_path / "sweep").plateau is None, "its budget may have none"


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    write_sweep(tmp_path / "sweep", trials=2)
    (tmp_path / "sweep" / EARLIER).write_bytes(b'{"sources": [')
    with pytest.raises(ValueError, match=EARLIER):
        status_of(tmp_path / "sweep")


def test_images_of_running_trials_count(tmp_path: Path) -> None:
    write_sweep(tmp_path / "sweep", trials=2)
    before = status_of(tmp_path / "sweep").images
    for trial, kind, images in (
        (1, "quality", 96),
        (2, "quality", 96),
        (2, "timing", 3),
        (2, "quality", 48),
    ):
        shard = events.Shard(trial, kind, images, 1.0, "w")
        add_events(tmp_path / "sweep", shard, events.Launch())
    assert before > 0
    assert status_of(tmp_path / "sweep").images == before + 144, "trial 1 has a record"


@pytest.mark.parametrize(
    ("end", "state", "cause"),
    [
        (KeyboardInterrupt(), INTERRUPTED, None),
        (PoolError("no worker started"), FAILED, "no worker started"),
        (ValueError("models: no such file\nmore"), FAILED, "models: no such file"),
        (None, FINISHED, None),
    ],
)
def test_a_launch_records_how_it_ended(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    end: BaseException | None,
    state: str,
    cause: str | None,
) -> None:
    monkeypatch.chdir(tmp_path)

    def launch(request: Any, views: Any, emit: Any, *, cores: int) -> Any:
        emit(events.Launch())
        emit(events.Phase("loading the models"))
        during = json.loads(specfrontier("status", "quickstart", "--json").out)["launch"]
        assert (during["state"], during["phase"]) == (RUNNING, "loading the models")
        assert during["elapsed_s"] >= 0
        if end is not None:
            raise end
        return mock.Mock(records=[], lost=[], stopped_by="trials", untimed="")

    monkeypatch.setattr("orchestrator.launch.supervise.launch", launch)
    monkeypatch.setattr("orchestrator.cli.launch._summary", lambda *_: "")
    specfrontier("launch", "quickstart", "--no-mlflow")
    shown = specfrontier("status", "quickstart", "--json").json
    assert (shown["name"], shown["finished"], shown["front"]) == ("quickstart", 0, [])
    assert (shown["launch"]["state"], shown["launch"]["cause"]) == (state, cause)
    assert f"launch    {state}" in specfrontier("status", "quickstart").out
    for command in ("pareto", "report", "sync"):
        refused = specfrontier(command, "quickstart")
        assert refused.code in (1, 2)
        assert state in refused.err
        assert "specfrontier status quickstart" in " ".join(refused.err.split())
        assert "no sweep here" not in refused.err
    with pytest.raises(NoSweepError, match=state):
        Sweep.open("quickstart")


def test_a_killed_launch_is_not_running(tmp_path: Path) -> None:
    """The lock tells it from one that runs; `status` needs no right to write."""
    folder = tmp_path / "sweep"
    add_events(folder, events.Launch(), events.Phase("starting Ray on this machine"))
    with running_driver(folder) as driver:
        (folder / "driver.lock").chmod(0o444)
        alive = find_launch(Storage(folder), now=START + timedelta(seconds=42))
        assert (alive.state, alive.phase, alive.elapsed_s) == (
            RUNNING,
            "starting Ray on this machine",
            42,
        )
        assert f"process {driver.pid} on " in alive.text
        add_events(folder, events.Timing("worker-0", 10))
        during = find_launch(Storage(folder), now=START + timedelta(seconds=42))
        assert "timing 10 settings on worker-0" in during.text
        with (folder / EVENTS).open("a") as file:
            file.write('{"at": "2026-01-02T03:')
        assert sweep_status(Storage(folder)).warnings == (), "it may be writing that line"
        driver.send_signal(signal.SIGKILL)
        driver.wait()
    dead = find_launch(Storage(folder))
    assert dead.state == KILLED
    assert f"process {driver.pid} on " in dead.text
    assert "killed" in specfrontier("status", str(folder)).out
    (warning,) = sweep_status(Storage(folder)).warnings
    assert warning.startswith("events.jsonl: 1 damaged line is left out")


def test_an_end_of_an_earlier_launch_is_not_that_of_the_next(tmp_path: Path) -> None:
    folder, end = tmp_path / "sweep", events.End("interrupted")
    add_events(folder, events.Launch(), end)
    assert find_launch(Storage(folder)).elapsed_s == 1
    assert find_launch(Storage(folder)).text.endswith(
        "; resume with: specfrontier launch SPACE --resume"
    )
    resumed = "specfrontier --plugin mine launch mine.yaml --resume"
    add_events(folder, events.Launch(resume=resumed), end)
    assert find_launch(Storage(folder)).text.endswith(f"; resume with: {resumed}")
    add_events(folder, events.Launch())
    assert find_launch(Storage(folder)).state == STOPPED
    with driver_lock(Storage(folder)):
        assert find_launch(Storage(folder)).state == RUNNING


def test_a_folder_is_resumed_where_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Copied, moved, or seen from another folder."""
    monkeypatch.chdir(tmp_path)
    first = tmp_path / "sweeps" / "first"
    notified = 'specfrontier launch mine.yaml --name=first --notify="$SPECFRONTIER_NOTIFY"'
    launch = events.Launch(resume=f"{notified} --resume", place=str(first))
    add_events(first, launch, events.End("interrupted"))

    def resume(folder: Path) -> str:
        return find_launch(Storage(folder)).resume

    assert resume(first) == f"{notified} --resume"
    kept = notified.replace(" --name=first", "")
    for place in ("sweeps/copy", "kept/first"):
        shutil.copytree(first, place)
        parent, name = place.split("/")
        assert resume(Path(place)) == f"{kept} --out {parent} --name {name} --resume"
    called = events.Launch(resume=RESUME_CALL, place=str(first))
    add_events(first, called, events.End("interrupted"))
    assert resume(first) == RESUME_CALL
    add_events(tmp_path / "kept" / "first", called, events.End("interrupted"))
    assert resume(Path("kept/first")) == (
        "specfrontier launch kept/first/sweep.yaml --out kept --name first --resume"
    )
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    add_events(first, launch, events.End("interrupted"))
    assert resume(first) == f"{kept} --out {tmp_path / 'sweeps'} --name first --resume"


@pytest.mark.parametrize("file", [EVENTS, STORE_ID])
def test_a_folder_of_something_else_is_no_sweep(tmp_path: Path, file: str) -> None:
    assert "no sweep here" in specfrontier("status", str(tmp_path)).err
    (tmp_path / file).touch()
    assert specfrontier("status", str(tmp_path)).code == 0


def test_lost_workers_and_clusters_are_said(tmp_path: Path) -> None:
    folder = tmp_path / "sweep"
    lost = events.Workers.losing("worker-1 on node-b", "its process has died", alive=1)
    again = events.Launch(
        note=f"{ClusterLost('Ray on this machine lost its raylet')}; starting another"
    )
    add_events(
        folder,
        events.Launch(),
        events.Workers(2),
        lost,
        events.Workers(1),
    )
    write_sweep(folder.with_name("other"), trials=1)
    (folder / IDENTITY).write_bytes((folder.with_name("other") / IDENTITY).read_bytes())
    (first,) = status_of(folder).lost
    for fact in ("03:00:02", "worker-1", "node-b", "its process has died", "1 worker left"):
        assert fact in first
    assert f"lost      {first}" in specfrontier("status", str(folder)).out
    add_events(folder, again)
    assert "lost its raylet" in status_of(folder).lost[1]
    add_events(folder, events.Launch())
    assert status_of(folder).lost == (), "those of an earlier launch"
