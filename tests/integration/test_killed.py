"""The driver killed, interrupted, or a worker killed under it: nothing is lost, made twice, or found otherwise."""

from __future__ import annotations

import shlex
import signal
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.fakes.real_sweeps import (
    COMMAND,
    SMALL,
    Launched,
    assert_every_image_once,
    assert_same,
    files,
    processes,
    ray_folder,
)

pytestmark = pytest.mark.slow(seconds=140)
METRICS = ("step_compression", "caption_accuracy")
CAPTIONS = 16
LEAVING = 60.0  # seconds for a dead driver's Ray to go; 3 on a quiet machine


@dataclass(frozen=True)
class Broken:
    """A sweep killed at its 4th shard, interrupted at its 9th, and then run to its end."""

    launched: Launched
    left: int  # of the killed driver's processes
    after_kill: dict[str, tuple[int, int]]
    after_interrupt: dict[str, tuple[int, int]]
    code: int
    said: str


@pytest.fixture(scope="module")
def broken(tmp_path_factory: pytest.TempPathFactory) -> Broken:
    launched_in = tmp_path_factory.mktemp("broken")
    with ray_folder() as ray:
        launched = Launched(launched_in, SMALL, ray)
        launched.start("--no-mlflow", "--workers", "2")
        launched.wait_for(lambda: launched.count("shard") >= 4)
        launched.signal(signal.SIGKILL)
        assert launched.ended() == -signal.SIGKILL
        end = time.monotonic() + LEAVING
        while (left := len(processes(ray))) and time.monotonic() < end:
            time.sleep(0.1)
        after_kill = files(launched.store)
        launched.start("--no-mlflow", "--workers", "2", "--resume")
        launched.wait_for(lambda: launched.count("shard") >= 9)
        launched.signal(signal.SIGINT)
        code, said = launched.ended(), launched.said
        after_interrupt = files(launched.store)
        resume = shlex.split(said.rpartition("resume with: specfrontier ")[2])
        done = subprocess.run([*COMMAND, *resume], env=launched.variables, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
    return Broken(launched, left, after_kill, after_interrupt, code, said)


def test_a_killed_driver_takes_its_ray_along(broken: Broken) -> None:
    assert broken.left == 0


def test_an_interrupt_ends_it_with_the_command_that_goes_on(broken: Broken) -> None:
    assert broken.code == 130
    last = broken.said.splitlines()[-1]
    assert last.startswith("Error: interrupted; resume with: specfrontier launch ")
    assert last.endswith(" --resume")
    assert "Traceback" not in broken.said


def test_a_broken_sweep_comes_to_what_a_whole_one_comes_to(broken: Broken, small: Launched) -> None:
    assert_same(small, broken.launched, METRICS)
    assert_every_image_once(broken.launched, CAPTIONS)


def test_what_was_written_is_not_written_again(broken: Broken) -> None:
    at_last = files(broken.launched.store)
    assert sum(name.startswith("shards/") for name in broken.after_kill) >= 4
    assert broken.after_kill.items() <= broken.after_interrupt.items()
    assert broken.after_interrupt.items() <= at_last.items()
    assert len(broken.after_kill) < len(broken.after_interrupt) < len(at_last)


def test_a_killed_worker_costs_nothing_but_time(small: Launched, tmp_path: Path) -> None:
    """And the study can be kept in a database."""
    with ray_folder() as ray:
        launched = Launched(tmp_path, SMALL, ray)
        launched.start("--no-mlflow", "--workers", "2", "--study", f"sqlite:///{tmp_path}/study.db")
        for shards in (3, 8):
            launched.wait_for(lambda shards=shards: launched.count("shard") >= shards)  # type: ignore[misc]
            launched.wait_for(lambda: processes(ray, "ray::Worker.run"))
            for worker in processes(ray, "ray::Worker.run")[:1]:
                worker.kill()
        assert launched.ended() == 0, launched.said
    workers = {event["worker"] for event in launched.events if event["event"] == "shard"}
    assert len(workers) > 2, "a new worker took the place of the killed one"
    assert_same(small, launched, METRICS)
    assert_every_image_once(launched, CAPTIONS)

    import optuna

    study = optuna.load_study(study_name="small", storage=f"sqlite:///{tmp_path}/study.db")
    assert [trial.state.name for trial in study.trials] == ["COMPLETE"] * 6
    assert [trial.params for trial in study.trials] == [dict(record.params) for record in small.records]
