"""The start of a sweep. Workers are started with a specification; once the first one has loaded the
models, the sweep's identity is written: everything that its results depend on, which a resumed
sweep must share. What the sweep takes over from earlier ones is decided then, too.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from orchestrator.launch.checks import check_enqueued
from orchestrator.launch.earlier import Earlier
from orchestrator.launch.inspection import models_entry
from orchestrator.launch.read import LaunchRequest
from orchestrator.outputs import from_anywhere
from orchestrator.store import events, files
from orchestrator.store.identity import Identity, check_unchanged, read_identity, write_identity
from orchestrator.store.prices import read_prices
from orchestrator.store.records import TrialRecord
from search_spaces.params import ConfigError
from search_spaces.paths import is_remote, local_path
from search_spaces.plugins import plugin_modules
from search_spaces.sweep import SweepConfig
from search_spaces.sweep_sections import CLIP_FOLDER, NO_REFERENCE
from search_spaces.trial import DecodingConfig
from workers.data.shards import FORMAT, Experiment
from workers.data.storage import Storage
from workers.loading.hub import reference_of
from workers.loading.models import Capabilities

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


@dataclass(frozen=True, slots=True)
class StartedSweep:
    """A sweep of which a worker has loaded the models."""

    sweep: SweepConfig  # with sampling settings for all configs
    identity: Identity
    capabilities: Capabilities
    experiment: Experiment  # what the sweep's shards depend on, except for their configs
    captions: int  # the number of captions
    reported_trials: Sequence[TrialRecord]  # of earlier sweeps, which the search is told

    @property
    def reported_configs(self) -> list[DecodingConfig]:
        return [record.config for record in self.reported_trials if record.config is not None]


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
    if not storage.exists(files.STORE_ID):
        storage.write(files.STORE_ID, uuid.uuid4().hex.encode())
    return storage.read(files.STORE_ID).decode("utf-8", "replace")


def stored_facts(storage: Storage, earlier: Earlier | None = None) -> dict[str, Any]:
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


def start(request: LaunchRequest, facts: Mapping[str, Any], emit: events.EventSink) -> StartedSweep:
    """Resolve a sweep with the facts of the first worker, and write its identity, or check that of
    a resumed one.

    Raises:
        ConfigError: see `_check_facts`.
        EarlierSweepError: see `_take_over`.
        IdentityError: see `keep_identity`.
    """
    capabilities = Capabilities.from_mapping(facts["capabilities"])
    for text in facts["notes"]:
        emit(events.Note(note=text))
    sweep = request.sweep.resolve(capabilities.sampling)
    _check_facts(sweep, facts, capabilities)
    reported = _take_over(sweep, facts, request.earlier or Earlier(), request.storage, emit)
    identity = keep_identity(request.storage, sweep, _identify(sweep, facts, capabilities))
    count = facts["captions"]["count"]
    return StartedSweep(sweep, identity, capabilities, _experiment(sweep, facts), count, reported)


def _check_facts(sweep: SweepConfig, facts: Mapping[str, Any], capabilities: Capabilities) -> None:
    """Check the sweep with what a worker knows of the loaded models. The checks before it started
    cannot know all of it everywhere.

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


def _take_over(
    sweep: SweepConfig,
    facts: Mapping[str, Any],
    earlier: Earlier,
    storage: Storage,
    emit: events.EventSink,
) -> list[TrialRecord]:
    """Keep what a new sweep takes over from earlier ones in its store; returns the trials that the
    search is told.

    Raises:
        EarlierSweepError: their images depend on something else.
    """
    experiment = _experiment(sweep, facts)
    for source in earlier.sources:
        source.check_loaded(experiment, facts)
    if storage.exists(files.IDENTITY):
        return earlier.reported_trials
    for text in earlier.describe(sweep, facts["captions"], facts):
        emit(events.Note(note=f"takes over from {text}"))
    earlier = earlier.decide(sweep, facts)
    if earlier.sources:
        storage.write(files.EARLIER, earlier.to_json())
    else:  # a launch that was killed here may have left another file
        storage.remove(files.EARLIER)
    return earlier.reported_trials


def _experiment(sweep: SweepConfig, facts: Mapping[str, Any]) -> Experiment:
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
            "grid": list(capabilities.grid.sizes),
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
    if kept != stored or not storage.exists(files.IDENTITY):
        write_identity(storage, kept)
    sweep = replace(sweep, models=replace(sweep.models, file=from_anywhere(sweep.models.file)))
    files.write_sweep_text(storage, sweep.to_yaml())
    return kept
