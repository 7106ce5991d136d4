"""Shards: names that depend on all that matters and on nothing else, and plans that cover the
captions.
"""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from search_spaces.trial import DecodingConfig
from workers.data.shards import (
    Experiment,
    MeasureTask,
    QualityShard,
    TimingSession,
    digest,
    plan_quality,
    plan_session,
)

ROOT = Path(__file__).parents[3]
SAMPLING = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "cfg": 1.5}
_LANTERN = {
    "drafter": "eagle",
    "tree": {"policy": "chain", "length": 3},
    "acceptance": {"neighbourhood": "additive", "k": 100, "delta": 0.1},
    "sampling": SAMPLING,
}
LANTERN = DecodingConfig.from_mapping(_LANTERN)
VANILLA = DecodingConfig.from_mapping({"sampling": SAMPLING})
EXPERIMENT = Experiment(
    {"target": "ab", "codec": "cd"}, "cafe", 0, {"features": "scenes-features@1"}, "float32"
)
TASK = MeasureTask(LANTERN, ("shards/a",), ("shards/b",), ("shards/c",), ("fid", "speedup"))


def reversed_keys(value: Any) -> Any:
    """The same data with every mapping's keys the other way round."""
    if isinstance(value, dict):
        return {key: reversed_keys(entry) for key, entry in reversed(value.items())}
    return value


def test_names_are_the_same_everywhere() -> None:
    """Written down once: a change of these strands every result that users have."""
    (shard,) = plan_quality(LANTERN, 3, 48, 1, 4)
    timing = plan_session([VANILLA, LANTERN], 3, images=3, batches=[1], repetitions=3)
    assert EXPERIMENT.digest() == "9f29ea44e417e066b415"
    assert shard.name(EXPERIMENT) == "shards/quality-f55cc90ab8cc114c68e2.parquet"
    assert timing.name(EXPERIMENT) == "timings/timing-10f00896da9d8cb2c75f.parquet"
    assert TASK.name() == "measures/a46aa9af9313b1d15bef.json"


def test_names_do_not_depend_on_the_process() -> None:
    code = (
        "from tests.workers.data.test_shards import EXPERIMENT, LANTERN, plan_quality\n"
        "print(plan_quality(LANTERN, 3, 48, 1, 4)[0].name(EXPERIMENT))"
    )
    environment = os.environ | {"PYTHONHASHSEED": "77"}
    said = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env=environment, capture_output=True, check=True
    )
    assert said.stdout.decode().strip() == plan_quality(LANTERN, 3, 48, 1, 4)[0].name(EXPERIMENT)


def test_the_order_of_keys_does_not_matter() -> None:
    turned = Experiment(
        reversed_keys(dict(EXPERIMENT.models)),
        "cafe",
        0,
        reversed_keys(dict(EXPERIMENT.extractors)),
        "float32",
    )
    config = DecodingConfig.from_mapping(reversed_keys(_LANTERN))
    names = [shard.name(turned) for shard in plan_quality(config, 100, 48, 2, 4)]
    assert names == [shard.name(EXPERIMENT) for shard in plan_quality(LANTERN, 100, 48, 2, 4)]
    assert dataclasses.replace(TASK, metrics=("speedup", "fid")).name() == TASK.name()


def test_all_that_matters_moves_the_name() -> None:
    shard = plan_quality(LANTERN, 96, 48, 1, 4)[0]
    timing = plan_session([VANILLA, LANTERN], 96, images=3, batches=[1], repetitions=3)
    vanilla = plan_quality(VANILLA, 96, 48, 1, 4)[0].config
    shards: list[QualityShard | TimingSession] = [
        shard,
        *(
            dataclasses.replace(shard, **change)
            for change in ({"config": vanilla}, {"start": 1}, {"stop": 47}, {"samples": 2})
        ),
        timing,
        *(
            dataclasses.replace(timing, **change)
            for change in (
                {"configs": timing.configs[:1]},
                {"configs": timing.configs[::-1]},
                {"start": 0, "stop": 4},
                {"stop": timing.stop + 1},
                {"batches": (3,)},
                {"repetitions": 4},
                {"precision": 0.02},
                {"number": 1},
            )
        ),
    ]
    others: tuple[dict[str, Any], ...] = (
        {"models": {"target": "ab", "codec": "ce"}},
        {"captions": "beef"},
        {"seed": 1},
        {"extractors": {}},
        {"precision": "bfloat16"},
    )
    experiments = [EXPERIMENT, *(dataclasses.replace(EXPERIMENT, **change) for change in others)]
    names = {each.name(experiment) for each in shards for experiment in experiments}
    assert len(names) == len(shards) * len(experiments)
    changes: tuple[dict[str, Any], ...] = (
        {"config": vanilla}, {"quality": ()}, {"timing": ("shards/a",)}, {"baseline_quality": ()},
        {"metrics": ("fid",)}, {"halfway": False},
    )  # fmt: skip
    assert (
        len({TASK.name(), *(dataclasses.replace(TASK, **change).name() for change in changes)}) == 7
    )


def test_the_batch_does_not_move_the_name_of_images() -> None:
    shard = plan_quality(LANTERN, 96, 48, 1, 4)[0]
    assert dataclasses.replace(shard, batch=1).name(EXPERIMENT) == shard.name(EXPERIMENT)


