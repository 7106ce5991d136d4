"""`specfrontier train`: the components of a scenes model, or an EAGLE drafter for an existing target, from captions."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from orchestrator.cli import options as o
from orchestrator.errors import FAILED, INTERRUPTED, WRONG_USAGE, CommandError, explain
from orchestrator.outputs import output_folder
from workers.training import COMPONENTS, SCENES_ONLY

EPILOG = """\b
Examples:
  specfrontier train tokenizer target eagle --out runs/mine
  specfrontier train all --data photos --out runs/photos     (photos/CLASS/*.png, or captions beside the images)
  specfrontier generate "a large red circle" --models runs/mine --preset lantern
  specfrontier train eagle --captions captions.txt --models runs/photos --out runs/drafter --workers 4
  specfrontier train eagle --captions captions.txt --models models.yaml#llamagen-xl-stage1 --out runs/drafter
"""
ALL, EAGLE = "all", "eagle"

Components = Annotated[list[str], typer.Argument(metavar="COMPONENT", help=f"{', '.join(COMPONENTS)}; or {ALL}.")]
Out = Annotated[
    str, typer.Option(metavar="DIR", callback=o.given_path, help="Folder for weights, checkpoints and caches.")
]
Data = Annotated[
    str | None, typer.Option(metavar="DIR", help="Your captioned or class-labelled images. Default: procedural scenes.")
]
Steps = Annotated[int | None, typer.Option(metavar="N", min=1, help="Default: the recipe's.")]
Seed = Annotated[
    int,
    typer.Option(
        metavar="N", min=0, max=o.MAX_SEED, help="The same seed and threads give the same weights on the same machine."
    ),
]
Resume = Annotated[bool, typer.Option("--resume", help="Resume from the checkpoints in DIR.")]
Captions = Annotated[
    str | None,
    typer.Option(metavar="FILE", help="Train a drafter on images that the target draws of these captions; or: scenes."),
]
Count = Annotated[int | None, typer.Option(metavar="N", min=2, help="Number of captions. Default: all of them.")]
Batch = Annotated[
    int | None, typer.Option(metavar="N", min=1, help="Examples per step, over all workers. Default: 16.")
]
Rate = Annotated[
    float | None, typer.Option(metavar="X", min=0.0, callback=o.finite, help="Peak learning rate. Default: 0.0001.")
]
SaveEvery = Annotated[int | None, typer.Option(metavar="N", min=1, help="Steps between checkpoints. Default: 1000.")]
Workers = Annotated[
    int, typer.Option(metavar="N", min=1, help="Processes that train together on Ray, each with a GPU or a core.")
]


def train(
    components: Components,
    out: Out = "runs/train",
    data: Data = None,
    steps: Steps = None,
    seed: Seed = 0,
    device: o.Device = None,
    threads: o.Threads = None,
    resume: Resume = False,
    captions: Captions = None,
    models: o.Models = None,
    count: Count = None,
    batch: Batch = None,
    rate: Rate = None,
    save_every: SaveEvery = None,
    workers: Workers = 1,
    address: o.Address = None,
    tracking_uri: o.TrackingUri = None,
    mlflow: o.Mlflow = True,
) -> None:
    """Train components of a scenes model, each into one weight file in DIR.

    Components need each other: a target needs its tokenizer, a drafter its target. They are trained in that order. For
    procedural scenes, the built-in model replaces a component that is not in DIR.

    With --captions, train an EAGLE drafter for the target of --models (default: builtin), on images that the target
    generates from the captions (kept in DIR). The loss is written to DIR/eagle.journal.jsonl and MLflow, the weights
    with the best held-out top-3 accuracy to DIR.

    The default number of threads stays as it was chosen at the start, whatever other work begins or ends meanwhile.
    """
    if captions is None:
        drafter_options = {
            "--models": models, "--count": count, "--batch": batch, "--rate": rate,
            "--save-every": save_every, "--workers": None if workers == 1 else workers, "--address": address,
            "--tracking-uri": tracking_uri, "--no-mlflow": None if mlflow else True,
        }  # fmt: skip
        for option, value in drafter_options.items():
            if value is not None:
                raise CommandError(f"{option} requires --captions: it trains a drafter for a target", WRONG_USAGE)
        _train_components(components, out, data, steps=steps, seed=seed, device=device, threads=threads, resume=resume)
        return
    if components != [EAGLE] or data is not None:
        problem = "--captions trains an EAGLE drafter for a target: use `train eagle` without --data"
        raise CommandError(problem, WRONG_USAGE)
    if device is not None and (workers > 1 or address is not None):
        raise CommandError("--device is for one process; Ray assigns GPUs or cores to several workers", WRONG_USAGE)
    recipe = {"steps": steps, "batch": batch, "rate": rate, "save_every": save_every, "seed": seed}
    from orchestrator.run.training import drafter_job, train_drafter
    from workers.training.eagle import EagleRecipe

    torch_device = o.pick_device(device)
    with output_folder(Path(out)), _exit_codes("resume with the same command and --resume"):
        eagle = EagleRecipe(**{key: value for key, value in recipe.items() if value is not None})  # type: ignore[arg-type]
        job = drafter_job(models or "builtin", captions, Path(out), eagle, count=count)
        path = train_drafter(
            job, device=torch_device, workers=workers, address=address, threads=threads, mlflow=mlflow,
            tracking_uri=tracking_uri, resume=resume, log=typer.echo,
        )  # fmt: skip
    typer.echo(f"{EAGLE}: {path}")


def _train_components(
    components: list[str],
    out: str,
    data: str | None,
    *,
    steps: int | None,
    seed: int,
    device: str | None,
    threads: int | None,
    resume: bool,
) -> None:
    """Train the components of a scenes model in order."""
    ordered = ordered_components(components, with_data=data is not None)
    from workers.training.recipes import train_component

    device_name = str(o.pick_device(device))
    options = {"--out": out, "--data": data, "--steps": steps, "--seed": seed, "--device": device, "--threads": threads}
    arguments = [str(part) for option in options.items() if option[1] is not None for part in option]
    for index, component in enumerate(ordered):
        command = shlex.join(["specfrontier", "train", *ordered[index:], *arguments, "--resume"])
        with output_folder(Path(out)), _exit_codes(f"resume with: {command}"):
            path = train_component(
                component, Path(out), Path(data) if data is not None else None,
                seed=seed, device=device_name, steps=steps, resume=resume, log=typer.echo,
            )  # fmt: skip
        typer.echo(f"{component}: {path}")


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


def ordered_components(components: list[str], *, with_data: bool) -> list[str]:
    """The components in the order of their dependencies; "all" are those that can be trained on the data.

    Raises:
        CommandError: an unknown component.
    """
    for component in components:
        if component not in (*COMPONENTS, ALL):
            raise CommandError(f"unknown component {component!r}; use {', '.join(COMPONENTS)} or {ALL}", WRONG_USAGE)
    trainable = [component for component in COMPONENTS if not (with_data and component in SCENES_ONLY)]
    chosen = {*components, *(trainable if ALL in components else [])}
    return [component for component in COMPONENTS if component in chosen]
