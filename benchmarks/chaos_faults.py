"""The faults of `benchmarks.chaos`: each hurts a running sweep and waits until it delivers
again.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from benchmarks.chaos_sweep import POLL_S, ChaosSweep
from orchestrator.errors import FAILED, WRONG_USAGE
from orchestrator.store.files import EVENTS, FRONT_TABLE, MLFLOW_PLACE, STUDY, TRIAL_TABLE
from orchestrator.store.records import TrialRecord

TERMINATED = 128 + signal.SIGTERM
STOP_S = 30.0  # of SIGSTOP
# for a driver to end without its GCS: 25 s of patience, and Ray's shutdown takes 18
_GCS_TIMEOUT_S = 75.0
_SIGTERM_TIMEOUT_S = 15.0
_UNWRITABLE_S = 10.0  # of a store that is full or read-only; the driver may end before
_VIEWS = (STUDY, EVENTS, MLFLOW_PLACE, TRIAL_TABLE, FRONT_TABLE)
_VIEWS_TORN = 2


@dataclass(frozen=True, slots=True)
class Fault:
    """kind: a key of `KINDS`. delay_s: after the sweep has recovered from the last one. seed: of
    its own choices.
    """

    kind: str
    delay_s: float
    seed: int

    def happen(self, sweep: ChaosSweep) -> float:
        """Hurt the sweep; returns the seconds until it delivers again. Raises ChaosError if it does
        not.
        """
        time.sleep(self.delay_s)
        start = time.monotonic()
        KINDS[self.kind].happen(sweep, random.Random(self.seed))
        return time.monotonic() - start


@dataclass(frozen=True, slots=True)
class Kind:
    """weight: how often it is drawn. needs_mount: whether the store must be a file system of its
    own.
    """

    weight: int
    happen: Callable[[ChaosSweep, random.Random], None]
    needs_mount: bool = False


def plan(seed: int, count: int, kinds: Sequence[str]) -> list[Fault]:
    """Faults in random order, each kind at least once if there are enough; a function of the
    arguments.
    """
    rng = random.Random(seed)
    weights = [KINDS[kind].weight for kind in kinds]
    names = [*kinds, *rng.choices(kinds, weights, k=max(0, count - len(kinds)))][:count]
    rng.shuffle(names)
    return [Fault(kind, rng.uniform(0.0, 2.0), rng.randrange(1 << 30)) for kind in names]


def kill_worker(sweep: ChaosSweep, rng: random.Random) -> None:
    start = sweep.count("workers")
    _kill(rng.choice(sweep.cluster.processes("ray::Worker")))
    sweep.wait_delivering("workers", start=start)


def kill_raylet(sweep: ChaosSweep, rng: random.Random) -> None:
    start = sweep.count("workers")
    _kill(rng.choice(sweep.cluster.processes("raylet")[1:]))
    sweep.wait_delivering("workers", start=start)


def kill_gcs(sweep: ChaosSweep, rng: random.Random) -> None:
    start = sweep.count("launch")
    _kill(sweep.cluster.processes("gcs_server")[0])
    code = sweep.wait(_GCS_TIMEOUT_S)
    sweep.cluster.restart()
    sweep.relaunch(code, [FAILED])
    sweep.wait_delivering("launch", start=start)


def kill_driver(sweep: ChaosSweep, rng: random.Random) -> None:
    start = sweep.count("launch")
    sweep.kill()
    sweep.relaunch(sweep.wait(_SIGTERM_TIMEOUT_S), [-signal.SIGKILL])
    sweep.wait_delivering("launch", start=start)


def terminate_driver(sweep: ChaosSweep, rng: random.Random) -> None:
    start = sweep.count("launch")
    sweep.send_signal(signal.SIGTERM)
    sweep.relaunch(sweep.wait(_SIGTERM_TIMEOUT_S), [TERMINATED])
    sweep.wait_delivering("launch", start=start)


def kill_tracking(sweep: ChaosSweep, rng: random.Random) -> None:
    """Kill the MLflow server; it comes back when the sweep has gone on without it."""
    assert sweep.tracking is not None
    sweep.tracking.kill()
    sweep.wait_delivering()
    sweep.tracking.start()


def tear_files(sweep: ChaosSweep, rng: random.Random) -> None:
    """Truncate files while no driver runs, as a power cut may: views, one record, shards that a
    trial still needs.

    A record that is refused is removed, as the message says.
    """
    sweep.kill()
    code = sweep.wait(_SIGTERM_TIMEOUT_S)
    views = [path for path in (sweep.store / name for name in _VIEWS) if path.exists()]
    records = sorted((sweep.store / "trials").glob("[!.]*"))
    shards = _needed_shards(sweep)
    torn = rng.sample(views, k=min(_VIEWS_TORN, len(views)))
    torn += [*records[-1:], *rng.sample(shards, k=min(1, len(shards)))]
    for path in torn:
        os.truncate(path, int(path.stat().st_size * rng.random()))
    sweep.torn |= {path.name for path in torn}
    sweep.torn_record = next(iter(records[-1:]), None)
    start = sweep.count("launch")
    sweep.relaunch(code, [-signal.SIGKILL])
    sweep.wait_delivering("launch", [WRONG_USAGE], start)


def stop_process(sweep: ChaosSweep, rng: random.Random) -> None:
    """SIGSTOP for half a minute: a worker, a node, the GCS, the MLflow server or the driver."""
    assert sweep.process is not None
    cluster = sweep.cluster
    candidates = {
        "worker": cluster.processes("ray::Worker")[:1],
        "raylet": cluster.processes("raylet")[1:2],
        "gcs": cluster.processes("gcs_server"),
        "driver": [psutil.Process(sweep.process.pid)],
    }
    (process,) = candidates[rng.choice(list(candidates))]
    process.suspend()
    time.sleep(STOP_S)
    with suppress(psutil.NoSuchProcess):
        process.resume()
    sweep.wait_delivering(allowed=[FAILED])


def fill_store(sweep: ChaosSweep, rng: random.Random) -> None:
    with _full(sweep.out):
        _wait_for_end(sweep)
    sweep.wait_delivering(allowed=[FAILED])


def lock_store(sweep: ChaosSweep, rng: random.Random) -> None:
    with _read_only(sweep.out):
        _wait_for_end(sweep)
    sweep.wait_delivering(allowed=[FAILED])


def _wait_for_end(sweep: ChaosSweep) -> None:
    end = time.monotonic() + _UNWRITABLE_S
    while sweep.poll() is None and time.monotonic() < end:
        time.sleep(POLL_S)


@contextmanager
def _full(folder: Path) -> Iterator[None]:
    """The folder's file system is full while the block runs."""
    ballast = folder / "ballast"
    try:
        with ballast.open("wb", buffering=0) as file:
            for size in (1 << 20, 1 << 8):
                with suppress(OSError):
                    while True:
                        file.write(bytes(size))
        yield
    finally:
        ballast.unlink()


