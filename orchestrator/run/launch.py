"""From a SweepConfig to a finished sweep: workers up, model and store checked against each other, loop, views."""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from functools import partial
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
from orchestrator.run.driver import Driver, Outcome, SweepError
from orchestrator.run.pending import Planner, utc_now
from orchestrator.run.pool import Pool
from orchestrator.run.preflight_models import entry_of
from orchestrator.run.resolve import filled
from orchestrator.run.study import Search, StudyLog
from orchestrator.run.tasks import EventSink, Task
from search_spaces.params import ConfigError
from search_spaces.plugins import PLUGINS_VARIABLE
from search_spaces.sweep import SweepConfig
from search_spaces.sweep_sections import NO_REFERENCE
from search_spaces.trial import DecodingConfig, Sampling
from workers.data.shards import Experiment
from workers.data.storage import Storage
from workers.metrics.registry import uses_timings

WORDS = ("builtin", "scenes", "classes", NO_REFERENCE)  # of models, captions and reference: never paths
#: Facts of the workers that identity.json keeps.
IDENTIFYING_FACTS = (
    "target", "models", "extractors", "captions", "reference", "grid", "image_size", "versions", "device", "threads",
)  # fmt: skip
SAME = ("experiment", "target", "models", "extractors", "captions", "reference", "baseline", "seed", "device")


class IdentityError(ValueError):
    """What is in the store was made from something else; the message says what differs and what to do."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a sweep runs: the cluster, the workers, and the study's storage (None: a journal in the sweep's folder)."""

    address: str | None = None
    slots: Slots = field(default_factory=Slots)
    threads: int | None = None
    study: str | None = None


def launch(sweep: SweepConfig, storage: Storage, place: Place, emit: EventSink, *, cores: int) -> Outcome:
    """Run a sweep, or what is missing of it, to its end.

    Raises:
        PoolError, StudyError, IdentityError, ConfigError, SweepError: with what to do.
    """
    emit({"event": "launch", "note": "starting workers"})
    with sole_driver(storage), connected(place.address, place.slots, cores) as slots:
        threads = place.threads or max(1, int(slots.cpus))

        def warn(message: str) -> None:
            emit({"event": "workers", "alive": pool.alive, "note": message})

        with closing(Pool(worker_spec(sweep, storage, threads), slots, environment(threads), warn)) as pool:
            facts = pool.first_facts()
            sweep = completed(sweep, facts)
            identity = keep_identity(storage, sweep, identify(sweep, facts))
            emit({"event": "identity", "objectives": identity.to_mapping()["objectives"]})
            emit({"event": "workers", "alive": pool.alive, "note": "reading the reference"})
            one(pool, Task(-1, "reference", {"kind": "reference"}))
            driver = assemble(sweep, storage, place, pool, facts, identity, emit)
            return driver.run(read_trials(storage))


def assemble(
    sweep: SweepConfig,
    storage: Storage,
    place: Place,
    pool: Pool,
    facts: Mapping[str, Any],
    identity: Identity,
    emit: EventSink,
) -> Driver:
    """The loop with all that it holds."""
    names = [axis.name for axis in identity.objectives]
    ways = [axis.direction for axis in identity.objectives]
    assert identity.baseline is not None
    assert sweep.sampling is not None
    planner = Planner(
        sweep,
        experiment_of(sweep, facts),
        identity.baseline.to_mapping(),
        facts["captions"]["count"],
        tuple(identity.metrics),
        timed=uses_timings(identity.metrics),
    )
    journal = storage.path(STUDY)
    url = place.study or str(journal or Path(f"{sweep.name}-study.log"))
    return Driver(
        sweep,
        storage,
        planner,
        Search(sweep, ways),
        StudyLog(sweep.name, url, ways, names, f"{identity.experiment} {identity.started}"),
        pool,
        check=fits(facts),
        emit=emit,
    )


def worker_spec(sweep: SweepConfig, storage: Storage, threads: int) -> dict[str, Any]:
    """What a worker loads, as plain data.

    Raises:
        ValueError: see `entry_of`.
    """
    raw, entry = sweep.to_mapping(), entry_of(sweep)
    return {
        "store": storage.uri,
        "token": token(storage),
        "weights": absolute(sweep.models.weights),
        "models": entry.to_mapping() if entry else None,
        "metric_weights": dict(entry.metrics) if entry and entry.metrics else None,
        "device": sweep.models.device,
        "threads": threads,
        "captions": raw["captions"] | {"source": absolute(sweep.captions.source)},
        "reference": None
        if sweep.reference.source == NO_REFERENCE
        else raw["reference"] | {"source": absolute(sweep.reference.source)},
        "seed": sweep.seed,
        "metrics": sorted(sweep.asked) or None,
    }


def absolute(source: str) -> str:
    """A path that means the same in every worker; words, whatever lies beside them, and URIs stay as they are."""
    if source in WORDS:
        return source
    path = Path(source).expanduser()
    return str(path.resolve()) if path.exists() else source


