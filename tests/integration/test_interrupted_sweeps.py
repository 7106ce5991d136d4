"""A sweep that is killed, interrupted, or loses a worker ends with the results of one that is not.

`small` runs undisturbed. The driver of `broken` is killed, then its worker, then it is interrupted. It ends in the
test's own process, without Ray. Both must find the same.
"""

from __future__ import annotations

import shlex
import signal
import time
from dataclasses import dataclass

import optuna
import pytest

from tests.fakes.command_line import specfrontier
from tests.fakes.local_pool import local_launches
from tests.fakes.real_sweeps import (
    CAPTIONS,
    SWEEP,
    SweepRun,
    assert_every_image_once,
    assert_same,
    files,
    processes,
    ray_folder,
)

pytestmark = pytest.mark.slow(seconds=120)
RAY_EXIT_TIMEOUT_S = 60.0  # for a killed driver's Ray processes; a quiet machine needs 3
Files = dict[str, tuple[int, int]]


@dataclass(frozen=True)
class BrokenSweep:
    """A sweep after its last launch, and what was seen in between."""

    run: SweepRun
    ray_processes_left: int  # after the driver was killed
    after_kill: Files
    after_interrupt: Files
    exit_code: int  # of the interrupted launch
    output: str


@pytest.fixture(scope="module")
def broken(tmp_path_factory: pytest.TempPathFactory) -> BrokenSweep:
    folder = tmp_path_factory.mktemp("broken")
    options = ("--no-mlflow", "--workers", "1", "--study", f"sqlite:///{folder}/study.db")
    with ray_folder() as ray:
        run = SweepRun(folder, SWEEP, ray)
        run.start(*options, "--trials", "4")
        run.wait_for(lambda: run.count("shard") >= 4)
        run.process.kill()  # type: ignore[union-attr]
        assert run.wait() == -signal.SIGKILL
        end = time.monotonic() + RAY_EXIT_TIMEOUT_S
        while (left := len(processes(ray))) and time.monotonic() < end:
            time.sleep(0.1)
        after_kill = files(run.store)

        run.start(*options, "--resume")
        run.wait_for(lambda: run.count("shard") >= 9)
        run.wait_for(lambda: processes(ray, "ray::Worker.run"))
        processes(ray, "ray::Worker.run")[0].kill()
        run.wait_for(lambda: "worker-1" in run.workers)
        run.process.send_signal(signal.SIGINT)  # type: ignore[union-attr]
        exit_code, output = run.wait(), run.output
        after_interrupt = files(run.store)

        resume = shlex.split(output.rpartition("resume with: specfrontier ")[2])
        with local_launches():  # once more on Ray would show nothing new
            last = specfrontier(*resume)
        assert last.code == 0, last.err
    return BrokenSweep(run, left, after_kill, after_interrupt, exit_code, output)


def test_a_killed_driver_leaves_no_ray_process(broken: BrokenSweep) -> None:
    assert broken.ray_processes_left == 0


def test_an_interrupted_sweep_prints_the_command_that_resumes_it(broken: BrokenSweep) -> None:
    assert broken.exit_code == 130
    last = broken.output.splitlines()[-1]
    assert last.startswith("Error: interrupted")
    assert "specfrontier launch " in last
    assert last.endswith(" --resume")
    resume = shlex.split(last.rpartition("specfrontier ")[2])
    assert resume[:2] == ["launch", str(broken.run.folder / "space.yaml")]
    checked = specfrontier(*resume, "--check")
    assert checked.code == 0, checked.err
    assert checked.out.startswith("small\n")
    assert "Traceback" not in broken.output


def test_a_killed_worker_is_replaced(broken: BrokenSweep) -> None:
    assert {"worker-0", "worker-1"} <= broken.run.workers


def test_results_do_not_depend_on_interruptions(broken: BrokenSweep, small: SweepRun) -> None:
    assert [record.state for record in small.records] == ["complete"] * 6
    assert small.records[0].label == "vanilla"
    assert len({record.digest for record in small.records}) >= 4
    assert all(record.metrics["fid"].value > 0 and record.metrics["fid"].error for record in small.records)
    assert_same(small, broken.run)
    for run in (small, broken.run):
        assert_every_image_once(run, CAPTIONS)


def test_no_result_is_written_twice(broken: BrokenSweep) -> None:
    at_end = files(broken.run.store)
    assert sum(name.startswith("shards/") for name in broken.after_kill) >= 4
    assert broken.after_kill.items() <= broken.after_interrupt.items()
    assert broken.after_interrupt.items() <= at_end.items()
    assert len(broken.after_kill) < len(broken.after_interrupt) < len(at_end)


def test_a_study_in_a_database_holds_every_trial(broken: BrokenSweep) -> None:
    study = optuna.load_study(study_name="small", storage=f"sqlite:///{broken.run.folder}/study.db")
    assert [trial.state.name for trial in study.trials] == ["COMPLETE"] * 6
    assert [trial.params for trial in study.trials] == [dict(record.params) for record in broken.run.records]
