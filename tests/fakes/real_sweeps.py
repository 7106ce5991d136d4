"""Real sweeps of a tiny untrained model, and what their folders hold."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import chdir, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from benchmarks.sweep_results import images, results
from orchestrator.store.records import TrialRecord, read_trials
from tests.fakes.command_line import CommandResult, specfrontier
from tests.fakes.local_pool import local_launches
from tests.fakes.tiny_models import tiny_scenes
from tests.fakes.waiting import HANG_S
from workers.data.storage import Storage

ROOT = Path(__file__).parents[2]
COMMAND = [sys.executable, "-c", "from orchestrator.cli.app import main; main()"]
POLL_INTERVAL_S = 0.05
CAPTIONS = 70  # more than the 64 channels of the features: fewer images have no FID
# The command, of which the driver waits after these events, each the first after the one before,
# until it is ended.
HELD_COMMAND = """
import sys, time
from orchestrator.cli.app import main
from orchestrator.store import events
left, append = sys.argv.pop(1).split(","), events.append_event

def append_and_wait(path, event):
    append(path, event)
    if left and event.event == left[0]:
        left.pop(0)
    while not left:
        time.sleep(0.05)

events.append_event = append_and_wait
main()
"""
SWEEP = f"""
name: small
models: WEIGHTS
captions: {{source: scenes, count: {CAPTIONS}, seed: 1}}
reference: {{source: scenes, count: 96, seed: 2}}
quality: {{batch: 14, shard: 14}}
timing: {{batch: 1, images: 2, repetitions: 1}}
sampling: {{temperature: 1.0, top_k: 0, top_p: 1.0, cfg: 1.0}}
metrics: [step_compression, caption_accuracy, fid, drift, speedup]
objectives: [step_compression, caption_accuracy]
search: {{sampler: nsga2, parallel: 2, seed: 0, options: {{population_size: 2}}}}
budget: {{trials: 6}}
space:
  drafter: eagle
  tree: {{policy: chain, length: {{low: 2, high: 3}}}}
  acceptance:
    - exact
    - {{neighbourhood: additive, k: {{low: 2, high: 100, log: true}}, delta: {{low: 0.02, high: 0.5, log: true}}}}
    - {{schedule: constant, budget: {{low: 1.05, high: 3.0, log: true}}}}
