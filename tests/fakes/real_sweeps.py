"""Sweeps of a tiny untrained model run for real: `specfrontier` in a process of its own, watched by its events."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
import pyarrow.parquet as pq

from orchestrator.results.store import read_trials
from orchestrator.results.trials import TrialRecord
from tests.fakes.tiny_models import tiny_scenes
from workers.data.storage import Storage

ROOT = Path(__file__).parents[2]
COMMAND = [sys.executable, "-c", "from orchestrator.cli.app import main; main()"]
HOST = "127.0.0.1"
PATIENCE = 400.0  # seconds, of a busy machine; a quiet one needs a tenth
CLOCKS = ("seconds", "latency", "batch")  # what a row owes to the machine and not to the setting
COMMON = """
models: {weights: WEIGHTS}
captions: {source: scenes, count: COUNT, seed: 1}
reference: {source: scenes, count: 96, seed: 2}
timing: {batch: 1, images: 2, repetitions: 1}
sampling: {temperature: 1.0, top_k: 0, top_p: 1.0, cfg: 1.0}
space:
  drafter: eagle
  tree: {policy: chain, length: {low: 2, high: 3}}
  acceptance:
    - exact
    - {neighbourhood: additive, k: {low: 2, high: 100, log: true}, delta: {low: 0.02, high: 0.5, log: true}}
    - {schedule: constant, budget: {low: 1.05, high: 3.0, log: true}}
"""
SMALL = """
name: small
quality: {batch: 4, shard: 4}
metrics: [step_compression, caption_accuracy, speedup]
objectives: [step_compression, caption_accuracy]
search: {sampler: nsga2, parallel: 2, seed: 0, options: {population_size: 2}}
budget: {trials: 6}
""" + COMMON.replace("COUNT", "16")
WITH_FID = """
name: withfid
quality: {batch: 35, shard: 35}
metrics: [step_compression, fid, drift]
objectives: [step_compression, fid]
search: {sampler: tpe, parallel: 2, seed: 0, options: {n_startup_trials: 2}}
budget: {trials: 5}
""" + COMMON.replace("COUNT", "70")


@contextmanager
def ray_folder() -> Iterator[Path]:
    """A folder for Ray's files with a path short enough for sockets. Whoever was started with it is gone at the end."""
    folder = Path(tempfile.mkdtemp(prefix="sf-", dir="/tmp"))
    try:
        yield folder
    finally:
        for process in processes(folder):
            process.kill()
        shutil.rmtree(folder, ignore_errors=True)


def processes(folder: Path, title: str = "") -> list[psutil.Process]:
    """The processes that use this folder for Ray, this one excepted, and whose command line begins with `title`."""
    found = []
    for process in psutil.process_iter():
        try:
            ours = process.environ().get("RAY_TMPDIR") == str(folder) and process.status() != psutil.STATUS_ZOMBIE
            if ours and process.pid != os.getpid() and " ".join(process.cmdline()).startswith(title):
                found.append(process)
        except psutil.Error:
            continue
    return found


def halt(workers: Sequence[psutil.Process], sign: signal.Signals) -> None:
    """Send a signal (SIGSTOP, SIGCONT) to processes; those that have gone meanwhile do not matter."""
    assert workers
    for worker in workers:
        with suppress(psutil.NoSuchProcess):
            worker.send_signal(sign)


