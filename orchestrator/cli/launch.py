"""`specfrontier launch`: run a sweep on this machine or on a Ray cluster."""

from __future__ import annotations

import shlex
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, Any

import typer

from orchestrator.cli import options as o
from orchestrator.cli.launch_plan import describe_plan
from orchestrator.cli.revive import Revive, stopped_trials
from orchestrator.cli.tables import counted
from orchestrator.errors import FAILED, INTERRUPTED, WRONG_USAGE, CommandError, ends_with

if TYPE_CHECKING:
    from collections.abc import Sequence

    from orchestrator.results.sweep import Sweep
    from orchestrator.results.trials import TrialRecord
    from orchestrator.run.launch import LaunchOptions
    from orchestrator.tracking.tracker import SweepTracker
    from search_spaces.sweep import SweepConfig
    from workers.data.storage import Storage

EPILOG = """\b
Examples:
  specfrontier launch quickstart
  specfrontier launch papers/lantern-table2 --models models.yaml --check
  specfrontier launch my_sweep.yaml --address auto --out s3://bucket/sweeps --resume
  specfrontier launch my_sweep.yaml --resume --revive 7,12
  specfrontier launch joint --models models.yaml#llamagen-xl
  specfrontier launch joint --trials 400 --workers 8 --set quality.batch=128 --study postgresql://host/optuna
  ray job submit --address http://head:8265 --working-dir . -- specfrontier launch quickstart --address auto
"""
_EXHAUSTED = {
    "space": "all points of the space are done",
    "pool": "all settings of the pool are done (search.options.pool is its size)",
}
_LOCAL_SERVER = "http://127.0.0.1:5000"  # default address of `specfrontier ui`
_MLFLOW_TIMEOUT_S = 60.0  # at the end of a sweep
_MLFLOW_UNREACHABLE_TIMEOUT_S = 5.0  # if the server did not respond before

Space = Annotated[str, typer.Argument(metavar="SPACE", help="A YAML file, or the name of a ready space.")]
Out = Annotated[str, typer.Option(metavar="DIR|URI", help="Parent folder; each sweep gets a folder with its name.")]
Name = Annotated[str | None, typer.Option(metavar="NAME", help="Name of the sweep. Default: the space's.")]
Resume = Annotated[bool, typer.Option("--resume", help="Resume the sweep, or start it.")]
Trials = Annotated[int | None, typer.Option(metavar="N", min=1, help="Budget: total number of trials.")]
Images = Annotated[int | None, typer.Option(metavar="N", min=1, help="Budget: images; no trial starts after that.")]
Hours = Annotated[
    float | None, typer.Option(metavar="H", help="Budget: wall clock of one run; a resumed sweep starts from zero.")
]
SamplerName = Annotated[
    str | None, typer.Option("--sampler", metavar="NAME", help="tpe, replay, nsga2, nsga3, gp, random, qmc, grid.")
]
Parallel = Annotated[
    int | None, typer.Option(metavar="N", min=1, help="Trials in flight. The search's proposals depend on it.")
]
Seed = Annotated[int | None, typer.Option(metavar="N", help="Seed of all images.")]
Workers = Annotated[int | None, typer.Option(metavar="N", min=1, help="Default: one for each GPU, or for each core.")]
CpusPerWorker = Annotated[float, typer.Option(metavar="N", min=0.0)]
GpusPerWorker = Annotated[float | None, typer.Option(metavar="N", min=0.0, help="Default: 1 if there are GPUs.")]
Study = Annotated[
    str | None, typer.Option(metavar="URL|FILE", help="Optuna storage. Default: a journal in the sweep's folder.")
]
Check = Annotated[bool, typer.Option("--check", help="Validate everything, print what would run, and exit.")]
JsonEvents = Annotated[bool, typer.Option("--json", help="Print one JSON event per line on standard output.")]


