"""`specfrontier launch`: run a sweep on this machine or on a Ray cluster."""

from __future__ import annotations

import shlex
import sys
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import typer

from orchestrator.cli.query_options import Space
from orchestrator.cli.text import describe_front, for_output, safe_text, shown_table, terminal_width
from orchestrator.errors import FAILED, INTERRUPTED, WRONG_USAGE, CommandError, ends_with, explain
from orchestrator.interrupts import ending_within
from orchestrator.options import command_line, flag, grouped, say_on_terminal
from orchestrator.results.text import clean, counted
from orchestrator.run.options import LaunchOptions

if TYPE_CHECKING:
    from orchestrator.results.locks import Lock
    from orchestrator.results.sweep import Sweep
    from orchestrator.results.trials import TrialRecord
    from orchestrator.run.earlier import Earlier
    from orchestrator.run.tasks import Outcome
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
_LABEL_WIDTH, _MAX_NAME_WIDTH, _MAX_WIDTH = 12, 46, 120  # columns of what --check prints
_WEBHOOK = '"$SPECFRONTIER_NOTIFY"'
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
    list_spaces: bool = flag("List the ready spaces and exit.", "--list", callback=_list_spaces, is_eager=True),
    as_json: bool = flag("Print one JSON event per line on standard output.", "--json"),
) -> str:
    """Map the front of a search space: workers generate images with every proposed config, time it and measure it.

    The sweep's folder holds all results. If it is interrupted or killed, --resume continues it.
    """
    with ends_with(WRONG_USAGE):
        config, storage = _read_space(space, options.changes(), options.out)
        config, options = _with_earlier(config, storage, options)
        typer.echo(f"{clean(config.name)}: checking models, captions and stores", err=True)
        from orchestrator.run.preflight import check_resources  # these imports take seconds
        from orchestrator.views.notices import check_webhook

        if options.notify is not None:
            check_webhook(options.notify)
        check_resources(options.slots, options.address, config.requested_metrics)
    _check_stored(config, storage, resume=options.resume or options.check)
    options = replace(options, revived=stopped_trials(storage, options.revive))
    if options.pull:
        from orchestrator.cli.models import pull_models

        pull_models(config, options.address)
    uri, sampling = _preflight(config, storage, options)
    if options.check:
        typer.echo(describe_plan(replace(config, sampling=sampling), storage, options.taken))
        return storage.uri
    if 0 < (options.gpus_per_worker or 0) < 1:
        from orchestrator.doctor.plan import peak_bytes

        with ends_with(WRONG_USAGE):
            options = replace(options, peak_bytes=peak_bytes(config))
    run_sweep(config, storage, options, uri, as_json=as_json)
    return storage.uri


def _read_space(space: str, changes: Mapping[str, Any], out: str) -> tuple[SweepConfig, Storage]:
    """The sweep in a file with changed values, and its storage below the folder or URI `out`.

    Raises:
        ConfigError, OSError: see `SweepConfig.read`.
        ValueError: the URI is malformed.
    """
    from orchestrator.results.store import plugins_of
    from search_spaces.sweep import SweepConfig
    from workers.data.storage import Storage

    root, sign, query = out.partition("?")  # of a URI
    storage = Storage(f"{root.rstrip('/')}/{SweepConfig.read_name(space, changes)}{sign}{query}")
    with plugins_of(storage):  # if it holds a sweep to resume
        return SweepConfig.read(space, changes), storage


