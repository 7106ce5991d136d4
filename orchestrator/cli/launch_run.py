"""The run of `specfrontier launch`: progress, result files and MLflow while the driver works, a summary at the end."""

from __future__ import annotations

import shlex
from functools import partial
from typing import TYPE_CHECKING, Any

import typer

from orchestrator.cli.tables import safe_text
from orchestrator.errors import FAILED, INTERRUPTED, WRONG_USAGE, CommandError, explain
from orchestrator.interrupts import ending_within
from orchestrator.options import command_line, say_on_terminal
from orchestrator.results.text import counted

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from orchestrator.results.sweep import Sweep
    from orchestrator.results.trials import TrialRecord
    from orchestrator.run.options import LaunchOptions
    from orchestrator.views.follower import Ending, View, Views
    from orchestrator.views.mlflow import MlflowView
    from search_spaces.sweep import SweepConfig
    from workers.data.storage import Storage

_EXHAUSTED = {
    "space": "all points of the space are done",
    "pool": "all settings of the pool are done (search.options.pool is its size)",
}
_STOP_TIMEOUT_S = 8.0  # after a signal: schedulers kill what stays longer


def run_sweep(config: SweepConfig, storage: Storage, options: LaunchOptions, uri: str, *, as_json: bool) -> None:
    """Run the sweep, with progress, result files and MLflow; print a summary at the end.

    uri: of MLflow ("": none).

    Raises:
        CommandError: it failed or was interrupted; the message has the command that resumes it.
    """
    from orchestrator.run.driver_lock import check_lock, driver_lock
    from orchestrator.run.tasks import SweepError

    interrupted = f"interrupted; resume with: {_resume_command()}"
    try:
        with ending_within(_STOP_TIMEOUT_S, interrupted), driver_lock(storage, partial(typer.echo, err=True)) as lock:
            if lock.holder:
                typer.echo(f"the last launch ({lock.holder}) did not end by itself; this one takes over", err=True)
            _run(config, storage, options, uri, partial(check_lock, storage, lock), as_json=as_json)
    except KeyboardInterrupt:
        raise CommandError(interrupted, INTERRUPTED) from None
    except (SweepError, OSError) as error:
        raise CommandError(explain(error), FAILED) from None


def _run(
    config: SweepConfig, storage: Storage, options: LaunchOptions, uri: str, check: Callable[[], None], *, as_json: bool
) -> None:
    """See `run_sweep`; raises KeyboardInterrupt. check: raises SweepError if another launch has taken over."""
    from orchestrator.results.store import EVENTS, IDENTITY
    from orchestrator.run import progress
    from orchestrator.run.launch import launch as launch_sweep
    from orchestrator.views.follower import Views
    from orchestrator.views.mlflow import MlflowView
    from workers.runtime.process import cores

    budget, events = config.budget, storage.path(EVENTS)
    state = progress.Progress(budget.trials, budget.images)
    mlflow = MlflowView(storage, uri) if uri else None
    kept = [*_sweep_views(config, storage, options.study), *([mlflow] if mlflow else [])]
    views = Views(storage, kept, lambda text: record({"event": "note", "note": text}))
    if events is not None:
        events.parent.mkdir(parents=True, exist_ok=True)
    ending: Ending = "failed"
    is_sweep = storage.exists(IDENTITY)
    try:
        with progress.choose_view(state, as_json=as_json) as view:
            record = progress.event_sink(state, view, events)

            def emit(event: Any) -> None:
                nonlocal is_sweep
                check()
                record(event)
                is_sweep = is_sweep or event["event"] == "identity"

            with progress.recorded_end(record):
                outcome = launch_sweep(config, storage, options, views, emit, cores=cores())
        ending = "finished"
    except KeyboardInterrupt:
        ending = "interrupted"
        raise
    except ValueError as error:  # the same command would fail again
        raise CommandError(str(error), WRONG_USAGE) from error
    except (RuntimeError, OSError) as error:
        hint = f"\nfinished trials are kept; resume with: {_resume_command()}" if is_sweep else ""
        raise CommandError(f"{explain(error)}{hint}", FAILED) from error
    finally:
        if is_sweep:
            _finish(views, ending)
    typer.echo(_summary(storage, mlflow, outcome.stopped_by), err=as_json)
    if only_vanilla_ran(outcome.records):
        cause = next(record.cause for record in outcome.records if record.state == "failed")
        raise CommandError(f"all trials except vanilla failed; the first cause: {cause}", FAILED)
    if outcome.lost:
        lost = counted(len(outcome.lost), "trial")
        problem = f"{lost} lost because of a machine, network or file; run again with: {_resume_command()}"
        raise CommandError(problem, FAILED)


