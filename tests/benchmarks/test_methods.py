"""The benchmark of presets: targets that lack drafters, and the table of two targets, on made-up
results.
"""

from __future__ import annotations

import json
import random
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks.methods import quality_row, split_by_drafter, table
from benchmarks.methods_compared import (
    FIGURES,
    compared_table,
    not_compared,
    rank_correlations,
    read_results,
)
from benchmarks.quality import Quality
from search_spaces.presets import CATALOGUE, PRESETS
from workers.loading.models_yaml import load_folder
from workers.metrics.estimate import Estimate


def test_presets_whose_drafter_is_missing_are_left_out() -> None:
    models = load_folder()
    presets = {name: PRESETS[name] for name in CATALOGUE}
    assert split_by_drafter(models, presets) == (presets, {})
    fewer = replace(models, drafters={"eagle": models.drafters["eagle"]})
    found, missing = split_by_drafter(fewer, presets)
    assert {*found, *missing} == {*presets}
    assert {"vanilla", "sjd", "eagle1", "lantern"} <= {*found}
    assert missing["speculative"] == "independent"
    assert missing["flashar"] == "vertical"


def test_images_without_scores_have_a_row() -> None:
    value = Estimate(1.0, 0.5, 48)
    row = quality_row(Quality(fid=value, drift=None, gain=None, scores={}))
    assert row == {"fid": [1.0, 0.5]}
    assert "1.00 ± 0.50" in table({"vanilla": {"quality": row}})


def results(path: Path, speeds: dict[str, float], drift: float, **facts: Any) -> Path:
    rows = {
        name: {
            "batch_1": {"speedup": speed, "passes": 100 / speed, "mean_accepted_length": speed},
            "quality": {"drift": [drift * speed, 0.1], "fid_minus_vanilla": [speed, 0.5]},
        }
        for name, speed in speeds.items()
    }
    machine = {"threads": 1, "torch": "2"}
    path.write_text(
        json.dumps({"machine": machine, "sampling": "cfg 1.5", **facts, "rows": rows}), "utf-8"
    )
    return path


def test_two_targets_stand_side_by_side(tmp_path: Path) -> None:
    speeds = {"eagle1": 1.5, "sjd": 1.0, "lantern": 3.0, "cool": 2.0}
    first = read_results(results(tmp_path / "a.json", {**speeds, "gsd": 1.1}, 2.0))
    second = read_results(
        results(tmp_path / "b.json", {**speeds, "lantern": 9.0}, 5.0, models="runs/emoji")
    )
    assert first.lossless_drift == pytest.approx(2.0 * 1.25), "of eagle1 and sjd"
    text = compared_table(first, second)
    rows = {line.split("`")[1]: line for line in text.splitlines() if line.startswith("| `")}
    assert rows.keys() == speeds.keys()
    assert (
        "| 3.00 / 9.00 | – / – | 33 / 11 | 3.00 / 9.00 | 6.0 / 18.0 | 2.4 / 7.2 |"
        in (rows["lantern"])
    )
    ranks = rank_correlations(first, second)
    assert ranks.keys() == FIGURES.keys() - {"speed-up, batch 8"}
    assert all(count == 4 for _, count in ranks.values())
    assert [value for value, _ in ranks.values()] == pytest.approx([1] * len(ranks))
    notes = "\n".join(not_compared(first, second))
    assert "measured on builtin only: gsd" in notes
    assert "speed-ups with reserve" not in notes
    other = read_results(results(tmp_path / "c.json", speeds, 1.0, sampling="cfg 3"))
    assert "sampling (cfg 1.5, cfg 3)" in "\n".join(not_compared(first, other))


def test_rank_correlations_are_spearmans(tmp_path: Path) -> None:
    """1 - 6 sum d² / (n (n² - 1)) without ties; with equal values for all presets there is none."""
    names = [name for name in CATALOGUE if name != "vanilla"][:9]
    shuffled = random.Random(0).sample(range(1, 10), 9)
    pair = [
        read_results(
            results(tmp_path / f"{order[0]}.json", dict(zip(names, order, strict=True)), 1.0)
        )
        for order in (list(range(1, 10)), shuffled)
    ]
    expected = 1 - 6 * sum((a + 1 - b) ** 2 for a, b in enumerate(shuffled)) / (9 * 80)
    value, count = rank_correlations(*pair)["speed-up, batch 1"]
    assert value == pytest.approx(expected)
    assert count == 9
    equal = read_results(results(tmp_path / "equal.json", dict.fromkeys(names, 2.0), 1.0))
    assert rank_correlations(pair[0], equal) == {}


def test_the_page_has_the_figures_of_both_targets() -> None:
    root = Path(__file__).parents[2]
    page = (root / "docs" / "your_own_images.md").read_text("utf-8")
    names = ("methods.json", "methods_emoji.json")
    both = [read_results(root / "benchmarks" / "results" / name) for name in names]
    rows = re.findall(r"^\| `(\w+)` \| (.*), (.*) \| (.*), (.*) \|$", page, re.MULTILINE)
    assert len(rows) > 10
    for name, *shown in rows:
        timed = [target.rows[name]["batch_1"] for target in both]
        keys = ("mean_accepted_length", "speedup")
        assert shown == [f"{row[key]:.2f}" for key in keys for row in timed], name
    ranks = rank_correlations(*both)
    for figure in ("accepted length", "speed-up, batch 1"):
        value, count = ranks[figure]
        assert f"{value:.2f}" in page
        assert f"over {count} presets" in page
