"""What is said about a sweep's speeds beside their errors."""

from __future__ import annotations

from pathlib import Path

from orchestrator.results.status import timing_notes
from orchestrator.results.sweep import Sweep
from tests.fakes.metric_inputs import price_list, timed_session
from tests.fakes.synthetic_sweeps import identity
from workers.data.storage import Storage


def notes(tmp_path: Path, *devices: str) -> list[str]:
    """Of a sweep with a session on each of the devices."""
    prices = price_list(*(timed_session(device=device, name=str(n)) for n, device in enumerate(devices)))
    return timing_notes(Sweep(Storage(tmp_path), identity("timed"), (), prices))


def test_speeds_of_several_machines_are_named(tmp_path: Path) -> None:
    (note,) = notes(tmp_path, "one processor", "another", "one processor")
    assert "one processor and another" in note


def test_errors_of_one_session_assume_something(tmp_path: Path) -> None:
    (note,) = notes(tmp_path, "one processor")
    assert f"specfrontier time {Storage(tmp_path).display_name}" in note
    assert notes(tmp_path, "one processor", "one processor") == []
    assert notes(tmp_path) == []
