"""The door to Ray Train: the plain training loop in several processes, each with a GPU or a core.

Every process sees the output folder: recorded images, checkpoint and weights lie there. A worker that dies ends the
group; Ray starts it again, and it goes on from the checkpoint.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import Any

from orchestrator.run.cluster import Slots, connected
from orchestrator.run.tasks import PoolError
from orchestrator.run.training import Tell
from workers.data.captions import Caption
from workers.training.eagle import WEIGHTS, DrafterJob, EagleRecipe

RAY_FOLDER = "ray"  # Ray's own notes
LINES = "eagle.log"  # what the first process says
FAILURES = 2  # times that the group is started again
PATIENCE = 6 * 3600  # seconds that processes wait for each other: one may be drawing images still
SETTINGS = {
    "RAY_TRAIN_ENABLE_V2_MIGRATION_WARNINGS": "0",
    "RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S": "600",  # a busy machine takes minutes to import torch in every process
    "RAY_TRAIN_METRICS_ENABLED": "0",  # nobody reads them
    "RAY_TRAIN_ENABLE_PREEMPTION_WATCHER": "0",  # the checkpoint is as good at any moment
}
LOOK = 0.5  # seconds between looks at what was said


def train_together(job: DrafterJob, workers: int, address: str | None, *, resume: bool, tell: Tell) -> Path:
    """Train by `workers` processes of the cluster at `address` (None: of this machine); returns the weight file.

    Raises:
        PoolError: no cluster, no room on it, or the workers failed; with what they said.
    """
    for key, value in SETTINGS.items():
        os.environ.setdefault(key, value)
    with connected(address, Slots(workers), workers) as slots, _echoed(job.out / LINES, tell):
        import ray.train
        from ray.train.torch import TorchConfig, TorchTrainer

        needs = {"CPU": slots.cpus, **({"GPU": slots.gpus} if slots.gpus else {})}
        trainer = TorchTrainer(
            member,
            train_loop_config=_plain(job, resume),
            torch_config=TorchConfig(timeout_s=PATIENCE),
            scaling_config=ray.train.ScalingConfig(
                num_workers=workers, use_gpu=bool(slots.gpus), resources_per_worker=needs
            ),
            run_config=ray.train.RunConfig(
                name=f"eagle-{datetime.now():%Y%m%d-%H%M%S}",
                storage_path=str((job.out / RAY_FOLDER).absolute()),
                failure_config=ray.train.FailureConfig(max_failures=FAILURES),
            ),
        )
        try:
            trainer.fit()
        except ray.train.TrainingFailedError as error:
            raise PoolError(f"the training failed on its workers: {_cause(error)}") from error
    return job.out / WEIGHTS


def member(config: dict[str, Any]) -> None:
    """One process of the team, started by Ray with torch.distributed set up."""
    import torch
    from ray.train import get_context
    from ray.train.torch import get_device

    from workers.training.process_group import ProcessGroup

    job, team = _job(config), ProcessGroup.current()
    if not torch.cuda.is_available():
        torch.set_num_threads(1)  # one core each, as was asked for
    # a group that was started again goes on where the first one came to
    begun = job.out / RAY_FOLDER / f"{get_context().get_experiment_name()}.begun"
    again = begun.exists()
    team.barrier()

    def say(line: str) -> None:
        with (job.out / LINES).open("a", encoding="utf-8") as lines:
            lines.write(line + "\n")

    if team.is_main:
        begun.parent.mkdir(parents=True, exist_ok=True)
        begun.touch()
    tell = say if team.is_main else _nothing
    job.run(get_device(), resume=config["resume"] or again, group=team, log=tell)


def _nothing(line: str) -> None: ...


def _plain(job: DrafterJob, resume: bool) -> dict[str, Any]:
    """The job as plain data: what Ray sends to every process."""
    captions = [[caption.id, caption.text] for caption in job.captions]
    recipe, out = asdict(job.recipe), str(job.out.absolute())
    weights = job.weights if job.weights == "builtin" else str(Path(job.weights).expanduser().absolute())
    told = {"weights": weights, "models": job.models, "captions": captions, "out": out, "recipe": recipe}
    return told | {"resume": resume}


def _job(config: dict[str, Any]) -> DrafterJob:
    return DrafterJob(
        weights=config["weights"],
        models=config["models"],
        captions=tuple(Caption(number, text) for number, text in config["captions"]),
        out=Path(config["out"]),
        recipe=EagleRecipe(**config["recipe"]),
    )


@contextlib.contextmanager
def _echoed(lines: Path, tell: Tell) -> Iterator[None]:
    """Tell what the first process says, until the block is left."""
    lines.unlink(missing_ok=True)
    over = threading.Event()

    def follow() -> None:
        told = 0
        while True:
            last = over.is_set()
            said = lines.read_text("utf-8").splitlines(keepends=True) if lines.exists() else []
            whole = [line for line in said if line.endswith("\n")]
            for line in whole[told:]:
                tell(line.rstrip("\n"))
            told = max(told, len(whole))
            if last:
                return
            over.wait(LOOK)

    thread = threading.Thread(target=follow, name="lines", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(5)


def _cause(error: Exception) -> str:
    """The last line of what went wrong in a worker."""
    failures = getattr(error, "worker_failures", None) or {0: error}
    lines = [line.strip() for line in str(next(iter(failures.values()))).splitlines() if line.strip()]
    return lines[-1] if lines else type(error).__name__
