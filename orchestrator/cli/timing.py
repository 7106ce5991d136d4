"""`specfrontier time`: what a sweep's settings cost on the device at hand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from orchestrator import options as o
from orchestrator.cli import query_options as q
from orchestrator.cli.text import show
from orchestrator.errors import FAILED, WRONG_USAGE, CommandError
from orchestrator.options import AsJson, grouped, option
from orchestrator.store import config_file
from orchestrator.text import counted
from workers.runtime.process import prefer_threads

if TYPE_CHECKING:
    from orchestrator.cli.session_timer import SessionTimer
    from orchestrator.store.records import TrialRecord
    from orchestrator.store.sweep import Sweep

EPILOG = """\b
Examples:
  specfrontier time quickstart
  specfrontier time quickstart --minutes 5 --error 0.01 --batch 8
  specfrontier time quickstart --trial 3 --trial 7 --threads 2
  specfrontier time sweeps/joint --where lossless --device cuda --json
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """The options that say which trials are timed."""

    trial: list[int] | None = option(
        "Time the trial with this number instead. Repeatable.", "N", min=0
    )
    where: list[str] | None = option(
        "Time all trials that match instead (see `pareto --where`). Repeatable.", "FILTER"
    )


@grouped
@q.query_errors()
def time_sweep(
    sweep: q.OneSweep, choice: Choice, effort: q.TimingOptions, as_json: AsJson = False
) -> None:
    """Time vanilla, the front, the recommended settings and those within error of them in turn, on
    this machine, with the sweep's captions and weights.

    The number of passes of an image does not depend on the device; only the cost of a pass does. So
    a front that was drawn on other machines has its speeds on this one within a minute: `pareto`,
    `report` and `compare` show them with --device and --batch. Sessions are stored in the sweep by
    device, threads and batch, each when it has finished.
    """
    from orchestrator.store import launches

    opened = q.open_sweep(sweep)
    if config_file.SPEEDUP not in opened.identity.metrics:
        raise CommandError(
            f"sweep {opened.name} does not measure {config_file.SPEEDUP}, for which settings are timed",
            WRONG_USAGE,
        )
    if (launch := launches.find_launch(opened.storage)).is_running:
        raise CommandError(
            f"{opened.storage.display_name}: {launch.text}; time it when it has ended", FAILED
        )
    records = _chosen_records(opened, choice)
    configs = {
        record.config.shape: record.config
        for record in reversed(records)
        if record.config is not None
    }
    vanilla = opened.identity.baseline
    settings = [config for shape, config in reversed(configs.items()) if shape != vanilla.shape]
    if not settings:
        raise CommandError(
            "nothing to time but vanilla; choose trials with --trial or --where", WRONG_USAGE
        )
    if effort.threads is None and opened.machine is not None and opened.machine.device.threads:
        prefer_threads(opened.machine.device.threads)
    o.say_on_terminal("loading the models")
    from orchestrator.cli.session_timer import SessionTimer  # after the checks: this imports torch

    timer = SessionTimer.load(opened, effort)
    try:
        error = timer.run(settings)
    finally:
        _update_tables(opened, timer)
    _show_speeds(opened, records, timer, error, as_json=as_json)


def _chosen_records(sweep: Sweep, choice: Choice) -> list[TrialRecord]:
    """Vanilla and the trials to time: those that decide what is recommended, with these numbers, or
    all that match.

    Raises:
        CommandError: vanilla has not finished, both options are given, or no trial matches.
        QueryError: no such trial, or an invalid filter.
    """
    from orchestrator.front.choice import recommend
    from orchestrator.front.front import front_of
    from orchestrator.front.questions import trial_rows

    if choice.trial and choice.where:
        raise CommandError(
            "--trial and --where cannot be combined: each chooses trials", WRONG_USAGE
        )
    vanilla = sweep.baseline
    if vanilla is None:
        raise CommandError(
            f"sweep {sweep.name}: vanilla has not finished, with which settings are timed", FAILED
        )
    if choice.where:
        numbers = set(trial_rows(sweep, choice.where, ["number"])["number"].to_pylist())
        complete = [record for record in sweep.records if record.is_complete]
        records = [record for record in complete if record.number in numbers]
    else:
        front = front_of([sweep])
        numbered = [front.trial(number) for number in choice.trial or ()]
        records = [trial.record for trial in numbered or recommend(front).decisive]
    if choice.where and not records:
        raise CommandError(
            f"no complete trial matches --where {' and '.join(choice.where)}", WRONG_USAGE
        )
    return [vanilla, *(record for record in records if record is not vanilla)]


def _update_tables(sweep: Sweep, timer: SessionTimer) -> None:
    """Write the sweep's tables again if sessions of its own device are new: their speeds are those
    of all sessions.
    """
    from orchestrator.views.tables import write_tables

    own = sweep.priced()
    if timer.written and own.machine is not None and own.machine.device == timer.device:
        write_tables(own)


def _show_speeds(
    sweep: Sweep,
    records: Sequence[TrialRecord],
    timer: SessionTimer,
    error: float,
    *,
    as_json: bool,
) -> None:
    """Print each setting's speed-up on this device, and on the sweep's own if that is another one.
    error: see `SessionTimer.largest_error`.
    """
    from orchestrator.cli.devices import side_by_side
    from orchestrator.front.front import front_of
    from orchestrator.front.questions import objectives_of
    from orchestrator.shown.status import load_notes, session_problems
    from orchestrator.store import files
    from orchestrator.store.prices import is_priced

    own = sweep.priced()
    machine = timer.machine
    goals = objectives_of(sweep)
    if not any(is_priced(metric.name) for metric in goals):
        goals = objectives_of(sweep, config_file.SPEEDUP)
    priced = [own] if own.machine == machine else [own.priced_on(machine), own]
    fronts = [front_of([found], *(metric.name for metric in goals)) for found in priced]
    table, lines = side_by_side(fronts, {record.number for record in records})
    facts = {
        "sweep": sweep.name,
        "device": str(machine.device),
        "threads": machine.device.threads,
        "batch": machine.batch,
        "sessions": len(timer.written),
        "images": timer.images,
        "error": error,
        **table,
    }
    busy = load_notes(priced[0])
    facts["notes"] = session_problems(own) + busy
    storage = sweep.storage
    title = f"speeds on {machine}, {counted(len(timer.written), 'new session')}"
    if len(fronts) > 1:
        title += " [1], beside those of the sweep itself [2]"
    there = files.command(storage, "pareto", *machine.options)
    lines = [title, "", *lines, "", f"the front there: {there}"]
    if len(fronts) > 1:
        lines.append(f"of all devices:  {files.command(storage, 'compare', '--by', 'device')}")
    if own.machine is not None and own.machine.device == machine.device:
        if storage.exists(files.REPORT):
            lines.append(f"the report page: {files.command(storage, 'report')}")
        if storage.exists(files.MLFLOW_PLACE):
            lines.append(f"update MLflow:   {files.command(storage, 'sync')}")
    lines += [f"note: {text}" for text in busy]
    show(facts, lines, as_json=as_json)