def _with_earlier(config: SweepConfig, storage: Storage, options: LaunchOptions) -> tuple[SweepConfig, LaunchOptions]:
    """The sweep with what it takes over from earlier ones, or took over when it started (has an identity).

    Raises:
        NoSweepError, ValueError: an earlier sweep cannot be read, or a resumed sweep started from others.
    """
    from orchestrator.results.store import EARLIER, IDENTITY, NoSweepError, find_sweep

    locations, has_started = options.earlier or [], storage.exists(IDENTITY)
    if not locations and not (has_started and storage.exists(EARLIER)):
        return config, options
    from orchestrator.run.earlier import Earlier

    try:
        places = {place.display_name: place.uri for place in map(find_sweep, locations)}
        taken = Earlier.stored(storage) if has_started else Earlier.read(locations, config)
    except NoSweepError as error:
        raise NoSweepError(f"--from {error}") from error
    if taken is None:
        problem = f"--from: {config.name} exists in {storage.display_name}, and took over nothing"
        raise ValueError(f"{problem}; start another with --name NAME, or another `name` in its file")
    if has_started and places.keys() - {source.store for source in taken.sources}:
        started = ", ".join(source.store for source in taken.sources)
        raise ValueError(f"--from: this sweep took over {started} when it started; leave the option out")
    return taken.extend(config), replace(options, taken=taken.at(places))


def _check_stored(config: SweepConfig, storage: Storage, *, resume: bool) -> None:
    """Check that no sweep is stored there, or that this is the one to resume.

    Raises:
        CommandError: the storage holds a sweep, and `resume` is false or the sweep differs.
    """
    from orchestrator.results.store import IDENTITY, SWEEP, plugins_of, read_sweep_text
    from search_spaces.documents import describe_differences
    from search_spaces.plugins import load_plugins
    from search_spaces.sweep import SweepConfig

    with ends_with(WRONG_USAGE):
        is_described = storage.exists(SWEEP)  # else a resumed launch writes it again
        if not is_described and (resume or not storage.exists(IDENTITY)):
            return
        if not resume:
            problem = "a sweep exists here; resume it with --resume, or start another with --name NAME"
            raise CommandError(f"{storage.display_name}: {problem}", WRONG_USAGE)
        with plugins_of(storage):
            load_plugins()  # all of them: workers may need those of metrics and samplers too
            stored = SweepConfig.parse(read_sweep_text(storage), storage.locate(SWEEP))
        if changes := config.changes(stored):
            problem = f"this sweep started with other values: {describe_differences(changes)}"
            fix = "restore them, or start another with --name NAME (a resumed sweep may change its budget alone)"
            raise CommandError(f"{storage.display_name}: {problem}; {fix}", WRONG_USAGE)


def stopped_trials(storage: Storage, numbers: str | None) -> tuple[int, ...]:
    """The trials that --revive names (`3,12`). Revived ones are allowed, so a command can be repeated.

    Raises:
        CommandError: not numbers, or trials that racing did not stop.
    """
    if numbers is None:
        return ()
    from orchestrator.results.store import read_trials

    with ends_with(WRONG_USAGE):
        records = read_trials(storage)
    stopped = {str(record.number) for record in records if record.stop and record.duplicate_of is None}
    chosen = {number.strip() for number in numbers.split(",")}
    if unknown := sorted(chosen - stopped):
        found = ", ".join(sorted(stopped, key=int))
        problem = f"choose among the trials that racing stopped: {found}" if found else "racing stopped no trial here"
        raise CommandError(f"--revive {', '.join(unknown)}: {problem}", WRONG_USAGE)
    return tuple(sorted(map(int, chosen)))


def _preflight(config: SweepConfig, storage: Storage, options: LaunchOptions) -> tuple[str, Sampling | None]:
    """Check the sweep before any worker starts; returns the resolved tracking URI ("": no MLflow) and the sampling.

    Raises:
        CommandError: the problem and the fix; 1 if the cluster does not respond, else 2.
    """
    from orchestrator.run.preflight import preflight
    from orchestrator.run.tasks import PoolError
    from orchestrator.views.mlflow_client import resolve_uri

    uri = resolve_uri(storage, options.tracking_uri) if options.mlflow else ""
    with ends_with(FAILED, PoolError), ends_with(WRONG_USAGE), config.locate_errors():
        sampling = preflight(
            config, storage, address=options.address, study=options.study, mlflow=uri, earlier=options.taken
        )
    return uri, sampling


