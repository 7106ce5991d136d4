"""Comparisons of fronts: the numbers by hand, and which metrics of which sweeps may be compared at
all.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest

from orchestrator.front.compare import Comparison, cautions, compare, obstacles
from orchestrator.front.joint import JointErrors
from orchestrator.front.pareto import Floats
from orchestrator.store.records import TrialRecord
from tests.fakes.synthetic_sweeps import METRICS, identity
from workers.metrics.definition import Metric
from workers.metrics.estimate import Estimate

AXES = (Metric("speedup", "maximize"), Metric("fid", "minimize"))


Points = Sequence[tuple[float, float]]


def compared(
    groups: Mapping[str, Points], error: float = 0.0, reference: Sequence[float] | None = None
) -> Comparison:
    """The comparison of groups of points, whose fid has an error that all points share, and 1/10 of
    it of its own.
    """
    points = [point for group in groups.values() for point in group]
    shared, own = (np.random.default_rng(0).normal(size=(n, 24)) for n in (1, len(points)))
    replicates = fid_replicates(shared + 0.1 * own, error)
    records = [
        TrialRecord(
            number,
            "",
            "complete",
            None,
            metrics={
                "speedup": Estimate(x, 0.0, 1),
                "fid": Estimate(y, error, 1, tuple(y + replicates[number])),
            },
        )
        for number, (x, y) in enumerate(points)
    ]
    rows = iter(range(len(points)))
    members = {name: [next(rows) for _ in group] for name, group in groups.items()}
    return compare(JointErrors.of(records, AXES), members, AXES, reference)


def fid_replicates(deviations: Floats, error: float) -> Floats:
    """Deviations [n, 24] of replicates, scaled to a jackknife error."""
    centred = deviations - deviations.mean(axis=1, keepdims=True)
    scaled: Floats = (
        centred * error / np.sqrt(23 / 24 * np.square(centred).sum(axis=1, keepdims=True))
    )
    return scaled


def test_numbers_by_hand() -> None:
    found = compared({"a": [(1, 2), (3, 4), (2, 9)], "b": [(2, 4), (4, 6)]}, reference=[0, 10])
    assert found.sizes == {"a": (3, 2), "b": (2, 2)}
    assert found.hypervolumes == {"a": 1 * 8 + 2 * 6, "b": 2 * 6 + 2 * 4}
    assert found.scale == (3, 4)
    (pair,) = found.pairs
    assert pair.coverage == (0.5, 0)
    assert pair.epsilon == pytest.approx((1 / 3, 0.5))
    assert found.hypervolume_errors == {"a": 0, "b": 0}
    assert pair.difference == (0, 0)


def test_errors_of_hypervolumes_by_hand() -> None:
    """One point each: the area's error is the width times the error of fid; what both share cancels
    in the difference (3 % for 1,000 draws).
    """
    found = compared({"a": [(2, 5)], "b": [(2, 6)]}, error=0.1, reference=[0, 10])
    assert found.hypervolume_errors == pytest.approx({"a": 0.2, "b": 0.2}, rel=0.1)
    (pair,) = found.pairs
    assert pair.difference[0] == pytest.approx(2)
    assert 0.005 < pair.difference[1] < 0.06, "independent errors would give 0.28"


def test_the_reference_point_is_common() -> None:
    found = compared({"a": [(1, 2)], "b": [(3, 4)], "c": [(2, 12)]})
    assert found.reference == pytest.approx((0.8, 13))
    assert [(pair.first, pair.second) for pair in found.pairs] == [
        ("a", "b"),
        ("a", "c"),
        ("b", "c"),
    ]


def test_an_empty_group_is_refused() -> None:
    with pytest.raises(ValueError, match="b: no trial was measured in speedup and fid"):
        compared({"a": [(1, 2)], "b": [(float("nan"), 2)]})


OTHER_FEATURES = {"features": "inception 9999", "clip_score": "scenes-clip 3c3c3c3c"}
OTHER_CLIP = {"features": "scenes-features 2d2d2d2d", "clip_score": "openai-clip 7777"}


@pytest.mark.parametrize(
    ("changed", "refused"),
    [
        ({}, set()),
        ({"seed": 9, "experiment": "1" * 20}, set()),
        (
            {"captions": {"count": 192, "hash": "other", "source": "captions.txt"}},
            {"fid", "drift", "clip_score"},
        ),
        (
            {"captions": {"count": 96, "hash": "4b" * 8, "source": "scenes"}},
            {"fid", "drift", "clip_score"},
        ),
        ({"extractors": OTHER_FEATURES}, {"fid", "drift"}),
        ({"extractors": OTHER_CLIP}, {"clip_score"}),
        ({"reference": {"identity": "other", "count": 4096, "source": "photos"}}, {"fid"}),
        ({"target": "llamagen"}, {"drift"}),
        ({"baseline": {"sampling": {"temperature": 0.5}}}, {"drift"}),
    ],
)
def test_what_may_be_compared(changed: dict[str, Any], refused: set[str]) -> None:
    pair = [identity("one"), identity("one", **changed)]
    assert {name for name in METRICS if obstacles(pair, name)} == refused


ELSEWHERE: dict[str, Any] = {
    "device": "cuda",
    "threads": 8,
    "timing": {"batch": 8, "images": 8, "repetitions": 3},
}
HERE: dict[str, Any] = {
    "device": "cpu",
    "threads": 1,
    "timing": {"batch": 1, "images": 3, "repetitions": 3},
}


@pytest.mark.parametrize("key", ["device", "threads", "timing"])
def test_seconds_hold_for_their_machine_and_speedups_get_a_word(key: str) -> None:
    pair = [identity("one", **HERE), identity("two", **HERE | {key: ELSEWHERE[key]})]
    (reason,) = obstacles(pair, "latency")
    what, values = {
        "device": ("devices", "cpu in one against cuda in two"),
        "threads": ("threads", "1 in one against 8 in two"),
        "timing": ("timing batches", "1 in one against 8 in two"),
    }[key]
    assert reason == f"{what}: {values}"
    assert not [name for name in METRICS if name != "latency" and obstacles(pair, name)]
    assert cautions(pair, AXES) == [f"speedup: timed with different {what}, {values}"]
    assert cautions(pair, [Metric("step_compression", "maximize")]) == []
    if key == "threads":  # a GPU has none
        pair[0] = identity("one", **HERE | {"threads": None})
        assert obstacles(pair, "latency") == cautions(pair, AXES) == []


def test_timings_on_named_nodes_are_not_those_of_the_first_worker() -> None:
    named = HERE | {"timing": HERE["timing"] | {"nodes": {"gpu": "a10g"}}}
    pair = [identity("one", **HERE), identity("two", **named)]
    assert obstacles(pair, "latency") == ["devices: cpu in one against gpu=a10g in two"]


def test_other_numbers_of_timed_captions_are_no_matter() -> None:
    fewer = HERE | {"timing": {"batch": 1, "images": 9, "repetitions": 1}}
    pair = [identity("one", **HERE), identity("two", **fewer)]
    assert obstacles(pair, "latency") == cautions(pair, AXES) == []


def test_distances_at_other_numbers_of_images_are_refused() -> None:
    """192 captions each; what has no bias in the number of images, and means over images, can be
    compared.
    """
    metrics = identity("any").to_mapping()["metrics"]
    for name, needs in {
        "fid_debiased": ["features", "reference"],
        "kid": ["features", "reference"],
    }.items():
        metrics[name] = {
            "direction": "minimize",
            "unit": "",
            "about": "",
            "needs": needs,
            "unbiased": True,
        }
    pair = [
        identity("one", samples=1, metrics=metrics),
        identity("two", samples=2, metrics=metrics),
    ]
    assert {name for name in metrics if obstacles(pair, name)} == {"fid", "drift"}
    assert obstacles(pair, "fid") == ["the number of images: 192 in one against 384 in two"]
    pair[1] = identity("two", metrics=metrics)
    assert not [name for name in metrics if obstacles(pair, name)]


def test_reasons_are_words() -> None:
    (reason,) = obstacles([identity("a"), identity("b", extractors=OTHER_FEATURES)], "fid")
    assert (
        reason
        == "the extractor 'features': scenes-features 2d2d2d2d in a against inception 9999 in b"
    )


def test_long_values_that_differ_at_their_end_stay_different() -> None:
    pair = [identity(name, **HERE | {"device": "cpu" * 40 + name}) for name in ("one", "two")]
    (reason,) = obstacles(pair, "latency")
    devices = [
        part.rpartition(" in ")[0] for part in reason.removeprefix("devices: ").split(" against ")
    ]
    assert len(set(devices)) == 2


def test_what_is_worth_a_word() -> None:
    captions = {"count": 8, "hash": "x", "source": "other"}
    pair = [identity("a"), identity("b", target="llamagen", captions=captions, seed=3)]
    words = cautions(pair, [Metric("speedup", "maximize"), Metric("step_compression", "maximize")])
    assert words == [
        "the sweeps' targets differ",
        "the sweeps' seeds differ",
        "speedup and step_compression were measured on different captions",
    ]
    assert cautions([identity("a"), identity("b")], AXES) == []
    others = [identity("a"), identity("b", baseline={"sampling": {"temperature": 1.0, "cfg": 3.5}})]
    (word,) = cautions(others, AXES)
    assert word.startswith("the sweeps' sampling differs, so their baselines do: vanilla ")
    assert word.endswith(",cfg3.5 in b")
