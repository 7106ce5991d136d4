"""`specfrontier ui`: a sweep in MLflow's UI."""

from __future__ import annotations

import signal
from functools import partial
from typing import Annotated

import typer

from orchestrator.cli.query_options import OneSweep
from orchestrator.errors import FAILED, WRONG_USAGE, ends_with
from orchestrator.results.text import counted

EPILOG = """\b
Examples:
  specfrontier ui quickstart
  specfrontier ui sweeps/quickstart --port 5001
"""
_LOOPBACK = ("127.0.0.1", "localhost", "::1")


def ui(
    sweep: OneSweep,
    port: Annotated[int, typer.Option(metavar="N", min=0, max=65535, help="0: any free port.")] = 5000,
    host: Annotated[str, typer.Option(metavar="HOST", help="Address to listen on.")] = "127.0.0.1",
) -> None:
    """Open a sweep in MLflow's UI: its run, its trials, and the runs of the front side by side.

    Serves the sweep's database until Ctrl-C. If the sweep was logged to an MLflow server, prints that server's links
    instead.
    """
    from orchestrator.results.sweep import Sweep
    from orchestrator.views.client import TrackingError, public_uri
    from orchestrator.views.server import find_location, serving
    from orchestrator.views.tracker import sync

    with ends_with(WRONG_USAGE):
        opened = Sweep.open(sweep)
    with ends_with(FAILED):
        found = find_location(opened.storage, opened.records)
        if found.has_server:
            _show(found.links(public_uri(found.uri)))
            if (missing := len(opened.records) - found.trials) > 0:
                typer.echo(f"{counted(missing, 'trial')} not logged yet: specfrontier sync {sweep}", err=True)
            return
        if found.is_behind(len(opened.records)):  # a running sweep logs its trials itself: then `sync` refuses
            try:
                sync(opened.storage, found.uri, note=partial(typer.echo, err=True))
            except TrackingError as error:
                typer.echo(f"Not all trials are in MLflow: {error}", err=True)
        if host not in _LOOPBACK:
            typer.echo(f"Anyone who can reach {host}:{port} can read and change MLflow's data.", err=True)
        before = signal.signal(signal.SIGTERM, signal.default_int_handler)
        try:
            with serving(opened.storage, found.uri, host, port) as (base, server):
                _show(find_location(opened.storage, opened.records).links(base))
                typer.echo("Ctrl-C stops it.")
                code = server.wait()
                raise OSError(f"MLflow's server exited (code {code})")
        except KeyboardInterrupt:
            typer.echo("MLflow has stopped.")
        finally:
            signal.signal(signal.SIGTERM, before)


def _show(links: dict[str, str]) -> None:
    for name, link in links.items():
        typer.echo(f"{name:<7} {link}")
