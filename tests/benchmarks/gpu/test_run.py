"""Parts are resumed, and what fails, dies or hangs costs one case."""

from __future__ import annotations

import itertools
import json
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.gpu import run
from benchmarks.gpu.record import ROOT, Record, Setup, code_digest, runs_of
from benchmarks.gpu.run import run_part, supervise
from workers.decoding.graphs import PassGraphs

PART = "tests.fakes.measured_cases"
SETUP = Setup(torch.device("cpu"), is_tiny=True)
MACHINE = {"device": "a GPU", "torch": "2.13", "code": "abc", "scale": "tiny"}


@pytest.fixture
def record(tmp_path: Path) -> Record:
    return Record(tmp_path / "new" / "gpu.json", MACHINE)


def measured(
    monkeypatch: pytest.MonkeyPatch, record: Record, names: str, seconds: float = 60
) -> list[str]:
    """The names of the rows after a run in this process."""
    monkeypatch.setenv("MEASURED_CASES", names)
    run_part(record, PART, SETUP, seconds)
    return [row["case"] for row in record.part("measured_cases")["rows"]]


def test_a_case_that_fails_is_a_row_and_others_are_measured(
    monkeypatch: pytest.MonkeyPatch, record: Record
) -> None:
    assert measured(monkeypatch, record, "one fails two") == ["one", "fails", "two"]
    part = record.part("measured_cases")
    assert part["complete"]
    assert part["rows"][1]["error"] == "ValueError: no such thing"
    assert part["rows"][0].keys() == {"case", "process", "case_s"}


def test_a_capture_that_fails_is_noted_and_ends_no_other_cases_graphs(
    monkeypatch: pytest.MonkeyPatch, record: Record
) -> None:
    monkeypatch.setattr(PassGraphs, "failure", None)
    measured(monkeypatch, record, "uncaptured-1 uncaptured-2 three")
    rows = record.part("measured_cases")["rows"]
    assert [row.get("graph_failure") for row in rows] == ["a synchronisation"] * 2 + [None]
    assert not [row for row in rows if "error" in row]


def test_a_part_that_breaks_keeps_its_rows(monkeypatch: pytest.MonkeyPatch, record: Record) -> None:
    assert len(measured(monkeypatch, record, "one breaks two")) == 2
    part = record.part("measured_cases")
    assert part["complete"]
    assert "no case after" in part["rows"][1]["error"]


def test_a_run_continues_where_the_last_one_stopped(
    monkeypatch: pytest.MonkeyPatch, record: Record
) -> None:
    """Each row is in the file before the next case begins, and is not measured again."""
    now = iter(range(0, 1000, 10))
    monkeypatch.setattr(time, "monotonic", lambda: next(now))
    assert measured(monkeypatch, record, "one two three four", seconds=25) == ["one", "two"]
    assert not record.part("measured_cases")["complete"]
    monkeypatch.undo()
    update, writes = Record.update, itertools.count()

    def count(self: Record, *arguments: Any, **changes: Any) -> None:
        next(writes)
        update(self, *arguments, **changes)

    monkeypatch.setattr(Record, "update", count)
    first = record.part("measured_cases")["rows"]
    assert measured(monkeypatch, record, "one two three four") == ["one", "two", "three", "four"]
    part = record.part("measured_cases")
    assert part["complete"]
    assert part["rows"][:2] == first
    assert next(writes) == 2 * 2 + 1  # two cases begin and end, then the part is complete


@pytest.mark.parametrize("key", ["device", "torch", "code", "scale"])
def test_results_of_another_machine_or_code_are_kept_and_not_used(
    key: str, monkeypatch: pytest.MonkeyPatch, record: Record
) -> None:
    other = Record(record.path, MACHINE | {key: "another"})
    measured(monkeypatch, other, "one")
    assert measured(monkeypatch, record, "two") == ["two"]
    assert [run["machine"][key] for run in runs_of(record.path)] == ["another", MACHINE[key]]
    assert len(other.part("measured_cases")["rows"]) == 1


