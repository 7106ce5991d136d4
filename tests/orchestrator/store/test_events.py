"""Events and the lines that hold them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from orchestrator.store import events
from orchestrator.store.checked_text import append_line
from orchestrator.store.files import EVENTS
from tests.fakes.sweep_events import OBJECTIVES, failed, finished, revived, shard, started
from workers.data.checked_json import OtherVersionError
from workers.data.storage import Storage

ALL = (
    events.Launch(),
    events.Launch(resume="specfrontier launch mine --resume", note="its cluster was lost"),
    events.Phase("loading the models"),
    events.Note(note="tables not written: disk full"),
    OBJECTIVES,
    events.Workers(2),
    events.Workers.losing("worker-1 on node-b", "its process has died", alive=1),
    events.Timing("worker-0", 10),
    started(0),
    started(1, kind=events.TrialResumed),
    finished(0),
    failed(1, new=False),
    revived(2, 1.0, 5.0),
    events.RevivalFailed(2, note="trial 2 stays stopped"),
    shard(0),
    shard(0, taken_from="sweeps/mine"),
    events.ShardDamaged(note="it is made again"),
    events.Plateau(0.01, 5, 2, None, False, "2 of 5"),
    events.End("failed", "no worker started"),
)


@pytest.mark.parametrize("event", ALL, ids=lambda event: str(event.event))
def test_an_event_is_read_as_it_was_written(event: events.Event, tmp_path: Path) -> None:
    events.append_event(tmp_path / EVENTS, event)
    (read,) = events.read_events(Storage(tmp_path))
    assert read == event
    assert read is not None
    assert read.at == event.at


def test_a_line_has_the_moment_the_kind_the_facts_and_the_note() -> None:
    at = "2026-01-02T03:04:05.678+00:00"
    assert events.Launch(at=at).to_mapping() == {"at": at, "event": "launch"}
    lost = events.Workers(0, at=at, note="no worker is running").to_mapping()
    assert json.dumps(lost) == (
        f'{{"at": "{at}", "event": "workers", "alive": 0, "note": "no worker is running"}}'
    )
    assert finished(0).to_mapping()["cause"] is None, "it is left out of an `end` alone"
    assert "cause" not in events.End("finished").to_mapping()


@pytest.mark.parametrize(
    "changes",
    [{"event": "other"}, {"event": 3}, {"at": "today"}, {"trial": None}, {"images": "8"}],
    ids=str,
)
def test_a_line_of_another_type_is_of_another_version(
    changes: dict[str, object], tmp_path: Path
) -> None:
    append_line(tmp_path / EVENTS, {**shard(0).to_mapping(), **changes})
    (found,) = events.read_events(Storage(tmp_path))
    assert isinstance(found, OtherVersionError)
