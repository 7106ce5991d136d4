"""Checks of a sweep before any worker starts: the machine, the store, model files, captions, reference, metrics and
search, the addresses of Ray, Optuna and MLflow, and that all that will be written to is the sweep's own. Workers repeat
the checks that need loaded weights.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice

import torch

from orchestrator.errors import explain
from orchestrator.outputs import check_lasting, check_writable
from orchestrator.replay.predict import check_pool
from orchestrator.results.databases import MLFLOW, has_tables, is_same_database
from orchestrator.results.store import SWEEP, Identity, check_unused, read_identity, read_trials
from orchestrator.results.text import without_credentials
from orchestrator.run.cluster import requires_token, resolve_address
from orchestrator.run.cluster_guard import check_root
from orchestrator.run.study import Search
from orchestrator.views.mlflow_client import database_problem, default_uri, is_database, local_database
from orchestrator.views.study_storage import check_study, check_url, damaged_line, default_journal
from search_spaces.params import ConfigError, at, unknown_choice
from search_spaces.space import MAX_CHECKED_BRANCHES
from search_spaces.sweep import SweepConfig
from search_spaces.sweep_sections import NO_REFERENCE
from search_spaces.trial import DecodingConfig
from workers.data import reference as reference_images
from workers.data.captions import Caption, captions_hash, read_captions
from workers.data.shards import FORMAT, plan_timing
from workers.data.storage import Storage
from workers.data.text_files import and_more
from workers.loading.models import Capabilities, unreadable_captions
from workers.loading.models_yaml import BUILTIN_NAME, Entry, find_entry, load_on_meta
from workers.metrics import fid
from workers.metrics.definition import OWN_TIMINGS, TIMINGS, Direction
from workers.metrics.estimate import BLOCKS
from workers.metrics.extractors import check_weights, load_extractors, unavailable_metrics
from workers.metrics.networks import Extractor
from workers.metrics.registry import registered_metrics, uses_timings, weight_keys
from workers.models.checkpoint_files import WeightsError
from workers.models.target import Target
from workers.runtime.threads import cores

_TRACKING_SCHEMES = ("http", "https", "sqlite", "postgresql", "mysql", "mssql", "databricks")  # or scheme+driver
_MAX_WORKERS_PER_CORE = 16  # on this machine, where workers may share cores


def preflight(
    sweep: SweepConfig, storage: Storage, *, address: str | None = None, study: str | None = None, mlflow: str = ""
) -> None:
    """Raise an error for anything that would fail later, in the workers or after their work.

    Takes a few seconds; starts and writes nothing. mlflow: the tracking URI, "" for none.

    Raises:
        ValueError, OSError: one line with the key or option, the file, the problem and the fix.
        PoolError: the Ray cluster does not respond.
    """
    _check_names(sweep)
    is_client = _check_cluster(address)
    if (file := storage.path(SWEEP)) is not None:
        check_writable(file.parent)
    storage.check_bucket()
    read_trials(storage)
    identity = read_identity(storage)
    if identity is not None and identity.format != FORMAT:
        raise ValueError(
            f"{storage.display_name}: this sweep has shards of format {identity.format}, and this version of "
            f"specfrontier draws format {FORMAT}; its front can still be queried, but launch under another --name"
        )
    _check_tracking_uri(mlflow, storage)
    directions = [o.direction or registered_metrics()[o.metric].direction for o in sweep.objectives]
    check_owners(sweep.name, directions, storage, identity, study, mlflow)
    if not is_client:  # else the cluster's machines have the files, and its workers check them
        model = read_models(sweep)
        captions = read_sweep_captions(sweep, model)
        if identity is not None and identity.captions["hash"] != captions_hash(captions):
            raise ConfigError(
                ("captions",),
                f"{sweep.captions.source} has changed since the sweep in {storage.display_name} started; "
                "restore the original, or launch under another --name",
            )
        check_reference(sweep, model)
        _check_available(sweep, model, captions)
        if identity is None:  # an older version let such a sweep start
            _check_constraints(sweep)
        _check_image_count(sweep, model, len(captions))
        resolved = sweep.resolve(model.capabilities.sampling)
        check_configs(resolved, model.capabilities)
        _check_timing(resolved, len(captions))
        _check_racing(sweep)
        check_pool(resolved, model.capabilities)
        Search(resolved, directions)


def _check_cluster(address: str | None) -> bool:
    """Check that the cluster responds, or that Ray can start here; returns whether the driver is a Ray client.

    Raises:
        ValueError, PoolError: see `resolve_address`, `requires_token` and `check_root`.
    """
    if address is None:
        check_root()
        return False
    cluster = resolve_address(address)
    requires_token(cluster)
    return cluster.is_client


def _check_tracking_uri(uri: str, storage: Storage) -> None:
    """Check the scheme of MLflow's URI. Whether the server responds does not matter yet.

    Raises:
        ValueError: unknown scheme, a character that must be quoted, or a file that a Ray job would lose.
    """
    scheme, colon, rest = uri.partition(":")
    if uri and (scheme.partition("+")[0] not in _TRACKING_SCHEMES or (colon and not rest.removeprefix("//"))):
        raise ValueError(
            f"--tracking-uri {without_credentials(uri)}: not an MLflow address; give http://HOST:PORT, sqlite:///FILE "
            "or a database URL"
        )
    with _prefix_errors("--tracking-uri"):
        check_url(uri)
    if uri and uri != default_uri(storage):  # the default database can be rebuilt from the sweep
        check_lasting("--tracking-uri", uri)


def _check_names(sweep: SweepConfig) -> None:
    """Check that all metrics that the sweep names exist.

    Raises:
        ConfigError: names the section and the nearest metric.
    """
    registered = registered_metrics()
    for path, name in sweep.named_metrics:
        if name not in registered:
            raise ConfigError(path, unknown_choice(name, registered))


def _check_timing(sweep: SweepConfig, captions: int) -> None:
    """Check that there are enough captions for timing, and enough batches for the uncertainty of objectives.

    Raises:
        ConfigError: names the numbers.
    """
    if not uses_timings(sweep.requested_metrics):
        return
    assert sweep.sampling is not None
    vanilla, timing = DecodingConfig(sampling=sweep.sampling), sweep.timing
    with in_section("timing"):
        plan_timing(
            vanilla, vanilla, captions, images=timing.images, batch=timing.batch, repetitions=timing.repetitions
        )
    for path, name in sweep.named_metrics:
        needs = registered_metrics()[name].needs
        if path[0] == "metrics" or TIMINGS not in needs:
            continue
        if timing.images <= timing.batch and (timing.repetitions == 1 or OWN_TIMINGS in needs):
            problem = f"{name} has no uncertainty if a single batch of captions is timed"
            raise ConfigError(("timing",), f"{problem}; raise timing.images above timing.batch")
        if OWN_TIMINGS in needs and timing.direct < sweep.budget.trials:
            problem = f"{name} is measured for timing.direct trials of a shape only"
            raise ConfigError(path, f"{problem}; set timing.direct to budget.trials, {sweep.budget.trials}")


def _check_available(sweep: SweepConfig, model: CheckedModels, captions: list[Caption]) -> None:
    """Check that every metric that the sweep names can be computed with its models and captions.

    Raises:
        ConfigError: names the section, the metric and what is missing.
    """
    reasons = unavailable_metrics(
        [name for _, name in sweep.named_metrics],
        model.entry.folder,
        image_size=model.capabilities.image_size,
        captions=[caption.text for caption in captions],
        weights=model.entry.metrics,
        reference=sweep.reference.source != NO_REFERENCE,
    )
    for path, name in sweep.named_metrics:
        if name in reasons:
            fix = "add what is missing, or remove the metric"
            raise ConfigError(path, f"{name} is not available: {reasons[name]}; {fix}")


def _check_constraints(sweep: SweepConfig) -> None:
    """Check that no constraint multiplies a value of vanilla that is 0 by definition.

    Raises:
        ConfigError: names the constraint and the fix.
    """
    metrics = registered_metrics()
    for index, constraint in enumerate(sweep.constraints):
        vanilla = metrics[constraint.metric].vanilla
        if vanilla is not None:
            with at("constraints", f"[{index}]"):
                constraint.check_vanilla(vanilla)


def _check_image_count(sweep: SweepConfig, model: CheckedModels, captions: int) -> None:
    """Check that Fréchet distances as objectives or constraints have enough images for their covariance.

    Raises:
        ConfigError: names the number of images that remain in a jackknife replicate.
    """
    samples, width = sweep.quality.samples, model.features.width
    for path, name in sweep.named_metrics:
        if path[0] == "metrics" or name not in fid.FRECHET_METRICS:
            continue
        if (remaining := _remaining(captions) * samples) <= width:
            raise ConfigError(
                path,
                f"{name} needs more images: {captions} captions x {samples} leave {remaining} in a jackknife "
                f"replicate, too few for a covariance of {width} features; raise captions.count",
            )
        racing = sweep.racing
        # without a test, few images order trials well enough, but have no bias of order 1 / n to take off
        # the test and fid_debiased take off a bias of order 1 / n; too few images have other orders
        is_debiased = name == "fid_debiased"
        is_checked = racing is not None and (racing.error_rate is not None or is_debiased)
        for index, rung in enumerate(racing.rungs if racing and is_checked else ()):
            if (remaining := _remaining(rung) * samples) <= width:
                least = next(n for n in range(BLOCKS, captions + BLOCKS, BLOCKS) if _remaining(n) * samples > width)
                fix = "use rungs of at least" if least < captions else "raise captions.count above"
                other = "" if is_debiased else ", or use `stop: dominated`, which is not a test"
                raise ConfigError(
                    ("racing", "rungs", f"[{index}]"),
                    f"{name} cannot be measured on {rung} captions x {samples}: {remaining} images in a jackknife "
                    f"replicate are too few for a covariance of {width} features; {fix} {least}{other}",
                )


def _check_racing(sweep: SweepConfig) -> None:
    """Check that rungs divide into equal blocks, and that the objectives are measured on the captions of every trial.

    Raises:
        ConfigError: names the rung or the objective.
    """
    for index, rung in enumerate(sweep.racing.rungs if sweep.racing else ()):
        if rung % min(BLOCKS, sweep.captions.count):
            problem = f"{rung} captions do not divide into {BLOCKS} equal blocks; use multiples of {BLOCKS}"
            raise ConfigError(("racing", "rungs", f"[{index}]"), problem)
    for objective in sweep.objectives if sweep.racing else ():
        if OWN_TIMINGS in registered_metrics()[objective.metric].needs:
            problem = f"{objective.metric} is not measured on the captions of a rung"
            fix = "choose other objectives, such as speedup, or leave out `racing`"
            raise ConfigError(("racing",), f"{problem}; {fix}")


def _remaining(captions: int) -> int:
    """The captions of a jackknife replicate, which leaves out the largest block."""
    return captions - -(-captions // min(BLOCKS, captions))


@dataclass(frozen=True, slots=True)
class CheckedModels:
    """A sweep's models as far as the headers of their files determine them.

    extractors: the feature extractors by role, without their weights; all distances use "features".
    """

    entry: Entry
    target: Target
    capabilities: Capabilities
    extractors: Mapping[str, Extractor]

    @property
    def features(self) -> Extractor:
        """The network for distances."""
        return self.extractors["features"]


def models_entry(sweep: SweepConfig) -> Entry:
    """The entry of a models.yaml, or of a folder, that the sweep names.

    Raises:
        ConfigError: the sweep names an entry but no file; no such file, folder or entry; the file is invalid.
    """
    models = sweep.models
    if models.name is not None and models.file == BUILTIN_NAME:
        problem = f"{models.name} is an entry of a models.yaml; add --models models.yaml"
        raise ConfigError(("models", "name"), problem)
    with in_section("models"):
        return find_entry(models.file, models.name)


def read_models(sweep: SweepConfig) -> CheckedModels:
    """The headers of the models' files, checked against the architecture.

    Raises:
        ConfigError: files are missing, truncated or of another family, or their sizes do not match.
    """
    entry = models_entry(sweep)
    with in_section("models"):
        entry.check_files(weight_keys(sweep.requested_metrics))
        models = load_on_meta(entry)
        problems = check_weights(entry.folder, entry.metrics, sweep.requested_metrics)
        if problems:
            texts = [f"{entry.name}.metrics.{key}: {problem}" for key, problem in problems.items()]
            raise WeightsError(f"{entry.where}: {'; '.join(texts)}")
        extractors = load_extractors(entry.folder, entry.metrics, torch.device("meta"))
    return CheckedModels(entry, models.target, Capabilities.of(models), extractors)


def read_sweep_captions(sweep: SweepConfig, model: CheckedModels) -> list[Caption]:
    """The captions, checked against the target's vocabulary.

    Raises:
        ConfigError: see `read_captions`; or the first caption that the target cannot encode, and the number of others.
    """
    with in_section("captions"):
        captions = read_captions(**sweep.captions.to_mapping())
    problems = unreadable_captions(model.target, [caption.text for caption in captions])
    if problems:
        index, problem = min(problems, key=lambda entry: captions[entry[0]].id)
        more = and_more(len(problems) - 1, "caption")
        raise ConfigError(("captions",), f"{captions[index].location}: {problem}{more}")
    return captions


def check_reference(sweep: SweepConfig, model: CheckedModels) -> None:
    """Check that the reference suits the feature extractor, if the extractor takes the model's images at all.

    Raises:
        ConfigError: see `workers.data.reference.check_reference`.
    """
    takes_images = model.features.image_size in (None, model.capabilities.image_size)
    if not takes_images or sweep.reference.source == NO_REFERENCE:
        return
    with in_section("reference"):
        reference_images.check_reference(
            **sweep.reference.to_mapping(),
            extractors=tuple(model.extractors.values()),
            size=model.capabilities.image_size,
        )


def check_configs(sweep: SweepConfig, capabilities: Capabilities) -> None:
    """Check that the models support the enqueued configs and every branch of the space, at the ends of its ranges.

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
            for values in (lowest, *([*lowest[:i], ends[-1], *lowest[i + 1 :]] for i, ends in enumerate(corners))):
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