@dataclass
class Launched:
    """A launch of one of the sweeps above, with its folder, process and what it has said."""

    folder: Path
    text: str
    ray: Path
    environment: Mapping[str, str] = field(default_factory=dict)
    process: subprocess.Popen[bytes] | None = None

    @property
    def store(self) -> Path:
        return self.folder / "sweeps" / self.text.split()[1]

    @property
    def variables(self) -> dict[str, str]:
        """Environment of the command: one thread, no token, this checkout's code."""
        own = {key: value for key, value in os.environ.items() if not key.startswith("MLFLOW_")}
        path = os.pathsep.join(filter(None, (str(ROOT), own.get("PYTHONPATH"))))
        fixed = {"OMP_NUM_THREADS": "1", "RAY_TMPDIR": str(self.ray), "RAY_AUTH_MODE": "disabled", "PYTHONPATH": path}
        return own | fixed | dict(self.environment)

    def arguments(self, *options: str) -> list[str]:
        self.folder.mkdir(parents=True, exist_ok=True)
        space = self.folder / "space.yaml"
        space.write_text(self.text.replace("WEIGHTS", str(tiny_scenes(self.folder / "weights"))))
        return ["launch", str(space), "--out", str(self.folder / "sweeps"), *options]

    def start(self, *options: str) -> None:
        command = [*COMMAND, *self.arguments(*options)]
        with (self.folder / "said").open("ab") as log:
            self.process = subprocess.Popen(command, env=self.variables, stdout=log, stderr=log, cwd=self.folder)

    def run(self, *options: str) -> None:
        """To its end, which is a good one."""
        self.start(*options)
        assert self.ended() == 0, self.said

    def ended(self, seconds: float = PATIENCE) -> int:
        """The exit code, when there is one."""
        assert self.process is not None
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.signal(signal.SIGKILL)
            raise AssertionError(f"not at its end after {seconds:g} s:\n{self.said}") from None

    def signal(self, number: signal.Signals) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    @property
    def said(self) -> str:
        return (self.folder / "said").read_text()

    @property
    def events(self) -> list[dict[str, Any]]:
        file = self.store / "events.jsonl"
        lines = file.read_text().splitlines(keepends=True) if file.exists() else []
        return [json.loads(line) for line in lines if line.endswith("\n")]

    def count(self, event: str, **facts: Any) -> int:
        """How many events of that name, with those facts, there are."""
        return sum(e["event"] == event and facts.items() <= e.items() for e in self.events)

    def wait_for(self, reached: Callable[[], object], seconds: float = PATIENCE) -> None:
        """Until something holds; an error if the process ends before it does."""
        end = time.monotonic() + seconds
        while not reached():
            assert time.monotonic() < end, f"waited in vain:\n{self.said}"
            ended = self.process is not None and self.process.poll() is not None
            assert not ended or reached(), f"ended too early:\n{self.said}"
            time.sleep(0.02)

    @property
    def records(self) -> list[TrialRecord]:
        return read_trials(Storage(str(self.store)))


@dataclass(frozen=True)
class Logged:
    """A sweep whose MLflow server came late and left early: its database, port, and the trials logged by then."""

    launched: Launched
    database: Path
    port: int
    in_time: int


def files(store: Path) -> dict[str, tuple[int, int]]:
    """Every finished file of results with what a second writing would change: its inode and time."""
    found = {}
    for folder in ("shards", "measures", "trials"):
        for path in sorted((store / folder).glob("[!.]*")):
            facts = path.stat()
            found[f"{folder}/{path.name}"] = (facts.st_ino, facts.st_mtime_ns)
    return found


def images(store: Path) -> dict[str, pa.Table]:
    """The quality shards' rows by file, without what the clock says."""
    shards = {path.name: pq.read_table(path) for path in sorted((store / "shards").glob("quality-*.parquet"))}
    return {
        name: table.select([column for column in table.column_names if not column.startswith(CLOCKS)])
        for name, table in shards.items()
    }


def results(records: Sequence[TrialRecord], metrics: Sequence[str]) -> list[tuple[Any, ...]]:
    """What a sweep came to, trial by trial, clocks left out."""
    return [
        (
            record.number,
            record.label,
            record.state,
            record.config,
            record.params,
            record.duplicate_of,
            [name for name in record.shards if name.startswith("shards/quality")],
            {name: record.metrics[name] for name in metrics if name in record.metrics},
        )
        for record in records
    ]


def assert_same(one: Launched, other: Launched, metrics: Sequence[str]) -> None:
    """Two sweeps have the same trials, the same rows of every image, and the same metrics."""
    assert results(one.records, metrics) == results(other.records, metrics)
    first, second = images(one.store), images(other.store)
    assert first.keys() == second.keys()
    for name, table in first.items():
        assert table.to_pylist() == second[name].to_pylist(), name


def assert_every_image_once(launched: Launched, count: int) -> None:
    """Each setting has each of the `count` captions once: in its shards, and in the trials' words."""
    tables = images(launched.store)
    settings = {record.digest: record for record in launched.records if record.state == "complete"}
    wanted = {name for record in settings.values() for name in record.shards if "/quality-" in name}
    assert {f"shards/{name}" for name in tables} == wanted
    for record in settings.values():
        shards = [name.removeprefix("shards/") for name in record.shards if "/quality-" in name]
        captions = [caption for name in shards for caption in tables[name]["caption_id"].to_pylist()]
        assert len(captions) == len(set(captions)) == record.images == count
