"""Preflight checks of metrics, timing and search: everything that a sweep is for."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from orchestrator.run.preflight_models import prefix_errors
from search_spaces.params import unknown_choice
from search_spaces.sweep import SweepConfig
from search_spaces.sweep_sections import NO_REFERENCE
from search_spaces.trial import DecodingConfig

if TYPE_CHECKING:
    from orchestrator.results.store import Direction
    from orchestrator.run.preflight_models import CheckedModels
    from workers.data.captions import Caption


def check_names(sweep: SweepConfig) -> None:
    """Check that all metrics that the sweep names exist.

    Raises:
        ValueError: names the section and the nearest metric.
    """
    from workers.metrics.registry import registered_metrics

    registered = tuple(registered_metrics())
    for section, name in _metric_names(sweep):
        if name not in registered:
            raise ValueError(f"{section}: metric {unknown_choice(name, registered)}")


def _metric_names(sweep: SweepConfig) -> list[tuple[str, str]]:
    """Section and name of every metric that the sweep names."""
    return [
        *(("objectives", objective.metric) for objective in sweep.objectives),
        *(("constraints", constraint.metric) for constraint in sweep.constraints),
        *(("metrics", name) for name in sweep.metrics or ()),
    ]


def check_timing(sweep: SweepConfig, captions: int) -> None:
    """Check that there are enough captions for timing, and enough batches for the uncertainty of objectives.

    Raises:
        ValueError: names the numbers.
    """
    from workers.data.shards import plan_timing
    from workers.metrics.metric import TIMINGS
    from workers.metrics.registry import registered_metrics, uses_timings

    if not uses_timings(sweep.requested_metrics):
        return
    assert sweep.sampling is not None
    vanilla, timing = DecodingConfig(sampling=sweep.sampling), sweep.timing
    with prefix_errors("timing"):
        plan_timing(
            vanilla, vanilla, captions, images=timing.images, batch=timing.batch, repetitions=timing.repetitions
        )
    for section, name in _metric_names(sweep):
        if section != "metrics" and timing.images <= timing.batch and TIMINGS in registered_metrics()[name].needs:
            raise ValueError(
                f"timing: a single batch of captions gives {name} no uncertainty, whatever its repetitions; raise "
                "timing.images above timing.batch"
            )


def check_search(sweep: SweepConfig) -> None:
    """Check that the sampler accepts its options and the space.

    Raises:
        StudyError: it does not.
    """
    from orchestrator.run.study import Search
    from workers.metrics.registry import registered_metrics

    directions = [o.direction or registered_metrics()[o.metric].direction for o in sweep.objectives]
    Search(sweep, cast("list[Direction]", directions))


def check_available(sweep: SweepConfig, model: CheckedModels, captions: list[Caption]) -> None:
    """Check that the model and its captions give every metric that the sweep names.

    Raises:
        ValueError: names the section, the metric and what is missing.
    """
    from workers.metrics.extractors import unavailable_metrics

    names = _metric_names(sweep)
    reasons = unavailable_metrics(
        [name for _, name in names],
        model.entry.folder,
        image_size=model.capabilities.image_size,
        captions=[caption.text for caption in captions],
        weights=model.entry.metrics,
        reference=sweep.reference.source != NO_REFERENCE,
    )
    for section, name in names:
        if name in reasons:
            raise ValueError(
                f"{section}: {name} is not available: {reasons[name]}; add what is missing, or remove the metric"
            )


def check_image_count(sweep: SweepConfig, model: CheckedModels, captions: int) -> None:
    """Check that Fréchet distances as objectives or constraints have enough images for their covariance.

    Raises:
        ValueError: names the number of images that remain in a jackknife replicate.
    """
    from workers.metrics import fid, frechet

    distances, samples = {metric.name for metric in fid.FRECHET_METRICS}, sweep.quality.samples
    largest_block = -(-captions // min(frechet.GROUPS, captions))  # captions that a jackknife replicate leaves out
    remaining = (captions - largest_block) * samples
    for section, name in _metric_names(sweep):
        if section != "metrics" and name in distances and remaining <= model.features.width:
            raise ValueError(
                f"{section}: {name} needs more images: {captions} captions x {samples} leave {remaining} in a "
                f"jackknife replicate, too few for a covariance of {model.features.width} features; raise "
                "captions.count"
            )
