"""`specfrontier launch`: run a sweep on this machine or on a Ray cluster."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import typer

from orchestrator.cli.query_options import Space
from orchestrator.cli.text import describe_front, for_output, safe_text, say, shown_table
from orchestrator.errors import FAILED, INTERRUPTED, WRONG_USAGE, CommandError, ends_with, explain
from orchestrator.interrupts import ending_within
from orchestrator.launch.options import LaunchOptions
from orchestrator.options import command_line, flag, grouped
from orchestrator.streams import drop_lost_terminal
from orchestrator.text import counted
from search_spaces.paths import is_remote, local_path

if TYPE_CHECKING:
    from orchestrator.cluster.tasks import Outcome
    from orchestrator.store.locks import Lock
    from orchestrator.store.records import TrialRecord
    from orchestrator.store.sweep import Sweep
    from orchestrator.views.follower import Ending, View, Views
    from orchestrator.views.mlflow import MlflowView
    from search_spaces.sweep import SweepConfig
    from search_spaces.trial import Sampling
    from workers.data.storage import Storage

EPILOG = """\b
Examples:
  specfrontier launch quickstart
  specfrontier launch papers/lantern-table2 --models models.yaml --check
  specfrontier launch my_sweep.yaml --address auto --out s3://bucket/sweeps --resume
  specfrontier launch my_sweep.yaml --resume --revive 7,12
  specfrontier launch wider.yaml --from my_sweep
  specfrontier launch joint --models models.yaml#llamagen-xl
  specfrontier launch joint --trials 400 --workers 8 --set quality.batch=128 --study postgresql://host/optuna
  ray job submit --address http://head:8265 --working-dir . --runtime-env-json '{"excludes": ["weights", "sweeps"]}' \\
    -- specfrontier launch my_sweep.yaml --address auto --out /shared/sweeps --resume
