"""Launches a sweep: start workers, resolve the sweep with their facts, check its identity, run the driver."""

from __future__ import annotations

import os
import uuid
from collections.abc import Collection, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from orchestrator.results.store import (
    DRIVER_LOCK,
    STORE_ID,
    STUDY,
    SWEEP,
    Identity,
    exclusive,
    read_identity,
    read_trials,
    write_identity,
)
from orchestrator.run.cluster import Slots, connected
from orchestrator.run.driver import Driver
from orchestrator.run.pending import Planner, utc_now
from orchestrator.run.pool import Pool
from orchestrator.run.predicted_pool import prediction_task, read_pool
from orchestrator.run.preflight_models import check_enqueued, models_entry
from orchestrator.run.preparation import PreparedWorkers
from orchestrator.run.settings_pool import SettingsPool
from orchestrator.run.study import Search, StudyLog
from orchestrator.run.tasks import EventSink, Outcome, SweepError, Task
from search_spaces.params import ConfigError
from search_spaces.plugins import PLUGINS_VARIABLE
from search_spaces.sweep import SweepConfig
from search_spaces.sweep_sections import NO_REFERENCE
from search_spaces.trial import DecodingConfig
from workers.data.shards import PREDICTIONS, Experiment
from workers.data.storage import Storage
from workers.loading.models import Capabilities
from workers.metrics.metric import REFERENCE

_KEYWORDS = ("scenes", "classes", NO_REFERENCE)  # of captions and reference: not paths
# Facts of the workers that identity.json keeps.
_IDENTITY_FACTS = ("models", "extractors", "captions", "reference", "versions", "device", "threads")
# Parts of the identity that a resumed sweep must share.
_FIXED = ("experiment", "target", "models", "extractors", "captions", "reference", "baseline", "seed", "device")


class IdentityError(ValueError):
    """The store's results depend on other weights, captions or settings; the message names them, and the fix."""


@dataclass(frozen=True, slots=True)
class LaunchOptions:
    """Where a sweep runs. address None: Ray on this machine. threads: of a worker (None: its cores).

    study: a file or database URL for Optuna's study (None: a journal in the sweep's folder). revive: stopped trials to
    run to the end.
    """

    address: str | None = None
    slots: Slots = field(default_factory=Slots)
    threads: int | None = None
    study: str | None = None
    revive: tuple[int, ...] = ()


def launch(sweep: SweepConfig, storage: Storage, options: LaunchOptions, emit: EventSink, *, cores: int) -> Outcome:
    """Run a sweep, or the rest of a resumed one, to the end. cores: of this machine.

    Raises:
        PoolError, StudyError, IdentityError, ConfigError, SweepError: the message names the fix.
    """
    emit({"event": "launch", "note": "starting workers"})
    with _only_driver(storage), connected(options.address, options.slots, cores) as slots:

        def warn(message: str) -> None:
            emit({"event": "workers", "alive": pool.alive, "note": message})

        environment = slots.environment(options.threads) | _plugins()
        with closing(Pool(worker_spec(sweep, storage), slots, environment, warn)) as pool:
            facts = pool.first_facts()
            capabilities = Capabilities.from_mapping(facts["capabilities"])
            sweep = sweep.resolve(capabilities.sampling)
            check_enqueued(sweep, capabilities)
            _check_metrics(sweep, facts["metrics"])
            identity = keep_identity(storage, sweep, _identify(sweep, facts, capabilities))
            emit({"event": "identity", "objectives": identity.to_mapping()["objectives"]})
            emit({"event": "workers", "alive": pool.alive, "note": "reading the reference"})
            predict = prediction_task(sweep, storage, capabilities, warn)
            workers = PreparedWorkers(pool, [Task(-1, REFERENCE, {"kind": REFERENCE}), *([predict] if predict else [])])

            def predicted_pool() -> SettingsPool:
                workers.wait(PREDICTIONS)
                return read_pool(sweep, storage, identity.experiment)

            study_url = options.study or str(storage.path(STUDY) or Path(f"{sweep.name}-study.log"))
            assert identity.baseline is not None
            metrics, captions = tuple(identity.metrics), facts["captions"]["count"]
            planner = Planner(sweep, _experiment(sweep, facts), identity.baseline, captions, metrics)
            names = [axis.name for axis in identity.objectives]
            directions = [axis.direction for axis in identity.objectives]
            study_id = f"{identity.experiment} {identity.started}"
            driver = Driver(
                sweep,
                storage,
                planner,
                Search(sweep, directions, predicted_pool),
                StudyLog(sweep.name, study_url, directions, names, study_id),
                workers,
                check=capabilities.check,
                emit=emit,
            )
            return driver.run(read_trials(storage), options.revive)


def worker_spec(sweep: SweepConfig, storage: Storage) -> dict[str, Any]:
    """The workers' specification (`workers.runtime.specification`) as plain data, with absolute paths.

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
    }


def _absolute(source: str) -> str:
    """An existing path made absolute for the workers. Keywords and URIs stay as they are."""
    if source in _KEYWORDS:
        return source
    path = Path(source).expanduser()
    return str(path.resolve()) if path.exists() else source


def _store_id(storage: Storage) -> str:
    """A random id, written before any worker starts. A worker that reads another id has another store at this path."""
    if not storage.exists(STORE_ID):
        storage.write(STORE_ID, uuid.uuid4().hex.encode())
    return storage.read(STORE_ID).decode()


@contextmanager
def _only_driver(storage: Storage) -> Iterator[None]:
    """Hold the sweep's lock while the block runs.

    Raises:
        SweepError: another launch holds it.
    """
    with exclusive(storage, DRIVER_LOCK) as acquired:
        if not acquired:
            raise SweepError(
                f"{storage.display_name}: another launch is running this sweep; wait until it ends, or stop it"
            )
        yield


def _plugins() -> dict[str, str]:
    """The environment variable that carries the plugins of this process to the workers, if there are any."""
    return {PLUGINS_VARIABLE: os.environ[PLUGINS_VARIABLE]} if PLUGINS_VARIABLE in os.environ else {}


def _check_metrics(sweep: SweepConfig, available: Collection[str]) -> None:
    """Raise ConfigError if a metric that the sweep names cannot be computed with the loaded models."""
    for section, name in sweep.named_metrics:
        if name not in available:
            problem = f"these models cannot give the metric {name!r}; they give {', '.join(available)}"
            raise ConfigError((section,), problem)


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
            "samples": sweep.quality.samples,
            "timing": sweep.timing.to_mapping(),
            "started": utc_now(),
            "target": capabilities.target,
            "grid": [capabilities.rows, capabilities.cols],
            "image_size": capabilities.image_size,
        }
        | {key: facts[key] for key in _IDENTITY_FACTS}
    )


def keep_identity(storage: Storage, sweep: SweepConfig, identity: Identity) -> Identity:
    """Write the identity and sweep.yaml of a new sweep, or check those of a resumed one; returns the stored identity.

    Raises:
        IdentityError: weights, captions, reference or seed have changed since the sweep started.
    """
    stored = read_identity(storage)
    if stored is None:
        write_identity(storage, identity)
        stored = identity
    changed = [key for key in _FIXED if getattr(stored, key) != getattr(identity, key)]
    if changed:
        raise IdentityError(
            f"{storage.display_name}: {', '.join(changed)} changed since this sweep started; launch under another "
            "--name, or restore the originals"
        )
    storage.write(SWEEP, sweep.to_yaml().encode())
    return stored
