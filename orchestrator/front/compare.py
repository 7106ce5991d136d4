"""Comparison of fronts: whether their metrics are comparable, and by how much they differ.

The indicators are hypervolume, additive epsilon and coverage. Points are [n, m] with a direction
for each of m objectives; rows with NaN are ignored.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from orchestrator.errors import QueryError
from orchestrator.front.joint import JointErrors, directions, standard_error
from orchestrator.front.pareto import Floats, costs, nondominated, possible_front
from orchestrator.store.identity import Identity
from orchestrator.store.names import describe
from search_spaces.documents import shorten
from search_spaces.trial import DecodingConfig
from workers.metrics.definition import (
    BASELINE,
    COUNTS,
    FEATURES,
    IMAGES,
    MANIFOLD,
    REFERENCE,
    SCORE_PREFIX,
    TIMINGS,
    Metric,
)

_MAX_VALUE_LENGTH = 60  # in a message
# distance of a reference point from the worst value, as a share of the objective's range
_MARGIN = 0.1


def hypervolume(points: ArrayLike, reference: ArrayLike, directions: Sequence[str]) -> float:
    """The volume that the points dominate, bounded by the reference point [m]; exact, for one to
    three objectives.

    Its unit is the product of the objectives' units. Compare it only with hypervolumes of the same
    reference point. A point that is not better than the reference in every objective adds nothing.

    Raises:
        ValueError: more than three objectives, or a reference point that is not m finite numbers.
    """
    if len(directions) > 3:
        raise ValueError(f"the hypervolume needs one to three objectives, got {len(directions)}")
    corner = costs(np.array(reference, dtype=np.float64).reshape(1, -1), directions)[0]
    if not np.isfinite(corner).all():
        raise ValueError(f"a reference point must be finite, got {list(np.ravel(reference))}")
    cost = _measured(points, directions)
    cost = cost[(cost < corner).all(axis=1)]
    if not len(cost):
        return 0.0
    if len(corner) == 1:
        return float(corner[0] - cost.min())
    if len(corner) == 2:
        return _area(cost, corner)
    return _volume(cost[nondominated(cost, ["minimize"] * 3)], corner)


def sampled_hypervolumes(
    samples: Floats, reference: ArrayLike, directions: Sequence[str]
) -> Floats:
    """The hypervolume [samples] of the front of each sample of [samples, n, m]."""
    candidates = samples[:, possible_front(samples, directions)]
    return np.array([hypervolume(sample, reference, directions) for sample in candidates])


def additive_epsilon(
    a: ArrayLike, b: ArrayLike, directions: Sequence[str], scale: ArrayLike = 1.0
) -> float:
    """The smallest amount by which all of `a` must improve so that every point of `b` is matched by
    one of `a`.

    0 or less: `a` already covers `b`. The same amount is added to every objective, in units of
    `scale` (one number per objective; 1 mixes the objectives' own units). Infinite if only `a` is
    empty, NaN if `b` is.
    """
    first = _measured(a, directions)
    second = _measured(b, directions)
    if not len(second):
        return float("nan")
    if not len(first):
        return float("inf")
    behind = (first[:, None] - second[None]) / np.array(scale, dtype=np.float64)
    return float(behind.max(axis=2).min(axis=0).max())


def coverage(a: ArrayLike, b: ArrayLike, directions: Sequence[str]) -> float:
    """The share of `b`'s points that some point of `a` equals or dominates (the C metric); NaN if
    `b` is empty.

    Not symmetric: coverage(a, b) and coverage(b, a) need not add up to 1.
    """
    first = _measured(a, directions)
    second = _measured(b, directions)
    if not len(second):
        return float("nan")
    if not len(first):
        return 0.0
    return float((first[:, None] <= second[None]).all(axis=2).any(axis=0).mean())


def reference_point(points: ArrayLike, directions: Sequence[str]) -> Floats:
    """A reference point [m] for these points: the worst value of each objective plus a tenth of its
    range, or a tenth of its size if all values are equal. To compare fronts, pass the points of all
    of them.

    Raises:
        ValueError: no point was measured.
    """
    cost = _measured(points, directions)
    if not len(cost):
        raise ValueError(
            "no trial was measured in all of these objectives, so there is no reference point"
        )
    low = cost.min(axis=0)
    high = cost.max(axis=0)
    size = np.where(high > low, high - low, np.maximum(np.abs(high), 1.0))
    signs = np.array([-1.0 if direction == "maximize" else 1.0 for direction in directions])
    beyond: Floats = (high + _MARGIN * size) * signs
    return beyond


def _measured(points: ArrayLike, directions: Sequence[str]) -> Floats:
    cost = costs(points, directions)
    return cost[~np.isnan(cost).any(axis=1)]


def _area(cost: Floats, corner: Floats) -> float:
    """The area between points [n, 2] and the corner: a strip for each, above the best of those to
    its left.
    """
    x, y = cost[np.argsort(cost[:, 0], kind="stable")].T
    least = np.minimum.accumulate(y)
    return float(((corner[0] - x) * (np.concatenate([corner[1:], least[:-1]]) - least)).sum())


def _volume(cost: Floats, corner: Floats) -> float:
    """The volume over a front [n, 3]: slabs along the third objective, each with the area of the
    front below it.
    """
    cost = cost[np.argsort(cost[:, 2], kind="stable")]
    tops = np.append(cost[1:, 2], corner[2])
    volume = 0.0
    for number, top in enumerate(tops):
        if top > cost[number, 2]:
            volume += _area(cost[: number + 1, :2], corner[:2]) * float(top - cost[number, 2])
    return volume


MANIFOLD_METRICS = ("precision", "recall")  # these use the `manifold` extractor if configured
DEFAULT_OBJECTIVES = ("speedup", "fid")  # of a sweep that names fewer than two


@dataclass(frozen=True, slots=True)
class Pair:
    """How far two fronts differ."""

    first: str
    second: str
    epsilon: tuple[float, float]  # additive, of `first` over `second` and of `second` over `first`
    coverage: tuple[float, float]  # of `first` over `second` and of `second` over `first`
    # the first's hypervolume minus the second's, and its standard error
    difference: tuple[float, float]


@dataclass(frozen=True, slots=True)
class Comparison:
    """How far several fronts differ."""

    reference: tuple[float, ...]  # the common reference point
    scale: tuple[float, ...]  # the range of each objective over all fronts, the unit of epsilon
    sizes: Mapping[str, tuple[int, int]]  # points and front points by group
    hypervolumes: Mapping[str, float]
    hypervolume_errors: Mapping[str, float]
    pairs: tuple[Pair, ...]


def compare(
    joint: JointErrors,
    groups: Mapping[str, Sequence[int]],
    metrics: Sequence[Metric],
    reference: Sequence[float] | None = None,
) -> Comparison:
    """Hypervolumes with a common reference point; epsilon and coverage of every pair of fronts.

    Args:
        joint: values of the trials of all groups.
        groups: indices of the trials of each sweep, or of each method in it.
        metrics: those of `joint`.
        reference: by default `reference_point` of the points of all groups.

    Raises:
        ValueError: a group has no measured point.
    """
    toward = directions(metrics)
    points = {name: joint.values[rows] for name, rows in groups.items()}
    fronts = {name: values[nondominated(values, toward)] for name, values in points.items()}
    if empty := [name for name, front in fronts.items() if not len(front)]:
        raise ValueError(
            f"{empty[0]}: no trial was measured in "
            f"{' and '.join(metric.name for metric in metrics)}"
        )
    if reference is None:
        point = reference_point(np.concatenate(list(points.values())), toward)
    else:
        point = np.array(reference, dtype=np.float64)
    front_points = np.concatenate(list(fronts.values()))
    span = front_points.max(axis=0) - front_points.min(axis=0)
    scale = np.where(span > 0, span, 1.0)
    volumes = {name: hypervolume(front, point, toward) for name, front in fronts.items()}
    samples = joint.samples()
    sampled = {
        name: sampled_hypervolumes(samples[:, rows], point, toward) for name, rows in groups.items()
    }
    pairs = []
    for a, b in combinations(fronts, 2):
        ways = (fronts[a], fronts[b]), (fronts[b], fronts[a])
        first, second = (additive_epsilon(*way, toward, scale) for way in ways)
        covers, covered = (coverage(*way, toward) for way in ways)
        difference = volumes[a] - volumes[b], standard_error(sampled[a] - sampled[b])
        pairs.append(Pair(a, b, (first, second), (covers, covered), difference))
    measured = {name: int((~np.isnan(values).any(axis=1)).sum()) for name, values in points.items()}
    return Comparison(
        reference=tuple(point.tolist()),
        scale=tuple(scale.tolist()),
        sizes={name: (measured[name], len(front)) for name, front in fronts.items()},
        hypervolumes=volumes,
        hypervolume_errors={name: standard_error(volume) for name, volume in sampled.items()},
        pairs=tuple(pairs),
    )


def shared_objectives(identities: Sequence[Identity]) -> tuple[list[str], list[str]]:
    """Objectives that all sweeps measure, and a clause on each one that only some do.

    They are the first sweep's, up to three; fewer than two are filled up with the other sweeps' and
    the default ones.

    Raises:
        QueryError: fewer than two.
    """
    first = identities[0]
    names: dict[str, None] = {}
    for identity in identities:
        names |= dict.fromkeys(metric.name for metric in identity.objectives)
    owners = {
        name: [identity.name for identity in identities if name in identity.metrics]
        for name in (*first.metrics, *names)
    }
    shared = [name for name, found in owners.items() if len(found) == len(identities)]
    own = [metric.name for metric in first.objectives if metric.name in shared][:3]
    for name in (*names, *DEFAULT_OBJECTIVES):
        if len(own) < 2 and name in shared and name not in own:
            own.append(name)
    if len(own) < 2:
        problem = (
            "the sweeps have fewer than two objectives in common; choose metrics that all have "
            "with --x and --y"
        )
        raise QueryError(f"{problem}: {', '.join(shared)}")
    only = {name: " and ".join(owners[name]) for name in names if name not in shared}
    return own, [
        f"{name} is not compared: only {sweeps} measured it" for name, sweeps in only.items()
    ]


def require_comparable(identities: Sequence[Identity], metric: str) -> None:
    """Raise QueryError if there are `obstacles`."""
    reasons = obstacles(identities, metric)
    if not reasons:
        return
    shared = [
        name
        for name in identities[0].metrics
        if all(name in identity.metrics for identity in identities)
    ]
    comparable = [name for name in shared if not obstacles(identities, name)]
    fix = "repeat the sweeps under the same conditions"
    if len(comparable) > 1:
        fix = f"choose two of {', '.join(comparable)} with --x and --y, or {fix}"
    differences = "; in ".join(reasons)
    raise QueryError(f"{metric} cannot be compared: the sweeps differ in {differences}; {fix}")


def obstacles(identities: Sequence[Identity], metric: str) -> list[str]:
    """Why the sweeps' values of a metric cannot be compared, one clause for each reason; empty if
    they are comparable.

    Speed metrics can be compared, but times need the same device, threads and timing batch. A
    quality metric needs the same captions, the same extractor and, if it is computed from them, the
    same reference images or the same target and baseline. A statistic of all features, such as fid,
    also needs the same number of images. A missing timing property is no obstacle.
    """
    needs = _needs(identities, metric)
    if _is_time(identities, metric):
        return [
            f"{fact}: {_against(identities, values)}"
            for fact, values in _different_timing(identities)
        ]
    if needs <= COUNTS:
        return []
    facts: dict[str, list[Any]] = {"captions": [_captions(identity) for identity in identities]}
    defined = [identity.metrics[metric] for identity in identities if metric in identity.metrics]
    meanings = [found.meaning for found in defined]
    facts["its definition"] = [meaning["definition"] for meaning in meanings]
    facts["what it is computed from"] = [", ".join(meaning["needs"]) for meaning in meanings]
    for name in _extractors(identities, metric, needs):
        facts[f"the extractor {name!r}"] = [
            identity.extractors.get(name) for identity in identities
        ]
    if REFERENCE in needs:
        facts["reference images"] = [
            (identity.reference or {}).get("identity") for identity in identities
        ]
    if BASELINE in needs:
        facts["the target"] = [identity.target for identity in identities]
        facts["the baseline's setting"] = [identity.baseline for identity in identities]
    if any(found.is_statistic for found in defined):
        facts["the number of images"] = [identity.images for identity in identities]
    return [
        f"{fact}: {_against(identities, values)}"
        for fact, values in facts.items()
        if _differ(values)
    ]


def cautions(identities: Sequence[Identity], metrics: Sequence[Metric]) -> list[str]:
    """Sentences on differences between sweeps that make a comparison uncertain, though it is
    allowed.
    """
    facts = {
        "targets": "target",
        "model files": "models",
        "seeds": "seed",
        "image sizes": "image_size",
    }
    found = [
        f"the sweeps' {name} differ"
        for name, attribute in facts.items()
        if _differ([getattr(identity, attribute) for identity in identities])
    ]
    baselines = [identity.baseline for identity in identities]
    if _differ(baselines):
        found.append(
            "the sweeps' sampling differs, so their baselines do: "
            f"{_against(identities, baselines)}"
        )
    speed = [metric.name for metric in metrics if not obstacles(identities, metric.name)]
    if speed and _differ([identity.caption_set for identity in identities]):
        found.append(f"{' and '.join(speed)} were measured on different captions")
    timed = [metric.name for metric in metrics if TIMINGS in _needs(identities, metric.name)]
    if ratios := [name for name in timed if not _is_time(identities, name)]:
        for fact, values in _different_timing(identities):
            found.append(
                f"{' and '.join(ratios)}: timed with different {fact}, "
                f"{_against(identities, values)}"
            )
    return found


def _needs(identities: Sequence[Identity], metric: str) -> frozenset[str]:
    """What the metric is computed from."""
    found: set[str] = set()
    for identity in identities:
        if metric in identity.metrics:
            found.update(identity.metrics[metric].needs)
    return frozenset(found)


def _is_time(identities: Sequence[Identity], metric: str) -> bool:
    """Whether the metric is a time, which holds for one machine only, rather than a ratio of two
    times.
    """
    return any(
        identity.metrics[metric].is_time for identity in identities if metric in identity.metrics
    )


def _different_timing(identities: Sequence[Identity]) -> list[tuple[str, list[Any]]]:
    """The facts that timings depend on and that differ, among the identities that record them."""
    facts: dict[str, list[Any]] = {
        "devices": [identity.timing_device for identity in identities],
        "threads": [identity.timing_threads for identity in identities],
        "timing batches": [identity.timing_batch for identity in identities],
    }
    recorded = {
        fact: [value for value in values if value is not None] for fact, values in facts.items()
    }
    return [(fact, values) for fact, values in facts.items() if _differ(recorded[fact])]


def _extractors(identities: Sequence[Identity], metric: str, needs: frozenset[str]) -> list[str]:
    """The extractors that the metric depends on: the feature extractor, a score's own, or all if it
    is not recorded.
    """
    if IMAGES in needs:
        return []
    names = list(dict.fromkeys(name for identity in identities for name in identity.extractors))
    scores = {need.removeprefix(SCORE_PREFIX) for need in needs if need.startswith(SCORE_PREFIX)}
    if scores and scores <= set(names) and FEATURES not in needs:
        return sorted(scores)
    columns = [name for name in names if name in needs]
    if scores or not columns:
        return names
    if metric in MANIFOLD_METRICS and MANIFOLD in names:
        columns.append(MANIFOLD)
    return columns


def _captions(identity: Identity) -> str:
    """A sweep's captions in words; the start of their hash tells them from others of the same
    source and number.
    """
    given = identity.captions
    return f"{given.get('count')} of {given.get('source')} ({str(given.get('hash'))[:8]})"


def _differ(values: Sequence[Any]) -> bool:
    return any(value != values[0] for value in values)


def _against(identities: Sequence[Identity], values: Sequence[Any]) -> str:
    """The different values in short, each with the sweeps that have it: `192 in one against 384 in
    two`.
    """
    names: dict[str, list[str]] = {}
    for identity, value in zip(identities, values, strict=True):
        text = describe(value) if isinstance(value, DecodingConfig) else str(value)
        if value is not None:
            names.setdefault(shorten(text, _MAX_VALUE_LENGTH), []).append(identity.name)
    return " against ".join(f"{text} in {' and '.join(found)}" for text, found in names.items())
