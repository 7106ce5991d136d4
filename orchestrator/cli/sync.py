"""`specfrontier sync`: everything that MLflow lacks of a sweep."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from orchestrator.cli.tables import counted
from orchestrator.errors import FAILED, WRONG_USAGE, ends_with

EPILOG = """\b
Examples:
  specfrontier sync quickstart
  specfrontier sync sweeps/quickstart --uri http://mlflow.lab:5000 --experiment frontier
"""


def sync(
    sweep: Annotated[str, typer.Argument(metavar="SWEEP", help="The sweep's folder, URI, or name under ./sweeps.")],
    uri: Annotated[
        str | None,
        typer.Option(
            metavar="URI",
            help="MLflow's tracking URI. Default: MLFLOW_TRACKING_URI, else mlflow.db beside the sweep's folder.",
        ),
    ] = None,
    experiment: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="MLflow's experiment. Default: MLFLOW_EXPERIMENT_NAME, else specfrontier/<name>."
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the numbers and addresses as JSON.")] = False,
) -> None:
    """Log to MLflow what it lacks of a sweep; running it again changes nothing.

    For a sweep whose tracking server was away, that was launched without MLflow, or that is wanted on another server.
    """
    from orchestrator.results.sweep import Sweep

    with ends_with(WRONG_USAGE):
        opened = Sweep.open(sweep)
    from orchestrator.tracking.client import public_uri, resolve_uri
    from orchestrator.tracking.server import find_location
    from orchestrator.tracking.tracker import sync

    with ends_with(FAILED):
        done = sync(opened.storage, uri, experiment)
        found = find_location(opened.storage, opened.records, resolve_uri(opened.storage, uri))
    place = public_uri(found.uri)
    links = found.links(place) if found.has_server else {}
    if as_json:
        facts = {"logged": done.logged, "already": done.already, "uri": place, "links": links}
        typer.echo(json.dumps(facts, ensure_ascii=False))
        return
    there = f"{done.already} {'was' if done.already == 1 else 'were'} there"
    typer.echo(f"{counted(done.logged, 'trial')} logged, {there}: {place}")
    for name, link in links.items():
        typer.echo(f"{name:<7} {link}")
    if not found.has_server:
        typer.echo(f"specfrontier ui {sweep}")