"""
_REASONS = {
    "plateau": "the front no longer moves (budget.plateau)",
    "space": "all points of the space are done",
    "pool": "all settings of the pool are done (search.options.pool is its size)",
}
_STOP_TIMEOUT_S = 8.0  # after a signal: schedulers kill what stays longer


def _list_spaces(requested: bool) -> None:
    if requested:
        from search_spaces.sweep import describe_spaces

        typer.echo(shown_table(("space", "what it maps"), list(describe_spaces().items())))
        raise typer.Exit


@grouped
def launch(
    space: Space,
    options: LaunchOptions,
    list_spaces: bool = flag(
        "List the ready spaces and exit.", "--list", callback=_list_spaces, is_eager=True
    ),
    as_json: bool = flag("Print one JSON event per line on standard output.", "--json"),
) -> str:
    """Map the front of a search space: workers generate images with every proposed config, time it
    and measure it.

    The sweep's folder holds all results. If it is interrupted or killed, --resume continues it.
    """
    with ends_with(WRONG_USAGE):
        config, storage = _read_space(space, options.changes(), options.out)
        config, options = _with_earlier(config, storage, options)
        say(f"{config.name}: checking models, captions and stores")
        _check_stored(config, storage, resume=options.resume or options.check)
        from orchestrator.launch.preflight import check_resources  # these imports take seconds
        from orchestrator.views.notices import check_webhook

        if options.notify is not None:
            check_webhook(options.notify)
        check_resources(options.slots, options.address, config.requested_metrics)
    options = replace(options, revived=stopped_trials(storage, options.revive))
    missing_files = list[str]()
    if options.pull:
        from orchestrator.cli.models import pull_models

        missing_files = pull_models(config, options.address, dry_run=options.check)
    from workers.models.checkpoint_files import collect_notes

    with collect_notes() as notes:
        sampling = _preflight(config, storage, options, has_models=not missing_files)
    from orchestrator.cli.launch_plan import describe_plan, describe_reference

    if options.check:  # else the workers report the notes
        config = config if sampling is None else config.resolve(sampling)
        with ends_with(WRONG_USAGE):
            plan = describe_plan(config, storage, options.taken, missing_files, notes)
        typer.echo(safe_text(plan.split("\n")))
        return storage.uri
    if not is_remote(source := config.reference.source) and local_path(source).is_dir():
        say(f"{config.name}: reference: {describe_reference(config.reference)}")
    run_sweep(config, storage, options, as_json=as_json)
    return storage.uri


def _read_space(space: str, changes: Mapping[str, Any], out: str) -> tuple[SweepConfig, Storage]:
    """The sweep in a file with changed values, and its storage below the folder or URI `out`.

    Raises:
        ConfigError, OSError: see `SweepConfig.read`.
        ValueError: the URI is malformed.
    """
    from orchestrator.store.files import plugins_of
    from search_spaces.sweep import SweepConfig
    from workers.data.storage import Storage

    root, sign, query = out.partition("?") if is_remote(out) else (out, "", "")
    storage = Storage(f"{root.rstrip('/')}/{SweepConfig.read_name(space, changes)}{sign}{query}")
    with plugins_of(storage):  # if it holds a sweep to resume
        return SweepConfig.read(space, changes), storage


def _with_earlier(
    config: SweepConfig, storage: Storage, options: LaunchOptions
) -> tuple[SweepConfig, LaunchOptions]:
    """The sweep with what it takes over from earlier ones, or took over when it started (has an
    identity).

    Raises:
        NoSweepError, ValueError: an earlier sweep cannot be read, or a resumed sweep started from
            others.
    """
    from orchestrator.store.files import EARLIER, IDENTITY, NoSweepError, find_sweep

    locations, has_started = options.earlier or [], storage.exists(IDENTITY)
    if not locations and not (has_started and storage.exists(EARLIER)):
        return config, options
    from orchestrator.launch.earlier import Earlier

    try:
        places = {place.display_name: place.uri for place in map(find_sweep, locations)}
        taken = Earlier.stored(storage) if has_started else Earlier.read(locations, config)
    except NoSweepError as error:
        raise NoSweepError(f"--from {error}") from error
    if taken is None:
        problem = f"--from: {config.name} exists in {storage.display_name}, and took over nothing"
        raise ValueError(
            f"{problem}; start another with --name NAME, or another `name` in its file"
        )
    if has_started and places.keys() - {source.store for source in taken.sources}:
        started = ", ".join(source.store for source in taken.sources)
        raise ValueError(
            f"--from: this sweep took over {started} when it started; leave the option out"
        )
    return taken.extend(config), replace(options, taken=taken.at(places))


def _check_stored(config: SweepConfig, storage: Storage, *, resume: bool) -> None:
    """Check that no sweep is stored there, or that this is the one to resume.

    Raises:
        CommandError: the storage holds a sweep, and `resume` is false or the sweep differs.
    """
    from orchestrator.store.files import IDENTITY, SWEEP, plugins_of, read_sweep_text
    from search_spaces.documents import describe_differences
    from search_spaces.plugins import load_plugins
    from search_spaces.sweep import SweepConfig

    with ends_with(WRONG_USAGE):
        is_described = storage.exists(SWEEP)  # else a resumed launch writes it again
        if not is_described and (resume or not storage.exists(IDENTITY)):
            return
        if not resume:
            problem = (
                "a sweep exists here; resume it with --resume, or start another with --name NAME"
            )
            raise CommandError(f"{storage.display_name}: {problem}", WRONG_USAGE)
        with plugins_of(storage):
            load_plugins()  # all of them: workers may need those of metrics and samplers too
            stored = SweepConfig.parse(read_sweep_text(storage), storage.locate(SWEEP))
        if changes := config.changes(stored):
            problem = f"this sweep started with other values: {describe_differences(changes)}"
            fix = (
                "restore them, or start another with --name NAME (a resumed sweep may change its "
                "budget alone)"
            )
            raise CommandError(f"{storage.display_name}: {problem}; {fix}", WRONG_USAGE)


def stopped_trials(storage: Storage, numbers: str | None) -> tuple[int, ...]:
    """The trials that --revive names (`3,12`). Revived ones are allowed, so a command can be
    repeated.

    Raises:
        CommandError: not numbers, or trials that racing did not stop.
    """
    if numbers is None:
        return ()
    from orchestrator.store.files import read_trials

    with ends_with(WRONG_USAGE):
        records = read_trials(storage)
    stopped = {
        str(record.number) for record in records if record.stop and record.duplicate_of is None
    }
    chosen = {number.strip() for number in numbers.split(",")}
    if unknown := sorted(chosen - stopped):
        found = ", ".join(sorted(stopped, key=int))
        problem = (
            f"choose among the trials that racing stopped: {found}"
            if found
            else "racing stopped no trial here"
        )
        raise CommandError(f"--revive {', '.join(unknown)}: {problem}", WRONG_USAGE)
    return tuple(sorted(map(int, chosen)))


def _preflight(
    config: SweepConfig, storage: Storage, options: LaunchOptions, *, has_models: bool
) -> Sampling | None:
    """Check the sweep before any worker starts; returns its sampling.

    has_models: see `preflight`.

    Raises:
        CommandError: the problem and the fix; 1 if the cluster does not respond, else 2.
    """
    from orchestrator.cluster.tasks import PoolError
    from orchestrator.launch.preflight import preflight
    from orchestrator.views.mlflow_place import TrackingPlace

    with ends_with(FAILED, PoolError), ends_with(WRONG_USAGE), config.locate_errors():
        uri = TrackingPlace.resolve(storage, options.tracking_uri).uri if options.mlflow else ""
        return preflight(
            config,
            storage,
            address=options.address,
            study=options.study,
            mlflow=uri,
            earlier=options.taken,
            has_models=has_models,
        )


def run_sweep(
    config: SweepConfig, storage: Storage, options: LaunchOptions, *, as_json: bool
) -> None:
    """Run the sweep, with progress, result files and MLflow; print a summary at the end.

    Raises:
        CommandError: it failed or was interrupted; the message has the command that resumes it.
    """
    from orchestrator.store.files import remove_unfinished
    from orchestrator.store.locks import LockError, driver_lock

    interrupted = f"interrupted; resume with: {_resume_command()}"
    with (
        ends_with(INTERRUPTED, KeyboardInterrupt, message=interrupted),
        ends_with(FAILED, LockError, OSError),
        ending_within(_STOP_TIMEOUT_S, interrupted),
        driver_lock(storage, say) as lock,
    ):
        if lock.holder:
            say(f"the last launch ({lock.holder}) did not end by itself; this one takes over")
        remove_unfinished(storage)
        _run(config, storage, options, lock, as_json=as_json)


def _run(
    config: SweepConfig, storage: Storage, options: LaunchOptions, lock: Lock, *, as_json: bool
) -> None:
    """See `run_sweep`; raises KeyboardInterrupt. If another launch takes the lock over, nothing
    more is written.
    """
    from orchestrator.launch.launch import launch as launch_sweep
    from orchestrator.run import progress
    from orchestrator.store import events
    from orchestrator.store.files import EVENTS, IDENTITY
    from orchestrator.store.locks import check_lock
    from orchestrator.store.progress import SweepProgress
    from orchestrator.views.follower import Views
    from orchestrator.views.mlflow import MlflowView
    from orchestrator.views.notices import Notices
    from workers.runtime.process import cores

    budget = config.budget
    file = storage.path(EVENTS)
    state = SweepProgress(budget.trials, budget.images, is_upper_bound=budget.plateau is not None)
    mlflow = MlflowView(storage, options.tracking_uri) if options.mlflow else None
    notices = (
        Notices(options.notify, config.name, storage, state, _resume_command())
        if options.notify
        else None
    )
    kept = [*_sweep_views(config, storage, options.study), *filter(None, (mlflow, notices))]
    views = Views(storage, kept, lambda text: record(events.Note(note=text)))
    if file is not None:
        file.parent.mkdir(parents=True, exist_ok=True)
    ending: Ending = "failed"
    is_sweep = storage.exists(IDENTITY)
    try:
        with progress.choose_view(state, as_json=as_json) as view:
            record = progress.event_sink(state, view, file)

            def emit(event: events.Event) -> None:
                nonlocal is_sweep
                if isinstance(event, events.Launch):
                    event = replace(event, resume=_resume_command())
                check_lock(storage, lock)
                record(event)
                is_sweep = is_sweep or isinstance(event, events.Identified)

            with progress.recorded_end(record):
                outcome = launch_sweep(config, storage, options, views, emit, cores=cores())
        ending, problem = "finished", _problem(outcome)
        if notices:
            notices.problem = problem
    except KeyboardInterrupt:
        ending = "interrupted"
        raise
    except ValueError as error:  # the same command would fail again
        raise CommandError(str(error), WRONG_USAGE) from error
    except (RuntimeError, OSError) as error:
        hint = f"\nfinished trials are kept; resume with: {_resume_command()}" if is_sweep else ""
        raise CommandError(f"{explain(error)}{hint}", FAILED) from error
    finally:
        if lock.is_lost:
            views.abandon()
        else:
            if is_sweep:
                _finish(views, ending)
            if notices:
                notices.tell_early_failure(ending)
    plateau = "" if state.plateau is None else state.plateau.text
    typer.echo(_summary(storage, mlflow, outcome, plateau), err=as_json)
    if problem is not None:
        raise CommandError(problem, FAILED)


def _problem(outcome: Outcome) -> str | None:
    """Why a launch that ran to its end has failed nevertheless; None if it has not."""
    if only_vanilla_ran(outcome.records):
        cause = next(record.cause for record in outcome.records if record.state == "failed")
        return f"all trials except vanilla failed; the first cause: {cause}"
    if outcome.lost:
        lost = counted(len(outcome.lost), "trial")
        return (
            f"{lost} lost because of a machine, network or file; run again with: "
            f"{_resume_command()}"
        )
    return None


def only_vanilla_ran(records: Sequence[TrialRecord]) -> bool:
    """Whether all trials except vanilla failed."""
    others = [record for record in records if record.number != 0]
    return bool(others) and all(record.state == "failed" for record in others)


def _sweep_views(config: SweepConfig, storage: Storage, study: str | None) -> list[View[Sweep]]:
    """Result files, study and report of a sweep. study: Optuna's, a file or URL; None for a journal
    in its folder.
    """
    from orchestrator.report.page import ReportView
    from orchestrator.run.racing import as_told
    from orchestrator.views.study import StudyView, default_journal
    from orchestrator.views.tables import Tables

    url = study or str(default_journal(storage, config.name))
    study_view = StudyView(config, url, partial(as_told, config), is_own=study is None)
    return [Tables(), study_view, ReportView()]


def _finish(views: Views, how: Ending) -> None:
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
    from orchestrator.store.launches import NOTIFY_VARIABLE, RESUME_CALL
    from orchestrator.text import without_credentials

    arguments = command_line.get()
    if arguments is None:
        return RESUME_CALL
    words = [shlex.quote(without_credentials(word)) for word in ("specfrontier", *arguments)]
    for place, word in enumerate(arguments, start=1):  # its address may be a secret
        if word.startswith("--notify="):
            words[place] = f"--notify={NOTIFY_VARIABLE}"
        elif place > 1 and arguments[place - 2] == "--notify":
            words[place] = NOTIFY_VARIABLE
    return " ".join(words if "--resume" in words else [*words, "--resume"])


def _summary(
    storage: Storage, mlflow: MlflowView | None, outcome: Outcome, plateau: str = ""
) -> str:
    """The front and its choices, and where to find report, plot and MLflow runs. plateau: how close
    the front is.
    """
    from orchestrator.front.answer import Answer
    from orchestrator.front.choice import example_limit, recommend
    from orchestrator.front.front import front_of
    from orchestrator.shown.status import sweep_notes
    from orchestrator.store.files import FRONT_PLOT, REPORT, command, near_path
    from orchestrator.store.sweep import Sweep
    from orchestrator.views.mlflow_client import is_server

    sweep = Sweep.open(storage.uri)
    found = for_output(front_of([sweep]), long=False)
    notes = sweep_notes(sweep)
    if found.infeasible_note:
        notes.append(
            f"{found.infeasible_note}; `{command(storage, 'pareto', '--infeasible')}` shows them"
        )
    if outcome.untimed:
        again = command(storage, "time")
        notes.append(
            f"the front was not timed once more: {outcome.untimed}; `{again}` times it on this "
            "machine"
        )
    front = describe_front(Answer(found, found.members, recommend(found), notes))
    reason = _REASONS.get(outcome.stopped_by, f"the budget of {outcome.stopped_by} is spent")
    reason += f"; {plateau}" if plateau and outcome.stopped_by != "plateau" else ""
    stopped = [record for record in sweep.records if record.stop is not None]
    if stopped:
        revived = sum(record.is_revived for record in stopped)
        reason += (
            f"; racing stopped {counted(len(stopped), 'trial')}, {revived} revived at the end "
        )
        reason += f"({command(storage, 'pareto', '--stopped')})"
    lines = ["", f"{counted(len(sweep.records), 'trial')}; {reason}", *front, ""]
    lines += [
        f"report   {near_path(storage, REPORT)}",
        f"plot     {near_path(storage, FRONT_PLOT)}",
    ]
    if found.candidates:
        choose_one = command(
            storage, "pareto", "--best", example_limit(found), "--config", "fast.yaml"
        )
        lines.append(f"choose   {choose_one}")
    if mlflow and mlflow.location:
        ways = (
            mlflow.location.links() if is_server(mlflow.uri) else {"MLflow": command(storage, "ui")}
        )
        lines += [f"{name:<8} {way}" for name, way in ways.items() if name != "mlflow"]
    return safe_text(lines)
