"""Options that several commands share."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from orchestrator.errors import WRONG_USAGE, CommandError, ends_with, explain
from orchestrator.outputs import check_lasting, check_output
from workers.runtime.threads import use_threads

if TYPE_CHECKING:
    import torch

MAX_SEED = 2**63 - 1  # as in a sweep's file
_MAX_THREADS = 4096

Models = Annotated[
    str | None,
    typer.Option(
        metavar="MODELS",
        help="builtin, a folder of weights, or a models.yaml: FILE#ENTRY (FILE if it has only one entry).",
    ),
]
Device = Annotated[
    str | None, typer.Option(metavar="DEVICE", help="cpu, cuda or cuda:N. Default: a GPU if torch can use one.")
]


def say_on_terminal(text: str) -> None:
    """Say what takes seconds, if a person is there to read it."""
    if sys.stderr.isatty():
        typer.echo(text, err=True)


def finite(value: float | None) -> float | None:
    """A callback for options: refuses nan, which no range excludes, and infinity."""
    if value is not None and not math.isfinite(value):
        raise typer.BadParameter(f"must be a finite number, got {value}")
    return value


def given_path(option: typer.CallbackParam, path: str | None) -> str | None:
    """The path or URI of an option.

    Raises:
        CommandError: it is empty, as from an unset variable of a shell; "" would be the working directory, or /. Or a
            Ray job would lose it.
    """
    if path is not None and not path.strip():
        raise CommandError(f"{option.opts[0]} is empty; give a path", WRONG_USAGE)
    if path is not None:
        with ends_with(WRONG_USAGE):
            check_lasting(option.opts[0], path)
    return path


def _use_threads(count: int | None) -> int | None:
    if count is not None:
        use_threads(count)
    return count


Threads = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        min=1,
        max=_MAX_THREADS,
        callback=_use_threads,
        help="CPU threads. Default: OMP_NUM_THREADS, else the cores free at the start; of a worker: its cores.",
    ),
]
Address = Annotated[
    str | None, typer.Option(metavar="ADDRESS", help="Ray cluster: auto or HOST:PORT. Default: this machine alone.")
]
TrackingUri = Annotated[
    str | None,
    typer.Option(
        metavar="URI",
        callback=given_path,
        help="MLflow's tracking URI. Default: MLFLOW_TRACKING_URI, else SQLite in the output folder.",
    ),
]
Mlflow = Annotated[bool, typer.Option("--mlflow/--no-mlflow", help="Log to MLflow.")]
Assignments = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="KEY=VALUE", help="Override one key of the YAML file, with dots between levels. Repeatable."
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def output_file(endings: Sequence[str]) -> Callable[[typer.CallbackParam, str | None], str | None]:
    """A callback for options that name a file to write (see `check_output`), so that no work is done for nothing.

    endings: the known ones, which decide the format.
    """

    def check(option: typer.CallbackParam, path: str | None) -> str | None:
        if given_path(option, path) is not None:
            try:
                check_output(str(path), endings, option.opts[0])
            except (ValueError, OSError) as error:
                raise CommandError(f"{option.opts[0]} {explain(error)}", WRONG_USAGE) from error
        return path

    return check


def pick_device(name: str | None) -> torch.device:
    """The device that --device names; None: a GPU if torch can use one.

    Raises:
        CommandError: no such device, or a type that decoding does not support.
    """
    from workers.runtime import device

    try:
        return device.pick_device(device.AUTO if name is None else name)
    except ValueError as error:
        raise CommandError(f"--device {error}", WRONG_USAGE) from error