def test_facts_that_say_nothing_of_speed_do_not_start_anew(
    monkeypatch: pytest.MonkeyPatch, record: Record
) -> None:
    measured(monkeypatch, record, "one")
    assert measured(monkeypatch, Record(record.path, MACHINE | {"commit": "new"}), "one two") == [
        "one",
        "two",
    ]


@pytest.mark.slow(40)
def test_a_process_that_dies_costs_one_case(
    monkeypatch: pytest.MonkeyPatch, record: Record
) -> None:
    monkeypatch.setenv("MEASURED_CASES", "one dies two")
    supervise(record, PART, SETUP, limit=300)
    part = record.part("measured_cases")
    assert part["complete"]
    assert [row["case"] for row in part["rows"]] == ["one", "dies", "two"]
    assert "exit status 7" in part["rows"][1]["error"]
    assert part["rows"][0]["process"] != part["rows"][2]["process"]


@pytest.mark.slow(40)
def test_a_case_that_hangs_is_stopped_and_the_next_run_continues(
    monkeypatch: pytest.MonkeyPatch, record: Record
) -> None:
    monkeypatch.setenv("MEASURED_CASES", "hangs two")
    supervise(record, PART, SETUP, limit=1, grace=15)
    part = record.part("measured_cases")
    assert [row["case"] for row in part["rows"]] == ["hangs"]
    assert "stopped" in part["rows"][0]["error"]
    assert not part["complete"]
    supervise(record, PART, SETUP, limit=300)
    assert [row["case"] for row in record.part("measured_cases")["rows"]] == ["hangs", "two"]


@pytest.mark.slow(20)
def test_a_part_that_cannot_start_is_not_tried_for_ever(
    monkeypatch: pytest.MonkeyPatch, record: Record
) -> None:
    monkeypatch.setenv("PYTHONHOME", "/nonexistent")  # no process starts
    supervise(record, PART, SETUP, limit=300)
    part = record.part("measured_cases")
    assert part["complete"]
    assert "exit status" in part["rows"][0]["error"]


def test_a_device_that_is_lost_ends_the_process(
    monkeypatch: pytest.MonkeyPatch, record: Record
) -> None:
    """After an illegal address every call fails: the next process measures the other cases."""

    def lost(*_: Any) -> None:
        raise RuntimeError("an illegal memory access was encountered")

    monkeypatch.setattr(torch.cuda, "synchronize", lost)
    monkeypatch.setenv("MEASURED_CASES", "fails two")
    with pytest.raises(SystemExit) as stopped:
        run_part(record, PART, Setup(torch.device("cuda"), is_tiny=True), 60)
    assert stopped.value.code == run.START_AGAIN
    part = record.part("measured_cases")
    assert [row["case"] for row in part["rows"]] == ["fails"]
    assert not part["running"]
    assert not part["complete"]


def test_the_digest_is_of_all_code_and_weights(tmp_path: Path) -> None:
    digests = [code_digest(tmp_path)]
    for name in (
        "workers/a.py",
        "workers/b/presets.yaml",
        "benchmarks/gpu/c.py",
        "workers/d.safetensors",
    ):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
        digests.append(code_digest(tmp_path))
    (tmp_path / "workers" / "notes.txt").write_text("no code")
    digests.append(code_digest(tmp_path))
    assert len(set(digests)) == len(digests) - 1
    assert code_digest() == code_digest(ROOT)


@pytest.mark.parametrize("text", ["", "{}", "[1]", json.dumps({"runs": 3})])
def test_another_file_is_not_overwritten(text: str, tmp_path: Path) -> None:
    path = tmp_path / "other.json"
    path.write_text(text)
    with pytest.raises(ValueError, match=r"other\.json"):
        Record(path, MACHINE).update("kernels", [{"case": "one"}])
    assert path.read_text() == text