@pytest.mark.parametrize(
    "piece",
    [
        EXPERIMENT,
        plan_quality(LANTERN, 96, 48, 1, 4)[1],
        plan_session([VANILLA, LANTERN], 96, images=3, batches=[1], repetitions=3),
        TASK,
    ],
)
def test_pieces_survive_the_way_to_a_worker(
    piece: Experiment | QualityShard | TimingSession | MeasureTask,
) -> None:
    sent = json.loads(json.dumps({"kind": piece.kind, **piece.to_mapping()}))
    assert type(piece).from_mapping(sent) == piece
    assert type(piece).from_mapping(piece.to_mapping()) == piece
    other: type[Any] = TimingSession if isinstance(piece, QualityShard) else QualityShard
    with pytest.raises(ValueError, match="not a task of kind"):
        other.from_mapping(sent)
    with pytest.raises(ValueError, match="not a task of kind"):
        type(piece).from_mapping(sent | {"kind": other.kind})
    with pytest.raises(ValueError, match="not a task of kind"):
        type(piece).from_mapping(dict(list(sent.items())[:-1]))


@settings(deadline=None, max_examples=40)
@given(
    count=st.integers(2, 500),
    shard=st.integers(1, 60),
    rungs=st.sets(st.integers(1, 499), max_size=4).map(sorted),
)
def test_a_shard_ends_at_each_rung(count: int, shard: int, rungs: list[int]) -> None:
    rungs = [rung for rung in rungs if rung < count]
    shards = plan_quality(VANILLA, count, shard, 2, 4, rungs)
    assert [position for each in shards for position in range(each.start, each.stop)] == list(
        range(count)
    )
    assert all(each.stop - each.start <= shard for each in shards)
    assert {each.stop for each in shards} >= {*rungs, count}


@settings(deadline=None, max_examples=40)
@given(count=st.integers(1, 500), shard=st.integers(1, 60), samples=st.integers(1, 3))
def test_quality_shards_cover_every_caption_once(count: int, shard: int, samples: int) -> None:
    shards = plan_quality(VANILLA, count, shard, samples, 4)
    assert [position for each in shards for position in range(each.start, each.stop)] == list(
        range(count)
    )
    assert all(each.stop - each.start <= shard for each in shards)
    assert sum(each.images for each in shards) == count * samples


@settings(deadline=None, max_examples=60)
@given(
    count=st.integers(1, 500),
    images=st.integers(1, 9),
    batch=st.integers(1, 5),
    seed=st.integers(0, 99),
)
def test_a_session_is_of_whole_batches_of_the_captions(
    count: int, images: int, batch: int, seed: int
) -> None:
    def plan() -> TimingSession:
        return plan_session(
            [VANILLA], count, images=images, batches=[1, batch], repetitions=3, seed=seed
        )

    size = max(-(-images // batch) * batch, 2 * batch)
    if count < size:
        with pytest.raises(ValueError, match=r"lower timing\.images"):
            plan()
        return
    found = plan()
    assert found == plan()
    assert found.images == size
    assert 0 <= found.start < found.stop <= count


@pytest.mark.parametrize("key", ["seed", "number"])
def test_the_captions_of_a_session_follow_the_seed_and_its_number(key: str) -> None:
    def start(value: int) -> int:
        return plan_session(
            [VANILLA], 1000, images=3, batches=[1], repetitions=3, **{key: value}
        ).start

    assert len({start(value) for value in range(20)}) > 10


@pytest.mark.parametrize(
    ("act", "message"),
    [
        (lambda: plan_quality(VANILLA, 0, 48, 1, 4), "count must be at least 1"),
        (lambda: plan_quality(VANILLA, 9, 0, 1, 4), "shard must be at least 1"),
        (lambda: plan_quality(VANILLA, 9, 3, 0, 4), "samples must be at least 1"),
        (lambda: plan_quality(VANILLA, 9, 3, 1, 0), "batch must be at least 1"),
        (lambda: plan_quality(DecodingConfig(), 9, 3, 1, 1), "has no sampling"),
        (lambda: plan_quality(VANILLA, 9, 3, 1, 1, [9]), "stay below 9"),
        (lambda: plan_quality(VANILLA, 9, 3, 1, 1, [4, 4]), "rungs must rise"),
        (lambda: QualityShard(VANILLA, 3, 3, 1, 1), "is empty"),
        (lambda: TimingSession((VANILLA,), -1, 3, (1,), 1), "starts below 0"),
        (
            lambda: plan_session([VANILLA], 9, images=3, batches=[1], repetitions=0),
            "repetitions must be",
        ),
        (lambda: plan_session([VANILLA], 9, images=3, batches=[0], repetitions=1), "batch must be"),
        (lambda: digest(float("nan")), "not JSON compliant"),
        (lambda: digest({"a": object()}), "no identity"),
    ],
)
def test_what_cannot_be_is_refused(act: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        act()


def test_planning_needs_no_heavy_library() -> None:
    code = (
        "import sys, workers.data.shards, workers.data.storage, workers.data.captions\n"
        "print(sorted({'torch', 'pyarrow'} & set(sys.modules)))"
    )
    said = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, check=True)
    assert said.stdout.decode().strip() == "[]"
