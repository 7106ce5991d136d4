"""All metrics, scores and feature extractors: those of this package and those that plugins
register.

A new metric is one module in this package, or a plugin, that uses `register_metric` (metric.py),
`register_score` or `register_extractor` (networks.py) when it is imported. Nothing else lists it:
models.yaml accepts its keys, preflight and doctor check its files, and sweeps compute it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from search_spaces.params import unknown_choice
from search_spaces.plugins import PluginNames
from workers.metrics.definition import SCORE_PREFIX, TIMINGS
from workers.metrics.estimate import Estimate, MetricUnavailable
from workers.metrics.metric import METRICS, ComputedMetric, MetricInputs
from workers.metrics.networks import EXTRACTORS, SCORERS


def weight_keys(metrics: Collection[str] = ()) -> PluginNames:
    """Keys under `metrics` of a models.yaml entry that are read to compute these metrics (default:
    all metrics).
    """
    needed = required_inputs(metrics or METRICS.all())
    scorers = [scorer for name, scorer in SCORERS.all().items() if SCORE_PREFIX + name in needed]
    return PluginNames(
        dict.fromkeys(
            [*EXTRACTORS.all(), *(key for scorer in scorers for key in scorer.weight_keys)]
        )
    )


def required_inputs(names: Collection[str]) -> set[str]:
    """The union of these metrics' needs; unknown names have none."""
    metrics = METRICS.all()
    needs: set[str] = set()
    for name in names:
        if name in metrics:
            needs.update(metrics[name].needs)
    return needs


def uses_timings(names: Collection[str]) -> bool:
    """Whether any of these metrics (default: all) is computed from timings."""
    return not names or TIMINGS in required_inputs(names)


def select_metrics(
    names: Iterable[str] | None,
    available: Collection[str],
    metrics: Mapping[str, ComputedMetric] | None = None,
) -> tuple[tuple[ComputedMetric, ...], dict[str, str]]:
    """The requested metrics (None: all) that are available, and what each of the others needs.

    Args:
        names: names of the requested metrics; None: all.
        available: the columns and other inputs that this model, its captions and its reference
            provide.
        metrics: the metrics that exist, by default all that are registered.

    Raises:
        ValueError: no metric has that name.
    """
    metrics = METRICS.all() if metrics is None else metrics
    requested = list(metrics) if names is None else list(names)
    for name in requested:
        if name not in metrics:
            raise ValueError(f"metrics: {unknown_choice(name, metrics)}")
    missing = {
        name: [need for need in metrics[name].needs if need not in available] for name in requested
    }
    selected = tuple(metrics[name] for name in requested if not missing[name])
    return selected, {name: f"needs {', '.join(needs)}" for name, needs in missing.items() if needs}


def compute_metrics(
    inputs: MetricInputs, names: Iterable[str], metrics: Mapping[str, ComputedMetric] | None = None
) -> tuple[dict[str, Estimate], dict[str, str]]:
    """Estimates by metric, and for each metric that the inputs do not suffice for, the reason.

    Args:
        inputs: the data of a trial.
        names: names of the metrics to compute.
        metrics: the metrics that exist, by default all that are registered.

    Raises:
        TypeError: a metric's function does not return an Estimate.
    """
    estimates: dict[str, Estimate] = {}
    skipped: dict[str, str] = {}
    metrics = METRICS.all() if metrics is None else metrics
    for name in names:
        try:
            estimates[name] = estimate = metrics[name].compute(inputs)
            if not isinstance(estimate, Estimate):
                raise TypeError(
                    f"the metric {name!r} must return an Estimate, got {type(estimate).__name__}"
                )
        except MetricUnavailable as reason:
            skipped[name] = str(reason)
    return estimates, skipped
