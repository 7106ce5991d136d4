"""`specfrontier train`: drafters for a target, from captions."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from orchestrator import options as o
from orchestrator.errors import FAILED, INTERRUPTED, WRONG_USAGE, CommandError, explain
from orchestrator.outputs import output_folder
from workers.training import DRAFTERS

EPILOG = """\b
Examples:
  specfrontier train eagle --captions captions.txt --models models.yaml#llamagen-xl-stage1 --out runs/drafter
  specfrontier train eagle medusa --captions captions.txt --models runs/photos --out runs/drafter --workers 4
  specfrontier train eagle --captions captions.txt --models runs/photos --out runs/drafter --resume
"""
_RATES = {"eagle": 1e-4, "medusa": 1e-3, "independent": 1e-3}

Drafters = Annotated[list[str], typer.Argument(metavar="DRAFTER", help=f"{', '.join(DRAFTERS)}.")]
Captions = Annotated[
    str, typer.Option(metavar="FILE", help="Captions of the images that the target generates for training; or: scenes.")
]
Out = Annotated[
    str, typer.Option(metavar="DIR", callback=o.given_path, help="Folder for weights, checkpoints and images.")
]
Count = Annotated[int | None, typer.Option(metavar="N", min=2, help="Number of captions. Default: all of them.")]
Steps = Annotated[int | None, typer.Option(metavar="N", min=1, help="Default: 20 passes over the images.")]
Batch = Annotated[int, typer.Option(metavar="N", min=1, help="Examples per step, over all workers.")]
Rate = Annotated[
    float | None,
    typer.Option(
        metavar="X", min=0.0, callback=o.finite, help="Peak learning rate. Default: 0.0001 for eagle, else 0.001."
    ),
]
SaveEvery = Annotated[int, typer.Option(metavar="N", min=1, help="Steps between checkpoints.")]
Seed = Annotated[
    int,
    typer.Option(
        metavar="N", min=0, max=o.MAX_SEED, help="The same seed and threads give the same weights on the same machine."
    ),
]
Resume = Annotated[bool, typer.Option("--resume", help="Resume from the checkpoints in DIR.")]
Workers = Annotated[
    int, typer.Option(metavar="N", min=1, help="Processes that train together on Ray, each with a GPU or a core.")
]


def train(
    drafters: Drafters,
    captions: Captions,
    models: o.Models = None,
    out: Out = "runs/train",
    count: Count = None,
    steps: Steps = None,
    batch: Batch = 16,
    rate: Rate = None,
    save_every: SaveEvery = 1000,
    seed: Seed = 0,
    resume: Resume = False,
    device: o.Device = None,
    threads: o.Threads = None,
    workers: Workers = 1,
    address: o.Address = None,
    tracking_uri: o.TrackingUri = None,
    mlflow: o.Mlflow = True,
) -> None:
    """Train drafters for the target of --models (default: builtin), each into one weight file in DIR.

    They train on images that the target generates from the captions (kept in DIR). The loss is written to
    DIR/DRAFTER.journal.jsonl and MLflow, the weights with the best held-out top-3 accuracy to DIR.

    The default number of threads stays as it was chosen at the start, whatever other work begins or ends meanwhile.
    """
    if unknown := [kind for kind in drafters if kind not in DRAFTERS]:
        raise CommandError(f"unknown drafter {unknown[0]!r}; use {', '.join(DRAFTERS)}", WRONG_USAGE)
    if device is not None and (workers > 1 or address is not None):
        raise CommandError("--device is for one process; Ray assigns GPUs or cores to several workers", WRONG_USAGE)
    from orchestrator.run.training import drafter_job, train_drafter
    from workers.training.job import DrafterRecipe

    torch_device = o.pick_device(device)
    with output_folder(Path(out)), _exit_codes("resume with the same command and --resume"):
        jobs = []
        for kind in dict.fromkeys(drafters):
            recipe = DrafterRecipe(
                steps=steps, batch=batch, rate=_RATES[kind] if rate is None else rate, save_every=save_every, seed=seed
            )
            jobs.append(drafter_job(models or "builtin", captions, Path(out), recipe, kind=kind, count=count))
        for job in jobs:
            path = train_drafter(
                job, device=torch_device, workers=workers, address=address, threads=threads, mlflow=mlflow,
                tracking_uri=tracking_uri, resume=resume, log=typer.echo,
            )  # fmt: skip
            typer.echo(f"{job.kind}: {path}")


@contextmanager
def _exit_codes(advice: str) -> Iterator[None]:
    """Turn errors inside into a `CommandError`: wrong usage (2), unreadable weights or no cluster (1), interrupt (130).

    advice: how to resume.
    """
    from orchestrator.run.tasks import PoolError
    from workers.models.checkpoint_files import WeightsError

    try:
        yield
    except KeyboardInterrupt:
        raise CommandError(f"interrupted; {advice}", INTERRUPTED) from None
    except (WeightsError, PoolError) as error:
        raise CommandError(str(error), FAILED) from error
    except (ValueError, OSError) as error:
        raise CommandError(explain(error), WRONG_USAGE) from error
