"""Checks of a sweep before any worker starts: the machine, the store, model files, captions,
reference, metrics and search, the addresses of Ray, Optuna and MLflow, and that all that will be
written to is the sweep's own. Workers repeat the checks that need loaded weights. A check of the
sweep's sections is a function in `_CHECKS`.
"""

from __future__ import annotations

import math
import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from typing import TypeAlias

import torch

from orchestrator.cluster.cluster import requires_token, resolve_address
from orchestrator.cluster.cluster_guard import parent_folder
from orchestrator.cluster.placement import Slots
from orchestrator.errors import explain
from orchestrator.launch.earlier import Earlier, Source
from orchestrator.outputs import check_lasting, check_writable
from orchestrator.replay.predict import check_pool
from orchestrator.run.search import Search
from orchestrator.run.timing import session_of
from orchestrator.store.databases import MLFLOW, has_tables, is_same_database
from orchestrator.store.files import SWEEP, Identity, check_unused, read_identity, read_trials
from orchestrator.store.identity import check_unchanged
from orchestrator.text import without_credentials
from orchestrator.views.mlflow_client import (
    database_problem,
    default_uri,
    is_database,
    local_database,
)
from orchestrator.views.study import check_study, check_url, damaged_line, default_journal
from search_spaces.constraints import split_batch
from search_spaces.params import ConfigError, at, unknown_choice
from search_spaces.params import Path as ConfigPath
from search_spaces.paths import check_utf8
from search_spaces.space import MAX_CHECKED_BRANCHES
from search_spaces.sweep import SweepConfig
from search_spaces.sweep_sections import NO_REFERENCE
from search_spaces.trial import DecodingConfig, Sampling
from workers.data.captions import Caption, captions_hash, read_captions
from workers.data.reference import FILE, check_reference
from workers.data.shards import FORMAT
from workers.data.storage import Storage
from workers.data.text_files import and_more
from workers.loading.models import Capabilities, unreadable_captions
from workers.loading.models_yaml import BUILTIN_NAME, Entry, find_entry, load_on_meta
from workers.metrics import fid
from workers.metrics.definition import DINOV2, FEATURES, Direction, Metric
from workers.metrics.estimate import BLOCKS
from workers.metrics.extractors import (
    Extractors,
    check_weights,
    load_extractors,
    unavailable_metrics,
)
from workers.metrics.library import LibraryMetric, library_metrics, try_metric
from workers.metrics.metric import METRICS, MetricRegistry
from workers.metrics.networks import Extractor
from workers.metrics.registry import uses_timings, weight_keys
from workers.models.checkpoint_files import WeightsError
from workers.runtime.process import cores

# or scheme+driver
_TRACKING_SCHEMES = ("http", "https", "sqlite", "postgresql", "mysql", "mssql", "databricks")
_MAX_WORKERS_PER_CORE = 16  # on this machine, where workers may share cores

# the key of the sweep's file, and the problem with its fix
Problems: TypeAlias = Iterator[tuple[ConfigPath, str]]


@dataclass(frozen=True, slots=True)
class _Inputs:
    """What a sweep is checked against: its models, as far as the headers of their files tell, and
    its captions.

    extractors: the feature extractors by role, without their weights.
    """

    sweep: SweepConfig
    entry: Entry
    capabilities: Capabilities
    extractors: Mapping[str, Extractor]
    captions: Sequence[Caption]
    metrics: MetricRegistry

    @property
    def decisive(self) -> Iterator[tuple[ConfigPath, Metric]]:
        """The metrics of objectives and constraints, by their keys. A trial without one of them
        fails.
        """
        metrics = self.metrics
        return (
            (path, metrics[name]) for path, name in self.sweep.named_metrics if path[0] != "metrics"
        )


