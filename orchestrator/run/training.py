"""Training of a drafter for a target: in this process or by workers on Ray, with its curve in MLflow."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from orchestrator.tracking.client import Event
from orchestrator.tracking.tracker import TrainingTracker
from workers.data.captions import read_captions
from workers.data.storage import Storage
from workers.loading.models import unreadable_captions
from workers.loading.models_yaml import find_entry, load_on_meta
from workers.runtime.device import pick_device
from workers.training.eagle import JOURNAL, DrafterJob, EagleRecipe
from workers.training.process_group import ProcessGroup


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingOptions:
    """Where a training runs, and whether MLflow gets its curve.

    device: of a single process. workers: processes, on Ray if there are several or an address is given. address: a Ray
    cluster (None: this machine). tracking_uri None: the same default as for sweeps.
    """

    device: str = "auto"
    workers: int = 1
    address: str | None = None
    mlflow: bool = True
    tracking_uri: str | None = None
    resume: bool = False


def drafter_job(models: str, captions: str, out: Path, recipe: EagleRecipe, *, count: int | None = None) -> DrafterJob:
    """The training of a drafter, checked before anything is computed. models: see `find_entry`.

    Raises:
        ValueError: captions that cannot be read, or too few of them; no such file, folder or entry.
        WeightsError: a file of the entry is missing or of another family.
    """
    entry = replace(find_entry(models), drafters={})
    target = load_on_meta(entry).target
    found = read_captions(captions, count=count, seed=recipe.seed)
    if unreadable := unreadable_captions(target, [caption.text for caption in found]):
        index, problem = unreadable[0]
        more = f" ({len(unreadable) - 1} more cannot be read)" if len(unreadable) > 1 else ""
        raise ValueError(f"{found[index].location or captions}: {problem}{more}")
    recipe.split(len(found))
    return DrafterJob(models=entry.to_mapping(), captions=tuple(found), out=out, recipe=recipe)


def train_drafter(job: DrafterJob, options: TrainingOptions, *, log: Callable[[str], None] = print) -> Path:
    """Run the job; returns the weight file.

    Raises:
        ValueError: see `DrafterJob.run`; or a batch that the workers cannot share evenly.
        PoolError: no cluster, or no room on it; the workers failed.
    """
    ProcessGroup(0, options.workers).share(job.recipe.batch)
    job.out.mkdir(parents=True, exist_ok=True)
    with _tracked(job, options, log):
        if options.workers == 1 and options.address is None:
            return job.run(pick_device(options.device), resume=options.resume, log=log)
        from orchestrator.run.training_group import train_in_group

        return train_in_group(job, options.workers, options.address, resume=options.resume, log=log)


@contextlib.contextmanager
def _tracked(job: DrafterJob, options: TrainingOptions, log: Callable[[str], None]) -> Iterator[None]:
    """MLflow follows the journal while the block runs. At the end, log what it could not take."""
    if not options.mlflow:
        yield
        return
    journal, storage = job.out / JOURNAL, Storage(str(job.out))
    tracker = TrainingTracker(journal, storage, uri=options.tracking_uri, params=_params(job), resume=options.resume)
    tracker.start()
    event: Event = "failed"
    try:
        yield
        event = "finished"
    except KeyboardInterrupt:
        event = "interrupted"
        raise
    finally:
        problem = tracker.finish(event=event)
        if problem is not None:
            log(f"MLflow does not have all of the curve ({problem}); {journal} does")


def _params(job: DrafterJob) -> dict[str, Any]:
    return {"models": job.models["name"], "captions": len(job.captions), **asdict(job.recipe)}
