"""All metrics. Each module of this package may define METRICS; for scores that are read off images, SCORERS; and for
nets that a user gives to measure distances with, EXTRACTORS.

A new metric is one file here and its test; nothing lists them by hand.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import cache
from types import MappingProxyType
from typing import Any

import workers.metrics
from search_spaces.params import unknown_choice
from workers.metrics.estimate import Estimate, MetricUnavailable
from workers.metrics.extractor import ExtractorFactory
from workers.metrics.metric import TIMINGS, Metric, MetricInputs, ScorerFactory


@cache
def registered_metrics() -> Mapping[str, Metric]:
    """Every metric by name.

    Raises:
        ValueError: two modules define one name.
    """
    found: dict[str, Metric] = {}
    for module, metrics in _defined("METRICS"):
        for metric in metrics:
            if metric.name in found:
                raise ValueError(f"{module}: a metric {metric.name!r} is there already; choose another name")
            found[metric.name] = metric
    return MappingProxyType(found)


@cache
def scorers() -> Mapping[str, ScorerFactory]:
    """Every per-image score by name."""
    return MappingProxyType({scorer.name: scorer for _, group in _defined("SCORERS") for scorer in group})


@cache
def extractors() -> Mapping[str, ExtractorFactory]:
    """Every extractor that a user may give a weight file for, by its key."""
    return MappingProxyType({entry.key: entry for _, group in _defined("EXTRACTORS") for entry in group})


def required_inputs(names: Collection[str]) -> set[str]:
    """What any of these metrics needs; names that no metric has need nothing."""
    return {need for name, metric in registered_metrics().items() if name in names for need in metric.needs}


def uses_timings(names: Collection[str]) -> bool:
    """Whether any of these metrics (none: all there are) is read off timings."""
    return not names or TIMINGS in required_inputs(names)


def select_metrics(
    names: Iterable[str] | None, available: Collection[str]
) -> tuple[tuple[Metric, ...], dict[str, str]]:
    """The metrics that are asked for (None: all) and can be had, and for the others what they lack.

    `available`: the columns and other needs that this model, its captions and its reference can serve.

    Raises:
        ValueError: a name that no metric has.
    """
    every = registered_metrics()
    wanted = list(every) if names is None else list(names)
    for name in wanted:
        if name not in every:
            raise ValueError(f"metrics: {unknown_choice(name, tuple(every))}")
    lacking = {name: [need for need in every[name].needs if need not in available] for name in wanted}
    there = tuple(every[name] for name in wanted if not lacking[name])
    return there, {name: f"needs {', '.join(needs)}" for name, needs in lacking.items() if needs}


def measure(evidence: MetricInputs, names: Iterable[str]) -> tuple[dict[str, Estimate], dict[str, str]]:
    """What the evidence gives: estimates by name, and for each metric that it does not suffice for, the reason."""
    estimates: dict[str, Estimate] = {}
    skipped: dict[str, str] = {}
    for name in names:
        try:
            estimates[name] = registered_metrics()[name].compute(evidence)
        except MetricUnavailable as reason:
            skipped[name] = str(reason)
    return estimates, skipped


def _defined(what: str) -> Iterator[tuple[str, tuple[Any, ...]]]:
    for module in sorted(pkgutil.iter_modules(workers.metrics.__path__), key=lambda info: info.name):
        name = f"workers.metrics.{module.name}"
        entries = getattr(importlib.import_module(name), what, ())
        if entries:
            yield name, entries