def preflight(
    sweep: SweepConfig,
    storage: Storage,
    *,
    address: str | None = None,
    study: str | None = None,
    mlflow: str = "",
    earlier: Earlier | None = None,
    has_models: bool = True,
) -> Sampling | None:
    """Raise an error for anything that would fail later, in the workers or after their work.

    Returns the sampling of the sweep, by default the target's; None if its files are not here.
    Starts and writes nothing. Takes a few seconds, and the time to read the reference images, or a
    resumed sweep's weights. mlflow: the tracking URI, "" for none. earlier: what the sweep takes
    over. has_models: False if their files are still to be fetched.

    Raises:
        ValueError, OSError: one line with the key or option, the file, the problem and the fix.
        PoolError: the Ray cluster does not respond.
    """
    registered = _all_metrics(sweep)
    for path, name in sweep.named_metrics:
        if name not in registered:
            raise ConfigError(path, unknown_choice(name, registered))
        if (size := split_batch(name)[1]) is not None and size not in sweep.timing.batches[1:]:
            sizes = ", ".join(map(str, sweep.timing.batches))
            raise ConfigError(
                path,
                f"{name}: timing.batch lacks {size} after its first size ({sizes}); add it there",
            )
    if (cluster := None if address is None else resolve_address(address)) is None:
        parent_folder()
    else:
        requires_token(cluster)
    check_utf8(os.getcwd())  # workers have absolute paths
    if (file := storage.path(SWEEP)) is not None:
        check_writable(file.parent)
    storage.check_bucket()
    read_trials(storage)
    identity = read_identity(storage)
    if identity is not None and identity.format != FORMAT:
        raise ValueError(
            f"{storage.display_name}: this sweep has shards of format {identity.format}, and this "
            f"version of specfrontier writes format {FORMAT}; its front can still be queried, but "
            "launch under another --name"
        )
    _check_tracking_uri(mlflow, storage)
    directions = [o.direction or registered[o.metric].direction for o in sweep.objectives]
    check_owners(sweep.name, directions, storage, identity, study, mlflow)
    if not has_models or (cluster is not None and cluster.is_client):
        return sweep.sampling  # the cluster's machines have the files, and its workers check them
    inputs = _read_inputs(sweep, registered, storage)
    if identity is not None and identity.captions.get("hash") != captions_hash(inputs.captions):
        changed = (
            f"{sweep.captions.source} has changed since the sweep in {storage.display_name} started"
        )
        raise ConfigError(
            ("captions",), f"{changed}; restore the original, or launch under another --name"
        )
    # an older version let such a sweep start
    for check in _CHECKS if identity else (*_CHECKS, _constraint_problems):
        for path, problem in check(inputs):
            raise ConfigError(path, problem)
    _check_files(inputs, storage, identity, earlier.sources if earlier and identity is None else ())
    check_configs(inputs.sweep, inputs.capabilities)
    check_pool(inputs.sweep, inputs.capabilities)
    Search(inputs.sweep, directions)
    return inputs.sweep.sampling


def _all_metrics(sweep: SweepConfig) -> MetricRegistry:
    """All metrics of a sweep, its own included. ConfigError, with the entry's path and key, for an
    invalid one.
    """
    try:
        return METRICS.including(library_metrics(sweep.torchmetrics))
    except ConfigError as error:
        name, *key = error.path
        index = (sweep.metrics or ()).index(name)
        raise ConfigError(("metrics", f"[{index}]", *key), error.problem) from None


def _check_tracking_uri(uri: str, storage: Storage) -> None:
    """Check the scheme of MLflow's URI. Whether the server responds does not matter yet.

    Raises:
        ValueError: unknown scheme, a character that must be quoted, or a file that a Ray job would
            lose.
    """
    scheme, colon, rest = uri.partition(":")
    if uri and (
        scheme.partition("+")[0] not in _TRACKING_SCHEMES or (colon and not rest.removeprefix("//"))
    ):
        raise ValueError(
            f"--tracking-uri {without_credentials(uri)}: not an MLflow address; give "
            "http://HOST:PORT, sqlite:///FILE or a database URL"
        )
    with _prefix_errors("--tracking-uri"):
        check_url(uri)
    if uri and uri != default_uri(storage):  # the default database can be rebuilt from the sweep
        check_lasting("--tracking-uri", uri)


def models_entry(sweep: SweepConfig) -> Entry:
    """The entry of a models.yaml, or of a folder, that the sweep names.

    Raises:
        ConfigError: the sweep names an entry but no file; no such file, folder or entry; the file
            is invalid.
    """
    models = sweep.models
    if models.name is not None and models.file == BUILTIN_NAME:
        problem = f"{models.name} is an entry of a models.yaml; add --models models.yaml"
        raise ConfigError(("models", "name"), problem)
    with in_section("models", "file"):
        return find_entry(models.file, models.name)


