"""Supervises a launch: its lock, its events and views, and how it ends."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial

from orchestrator.cluster.tasks import Outcome
from orchestrator.errors import FAILED, INTERRUPTED, WRONG_USAGE, CommandError, ends_with, explain
from orchestrator.interrupts import ending_within
from orchestrator.launch.launch import launch
from orchestrator.launch.read import LaunchRequest
from orchestrator.options import command_line
from orchestrator.report.page import ReportView
from orchestrator.run import progress
from orchestrator.run.racing import as_told
from orchestrator.store import events, files, launches, locks
from orchestrator.store.progress import SweepProgress
from orchestrator.store.records import TrialRecord
from orchestrator.store.sweep import Sweep
from orchestrator.streams import drop_lost_terminal
from orchestrator.text import counted, without_credentials
from orchestrator.views.follower import Ending, View, Views
from orchestrator.views.mlflow import MlflowView
from orchestrator.views.notices import Notices
from orchestrator.views.study import StudyView, default_journal
from orchestrator.views.tables import Tables
from search_spaces.sweep import SweepConfig
from workers.data.storage import Storage
from workers.runtime.process import cores

_STOP_TIMEOUT_S = 8.0  # after a signal: schedulers kill what stays longer

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Ended:
    """A launch that ran to its end."""

    outcome: Outcome
    plateau: str  # how close the front is to a plateau, in words; "" if it has none
    mlflow: MlflowView | None  # None without MLflow
    problem: str | None  # why it has failed nevertheless; None if it has not


@contextmanager
def driving(storage: Storage, say: Say) -> Iterator[locks.Lock]:
    """Hold the sweep's lock inside, and remove what killed launches left.

    Raises:
        CommandError: another launch holds it, or the store cannot be written (1); interrupt (130);
            the message has the command that resumes the sweep.
    """
    interrupted = f"interrupted; resume with: {_resume_command()}"
    with (
        ends_with(INTERRUPTED, KeyboardInterrupt, message=interrupted),
        ends_with(FAILED, locks.LockError, OSError),
        ending_within(_STOP_TIMEOUT_S, interrupted),
        locks.driver_lock(storage, say) as lock,
    ):
        if lock.holder:
            say(f"the last launch ({lock.holder}) did not end by itself; this one takes over")
        files.remove_unfinished(storage)
        yield lock


def supervise(request: LaunchRequest, lock: locks.Lock, say: Say, *, as_json: bool) -> Ended:
    """Run the sweep, with progress, result files and MLflow. If another launch takes the lock over,
    nothing more is written.

    Args:
        request: What is launched; all checks have passed.
        lock: The sweep's, which this launch holds.
        say: Tells the user what takes long, after the live view has ended.
        as_json: Print one JSON event per line instead of the live view.

    Raises:
        CommandError: it failed; the message has the command that resumes it.
        KeyboardInterrupt: it was interrupted.
    """
    sweep = request.sweep
    storage = request.storage
    options = request.options
    budget = sweep.budget
    file = storage.path(files.EVENTS)
    state = SweepProgress(budget.trials, budget.images, is_upper_bound=budget.plateau is not None)
    mlflow = MlflowView(storage, options.tracking_uri) if options.mlflow else None
    notices = _notices(request, state)
    kept = [*_sweep_views(sweep, storage, options.study), *filter(None, (mlflow, notices))]
    views = Views(storage, kept, lambda text: record(events.Note(note=text)))
    if file is not None:
        file.parent.mkdir(parents=True, exist_ok=True)
    ending: Ending = "failed"
    is_sweep = storage.exists(files.IDENTITY)
    try:
        with progress.choose_view(state, as_json=as_json) as view:
            record = progress.event_sink(state, view, file)

            def emit(event: events.Event) -> None:
                nonlocal is_sweep
                if isinstance(event, events.Launch):
                    event = replace(event, resume=_resume_command(), place=storage.display_name)
                locks.check_lock(storage, lock)
                record(event)
                is_sweep = is_sweep or isinstance(event, events.Identified)

            with progress.recorded_end(record):
                outcome = launch(request, views, emit, cores=cores())
        ending = "finished"
        problem = _problem(outcome)
        if notices:
            notices.problem = problem
    except KeyboardInterrupt:
        ending = "interrupted"
        raise
    except (ValueError, RuntimeError, OSError) as error:
        raise _failure(error, is_sweep=is_sweep) from error
    finally:
        if lock.is_lost:
            views.abandon()
        else:
            if is_sweep:
                _finish(views, ending, say)
            if notices:
                notices.post_early_failure(ending)
    return Ended(outcome, state.plateau.text if state.plateau else "", mlflow, problem)


def _notices(request: LaunchRequest, state: SweepProgress) -> Notices | None:
    """The notices to the webhook of --notify; None without one."""
    url = request.options.notify
    if not url:
        return None
    return Notices(url, request.sweep.name, request.storage, state, _resume_command())


def _failure(error: Exception, *, is_sweep: bool) -> CommandError:
    """The end of a command whose launch raised an error. is_sweep: there is something to resume."""
    if isinstance(error, ValueError):  # the same command would fail again
        return CommandError(str(error), WRONG_USAGE)
    hint = ""
    if is_sweep:
        hint = f"\nfinished trials are kept; resume with: {_resume_command()}"
    return CommandError(f"{explain(error)}{hint}", FAILED)


def _problem(outcome: Outcome) -> str | None:
    """Why a launch that ran to its end has failed nevertheless; None if it has not."""
    if _only_vanilla_ran(outcome.records):
        cause = next(record.cause for record in outcome.records if record.has_failed)
        return f"all trials except vanilla failed; the first cause: {cause}"
    if outcome.lost:
        lost = f"{counted(len(outcome.lost), 'trial')} lost because of a machine, network or file"
        return f"{lost}; run again with: {_resume_command()}"
    return None


def _only_vanilla_ran(records: Sequence[TrialRecord]) -> bool:
    """Whether all trials except vanilla failed."""
    others = [record for record in records if record.number != 0]
    return bool(others) and all(record.has_failed for record in others)


def _sweep_views(sweep: SweepConfig, storage: Storage, study: str | None) -> list[View[Sweep]]:
    """Result files, study and report of a sweep. study: Optuna's, a file or URL; None for a journal
    in its folder.
    """
    url = study or str(default_journal(storage, sweep.name))
    study_view = StudyView(sweep, url, partial(as_told, sweep), is_own=study is None)
    return [Tables(), study_view, ReportView()]


def _finish(views: Views, how: Ending, say: Say) -> None:
    """Complete the views. The results are stored: `specfrontier report` and `sync` make up for what
    fails here.
    """
    if how == "finished":
        say("writing tables, plot and report")  # from a slow bucket this takes minutes
    texts = views.end(how)
    drop_lost_terminal()
    for text in texts:
        say(text)


def _resume_command() -> str:
    """This command line with --resume, with credentials redacted; of a call from Python, what to
    change in it.
    """
    arguments = command_line.get()
    if arguments is None:
        return launches.RESUME_CALL
    words = [shlex.quote(without_credentials(word)) for word in ("specfrontier", *arguments)]
    for place, word in enumerate(arguments, start=1):  # its address may be a secret
        if word.startswith("--notify="):
            words[place] = f"--notify={launches.NOTIFY_VARIABLE}"
        elif place > 1 and arguments[place - 2] == "--notify":
            words[place] = launches.NOTIFY_VARIABLE
    return " ".join(words if "--resume" in words else [*words, "--resume"])