def check_resources(
    workers: int | None, cpus: float, gpus: float, address: str | None, metrics: Collection[str]
) -> None:
    """Refuse resources that no machine has; without an address, those that this machine lacks. cpus, gpus: per worker.

    metrics: of the sweep (none: all). Workers that share a GPU would slow each other down in timing shards.

    Raises:
        ValueError: names the option and what the machine has.
    """
    for option, amount in (("--cpus-per-worker", cpus), ("--gpus-per-worker", gpus)):
        if not math.isfinite(amount):
            raise ValueError(f"{option} {amount}: give a finite number")
    if gpus > 1 and gpus != int(gpus):
        raise ValueError(f"--gpus-per-worker {gpus:g}: Ray gives a fraction of one GPU, or whole GPUs")
    if 0 < gpus < 1 and uses_timings(metrics):
        raise ValueError(
            f"--gpus-per-worker {gpus:g}: workers that share a GPU disturb each other's timings; give whole GPUs, "
            "or leave speeds out of the sweep's metrics, objectives and constraints (docs/cluster.md)"
        )
    if address is not None:
        return
    advice = "lower it, or give the --address of a cluster"
    if cpus > cores():
        raise ValueError(f"--cpus-per-worker {cpus:g}: this machine has {cores()} cores; {advice}")
    if workers is not None and workers > cores() * _MAX_WORKERS_PER_CORE:
        most = cores() * _MAX_WORKERS_PER_CORE
        raise ValueError(f"--workers {workers}: this machine has {cores()} cores, for at most {most} workers; {advice}")
    if gpus > 0 and gpus > (count := torch.cuda.device_count()):
        raise ValueError(f"--gpus-per-worker {gpus:g}: this machine has {count} GPUs that torch can use; {advice}")


