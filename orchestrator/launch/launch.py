"""Launches a sweep: start workers, resolve the sweep with their facts, check its identity, run the
driver.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from typing import Any

from orchestrator.cluster.cluster import alive_nodes, connected
from orchestrator.cluster.placement import Placement, check_demand
from orchestrator.cluster.pool import Pool
from orchestrator.cluster.tasks import SWEEP, ClusterLost, Outcome, Task
from orchestrator.launch.earlier import Earlier
from orchestrator.launch.options import LaunchOptions
from orchestrator.launch.preflight import check_enqueued, models_entry
from orchestrator.outputs import from_anywhere
from orchestrator.replay.predict import prediction_task, read_pool
from orchestrator.replay.sampler import SettingsPool
from orchestrator.run.build import Build
from orchestrator.run.driver import Driver
from orchestrator.run.search import Search
from orchestrator.run.timing import time_front
from orchestrator.run.trial import Plan, Trials
from orchestrator.store import events
from orchestrator.store.checked_text import drop_damaged_lines
from orchestrator.store.files import (
    EARLIER,
    EVENTS,
    IDENTITY,
    SHARDS,
    STORE_ID,
    Identity,
    read_identity,
    read_trials,
    write_identity,
    write_sweep_text,
)
from orchestrator.store.identity import check_unchanged
from orchestrator.store.prices import read_prices
from orchestrator.store.records import TrialRecord
from orchestrator.store.sweep import Sweep
from orchestrator.text import counted
from orchestrator.views.follower import Views
from search_spaces.params import ConfigError
from search_spaces.paths import is_remote, local_path
from search_spaces.plugins import PLUGINS_VARIABLE, plugin_modules
from search_spaces.sweep import SweepConfig
from search_spaces.sweep_sections import CLIP_FOLDER, NO_REFERENCE
from search_spaces.trial import DecodingConfig
from workers.data.reference import FILE
from workers.data.shards import FORMAT, PREDICTIONS, Experiment, ReferenceTask
from workers.data.storage import Storage
from workers.loading.hub import reference_of
from workers.loading.models import Capabilities

_MAX_LOST_CLUSTERS = 3  # without a new shard
# values of captions and reference that are not paths
_KEYWORDS = ("scenes", "classes", NO_REFERENCE)
# Facts of the workers that identity.json keeps.
_IDENTITY_FACTS = (
    "models",
    "extractors",
    "captions",
    "reference",
    "versions",
    "device",
    "threads",
    "numerics",
)
# Parts of the identity that a resumed sweep must share.
_FIXED = (
    "experiment",
    "target",
    "models",
    "extractors",
    "captions",
    "reference",
    "baseline",
    "seed",
)


def launch(
    sweep: SweepConfig,
    storage: Storage,
    options: LaunchOptions,
    views: Views,
    emit: events.EventSink,
    *,
    cores: int,
) -> Outcome:
    """Run a sweep, or the rest of a resumed one, to the end. cores: of this machine. views: started
    here; the caller ends them.

    The caller holds the `driver_lock`. If a cluster on this machine is lost, another one goes on.

    Raises:
        PoolError, StudyError, IdentityError, ConfigError, SweepError: the message names the fix.
    """
    lost_at: list[int] = []  # the number of shards whenever a cluster was lost
    note = None
    while True:
        emit(events.Launch(note=note))
        try:
            return _launch(sweep, storage, options, views, emit, cores)
        except ClusterLost as error:
            lost_at.append(len(storage.names(SHARDS)))
            if lost_at.count(lost_at[-1]) >= _MAX_LOST_CLUSTERS:
                raise
            note = f"{error}; starting another"


def _launch(
    sweep: SweepConfig,
    storage: Storage,
    options: LaunchOptions,
    views: Views,
    emit: events.EventSink,
    cores: int,
) -> Outcome:
    """Run a sweep on one cluster. Raises ClusterLost, and the errors of `launch`."""
    environment, placement = options.slots.environment(options.threads), Placement.of(sweep)
    environment |= {name: os.environ[name] for name in (PLUGINS_VARIABLE,) if name in os.environ}
    phase = (
        f"connecting to Ray at {options.address}"
        if options.address
        else "starting Ray on this machine"
    )
    emit(events.Phase(phase))
    with connected(options.address, options.slots, cores, environment, placement) as slots:
        if options.address:
            check_demand(options.slots, alive_nodes())
        variables = {} if options.address is None else environment
        earlier: Earlier = options.taken or Earlier()
        share = slots.gpus or 1.0
        spec = worker_spec(sweep, storage) | {
            "gpu_share": share,
            "sweep": sweep.to_mapping() if share < 1 else None,
            "earlier": earlier.worker_arguments(),
        }
        with closing(
            Pool(spec, slots, variables, emit, placement, _stored_facts(storage, earlier))
        ) as pool:
            emit(events.Phase("loading the models"))
            records = _read_records(storage, emit)  # while the workers load their models
            facts = pool.first_facts()
            capabilities = Capabilities.from_mapping(facts["capabilities"])
            for text in facts["notes"]:
                _emit_note(emit, text)
            sweep = sweep.resolve(capabilities.sampling)
            _check_facts(sweep, facts, capabilities)
            earlier_trials = _take_over(sweep, facts, earlier, storage, emit)
            identity = keep_identity(storage, sweep, _identify(sweep, facts, capabilities))
            views.start(identity, records)
            objectives = [events.Objective(o.name, o.direction) for o in identity.objectives]
            emit(events.Identified(tuple(objectives)))
            emit(events.Workers(pool.alive))
            build = Build(storage, pool, emit)
            reference = Task.of(FILE, ReferenceTask(), about="reading the reference images")
            build.want(SWEEP, reference)
            log = partial(_emit_note, emit)
            if predictions := prediction_task(
                sweep, storage, capabilities, log, _configs(earlier_trials)
            ):
                about = f"predicting {len(predictions.configs)} settings from a recording"
                build.want(SWEEP, Task.of(PREDICTIONS, predictions, about=about))

            def predicted_pool() -> SettingsPool:
                build.wait(PREDICTIONS)
                return read_pool(sweep, storage, identity.experiment, _configs(earlier_trials))

            assert identity.baseline is not None
            metrics, captions = tuple(identity.metrics), facts["captions"]["count"]
            plan = Plan(
                sweep,
                _experiment(sweep, facts),
                identity.baseline,
                captions,
                metrics,
                (reference,),
            )
            trials = Trials(plan, build, identity.objectives, emit, earlier.trials)
            search = Search(
                sweep,
                [objective.direction for objective in identity.objectives],
                predicted_pool,
                earlier_trials,
            )
            driver = Driver(storage, trials, search, check=capabilities.check, update=views.update)
            outcome = driver.run(records, options.revived)
            finished = Sweep(storage, identity, tuple(outcome.records))
            return replace(
                outcome,
                untimed=time_front(finished, plan.session, trials.sessions.made, build, emit),
            )


def _read_records(storage: Storage, emit: events.EventSink) -> Sequence[TrialRecord]:
    """The trials' records. Damaged lines of the events are removed, with a note."""
    records = read_trials(storage)
    if lines := drop_damaged_lines(storage, EVENTS):
        _emit_note(
            emit,
            f"{EVENTS}: {counted(lines, 'damaged line')} removed; the trials' own files are "
            "complete",
        )
    return records


