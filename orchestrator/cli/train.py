"""`specfrontier train`: drafters for a target, from captions."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from orchestrator import options as o
from orchestrator.errors import FAILED, INTERRUPTED, WRONG_USAGE, CommandError, ends_with
from orchestrator.outputs import output_folder
from workers.training import DRAFTERS

if TYPE_CHECKING:
    from workers.loading.models_yaml import Entry
    from workers.training.job import DrafterJob

EPILOG = """\b
Examples:
  specfrontier train eagle --captions captions.txt --models models.yaml#llamagen-xl-stage1 --out runs/drafter
  specfrontier train eagle medusa --captions captions.txt --models runs/photos --out runs/drafter --workers 4
  specfrontier train eagle --captions captions.txt --models runs/photos --out runs/drafter --resume
"""
Drafters = Annotated[list[str], typer.Argument(metavar="DRAFTER", help=f"{', '.join(DRAFTERS)}.")]
_RAY_FOLDER = "ray"  # Ray's own files
_MAX_RESTARTS = 2
_BARRIER_TIMEOUT_S = 6 * 3600  # one process may still be generating images
_LOG_INTERVAL_S = 0.5
_RAY_VARIABLES = {
    "RAY_TRAIN_V2_ENABLED": "1",  # the default of later versions
    "RAY_TRAIN_ENABLE_V2_MIGRATION_WARNINGS": "0",
    # a busy machine takes minutes to import torch in every process
    "RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S": "600",
    "RAY_TRAIN_METRICS_ENABLED": "0",
    "RAY_TRAIN_ENABLE_PREEMPTION_WATCHER": "0",  # checkpoints are frequent enough
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """The options that say what is trained, and how."""

    captions: str = o.option(
        "Captions of the images that the target generates for training; or: scenes.",
        "FILE",
        default=...,
        callback=o.input_path,
    )
    models: o.Models = None
    out: str = o.option(
        "Folder for weights, checkpoints and images.",
        "DIR",
        default="runs/train",
        callback=o.output_path,
    )
    count: int | None = o.option("Number of captions. Default: all of them.", "N", min=2)
    steps: int | None = o.option("Default: 20 passes over the images.", "N", min=1)
    batch: int = o.option("Examples per step, over all workers.", "N", default=16, min=1)
    rate: float | None = o.option(
        "Peak learning rate. Default: 0.0001 for eagle, 0.00005 for eagle3, else 0.001.",
        "X",
        min=0.0,
        callback=o.finite,
    )
    draft_vocab: int | None = o.option(
        "eagle3: how many codes it drafts, the most frequent ones. Default: all.", "N", min=1
    )
    save_every: int = o.option("Steps between checkpoints.", "N", default=1000, min=1)
    seed: int = o.option(
        "The same seed and threads give the same weights on the same machine.",
        "N",
        default=0,
        min=0,
        max=o.MAX_SEED,
    )

    def job(self, kind: str) -> DrafterJob:
        """The training of a drafter of this kind, checked before anything is computed.

        Raises:
            ValueError: captions that cannot be read, or too few of them; no such file, folder or
                entry; a target that cannot have such a drafter.
            WeightsError: a file of the entry is missing or of another family.
        """
        from workers.data.captions import read_captions
        from workers.loading.models import unreadable_captions
        from workers.loading.models_yaml import BUILTIN_NAME, find_entry, load_on_meta
        from workers.training.job import DrafterJob, DrafterRecipe

        entry = replace(find_entry(self.models or BUILTIN_NAME), drafters={})
        target = load_on_meta(entry).target
        found = read_captions(self.captions, count=self.count, seed=self.seed)
        if unreadable := unreadable_captions(target, [caption.text for caption in found]):
            index, problem = unreadable[0]
            more = f" ({len(unreadable) - 1} more cannot be read)" if len(unreadable) > 1 else ""
            raise ValueError(f"{found[index].location or self.captions}: {problem}{more}")
        given = {
            "rate": self.rate,
            "draft_vocab": self.draft_vocab if kind == "eagle3" else None,
            "steps": self.steps,
        }
        recipe = DrafterRecipe.of(
            kind, batch=self.batch, save_every=self.save_every, seed=self.seed,
            **{name: value for name, value in given.items() if value is not None},
        )  # fmt: skip
        job = DrafterJob(
            entry=entry, captions=tuple(found), out=Path(self.out), recipe=recipe, kind=kind
        )
        job.check(target)
        return job


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """The options that say where it is trained, and what MLflow gets."""

    resume: bool = o.flag("Resume from the checkpoints in DIR.")
    device: o.Device = None
    threads: o.Threads = None
    workers: int = o.option(
        "Processes that train together on Ray, each with a GPU or a core.", "N", default=1, min=1
    )
    address: o.Address = None
    tracking_uri: o.TrackingUri = None
    mlflow: o.Mlflow = True


@o.grouped
def train(drafters: Drafters, recipe: Recipe, run: Run) -> None:
    """Train drafters for the target of --models (default: builtin), each into one weight file in
    DIR.

    They train on images that the target generates from the captions (kept in DIR). The loss is
    written to DIR/DRAFTER.journal.jsonl and MLflow, the weights with the best held-out top-3
    accuracy to DIR.

    The default number of threads stays as it was chosen at the start, whatever other work begins or
    ends meanwhile.
    """
    if unknown := [kind for kind in drafters if kind not in DRAFTERS]:
        raise CommandError(
            f"unknown drafter {unknown[0]!r}; use {', '.join(DRAFTERS)}", WRONG_USAGE
        )
    if recipe.draft_vocab is not None and "eagle3" not in drafters:
        raise CommandError(
            "--draft-vocab is for eagle3, which is not among the drafters", WRONG_USAGE
        )
    if run.device is not None and (run.workers > 1 or run.address is not None):
        raise CommandError(
            "--device is for one process; Ray assigns GPUs or cores to several workers",
            WRONG_USAGE,
        )
    from orchestrator.cluster.tasks import PoolError
    from workers.models.checkpoint_files import WeightsError

    o.pick_device(run.device)  # refuses a device that there is not
    resume = "interrupted; resume with the same command and --resume"
    stopped = ends_with(INTERRUPTED, KeyboardInterrupt, message=resume)
    with (
        output_folder(Path(recipe.out)),
        stopped,
        ends_with(WRONG_USAGE),
        ends_with(FAILED, WeightsError, PoolError),
    ):
        with o.show_notes():
            jobs = [recipe.job(kind) for kind in dict.fromkeys(drafters)]
        weights = {}
        for job in jobs:
            weights[job.kind] = train_drafter(job, run, typer.echo)
            typer.echo(f"{job.kind}: {weights[job.kind]}")
    for line in _next_steps(jobs[0].entry, weights):
        typer.echo(line)


def _next_steps(entry: Entry, weights: Mapping[str, Path]) -> list[str]:
    """The line of a models.yaml that names the drafters, and a command that checks it. entry: of
    the target.
    """
    drafters = ", ".join(
        f"{kind}: {json.dumps(str(path.absolute()))}" for kind, path in weights.items()
    )
    if entry.where:
        file = entry.where.rpartition(":")[0]
        return [
            f"in {file}, under {entry.name}:",
            f"  drafters: {{{drafters}}}",
            f"next: specfrontier doctor --models {shlex.quote(f'{file}#{entry.name}')}",
        ]
    keys = {"family": entry.family.kind, **entry.family.to_mapping()}
    target = ", ".join(f"{key}: {json.dumps(value)}" for key, value in keys.items())
    return [
        "in a models.yaml:",
        f"  mine: {{{target}, drafters: {{{drafters}}}}}",
        "next: specfrontier doctor --models models.yaml#mine",
    ]


def train_drafter(job: DrafterJob, run: Run, log: Callable[[str], None] = print) -> Path:
    """Run the job, on Ray if there are several processes or an address is given; returns the weight
    file.

    Raises:
        ValueError: see `DrafterJob.run`; or a batch that the workers cannot share evenly.
        PoolError: no cluster, or no room on it; the workers failed.
    """
    from workers.models.checkpoint_files import collect_notes
    from workers.training.loop import ProcessGroup

    ProcessGroup(0, run.workers).share(job.recipe.batch)
    job.out.mkdir(parents=True, exist_ok=True)
    with _tracked(job, run, log) if run.mlflow else contextlib.nullcontext():
        if run.workers == 1 and run.address is None:
            with collect_notes():  # they were shown when the job was made
                return job.run(o.pick_device(run.device), resume=run.resume, log=log)
        return _train_in_group(job, run, log)


@contextlib.contextmanager
def _tracked(job: DrafterJob, run: Run, log: Callable[[str], None]) -> Iterator[None]:
    """Log the journal to MLflow while the block runs. At the end, report entries that could not be
    logged.
    """
    from orchestrator.views.follower import Ending, Follower
    from orchestrator.views.mlflow_client import resolve_uri
    from orchestrator.views.training import TrainingView
    from workers.data.storage import Storage

    journal = job.file("journal.jsonl")
    storage = Storage(str(job.out))
    params = {"models": job.entry.name, "captions": len(job.captions), **asdict(job.recipe)}
    view = TrainingView(journal, resolve_uri(storage, run.tracking_uri), params, resume=run.resume)
    follower: Follower[Path] = Follower(view, lambda: journal)
    how: Ending = "failed"
    follower.notify()
    try:
        yield
        how = "finished"
    except KeyboardInterrupt:
        how = "interrupted"
        raise
    finally:
        if problem := follower.end(how):
            log(problem)


def _train_in_group(job: DrafterJob, run: Run, log: Callable[[str], None]) -> Path:
    """Train with Ray Train in several processes of a cluster, or of this machine.

    Each process has a GPU or a core and sees the output folder. If one dies, Ray starts the group
    again, and the training resumes from the checkpoint. Returns the weight file.

    Raises:
        ValueError: see `DrafterJob.can_resume`.
        PoolError: no cluster, no room on it, or the workers failed; the message has the cause.
    """
    for key, value in _RAY_VARIABLES.items():
        os.environ.setdefault(key, value)
    from orchestrator.cluster.cluster import connected
    from orchestrator.cluster.placement import Slots
    from orchestrator.cluster.tasks import PoolError

    if run.resume:
        job.can_resume()  # reports another training here, before processes start
    name = f"{job.kind}-{datetime.now():%Y%m%d-%H%M%S}"
    with (
        connected(run.address, Slots(run.workers), run.workers) as slots,
        _follow_log(job.file("log"), log),
    ):
        import ray.train
        from ray.train.torch import TorchConfig, TorchTrainer

        resources = {"CPU": slots.cpus, **({"GPU": slots.gpus} if slots.gpus else {})}
        trainer = TorchTrainer(
            _run_process,
            train_loop_config={
                "job": replace(job, out=job.out.absolute(), launch=name),
                "resume": run.resume,
            },
            torch_config=TorchConfig(timeout_s=_BARRIER_TIMEOUT_S),
            scaling_config=ray.train.ScalingConfig(
                num_workers=run.workers, use_gpu=bool(slots.gpus), resources_per_worker=resources
            ),
            run_config=ray.train.RunConfig(  # type: ignore[call-arg]  # mypy sees the one before V2
                name=name,
                storage_path=str((job.out / _RAY_FOLDER).absolute()),
                worker_runtime_env={"env_vars": slots.environment(run.threads)},
                failure_config=ray.train.FailureConfig(max_failures=_MAX_RESTARTS),
            ),
        )
        try:
            trainer.fit()
        except ray.train.TrainingFailedError as error:
            raise PoolError(f"the training failed on its workers: {_cause(error)}") from error
    return job.file("safetensors")


def _run_process(config: dict[str, Any]) -> None:
    """One process of the group; Ray has set up torch.distributed."""
    from ray.train.torch import get_device

    from workers.training.loop import ProcessGroup

    job: DrafterJob = config["job"]
    group = ProcessGroup.current()

    def log(line: str) -> None:
        if group.is_main:
            with job.file("log").open("a", encoding="utf-8") as lines:
                lines.write(line + "\n")

    job.run(get_device(), resume=config["resume"], log=log)


@contextlib.contextmanager
def _follow_log(path: Path, log: Callable[[str], None]) -> Iterator[None]:
    """Pass on the lines that the main process writes, until the block ends."""
    path.write_text("", encoding="utf-8")
    stop = threading.Event()

    def follow() -> None:
        rest = ""
        stopped = False
        with path.open(encoding="utf-8") as file:
            while not stopped:
                stopped = stop.wait(_LOG_INTERVAL_S)
                *lines, rest = (rest + file.read()).split("\n")
                for line in lines:
                    log(line)

    thread = threading.Thread(target=follow, name="log", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(5)


def _cause(error: Exception) -> str:
    """The last line of the first worker's traceback."""
    failures = getattr(error, "worker_failures", None) or {0: error}
    lines = [
        line.strip() for line in str(next(iter(failures.values()))).splitlines() if line.strip()
    ]
    return lines[-1] if lines else type(error).__name__
