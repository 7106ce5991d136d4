"""Fronts held against each other: whether their metrics may be compared at all, and by how much they differ."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np

from orchestrator.results.fronts import Axis, directions
from orchestrator.results.indicators import additive_epsilon, coverage, hypervolume, reference_point
from orchestrator.results.pareto import Floats, nondominated

SPEED = frozenset(  # for identities that do not say what their metrics need
    {"speedup", "latency", "step_compression", "mean_accepted_length", "mean_tree_depth", "target_passes"}
)
MANIFOLD, MANIFOLDS = "manifold", ("precision", "recall")  # an extractor of their own, where it was given
FEATURES, REFERENCE, BASELINE, TIMINGS, SCORE = "features", "reference", "baseline", "timings", "score."
IN_SECONDS = frozenset({"latency"})  # for identities that do not say what their metrics' units are
ANY_COUNT = frozenset({"fid_debiased", "kid", "precision"})  # of features, yet without a bias in their number
COUNTED = frozenset({"timings", "emitted", "rounds", "depth", "caption_id", "sample"})


@dataclass(frozen=True, slots=True)
class Group:
    """The points [n, m] of a sweep, or of one method in it, under its name in the comparison."""

    name: str
    points: Floats


@dataclass(frozen=True, slots=True)
class Pair:
    """What group `first` has over `second` and the other way about: additive epsilon and coverage."""

    first: str
    second: str
    epsilon: tuple[float, float]
    coverage: tuple[float, float]


@dataclass(frozen=True, slots=True)
class Comparison:
    """reference: the common reference point; scale: the range of each objective over all fronts, epsilon's unit."""

    reference: tuple[float, ...]
    scale: tuple[float, ...]
    sizes: Mapping[str, tuple[int, int]]  # points and front points by group
    hypervolumes: Mapping[str, float]
    pairs: tuple[Pair, ...]


def compare(groups: Sequence[Group], axes: Sequence[Axis], reference: Sequence[float] | None = None) -> Comparison:
    """Hypervolumes with a common reference point, epsilon and coverage of every pair of fronts.

    reference: in the axes' units; by default `reference_point` over the points of all groups.

    Raises:
        ValueError: a group without any measured point.
    """
    ways = directions(axes)
    fronts = {group.name: group.points[nondominated(group.points, ways)] for group in groups}
    if empty := [name for name, front in fronts.items() if not len(front)]:
        raise ValueError(f"{empty[0]}: no trial there was measured in {' and '.join(axis.name for axis in axes)}")
    everything = np.concatenate([group.points for group in groups])
    corner = reference_point(everything, ways) if reference is None else np.array(reference, dtype=np.float64)
    ends = np.concatenate(list(fronts.values()))
    span = ends.max(axis=0) - ends.min(axis=0)
    scale = np.where(span > 0, span, 1.0)
    pairs = [
        Pair(
            a,
            b,
            (additive_epsilon(fronts[a], fronts[b], ways, scale), additive_epsilon(fronts[b], fronts[a], ways, scale)),
            (coverage(fronts[a], fronts[b], ways), coverage(fronts[b], fronts[a], ways)),
        )
        for a, b in combinations(fronts, 2)
    ]
    measured = {group.name: int((~np.isnan(group.points).any(axis=1)).sum()) for group in groups}
    return Comparison(
        reference=tuple(float(value) for value in corner),
        scale=tuple(float(value) for value in scale),
        sizes={name: (measured[name], len(front)) for name, front in fronts.items()},
        hypervolumes={name: hypervolume(front, corner, ways) for name, front in fronts.items()},
        pairs=tuple(pairs),
    )


def obstacles(identities: Sequence[Mapping[str, Any]], metric: str) -> list[str]:
    """Why the sweeps' values of a metric cannot be compared, one clause for each reason; empty if they can.

    Speed metrics can, but for seconds, which need the same device, threads and timing batch. A quality metric needs the
    same captions, the same extractor and, where it refers to them, the same reference images or the same target and
    baseline; what is taken of all features together, such as fid, also the same number of images. Of devices, threads,
    batches and samples, what an identity does not tell is no obstacle.
    """
    needs = _needs(identities, metric)
    if _in_seconds(identities, metric):
        return [f"{what}: {_differing(found)}" for what, found in _circumstances(identities)]
    if needs is not None and needs <= COUNTED:
        return []
    facts: list[tuple[str, list[Any]]] = [("captions", [_captions(identity) for identity in identities])]
    facts += [
        (f"the extractor {name!r}", [(identity.get("extractors") or {}).get(name) for identity in identities])
        for name in _extractors(identities, metric, needs)
    ]
    if needs is None or REFERENCE in needs:
        facts.append(("reference images", [(i.get("reference") or {}).get("identity") for i in identities]))
    if needs is None or BASELINE in needs:
        facts.append(("the target", [identity.get("target") for identity in identities]))
        facts.append(("the baseline's setting", [identity.get("baseline") for identity in identities]))
    if metric not in ANY_COUNT and (needs is None or FEATURES in needs):
        facts.append(("the number of images", _told(_images(identity) for identity in identities)))
    return [f"{what}: {_differing(found)}" for what, found in facts if any(value != found[0] for value in found)]


