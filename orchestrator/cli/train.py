"""`specfrontier train`: the pieces of a model, from procedural scenes or from a folder of images; and an EAGLE drafter
for a target that is there already, from captions alone.
"""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated, Any

import typer

from orchestrator.cli import train_options as t
from orchestrator.errors import FAILED, INTERRUPTED, WRONG_USAGE, CommandError, explain

EPILOG = """\b
Examples:
  specfrontier train tokenizer target eagle --out runs/mine
  specfrontier train all --data photos --out runs/photos     (photos/CLASS/*.png, or captions beside the images)
  specfrontier generate "a large red circle" --weights runs/mine --preset lantern
  specfrontier train eagle --captions captions.txt --weights runs/photos --out runs/drafter --workers 4
  specfrontier train eagle --captions captions.txt --models models.yaml#llamagen-xl-stage1 --out runs/drafter
"""
# Spelled out, because asking workers.training for them would cost this command's help the import of torch.
PIECES = ("tokenizer", "target", "eagle", "medusa", "independent", "features", "clip")
SCENES_ONLY = ("features", "clip")
ALL, EAGLE = "all", "eagle"


def train(
    pieces: Annotated[list[str], typer.Argument(metavar="PIECE", help=f"{', '.join(PIECES)}; or {ALL}.")],
    out: Annotated[str, typer.Option(metavar="DIR", help="Folder for weights, checkpoints and caches.")] = "runs/train",
    data: Annotated[
        str | None,
        typer.Option(metavar="DIR", help="Your captioned or class-labelled images. Default: procedural scenes."),
    ] = None,
    steps: Annotated[int | None, typer.Option(metavar="N", min=1, help="Default: the recipe's.")] = None,
    seed: Annotated[int, typer.Option(metavar="N", help="Same seed, same weights on the same machine.")] = 0,
    device: Annotated[
        str | None, typer.Option(metavar="DEVICE", help="cpu, cuda or cuda:N. Default: a GPU if torch can use one.")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on from the checkpoints in DIR.")] = False,
    captions: t.Captions = None,
    weights: t.Weights = None,
    models: t.ModelsFile = None,
    count: t.Count = None,
    batch: t.Batch = None,
    rate: t.Rate = None,
    save_every: t.SaveEvery = None,
    workers: t.Workers = 1,
    address: t.Address = None,
    tracking_uri: t.TrackingUri = None,
    mlflow: t.Mlflow = True,
) -> None:
    """Train pieces of a model, as the built-in ones were trained, each into one weight file in DIR.

    Pieces build on each other: a target needs its tokenizer, a drafter its target. They are trained in that order. For
    procedural scenes, a piece that DIR does not hold is taken from the built-in model.

    With --captions, train an EAGLE drafter for the target in --weights (default: builtin) or --models, on images that
    it draws of the captions (kept in DIR); the loss goes to DIR/eagle.journal.jsonl and to MLflow, the weights best at
    held-out top-3 into DIR.
    """
    if captions is not None:
        said = {"steps": steps, "batch": batch, "rate": rate, "save_every": save_every, "seed": seed}
        recipe = {key: value for key, value in said.items() if value is not None}
        for_target(
            pieces, captions, (weights, models), out, recipe,
            count=count, data=data, device=device, workers=workers, address=address, resume=resume,
            tracking_uri=tracking_uri, mlflow=mlflow,
        )  # fmt: skip
        return
    unheard = {
        "--weights": weights, "--models": models, "--count": count, "--batch": batch, "--rate": rate,
        "--save-every": save_every, "--workers": None if workers == 1 else workers, "--address": address,
        "--tracking-uri": tracking_uri, "--no-mlflow": None if mlflow else True,
    }  # fmt: skip
    refuse_without_captions(unheard)
    ordered = in_order(pieces, with_data=data is not None)
    from orchestrator.run.models import pick_device
    from workers.models.weights import WeightsError
    from workers.training.recipes import train_piece

    place = str(pick_device(device))
    for piece in ordered:
        try:
            path = train_piece(
                piece, Path(out), Path(data) if data is not None else None,
                seed=seed, device=place, steps=steps, resume=resume, log=typer.echo,
            )  # fmt: skip
        except KeyboardInterrupt:
            left = ordered[ordered.index(piece) :]
            again = resuming(left, out=out, data=data, steps=steps, seed=seed, device=device)
            raise CommandError(f"interrupted; go on with: {again}", INTERRUPTED) from None
        except WeightsError as error:
            raise CommandError(str(error), FAILED) from error
        except (ValueError, OSError) as error:
            raise CommandError(str(error), WRONG_USAGE) from error
        typer.echo(f"{piece}: {path}")


def refuse_without_captions(given: dict[str, Any]) -> None:
    """Refuse options that only the training for a given target knows, rather than drop them.

    Raises:
        CommandError: the first of them.
    """
    for option, value in given.items():
        if value is not None:
            raise CommandError(f"{option} goes with --captions: a drafter for a target that is there", WRONG_USAGE)


def for_target(
    pieces: list[str],
    captions: str,
    target: tuple[str | None, str | None],
    out: str,
    recipe: dict[str, Any],
    *,
    count: int | None,
    data: str | None,
    device: str | None,
    workers: int,
    address: str | None,
    resume: bool,
    tracking_uri: str | None,
    mlflow: bool,
) -> None:
    """An EAGLE drafter for a target that is there already: that of --weights, or of --models.

    Raises:
        CommandError: how it ended, if not well.
    """
    if pieces != [EAGLE] or data is not None:
        raise CommandError("--captions trains a drafter for a target: say `train eagle`, without --data", WRONG_USAGE)
    if device is not None and (workers > 1 or address is not None):
        raise CommandError("--device is for one process; workers take the GPU or core that Ray gives them", WRONG_USAGE)
    weights, models = target
    if weights is not None and models is not None:
        raise CommandError("--weights and --models: give one of them, the target is either's", WRONG_USAGE)
    from orchestrator.run.models import pick_device
    from orchestrator.run.tasks import PoolError
    from orchestrator.run.training import Place, Tracking, drafter_job, train_drafter
    from workers.models.weights import WeightsError
    from workers.training.eagle import EagleRecipe

    place = Place(device=str(pick_device(device)), workers=workers, address=address)
    try:
        wanted = EagleRecipe(**recipe)
        job = drafter_job(weights or "builtin", captions, Path(out), wanted, count=count, models=models)
        path = train_drafter(job, place, Tracking(wanted=mlflow, uri=tracking_uri), resume=resume, tell=typer.echo)
    except KeyboardInterrupt:
        raise CommandError("interrupted; go on with the same command and --resume", INTERRUPTED) from None
    except (WeightsError, PoolError) as error:
        raise CommandError(str(error), FAILED) from error
    except (ValueError, OSError) as error:
        raise CommandError(explain(error), WRONG_USAGE) from error
    typer.echo(f"{EAGLE}: {path}")


def in_order(pieces: list[str], *, with_data: bool) -> list[str]:
    """The pieces in the order in which they build on each other; "all" are those that the data can train.

    Raises:
        CommandError: an unknown piece.
    """
    for piece in pieces:
        if piece not in (*PIECES, ALL):
            raise CommandError(f"unknown piece {piece!r}; use {', '.join(PIECES)} or {ALL}", WRONG_USAGE)
    everything = [piece for piece in PIECES if not (with_data and piece in SCENES_ONLY)]
    wanted = {*pieces, *(everything if ALL in pieces else [])}
    return [piece for piece in PIECES if piece in wanted]


def resuming(pieces: list[str], *, out: str, data: str | None, steps: int | None, seed: int, device: str | None) -> str:
    """The command line that goes on with these pieces."""
    said = {"--out": out, "--data": data, "--steps": steps, "--seed": seed, "--device": device}
    options = [str(word) for flag, value in said.items() if value is not None for word in (flag, value)]
    return shlex.join(["specfrontier", "train", *pieces, *options, "--resume"])
