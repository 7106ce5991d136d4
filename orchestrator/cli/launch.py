"""`specfrontier launch`: run a sweep, here or on a Ray cluster."""

from __future__ import annotations

import shlex
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import typer

from orchestrator.cli import launch_options as o
from orchestrator.cli.tables import counted
from orchestrator.errors import FAILED, INTERRUPTED, WRONG_USAGE, CommandError, ends_with
from workers.loading.entry_names import split_entry

if TYPE_CHECKING:
    from collections.abc import Sequence

    from orchestrator.results.sweep import Sweep
    from orchestrator.results.trials import TrialRecord
    from orchestrator.tracking.tracker import Tracker
    from search_spaces.sweep import SweepConfig
    from workers.data.storage import Storage

EPILOG = """\b
Examples:
  specfrontier launch quickstart
  specfrontier launch papers/lantern-table2 --models models.yaml --check
  specfrontier launch my_sweep.yaml --address auto --out s3://bucket/sweeps --resume
  specfrontier launch joint --models models.yaml#llamagen-xl
  specfrontier launch joint --trials 400 --workers 8 --set quality.batch=128 --study postgresql://host/optuna
  ray job submit --address http://head:8265 --working-dir . -- specfrontier launch quickstart --address auto
"""
LOCAL_SERVER = "http://127.0.0.1:5000"  # where `specfrontier ui` listens
SYNC_SECONDS, AWAY_SECONDS = 60.0, 5.0  # how long the end of a sweep waits for MLflow; if it was away until then


def launch(
    space: o.Space,
    out: o.Out = "sweeps",
    name: o.Name = None,
    resume: o.Resume = False,
    trials: o.Trials = None,
    images: o.Images = None,
    hours: o.Hours = None,
    sampler: o.Sampler = None,
    parallel: o.Parallel = None,
    seed: o.Seed = None,
    sets: o.Sets = None,
    weights: o.Weights = None,
    models: o.ModelsFile = None,
    address: o.Address = None,
    workers: o.Workers = None,
    cpus_per_worker: o.CpusPerWorker = 1.0,
    gpus_per_worker: o.GpusPerWorker = None,
    threads: o.Threads = None,
    study: o.Study = None,
    tracking_uri: o.TrackingUri = None,
    track: o.Track = True,
    check: o.Check = False,
    as_json: o.AsJson = False,
) -> None:
    """Map the front of a search space: every setting that the study proposes is drawn, timed and measured by workers.

    The sweep's folder holds everything; interrupted or killed, it goes on with --resume where it was.
    """
    file, entry = split_entry(models)
    changes = {
        "name": name,
        "seed": seed,
        "models.weights": weights,
        "models.file": file,
        "models.name": entry,
        "budget.trials": trials,
        "budget.images": images,
        "budget.hours": hours,
        "search.sampler": sampler,
        "search.parallel": parallel,
    }
    config = read(space, {key: value for key, value in changes.items() if value is not None}, sets or [])
    storage = place_for(config, out, resume=resume)
    look(config, storage, address, study, tracking_uri if track else "")
    if check:
        from orchestrator.cli.launch_plan import plan_in_words

        typer.echo(plan_in_words(config, storage))
        return
    from orchestrator.run.cluster import Slots
    from orchestrator.run.launch import Place

    slots = Slots(workers, cpus_per_worker, gpus_per_worker or 0.0)
    place = Place(address, slots, threads, study)
    run(config, storage, place, tracking_uri if track else "", as_json=as_json)


def read(space: str, changes: dict[str, Any], sets: list[str]) -> SweepConfig:
    """The sweep of a file or ready space with what the command line changes.

    Raises:
        CommandError: with the file, line and key at fault.
    """
    from search_spaces.overrides import parse_assignments
    from search_spaces.sweep import SweepConfig

    with ends_with(WRONG_USAGE):
        return SweepConfig.read(space, changes | parse_assignments(sets))


def place_for(config: SweepConfig, out: str, *, resume: bool) -> Storage:
    """The sweep's storage.

    Raises:
        CommandError: it holds a sweep and this is not to resume it, or it holds another one.
    """
    from orchestrator.results.store import SWEEP
    from orchestrator.run.resolve import differences
    from search_spaces.sweep import SweepConfig
    from workers.data.storage import Storage

    with ends_with(WRONG_USAGE):
        root, sign, options = out.partition("?")  # of a URI
        storage = Storage(f"{root.rstrip('/')}/{config.name}{sign}{options}")
        if not storage.exists(SWEEP):
            return storage
        if not resume:
            problem = "there is a sweep already; --resume goes on with it, --name NAME starts another"
            raise CommandError(f"{storage.shown}: {problem}", WRONG_USAGE)
        before = SweepConfig.parse(storage.read(SWEEP).decode(), f"{storage.shown}/{SWEEP}")
        different = differences(before, config)
        if different:
            problem = f"this sweep was begun with another {', '.join(different)}; --name NAME starts another"
            raise CommandError(f"{storage.shown}: {problem}", WRONG_USAGE)
        return storage


def look(config: SweepConfig, storage: Storage, address: str | None, study: str | None, tracking: str | None) -> None:
    """Refuse what can be seen to be wrong before any worker starts. tracking: "" for none.

    Raises:
        CommandError: what is wrong and how to mend it; 1 if the cluster does not answer, else 2.
    """
    from orchestrator.run.preflight import preflight
    from orchestrator.run.tasks import PoolError
    from orchestrator.tracking.outbox import resolve

    uri = tracking if tracking == "" else resolve(storage, tracking)
    try:
        with ends_with(WRONG_USAGE):
            preflight(config, storage, address=address, study=study, mlflow=uri)
    except PoolError as error:
        raise CommandError(str(error), FAILED) from error


