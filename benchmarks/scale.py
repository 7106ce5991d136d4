"""How a sweep scales: with its workers, with the trials and shards in its store, and how soon a
resumed one works.

    python -m benchmarks.scale [PART ...] [--out FILE.json]

workers: the real driver, pool, Ray and store, with workers that sleep `--shard-seconds` and then
write a small shard. Efficiency is the time that they slept over (workers x wall clock), from the
first task to the last. Real shards take seconds to minutes, so 2 s is the short end. All workers
share this machine's cores, so what they spend on starting a call and writing a file counts against
them.

store: `--trials` trials of `--shards` shards, launched with one worker that returns at once, so the
rate is the driver's; the shards are copies of one small file. Then the CPU time of `pareto` and
`status` on it. Then the real command resumes it: when it hands out work, when the first new shard
is there, and its memory.

start: the same for the quick start whose enqueued trials have finished.

racing: the driver's own CPU seconds in a racing sweep of `--trials` trials, with workers that
return at once: until the last trial has finished, and then until no stopped trial may be on the
front.

costs: seconds of one ask and one tell when 1,000 trials have finished; of a Frechet distance with
its error, of Inception's width, on this machine's cores; of one trial that is logged to MLflow's
database beside the sweep; and of one look at 1,000 busy workers.

imports: the memory of the libraries that a launch imports, one after the other in one process.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch

from benchmarks.driver import ask_and_tell
from benchmarks.instant import InstantWorkers, make_driver
from benchmarks.simulated import FilePool, file_launches, simulated_actor
from orchestrator.cluster import pool as pool_module
from orchestrator.cluster.cluster import connected
from orchestrator.cluster.placement import Slots
from orchestrator.cluster.pool import Pool
from orchestrator.launch.launch import launch
from orchestrator.launch.options import LaunchOptions
from orchestrator.launch.read import LaunchRequest
from orchestrator.run.progress import event_sink
from orchestrator.run.racing import as_told
from orchestrator.store.events import Event, Shard, TrialFinished, TrialRevived
from orchestrator.store.files import EVENTS, SHARDS, TRIALS
from orchestrator.store.progress import SweepProgress
from orchestrator.views.follower import Views
from orchestrator.views.mlflow_sync import sync
from orchestrator.views.study import StudyView, default_journal
from orchestrator.views.tables import Tables
from search_spaces.sweep import SweepConfig
from search_spaces.trial import DecodingConfig, Sampling
from tests.fakes.synthetic_sweeps import write_sweep
from workers.data.shards import TIMINGS, Experiment, plan_quality
from workers.data.storage import Storage
from workers.metrics.definition import Direction, Metric
from workers.metrics.estimate import BLOCKS
from workers.metrics.frechet import Gaussian, distance_to_reference

NAMES = ("speedup", "fid")
WAYS: tuple[Direction, ...] = ("maximize", "minimize")
_PARTS = ("workers", "store", "start", "racing", "costs", "imports")
_TIMEOUT_S = 600.0
_NEW_TRIALS = 8  # of a resumed sweep, which is stopped at its first shard; some may repeat settings
_SHARD = 8  # captions
_EXPERIMENT = Experiment({"target": "0"}, "captions", 0, {"features": "0"}, "float32")
_COMMAND = [sys.executable, "-c", "from orchestrator.cli.app import main; main()"]
_LIBRARIES = (
    "numpy", "torch", "ray", "optuna", "pyarrow.parquet", "scipy.special", "matplotlib.figure",
    "pandas", "mlflow.tracking",
)  # fmt: skip
# its arguments are imported, and it prints the memory in KiB that each of them adds
_IMPORT = """
import importlib, sys

def resident():
    lines = open("/proc/self/status").read().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS"))

before = resident()
for name in sys.argv[1:]:
    importlib.import_module(name)
    print(resident() - before)
    before = resident()
"""


def sweep_of(trials: int, shards: int, sampler: str = "random", parallel: int = 8) -> SweepConfig:
    """The quick start's space with `shards` quality shards a trial."""
    changes = {
        "budget.trials": trials,
        "captions.count": shards * _SHARD,
        "quality.shard": _SHARD,
        "quality.batch": _SHARD,
        "racing": None,
        "search": {"sampler": sampler, "parallel": parallel},
    }
    return SweepConfig.read("quickstart", changes)