def _read_inputs(sweep: SweepConfig, metrics: MetricRegistry, storage: Storage) -> _Inputs:
    """Read the headers of the models' files, the captions, and the reference if the extractor takes
    the images.

    Raises:
        ConfigError: files are missing, truncated or of another family, or their sizes do not match;
            captions that the target cannot encode; a reference that does not suit the extractor.
    """
    entry = models_entry(sweep)
    with in_section("models", where=f"{entry.where}: {entry.name}: " if entry.where else ""):
        entry.check_files(weight_keys(sweep.requested_metrics))
        models = load_on_meta(entry)
        if problems := check_weights(entry.folder, entry.metrics, sweep.requested_metrics):
            raise WeightsError(
                "; ".join(f"metrics.{key}: {problem}" for key, problem in problems.items())
            )
        extractors = load_extractors(entry.folder, entry.metrics, torch.device("meta"))
    capabilities = Capabilities.of(models)
    with in_section("captions"):
        captions = read_captions(**sweep.captions.to_mapping())
        if unreadable := unreadable_captions(models.target, [caption.text for caption in captions]):
            index, problem = min(unreadable, key=lambda entry: captions[entry[0]].id)
            raise ValueError(
                f"{captions[index].location}: {problem}{and_more(len(unreadable) - 1, 'caption')}"
            )
    takes_images = extractors["features"].image_size in (None, capabilities.image_size)
    if takes_images and sweep.reference.source != NO_REFERENCE:
        with in_section("reference"):
            check_reference(
                **sweep.reference.to_mapping(),
                extractors=tuple(extractors.values()),
                size=capabilities.image_size,
                has_features=storage.exists(FILE),
            )
    return _Inputs(
        sweep.resolve(capabilities.sampling), entry, capabilities, extractors, captions, metrics
    )


def _check_files(
    inputs: _Inputs, storage: Storage, identity: Identity | None, sources: Sequence[Source]
) -> None:
    """Check that the images of a resumed sweep, or of earlier ones, depend on the same files: all
    of them are read.

    Raises:
        IdentityError, EarlierSweepError: names the files' keys, with both hashes.
    """
    if identity is None and not sources:
        return
    sweep, entry = inputs.sweep, inputs.entry
    extractors = Extractors.load(
        entry.folder,
        image_size=inputs.capabilities.image_size,
        captions=[caption.text for caption in inputs.captions],
        device=torch.device("meta"),
        weights=entry.metrics,
        metrics=sorted(sweep.requested_metrics) or None,
    )
    facts = {
        "format": FORMAT,
        "seed": sweep.seed,
        "models": entry.hashes,
        "extractors": extractors.identities,
    }
    if identity is not None:
        check_unchanged(storage, identity, facts, ("models", "extractors"))
    for source in sources:
        source.check(facts)


def _unavailable_metrics(inputs: _Inputs) -> Problems:
    """Metrics that cannot be computed with the sweep's models and captions."""
    sweep = inputs.sweep
    reasons = unavailable_metrics(
        [name for _, name in sweep.named_metrics],
        inputs.entry.folder,
        image_size=inputs.capabilities.image_size,
        captions=[caption.text for caption in inputs.captions],
        weights=inputs.entry.metrics,
        reference=sweep.reference.source != NO_REFERENCE,
        registered=inputs.metrics,
    )
    for path, name in sweep.named_metrics:
        if name in reasons:
            yield (
                path,
                (
                    f"{name} is not available: {reasons[name]}; add what is missing, or remove the "
                    "metric"
                ),
            )


def _torchmetrics_problems(inputs: _Inputs) -> Problems:
    """Classes of torchmetrics that give no number on noise of the images' size; their networks are
    loaded here.
    """
    sweep, decisive = inputs.sweep, {metric.name for _, metric in inputs.decisive}
    for path, name in sweep.named_metrics:
        metric = inputs.metrics[name]
        if path[0] == "metrics" and isinstance(metric, LibraryMetric):
            problem = try_metric(
                metric,
                image_size=inputs.capabilities.image_size,
                width=inputs.extractors[FEATURES].width,
                images=_replicate(len(inputs.captions)) * sweep.quality.samples,
                own_vanilla=name in decisive,
            )
            if problem is not None:
                yield path, f"{name} is not available: {problem}"


def _constraint_problems(inputs: _Inputs) -> Problems:
    """Constraints that multiply a value of vanilla that is 0 by definition."""
    for index, constraint in enumerate(inputs.sweep.constraints):
        vanilla = inputs.metrics[constraint.metric].vanilla
        try:
            if vanilla is not None:
                constraint.check_vanilla(vanilla)
        except ConfigError as error:
            yield ("constraints", f"[{index}]", *error.path), error.problem


