"""Preflight checks of metrics and timing: everything that a sweep is for."""

from __future__ import annotations

from orchestrator.run.preflight_models import CheckedModels, prefix_errors
from search_spaces.params import unknown_choice
from search_spaces.sweep import SweepConfig
from search_spaces.sweep_sections import NO_REFERENCE
from search_spaces.trial import DecodingConfig
from workers.data.captions import Caption
from workers.data.shards import plan_timing
from workers.metrics import fid, frechet
from workers.metrics.extractors import unavailable_metrics
from workers.metrics.metric import TIMINGS
from workers.metrics.registry import registered_metrics, uses_timings


def check_names(sweep: SweepConfig) -> None:
    """Check that all metrics that the sweep names exist.

    Raises:
        ValueError: names the section and the nearest metric.
    """
    registered = tuple(registered_metrics())
    for section, name in sweep.named_metrics:
        if name not in registered:
            raise ValueError(f"{section}: metric {unknown_choice(name, registered)}")


def check_timing(sweep: SweepConfig, captions: int) -> None:
    """Check that there are enough captions for timing, and enough batches for the uncertainty of objectives.

    Raises:
        ValueError: names the numbers.
    """
    if not uses_timings(sweep.requested_metrics):
        return
    assert sweep.sampling is not None
    vanilla, timing = DecodingConfig(sampling=sweep.sampling), sweep.timing
    with prefix_errors("timing"):
        plan_timing(
            vanilla, vanilla, captions, images=timing.images, batch=timing.batch, repetitions=timing.repetitions
        )
    for section, name in sweep.named_metrics:
        if section != "metrics" and timing.images <= timing.batch and TIMINGS in registered_metrics()[name].needs:
            raise ValueError(
                f"timing: a single batch of captions gives {name} no uncertainty, whatever its repetitions; raise "
                "timing.images above timing.batch"
            )


def check_available(sweep: SweepConfig, model: CheckedModels, captions: list[Caption]) -> None:
    """Check that the model and its captions give every metric that the sweep names.

    Raises:
        ValueError: names the section, the metric and what is missing.
    """
    reasons = unavailable_metrics(
        [name for _, name in sweep.named_metrics],
        model.entry.folder,
        image_size=model.capabilities.image_size,
        captions=[caption.text for caption in captions],
        weights=model.entry.metrics,
        reference=sweep.reference.source != NO_REFERENCE,
    )
    for section, name in sweep.named_metrics:
        if name in reasons:
            raise ValueError(
                f"{section}: {name} is not available: {reasons[name]}; add what is missing, or remove the metric"
            )


def check_image_count(sweep: SweepConfig, model: CheckedModels, captions: int) -> None:
    """Check that Fréchet distances as objectives or constraints have enough images for their covariance.

    Raises:
        ValueError: names the number of images that remain in a jackknife replicate.
    """
    samples = sweep.quality.samples
    largest_block = -(-captions // min(frechet.GROUPS, captions))  # captions that a jackknife replicate leaves out
    remaining = (captions - largest_block) * samples
    for section, name in sweep.named_metrics:
        if section != "metrics" and name in fid.FRECHET_METRICS and remaining <= model.features.width:
            raise ValueError(
                f"{section}: {name} needs more images: {captions} captions x {samples} leave {remaining} in a "
                f"jackknife replicate, too few for a covariance of {model.features.width} features; raise "
                "captions.count"
            )
