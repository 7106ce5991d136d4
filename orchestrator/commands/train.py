"""`specfrontier train`: the pieces of a model, from procedural scenes or from a folder of images."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from orchestrator.errors import FAILED, INTERRUPTED, WRONG_USAGE, CommandError

EPILOG = """\b
Examples:
  specfrontier train tokenizer target eagle --out runs/mine
  specfrontier train all --data photos --out runs/photos     (photos/CLASS/*.png, or captions beside the images)
  specfrontier generate "a large red circle" --weights runs/mine --preset lantern
"""
# Spelled out, because asking workers.training for them would cost this command's help the import of torch.
PIECES = ("tokenizer", "target", "eagle", "medusa", "independent", "features", "clip")
SCENES_ONLY = ("features", "clip")
ALL = "all"


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
) -> None:
    """Train pieces of a model, as the built-in ones were trained, each into one weight file in DIR.

    Pieces build on each other: a target needs its tokenizer, a drafter its target. They are trained in that order. For
    procedural scenes, a piece that DIR does not hold is taken from the built-in model.
    """
    ordered = in_order(pieces, with_data=data is not None)
    from orchestrator.loading import pick_device
    from workers.models.weights import WeightsError
    from workers.training.recipes import train_piece

    place = str(pick_device(device))
    for piece in ordered:
        try:
            path = train_piece(
                piece,
                Path(out),
                Path(data) if data is not None else None,
                seed=seed,
                device=place,
                steps=steps,
                resume=resume,
                tell=typer.echo,
            )
        except KeyboardInterrupt:
            left = ordered[ordered.index(piece) :]
            again = resuming(left, out=out, data=data, steps=steps, seed=seed, device=device)
            raise CommandError(f"interrupted; go on with: {again}", INTERRUPTED) from None
        except WeightsError as error:
            raise CommandError(str(error), FAILED) from error
        except (ValueError, OSError) as error:
            raise CommandError(str(error), WRONG_USAGE) from error
        typer.echo(f"{piece}: {path}")


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
