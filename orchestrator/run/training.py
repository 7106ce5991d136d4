"""Training of a drafter for a target, as a command runs it: in this process, or by workers on Ray; MLflow looks on."""

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

Tell = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a training runs: one process on a device, or `workers` processes of a Ray cluster (None: started here)."""

    device: str = "auto"
    workers: int = 1
    address: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Tracking:
    """Whether and where the curve goes to MLflow (uri None: as for sweeps)."""

    wanted: bool = True
    uri: str | None = None


def drafter_job(
    weights: str, captions: str, out: Path, recipe: EagleRecipe, *, count: int | None = None, models: str | None = None
) -> DrafterJob:
    """What to train, held against what is there before anything is computed. models: FILE[#ENTRY] of a models.yaml,
    instead of `weights`.

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
        place, why = unreadable[0]
        more = f" ({len(unreadable) - 1} more cannot be read)" if len(unreadable) > 1 else ""
        raise ValueError(f"{found[place].where or captions}: {why}{more}")
    recipe.split(len(found))
    told = entry.to_mapping() if entry else None
    return DrafterJob(weights=weights, captions=tuple(found), out=out, recipe=recipe, models=told)


def train_drafter(
    job: DrafterJob, place: Place, tracking: Tracking, *, resume: bool = False, tell: Tell = print
) -> Path:
    """Carry the job out; returns the weight file. `resume` goes on from the checkpoint in its folder, if there is one.

    Raises:
        ValueError: see `DrafterJob.run`; a batch that the workers cannot share.
        PoolError: no cluster, or no room on it; the workers failed.
    """
    ProcessGroup(0, place.workers).share(job.recipe.batch)
    job.out.mkdir(parents=True, exist_ok=True)
    with _tracked(job, tracking, resume, tell):
        if place.workers == 1 and place.address is None:
            return job.run(pick_device(place.device), resume=resume, log=tell)
        from orchestrator.run.training_team import train_together

        return train_together(job, place.workers, place.address, resume=resume, tell=tell)


@contextlib.contextmanager
def _tracked(job: DrafterJob, tracking: Tracking, resume: bool, tell: Tell) -> Iterator[None]:
    """MLflow follows the journal while the block runs; what it could not take is said at the end."""
    if not tracking.wanted:
        yield
        return
    curve = Curve(job.out / JOURNAL, Storage(str(job.out)), uri=tracking.uri, params=_params(job), resume=resume)
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
            tell(f"MLflow lacks a part of the curve, {job.out / JOURNAL} has it: {problem}")


def _params(job: DrafterJob) -> dict[str, Any]:
    weights = job.models["name"] if job.models else job.weights
    return {"weights": weights, "captions": len(job.captions), **asdict(job.recipe)}
