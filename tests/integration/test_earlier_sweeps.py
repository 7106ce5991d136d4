"""`launch --from`: a new sweep takes over what earlier ones generated and learned."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from benchmarks.sweep_results import images
from orchestrator.results.store import EARLIER
from specfrontier import Sweep
from tests.fakes.command_line import CommandResult, specfrontier
from tests.fakes.local_pool import local_launches
from tests.fakes.real_sweeps import CAPTIONS, SWEEP, SweepRun, assert_every_image_once
from workers.data.records import read_shard
from workers.data.storage import Storage

pytestmark = pytest.mark.slow(seconds=60)
WIDER = SWEEP.replace("name: small", "name: wider").replace("length: {low: 2, high: 3}", "length: {low: 2, high: 5}")


def taken(run: SweepRun) -> dict[str, bool]:
    """Whether each of a sweep's shards was taken over, by name."""
    storage = Storage(run.store)
    names = [f"shards/{name}" for name in storage.names("shards")]
    return {name: "taken_from" in read_shard(storage, name, [])[1] for name in names}


@pytest.fixture
def wider(small: SweepRun, tmp_path: Path) -> SweepRun:
    """A sweep of a wider space, of the weights of `small`; not launched."""
    shutil.copytree(small.folder / "weights", tmp_path / "weights")
    return SweepRun(tmp_path, WIDER, models=lambda folder: folder)


def test_no_image_is_generated_twice(small: SweepRun, wider: SweepRun) -> None:
    wider.run_locally("--no-mlflow", "--from", str(small.store), "--trials", "8")
    before = images(small.store)
    known = {table.schema.metadata[b"setting"].decode() for table in before.values()}
    for name, is_taken in taken(wider).items():
        _, metadata = read_shard(Storage(wider.store), name, [])
        assert is_taken == (metadata["setting"] in known), name
    assert sum(taken(wider).values()) >= len(before) / 2
    after = images(wider.store)
    for name in before.keys() & after.keys():
        assert before[name].to_pylist() == after[name].to_pylist()
    assert_every_image_once(wider, CAPTIONS)
    front = {record.digest for record in Sweep.open(small.store).front_records}
    assert front <= {record.digest for record in wider.records}, "the earlier front is in the new sweep"
    assert len(wider.records) == 8 + len(json.loads((wider.store / EARLIER).read_text())["front"])


def test_a_killed_sweep_goes_on_without_the_earlier_one(small: SweepRun, wider: SweepRun) -> None:
    """It is the one that an undisturbed launch gives: its search was told the same trials."""
    wider.run_locally("--no-mlflow", "--from", str(small.store), "--trials", "8")
    whole = {record.number: record.config for record in wider.records}
    for file in sorted((wider.store / "trials").glob("*.json"))[3:]:
        file.unlink()
    kept = {name for record in wider.records for name in record.shards}
    for name in list(taken(wider))[::2]:
        if name not in kept:
            (wider.store / name).unlink()
    refused = launch(wider, "--resume", "--from", str(wider.folder))
    assert refused.code == 2
    assert "--from" in refused.err
    wider.run_locally("--no-mlflow", "--resume", "--trials", "8")
    assert {record.number: record.config for record in wider.records} == whole
    assert_every_image_once(wider, CAPTIONS)


def test_more_captions_generate_the_others_alone(small: SweepRun, wider: SweepRun) -> None:
    wider.text = WIDER.replace(f"count: {CAPTIONS}", f"count: {CAPTIONS + 14}")
    wider.run_locally("--no-mlflow", "--from", str(small.store), "--trials", "2")
    by_setting: dict[str, list[bool]] = {}
    for name, is_taken in taken(wider).items():
        _, metadata = read_shard(Storage(wider.store), name, [])
        by_setting.setdefault(metadata["setting"], []).append(is_taken)
    vanilla = wider.records[0].digest
    assert sorted(by_setting[vanilla]) == [False] + [True] * (CAPTIONS // 14)
    assert_every_image_once(wider, CAPTIONS + 14)


def test_other_results_are_refused_by_name(small: SweepRun, wider: SweepRun, tmp_path: Path) -> None:
    for options, named in (
        (("--seed", "7"), "seed"),
        (("--from", str(small.store)), "twice"),
        (("--from", str(tmp_path)), str(tmp_path)),
    ):
        refused = launch(wider, "--from", str(small.store), *options)
        assert (refused.code, named in refused.err) == (2, True), refused.err
    assert not (wider.store / EARLIER).exists()


def launch(run: SweepRun, *options: str) -> CommandResult:
    with local_launches():
        return specfrontier(*run.arguments("--no-mlflow", *options))