@contextmanager
def _read_only(folder: Path) -> Iterator[None]:
    """New files in the folder cannot be opened for writing while the block runs."""
    subprocess.run(["mount", "--bind", folder, folder], check=True)
    try:
        subprocess.run(["mount", "-o", "remount,bind,ro", folder], check=True)
        yield
    finally:
        subprocess.run(["umount", "--lazy", folder], check=True)


def _kill(process: psutil.Process) -> None:
    with suppress(psutil.NoSuchProcess):
        process.kill()


def _needed_shards(sweep: ChaosSweep) -> list[Path]:
    """The baseline's shards, and those that no trial's record names. The others are not read
    again.
    """
    baseline: Sequence[str] = ()
    recorded = set[str]()
    for path in sorted((sweep.store / "trials").glob("[!.]*")):
        with suppress(ValueError):
            record = TrialRecord.from_json(path.read_bytes())
            baseline = baseline or record.shards
            recorded |= set(record.shards)
    paths = [
        path
        for folder in ("shards", "timings")
        for path in sorted((sweep.store / folder).glob("[!.]*"))
    ]
    named = {path: f"{path.parent.name}/{path.name}" for path in paths}
    return [path for path, name in named.items() if name in baseline or name not in recorded]


KINDS: Mapping[str, Kind] = {
    "worker killed": Kind(26, kill_worker),
    "raylet killed": Kind(14, kill_raylet),
    "GCS killed": Kind(3, kill_gcs),
    "driver killed": Kind(10, kill_driver),
    "driver terminated": Kind(8, terminate_driver),
    "MLflow killed": Kind(12, kill_tracking),
    "files torn": Kind(8, tear_files),
    "store full": Kind(6, fill_store, needs_mount=True),
    "store read-only": Kind(6, lock_store, needs_mount=True),
    "stopped 30 s": Kind(7, stop_process),
}
