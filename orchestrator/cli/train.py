"""`specfrontier train`: drafters for a target, from captions."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from orchestrator import options as o
from orchestrator.errors import FAILED, INTERRUPTED, WRONG_USAGE, CommandError, ends_with
from orchestrator.outputs import output_folder
from workers.training import DRAFTERS

if TYPE_CHECKING:
    from workers.training.job import DrafterJob

EPILOG = """\b
Examples:
  specfrontier train eagle --captions captions.txt --models models.yaml#llamagen-xl-stage1 --out runs/drafter
  specfrontier train eagle medusa --captions captions.txt --models runs/photos --out runs/drafter --workers 4
  specfrontier train eagle --captions captions.txt --models runs/photos --out runs/drafter --resume
"""
Drafters = Annotated[list[str], typer.Argument(metavar="DRAFTER", help=f"{', '.join(DRAFTERS)}.")]
_RATES = {"eagle": 1e-4, "medusa": 1e-3, "independent": 1e-3}


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """The options that say what is trained, and how."""

    captions: str = o.option(
        "Captions of the images that the target generates for training; or: scenes.", "FILE", default=...
    )
    models: o.Models = None
    out: str = o.option(
        "Folder for weights, checkpoints and images.", "DIR", default="runs/train", callback=o.given_path
    )
    count: int | None = o.option("Number of captions. Default: all of them.", "N", min=2)
    steps: int | None = o.option("Default: 20 passes over the images.", "N", min=1)
    batch: int = o.option("Examples per step, over all workers.", "N", default=16, min=1)
    rate: float | None = o.option(
        "Peak learning rate. Default: 0.0001 for eagle, else 0.001.", "X", min=0.0, callback=o.finite
    )
    save_every: int = o.option("Steps between checkpoints.", "N", default=1000, min=1)
    seed: int = o.option(
        "The same seed and threads give the same weights on the same machine.", "N", default=0, min=0, max=o.MAX_SEED
    )

    def job(self, kind: str) -> DrafterJob:
        """The training of a drafter of this kind, checked."""
        from orchestrator.cli.training import drafter_job
        from workers.training.job import DrafterRecipe

        recipe = DrafterRecipe(
            steps=self.steps, batch=self.batch, rate=_RATES[kind] if self.rate is None else self.rate,
            save_every=self.save_every, seed=self.seed,
        )  # fmt: skip
        return drafter_job(self.models or "builtin", self.captions, Path(self.out), recipe, kind=kind, count=self.count)


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """The options that say where it is trained, and what MLflow gets."""

    resume: bool = o.flag("Resume from the checkpoints in DIR.")
    device: o.Device = None
    threads: o.Threads = None
    workers: int = o.option("Processes that train together on Ray, each with a GPU or a core.", "N", default=1, min=1)
    address: o.Address = None
    tracking_uri: o.TrackingUri = None
    mlflow: o.Mlflow = True


@o.grouped
def train(drafters: Drafters, wanted: Recipe, run: Run) -> None:
    """Train drafters for the target of --models (default: builtin), each into one weight file in DIR.

    They train on images that the target generates from the captions (kept in DIR). The loss is written to
    DIR/DRAFTER.journal.jsonl and MLflow, the weights with the best held-out top-3 accuracy to DIR.

    The default number of threads stays as it was chosen at the start, whatever other work begins or ends meanwhile.
    """
    if unknown := [kind for kind in drafters if kind not in DRAFTERS]:
        raise CommandError(f"unknown drafter {unknown[0]!r}; use {', '.join(DRAFTERS)}", WRONG_USAGE)
    if run.device is not None and (run.workers > 1 or run.address is not None):
        raise CommandError("--device is for one process; Ray assigns GPUs or cores to several workers", WRONG_USAGE)
    from orchestrator.cli.training import train_drafter

    options = asdict(run) | {"device": o.pick_device(run.device)}
    from orchestrator.run.tasks import PoolError
    from workers.models.checkpoint_files import WeightsError

    resume = "interrupted; resume with the same command and --resume"
    stopped = ends_with(INTERRUPTED, KeyboardInterrupt, message=resume)
    with output_folder(Path(wanted.out)), stopped, ends_with(WRONG_USAGE), ends_with(FAILED, WeightsError, PoolError):
        jobs = [wanted.job(kind) for kind in dict.fromkeys(drafters)]
        for job in jobs:
            typer.echo(f"{job.kind}: {train_drafter(job, **options, log=typer.echo)}")