def check_owners(
    name: str,
    directions: Sequence[Direction],
    storage: Storage,
    identity: Identity | None,
    study: str | None,
    tracking: str,
) -> None:
    """Refuse anything that another sweep or program has. Writes nothing.

    identity: of the sweep, None if it is new. study: as given, None for the default journal. tracking: MLflow's URI, ""
    for none.

    Raises:
        ValueError, OSError: names what is there and the option that avoids it.
    """
    if identity is None:
        check_unused(storage)
    if study is not None and is_database(tracking) and is_same_database(study, tracking):
        options = f"--study {without_credentials(study)} and --tracking-uri {without_credentials(tracking)}"
        raise ValueError(f"{options} are one database; Optuna and MLflow need one each")
    sweep_id, journal = identity.id if identity else None, default_journal(storage, name)
    if study is not None:
        with _prefix_errors("--study"):
            check_study(study, name, directions, sweep_id)
    elif journal.exists() and not (identity is not None and journal.is_file() and damaged_line(journal)):
        check_study(str(journal), name, directions, sweep_id)  # a damaged one is rebuilt from the trials' records
    _check_tracking_database(tracking, storage)


def _check_tracking_database(uri: str, storage: Storage) -> None:
    """Refuse a database of another program than MLflow. Whether a server responds does not matter yet."""
    from sqlalchemy.exc import SQLAlchemyError

    if not is_database(uri):
        return
    try:
        has_tables(uri, MLFLOW)
    except (SQLAlchemyError, ImportError):  # logging is delayed, the sweep is not
        return
    except ValueError as error:
        if uri == default_uri(storage) and (database := local_database(uri)) and database_problem(database):
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
def in_section(*path: str) -> Iterator[None]:
    """Turn a ValueError or OSError raised inside into a ConfigError about a key of the sweep's file."""
    try:
        yield
    except (ValueError, OSError) as error:
        raise ConfigError(path, explain(error)) from error
