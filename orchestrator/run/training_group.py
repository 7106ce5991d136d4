"""Training in several processes with Ray Train: the plain training loop, each process with a GPU or a core.

All processes see the output folder, which holds recorded images, checkpoint and weights. If a worker dies, Ray starts
the group again, and it resumes from the checkpoint.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterator
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import Any

from orchestrator.run.cluster import Slots, connected
from orchestrator.run.tasks import PoolError
from workers.data.captions import Caption
from workers.training.eagle import WEIGHTS, DrafterJob, EagleRecipe

_RAY_FOLDER = "ray"  # Ray's own files
_LOG_FILE = "eagle.log"  # written by the main process
_MAX_RESTARTS = 2
_BARRIER_TIMEOUT_S = 6 * 3600  # one process may still be drawing images
_LOG_INTERVAL_S = 0.5
_RAY_VARIABLES = {
    "RAY_TRAIN_ENABLE_V2_MIGRATION_WARNINGS": "0",
    "RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S": "600",  # a busy machine takes minutes to import torch in every process
    "RAY_TRAIN_METRICS_ENABLED": "0",
    "RAY_TRAIN_ENABLE_PREEMPTION_WATCHER": "0",  # checkpoints are frequent enough
}


def train_in_group(
    job: DrafterJob, workers: int, address: str | None, *, resume: bool, log: Callable[[str], None]
) -> Path:
    """Train in `workers` processes of the cluster at `address` (None: this machine); returns the weight file.

    Raises:
        PoolError: no cluster, no room on it, or the workers failed; the message has the cause.
    """
    for key, value in _RAY_VARIABLES.items():
        os.environ.setdefault(key, value)
    with connected(address, Slots(workers), workers) as slots, _follow_log(job.out / _LOG_FILE, log):
        import ray.train
        from ray.train.torch import TorchConfig, TorchTrainer

        resources = {"CPU": slots.cpus, **({"GPU": slots.gpus} if slots.gpus else {})}
        trainer = TorchTrainer(
            _run_process,
            train_loop_config=_serialize(job, resume),
            torch_config=TorchConfig(timeout_s=_BARRIER_TIMEOUT_S),
            scaling_config=ray.train.ScalingConfig(
                num_workers=workers, use_gpu=bool(slots.gpus), resources_per_worker=resources
            ),
            run_config=ray.train.RunConfig(
                name=f"eagle-{datetime.now():%Y%m%d-%H%M%S}",
                storage_path=str((job.out / _RAY_FOLDER).absolute()),
                failure_config=ray.train.FailureConfig(max_failures=_MAX_RESTARTS),
            ),
        )
        try:
            trainer.fit()
        except ray.train.TrainingFailedError as error:
            raise PoolError(f"the training failed on its workers: {_cause(error)}") from error
    return job.out / WEIGHTS


def _run_process(config: dict[str, Any]) -> None:
    """One process of the group; Ray has set up torch.distributed."""
    import torch
    from ray.train import get_context
    from ray.train.torch import get_device

    from workers.training.process_group import ProcessGroup

    job, group = _deserialize(config), ProcessGroup.current()
    if not torch.cuda.is_available():
        torch.set_num_threads(1)
    # exists if Ray has restarted the group, which then resumes from its own checkpoint
    started = job.out / _RAY_FOLDER / f"{get_context().get_experiment_name()}.started"
    is_restart = started.exists()
    group.barrier()

    def log(line: str) -> None:
        if group.is_main:
            with (job.out / _LOG_FILE).open("a", encoding="utf-8") as lines:
                lines.write(line + "\n")

    if group.is_main:
        started.parent.mkdir(parents=True, exist_ok=True)
        started.touch()
    job.run(get_device(), resume=config["resume"] or is_restart, group=group, log=log)


def _serialize(job: DrafterJob, resume: bool) -> dict[str, Any]:
    """The job as plain data, with absolute paths, for every process."""
    return {
        "models": dict(job.models),
        "captions": [[caption.id, caption.text] for caption in job.captions],
        "out": str(job.out.absolute()),
        "recipe": asdict(job.recipe),
        "resume": resume,
    }


def _deserialize(config: dict[str, Any]) -> DrafterJob:
    return DrafterJob(
        models=config["models"],
        captions=tuple(Caption(number, text) for number, text in config["captions"]),
        out=Path(config["out"]),
        recipe=EagleRecipe(**config["recipe"]),
    )


@contextlib.contextmanager
def _follow_log(path: Path, log: Callable[[str], None]) -> Iterator[None]:
    """Pass on the lines that the main process writes, until the block ends."""
    path.unlink(missing_ok=True)
    stop = threading.Event()

    def follow() -> None:
        count = 0
        while True:
            is_last = stop.is_set()
            text = path.read_text("utf-8") if path.exists() else ""
            complete = [line for line in text.splitlines(keepends=True) if line.endswith("\n")]
            for line in complete[count:]:
                log(line.rstrip("\n"))
            count = max(count, len(complete))
            if is_last:
                return
            stop.wait(_LOG_INTERVAL_S)

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
    lines = [line.strip() for line in str(next(iter(failures.values()))).splitlines() if line.strip()]
    return lines[-1] if lines else type(error).__name__