def launch(
    space: Space,
    out: Out = "sweeps",
    name: Name = None,
    resume: Resume = False,
    trials: Trials = None,
    images: Images = None,
    hours: Hours = None,
    sampler: SamplerName = None,
    parallel: Parallel = None,
    seed: Seed = None,
    assignments: o.Assignments = None,
    models: o.Models = None,
    address: o.Address = None,
    workers: Workers = None,
    cpus_per_worker: CpusPerWorker = 1.0,
    gpus_per_worker: GpusPerWorker = None,
    threads: o.Threads = None,
    study: Study = None,
    tracking_uri: o.TrackingUri = None,
    mlflow: o.Mlflow = True,
    revive: Revive = None,
    check: Check = False,
    as_json: JsonEvents = False,
) -> None:
    """Map the front of a search space: workers generate images with every proposed config, time it and measure it.

    The sweep's folder holds all results. If it is interrupted or killed, --resume continues it.
    """
    from search_spaces.overrides import parse_assignments
    from search_spaces.sweep import SweepConfig
    from workers.loading.models_yaml import split_entry

    file, entry = (None, None) if models is None else split_entry(models)
    changes = {
        "name": name,
        "seed": seed,
        "models.file": file,
        "models.name": entry,
        "budget.trials": trials,
        "budget.images": images,
        "budget.hours": hours,
        "search.sampler": sampler,
        "search.parallel": parallel,
    }
    with ends_with(WRONG_USAGE):
        changes = {key: value for key, value in changes.items() if value is not None}
        config = SweepConfig.read(space, changes | parse_assignments(assignments or []))
    storage = _open_storage(config, out, resume=resume)
    revived = stopped_trials(storage, revive)
    uri = _preflight(config, storage, address, study, tracking_uri if mlflow else "")
    if check:
        typer.echo(describe_plan(config, storage))
        return
    from orchestrator.run.cluster import Slots
    from orchestrator.run.launch import LaunchOptions

    slots = Slots(workers, cpus_per_worker, gpus_per_worker or 0.0)
    options = LaunchOptions(address, slots, threads, study, revived)
    _run(config, storage, options, uri, as_json=as_json)


def _open_storage(config: SweepConfig, out: str, *, resume: bool) -> Storage:
    """The sweep's storage.

    Raises:
        CommandError: it holds a sweep, and `resume` is false or the sweep differs.
    """
    from orchestrator.results.store import SWEEP
    from search_spaces.sweep import SweepConfig
    from workers.data.storage import Storage

    with ends_with(WRONG_USAGE):
        root, sign, query = out.partition("?")  # of a URI
        storage = Storage(f"{root.rstrip('/')}/{config.name}{sign}{query}")
        if not storage.exists(SWEEP):
            return storage
        if not resume:
            problem = "a sweep exists here; resume it with --resume, or start another with --name NAME"
            raise CommandError(f"{storage.display_name}: {problem}", WRONG_USAGE)
        stored = SweepConfig.parse(storage.read(SWEEP).decode(), f"{storage.display_name}/{SWEEP}")
        changed = config.changed_sections(stored)
        if changed:
            problem = f"this sweep started with other values of {', '.join(changed)}; start another with --name NAME"
            raise CommandError(f"{storage.display_name}: {problem}", WRONG_USAGE)
        return storage


def _preflight(
    config: SweepConfig, storage: Storage, address: str | None, study: str | None, tracking_uri: str | None
) -> str:
    """Check the sweep before any worker starts; returns the resolved tracking URI ("": no MLflow).

    Raises:
        CommandError: the problem and the fix; 1 if the cluster does not respond, else 2.
    """
    from orchestrator.run.preflight import preflight
    from orchestrator.run.tasks import PoolError
    from orchestrator.tracking.client import resolve_uri

    uri = "" if tracking_uri == "" else resolve_uri(storage, tracking_uri)
    try:
        with ends_with(WRONG_USAGE):
            preflight(config, storage, address=address, study=study, mlflow=uri)
    except PoolError as error:
        raise CommandError(str(error), FAILED) from error
    return uri


