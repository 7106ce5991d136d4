"""`launch --from`: a new sweep takes over what earlier ones generated and learned."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from unittest import mock

import pytest

from benchmarks.sweep_results import images
from orchestrator.front.questions import front_records
from orchestrator.launch.earlier import Earlier
from orchestrator.store.files import EARLIER, EVENTS
from orchestrator.store.records import TrialRecord
from specfrontier import Sweep
from tests.fakes.command_line import CommandResult, specfrontier
from tests.fakes.local_pool import local_launches
from tests.fakes.real_sweeps import CAPTIONS, SWEEP, SweepRun, assert_every_image_once
from workers.data.records import read_shard
from workers.data.storage import Storage

pytestmark = pytest.mark.slow(seconds=60)
WIDER = (
    SWEEP.replace("name: small", "name: wider")
    .replace("length: {low: 2, high: 3}", "length: {low: 2, high: 5}")
    .replace("sampler: nsga2", "sampler: tpe")
    # so that proposals follow from what the search was told
    .replace("population_size: 2", "n_startup_trials: 2")
)


def taken(run: SweepRun) -> dict[str, bool]:
    """Whether each of a sweep's shards was taken over, by name."""
    storage = Storage(run.store)
    names = [f"shards/{name}" for name in storage.names("shards")]
    return {name: "taken_from" in read_shard(storage, name, [])[1] for name in names}


def wider_in(folder: Path, small: SweepRun) -> SweepRun:
    """A sweep of a wider space, of the weights of `small`; not launched."""
    shutil.copytree(small.folder / "weights", folder / "weights")
    return SweepRun(folder, WIDER, models=lambda folder: folder)


@pytest.fixture
def wider(small: SweepRun, tmp_path: Path) -> SweepRun:
    return wider_in(tmp_path, small)


@dataclass(frozen=True)
class Launched:
    """The wider sweep after eight trials, which took over those of `small`."""

    run: SweepRun
    checked: CommandResult  # of `--check` before the launch

    def copy(self, folder: Path) -> SweepRun:
        """One that a test may change."""
        shutil.copytree(self.run.folder, folder, dirs_exist_ok=True)
        return replace(self.run, folder=folder)


@pytest.fixture(scope="module")
def launched(small: SweepRun, tmp_path_factory: pytest.TempPathFactory) -> Launched:
    run = wider_in(tmp_path_factory.mktemp("wider"), small)
    checked = launch(run, "--from", str(small.store), "--check")
    run.run_locally("--no-mlflow", "--from", str(small.store), "--trials", "8")
    return Launched(run, checked)


def test_no_image_is_generated_twice(small: SweepRun, launched: Launched, tmp_path: Path) -> None:
    wider, checked = launched.copy(tmp_path), launched.checked
    assert checked.code == 0, checked.err
    assert re.search(r"of worker time for [\d,]+ images", " ".join(checked.out.split()))
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
    front = {record.digest for record in front_records(Sweep.open(small.store))}
    assert front <= {record.digest for record in wider.records}, (
        "the earlier front is in the new sweep"
    )
    stored = json.loads((wider.store / EARLIER).read_text())
    assert len(wider.records) == 8 + len(stored["front"])
    (source,) = stored["sources"]
    told = {TrialRecord.from_json(record.encode()).digest for record in source["records"]}
    assert told
    assert not told & {record.digest for record in wider.records[len(stored["front"]) + 1 :]}, (
        "they are not run again"
    )
    copied = sum(
        after[name.removeprefix("shards/")].num_rows
        for name, is_taken in taken(wider).items()
        if is_taken
    )
    for text in (
        checked.out,
        *(event["note"] for event in wider.events if "takes over" in event.get("note", "")),
    ):
        assert (
            f"small: {copied} images of {len(front | {wider.records[0].digest})} settings"
            in " ".join(text.split())
        )
        assert f"the search is told {len(told)} trial" in " ".join(text.split())
    assert sum(record.taken for record in wider.records) == copied
    (wider.store / EVENTS).rename(wider.folder / EVENTS)
    for _ in range(2):  # without events, as in a bucket, and with them
        found = json.loads(specfrontier("status", str(wider.store), "--json").out)["taken"]
        assert found == {"sweeps": ["small"], "images": copied, "trials": len(told)}
        assert f"small: {copied} of the images" in specfrontier("status", str(wider.store)).out
        shutil.copy(wider.folder / EVENTS, wider.store / EVENTS)


def test_the_search_proposes_from_what_it_was_told(
    small: SweepRun, wider: SweepRun, launched: Launched
) -> None:
    with mock.patch.object(Earlier, "reported_trials", []):
        wider.run_locally("--no-mlflow", "--from", str(small.store), "--trials", "5")
    first = len(json.loads((wider.store / EARLIER).read_text())["front"]) + 1
    proposed = [
        [record.params for record in run.records[: first + 4]] for run in (launched.run, wider)
    ]
    assert len(proposed[1]) == first + 4
    assert proposed[0][:first] == proposed[1][:first]
    assert proposed[0][first:] != proposed[1][first:]


def test_a_killed_sweep_goes_on_without_the_earlier_one(launched: Launched, tmp_path: Path) -> None:
    """It is the one that an undisturbed launch gives: its search was told the same trials."""
    wider = launched.copy(tmp_path)
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
    for record in wider.records[:-1]:  # the last one is new
        assert sorted(by_setting[record.digest]) == [False] + [True] * (CAPTIONS // 14)
    assert_every_image_once(wider, CAPTIONS + 14)


def test_other_results_are_refused_by_name(
    small: SweepRun, wider: SweepRun, tmp_path: Path
) -> None:
    for options, named in (
        (("--seed", "7"), "seed"),
        (("--from", str(small.store)), "twice"),
        (("--from", str(tmp_path)), f"--from {tmp_path}"),
    ):
        refused = launch(wider, "--from", str(small.store), *options)
        assert (refused.code, named in refused.err) == (2, True), refused.err
    weights = next((wider.folder / "weights").rglob("eagle.safetensors"))
    weights.write_bytes(weights.read_bytes()[:-1] + b"\x01")
    refused = launch(wider, "--from", str(small.store), "--check")
    assert (refused.code, "models.drafters.eagle was" in refused.err) == (2, True), refused.err
    assert not (wider.store / EARLIER).exists()


def launch(run: SweepRun, *options: str) -> CommandResult:
    with local_launches():
        return specfrontier(*run.arguments("--no-mlflow", *options))
