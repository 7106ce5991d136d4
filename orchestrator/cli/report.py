"""`specfrontier report`: a sweep as one HTML page."""

from __future__ import annotations

from functools import partial

import typer

from orchestrator.cli import query_options as o
from orchestrator.errors import FAILED, WRONG_USAGE, CommandError, ends_with
from orchestrator.options import flag, grouped, option, output_file
from orchestrator.outputs import PAGES, write_output

EPILOG = """\b
Examples:
  specfrontier report quickstart --open
  specfrontier report quickstart --device A10G --out a10g.html
  specfrontier report s3://bucket/sweeps/joint --out joint.html
"""


@grouped
def report(
    sweep: o.OneSweep,
    out: str | None = option(
        "Output file, .html. Default: in the sweep's folder.", "FILE", callback=output_file(PAGES)
    ),
    open_it: bool = flag("Open the page in the browser.", "--open"),
    *,
    prices: o.PriceOptions,
) -> None:
    """Write a sweep's report and print its path.

    One HTML file that needs no network: the recommended setting for a quality bar that a slider moves, the front,
    images of the same captions across settings, plots of the search, and all trials with filters. Also works while the
    sweep is running. `compare --html` writes one page of several sweeps.
    """
    from orchestrator.report.page import report_page, write_report
    from orchestrator.results.query import QueryError
    from workers.data.storage import Storage

    note = partial(typer.echo, err=True)
    with ends_with(FAILED), ends_with(WRONG_USAGE, QueryError):
        storage = o.open_sweep(sweep, prices).storage
        if out is None:
            name = write_report(storage, note, device=prices.device, batch=prices.batch)
            place = storage.locate(name)
        else:
            page = report_page(storage, note, device=prices.device, batch=prices.batch)
            place = write_output(out, page.encode())
            storage, name = Storage.holding(out)
    typer.echo(place)
    if not open_it:
        return
    if (path := storage.path(name)) is None:
        raise CommandError("--open: the page is not on this machine; add --out FILE", FAILED)
    import webbrowser

    if not webbrowser.open(path.resolve().as_uri()):
        raise CommandError("--open: this machine has no browser; copy the page to one that has", FAILED)
