"""Timing sessions of a real sweep on two workers, one of which is killed in a session, and then the
driver in another.

A plugin holds the workers in the middle of their sessions, so that the signals find them there.
`small` runs the same sweep undisturbed, at speeds of its own.
"""

from __future__ import annotations

import os
import signal
import time
from dataclasses import dataclass
from typing import Any

import psutil
import pytest

from specfrontier import Sweep
from tests.fakes.real_sweeps import (
    CAPTIONS,
    SWEEP,
    SweepRun,
    assert_every_image_once,
    assert_same,
    files,
    ray_folder,
)
from workers.data.records import read_shard
from workers.data.shards import TIMINGS
from workers.data.storage import Storage

pytestmark = pytest.mark.slow(seconds=50)
PLUGIN = """
import os, sys, time
from pathlib import Path

FOLDER = Path(__file__).parent

if Path(sys.argv[0]).name == "default_worker.py":  # of Ray
    import workers.evaluate
    run_session = workers.evaluate.run_session

    def run_held_session(engines, captions, session, call):
        batches = []

        def hold():
            batches.append(None)
            if len(batches) == len(session.configs) + 1:  # each has warmed up, and one was timed
                mark = FOLDER / f"in-{session.number}"
                mark.with_suffix(".new").write_text(str(os.getpid()))
                mark.with_suffix(".new").replace(mark)
                while (FOLDER / f"hold-{session.number}").exists():
                    time.sleep(0.05)

        return run_session(engines, captions, session, call, hold)

    workers.evaluate.run_session = run_held_session
"""


@dataclass(frozen=True)
class HeldSweep:
    """A sweep after its last launch, and what was seen in between: the files when the driver was
    killed, the workers whose processes were in a session (by its number), and those that the driver
    lost.
    """

    run: SweepRun
    before: dict[str, tuple[int, int]]
    at_once: tuple[int, int]
    again: int
    lost: list[str]

    def session(self, number: int) -> tuple[str, dict[str, Any]]:
        """The file of the session of a trial, and its metadata."""
        names = {
            name: None
            for record in self.run.records
            for name in record.shards
            if name.startswith(TIMINGS)
        }
        name = [*names][number]
        return name, read_shard(Storage(str(self.run.store)), name, [])[1]


@pytest.fixture(scope="module")
def held(tmp_path_factory: pytest.TempPathFactory) -> HeldSweep:
    folder = tmp_path_factory.mktemp("held")
    (folder / "holds.py").write_text(PLUGIN)
    for number in range(3):
        (folder / f"hold-{number}").touch()

    def process_in(number: int) -> int:
        """The process that is in a session, 0 before."""
        mark = folder / f"in-{number}"
        return int(mark.read_text()) if mark.exists() else 0

    with ray_folder() as ray, pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(folder), prepend=os.pathsep)
        patch.setenv("SPECFRONTIER_PLUGINS", "holds")
        patch.syspath_prepend(folder)
        run = SweepRun(folder, SWEEP, ray)
        run.start("--no-mlflow", "--workers", "2")
        run.wait_for(lambda: process_in(0) and process_in(1))
        first, second = process_in(0), process_in(1)
        os.kill(first, signal.SIGKILL)
        run.wait_for(lambda: process_in(0) != first)
        again = process_in(0)
        for number in (0, 1):
            (folder / f"hold-{number}").unlink()
        run.wait_for(lambda: process_in(2))
        assert run.process is not None
        run.process.kill()
        run.wait()
        while psutil.pid_exists(process_in(2)):
            time.sleep(0.1)
        before = files(run.store)
        lost = [event["lost"].partition(" ")[0] for event in run.events if "lost" in event]
        run.run_locally("--no-mlflow", "--resume")
    return HeldSweep(run, before, (first, second), again, lost)


def test_a_session_whose_worker_is_killed_is_made_by_another(held: HeldSweep) -> None:
    assert held.again not in held.at_once, "that one is in the other session"
    (lost,) = held.lost
    assert held.session(0)[1]["worker"] != lost
    assert held.run.count("shard", kind="timing") == 3, "each of the trials' sessions was made once"


def test_sessions_run_on_either_worker_and_are_priced_as_of_one_device(held: HeldSweep) -> None:
    """The third one is of the launch that went on."""
    assert held.at_once[0] != held.at_once[1]
    assert len({held.session(number)[1]["worker"] for number in range(3)}) == 3
    prices, stored = Sweep.open(held.run.store).prices, list((held.run.store / TIMINGS).iterdir())
    assert len(prices.devices) == 1
    assert len(prices.sessions) == len(stored) > 3
    for record in held.run.records:
        assert record.config is not None
        own = prices.of(record.config.shape)[0].sessions_of(record.config.shape)
        assert len(own) >= 2, "its own, and that of the front"
        assert f"{record.shards[-1]} at batch 1" in {session.name for session in own}


def test_a_driver_killed_in_a_session_goes_on_with_it(held: HeldSweep) -> None:
    """Sessions that exist are not timed again."""
    timed = {name for name in held.before if name.startswith(TIMINGS)}
    assert timed == {held.session(0)[0], held.session(1)[0]}
    assert held.before.items() <= files(held.run.store).items()
    assert held.session(2)[1]["worker"] == "local"


def test_trials_and_sessions_depend_on_neither_interruptions_nor_speeds(
    held: HeldSweep, small: SweepRun
) -> None:
    """The objectives are deterministic; speeds are measured besides."""
    assert_same(small, held.run)
    assert_every_image_once(held.run, CAPTIONS)
    assert [record.shards for record in held.run.records] == [
        record.shards for record in small.records
    ]
    speeds = [
        [record.metrics["speedup"].value for record in run.records] for run in (held.run, small)
    ]
    assert speeds[0][0] == speeds[1][0] == 1.0
    assert all(one != other for one, other in zip(*(found[1:] for found in speeds), strict=True))
