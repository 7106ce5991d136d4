"""One worker, three, or two halves: the same trials, the same images, the same numbers."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.fakes.real_sweeps import WITH_FID, Launched, assert_every_image_once, assert_same, files

pytestmark = pytest.mark.slow(seconds=75)
METRICS = ("step_compression", "fid", "drift")
CAPTIONS, HALF = 70, 3


@dataclass(frozen=True)
class Ways:
    """One sweep run in three ways, and the files of the halved one at half-time."""

    one: Launched
    three: Launched
    halves: Launched
    first_half: dict[str, tuple[int, int]]


@pytest.fixture(scope="module")
def ways(ray_files: Path, tmp_path_factory: pytest.TempPathFactory) -> Ways:
    """Two at a time: what they share the machine with must not matter either."""
    folder = tmp_path_factory.mktemp("ways")
    one, three, halves = (Launched(folder / name, WITH_FID, ray_files) for name in ("one", "three", "halves"))
    one.start("--no-mlflow", "--workers", "1")
    halves.run("--no-mlflow", "--workers", "1", "--trials", str(HALF))
    first_half = files(halves.store)
    three.start("--no-mlflow", "--workers", "3")
    halves.run("--no-mlflow", "--workers", "1", "--resume")
    assert [one.ended(), three.ended()] == [0, 0], one.said + three.said
    return Ways(one, three, halves, first_half)


def test_the_sweep_is_a_search_with_fid(ways: Ways) -> None:
    records = ways.one.records
    assert [record.state for record in records] == ["complete"] * 5
    assert records[0].label == "vanilla"
    assert len({record.digest for record in records}) >= 4
    assert all(record.metrics["fid"].value > 0 and record.metrics["fid"].error for record in records)
    assert_every_image_once(ways.one, CAPTIONS)
    assert not list((ways.one.store / "shards").glob("timing-*")), "no metric that is asked for is read off timings"


def test_three_workers_find_what_one_finds(ways: Ways) -> None:
    names = {event["worker"] for event in ways.three.events if event["event"] == "shard"}
    assert len(names) > 1
    assert_same(ways.one, ways.three, METRICS)


def test_two_halves_find_what_one_run_finds(ways: Ways) -> None:
    assert_same(ways.one, ways.halves, METRICS)
    assert sum(name.startswith("trials/") for name in ways.first_half) == HALF
    assert ways.first_half.items() <= files(ways.halves.store).items(), "what the first half wrote was written again"
