"""`specfrontier sync`: log the trials that MLflow does not have."""

from __future__ import annotations

import json
from functools import partial

import typer

from orchestrator.cli.query_options import OneSweep
from orchestrator.errors import FAILED, WRONG_USAGE, ends_with
from orchestrator.options import AsJson, grouped, option
from orchestrator.results.text import counted

EPILOG = """\b
Examples:
  specfrontier sync quickstart
  specfrontier sync sweeps/quickstart --uri http://mlflow.lab:5000 --experiment frontier
"""


@grouped
def sync(
    sweep: OneSweep,
    uri: str | None = option(
        "MLflow's tracking URI. Default: MLFLOW_TRACKING_URI, else mlflow.db next to the sweep's folder.", "URI"
    ),
    experiment: str | None = option(
        "MLflow's experiment. Default: MLFLOW_EXPERIMENT_NAME, else specfrontier/<name>.", "NAME"
    ),
    as_json: AsJson = False,
) -> None:
    """Log the trials that MLflow does not have. Repeating the command changes nothing.

    Use it if the tracking server was unreachable, if the sweep ran without MLflow, or to log it to a second server.
    """
    from orchestrator.results.sweep import Sweep

    with ends_with(WRONG_USAGE):
        opened = Sweep.open(sweep)
    from orchestrator.results.store import command
    from orchestrator.views.mlflow import sync
    from orchestrator.views.mlflow_client import is_server, public_uri
    from orchestrator.views.mlflow_server import LOCAL_SERVER

    with ends_with(FAILED):
        done = sync(opened.storage, uri, experiment, partial(typer.echo, err=True))
    found, tracking_uri = done.location, public_uri(done.location.uri)
    links = found.links("" if is_server(found.uri) else LOCAL_SERVER)  # of a database: while `ui` serves it
    if as_json:
        facts = {"logged": done.logged, "already": done.already, "uri": tracking_uri, "links": links}
        typer.echo(json.dumps(facts, ensure_ascii=False))
        return
    typer.echo(f"{counted(done.logged, 'trial')} logged, {done.already} already there: {tracking_uri}")
    shown = links if is_server(found.uri) else {"MLflow": command(opened.storage, "ui")}
    for name, text in shown.items():
        typer.echo(f"{name:<7} {text}")
