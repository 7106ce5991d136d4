"""Checks of a sweep before any worker starts: the store, model files, captions, reference, metrics and search, and the
addresses of Ray, Optuna and MLflow. Workers repeat the checks that need loaded weights.
"""

from __future__ import annotations

from orchestrator.outputs import check_lasting, check_writable
from orchestrator.replay.predict import check_pool
from orchestrator.results.redaction import without_credentials
from orchestrator.results.store import SWEEP, read_identity, read_trials
from orchestrator.run import preflight_models as models
from orchestrator.run.cluster_address import requires_token, resolve_address
from orchestrator.run.cluster_guard import check_root
from orchestrator.run.preflight_models import CheckedModels, in_section, prefix_errors
from orchestrator.run.preflight_owners import check_owners
from orchestrator.run.study import Search
from orchestrator.views.client import default_uri
from orchestrator.views.study_storage import check_url
from search_spaces.params import ConfigError, at, unknown_choice
from search_spaces.sweep import SweepConfig
from search_spaces.sweep_sections import NO_REFERENCE
from search_spaces.trial import DecodingConfig
from workers.data.captions import Caption, captions_hash
from workers.data.shards import FORMAT, plan_timing
from workers.data.storage import Storage
from workers.metrics import fid
from workers.metrics.estimate import BLOCKS
from workers.metrics.extractors import unavailable_metrics
from workers.metrics.metric import OWN_TIMINGS, TIMINGS
from workers.metrics.registry import registered_metrics, uses_timings

_TRACKING_SCHEMES = ("http", "https", "sqlite", "postgresql", "mysql", "mssql", "databricks")  # or scheme+driver


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
        model = models.read_models(sweep)
        captions = models.read_sweep_captions(sweep, model)
        if identity is not None and identity.captions["hash"] != captions_hash(captions):
            raise ConfigError(
                ("captions",),
                f"{sweep.captions.source} has changed since the sweep in {storage.display_name} started; "
                "restore the original, or launch under another --name",
            )
        models.check_reference(sweep, model)
        _check_available(sweep, model, captions)
        if identity is None:  # an older version let such a sweep start
            _check_constraints(sweep)
        _check_image_count(sweep, model, len(captions))
        resolved = sweep.resolve(model.capabilities.sampling)
        models.check_configs(resolved, model.capabilities)
        _check_timing(resolved, len(captions))
        _check_racing(sweep)
        check_pool(resolved, model.capabilities)
        Search(resolved, directions)


def _check_cluster(address: str | None) -> bool:
    """Check that the cluster responds, or that Ray can keep its files on this machine. Whether the driver is a Ray
    client.

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
    with prefix_errors("--tracking-uri"):
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
