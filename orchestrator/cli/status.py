"""`specfrontier status`: a sweep's progress, read from its files. The sweep may run elsewhere or have ended."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from orchestrator.cli import query_options as o
from orchestrator.cli.text import choice_lines, for_output, front_table, show
from orchestrator.options import AsJson

if TYPE_CHECKING:
    from orchestrator.results.status import SweepStatus

EPILOG = """\b
Examples:
  specfrontier status quickstart
  specfrontier status s3://lab/sweeps/joint --json
"""


@o.query_errors()
def status(sweep: o.OneSweep, long: o.Long = False, as_json: AsJson = False) -> None:
    """Show a sweep's progress: whether it runs, trials finished, failed and running, images, workers that were lost,
    the front so far, the latest events."""
    from orchestrator.results.choices import choices_mapping, choose, default_limit
    from orchestrator.results.front import front_of
    from orchestrator.results.front_trial import Trial
    from orchestrator.results.launches import is_preparing
    from orchestrator.results.status import sweep_status
    from orchestrator.results.store import find_sweep
    from orchestrator.results.sweep import Sweep

    front, limits, choices = None, list[str](), dict[str, Trial]()
    storage = find_sweep(sweep)
    opened = None if is_preparing(storage) else Sweep.open(storage)
    now = sweep_status(storage, opened)
    if opened is not None:
        front = for_output(front_of([opened]), long=long, as_json=as_json)
        limits = [limit] if (limit := default_limit(front)) else []
        choices = choose(front, limits)
    facts: dict[str, Any] = asdict(now)
    facts["front"] = [] if front is None else [member.to_mapping() for member in front.members]
    facts |= choices_mapping(choices, limits)
    lines = _describe(now)
    if front is not None and front.candidates:
        lines += ["", *front_table(front, front.members), "", *choice_lines(front, choices.values())]
    show(facts, lines, as_json=as_json)


def _describe(now: SweepStatus) -> list[str]:
    """The status as lines of text."""
    from orchestrator.results.launches import RUNNING
    from orchestrator.results.text import clean, counted, describe_duration

    planned = f" of {now.planned}" if now.planned is not None else ""
    numbers = ", ".join(str(number) for number in now.running)
    word = "running" if now.launch.state == RUNNING else "started, not finished"
    running = f"; {word}: {numbers}" if numbers else ""
    kinds = (("failed", now.failed), ("stopped", now.stopped))
    failed = "".join(f", {len(trials)} of them {word}" for word, trials in kinds if trials)
    lines = [
        f"{now.name} at {now.place}",
        f"launch    {now.launch.text}",
        f"trials    {now.finished}{planned} finished{failed}{running}",
        f"images    {now.images:,}",
    ]
    if now.taken is not None:
        told, sweeps = counted(now.taken["trials"], "trial"), ", ".join(map(clean, now.taken["sweeps"]))
        lines.append(f"from      {sweeps}: {now.taken['images']:,} of the images; the search was told {told}")
    if now.idle_s is not None:
        lines.append(f"last event {describe_duration(now.idle_s)} ago")
    lines += [f"          {event}" for event in now.events]
    lines += [f"lost      {event}" for event in now.lost]
    lines += [f"note      {warning}" for warning in now.warnings]
    if now.logs is not None:
        lines.append(f"logs      {now.logs}")
    for word, trials in kinds:
        lines += [f"{word:<9} trial {trial['number']}: {trial['cause']}" for trial in trials[-3:]]
    return lines
