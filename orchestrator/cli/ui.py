"""`specfrontier ui`: MLflow's pages of a sweep."""

from __future__ import annotations

import signal
from types import FrameType
from typing import TYPE_CHECKING, Annotated

import typer

from orchestrator.cli.tables import counted
from orchestrator.errors import FAILED, WRONG_USAGE, ends_with

if TYPE_CHECKING:
    from orchestrator.results.sweep import Sweep

EPILOG = """\b
Examples:
  specfrontier ui quickstart
  specfrontier ui sweeps/quickstart --port 5001
"""
LOOPBACK = ("127.0.0.1", "localhost", "::1")


def ui(
    sweep: Annotated[str, typer.Argument(metavar="SWEEP", help="The sweep's folder, URI, or name under ./sweeps.")],
    port: Annotated[int, typer.Option(metavar="N", min=0, max=65535, help="0 takes any that is free.")] = 5000,
    host: Annotated[str, typer.Option(metavar="HOST", help="Address to listen at.")] = "127.0.0.1",
) -> None:
    """Open MLflow's pages of a sweep: its run, its trials below it, and the front's runs side by side.

    Starts MLflow on the sweep's database until Ctrl-C. If the sweep was logged to an MLflow server, that server's
    addresses are printed instead.
    """
    from orchestrator.results.sweep import Sweep
    from orchestrator.tracking.client import public_uri
    from orchestrator.tracking.server import find_location, serving

    with ends_with(WRONG_USAGE):
        opened = Sweep.open(sweep)
    with ends_with(FAILED):
        found = find_location(opened.storage, opened.records)
        if found.has_server:
            show(found.links(public_uri(found.uri)))
            missing(opened, found.trials, sweep)
            return
        catch_up(opened, sweep)
        if host not in LOOPBACK:
            typer.echo(f"Anyone who can reach {host}:{port} can read and change what MLflow has.", err=True)
        before = signal.signal(signal.SIGTERM, _interrupt)
        try:
            with serving(opened.storage, found.uri, host, port) as (base, server):
                show(find_location(opened.storage, opened.records).links(base))
                typer.echo("Ctrl-C ends it.")
                code = server.wait()
                raise OSError(f"MLflow's server ended by itself (exit code {code})")
        except KeyboardInterrupt:
            typer.echo("MLflow has ended.")
        finally:
            signal.signal(signal.SIGTERM, before)


def show(links: dict[str, str]) -> None:
    for name, link in links.items():
        typer.echo(f"{name:<7} {link}")


def missing(opened: Sweep, logged: int, sweep: str) -> None:
    """Say how many trials a server lacks, and what sends them."""
    count = len(opened.records) - logged
    if count > 0:
        are = "is" if count == 1 else "are"
        typer.echo(f"{counted(count, 'trial')} {are} not there yet: specfrontier sync {sweep}", err=True)


def catch_up(opened: Sweep, sweep: str) -> None:
    """Log to a local database what it lacks, so that its pages are complete; a running sweep does that itself."""
    from orchestrator.tracking.client import TrackingError
    from orchestrator.tracking.server import find_location
    from orchestrator.tracking.tracker import sync

    found = find_location(opened.storage, opened.records)
    if not found.is_behind(len(opened.records)):
        return
    try:
        sync(opened.storage, found.uri)
    except TrackingError as error:
        typer.echo(f"Not all trials are in MLflow: {error}", err=True)


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt
