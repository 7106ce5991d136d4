"""`specfrontier status`: how far a sweep is, read from its files alone; it may be running elsewhere or not at all."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import typer

from orchestrator.cli import query_options as o
from orchestrator.cli.pareto import front_table, one
from orchestrator.cli.tables import clean

if TYPE_CHECKING:
    from orchestrator.results.status import Standing

EPILOG = """\b
Examples:
  specfrontier status quickstart
  specfrontier status s3://lab/sweeps/joint --json
"""


def status(sweep: o.OneSweep, as_json: o.AsJson = False) -> None:
    """Say how far a sweep is: trials done, failed and running, images, the front so far, what happened last."""
    (opened,) = o.open_sweeps([sweep])
    from orchestrator.results.selection import Question, select
    from orchestrator.results.status import standing

    with o.answered():
        now = standing(opened)
        selection = select([opened], Question())
    rows = selection.front_rows
    best = selection.best(())
    if as_json:
        from orchestrator.results.selection import row_facts

        facts: dict[str, Any] = now.to_mapping()
        facts["front"] = [row_facts(selection, row) for row in rows]
        facts["best"] = None if best is None else row_facts(selection, best)
        typer.echo(json.dumps(facts, indent=2))
        return
    lines = in_words(now)
    if rows:
        lines += ["", front_table(selection, rows), ""]
        lines.append(f"best {selection.axes[0].name}: {one(selection, rows[0] if best is None else best)}")
    typer.echo("\n".join(lines))


def in_words(now: Standing) -> list[str]:
    """The standing for a person."""
    from orchestrator.results.status import ago

    planned = f" of {now.planned}" if now.planned is not None else ""
    numbers = ", ".join(str(number) for number in now.running)
    running = f"; under way when last heard of: {numbers}" if numbers else ""
    failed = f", {len(now.failed)} of them failed" if now.failed else ""
    lines = [
        f"{clean(now.name)} at {clean(now.place)}",
        f"trials    {now.done}{planned} finished{failed}{running}",
        f"images    {now.images:,}",
    ]
    if now.silent is not None:
        lines.append(f"last sign {ago(now.silent)} ago")
    lines += [f"          {clean(event)}" for event in now.last]
    if now.logs is not None:
        lines.append(f"logs      {clean(now.logs)}")
    lines += [f"failed    trial {number}: {clean(cause)}" for number, cause in now.failed[-3:]]
    return lines