def _emit_note(emit: events.EventSink, note: str) -> None:
    emit(events.Note(note=note))


def worker_spec(sweep: SweepConfig, storage: Storage) -> dict[str, Any]:
    """The workers' specification (`workers.runtime.specification`) as plain data, with absolute
    paths.

    Raises:
        ValueError: see `models_entry`.
    """
    raw = sweep.to_mapping()
    reference = raw["reference"] | {"source": _absolute(sweep.reference.source)}
    return {
        "store": storage.uri,
        "token": _store_id(storage),
        "models": models_entry(sweep).to_mapping(),
        "device": sweep.models.device,
        "captions": raw["captions"] | {"source": _absolute(sweep.captions.source)},
        "reference": None if sweep.reference.source == NO_REFERENCE else reference,
        "seed": sweep.seed,
        "metrics": sorted(sweep.requested_metrics) or None,
        "batch_metrics": list(sweep.batch_metrics),
        "torchmetrics": {
            name: {
                key: _absolute(part) if key == CLIP_FOLDER else part for key, part in entry.items()
            }
            for name, entry in sweep.torchmetrics.items()
        },
    }


def _absolute(source: str) -> str:
    """An existing path made absolute for the workers. Keywords and URIs stay as they are."""
    if source in _KEYWORDS or is_remote(source):
        return source
    path = local_path(source)
    return str(path.resolve()) if path.exists() else source


def _store_id(storage: Storage) -> str:
    """A random id, written before any worker starts. A worker that reads another id has another
    store at this path.
    """
    if not storage.exists(STORE_ID):
        storage.write(STORE_ID, uuid.uuid4().hex.encode())
    return storage.read(STORE_ID).decode("utf-8", "replace")


