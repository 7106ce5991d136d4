"""The build: what waits for what, who hears of a failure, and files that cannot be read."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from orchestrator.cluster.tasks import SWEEP, SweepError, Task, TaskResult
from orchestrator.run.build import Build
from orchestrator.store.events import Event, Phase, Shard
from workers.data.records import write_shard
from workers.data.storage import Storage

REFERENCE = Task("reference", {"kind": "reference"}, about="reading")
POOL = Task("pool", {"kind": "predict"}, about="predicting")
IMAGES, OTHER = (Task(f"shards/quality-{name}", {"kind": "quality"}) for name in "ab")
TIMING = Task("timings/timing-a", {"kind": "timing"})


def measurement(name: str, *needs: Task) -> Task:
    return Task(f"measures/{name}", {"kind": "measure"}, needs)


class Scripted:
    """Workers that finish the named tasks, one at each call. outputs: of tasks with another
    result.
    """

    alive = 1

    def __init__(
        self, *finishing: str, outputs: Mapping[str, Mapping[str, Any] | str] | None = None
    ) -> None:
        self.finishing, self.outputs = list(finishing), outputs or {}
        self.submitted: list[str] = []
        self.withdrawn: set[str] = set()
        self.tasks: dict[str, Task] = {}

    def submit(self, task: Task) -> None:
        self.submitted.append(task.name)
        self.tasks[task.name] = task

    def withdraw(self, names: Collection[str]) -> None:
        self.withdrawn.update(names)

    def close(self) -> None: ...

    def collect(self, timeout: float) -> list[TaskResult]:
        assert self.finishing, "nothing will ever finish"
        name = self.finishing.pop(0)
        output = self.outputs.get(name, {"name": name, "images": 1, "seconds": 2.0, "worker": "w"})
        if isinstance(output, str):
            return [TaskResult(self.tasks[name], None, output)]
        return [TaskResult(self.tasks[name], output)]


def make(folder: Path, workers: Scripted) -> tuple[Build, list[Event]]:
    events: list[Event] = []
    return Build(Storage(folder), workers, events.append), events


def collect_all(build: Build, workers: Scripted) -> list[Any]:
    results = []
    while workers.finishing:
        results += build.collect(0)
    return results


def test_a_measurement_waits_for_what_it_needs(tmp_path: Path) -> None:
    workers = Scripted(IMAGES.name, "reference", "measures/m")
    build, events = make(tmp_path, workers)
    build.want(SWEEP, REFERENCE)
    build.want(3, measurement("m", IMAGES, REFERENCE))
    assert workers.submitted == ["reference", IMAGES.name]
    assert build.collect(0) == []
    assert "measures/m" not in workers.submitted
    assert build.collect(0) == []
    assert workers.tasks["measures/m"].trial == 3
    assert workers.tasks["measures/m"].is_measurement
    (result,) = build.collect(0)
    assert (result.trials, result.output) == (
        (3,),
        {"name": "measures/m", "images": 1, "seconds": 2.0, "worker": "w"},
    )
    assert build.seconds == {SWEEP: 2.0, 3: 4.0}
    shards = [event for event in events if isinstance(event, Shard)]
    assert shards == [Shard(3, "quality", 1, 2.0, "w")]


def test_what_the_sweep_waits_for_is_said(tmp_path: Path) -> None:
    workers = Scripted("reference", "pool")
    build, events = make(tmp_path, workers)
    build.want(SWEEP, REFERENCE, POOL)
    build.wait("pool")
    phases = [event.phase for event in events if isinstance(event, Phase)]
    assert phases == ["reading", "reading; predicting", "predicting", ""]


def test_results_that_arrive_during_a_wait_are_kept(tmp_path: Path) -> None:
    workers = Scripted("measures/m", "pool")
    build, _ = make(tmp_path, workers)
    build.want(SWEEP, POOL)
    build.want(0, measurement("m"))
    build.wait("pool")
    assert [result.trials for result in build.collect(0)] == [(0,)]


@pytest.mark.parametrize("failing", ["reference", "pool"])
def test_what_the_sweep_cannot_do_without_ends_it(failing: str, tmp_path: Path) -> None:
    build, _ = make(tmp_path, Scripted("reference", "pool", outputs={failing: "out of memory"}))
    build.want(SWEEP, REFERENCE, POOL)
    with pytest.raises(SweepError, match=f"{failing}: out of memory"):
        build.wait("pool")


def test_a_file_that_exists_is_not_made_again(tmp_path: Path) -> None:
    Storage(tmp_path).write(IMAGES.name, b"")
    workers = Scripted()
    build, _ = make(tmp_path, workers)
    build.want(0, measurement("m", IMAGES))
    assert workers.submitted == ["measures/m"]


def test_a_shared_file_is_made_once_and_stays_while_one_trial_wants_it(tmp_path: Path) -> None:
    workers = Scripted(TIMING.name)
    build, _ = make(tmp_path, workers)
    build.want(1, measurement("one", IMAGES, TIMING))
    build.want(2, measurement("two", OTHER, TIMING))
    assert workers.submitted.count(TIMING.name) == 1
    build.withdraw(1)
    assert workers.withdrawn == {IMAGES.name}
    build.collect(0)
    assert TIMING.name in build.files
    build.withdraw(2)
    assert workers.withdrawn == {IMAGES.name, OTHER.name}


def test_all_who_need_a_file_that_failed_hear_of_it(tmp_path: Path) -> None:
    workers = Scripted(TIMING.name, outputs={TIMING.name: "no"})
    build, _ = make(tmp_path, workers)
    for number in (1, 2):
        build.want(number, measurement(str(number), TIMING))
    build.want(3, measurement("3", IMAGES))
    results = build.collect(0)
    assert [(result.trials, result.lost, result.cause) for result in results] == [
        ((1,), frozenset([TIMING.name]), "no"),
        ((2,), frozenset([TIMING.name]), "no"),
    ]


def test_a_file_of_another_name_is_a_failure_that_may_pass(tmp_path: Path) -> None:
    other = {"name": "shards/quality-z", "images": 1, "seconds": 0.0, "worker": "w7"}
    workers = Scripted(IMAGES.name, outputs={IMAGES.name: other})
    build, _ = make(tmp_path, workers)
    build.want(1, measurement("m", IMAGES))
    (result,) = build.collect(0)
    assert result.output is None
    assert not result.permanent
    assert "w7" in str(result.cause)
    assert IMAGES.name not in build.files


def test_a_missing_file_ends_the_measurement_which_can_be_wanted_again(tmp_path: Path) -> None:
    Storage(tmp_path).write(IMAGES.name, b"")
    workers = Scripted("measures/m", outputs={"measures/m": {"unusable": {IMAGES.name: "missing"}}})
    build, _ = make(tmp_path, workers)
    (tmp_path / IMAGES.name).unlink()
    build.want(1, measurement("m", IMAGES))
    build.want(2, measurement("n", IMAGES, TIMING))
    results = build.collect(0)
    assert [(result.trials, result.cause, result.lost) for result in results] == [
        ((1,), None, frozenset([IMAGES.name])),
        ((2,), None, frozenset([IMAGES.name])),
    ]
    build.want(1, measurement("m", IMAGES))
    assert workers.submitted[-1] == IMAGES.name


def write_images(folder: Path) -> None:
    write_shard(
        Storage(folder), IMAGES.name, pa.table({"n": [1]}), {"kind": "quality", "name": IMAGES.name}
    )


def test_a_file_that_only_workers_cannot_read_fails_the_measurement_in_the_end(
    tmp_path: Path,
) -> None:
    write_images(tmp_path)
    unusable = {"unusable": {IMAGES.name: "damaged"}}
    workers = Scripted(*["measures/m"] * 4, outputs={"measures/m": unusable})
    build, _ = make(tmp_path, workers)
    for _ in range(3):
        build.want(1, measurement("m", IMAGES))
        (result,) = build.collect(0)
        assert result.cause is None
    build.want(1, measurement("m", IMAGES))
    (result,) = build.collect(0)
    assert (result.trials, result.output, result.permanent) == ((1,), None, False)
    assert "damaged; only its worker cannot read it" in str(result.cause)


def test_a_file_that_its_worker_cannot_read_and_this_process_can_is_made(tmp_path: Path) -> None:
    workers = Scripted(IMAGES.name, outputs={IMAGES.name: {"unusable": {IMAGES.name: "damaged"}}})
    build, _ = make(tmp_path, workers)
    build.want(1, measurement("m", IMAGES))
    write_images(tmp_path)
    build.collect(0)
    assert workers.submitted == [IMAGES.name, "measures/m"]


def test_a_reference_that_was_deleted_is_made_again(tmp_path: Path) -> None:
    lost = {"unusable": {REFERENCE.name: "missing"}}
    workers = Scripted(
        REFERENCE.name, "measures/m", REFERENCE.name, "measures/m", outputs={"measures/m": lost}
    )
    build, events = make(tmp_path, workers)
    build.want(SWEEP, REFERENCE)
    build.want(1, measurement("m", REFERENCE))
    build.collect(0)
    (result,) = build.collect(0)
    assert (result.cause, result.lost) == (None, frozenset([REFERENCE.name]))
    build.want(1, measurement("m", REFERENCE))
    assert workers.submitted[-1] == REFERENCE.name
    build.collect(0)
    assert workers.submitted[-1] == "measures/m"
    assert [event.phase for event in events if isinstance(event, Phase)] == [
        "reading",
        "",
        "reading",
        "",
    ]