def _run(config: SweepConfig, storage: Storage, options: LaunchOptions, uri: str, *, as_json: bool) -> None:
    """Run the sweep, with progress, result files and MLflow; print a summary at the end.

    Raises:
        CommandError: it failed or was interrupted; the message has the command that resumes it.
    """
    from orchestrator.results.store import EVENTS
    from orchestrator.results.views import Views
    from orchestrator.run import progress
    from orchestrator.run.forecast import Forecast
    from orchestrator.run.launch import launch as launch_sweep
    from orchestrator.tracking.tracker import SweepTracker
    from workers.runtime.threads import cores

    budget = config.budget
    state = progress.Progress(budget.trials, forecast=Forecast(budget.trials, budget.images))
    events = storage.path(EVENTS)
    views = Views(storage)
    with ends_with(WRONG_USAGE):
        tracker = SweepTracker(storage, uri=uri) if uri else None
    if events is not None:
        events.parent.mkdir(parents=True, exist_ok=True)
    ending = "failed"
    try:
        with progress.choose_view(state, as_json=as_json) as view:
            record = progress.event_sink(state, view, events)

            def emit(event: Any) -> None:
                record(event)
                if event["event"] == "identity" and tracker:
                    tracker.start()
                if event["event"] in ("trial_finished", "trial_revived"):
                    if problem := views.refresh():
                        record({"event": "note", "note": f"tables and plot not written: {problem}"})
                    if tracker:
                        tracker.nudge()

            outcome = launch_sweep(config, storage, options, emit, cores=cores())
        ending = "finished"
    except KeyboardInterrupt:
        ending = "interrupted"
        raise CommandError(f"interrupted; resume with: {_resume_command()}", INTERRUPTED) from None
    except ValueError as error:  # the same command would fail again
        raise CommandError(str(error), WRONG_USAGE) from error
    except (RuntimeError, OSError) as error:
        problem = f"{error}\nfinished trials are kept; resume with: {_resume_command()}"
        raise CommandError(problem, FAILED) from error
    finally:
        _finish(storage, tracker, ending)
    typer.echo(_summary(storage, tracker, outcome.stopped_by), err=as_json)
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


def _finish(storage: Storage, tracker: SweepTracker | None, event: Any) -> None:
    """Write tables, plot and report, and give MLflow some time to log the rest. Errors are ignored: the results are
    stored.
    """
    from orchestrator.report.page import write_report
    from orchestrator.results.views import Views

    with suppress(ValueError, OSError):
        Views(storage).write()
        write_report(storage)
    if tracker:
        tracker.finish(_MLFLOW_UNREACHABLE_TIMEOUT_S if tracker.problem else _MLFLOW_TIMEOUT_S, event)


def _resume_command() -> str:
    """This command line with --resume, with credentials redacted."""
    from orchestrator.results.redaction import without_credentials

    words = ["specfrontier", *map(without_credentials, sys.argv[1:])]
    return shlex.join(words if "--resume" in words else [*words, "--resume"])


def _summary(storage: Storage, tracker: SweepTracker | None, stopped_by: str) -> str:
    """The front, and where to find report, plot and MLflow runs."""
    from orchestrator.cli.pareto import confidences, describe_front
    from orchestrator.results.store import FRONT_PLOT, REPORT
    from orchestrator.results.sweep import Sweep, front_of

    sweep = Sweep.open(storage.uri)
    found = front_of([sweep])
    marks = {"knee": found.knee()}
    front = describe_front(found, found.members, confidences(found, marks, []), marks, [])
    reason = _EXHAUSTED.get(stopped_by, f"the budget of {stopped_by} is spent")
    stopped = [record for record in sweep.records if record.stop is not None]
    if stopped:
        revived = sum(record.is_revived for record in stopped)
        reason += f"; racing stopped {counted(len(stopped), 'trial')}, {revived} revived at the end "
        reason += f"(specfrontier pareto {storage.display_name} --stopped)"
    lines = [f"\n{counted(len(sweep.records), 'trial')}; {reason}", *front, ""]
    lines += [f"report   {storage.display_name}/{REPORT}", f"plot     {storage.display_name}/{FRONT_PLOT}"]
    return "\n".join([*lines, *(_mlflow_lines(sweep, tracker) if tracker else ())])


def _mlflow_lines(sweep: Sweep, tracker: SweepTracker) -> list[str]:
    """How to open the sweep in MLflow."""
    from orchestrator.tracking.server import find_location

    sweep_location = sweep.storage.display_name
    location = find_location(sweep.storage, sweep.records, tracker.uri)
    if location.trials < len(sweep.records):
        missing = counted(len(sweep.records) - location.trials, "trial")
        return [f"MLflow   {missing} not logged ({tracker.problem}); log them with: specfrontier sync {sweep_location}"]
    base = tracker.public_uri if location.has_server else _LOCAL_SERVER
    opening = [] if location.has_server else [f"MLflow   specfrontier ui {sweep_location}    then, while it runs:"]
    return [*opening, *(f"{name:<8} {link}" for name, link in location.links(base).items() if name != "mlflow")]
