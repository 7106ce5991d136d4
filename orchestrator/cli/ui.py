"""`specfrontier ui`: a sweep in MLflow's UI."""

from __future__ import annotations

import signal
from functools import partial

import typer

from orchestrator.cli.query_options import OneSweep
from orchestrator.errors import FAILED, WRONG_USAGE, ends_with
from orchestrator.options import grouped, option
from orchestrator.results.text import counted

EPILOG = """\b
Examples:
  specfrontier ui quickstart
  specfrontier ui sweeps/quickstart --port 5001
"""
_LOOPBACK = ("127.0.0.1", "localhost", "::1")


@grouped
def ui(
    sweep: OneSweep,
    port: int = option("0: any free port.", "N", default=5000, min=0, max=65535),
    host: str = option("Address to listen on.", "HOST", default="127.0.0.1"),
) -> None:
    """Open a sweep in MLflow's UI: its run, its trials, and the runs of the front side by side.

    Serves the sweep's database until Ctrl-C. If the sweep was logged to an MLflow server, prints that server's links
    instead.
    """
    from orchestrator.results.sweep import Sweep
    from orchestrator.views.mlflow import find_location, last_place, sync
    from orchestrator.views.mlflow_client import TrackingError, is_server
    from orchestrator.views.mlflow_server import serving

    with ends_with(WRONG_USAGE):
        opened = Sweep.open(sweep)
    with ends_with(FAILED):
        uri, experiment = last_place(opened)
        if is_server(uri):
            found = find_location(opened, uri)
            _show(found.links())
            if (missing := len(opened.records) - len(found.runs)) > 0:
                typer.echo(f"{counted(missing, 'trial')} not logged yet: specfrontier sync {sweep}", err=True)
            return
        try:
            found = sync(opened.storage, uri, experiment or None, partial(typer.echo, err=True)).location
        except TrackingError as error:  # such as a running sweep, which logs its trials itself
            typer.echo(f"MLflow may lack trials: {error}", err=True)
            found = find_location(opened, uri)
        if host not in _LOOPBACK:
            typer.echo(f"Anyone who can reach {host}:{port} can read and change MLflow's data.", err=True)
        before = signal.signal(signal.SIGTERM, signal.default_int_handler)
        try:
            with serving(uri, host, port) as (base, server):
                _show(found.links(base))
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
