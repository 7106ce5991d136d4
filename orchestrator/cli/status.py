"""`specfrontier status`: a sweep's progress, read from its files. The sweep may run elsewhere or have ended."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import typer

from orchestrator.cli import query_options as o
from orchestrator.cli.front_text import choice_lines, front_table
from orchestrator.cli.tables import safe_text

if TYPE_CHECKING:
    from orchestrator.results.status import SweepStatus

EPILOG = """\b
Examples:
  specfrontier status quickstart
  specfrontier status s3://lab/sweeps/joint --json
"""


def status(sweep: o.OneSweep, long: o.Long = False, as_json: o.AsJson = False) -> None:
    """Show a sweep's progress: trials finished, failed and running, images, the front so far, the latest events."""
    (opened,) = o.open_sweeps([sweep])
    from orchestrator.results.choices import choices_mapping, choose, default_limit
    from orchestrator.results.status import sweep_status
    from orchestrator.results.sweep import front_of

    with o.query_errors():
        now = sweep_status(opened)
        front = front_of([opened])
        limits = [limit] if (limit := default_limit(front)) else []
        choices = choose(front, limits)
    if as_json:
        facts: dict[str, Any] = asdict(now)
        facts["front"] = [member.to_mapping() for member in front.members]
        facts |= choices_mapping(choices, limits)
        typer.echo(json.dumps(facts, indent=2, allow_nan=False))
        return
    lines = _describe(now)
    if front.candidates:
        lines += ["", *front_table(front, front.members, long=long), "", *choice_lines(front, choices.values())]
    typer.echo(safe_text(lines))


def _describe(now: SweepStatus) -> list[str]:
    """The status as lines of text."""
    from orchestrator.results.describe import describe_duration

    planned = f" of {now.planned}" if now.planned is not None else ""
    numbers = ", ".join(str(number) for number in now.running)
    running = f"; running at the last event: {numbers}" if numbers else ""
    kinds = (("failed", now.failed), ("stopped", now.stopped))
    failed = "".join(f", {len(trials)} of them {word}" for word, trials in kinds if trials)
    lines = [
        f"{now.name} at {now.place}",
        f"trials    {now.finished}{planned} finished{failed}{running}",
        f"images    {now.images:,}",
    ]
    if now.idle_s is not None:
        lines.append(f"last event {describe_duration(now.idle_s)} ago")
    lines += [f"          {event}" for event in now.events]
    lines += [f"note      {warning}" for warning in now.warnings]
    if now.logs is not None:
        lines.append(f"logs      {now.logs}")
    for word, trials in kinds:
        lines += [f"{word:<9} trial {trial['number']}: {trial['cause']}" for trial in trials[-3:]]
    return lines