def only_vanilla_ran(records: Sequence[TrialRecord]) -> bool:
    """Whether all trials except vanilla failed."""
    others = [record for record in records if record.number != 0]
    return bool(others) and all(record.state == "failed" for record in others)


def _sweep_views(config: SweepConfig, storage: Storage, study: str | None) -> list[View[Sweep]]:
    """Result files, study and report of a sweep. study: Optuna's, a file or URL; None for a journal in its folder."""
    from orchestrator.report.page import ReportView
    from orchestrator.run.early_stopping import as_told
    from orchestrator.views.study import StudyView
    from orchestrator.views.study_storage import default_journal
    from orchestrator.views.tables import Tables

    url = study or str(default_journal(storage, config.name))
    study_view = StudyView(config, url, partial(as_told, config), is_own=study is None)
    return [Tables(), study_view, ReportView()]


def _finish(views: Views, how: Ending) -> None:
    """Complete the views. The results are stored: `specfrontier report` and `sync` make up for what fails here."""
    if how == "finished":
        say_on_terminal("writing tables, plot and report")
    for text in views.end(how):
        typer.echo(text, err=True)


def _resume_command() -> str:
    """This command line with --resume, with credentials redacted; of a call from Python, what to change in it."""
    from orchestrator.results.text import without_credentials

    arguments = command_line.get()
    if arguments is None:
        return "the same call and resume=True"
    words = ["specfrontier", *map(without_credentials, arguments)]
    return shlex.join(words if "--resume" in words else [*words, "--resume"])


def _summary(storage: Storage, mlflow: MlflowView | None, stopped_by: str) -> str:
    """The front and its choices, and where to find report, plot and MLflow runs."""
    from orchestrator.cli.front_text import describe_front
    from orchestrator.results.choices import default_choices, example_limit
    from orchestrator.results.front import front_of
    from orchestrator.results.status import sweep_notes, time_notes
    from orchestrator.results.store import FRONT_PLOT, REPORT, command, near_path
    from orchestrator.results.sweep import Sweep
    from orchestrator.views.mlflow_client import is_server

    sweep = Sweep.open(storage.uri)
    found = front_of([sweep])
    notes = sweep_notes(sweep) + time_notes([sweep.identity], [metric.name for metric in found.metrics])
    front = describe_front(found, found.members, {"warnings": notes}, default_choices(found).values())
    reason = _EXHAUSTED.get(stopped_by, f"the budget of {stopped_by} is spent")
    stopped = [record for record in sweep.records if record.stop is not None]
    if stopped:
        revived = sum(record.is_revived for record in stopped)
        reason += f"; racing stopped {counted(len(stopped), 'trial')}, {revived} revived at the end "
        reason += f"({command(storage, 'pareto', '--stopped')})"
    lines = ["", f"{counted(len(sweep.records), 'trial')}; {reason}", *front, ""]
    lines += [f"report   {near_path(storage, REPORT)}", f"plot     {near_path(storage, FRONT_PLOT)}"]
    if found.candidates:
        choose_one = command(storage, "pareto", "--best", example_limit(found), "--config", "fast.yaml")
        lines.append(f"choose   {choose_one}")
    if mlflow and mlflow.location:
        ways = mlflow.location.links() if is_server(mlflow.uri) else {"MLflow": command(storage, "ui")}
        lines += [f"{name:<8} {way}" for name, way in ways.items() if name != "mlflow"]
    return safe_text(lines)
