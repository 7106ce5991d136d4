"""A sweep that is killed, interrupted, or loses a worker ends with the results of one that is not.

`small` runs undisturbed. The driver of `broken` is killed; then its worker, Ray's GCS and raylet,
and it gets SIGTERM; then it gets two signals. It ends in the test's own process, without Ray. Both
must find the same.
"""

from __future__ import annotations

import shlex
import signal
import time
from dataclasses import dataclass
from pathlib import Path

import optuna
import pytest

from orchestrator.cluster import cluster_guard
from tests.fakes.command_line import specfrontier
from tests.fakes.local_pool import local_launches
from tests.fakes.real_sweeps import (
    CAPTIONS,
    SWEEP,
    SweepRun,
    assert_every_image_once,
    assert_same,
    command_line,
    files,
    kill,
    processes,
    ray_folder,
)
from tests.fakes.waiting import wait_until

pytestmark = pytest.mark.slow(seconds=120)
STARTED = "loading the models"  # Ray runs; while it starts, its C++ code may have the signals
Files = dict[str, tuple[int, int]]
Left = tuple[list[str], list[str]]  # command lines of Ray's processes, and Ray's files


@dataclass(frozen=True)
class BrokenSweep:
    """A sweep after its last launch, and what was seen in between."""

    run: SweepRun
    left: list[Left]  # after each end of a driver
    after_kill: Files
    after_signal: Files
    output: str
    exit_codes: list[int]


def ray_leftovers(ray: Path) -> Left:
    """What is left of Ray when a driver has ended and its guard is gone."""
    wait_until(
        lambda: (
            not [found for found in processes(ray) if cluster_guard.__file__ in command_line(found)]
        ),
        0.1,
    )
    return [" ".join(process.cmdline()) for process in processes(ray)], [
        path.name for path in ray.iterdir()
    ]


def kill_ray_process(ray: Path, name: str) -> None:
    """Kill a process of Ray by its program's name."""
    programs = {Path(*command_line(process)[:1]).name: process for process in processes(ray)}
    programs[name].kill()


@pytest.fixture(scope="module")
def broken(tmp_path_factory: pytest.TempPathFactory) -> BrokenSweep:
    folder = tmp_path_factory.mktemp("broken")
    options = ("--no-mlflow", "--workers", "1", "--study", f"sqlite:///{folder}/study.db")
    codes: list[int] = []
    left: list[Left] = []

    def end(*signals: signal.Signals) -> None:
        """Send signals to the driver, the second one after a moment."""
        for number in signals:
            run.process.send_signal(number)  # type: ignore[union-attr]
            time.sleep(0.1)
        codes.append(run.wait())
        left.append(ray_leftovers(ray))

    with ray_folder() as ray:
        run = SweepRun(folder, SWEEP, ray)
        run.start(*options, "--trials", "4", held_after=["shard"] * 4)
        run.wait_for(lambda: run.count("shard") == 4)
        end(signal.SIGKILL)
        after_kill = files(run.store)

        run.start(*options, "--resume")
        run.wait_for(lambda: run.count("shard") >= 9)
        run.wait_for(lambda: kill(processes(ray, "ray::Worker.run")))
        run.wait_for(lambda: "worker-1" in run.workers)
        for essential in ("gcs_server", "raylet"):
            launches = run.count("launch")
            with run.stopped():
                kill_ray_process(ray, essential)
            run.wait_for(lambda: run.count("launch") > launches)  # noqa: B023
            shards = run.count("shard")
            run.wait_for(lambda: run.count("shard") > shards)  # noqa: B023
        end(signal.SIGTERM)
        output = run.output
        after_signal = files(run.store)

        starts = run.output.count(STARTED)
        run.start(*options, "--resume")
        run.wait_for(lambda: run.output.count(STARTED) > starts)
        end(signal.SIGTERM, signal.SIGINT)

        resume = shlex.split(output.rpartition("resume with: specfrontier ")[2])
        with local_launches():  # once more on Ray would show nothing new
            last = specfrontier(*resume)
        assert last.code == 0, last.err
    return BrokenSweep(run, left, after_kill, after_signal, output, codes)


def test_nothing_of_ray_outlives_a_driver(broken: BrokenSweep) -> None:
    assert broken.left == [([], [])] * 3


def test_signals_end_a_sweep(broken: BrokenSweep) -> None:
    killed, terminated, twice = broken.exit_codes
    assert killed == -signal.SIGKILL
    assert terminated == 128 + signal.SIGTERM
    assert twice in (128 + signal.SIGINT, 128 + signal.SIGTERM), "the one that is handled second"


def test_an_interrupted_sweep_prints_the_command_that_resumes_it(broken: BrokenSweep) -> None:
    last = broken.output.splitlines()[-1]
    assert last.startswith("Interrupted; resume with: ")
    assert "specfrontier launch " in last
    assert last.endswith(" --resume")
    resume = shlex.split(last.rpartition("specfrontier ")[2])
    assert resume[:2] == ["launch", str(broken.run.folder / "space.yaml")]
    checked = specfrontier(*resume, "--check")
    assert checked.code == 0, checked.err
    assert checked.out.startswith("small\n")
    assert "Traceback" not in broken.run.output
    assert "SIGTERM received" not in broken.run.output
    assert broken.run.output.count("resume with: ") == 2


def test_a_killed_worker_is_replaced(broken: BrokenSweep) -> None:
    assert {"worker-0", "worker-1"} <= broken.run.workers


def test_a_killed_gcs_or_raylet_is_replaced(broken: BrokenSweep) -> None:
    notes = [
        event["note"]
        for event in broken.run.events
        if event["event"] == "launch" and "note" in event
    ]
    assert ["gcs_server" in notes[0], "raylet" in notes[1]] == [True, True]
    assert len(notes) == 2
    assert "state-dump" not in broken.run.output, "Ray's words"


def test_results_do_not_depend_on_interruptions(broken: BrokenSweep, small: SweepRun) -> None:
    assert [record.state for record in small.records] == ["complete"] * 6
    assert small.records[0].label == "vanilla"
    assert len({record.digest for record in small.records}) >= 4
    assert all(
        record.metrics["fid"].value > 0 and record.metrics["fid"].error for record in small.records
    )
    assert_same(small, broken.run)
    for run in (small, broken.run):
        assert_every_image_once(run, CAPTIONS)


def test_no_result_is_written_twice(broken: BrokenSweep) -> None:
    at_end = files(broken.run.store)
    assert sum(name.startswith("shards/") for name in broken.after_kill) >= 4
    assert broken.after_kill.items() <= broken.after_signal.items()
    assert broken.after_signal.items() <= at_end.items()
    assert len(broken.after_kill) < len(broken.after_signal) < len(at_end)


def test_a_study_in_a_database_holds_every_trial(broken: BrokenSweep) -> None:
    study = optuna.load_study(study_name="small", storage=f"sqlite:///{broken.run.folder}/study.db")
    assert [trial.state.name for trial in study.trials] == ["COMPLETE"] * 6
    told = [list(trial.params.values()) for trial in study.trials]
    assert told == [list(record.params.values()) for record in broken.run.records]