def _stored_facts(storage: Storage, earlier: Earlier | None = None) -> dict[str, Any]:
    """What workers must share with those that generated a resumed sweep's images, or those of
    earlier sweeps, and with those that timed its settings; empty for a new sweep.
    """
    identity = read_identity(storage)
    if identity is None:
        return earlier.required_facts if earlier else {}
    own = read_prices(storage).own
    facts = {
        "device": identity.device,
        "numerics": identity.numerics or None,
        "timing_device": own and own.hardware,
    }
    return {key: value for key, value in facts.items() if value is not None}


def _take_over(
    sweep: SweepConfig,
    facts: Mapping[str, Any],
    earlier: Earlier,
    storage: Storage,
    emit: events.EventSink,
) -> list[TrialRecord]:
    """Keep what a new sweep takes over from earlier ones in its store; returns the trials to tell
    the search.

    Raises:
        EarlierSweepError: their images depend on something else.
    """
    experiment = _experiment(sweep, facts)
    for source in earlier.sources:
        source.check_loaded(experiment, facts)
    if storage.exists(IDENTITY):
        return earlier.told
    for text in earlier.describe(sweep, facts["captions"], facts):
        _emit_note(emit, f"takes over from {text}")
    earlier = earlier.decide(sweep, facts)
    if earlier.sources:
        storage.write(EARLIER, earlier.to_json())
    else:  # a launch that was killed here may have left another file
        storage.remove(EARLIER)
    return earlier.told


def _configs(records: Sequence[TrialRecord]) -> list[DecodingConfig]:
    return [record.config for record in records if record.config is not None]


def _check_facts(
    sweep: SweepConfig,
    facts: Mapping[str, Any],
    capabilities: Capabilities,
) -> None:
    """Check the sweep with what a worker knows of the loaded models. `preflight` cannot check all
    of it everywhere.

    Raises:
        ConfigError: the models do not support an enqueued config, or cannot give a metric that the
            sweep names.
    """
    with sweep.locate_errors():
        check_enqueued(sweep, capabilities)
        for path, name in sweep.named_metrics:
            if name not in facts["metrics"]:
                given = ", ".join(facts["metrics"])
                raise ConfigError(
                    path, f"these models cannot give the metric {name!r}; they give {given}"
                )


def _experiment(sweep: SweepConfig, facts: Mapping[str, Any]) -> Experiment:
    """Everything that the sweep's shards depend on besides their configs."""
    return Experiment(
        models=facts["models"],
        captions=facts["captions"]["hash"],
        seed=sweep.seed,
        extractors=facts["extractors"],
        precision=facts["precision"],
    )


def _identify(sweep: SweepConfig, facts: Mapping[str, Any], capabilities: Capabilities) -> Identity:
    """The identity of a new sweep."""
    assert sweep.sampling is not None
    metrics = facts["metrics"]
    return Identity.from_mapping(
        {
            "name": sweep.name,
            "experiment": _experiment(sweep, facts).digest(),
            "format": FORMAT,
            "metrics": {
                name: metrics[name]
                for name in metrics
                if not sweep.requested_metrics or name in sweep.requested_metrics
            },
            "objectives": [
                {"metric": o.metric, "direction": o.direction or metrics[o.metric]["direction"]}
                for o in sweep.objectives
            ],
            "constraints": [constraint.text for constraint in sweep.constraints],
            "seed": sweep.seed,
            "baseline": DecodingConfig(sampling=sweep.sampling).to_mapping(),
            "files": {key: reference_of(path) for key, path in models_entry(sweep).files.items()},
            "samples": sweep.quality.samples,
            "timing": sweep.timing.to_mapping(),
            "started": events.utc_now(),
            "target": capabilities.target,
            "grid": [capabilities.rows, capabilities.cols],
            "image_size": capabilities.image_size,
            "plugins": plugin_modules(),
        }
        | {key: facts[key] for key in _IDENTITY_FACTS}
    )


def keep_identity(storage: Storage, sweep: SweepConfig, identity: Identity) -> Identity:
    """Write the identity and sweep.yaml of a new sweep, or check those of a resumed one; returns
    the stored identity, with the plugins of both. The models' path is kept as an absolute one:
    commands read it in other folders.

    Raises:
        IdentityError: weights, captions, reference or seed have changed since the sweep started.
    """
    stored = read_identity(storage) or identity
    check_unchanged(storage, stored, identity.to_mapping(), _FIXED)
    kept = replace(stored, plugins=tuple(dict.fromkeys([*stored.plugins, *identity.plugins])))
    if kept != stored or not storage.exists(IDENTITY):
        write_identity(storage, kept)
    sweep = replace(sweep, models=replace(sweep.models, file=from_anywhere(sweep.models.file)))
    write_sweep_text(storage, sweep.to_yaml())
    return kept
