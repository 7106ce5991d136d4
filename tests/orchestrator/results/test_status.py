"""How `status` words the latest events, and what it counts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from orchestrator.results.json_lines import append_line
from orchestrator.results.status import sweep_status
from orchestrator.results.store import EVENTS
from orchestrator.results.sweep import Sweep
from tests.fakes.synthetic_sweeps import write_sweep


def test_the_latest_events_say_what_happened(tmp_path: Path) -> None:
    write_sweep(tmp_path / "sweep", trials=2)
    events: list[dict[str, Any]] = [
        {"event": "phase", "phase": "loading models"},
        {"event": "phase", "phase": ""},
        {"event": "workers", "alive": 2},
        {"event": "workers", "alive": 0, "note": "no worker is running"},
    ]
    for event in events:
        append_line(tmp_path / "sweep" / EVENTS, {"at": "2026-01-02T03:00:00+00:00", **event})
    said = sweep_status(Sweep.open(tmp_path / "sweep")).events
    assert [text.removeprefix("03:00:00 ") for text in said[-3:]] == [
        "phase: loading models",
        "2 workers",
        "0 workers: no worker is running",
    ]


def test_images_of_running_trials_count(tmp_path: Path) -> None:
    write_sweep(tmp_path / "sweep", trials=2)
    before = sweep_status(Sweep.open(tmp_path / "sweep")).images
    facts = {"at": "2026-01-02T03:00:00+00:00", "event": "shard", "seconds": 1.0, "worker": "w"}
    for trial, kind, images in ((1, "quality", 96), (2, "quality", 96), (2, "timing", 3), (2, "quality", 48)):
        append_line(tmp_path / "sweep" / EVENTS, {**facts, "trial": trial, "kind": kind, "images": images})
        append_line(tmp_path / "sweep" / EVENTS, {"at": facts["at"], "event": "launch"})
    assert before > 0
    assert sweep_status(Sweep.open(tmp_path / "sweep")).images == before + 144, "trial 1 has a record"
