"""`specfrontier ui` and `specfrontier sync`: a sweep in MLflow."""

from __future__ import annotations

import signal
from collections.abc import Mapping

import typer

from orchestrator.cli.query_options import OneSweep, open_sweep
from orchestrator.cli.text import safe_text, say, show
from orchestrator.errors import FAILED, WRONG_USAGE, ends_with
from orchestrator.options import AsJson, grouped, option, output_place
from orchestrator.text import counted

UI_EPILOG = """\b
Examples:
  specfrontier ui quickstart
  specfrontier ui sweeps/quickstart --port 5001
"""
SYNC_EPILOG = """\b
Examples:
  specfrontier sync quickstart
  specfrontier sync sweeps/quickstart --uri http://mlflow.lab:5000 --experiment frontier
"""
_LOOPBACK = ("127.0.0.1", "localhost", "::1")


@grouped
@ends_with(FAILED)
def ui(
    sweep: OneSweep,
    port: int = option("0: any free port.", "N", default=5000, min=0, max=65535),
    host: str = option("Address to listen on.", "HOST", default="127.0.0.1"),
) -> None:
    """Open a sweep in MLflow's UI: its run, its trials, and the runs of the front side by side.

    Serves the sweep's database until Ctrl-C. If the sweep was logged to an MLflow server, prints
    that server's links instead.
    """
    from orchestrator.views.mlflow_client import TrackingError, is_server, serving
    from orchestrator.views.mlflow_place import TrackingPlace
    from orchestrator.views.mlflow_sync import find_location, share_views, sync

    with ends_with(WRONG_USAGE):
        opened = open_sweep(sweep)
    place = TrackingPlace.resolve(opened.storage)
    if is_server(place.uri):
        for note in place.notes:
            say(note)
        found = find_location(opened)
        try:
            share_views(opened, found)
        except TrackingError as error:  # such as a server that may only be read
            say(f"MLflow may lack the views of its trials: {error}")
        typer.echo(safe_text(_link_lines(found.links())))
        if (missing := len(opened.records) - len(found.runs)) > 0:
            again = place.sync_command(opened.storage)
            say(f"{counted(missing, 'trial')} not logged yet: {again}")
        return
    try:
        found = sync(opened.storage, note=say).location
    except TrackingError as error:  # such as a running sweep, which logs its trials itself
        say(f"MLflow may lack trials: {error}")
        found = find_location(opened)
    if host not in _LOOPBACK:
        say(f"Anyone who can reach {host}:{port} can read and change MLflow's data.")
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with serving(place.uri, host, port) as (base, server):
            typer.echo(safe_text([*_link_lines(found.links(base)), "Ctrl-C stops it."]))
            code = server.wait()
            raise OSError(f"MLflow's server exited (code {code})")
    except KeyboardInterrupt:
        typer.echo("MLflow has stopped.")
    finally:
        signal.signal(signal.SIGTERM, before)


def _link_lines(links: Mapping[str, str]) -> list[str]:
    return [f"{name:<7} {link}" for name, link in links.items()]


@grouped
@ends_with(FAILED)
def sync(
    sweep: OneSweep,
    uri: str | None = option(
        "MLflow's tracking URI. Default: the last one of this sweep, else MLFLOW_TRACKING_URI, "
        "else mlflow.db next to the sweep's folder.",
        "URI",
        callback=output_place,
    ),
    experiment: str | None = option(
        "MLflow's experiment. Default: the last one of this sweep, else MLFLOW_EXPERIMENT_NAME, "
        "else specfrontier/<name>.",
        "NAME",
    ),
    as_json: AsJson = False,
) -> None:
    """Log the trials that MLflow does not have. Repeating the command changes nothing.

    Use it if the tracking server was unreachable, if the sweep ran without MLflow, or to log it to
    a second server.
    """

    with ends_with(WRONG_USAGE):
        opened = open_sweep(sweep)
    from orchestrator.shown.status import session_problems
    from orchestrator.store import files
    from orchestrator.views.mlflow_client import LOCAL_SERVER, is_server, public_uri
    from orchestrator.views.mlflow_sync import sync

    done = sync(opened.storage, uri, experiment, say)
    found = done.location
    tracking_uri = public_uri(done.location.uri)
    # of a database: while `ui` serves it
    links = found.links("" if is_server(found.uri) else LOCAL_SERVER)
    facts = {"logged": done.logged, "already": done.already, "uri": tracking_uri, "links": links}
    facts["notes"] = session_problems(opened)
    shown = links if is_server(found.uri) else {"MLflow": files.command(opened.storage, "ui")}
    lines = [
        f"{counted(done.logged, 'trial')} logged, {done.already} already there: {tracking_uri}"
    ]
    show(facts, [*lines, *_link_lines(shown)], as_json=as_json)
