"""`doctor --plan`: what a sweep times, and the memory that it takes for that."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from orchestrator.store.sweep import Sweep
from tests.fakes.command_line import specfrontier
from tests.fakes.real_sweeps import SweepRun
from workers.data.records import read_shard

pytestmark = pytest.mark.usefixtures("equal_dry_runs_once")

TIMED = """\
name: timed
models: WEIGHTS
captions: {source: scenes, count: 16, seed: 1}
reference: {source: none}
quality: {batch: 16, shard: 16}
timing: {batch: [2, 3], images: 4, repetitions: 2, precision: 0}
metrics: [speedup]
objectives: [speedup, step_compression]
search: {sampler: grid}
enqueue: [vanilla, {drafter: eagle, tree: {policy: chain, length: 2}}]
budget: {trials: 5}
space: {drafter: eagle, tree: {policy: chain, length: {low: 2, high: 4}}}
"""

LARGE = """\
name: large
models: {name: lumina-mgpt-7b-768}
captions: {source: scenes, count: 100}
quality: {batch: 1, shard: 1}
budget: {trials: 5}
space: {drafter: eagle, tree: {policy: chain, length: LENGTHS}}
"""


def planned(folder: Path, text: str, *words: str) -> dict[str, Any]:
    """The findings on a sweep that fits."""
    (folder / "space.yaml").write_text(text)
    found = specfrontier("doctor", "--plan", str(folder / "space.yaml"), "--json", *words)
    assert found.code == 0, found.err
    plan: dict[str, Any] = found.json
    return plan


def test_a_plan_counts_the_images_that_the_sweep_times(tmp_path: Path) -> None:
    """Of all batch sizes, rounded up to whole batches; of the last sessions, as many as the front
    has shapes.
    """
    run = SweepRun(tmp_path, TIMED)
    run.run_locally("--no-mlflow")
    found, sweep = planned(tmp_path, (tmp_path / "space.yaml").read_text()), Sweep.open(run.store)
    own = {
        name for record in sweep.records for name in record.shards if name.startswith("timings/")
    }
    images, sizes = Counter[bool](), Counter[bool]()
    for name in sweep.storage.names("timings"):
        table, facts = read_shard(sweep.storage, f"timings/{name}", fix="")
        images[f"timings/{name}" in own] += sum(table.column("batch").to_pylist())
        sizes[f"timings/{name}" in own] += len(facts["configs"])
    each = 2 * 2 * 6  # batch sizes, repetitions, images rounded up to a multiple of 2 and 3
    assert sizes[True] == 2 + 3 + 2, (
        "vanilla with the enqueued chain, then two others, the first beside it"
    )
    assert images[True] == each * sizes[True]
    assert images[False] == each * sizes[False] > 0
    assert found["images"]["timing"] == each * (7 + 4), "if all three are on the front"
    assert images.total() <= found["images"]["timing"]


def test_a_plan_takes_the_batch_that_fits(tmp_path: Path) -> None:
    """With `quality.batch: auto`: the largest power of two, whose next one does not fit; at most a
    shard's images.
    """
    text = LARGE.replace("LENGTHS", "6").replace("lumina-mgpt-7b-768", "llamagen-xl-stage1")
    large, small, least = (
        planned(
            tmp_path,
            text.replace(
                "quality: {batch: 1, shard: 1}", f"quality: {{batch: auto, shard: {shard}}}"
            ),
            "--gpu-memory",
            memory,
        )
        for shard, memory in ((96, "80"), (96, "24"), (5, "24"))
    )
    assert (large["batches"]["quality"], least["batches"]["quality"]) == (96, 5)
    batch = small["batches"]["quality"]
    assert batch <= small["largest batch"] < 2 * batch
    assert batch in (8, 16, 32, 64)


def test_a_batch_has_no_more_images_than_a_trial(tmp_path: Path) -> None:
    text = LARGE.replace("LENGTHS", "6").replace("lumina-mgpt-7b-768", "llamagen-xl-stage1")
    text = text.replace(
        "quality: {batch: 1, shard: 1}", "quality: {batch: 96, shard: 96, samples: 2}"
    )
    found = planned(tmp_path, text.replace("count: 100", "count: 8"), "--gpu-memory", "80")
    assert found["batches"]["quality"] == 16


def test_images_are_decoded_in_as_many_parts_as_the_memory_asks_for(tmp_path: Path) -> None:
    """As workers do when it runs out: pixels of a whole shard at once would take 32 GiB."""
    text = LARGE.replace("LENGTHS", "6").replace("lumina-mgpt-7b-768", "llamagen-xl-stage2")
    text = text.replace("shard: 1", "shard: 64")
    small, large = (planned(tmp_path, text, "--gpu-memory", memory) for memory in ("24", "80"))
    assert large["batches"]["pictures"] == 64
    assert 1 <= small["batches"]["pictures"] < 64
    assert small["memory"]["quality"]["total"] <= 23 * 2**30 < large["memory"]["quality"]["total"]
    assert small["largest batch"] < large["largest batch"]


def test_settings_of_a_session_share_the_memory(tmp_path: Path) -> None:
    """Each keeps its cache and graphs while others take their turns; without room for all, shapes
    are timed alone.
    """
    one, four = (
        planned(tmp_path, LARGE.replace("LENGTHS", lengths), "--gpus", "1")
        for lengths in ("6", "{low: 3, high: 6}")
    )
    assert [entry["timing sessions"]["settings of the largest"] for entry in (one, four)] == [2, 5]
    few, many = one["memory"]["timing"], four["memory"]["timing"]
    assert many["cache"] == 2.5 * few["cache"]
    assert many["graphs"] == 2.5 * few["graphs"]
    assert few["cache"] > 2 * 2**30
    room = (few["total"] + many["total"]) / 2 / 2**30 + 1
    tight = planned(
        tmp_path, LARGE.replace("LENGTHS", "{low: 3, high: 6}"), "--gpu-memory", f"{room:.2f}"
    )
    assert any("5 settings do not fit a timing session" in line for line in tight["assumed"])
    assert not any("do not fit" in line for line in four["assumed"])