def cautions(identities: Sequence[Mapping[str, Any]], axes: Sequence[Axis]) -> list[str]:
    """What else differs between sweeps and is worth a word, though it does not forbid the comparison."""
    found = []
    parts = {"targets": "target", "model files": "models", "seeds": "seed", "image sizes": "image_size"}
    for what, key in parts.items():
        if any(identity.get(key) != identities[0].get(key) for identity in identities):
            found.append(f"the sweeps' {what} differ")
    if any(_captions(identity) != _captions(identities[0]) for identity in identities):
        speed = [axis.name for axis in axes if not obstacles(identities, axis.name)]
        if speed:
            found.append(f"{' and '.join(speed)} were measured on different captions")
    ratios = [axis.name for axis in axes if _is_timed(identities, axis.name) and not _in_seconds(identities, axis.name)]
    if ratios:
        for what, values in _circumstances(identities):
            found.append(f"{' and '.join(ratios)}: timed with different {what}, {_differing(values)}")
    return found


def _is_timed(identities: Sequence[Mapping[str, Any]], metric: str) -> bool:
    """Whether the metric is computed from timings, as the identities say, or as its name does."""
    said = [identity["metrics"].get(metric, {}).get("needs") for identity in identities]
    if all(needs is None for needs in said):
        return metric in {"speedup", *IN_SECONDS}
    return any(TIMINGS in needs for needs in said if needs is not None)


def _in_seconds(identities: Sequence[Mapping[str, Any]], metric: str) -> bool:
    """Whether the metric is a time, which holds for its machine alone, and not a ratio of two."""
    units = [str(identity["metrics"].get(metric, {}).get("unit", "")) for identity in identities]
    return _is_timed(identities, metric) and (metric in IN_SECONDS or any(unit.startswith("s") for unit in units))


def _circumstances(identities: Sequence[Mapping[str, Any]]) -> list[tuple[str, list[Any]]]:
    """What timings depend on and the identities that tell of it do not share."""
    facts = {
        "devices": _told(identity.get("device") for identity in identities),
        "threads": _told(identity.get("threads") for identity in identities),
        "timing batches": _told((identity.get("timing") or {}).get("batch") for identity in identities),
    }
    return [(what, found) for what, found in facts.items() if any(value != found[0] for value in found)]


def _images(identity: Mapping[str, Any]) -> int | None:
    """Captions times samples of each; None where the identity does not say."""
    captions, samples = (identity.get("captions") or {}).get("count"), identity.get("samples")
    return captions * samples if isinstance(captions, int) and isinstance(samples, int) else None


def _told(values: Iterable[Any]) -> list[Any]:
    """Those that are known."""
    return [value for value in values if value is not None]


def _needs(identities: Sequence[Mapping[str, Any]], metric: str) -> frozenset[str] | None:
    """What the metric is computed from, as the identities say; None if they do not and it is no speed metric."""
    said = [identity["metrics"].get(metric, {}).get("needs") for identity in identities]
    if all(needs is not None for needs in said):
        return frozenset(need for needs in said for need in needs)
    return frozenset() if metric in SPEED else None


def _extractors(identities: Sequence[Mapping[str, Any]], metric: str, needs: frozenset[str] | None) -> list[str]:
    """The names of the extractors that matter: the features', a score's own, or all if that cannot be told."""
    names = list(dict.fromkeys(name for identity in identities for name in identity.get("extractors") or {}))
    scores = {need.removeprefix(SCORE) for need in needs or () if need.startswith(SCORE)}
    if needs is not None and scores and scores <= set(names) and FEATURES not in needs:
        return sorted(scores)
    if needs is not None and not scores and FEATURES in names:
        return [FEATURES, *([MANIFOLD] if metric in MANIFOLDS and MANIFOLD in names else [])]
    return names


def _captions(identity: Mapping[str, Any]) -> tuple[Any, Any]:
    captions = identity.get("captions") or {}
    return captions.get("hash"), captions.get("count")


def _differing(found: Sequence[Any]) -> str:
    """Short forms of the values that differ."""
    texts = dict.fromkeys(" x ".join(map(str, value)) if isinstance(value, tuple) else str(value) for value in found)
    return " against ".join(text if len(text) <= 60 else text[:57] + "…" for text in texts)
