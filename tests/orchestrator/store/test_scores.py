"""Scores of images from a benchmark's tool, as metrics of a trial."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from orchestrator.store.scores import ScoredImage, estimates, score_file, write_scores
from orchestrator.store.sweep import Sweep
from tests.fakes.synthetic_sweeps import write_sweep
from workers.data.prompt_benchmarks import PROMPT_BENCHMARKS
from workers.data.records import read_shard, write_shard
from workers.metrics.estimate import BLOCKS

TAGS = ("colors", "counting", "position")


def scores(captions: int, samples: int, seed: int) -> pa.Table:
    """Correct or not, of captions in the order of a sweep's list; tags of different sizes."""
    rng = np.random.default_rng(seed)
    tag_of = rng.choice(TAGS, captions, p=(0.2, 0.3, 0.5))
    position = np.repeat(np.arange(captions), samples)
    return pa.table(
        {
            "caption_id": rng.permutation(captions)[position],
            "sample": np.tile(np.arange(samples), captions),
            "position": position,
            "group": tag_of[position],
            "score": rng.integers(0, 2, captions * samples).astype(float),
        }
    )


def overall(rows: list[dict[str, float | str]]) -> float:
    """As GenEval's summary_scores.py: the mean over tags of the mean over images."""
    by_tag: dict[object, list[float]] = {}
    for row in rows:
        by_tag.setdefault(row["group"], []).append(float(row["score"]))
    return sum(sum(own) / len(own) for own in by_tag.values()) / len(by_tag)


def test_the_value_is_the_mean_over_tags_with_a_brute_force_jackknife() -> None:
    table = scores(captions=90, samples=3, seed=0)
    rows = table.to_pylist()
    found = estimates("geneval", table)
    assert set(found) == {"geneval", *(f"geneval_{tag}" for tag in TAGS)}
    left_out = [
        overall([row for row in rows if row["position"] % BLOCKS != block])
        for block in range(BLOCKS)
    ]
    spread = sum((value - sum(left_out) / BLOCKS) ** 2 for value in left_out)
    value = found["geneval"]
    assert value.value == pytest.approx(overall(rows))
    assert value.error == pytest.approx(math.sqrt((BLOCKS - 1) / BLOCKS * spread))
    assert value.replicates == pytest.approx(left_out)
    assert value.n == 270
    own = [row for row in rows if row["group"] == "counting"]
    assert found["geneval_counting"].value == pytest.approx(overall(own))
    assert found["geneval_counting"].n == len(own)


def test_the_error_is_that_of_other_prompts() -> None:
    """The mean square of the errors is the variance of the values over independent sets of prompts,
    within a third: of 200 sets, a variance has a relative standard error of a tenth.
    """
    found = [estimates("geneval", scores(120, 4, seed))["geneval"] for seed in range(200)]
    variance = np.var([entry.value for entry in found], ddof=1)
    assert np.mean([entry.error**2 for entry in found]) == pytest.approx(variance, rel=0.33)


def test_a_tag_in_one_block_has_no_error() -> None:
    table = scores(captions=60, samples=1, seed=1)
    rare = np.array(table["group"].to_pylist())
    rare[:] = np.where(np.arange(60) == 7, "colors", "position")
    found = estimates("geneval", table.set_column(3, "group", pa.array(rare)))
    assert found["geneval_position"].known_error is not None
    assert found["geneval_colors"].known_error is None
    assert found["geneval"].known_error is None
    assert found["geneval"].value == pytest.approx(
        (found["geneval_position"].value + found["geneval_colors"].value) / 2
    )


def test_a_benchmark_without_groups_has_one_value() -> None:
    table = scores(captions=50, samples=2, seed=2)
    plain = table.set_column(3, "group", pa.array([""] * table.num_rows))
    assert list(estimates("dpg_bench", plain)) == ["dpg_bench"]


@pytest.mark.parametrize(
    ("column", "value", "problem"),
    [
        ("score", pa.array([1.5, 0.0]), "scores must be from 0 to 1"),
        ("score", pa.array([math.nan, 0.0]), "scores must be from 0 to 1"),
        ("score", pa.array(["1", "0"]), "other columns"),
        ("position", pa.array([None, 0], pa.int64()), "other columns"),
        ("group", pa.array(["<b>", "colors"]), "must be a metric's name"),
        ("score", None, "other columns"),
    ],
)
def test_a_foreign_file_is_named(tmp_path: Path, column: str, value: Any, problem: str) -> None:
    """In a sweep that somebody gave, the file may have any content."""
    record = write_sweep(tmp_path, trials=3, shards=True)[2]
    storage, benchmark = Sweep.open(tmp_path).storage, PROMPT_BENCHMARKS["geneval"]
    rows = [ScoredImage(0, 0, 0, "colors", 1.0), ScoredImage(1, 0, 1, "colors", 0.0)]
    write_scores(storage, benchmark, record, rows)
    assert Sweep.open(tmp_path).records[2].metrics["geneval_colors"].value == 0.5
    name = score_file(benchmark, record)
    table, metadata = read_shard(storage, name)
    place = table.column_names.index(column)
    table = table.remove_column(place)
    if value is not None:
        table = table.add_column(place, column, value)
    write_shard(storage, name, table, metadata)
    with pytest.raises(ValueError, match=rf"{name}: not scores of images \({problem}"):
        Sweep.open(tmp_path)
