"""Launches a sweep: start workers, resolve the sweep with the facts of the first one, run the
driver.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from functools import partial

from orchestrator.cluster.cluster import alive_nodes, connected
from orchestrator.cluster.placement import Placement, check_demand
from orchestrator.cluster.pool import Pool
from orchestrator.cluster.tasks import SWEEP, ClusterLost, Outcome, Task
from orchestrator.launch.earlier import Earlier
from orchestrator.launch.read import LaunchRequest
from orchestrator.launch.start import StartedSweep, start, stored_facts, worker_spec
from orchestrator.replay.predict import prediction_task, read_pool
from orchestrator.replay.sampler import SettingsPool
from orchestrator.run.build import Build
from orchestrator.run.driver import Driver
from orchestrator.run.search import Search
from orchestrator.run.timing import time_front
from orchestrator.run.trial import Plan, Trials
from orchestrator.store import checked_text, events, files
from orchestrator.store.lossless import QualityGroups
from orchestrator.store.records import TrialRecord, read_trials
from orchestrator.store.sweep import Sweep
from orchestrator.text import counted
from orchestrator.views.follower import Views
from search_spaces.plugins import PLUGINS_VARIABLE
from workers.data.reference import FILE
from workers.data.shards import PREDICTIONS, ReferenceTask
from workers.data.storage import Storage

_MAX_LOST_CLUSTERS = 3  # without a new shard


def launch(request: LaunchRequest, views: Views, emit: events.EventSink, *, cores: int) -> Outcome:
    """Run a sweep, or the rest of a resumed one, to the end.

    The caller holds the `driver_lock`. If a cluster on this machine is lost, another one goes on.

    Args:
        request: What is launched; all checks have passed.
        views: Started here; the caller ends them.
        emit: Takes the launch's events.
        cores: Those of this machine.

    Raises:
        PoolError, StudyError, IdentityError, ConfigError, SweepError: the message names the fix.
    """
    lost_at: list[int] = []  # the number of shards whenever a cluster was lost
    note = None
    call = uuid.uuid4().hex[:12]
    while True:
        emit(events.Launch(note=note))
        try:
            return _launch(request, views, emit, cores, call)
        except ClusterLost as error:
            lost_at.append(len(request.storage.names(files.SHARDS)))
            if lost_at.count(lost_at[-1]) >= _MAX_LOST_CLUSTERS:
                raise
            note = f"{error}; starting another"


def _launch(
    request: LaunchRequest, views: Views, emit: events.EventSink, cores: int, call: str
) -> Outcome:
    """Run a sweep on one cluster. call: names the launch in its timing sessions. Raises
    ClusterLost, and the errors of `launch`.
    """
    with _workers(request, emit, cores, call) as pool:
        emit(events.Phase("loading the models"))
        records = _read_records(request.storage, emit)  # while the workers load their models
        started = start(request, pool.first_facts(), emit)
        views.start(started.identity, records)
        objectives = (events.Objective(o.name, o.direction) for o in started.identity.objectives)
        emit(events.Identified(tuple(objectives)))
        emit(events.Workers(pool.alive))
        return _run_trials(request, started, records, pool, views, emit)


@contextmanager
def _workers(
    request: LaunchRequest, emit: events.EventSink, cores: int, call: str
) -> Iterator[Pool]:
    """The sweep's workers, on the cluster of --address or a new one on this machine."""
    options = request.options
    earlier = request.earlier or Earlier()
    environment = options.slots.environment(options.threads)
    if PLUGINS_VARIABLE in os.environ:
        environment[PLUGINS_VARIABLE] = os.environ[PLUGINS_VARIABLE]
    phase = "starting Ray on this machine"
    if options.address:
        phase = f"connecting to Ray at {options.address}"
    emit(events.Phase(phase))
    placement = Placement.of(request.sweep)
    with connected(options.address, options.slots, cores, environment, placement) as slots:
        if options.address:
            check_demand(options.slots, alive_nodes())
        share = slots.gpus or 1.0
        spec = worker_spec(request.sweep, request.storage) | {
            "call": call,
            "gpu_share": share,
            "sweep": request.sweep.to_mapping() if share < 1 else None,
            "earlier": earlier.worker_arguments(),
        }
        # those of a cluster on this machine have the variables from the start
        variables = {} if options.address is None else environment
        stored = stored_facts(request.storage, earlier)
        with closing(Pool(spec, slots, variables, emit, placement, stored)) as pool:
            yield pool


def _run_trials(
    request: LaunchRequest,
    started: StartedSweep,
    records: Sequence[TrialRecord],
    pool: Pool,
    views: Views,
    emit: events.EventSink,
) -> Outcome:
    """Run the trials that are left, then time the front once more. records: of finished trials."""
    sweep = started.sweep
    storage = request.storage
    identity = started.identity
    build = Build(storage, pool, emit)
    reference: tuple[Task, ...] = ()
    if identity.reference is not None:
        about = "reading the reference images"
        reference = (Task.of(FILE, ReferenceTask(), about=about),)
    build.want(SWEEP, *reference)
    predictions = prediction_task(
        sweep, storage, started.capabilities, partial(_emit_note, emit), started.reported_configs
    )
    if predictions is not None:
        about = f"predicting {len(predictions.configs)} settings from a recording"
        build.want(SWEEP, Task.of(PREDICTIONS, predictions, about=about))

    groups = QualityGroups.of(identity, started.reported_trials)

    def predicted_pool() -> SettingsPool:
        build.wait(PREDICTIONS)
        return read_pool(sweep, storage, identity.experiment, groups, started.reported_configs)

    plan = Plan(
        sweep,
        started.experiment,
        identity.baseline,
        started.captions,
        groups,
        reference,
    )
    earlier_trials = request.earlier.trials if request.earlier is not None else 0
    trials = Trials(plan, build, identity.objectives, emit, earlier_trials)
    directions = [objective.direction for objective in identity.objectives]
    search = Search(sweep, directions, predicted_pool, started.reported_trials)
    driver = Driver(storage, trials, search, check=started.capabilities.check, update=views.update)
    outcome = driver.run(records, request.revived)
    finished = Sweep.of(storage, identity, outcome.records)
    untimed = time_front(finished, plan.session, trials.sessions.made, build, emit)
    return replace(outcome, untimed=untimed)


def _read_records(storage: Storage, emit: events.EventSink) -> Sequence[TrialRecord]:
    """The trials' records. Damaged lines of the events are removed, with a note."""
    records = read_trials(storage)
    if lines := checked_text.drop_damaged_lines(storage, files.EVENTS):
        removed = f"{counted(lines, 'damaged line')} removed"
        _emit_note(emit, f"{files.EVENTS}: {removed}; the trials' own files are complete")
    return records


def _emit_note(emit: events.EventSink, note: str) -> None:
    emit(events.Note(note=note))