"""
# of SWEEP, those that timing does not change
METRICS = ("step_compression", "caption_accuracy", "fid", "drift")


@contextmanager
def ray_folder() -> Iterator[Path]:
    """A folder for Ray's files, with a path short enough for sockets; processes that use it are
    killed at the end.
    """
    folder = Path(tempfile.mkdtemp(prefix="sf-", dir="/tmp"))
    try:
        yield folder
    finally:
        kill(processes(folder))
        shutil.rmtree(folder, ignore_errors=True)


def processes(folder: Path, title: str = "") -> list[psutil.Process]:
    """The other processes with this RAY_TMPDIR, or with a file of it open, whose command line
    starts with `title`.
    """
    found = []
    for process in psutil.process_iter():
        try:
            uses_folder = process.environ().get("RAY_TMPDIR") == str(folder) or any(
                file.path.startswith(f"{folder}/") for file in process.open_files()
            )
            alive = process.status() != psutil.STATUS_ZOMBIE and process.pid != os.getpid()
            if uses_folder and alive and " ".join(process.cmdline()).startswith(title):
                found.append(process)
        except psutil.Error:
            continue
    return found


def command_line(process: psutil.Process) -> list[str]:
    """The words of its command line; none if it has ended meanwhile."""
    try:
        return list(process.cmdline())
    except psutil.Error:
        return []


def kill(found: Sequence[psutil.Process]) -> Sequence[psutil.Process]:
    """Kill those that have not ended meanwhile; returns all."""
    for process in found:
        with suppress(psutil.NoSuchProcess):
            process.kill()
    return found


def send_signal(workers: Sequence[psutil.Process], number: signal.Signals) -> None:
    """Send a signal (SIGSTOP, SIGCONT) to every process that still exists."""
    assert workers
    for worker in workers:
        with suppress(psutil.NoSuchProcess):
            worker.send_signal(number)


@dataclass
class SweepRun:
    """A sweep with a folder of its own, launched once or several times.

    text: its YAML file. ray: the folder of its Ray processes, for launches in a process of their
    own. models: writes the weights that stand for `WEIGHTS` in the file.
    """

    folder: Path
    text: str
    ray: Path | None = None
    process: subprocess.Popen[bytes] | None = None
    models: Callable[[Path], Path] = tiny_scenes

    @property
    def store(self) -> Path:
        return self.folder / "sweeps" / self.text.split()[1]

    @property
    def environment(self) -> dict[str, str]:
        """Environment of the command: one thread, no token, this checkout's code."""
        inherited = {
            key: value for key, value in os.environ.items() if not key.startswith("MLFLOW_")
        }
        path = os.pathsep.join(filter(None, (str(ROOT), inherited.get("PYTHONPATH"))))
        return inherited | {
            "OMP_NUM_THREADS": "1",
            "RAY_TMPDIR": str(self.ray),
            "RAY_AUTH_MODE": "disabled",
            "PYTHONPATH": path,
        }

    def arguments(self, *options: str) -> list[str]:
        self.folder.mkdir(parents=True, exist_ok=True)
        space = self.folder / "space.yaml"
        text = self.text
        if "WEIGHTS" in text:
            text = text.replace("WEIGHTS", str(self.models(self.folder / "weights")))
        space.write_text(text)
        return ["launch", str(space), "--out", str(self.folder / "sweeps"), *options]

    def start(self, *options: str, held_after: Sequence[str] = ()) -> None:
        """Launch in a process of its own. held_after: events after which the driver does nothing
        until it is ended.
        """
        program = (
            [sys.executable, "-c", HELD_COMMAND, ",".join(held_after)] if held_after else COMMAND
        )
        command = [*program, *self.arguments(*options)]
        with (self.folder / "output").open("ab") as log:
            self.process = subprocess.Popen(
                command, env=self.environment, stdout=log, stderr=log, cwd=self.folder
            )

    def run_locally(self, *options: str) -> CommandResult:
        """Launch to the end in this process, with its one worker and without Ray."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with chdir(self.folder), local_launches():
            result = specfrontier(*self.arguments(*options))
        assert result.code == 0, result.err
        return result

    def wait(self, timeout_s: float = HANG_S) -> int:
        """The exit code of the process."""
        assert self.process is not None
        try:
            return self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise AssertionError(f"still running after {timeout_s:g} s:\n{self.output}") from None

    def wait_for(
        self, condition: Callable[[], object], interval_s: float = POLL_INTERVAL_S
    ) -> None:
        """Wait until a condition holds; fails if the process ends first."""
        end = time.monotonic() + HANG_S
        while not condition():
            assert time.monotonic() < end, f"not within {HANG_S:g} s:\n{self.output}"
            exited = self.process is not None and self.process.poll() is not None
            assert not exited or condition(), f"ended too early:\n{self.output}"
            time.sleep(interval_s)

    @contextmanager
    def stopped(self) -> Iterator[None]:
        """The process does nothing while the block runs: what is looked for there is not over
        before it is found.
        """
        assert self.process is not None
        self.process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self.process.send_signal(signal.SIGCONT)

    def kill_when(self, condition: Callable[[], object]) -> None:
        """Kill the process as soon as a condition holds. The process is stopped whenever it is
        looked at, so that it cannot end the condition meanwhile.
        """
        assert self.process is not None
        process = self.process

        def holds() -> bool:
            process.send_signal(signal.SIGSTOP)
            if condition():
                return True
            process.send_signal(signal.SIGCONT)
            return False

        self.wait_for(holds, interval_s=0.2)
        process.kill()
        assert self.wait() == -signal.SIGKILL

    @property
    def output(self) -> str:
        file = self.folder / "output"
        return file.read_text() if file.exists() else ""

    @property
    def events(self) -> list[dict[str, Any]]:
        file = self.store / "events.jsonl"
        lines = file.read_text().splitlines(keepends=True) if file.exists() else []
        return [json.loads(line) for line in lines if line.endswith("\n")]

    def count(self, event: str, **facts: Any) -> int:
        """The number of events with that name and those facts."""
        return sum(e["event"] == event and facts.items() <= e.items() for e in self.events)

    @property
    def workers(self) -> set[str]:
        """Names of the workers that have written a shard."""
        return {event["worker"] for event in self.events if event["event"] == "shard"}

    @property
    def records(self) -> list[TrialRecord]:
        return read_trials(Storage(str(self.store)))


def files(store: Path) -> dict[str, tuple[int, int]]:
    """Every result file with what a second write would change: its inode and time."""
    found = {}
    for folder in ("shards", "timings", "measures", "trials"):
        for path in sorted((store / folder).glob("[!.]*")):
            facts = path.stat()
            found[f"{folder}/{path.name}"] = (facts.st_ino, facts.st_mtime_ns)
    return found


def assert_same(one: SweepRun, other: SweepRun, trials: int | None = None) -> None:
    """The first `trials` trials of two sweeps are equal: settings, every image's row, and
    metrics.
    """
    assert results(one.records[:trials], METRICS) == results(other.records[:trials], METRICS)
    first, second = images(one.store), images(other.store)
    assert first.keys() <= second.keys() if trials else first.keys() == second.keys()
    for name, table in first.items():
        assert table.to_pylist() == second[name].to_pylist(), name


def assert_every_image_once(run: SweepRun, count: int) -> None:
    """Each setting has each of the `count` captions once, both in its shards and by its trials'
    records; lossless ones, whose tokens were checked, the first of them.
    """
    tables = images(run.store)
    settings = {record.digest: record for record in run.records if record.state == "complete"}
    recorded = {
        name for record in settings.values() for name in record.shards if "/quality-" in name
    }
    assert {f"shards/{name}" for name in tables} == recorded
    captions = {
        record.digest: [
            caption
            for shard in record.image_shards
            for caption in tables[shard.removeprefix("shards/")]["caption_id"].to_pylist()
        ]
        for record in settings.values()
    }
    order = captions[run.records[0].digest]
    assert len(set(order)) == len(order) == count
    for digest, record in settings.items():
        is_short = record.check is not None and record.check.passed
        assert captions[digest] == order[: record.images]
        assert is_short or record.images == count
