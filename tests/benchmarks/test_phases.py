"""The time of a launch by what it waited for, from made-up events."""

from __future__ import annotations

from datetime import datetime, timedelta
from pathlib import Path

import pytest

from benchmarks.phases import main, phases_of
from orchestrator.store import events
from orchestrator.store.events import append_event
from orchestrator.store.files import EVENTS
from orchestrator.store.sweep import Sweep
from tests.fakes.synthetic_sweeps import write_sweep

BEGAN = datetime.fromisoformat("2026-11-01T12:00:00.000+00:00")


def moment(seconds: float) -> str:
    return (BEGAN + timedelta(seconds=seconds)).isoformat(timespec="milliseconds")


def test_seconds_are_of_the_last_launch(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    records = write_sweep(tmp_path, 6, failed=())
    sweep = Sweep.open(tmp_path)
    kept = [record for record in records if record.config is not None]
    exact = next(record.number for record in kept if record.is_lossless(sweep.identity))
    lossy = next(record.number for record in kept if not record.is_lossless(sweep.identity))
    launch = [
        events.Launch(at=moment(0)),
        events.Phase("starting Ray", at=moment(1)),
        events.Phase("loading the models", at=moment(5)),
        events.Workers(2, at=moment(9)),
        events.Phase("reading images; predicting", at=moment(9)),
        events.Shard(exact, "quality", 8, 3.5, "a", at=moment(12)),
        events.Phase("predicting", at=moment(13)),
        events.Shard(lossy, "quality", 8, 4.0, "b", at=moment(14)),
        events.Phase("", at=moment(15)),
        events.Shard(lossy, "timing", 2, 1.0, "a", at=moment(16)),
        events.Shard(lossy, "quality", 8, 0.5, "a", at=moment(20)),
        events.End("finished", at=moment(21.5)),
    ]
    for event in launch:
        append_event(tmp_path / EVENTS, event)
    found = phases_of(events.read_events(sweep.storage), sweep)
    assert found is not None
    assert found.waits == {
        "starting Ray": [1, 5],
        "loading the models": [5, 9],
        "reading images": [9, 13],
        "predicting": [9, 15],
    }
    assert found.shards == [12, 14, 16, 20]
    assert found.seconds == {
        "images of lossless settings": 3.5,
        "images of other settings": 4.5,
        "timing": 1.0,
    }
    assert (found.workers, found.end) == (2, 21.5)
    main([str(tmp_path)])
    printed = capsys.readouterr().out.splitlines()
    assert ["end", "21.5"] in [line.split() for line in printed]
    assert ["reading", "images", "9.0", "13.0"] in [line.split() for line in printed]
