"""`specfrontier report`: a sweep as one HTML page."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from orchestrator.cli import query_options as o
from orchestrator.cli.options import given_path
from orchestrator.errors import FAILED, CommandError, ends_with

EPILOG = """\b
Examples:
  specfrontier report quickstart --open
  specfrontier report s3://bucket/sweeps/joint --out joint.html
"""


def report(
    sweep: o.OneSweep,
    out: Annotated[
        str | None,
        typer.Option(
            metavar="FILE", callback=given_path, help="Output file. Default: report.html in the sweep's folder."
        ),
    ] = None,
    open_it: Annotated[bool, typer.Option("--open", help="Open the page in the browser.")] = False,
) -> None:
    """Write a sweep's report and print its path.

    One HTML file that needs no network: the recommended setting for a quality bar that a slider moves, the front,
    images of the same captions across settings, plots of the search, and all trials with filters. Also works while the
    sweep is running. `compare --html` writes one page of several sweeps.
    """
    from orchestrator.report.page import report_page, write_report
    from orchestrator.results.sweep import Sweep

    note = partial(typer.echo, err=True)
    with ends_with(FAILED):
        storage = Sweep.open(sweep).storage
        if out is None:
            name = write_report(storage, note)
            path = storage.path(name)
        else:
            path = Path(out)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(report_page(storage, note), "utf-8")
    typer.echo(str(path) if path is not None else storage.locate(name))
    if not open_it:
        return
    if path is None:
        raise CommandError("--open: the page is not on this machine; add --out FILE", FAILED)
    import webbrowser

    if not webbrowser.open(path.resolve().as_uri()):
        raise CommandError("--open: this machine has no browser; copy the page to one that has", FAILED)