def describe_plan(config: SweepConfig, storage: Storage, earlier: Earlier | None = None) -> str:
    """What --check prints, the sweep as it would run, with all defaults: a line for each part of the sweep, and one for
    each parameter that is searched.
    """
    head = f"{config.name}: {config.about}".rstrip(": ")
    parts = [*_earlier(config, storage, earlier), *_parts(config, storage)]
    return "\n".join([_fill(head), *(_line(label, text) for label, text in parts if text)])


def _earlier(config: SweepConfig, storage: Storage, earlier: Earlier | None) -> Iterator[tuple[str, str]]:
    """What is taken over from each earlier sweep."""
    if earlier is None:
        return
    from orchestrator.results.store import IDENTITY
    from workers.data.captions import captions_hash, read_captions

    captions = {"hash": captions_hash(read_captions(**config.captions.to_mapping()))}
    facts = None if storage.exists(IDENTITY) else {"captions": captions}
    yield from (("from", text) for text in earlier.describe(config, facts))
    fronts = f"{counted(len(earlier.front), 'trial')} of their fronts"
    yield "", f"{fronts}, first: the budgets of trials and images are larger by them"


def _parts(config: SweepConfig, storage: Storage) -> Iterator[tuple[str, str]]:
    from workers.data.shards import session_images
    from workers.metrics.registry import uses_timings

    quality, timing, search, size = config.quality, config.timing, config.search, config.space.size()
    captions, reference = config.captions, config.reference
    yield "store", storage.display_name
    yield from _resume(config, storage)
    yield "models", str(config.models)
    yield "captions", f"{captions.count} of {captions.source}, seed {captions.seed}"
    is_drawn = reference.source == "scenes"
    compared = f"{'' if is_drawn else 'at most '}{counted(reference.count, 'image')} of {reference.source}"
    yield "reference", "none" if reference.source == "none" else compared
    sampling = {} if config.sampling is None else config.sampling.to_mapping()
    yield "sampling", ", ".join(f"{key} {value:g}" for key, value in sampling.items()) or "the target's own"
    yield "first", ", ".join(entry.label for entry in config.enqueue) or "vanilla"
    yield "search", f"{search.sampler if config.space.source else 'none'}, {search.parallel} trials in flight"
    yield "space", counted(size, "point") if size and config.space.source else ""
    searched = {_searched_key(name): domain for name, domain in config.space.parameters().items()}
    column = min(max((len(name) for name, _ in searched), default=0), _MAX_NAME_WIDTH)
    for (name, condition), domain in searched.items():
        yield f"  {name:<{column}}", (" | ".join(domain) if isinstance(domain, tuple) else str(domain)) + condition
    limits = {unit: getattr(config.budget, unit) for unit in ("trials", "images", "hours")}
    budget = ", ".join(f"{limit:g} {unit}" for unit, limit in limits.items() if limit is not None)
    if (plateau := config.budget.plateau) is not None:
        last = f"the last {counted(config.budget.patience or 0, 'trial')}"
        budget = f"at most {budget}; less once {last} add less than {100 * plateau:g} % to the front"
    most = size + len(config.enqueue or ("vanilla",)) if size is not None else config.budget.trials
    yield "budget", f"{budget}; there are at most {most} settings" if most < config.budget.trials else budget
    images = captions.count * quality.samples
    total = f"{images} images a trial, at most {images * config.budget.trials:,} in all"
    shards = f"{captions.count} captions x {quality.samples}, batch {quality.batch}"
    yield "quality", f"{shards}: {total}{_on(quality.nodes)}"
    timed = session_images(timing.images, timing.batches)
    pairs = (
        f"each shape in turn with vanilla, {timed} captions x at most {timing.repetitions} in a session, "
        f"batch {' and '.join(map(str, timing.batches))}{_on(timing.nodes)}"
    )
    yield "timing", pairs if uses_timings(config.requested_metrics) else "none: no metric of the sweep needs it"
    if racing := config.racing:
        rungs = ", ".join(map(str, racing.rungs))
        rate = racing.error_rate
        rule = "stops dominated trials" if rate is None else f"stops significantly worse trials, error rate {rate:g}"
        yield "racing", f"at {rungs} captions; {rule}"
    yield "objectives", ", ".join(f"{o.metric} ({o.direction})" if o.direction else o.metric for o in config.objectives)
    yield "constraints", ", ".join(constraint.text for constraint in config.constraints)
    yield "metrics", "all that are available" if config.metrics is None else ", ".join(config.metrics)
    yield "seed", str(config.seed)