def efficiency(workers: int, shard_s: float, per_worker: int, folder: Path) -> dict[str, float]:
    """A sweep of about `per_worker` shards for each of `workers` simulated workers."""
    shards = 64
    sweep = sweep_of(max(1, workers * per_worker // shards), shards)
    storage = Storage(folder / str(workers))
    storage.write("store.id", b"simulated")
    spec = {"store": storage.uri, "seconds": shard_s, "experiment": _EXPERIMENT.to_mapping()}
    events: list[Event] = []
    sink = event_sink(SweepProgress(sweep.budget.trials), events.append, storage.path(EVENTS))
    with (
        mock.patch.object(pool_module, "actor_class", simulated_actor),
        connected(None, Slots(workers), os.cpu_count() or 1) as slots,
        closing(Pool(spec, slots, slots.environment(1))) as pool,
    ):
        begin = time.monotonic()
        while pool.alive < workers:
            pool.collect(1.0)
        start_s = time.monotonic() - begin
        objectives = list(map(Metric, NAMES, WAYS))
        driver = make_driver(sweep, storage, pool, objectives, experiment=_EXPERIMENT, emit=sink)
        begin = time.monotonic()
        driver.run()
        wall_s = time.monotonic() - begin
    drawn = [event for event in events if isinstance(event, Shard)]
    busy_s = sum(shard.seconds for shard in drawn)
    return {
        "workers": workers,
        "shard_s": shard_s,
        "shards": len(drawn),
        "start_s": start_s,
        "wall_s": wall_s,
        "efficiency": busy_s / (workers * wall_s),
    }


def memory_mb() -> float:
    """Peak memory of this process so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def make_store(sweep: SweepConfig, folder: Path) -> dict[str, float]:
    """Launch a sweep to its end, with made-up results."""
    storage, pools, before = Storage(folder / sweep.name), list[FilePool](), memory_mb()
    sink = event_sink(SweepProgress(sweep.budget.trials), lambda event: None, storage.path(EVENTS))
    folder.joinpath(sweep.name).mkdir(parents=True)
    folder.joinpath(sweep.name, SHARDS).mkdir()
    study = StudyView(
        sweep, str(default_journal(storage, sweep.name)), partial(as_told, sweep), is_own=True
    )
    views, begin = Views(storage, [Tables(), study]), time.monotonic()
    with file_launches(pools):
        launch(LaunchRequest(LaunchOptions(), sweep, storage), views, sink, cores=1)
    views.end("finished")
    seconds = time.monotonic() - begin - pools[0].writing_s
    begin = time.monotonic()
    shards, sessions = len(storage.names(SHARDS)), len(storage.names(TIMINGS))
    return {
        "trials": sweep.budget.trials,
        "shards": shards,
        "sessions": sessions,
        "driver_s": seconds,
        "driver_shards_per_s": (shards + sessions) / seconds,
        "writing_s": pools[0].writing_s,
        "listing_s": time.monotonic() - begin,
        "memory_before_mb": before,
        "memory_mb": memory_mb(),
    }


def question_s(folder: Path) -> dict[str, float]:
    """CPU seconds of the commands that read a whole sweep, and the MB of its trials' files."""
    found = {"trials_mb": sum(file.stat().st_size for file in (folder / TRIALS).iterdir()) / 1e6}
    for command in ("pareto", "status"):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([*_COMMAND, command, str(folder)], check=True, stdout=subprocess.DEVNULL)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        found[f"{command}_cpu_s"] = seconds
    return found


def imports_mb() -> dict[str, float]:
    """The MB that each of the libraries adds to a process which has imported those before it."""
    command = [sys.executable, "-c", _IMPORT, *_LIBRARIES]
    printed = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    added = [int(line) / 1024 for line in printed.split()]
    return dict(zip(_LIBRARIES, added, strict=True))


@dataclass(frozen=True, slots=True)
class Resumed:
    """Events of a resumed sweep with their seconds since the command started, and the driver's peak
    memory.
    """

    events: list[tuple[float, Mapping[str, Any]]]
    memory_mb: float

    def first(self, condition: Callable[[Mapping[str, Any]], bool]) -> float:
        return next(seconds for seconds, event in self.events if condition(event))

    def summary(self) -> dict[str, float]:
        return {
            "preflight_done_s": self.first(lambda event: event["event"] == "launch"),
            "ray_started_s": self.first(lambda event: event.get("phase") == "loading the models"),
            "first_worker_s": self.first(lambda event: event["event"] == "identity"),
            "hands_out_work_s": self.first(lambda event: event["event"] == "trial_started"),
            "first_shard_s": self.first(lambda event: event["event"] == "shard"),
            "of_it_drawing_s": next(
                event["seconds"] for _, event in self.events if event["event"] == "shard"
            ),
            "memory_mb": self.memory_mb,
        }


def resume(sweep: SweepConfig, folder: Path, trials: int, *options: str) -> Resumed:
    """Resume a sweep by the real command, with `trials` trials, until its first new shard; then
    stop it.
    """
    file, events = folder / "space.yaml", folder / sweep.name / EVENTS
    file.write_text(sweep.to_yaml())
    known, start = events.stat().st_size, time.time()
    command = [
        *_COMMAND,
        "launch",
        str(file),
        "--out",
        str(folder),
        "--resume",
        "--trials",
        str(trials),
        *options,
    ]
    with (folder / "output").open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output)
    new: list[Mapping[str, Any]] = []
    try:
        while not any(event["event"] == "shard" for event in new):
            if process.poll() is not None or time.time() - start > _TIMEOUT_S:
                raise RuntimeError((folder / "output").read_text())
            time.sleep(0.1)
            with events.open("rb") as lines:
                lines.seek(known)
                new = [json.loads(line) for line in lines if line.endswith(b"\n")]
        status = Path(f"/proc/{process.pid}/status").read_text()
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait()
    peak_kb = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM"))
    stamped = [(datetime.fromisoformat(event["at"]).timestamp() - start, event) for event in new]
    return Resumed(stamped, peak_kb / 1024)


class _NoisyWorkers(InstantWorkers):
    """Every setting has noise of its own over the blocks of captions."""

    def replicates(self, config: DecodingConfig, value: float, images: int) -> list[float]:
        rng = np.random.default_rng(int(config.digest(), 16))
        blocks: list[float] = (value + 0.02 * rng.standard_normal(BLOCKS)).tolist()
        return blocks


def racing_s(trials: int, folder: Path) -> dict[str, float]:
    """CPU seconds of a racing sweep's driver, and how many trials stopped and went on."""
    rungs = [BLOCKS, 2 * BLOCKS]
    changes = {
        "budget.trials": trials,
        "captions.count": 4 * BLOCKS,
        "quality.shard": BLOCKS,
        "quality.batch": BLOCKS,
        "search": {"sampler": "random", "parallel": 8},
        "racing": {"rungs": rungs, "stop": "dominated"},
    }
    events, finished_s = list[Event](), 0.0

    def emit(event: Event) -> None:
        nonlocal finished_s
        events.append(event)
        if isinstance(event, TrialFinished):
            finished_s = time.process_time() - begin

    sweep, objectives = SweepConfig.read("quickstart", changes), list(map(Metric, NAMES, WAYS))
    driver = make_driver(sweep, Storage(folder / "racing"), _NoisyWorkers(), objectives, emit=emit)
    begin = time.process_time()
    records = driver.run().records
    return {
        "trials": trials,
        "stopped": sum(record.stop is not None for record in records),
        "revived": sum(record.is_revived for record in records),
        "steps": sum(isinstance(event, TrialRevived) for event in events),
        "until_finished_s": finished_s,
        "revival_s": time.process_time() - begin - finished_s,
    }


def distance_s(images: int = 3000, width: int = 2048) -> float:
    """Seconds of a Frechet distance to a reference and its jackknife error."""
    generator = torch.Generator().manual_seed(0)
    features, real = (torch.randn(images, width, generator=generator) for _ in range(2))
    reference, begin = Gaussian.fit(real), time.perf_counter()
    distance_to_reference(features, reference, torch.arange(images) % BLOCKS)
    return time.perf_counter() - begin


def logging_s(folder: Path, trials: int = 20) -> float:
    """Seconds to log one trial, with its pictures, to MLflow's default database."""
    seconds = []
    for count in (1, trials):
        write_sweep(folder / "logged" / str(count), count, failed=())
        begin = time.perf_counter()
        sync(Storage(folder / "logged" / str(count)))
        seconds.append(time.perf_counter() - begin)
    return seconds[1] / trials  # the first one also makes the tables


def look_s(workers: int = 1000, looks: int = 20) -> float:
    """Seconds of one look at the replies of so many busy workers, as the pool does for every
    finished task.
    """
    import ray

    with connected(None, Slots(1), 1), tempfile.TemporaryDirectory() as folder:
        spec = {
            "store": folder,
            "seconds": 60.0,
            "experiment": _EXPERIMENT.to_mapping(),
            "worker": "busy",
        }
        actor = simulated_actor().options(num_cpus=1).remote(spec)
        task = plan_quality(DecodingConfig(sampling=Sampling()), 1, 1, 1, 1)[0]
        replies = [
            actor.run.remote({"kind": task.kind, **task.to_mapping()}) for _ in range(workers)
        ]
        begin = time.perf_counter()
        for _ in range(looks):
            ray.wait(replies, num_returns=1, timeout=0)
        return (time.perf_counter() - begin) / looks


def show(name: str, facts: Mapping[str, float]) -> None:
    print(f"{name}: " + ", ".join(f"{key} {value:.4g}" for key, value in facts.items()), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("parts", nargs="*", choices=[*_PARTS, []], default=[])
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 4, 16, 64])
    parser.add_argument("--shard-seconds", type=float, default=2.0)
    parser.add_argument("--per-worker", type=int, default=40, help="shards of each worker")
    parser.add_argument("--trials", type=int, default=1000)
    parser.add_argument("--shards", type=int, default=500, help="of a trial")
    parser.add_argument("--folder", type=Path, help="for the stores; default: a temporary one")
    parser.add_argument(
        "--out", type=Path, help="JSON file of the results; parts that do not run keep theirs"
    )
    args = parser.parse_args()
    parts = args.parts or _PARTS
    results: dict[str, Any] = (
        json.loads(args.out.read_text()) if args.out and args.out.exists() else {}
    )
    folder = Path(tempfile.mkdtemp(dir=args.folder))
    try:
        if "workers" in parts:
            results["workers"] = []
            for count in args.workers:
                facts = efficiency(count, args.shard_seconds, args.per_worker, folder)
                results["workers"].append(facts)
                show("workers", facts)
        for part, sweep in (
            ("start", SweepConfig.read("quickstart", {"budget.trials": 8})),
            ("store", sweep_of(args.trials, args.shards)),
        ):
            if part in parts:
                made = make_store(sweep, folder / part)
                made |= question_s(folder / part / sweep.name)
                show(part, made)
                resumed = resume(
                    sweep, folder / part, sweep.budget.trials + _NEW_TRIALS, "--no-mlflow"
                ).summary()
                show(f"{part}, resumed", resumed)
                results[part] = made | {"resumed": resumed}
        if "racing" in parts:
            results["racing"] = racing_s(args.trials, folder)
            show("racing", results["racing"])
        if "costs" in parts:
            asks = {
                f"{sampler}_ask_and_tell_s": ask_and_tell(sampler, 1000)
                for sampler in ("tpe", "nsga2", "random")
            }
            results["costs"] = asks | {
                "distance_s": distance_s(),
                "mlflow_trial_s": logging_s(folder),
                "look_at_1000_s": look_s(),
            }
            show("costs", results["costs"])
        if "imports" in parts:
            results["imports"] = imports_mb()
            show("imports", results["imports"])
    finally:
        shutil.rmtree(folder)
    if args.out:
        args.out.write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