def _timing_problems(inputs: _Inputs) -> Problems:
    """Too few captions for timing."""
    sweep = inputs.sweep
    if not uses_timings(sweep.requested_metrics):
        return
    try:
        session_of(sweep, [DecodingConfig(sampling=sweep.sampling)], len(inputs.captions))
    except ValueError as error:
        yield ("timing",), str(error)


def _image_count_problems(inputs: _Inputs) -> Problems:
    """Fréchet distances with too few images for their covariance, on all captions or at a rung.

    The test of racing, and fid_debiased, take off a bias of order 1 / n; too few images have other
    orders. Without a test, few images order trials well enough.
    """
    sweep, count, samples = inputs.sweep, len(inputs.captions), inputs.sweep.quality.samples

    def is_enough(captions: int) -> bool:
        return _replicate(captions) * samples > width  # of the loop below

    for path, metric in inputs.decisive:
        name, racing = metric.name, sweep.racing
        if name not in fid.FRECHET_METRICS:
            continue
        width = inputs.extractors[DINOV2 if DINOV2 in metric.needs else FEATURES].width
        too_few = f"in a jackknife replicate, too few for a covariance of {width} features"
        if not is_enough(count):
            left = f"{count} captions x {samples} leave {_replicate(count) * samples} {too_few}"
            enough = next(n for n in range(count, (width + 2) * BLOCKS) if is_enough(n))
            yield (
                path,
                f"{name} needs more images: {left}; raise captions.count to at least {enough}",
            )
        is_debiased = name == "fid_debiased"
        is_checked = racing is not None and (racing.error_rate is not None or is_debiased)
        for index, rung in enumerate(racing.rungs if racing and is_checked else ()):
            if not is_enough(rung):
                least = next(n for n in range(BLOCKS, count + BLOCKS, BLOCKS) if is_enough(n))
                fix = "use rungs of at least" if least < count else "raise captions.count above"
                fix += (
                    f" {least}"
                    if is_debiased
                    else f" {least}, or use `stop: dominated`, which is not a test"
                )
                left = f"{rung} captions x {samples} leave {_replicate(rung) * samples} {too_few}"
                yield (
                    (
                        "racing",
                        "rungs",
                        f"[{index}]",
                    ),
                    f"{name} cannot be measured: {left}; {fix}",
                )


