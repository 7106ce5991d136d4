"""Racing on Ray: a sweep with two workers that is killed and resumed stops the trials of an undisturbed one."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fakes.real_sweeps import SweepRun, assert_same, ray_folder

pytestmark = pytest.mark.slow(seconds=90)
CAPTIONS, RUNG = 36, 24
RACED = f"""
name: raced
models: WEIGHTS
captions: {{source: scenes, count: {CAPTIONS}, seed: 1}}
reference: {{source: none}}
quality: {{batch: 12, shard: 12}}
sampling: {{temperature: 1.0, top_k: 0, top_p: 1.0, cfg: 1.0}}
metrics: [step_compression, target_passes]
objectives: [step_compression, target_passes]
search: {{sampler: random, parallel: 2, seed: 0}}
racing: {{rungs: [{RUNG}]}}
budget: {{trials: 7}}
enqueue:
  - label: fast
    drafter: eagle
    tree: {{policy: chain, length: 4}}
    acceptance: {{neighbourhood: additive, k: 128, delta: 0.95}}
space:
  drafter: eagle
  tree: {{policy: chain, length: {{low: 1, high: 3}}}}
  acceptance: {{schedule: constant, budget: {{low: 1.0, high: 1.2}}}}
"""


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[SweepRun, SweepRun]]:
    """The same sweep undisturbed in this process, and with two workers on Ray, killed and resumed in this process."""
    folder = tmp_path_factory.mktemp("raced")
    with ray_folder() as ray:
        whole, broken = (SweepRun(Path(folder, name), RACED, ray) for name in ("whole", "broken"))
        whole.folder.mkdir()
        whole.run_locally("--no-mlflow")
        broken.start("--no-mlflow", "--workers", "2")
        broken.wait_for(lambda: broken.count("trial_finished") >= 3)
        broken.process.kill()  # type: ignore[union-attr]
        assert broken.wait() == -signal.SIGKILL
        broken.run_locally("--no-mlflow", "--resume")
        yield whole, broken


def test_the_same_trials_stop(runs: tuple[SweepRun, SweepRun]) -> None:
    whole, broken = runs
    assert_same(whole, broken)
    assert [record.stop for record in whole.records] == [record.stop for record in broken.records]
    stopped = [record for record in whole.records if record.state == "stopped"]
    assert len(stopped) >= 2
    assert {record.images for record in stopped} == {RUNG}
    assert all(record.stop and record.stop.rival == 1 for record in stopped[:1]), "the fast one"
    assert [record.images for record in whole.records[:2]] == [CAPTIONS] * 2


def test_revived_trials_draw_the_rest(runs: tuple[SweepRun, SweepRun]) -> None:
    whole, _ = runs
    before = {record.number: record for record in whole.records if record.state == "stopped"}
    number = next(number for number, record in before.items() if record.duplicate_of is None)
    whole.run_locally("--no-mlflow", "--resume", "--revive", str(number))
    record = whole.records[number]
    assert (record.state, record.images) == ("complete", CAPTIONS)
    assert set(before[number].shards) < set(record.shards)
    assert dict(record.history)[RUNG] == before[number].metrics
