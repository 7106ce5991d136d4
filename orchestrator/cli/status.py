"""`specfrontier status`: the progress of a sweep, or of all sweeps under ./sweeps, read from their
files.

A sweep may run elsewhere or have ended.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand

from orchestrator.cli import query_options as o
from orchestrator.cli.list_sweeps import list_sweeps
from orchestrator.cli.text import (
    choice_lines,
    for_output,
    front_table,
    output_text,
)
from orchestrator.errors import INTERRUPTED, WRONG_USAGE, CommandError
from orchestrator.options import AsJson, complete_sweep, finite

if TYPE_CHECKING:
    from orchestrator.shown.status import SweepStatus

EPILOG = """\b
Examples:
  specfrontier status
  specfrontier status quickstart
  specfrontier status quickstart --watch
  specfrontier status s3://lab/sweeps/joint --json
"""
_INTERVAL_S = 5  # of --watch


class WatchCommand(TyperCommand):
    """The command whose --watch may stand without its number, which typer does not support."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        given = []
        for word, following in zip(args, [*args, ""][1:], strict=True):
            if word == "--watch" and not _is_number(following):
                word = f"--watch={_INTERVAL_S}"
            given.append(word)
        return super().parse_args(ctx, given)


def _is_number(word: str) -> bool:
    try:
        return math.isfinite(float(word))
    except ValueError:
        return False


@o.query_errors()
def status(
    sweep: Annotated[
        str | None,
        typer.Argument(
            metavar="[SWEEP]",
            help=f"A {o.PLACE}. Default: list the sweeps under ./sweeps.",
            show_default=False,
            autocompletion=complete_sweep,
        ),
    ] = None,
    watch: Annotated[
        float | None,
        typer.Option(
            metavar="[SECONDS]",
            help=(
                f"Show it again and again until the launch has ended. Default: every {_INTERVAL_S} "
                "seconds."
            ),
            min=0.1,
            show_default=False,
            callback=finite,
        ),
    ] = None,
    long: o.Long = False,
    as_json: AsJson = False,
) -> None:
    """Show a sweep's progress: whether it runs, trials finished, failed and running, images,
    workers that were lost, the front so far, the latest events. Without a sweep: one line for each
    sweep under ./sweeps.

    --watch updates it in place; in a pipe, each update is another block or, with --json, another
    document.
    """
    if sweep is None:
        if watch is not None:
            raise CommandError("--watch shows one sweep; add its name", WRONG_USAGE)
        list_sweeps(as_json=as_json)
        return

    def read() -> tuple[str, bool]:
        now, facts, lines = _read_status(sweep, long=long, as_json=as_json)
        return output_text(facts, lines, as_json=as_json), now.launch.is_running

    if watch is None:
        typer.echo(read()[0])
    else:
        _watch(read, watch)


def _watch(read: Callable[[], tuple[str, bool]], interval_s: float) -> None:
    """Print what `read` returns until it says that nothing runs.

    Raises:
        CommandError: interrupted.
    """
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    in_place = sys.stdout.isatty()
    live = Live(console=Console(highlight=False), auto_refresh=False, transient=True)
    text, is_running = read()
    try:
        with live if in_place else nullcontext():
            while is_running:
                if in_place:
                    live.update(Text.from_ansi(text), refresh=True)
                else:
                    typer.echo(f"{text}\n")
                time.sleep(interval_s)
                text, is_running = read()
    except KeyboardInterrupt:
        if in_place:
            typer.echo(text)
        raise CommandError("interrupted; the sweep goes on", INTERRUPTED) from None
    typer.echo(text)


def _read_status(
    sweep: str, *, long: bool, as_json: bool
) -> tuple[SweepStatus, dict[str, Any], list[str]]:
    """The status, also as data and as lines of text."""
    from orchestrator.front.choice import NOTHING_RECOMMENDED, recommend
    from orchestrator.front.front import front_of
    from orchestrator.shown.status import sweep_status
    from orchestrator.store import files, launches
    from orchestrator.store.sweep import Sweep

    storage = files.find_sweep(sweep)
    opened = None if launches.is_preparing(storage) else Sweep.open(storage)
    now = sweep_status(storage, opened)
    facts: dict[str, Any] = asdict(now)
    lines = _describe(now)
    if opened is None:
        return now, facts | {"front": [], **NOTHING_RECOMMENDED}, lines
    front = for_output(front_of([opened]), long=long, as_json=as_json)
    recommended = recommend(front)
    facts["front"] = [member.to_mapping() for member in front.members]
    facts |= recommended.to_mapping()
    if front.candidates:
        lines += ["", *front_table(front.metrics, front.members), ""]
        lines += choice_lines(recommended.choices.values())
    return now, facts, lines


def _describe(now: SweepStatus) -> list[str]:
    """The status as lines of text."""
    from orchestrator.text import clean, counted, describe_duration

    kinds = (("failed", now.failed), ("stopped", now.stopped))
    lines = [
        f"{now.name} at {now.place}",
        f"launch    {now.launch.text}",
        f"trials    {_describe_trials(now)}",
        f"images    {now.images:,}",
    ]
    if now.taken is not None:
        sweeps = ", ".join(map(clean, now.taken["sweeps"]))
        reported = counted(now.taken["trials"], "trial")
        lines.append(
            f"from      {sweeps}: {now.taken['images']:,} of the images; the search was told "
            f"{reported}"
        )
    if now.plateau is not None:
        lines.append(f"plateau   {clean(now.plateau['text']).removeprefix('plateau ')}")
    if now.idle_s is not None:
        lines.append(f"last event {describe_duration(now.idle_s)} ago")
    lines += [f"          {event}" for event in now.events]
    lines += [f"lost      {event}" for event in now.lost]
    lines += [f"note      {warning}" for warning in now.warnings]
    if now.logs is not None:
        lines.append(f"logs      {now.logs}")
    for word, trials in kinds:
        lines += [f"{word:<9} trial {trial['number']}: {trial['cause']}" for trial in trials[-3:]]
    return lines


def _describe_trials(now: SweepStatus) -> str:
    """`12 of 40 finished, 1 of them failed; running: 12, 13`."""
    text = f"{now.finished} finished"
    if now.planned is not None:
        text = f"{now.finished} of {now.planned} finished"
    if now.failed:
        text += f", {len(now.failed)} of them failed"
    if now.stopped:
        text += f", {len(now.stopped)} of them stopped"
    if now.running:
        word = "running" if now.launch.is_running else "started, not finished"
        text += f"; {word}: {', '.join(map(str, now.running))}"
    return text