def run(config: SweepConfig, storage: Storage, place: Any, uri: str | None, *, as_json: bool) -> None:
    """Launch, show, log; end with the front and where to look further."""
    from orchestrator.doctor.machine import cores
    from orchestrator.results.store import EVENTS
    from orchestrator.results.views import Views
    from orchestrator.run import progress
    from orchestrator.run.launch import launch as launch_sweep

    state = progress.Progress(config.budget.trials)
    events = storage.path(EVENTS)
    tracker, views = None if uri == "" else tracking(storage, uri), Views(storage)

    with progress.choose_view(state, as_json=as_json) as view:
        if events is not None:
            events.parent.mkdir(parents=True, exist_ok=True)
        record = progress.event_sink(state, view, events)

        def emit(event: Any) -> None:
            record(event)
            if event["event"] == "identity" and tracker:
                tracker.start()  # there is something to log from now on
            if event["event"] == "trial_finished":
                if problem := views.refresh():
                    record({"event": "note", "note": f"tables and picture not written: {problem}"})
                if tracker:
                    tracker.nudge()

        try:
            outcome = launch_sweep(config, storage, place, emit, cores=cores())
        except KeyboardInterrupt:
            end(storage, tracker, "interrupted")
            raise CommandError(f"interrupted; go on with: {again()}", INTERRUPTED) from None
        except ValueError as error:  # the same command would fail again
            end(storage, tracker, "failed")
            raise CommandError(str(error), WRONG_USAGE) from error
        except (RuntimeError, OSError) as error:
            end(storage, tracker, "failed")
            raise CommandError(f"{error}\nwhat was finished is kept; go on with: {again()}", FAILED) from error
    end(storage, tracker, "finished")
    typer.echo(closing(storage, tracker, outcome.stopped_by), err=as_json)
    if nothing_ran(outcome.records):
        cause = next(record.cause for record in outcome.records if record.state == "failed")
        raise CommandError(f"no setting but vanilla could be run; the first one failed so: {cause}", FAILED)
    if outcome.lost:
        count = len(outcome.lost)
        lost = f"{counted(count, 'trial')} {'was' if count == 1 else 'were'} lost to a machine, a network or a file"
        raise CommandError(f"{lost}, and not written down; run them again with: {again()}", FAILED)


def nothing_ran(records: Sequence[TrialRecord]) -> bool:
    """Whether settings were tried beside vanilla, and none of them came to numbers."""
    tried = [record for record in records if record.number != 0]
    return bool(tried) and all(record.state == "failed" for record in tried)


def tracking(storage: Storage, uri: str | None) -> Tracker:
    """MLflow's logging, not begun yet.

    Raises:
        CommandError: the URI is none that MLflow knows.
    """
    from orchestrator.tracking.tracker import Tracker

    with ends_with(WRONG_USAGE):
        return Tracker(storage, uri=uri)


def end(storage: Storage, tracker: Tracker | None, how: Any) -> None:
    """Write the views and let MLflow have what it can take in a while. Never raises: the results are safe already."""
    from orchestrator.report.page import write_report
    from orchestrator.results.views import Views

    with suppress(ValueError, OSError):
        Views(storage).write()
        write_report(storage)
    if tracker:
        tracker.finish(AWAY_SECONDS if tracker.problem else SYNC_SECONDS, how)


def again() -> str:
    """The command line that goes on with this sweep."""
    from orchestrator.results.redaction import without_credentials

    words = ["specfrontier", *map(without_credentials, sys.argv[1:])]
    return shlex.join(words if "--resume" in words else [*words, "--resume"])


def closing(storage: Storage, tracker: Tracker | None, stopped_by: str) -> str:
    """The front, and where to look further."""
    from orchestrator.cli.pareto import in_words
    from orchestrator.results.selection import Question, select
    from orchestrator.results.store import FRONT_PLOT, REPORT
    from orchestrator.results.sweep import Sweep

    sweep = Sweep.open(storage.uri)
    selection = select([sweep], Question())
    found = in_words(selection, selection.front_rows, {}, {"knee": selection.knee()}, [])
    lines = [f"\n{counted(len(sweep.records), 'trial')}; ended by its {stopped_by}", *found, ""]
    lines += [f"report   {storage.shown}/{REPORT}", f"picture  {storage.shown}/{FRONT_PLOT}"]
    return "\n".join([*lines, *(mlflow_lines(sweep, tracker) if tracker else ())])


def mlflow_lines(sweep: Sweep, tracker: Tracker) -> list[str]:
    """How to see the sweep in MLflow."""
    from orchestrator.tracking.server import whereabouts

    place = sweep.storage.shown
    pending = tracker.pending()
    if pending.count:
        lacking = counted(pending.count, "trial")
        return [f"MLflow   lacks {lacking} ({pending.problem}); later: specfrontier sync {place}"]
    found = whereabouts(sweep.storage, sweep.records)
    base = tracker.shown if found.has_server else LOCAL_SERVER
    opening = [] if found.has_server else [f"MLflow   specfrontier ui {place}    then, while it runs:"]
    return [*opening, *(f"{name:<8} {link}" for name, link in found.links(base).items() if name != "mlflow")]