def _searched_key(name: str) -> tuple[str, str]:
    """The key that a parameter sets, and where it does: of `tree=chain.length`, `tree.length` and ` (tree chain)`."""
    parts = [part.partition("=") for part in name.replace("space", "branch", 1).split(".")]
    key = ".".join(tag for tag, is_kind, _ in parts if not (is_kind and tag == "branch"))
    kinds = ", ".join(f"{tag} {kind}" for tag, is_kind, kind in parts if is_kind)
    return key, f" ({kinds})" if kinds else ""


def _on(nodes: Mapping[str, str] | None) -> str:
    from orchestrator.run.placement import describe_labels

    return f", on nodes with {describe_labels(nodes)}" if nodes else ""


def _resume(config: SweepConfig, storage: Storage) -> Iterator[tuple[str, str]]:
    """What is left of a sweep that exists, and the process that runs it now."""
    from orchestrator.results.locks import read_holder
    from orchestrator.results.store import DRIVER_LOCK, SHARDS, SWEEP, read_trials

    if not storage.exists(SWEEP):
        return
    records = read_trials(storage)
    states = [record.state for record in records]
    named = (f"{states.count(state)} {state}" for state in ("complete", "stopped", "failed") if state in states)
    finished = f"{counted(len(records), 'trial')} finished" + (f" ({', '.join(named)})" if records else "")
    left = max(0, config.budget.trials - len(records))
    more = f"{left} more of the budget" if left else "no other: the budget of trials is spent (--trials raises it)"
    recorded = {name for record in records for name in record.shards}
    unfinished = sum(f"{SHARDS}/{name}" not in recorded for name in storage.names(SHARDS))
    kept = f"; {counted(unfinished, 'shard')} of unfinished trials will not be generated again" if unfinished else ""
    yield "resume", f"{finished}; --resume keeps them and runs {more}{kept}"
    if (driver := read_holder(storage, DRIVER_LOCK)) and driver.is_alive:
        yield "running", f"{driver.name}: a launch is refused until it ends"


def _line(label: str, text: str) -> str:
    return _fill(text, f"  {label:<{_LABEL_WIDTH - 1}} ")


def _fill(text: str, head: str = "") -> str:
    """Text after a head, in lines that fit a terminal."""
    width = min(terminal_width(), _MAX_WIDTH) if sys.stdout.isatty() else _MAX_WIDTH
    return textwrap.fill(text, width, initial_indent=head, subsequent_indent=" " * len(head), break_on_hyphens=False)


def run_sweep(config: SweepConfig, storage: Storage, options: LaunchOptions, uri: str, *, as_json: bool) -> None:
    """Run the sweep, with progress, result files and MLflow; print a summary at the end.

    uri: of MLflow ("": none).

    Raises:
        CommandError: it failed or was interrupted; the message has the command that resumes it.
    """
    from orchestrator.results.locks import LockError, driver_lock

    interrupted = f"interrupted; resume with: {_resume_command()}"
    with (
        ends_with(INTERRUPTED, KeyboardInterrupt, message=interrupted),
        ends_with(FAILED, LockError, OSError),
        ending_within(_STOP_TIMEOUT_S, interrupted),
        driver_lock(storage, partial(typer.echo, err=True)) as lock,
    ):
        if lock.holder:
            typer.echo(f"the last launch ({lock.holder}) did not end by itself; this one takes over", err=True)
        _run(config, storage, options, uri, lock, as_json=as_json)