def token(storage: Storage) -> str:
    """What is written in the store before any worker starts, so that each can tell whether it sees the same store."""
    if not storage.exists(STORE_ID):
        storage.write(STORE_ID, uuid.uuid4().hex.encode())
    return storage.read(STORE_ID).decode()


@contextmanager
def sole_driver(storage: Storage) -> Iterator[None]:
    """Keep a second launch of the same sweep out.

    Raises:
        SweepError: another one runs.
    """
    with exclusive(storage, DRIVER_LOCK) as alone:
        if not alone:
            raise SweepError(f"{storage.shown}: another launch runs this sweep; wait for its end, or stop it")
        yield


def environment(threads: int) -> dict[str, str]:
    """Environment of the workers: no downloads, the stated number of threads, and the plugins of this process."""
    plugins = {PLUGINS_VARIABLE: os.environ[PLUGINS_VARIABLE]} if PLUGINS_VARIABLE in os.environ else {}
    return {"OMP_NUM_THREADS": str(threads), "OMP_WAIT_POLICY": "PASSIVE", "HF_HUB_OFFLINE": "1", **plugins}


def completed(sweep: SweepConfig, facts: Mapping[str, Any]) -> SweepConfig:
    """The sweep with the target's own sampling where it names none, and vanilla in front.

    Raises:
        ConfigError: a metric that these models cannot give, or an enqueued setting that they cannot serve.
    """
    sweep = filled(sweep, Sampling(**facts["sampling"]))
    check = fits(facts)
    for entry in sweep.enqueue:
        try:
            check(entry.config)
        except ConfigError as error:
            raise error.under("enqueue", entry.label) from None
    known = facts["metrics"]
    wanted = [objective.metric for objective in sweep.objectives] + [c.metric for c in sweep.constraints]
    for name in (*wanted, *(sweep.metrics or ())):
        if name not in known:
            raise ConfigError(("objectives",), f"no metric {name!r} with these models; there are {', '.join(known)}")
    return sweep


def fits(facts: Mapping[str, Any]) -> Callable[[DecodingConfig], None]:
    """Refuses settings that the loaded models cannot serve."""
    return partial(
        DecodingConfig.check_model,
        codebook_size=facts["vocab"],
        image_tokens=facts["image_tokens"],
        drafters=facts["drafters"],
        medusa_heads=facts["medusa_heads"],
    )


def experiment_of(sweep: SweepConfig, facts: Mapping[str, Any]) -> Experiment:
    """What every result of the sweep depends on, beside the setting."""
    return Experiment(
        models=facts["models"],
        captions=facts["captions"]["hash"],
        seed=sweep.seed,
        extractors=facts["extractors"],
        precision=facts["precision"],
    )


def identify(sweep: SweepConfig, facts: Mapping[str, Any]) -> Identity:
    """identity.json: what the numbers of this sweep are numbers of."""
    assert sweep.sampling is not None
    known = facts["metrics"]
    goals = [{"metric": o.metric, "direction": o.direction or known[o.metric]["direction"]} for o in sweep.objectives]
    return Identity.from_mapping(
        {
            "name": sweep.name,
            "experiment": experiment_of(sweep, facts).digest(),
            "metrics": {name: known[name] for name in known if not sweep.asked or name in sweep.asked},
            "objectives": goals,
            "constraints": [constraint.text for constraint in sweep.constraints],
            "seed": sweep.seed,
            "baseline": DecodingConfig(sampling=sweep.sampling).to_mapping(),
            "samples": sweep.quality.samples,
            "timing": sweep.timing.to_mapping(),
            "started": utc_now(),
        }
        | {key: facts[key] for key in IDENTIFYING_FACTS}
    )


def keep_identity(storage: Storage, sweep: SweepConfig, identity: Identity) -> Identity:
    """Write the identity of a new sweep, or hold that of a resumed one against it; returns the one in the store.

    Raises:
        IdentityError: weights, captions, reference or seed have changed since the sweep began.
    """
    before = read_identity(storage)
    if before is None:
        write_identity(storage, identity)
        before = identity
    changed = [key for key in SAME if getattr(before, key) != getattr(identity, key)]
    if changed:
        raise IdentityError(
            f"{storage.shown}: {', '.join(changed)} differ from when this sweep began; launch under another --name, or "
            "bring the old ones back"
        )
    storage.write(SWEEP, sweep.to_yaml().encode())
    return before


def one(pool: Pool, task: Task) -> Mapping[str, Any]:
    """Run a single task and wait for it.

    Raises:
        SweepError: it failed.
    """
    pool.submit(task)
    while True:
        for result in pool.collect(1.0):
            if result.task == task:
                if result.output is None:
                    raise SweepError(f"{task.name}: {result.cause}")
                return result.output
