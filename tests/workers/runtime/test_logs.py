"""A worker's log: its own file, its tasks with their times, and tracebacks of what went wrong."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

import workers.evaluate
from search_spaces.trial import DecodingConfig
from workers.actor import Worker
from workers.data.shards import QualityShard
from workers.data.storage import Storage
from workers.runtime.logs import describe_task, log_duration, log_folder, open_log
from workers.runtime.specification import WorkerSpec

CONFIG = DecodingConfig.from_mapping({"drafter": "eagle", "tree": {"policy": "chain", "length": 3}})
TASK = {"kind": "quality", **QualityShard(CONFIG, 48, 96, 1, 8).to_mapping()}


@pytest.fixture(autouse=True)
def clean() -> Iterator[None]:
    """What a worker's process sets up for good is undone here."""
    root, before = logging.getLogger(), list(logging.getLogger().handlers)
    yield
    for handler in [entry for entry in root.handlers if entry not in before]:
        root.removeHandler(handler)
        handler.close()


class Cancelled(Exception):
    """By the name of the evaluator's own."""


class Broken:
    """An evaluator that fails in the way that a task names."""

    def __init__(self, spec: WorkerSpec) -> None:
        if spec.models is not None:
            raise ValueError("nowhere: no such folder of weights")
        self.spec = spec

    def facts(self) -> dict[str, Any]:
        return {"target": "toy", "vocab": 8}

    def run(self, task: Mapping[str, Any]) -> dict[str, Any]:
        if task["kind"] == "timing":
            raise Cancelled
        if task["kind"] == "measure":
            raise ZeroDivisionError("no images")
        return {"kind": task["kind"]}


@pytest.fixture
def broken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers.evaluate, "Evaluator", Broken)


def read(store: Path, worker: str = "worker-3") -> str:
    return (store / "logs" / f"{worker}.log").read_text("utf-8")


def test_tasks_and_errors_stand_in_the_workers_own_log(tmp_path: Path, broken: None) -> None:
    worker = Worker({"store": str(tmp_path), "worker": "worker-3"})
    assert worker.run(TASK) == {"kind": "quality"}
    with pytest.raises(ZeroDivisionError):
        worker.run({"kind": "measure"})
    with pytest.raises(Cancelled):
        worker.run({"kind": "timing"})
    text = read(tmp_path)
    lines = [line.partition("INFO ")[2] for line in text.splitlines()]
    assert lines[0].startswith("worker-3 starts on ")
    assert lines[1].startswith("loading builtin for auto: ")
    assert lines[2] == 'facts: {"target": "toy", "vocab": 8}'
    assert lines[3].startswith("quality of captions 48 to 95, eagle chain: ")
    assert "ERROR measure: failed after" in text
    assert "Traceback (most recent call last):" in text
    assert "ZeroDivisionError: no images" in text
    assert text.count("Traceback") == 1, "a cancellation is no error"
    assert "timing: cancelled after" in text


def test_a_worker_that_does_not_come_up_says_why_in_its_log(tmp_path: Path, broken: None) -> None:
    with pytest.raises(ValueError, match="no such folder"):
        Worker(
            {
                "store": str(tmp_path),
                "worker": "worker-0",
                "models": {"name": "nowhere", "where": ""},
            }
        ).facts()
    text = read(tmp_path, "worker-0")
    assert "ERROR loading nowhere for auto: failed after" in text
    assert "ValueError: nowhere: no such folder of weights" in text


def test_a_later_worker_of_the_name_goes_on_and_others_have_their_own(tmp_path: Path) -> None:
    storage = Storage(tmp_path)
    for worker in ("a", "b", "a"):
        with log_duration(open_log(storage, worker), "nothing"):
            pass
    assert read(tmp_path, "a").count(" starts on ") == 2
    assert read(tmp_path, "b").count("nothing: ") == 1


def test_warnings_of_libraries_are_there_as_well(tmp_path: Path) -> None:
    open_log(Storage(tmp_path), "a")
    logging.getLogger("some.library").warning("half of the weights are zero")
    assert "WARNING half of the weights are zero" in read(tmp_path, "a")


def test_elsewhere_than_in_a_folder_there_is_no_file(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    from pyarrow.fs import LocalFileSystem

    storage = Storage(str(tmp_path), filesystem=LocalFileSystem())
    open_log(storage, "a")
    assert log_folder(storage) is None
    assert list(tmp_path.iterdir()) == []
    assert "a starts on" in caplog.text


@pytest.mark.parametrize(
    ("task", "words"),
    [
        (TASK, "quality of captions 48 to 95, eagle chain"),
        ({"kind": "reference"}, "reference"),
        ({"kind": "measure", "config": DecodingConfig().to_mapping()}, "measure, none none"),
        ({}, "None"),
    ],
)
def test_tasks_in_words(task: Mapping[str, Any], words: str) -> None:
    assert describe_task(task) == words