def _run(config: SweepConfig, storage: Storage, options: LaunchOptions, uri: str, lock: Lock, *, as_json: bool) -> None:
    """See `run_sweep`; raises KeyboardInterrupt. If another launch takes the lock over, nothing more is written."""
    from orchestrator.results.locks import check_lock
    from orchestrator.results.store import EVENTS, IDENTITY
    from orchestrator.run import progress
    from orchestrator.run.launch import launch as launch_sweep
    from orchestrator.views.follower import Views
    from orchestrator.views.mlflow import MlflowView
    from orchestrator.views.notices import Notices
    from workers.runtime.process import cores

    budget, events = config.budget, storage.path(EVENTS)
    state = progress.Progress(budget.trials, budget.images, is_upper_bound=budget.plateau is not None)
    mlflow = MlflowView(storage, uri) if uri else None
    notices = Notices(options.notify, config.name, storage, _resume_command()) if options.notify else None
    kept = [*_sweep_views(config, storage, options.study), *filter(None, (mlflow, notices))]
    views = Views(storage, kept, lambda text: record({"event": "note", "note": text}))
    if events is not None:
        events.parent.mkdir(parents=True, exist_ok=True)
    ending: Ending = "failed"
    is_sweep = storage.exists(IDENTITY)
    try:
        with progress.choose_view(state, as_json=as_json) as view:
            record = progress.event_sink(state, view, events, *([notices.hear] if notices else []))

            def emit(event: Any) -> None:
                nonlocal is_sweep
                event = event | {"resume": _resume_command()} if event["event"] == "launch" else event
                check_lock(storage, lock)
                record(event)
                is_sweep = is_sweep or event["event"] == "identity"

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
    typer.echo(_summary(storage, mlflow, outcome), err=as_json)
    if problem is not None:
        raise CommandError(problem, FAILED)


def _problem(outcome: Outcome) -> str | None:
    """Why a launch that ran to its end has failed nevertheless; None if it has not."""
    if only_vanilla_ran(outcome.records):
        cause = next(record.cause for record in outcome.records if record.state == "failed")
        return f"all trials except vanilla failed; the first cause: {cause}"
    if outcome.lost:
        lost = counted(len(outcome.lost), "trial")
        return f"{lost} lost because of a machine, network or file; run again with: {_resume_command()}"
    return None


def only_vanilla_ran(records: Sequence[TrialRecord]) -> bool:
    """Whether all trials except vanilla failed."""
    others = [record for record in records if record.number != 0]
    return bool(others) and all(record.state == "failed" for record in others)


def _sweep_views(config: SweepConfig, storage: Storage, study: str | None) -> list[View[Sweep]]:
    """Result files, study and report of a sweep. study: Optuna's, a file or URL; None for a journal in its folder."""
    from orchestrator.report.page import ReportView
    from orchestrator.run.racing import as_told
    from orchestrator.views.study import StudyView, default_journal
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
    words = [shlex.quote(without_credentials(word)) for word in ("specfrontier", *arguments)]
    for place, word in enumerate(arguments, start=1):  # its address may be a secret
        if word.startswith("--notify="):
            words[place] = f"--notify={_WEBHOOK}"
        elif place > 1 and arguments[place - 2] == "--notify":
            words[place] = _WEBHOOK
    return " ".join(words if "--resume" in words else [*words, "--resume"])


def _summary(storage: Storage, mlflow: MlflowView | None, outcome: Outcome) -> str:
    """The front and its choices, and where to find report, plot and MLflow runs."""
    from orchestrator.results.choices import default_choices, example_limit
    from orchestrator.results.front import front_of
    from orchestrator.results.status import sweep_notes
    from orchestrator.results.store import FRONT_PLOT, REPORT, command, near_path
    from orchestrator.results.sweep import Sweep
    from orchestrator.views.mlflow_client import is_server

    sweep = Sweep.open(storage.uri)
    found = for_output(front_of([sweep]), long=False)
    notes = sweep_notes(sweep)
    if outcome.untimed:
        again = command(storage, "time")
        notes.append(f"the front was not timed once more: {outcome.untimed}; `{again}` times it on this machine")
    front = describe_front(found, found.members, {"warnings": notes}, default_choices(found).values())
    reason = _REASONS.get(outcome.stopped_by, f"the budget of {outcome.stopped_by} is spent")
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
