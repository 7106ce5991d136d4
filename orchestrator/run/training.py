"""Training of a drafter for a target: in this process or by workers on Ray, with its curve in MLflow."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from orchestrator.tracking.training_curve import Curve
from workers.data.captions import read_captions
from workers.data.storage import Storage
from workers.loading.entry_names import split_entry
from workers.loading.headers import headers_of_models, read_headers
from workers.loading.manifest import read_entry, sketch_entry
from workers.loading.models import pick_device, weights_folder
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


def drafter_job(
    weights: str, captions: str, out: Path, recipe: EagleRecipe, *, count: int | None = None, models: str | None = None
) -> DrafterJob:
    """The training of a drafter, checked before anything is computed.

    models: FILE[#ENTRY] of a models.yaml, instead of `weights`.

    Raises:
        ValueError: captions that cannot be read, or too few of them; no such file or entry.
        WeightsError: no such folder of weights; a file of the entry is missing or of another family.
    """
    entry = None
    if models is None:
        headers = read_headers(weights_folder(weights))
    else:
        file, name = split_entry(models)
        assert file is not None
        entry = replace(read_entry(file, name), drafters={})
        headers = headers_of_models(sketch_entry(entry), entry.folder)
    found = read_captions(captions, count=count, seed=recipe.seed)
    if unreadable := headers.unreadable([caption.text for caption in found]):
        index, problem = unreadable[0]
        more = f" ({len(unreadable) - 1} more cannot be read)" if len(unreadable) > 1 else ""
        raise ValueError(f"{found[index].where or captions}: {problem}{more}")
    recipe.split(len(found))
    mapping = entry.to_mapping() if entry else None
    return DrafterJob(weights=weights, captions=tuple(found), out=out, recipe=recipe, models=mapping)


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
    curve = Curve(journal, storage, uri=options.tracking_uri, params=_params(job), resume=options.resume)
    curve.start()
    event = "failed"
    try:
        yield
        event = "finished"
    except KeyboardInterrupt:
        event = "interrupted"
        raise
    finally:
        problem = curve.finish(event)
        if problem is not None:
            log(f"MLflow does not have all of the curve ({problem}); {journal} does")


def _params(job: DrafterJob) -> dict[str, Any]:
    weights = job.models["name"] if job.models else job.weights
    return {"weights": weights, "captions": len(job.captions), **asdict(job.recipe)}
