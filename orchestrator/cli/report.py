"""`specfrontier report`: a sweep as one HTML page."""

from __future__ import annotations

import signal
from functools import partial
from typing import TYPE_CHECKING

import typer

from orchestrator.cli import query_options as o
from orchestrator.cli.text import say
from orchestrator.errors import FAILED, WRONG_USAGE, CommandError, QueryError, ends_with
from orchestrator.options import flag, grouped, option, output_file
from orchestrator.outputs import PAGES, write_output

if TYPE_CHECKING:
    from workers.data.storage import Storage

EPILOG = """\b
Examples:
  specfrontier report quickstart --open
  specfrontier report quickstart --device A10G --out a10g.html
  specfrontier report quickstart --serve --open
  specfrontier report s3://bucket/sweeps/joint --out joint.html
"""


@grouped
def report(
    sweep: o.OneSweep,
    out: str | None = option(
        "Output file, .html. Default: in the sweep's folder.", "FILE", callback=output_file(PAGES)
    ),
    open_it: bool = flag("Open the page in the browser.", "--open"),
    serve: bool = flag(
        "Serve the page to this machine until Ctrl-C; it reloads when the sweep has new trials."
    ),
    port: int | None = option("Of --serve. Default: any free port.", "N", min=1, max=65535),
    *,
    prices: o.PriceOptions,
) -> None:
    """Write a sweep's report and print its path.

    One HTML file that needs no network: the recommended setting for a quality bar that a slider
    moves, the front, images of the same captions across settings, plots of the search, and all
    trials with filters. Also works while the sweep is running. `compare --html` writes one page of
    several sweeps.

    --serve writes no file: it makes the page again whenever the sweep has new trials, and what its
    reader has chosen stays.
    """
    if serve and out is not None:
        raise CommandError("--serve writes no file; leave out --out", WRONG_USAGE)
    if port is not None and not serve:
        raise CommandError("--port is of --serve", WRONG_USAGE)
    from orchestrator.report.page import report_page, write_report
    from orchestrator.store import files
    from workers.data.storage import Storage

    with ends_with(FAILED), ends_with(WRONG_USAGE, QueryError, files.NoSweepError):
        storage = o.open_sweep(sweep, prices).storage
        if serve:
            _serve(storage, prices, port or 0, open_it=open_it)
            return
        if out is None:
            name = write_report(storage, say, device=prices.device, batch=prices.batch)
            place = storage.locate(name)
        else:
            page = report_page(storage, say, device=prices.device, batch=prices.batch)
            place = write_output(out, page.encode())
            storage, name = Storage.holding(out)
    typer.echo(place)
    if not open_it:
        return
    if (path := storage.path(name)) is None:
        raise CommandError("--open: the page is not on this machine; add --out FILE", FAILED)
    if not _open(path.resolve().as_uri()):
        raise CommandError(
            "--open: this machine has no browser; copy the page to one that has", FAILED
        )


def _open(address: str) -> bool:
    """Open an address in the browser; False if there is none."""
    import webbrowser

    return webbrowser.open(address)


def _serve(storage: Storage, prices: o.PriceOptions, port: int, *, open_it: bool) -> None:
    """Serve a sweep's page until Ctrl-C. Images are decoded from tokens when the launch has ended.

    Raises:
        CommandError: the port is in use.
    """
    from orchestrator.report.page import page_data, render
    from orchestrator.report.server import ReportServer, version_of
    from orchestrator.store import launches
    from orchestrator.store.sweep import Sweep

    def make(version: str) -> str:
        opened = Sweep.open(storage, prices.device, prices.batch)
        decode = not launches.find_launch(storage).is_running
        return render(page_data([opened], say, decode=decode), version)

    with ends_with(
        FAILED,
        OSError,
        message=f"--port {port}: in use, or not allowed; leave it out for any free port",
    ):
        server = ReportServer(port, partial(version_of, storage), make)
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    with server:
        typer.echo(f"{server.address}\nCtrl-C stops it.")
        try:
            if open_it and not _open(server.address):
                say("--open: this machine has no browser")
            server.serve_forever()
        except KeyboardInterrupt:
            typer.echo("The report is no longer served.")
        finally:
            signal.signal(signal.SIGTERM, before)
