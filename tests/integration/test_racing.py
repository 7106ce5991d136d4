"""The replay sampler and racing on real workers: a sweep that is cut off at every stage runs the
trials of a whole one.

`whole` runs undisturbed with one worker in this process. `broken` is interrupted in this process
while its pool is predicted and between two rungs, then killed on Ray with two workers while it
proposes, and then ends here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow.parquet as pq
import pytest

from orchestrator.errors import INTERRUPTED, WRONG_USAGE
from orchestrator.run.racing import EarlyStopping
from tests.fakes.command_line import error_of, specfrontier
from tests.fakes.local_pool import local_launches
from tests.fakes.real_sweeps import SweepRun, assert_same, ray_folder
from workers.data.shards import PREDICTIONS
from workers.replay.replayer import Replayer

pytestmark = pytest.mark.slow(seconds=90)
CAPTIONS, RUNG, TRIALS, STARTUP = 36, 24, 9, 3
RACED = f"""
name: raced
models: WEIGHTS
captions: {{source: scenes, count: {CAPTIONS}, seed: 1}}
reference: {{source: none}}
quality: {{batch: 12, shard: 12}}
sampling: {{temperature: 1.0, top_k: 0, top_p: 1.0, cfg: 1.0}}
metrics: [step_compression, target_passes]
objectives: [step_compression, target_passes]
search: {{sampler: replay, parallel: 2, options: {{pool: 24, captions: 3, startup: {STARTUP}, samples: 16}}}}
racing: {{rungs: [{RUNG}]}}
budget: {{trials: {TRIALS}}}
enqueue:
  - label: fast
    drafter: eagle
    tree: {{policy: chain, length: 4}}
    acceptance: {{neighbourhood: additive, k: 128, delta: 0.95}}
space:
  drafter: eagle
  tree: [{{policy: chain, length: {{low: 1, high: 4}}}}, {{policy: dynamic, depth: 2, width: 2, nodes: 3}}]
  acceptance: {{schedule: constant, budget: {{low: 1.0, high: 3.0}}}}
"""


@contextmanager
def interrupted(owner: Any, function: str, calls: int) -> Iterator[None]:
    """While the block runs, the function is interrupted when it is called for the last of `calls`
    times.
    """
    real: Callable[..., Any] = getattr(owner, function)
    left = iter(range(calls - 1))

    def call(*arguments: Any, **options: Any) -> Any:
        if next(left, None) is None:
            raise KeyboardInterrupt
        return real(*arguments, **options)

    with mock.patch.object(owner, function, call), local_launches():
        yield


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[SweepRun, SweepRun]]:
    folder = tmp_path_factory.mktemp("raced")
    with ray_folder() as ray:
        whole, broken = (SweepRun(Path(folder, name), RACED, ray) for name in ("whole", "broken"))
        whole.run_locally("--no-mlflow")
        resume = broken.arguments("--no-mlflow", "--resume")
        with interrupted(Replayer, "predict", 9):
            assert specfrontier(*resume).code == INTERRUPTED
        assert not (broken.store / PREDICTIONS).exists()
        with interrupted(EarlyStopping, "decide", 3):
            assert specfrontier(*resume).code == INTERRUPTED
        assert broken.count("shard") > broken.count("trial_finished") == 2
        broken.start("--no-mlflow", "--resume", "--workers", "2")
        # so a model proposes the next one
        broken.kill_when(lambda: broken.count("trial_finished", new=True) > STARTUP)
        assert len(broken.records) < TRIALS
        broken.run_locally("--no-mlflow", "--resume")
        yield whole, broken


def test_the_same_trials_run_and_stop(runs: tuple[SweepRun, SweepRun]) -> None:
    whole, broken = runs
    assert_same(whole, broken)
    assert [record.stop for record in whole.records] == [record.stop for record in broken.records]
    assert len({record.digest for record in whole.records}) == TRIALS, "no setting twice"
    stopped = [record for record in whole.records if record.state == "stopped"]
    assert len(stopped) >= 3
    assert {record.images for record in stopped} == {RUNG}
    assert all(record.stop and record.stop.rival == 1 for record in stopped[:1]), "the fast one"
    assert [record.images for record in whole.records[:2]] == [CAPTIONS] * 2


def test_the_pool_is_the_same(runs: tuple[SweepRun, SweepRun]) -> None:
    first, second = (pool_of(run) for run in runs)
    assert first == second
    assert len(first) > TRIALS


def test_revived_trials_draw_the_rest(runs: tuple[SweepRun, SweepRun]) -> None:
    whole, _ = runs
    before = {record.number: record for record in whole.records if record.state == "stopped"}
    number = next(number for number, record in before.items() if record.duplicate_of is None)
    whole.run_locally("--no-mlflow", "--resume", "--revive", str(number))
    record = whole.records[number]
    assert (record.state, record.images) == ("complete", CAPTIONS)
    assert set(before[number].shards) < set(record.shards)
    assert dict(record.history)[RUNG] == before[number].metrics


def test_a_damaged_pool_is_named(runs: tuple[SweepRun, SweepRun]) -> None:
    _, broken = runs
    file = broken.store / PREDICTIONS
    intact = file.read_bytes()
    file.write_bytes(b"damaged")
    with local_launches():
        error = error_of(
            *broken.arguments("--no-mlflow", "--resume", "--trials", "10"), code=WRONG_USAGE
        )
    file.write_bytes(intact)
    assert f"Error: {file}" in error


def pool_of(run: SweepRun) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = pq.read_table(run.store / PREDICTIONS).to_pylist()
    return rows