def _replicate(captions: int) -> int:
    """The captions of a jackknife replicate, which leaves out the largest block."""
    return captions - -(-captions // min(BLOCKS, captions))


def _racing_problems(inputs: _Inputs) -> Problems:
    """Rungs that do not divide into equal blocks."""
    sweep = inputs.sweep
    if sweep.racing is None:
        return
    for index, rung in enumerate(sweep.racing.rungs):
        if rung % min(BLOCKS, sweep.captions.count):
            problem = (
                f"{rung} captions do not divide into {BLOCKS} equal blocks; use multiples of "
                f"{BLOCKS}"
            )
            yield ("racing", "rungs", f"[{index}]"), problem


#: Checks of a sweep's sections, in their order
_CHECKS = (
    _unavailable_metrics,
    _torchmetrics_problems,
    _image_count_problems,
    _timing_problems,
    _racing_problems,
)


def check_configs(sweep: SweepConfig, capabilities: Capabilities) -> None:
    """Check that the models support the enqueued configs and every branch of the space, at the ends
    of its ranges.

    Raises:
        ConfigError: names the label or the branch, and the key.
    """
    check_enqueued(sweep, capabilities)
    assert sweep.sampling is not None
    for branch in islice(sweep.space.branches(), MAX_CHECKED_BRANCHES):
        kinds = ", ".join(branch.params.values())
        with at(*(("space", f"({kinds})") if kinds else ("space",))):
            corners = [leaf.domain.corners for leaf in branch.leaves]
            lowest = [ends[0] for ends in corners]
            # all fields at their lowest, then each in turn at its highest
            for values in (
                lowest,
                *([*lowest[:i], ends[-1], *lowest[i + 1 :]] for i, ends in enumerate(corners)),
            ):
                try:
                    config = branch.config(values, sweep.sampling)
                except ConfigError:
                    continue  # the space itself reported invalid corners when it was read
                capabilities.check(config)


def check_enqueued(sweep: SweepConfig, capabilities: Capabilities) -> None:
    """Raise ConfigError, with the label, if the models do not support an enqueued config."""
    for entry in sweep.enqueue:
        with at("enqueue", entry.label):
            capabilities.check(entry.config)


def check_resources(slots: Slots, address: str | None, metrics: Collection[str]) -> None:
    """Refuse resources that no machine has; without an address, those that this machine lacks.

    metrics: those of the sweep (none: all). Workers that share a GPU would slow each other down in
    timing sessions.

    Raises:
        ValueError: names the option and what the machine has.
    """
    workers, cpus, gpus = slots.count, slots.cpus, slots.gpus or 0.0
    for option, amount in (("--cpus-per-worker", cpus), ("--gpus-per-worker", gpus)):
        if not math.isfinite(amount):
            raise ValueError(f"{option} {amount}: give a finite number")
    if gpus > 1 and gpus != int(gpus):
        raise ValueError(
            f"--gpus-per-worker {gpus:g}: Ray gives a fraction of one GPU, or whole GPUs"
        )
    if 0 < gpus < 1 and uses_timings(metrics):
        raise ValueError(
            f"--gpus-per-worker {gpus:g}: workers that share a GPU disturb each other's timings; "
            "give whole GPUs, or leave speeds out of the sweep's metrics, objectives and "
            "constraints (docs/cluster.md)"
        )
    if address is not None:
        return
    advice = "lower it, or give the --address of a cluster"
    if cpus > cores():
        raise ValueError(f"--cpus-per-worker {cpus:g}: this machine has {cores()} cores; {advice}")
    if workers is not None and workers > cores() * _MAX_WORKERS_PER_CORE:
        most = cores() * _MAX_WORKERS_PER_CORE
        raise ValueError(
            f"--workers {workers}: this machine has {cores()} cores, for at most {most} workers; "
            f"{advice}"
        )
    if gpus > 0 and gpus > (count := torch.cuda.device_count()):
        raise ValueError(
            f"--gpus-per-worker {gpus:g}: this machine has {count} GPUs that torch can use; "
            f"{advice}"
        )


def check_owners(
    name: str,
    directions: Sequence[Direction],
    storage: Storage,
    identity: Identity | None,
    study: str | None,
    tracking: str,
) -> None:
    """Refuse anything that another sweep or program has. Writes nothing.

    identity: of the sweep, None if it is new. study: as given, None for the default journal.
    tracking: MLflow's URI, "" for none.

    Raises:
        ValueError, OSError: names what is there and the option that avoids it.
    """
    if identity is None:
        check_unused(storage)
    if study is not None and is_database(tracking) and is_same_database(study, tracking):
        options = (
            f"--study {without_credentials(study)} and --tracking-uri "
            f"{without_credentials(tracking)}"
        )
        raise ValueError(f"{options} are one database; Optuna and MLflow need one each")
    sweep_id, journal = identity.id if identity else None, default_journal(storage, name)
    if study is not None:
        with _prefix_errors("--study"):
            check_study(study, name, directions, sweep_id)
    elif journal.exists() and not (
        identity is not None and journal.is_file() and damaged_line(journal)
    ):
        # a damaged one is rebuilt from the trials' records
        check_study(str(journal), name, directions, sweep_id)
    _check_tracking_database(tracking, storage)


def _check_tracking_database(uri: str, storage: Storage) -> None:
    """Refuse a database of another program than MLflow. Whether a server responds does not matter
    yet.
    """
    from sqlalchemy.exc import SQLAlchemyError

    if not is_database(uri):
        return
    try:
        has_tables(uri, MLFLOW)
    except (SQLAlchemyError, ImportError):  # logging is delayed, the sweep is not
        return
    except ValueError as error:
        if (
            uri == default_uri(storage)
            and (database := local_database(uri))
            and database_problem(database)
        ):
            return  # set aside when the sweep is logged
        raise ValueError(f"--tracking-uri {without_credentials(uri)}: {error}") from error


@contextmanager
def _prefix_errors(key: str) -> Iterator[None]:
    """Prefix the message of a ValueError raised inside with an option."""
    try:
        yield
    except ValueError as error:
        raise ValueError(f"{key}: {error}") from error


@contextmanager
def in_section(*path: str, where: str = "") -> Iterator[None]:
    """Turn a ValueError or OSError raised inside into a ConfigError about a key of the sweep's
    file, unless it is about another file: it has a location, or `where` is the place in that file
    with which messages begin.
    """
    try:
        yield
    except (ValueError, OSError) as error:
        if isinstance(error, ConfigError) and error.location:
            raise
        problem = explain(error)
        if where:
            raise WeightsError(where + problem.removeprefix(where)) from error
        raise ConfigError(path, problem) from error
