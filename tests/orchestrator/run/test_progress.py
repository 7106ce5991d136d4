"""Seeing a sweep run: where it stands by its events, in lines, in JSON, and drawn on a terminal."""

from __future__ import annotations

import io
import json
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from benchmarks.instant import InstantWorkers
from orchestrator.run.progress import Live, Machine, Plain, Status, clock, headline, teller, told_line, view

OBJECTIVES = {
    "event": "identity",
    "objectives": [{"metric": "speedup", "direction": "maximize"}, {"metric": "fid", "direction": "minimize"}],
}


def asked(trial: int, words: str = "") -> dict[str, Any]:
    return {"event": "trial_started", "trial": trial, "label": "", "words": words or f"chain {trial}", "setting": {}}


def shard(trial: int, images: int = 8, kind: str = "quality") -> dict[str, Any]:
    return {"event": "shard", "trial": trial, "kind": kind, "images": images, "seconds": 1.0, "worker": "w"}


def told(trial: int, speedup: float = 1.0, fid: float = 5.0, **changes: Any) -> dict[str, Any]:
    event = {
        "event": "trial_finished",
        "trial": trial,
        "label": "",
        "words": f"chain {trial}",
        "state": "complete",
        "new": True,
    }
    metrics = {"speedup": speedup, "fid": fid}
    return event | {"cause": None, "feasible": True, "images": 8, "metrics": metrics} | changes


def failed(trial: int, **changes: Any) -> dict[str, Any]:
    return told(trial, state="failed", feasible=False, metrics={}, cause="OutOfMemory: at batch 4", **changes)


def after(*events: Mapping[str, Any], trials: int | None = 10, seconds: float = 0.0) -> Status:
    status = Status(trials)
    status.began -= seconds
    for event in (OBJECTIVES, *events):
        status.take(event)
    return status


def test_counts() -> None:
    workers = {"event": "workers", "alive": 3, "note": "reading the reference"}
    shards = [shard(0), shard(1, 4), shard(0, 3, "timing")]
    status = after(workers, asked(0), asked(1), asked(2), *shards, told(0), failed(1))
    assert (status.done, status.failed, status.images, status.workers) == (2, 1, 12, 3)
    assert status.in_flight == {2: "chain 2"}
    assert status.note == "reading the reference"
    status.take({"event": "workers", "alive": 2, "note": ""})
    assert (status.workers, status.note) == (2, "")


def test_the_front_holds_what_nothing_beats_within_the_constraints() -> None:
    whole = [told(0, 1.0, 4.0), told(1, 2.0, 5.0), told(2, 1.5, 6.0), told(5, 3, 9)]
    status = after(*whole, told(3, 9.0, 1.0, feasible=False), failed(4))
    assert [(number, words) for number, words, _ in status.front()] == [(0, "chain 0"), (1, "chain 1"), (5, "chain 5")]
    assert after().front() == []
    assert Status(3).front() == [], "nothing is known of the objectives yet"


def test_time_to_go_counts_what_this_run_has_done() -> None:
    assert after(seconds=50).remaining is None
    old = [told(number, new=False) for number in range(6)]
    assert after(*old, seconds=50).remaining is None, "resumed trials cost no time, and say nothing of it"
    assert after(*old, told(6), failed(7), seconds=50).remaining is None, "two trials say too little"
    status = after(*old, told(6), failed(7), told(8), seconds=60)
    assert status.remaining == pytest.approx(60 / 3 * 1, rel=0.05)
    assert after(told(0), trials=None).remaining is None
    assert after(*(told(number) for number in range(12)), trials=10).remaining == 0


def test_images_a_second() -> None:
    assert after(shard(0, 30), shard(1, 20), seconds=10).rate == pytest.approx(5, rel=0.05)


@pytest.mark.parametrize(
    ("seconds", "text"), [(None, "?"), (0, "0:00"), (59.6, "1:00"), (247, "4:07"), (3599, "59:59"), (7800, "2:10:00")]
)
def test_clock(seconds: float | None, text: str) -> None:
    assert clock(seconds) == text


def test_headline() -> None:
    text = headline(after({"event": "workers", "alive": 2}, shard(0, 40), told(0), failed(1), told(2), seconds=21))
    assert text == "3/10 trials, 1 failed · 40 images, 1.9/s · 2 workers · 0:21 gone, 0:49 to go"
    assert headline(after(trials=None)).startswith("0 trials · 0 images, ")


def test_a_finished_trial_in_a_line() -> None:
    status = after()
    assert told_line(told(3, 1.2345, 5), status) == "trial 3 chain 3: speedup 1.23, fid 5"
    assert told_line(told(3, feasible=False), status).endswith("; beyond the constraints")
    assert told_line(failed(4), status) == "trial 4 failed: OutOfMemory: at batch 4"


def test_plain_lines() -> None:
    status, out = after(), io.StringIO()
    with Plain(status, out) as shown:
        for event in ({"event": "launch", "note": "starting workers"}, shard(0), shard(0), told(0, new=False), told(1)):
            status.take(event)
            shown.show(event)
    lines = out.getvalue().splitlines()
    assert lines[0] == "starting workers"
    assert lines[1].startswith("0/10 trials · 8 images")
    assert lines[2:] == ["trial 1 chain 1: speedup 1, fid 5"], "one headline in five seconds; old trials in none"


def test_machines_get_every_event(capsys: pytest.CaptureFixture[str]) -> None:
    with Machine() as shown:
        shown.show(told(0, words="ring “ü”"))
        shown.show(shard(1))
    lines = capsys.readouterr().out.splitlines()
    assert [json.loads(line) for line in lines] == [told(0, words="ring “ü”"), shard(1)]


def live(status: Status, monkeypatch: pytest.MonkeyPatch, *events: Mapping[str, Any], width: int = 100) -> str:
    """What the live view shows at its end, on a terminal of that width."""
    shown = Live(status)
    console = Console(record=True, width=width, force_terminal=True, file=io.StringIO(), color_system=None)
    monkeypatch.setattr(shown._live, "console", console)
    with shown:
        for event in events:
            status.take(event)
            shown.show(event)
    console.print(shown._draw())
    return console.export_text()


def test_the_live_view(monkeypatch: pytest.MonkeyPatch) -> None:
    status = after({"event": "workers", "alive": 2, "note": "reading the reference"}, asked(3, "[bold]x[/bold]"))
    whole = [told(0, 1.0, 4.0), told(1, 2.0, 5.0), told(2, 0.5, 6.0)]
    text = live(status, monkeypatch, *whole, failed(4), failed(5, new=False))
    assert "5/10 trials, 2 failed" in text
    assert "running: 3 [bold]x[/bold]" in text, "words are shown as they are, not read as markup"
    assert "reading the reference" in text
    rows = [line.split() for line in text.splitlines() if "chain" in line]
    assert ["0", "chain", "0", "1.000", "4.000"] in rows
    assert ["1", "chain", "1", "2.000", "5.000"] in rows
    assert not any(row[0] == "2" for row in rows), "trial 2 is beaten"
    assert text.count("trial 4 failed: OutOfMemory: at batch 4") == 1
    assert "trial 5 failed" not in text, "that was said when it happened"


def test_a_narrow_terminal_keeps_one_line_for_what_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    status = after(*(asked(number, "a very long description of a setting") for number in range(8)))
    text = live(status, monkeypatch, width=60)
    running = [line for line in text.splitlines() if "running" in line]
    assert running
    assert all(len(line) <= 60 for line in text.splitlines())
    assert running[-1].rstrip().endswith("…")


def test_the_view_suits_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    status = Status(3)
    assert isinstance(view(status, as_json=True), Machine)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: False, raising=False)
    assert isinstance(view(status, as_json=False), Plain)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    assert isinstance(view(status, as_json=False), Live)


def test_all_events_go_into_a_file_with_their_time(tmp_path: Path) -> None:
    status, file = Status(3), tmp_path / "events.jsonl"
    for _ in range(2):  # a resumed sweep writes on
        tell = teller(status, Plain(status, io.StringIO()), file)
        tell(OBJECTIVES)
        tell(told(0))
    lines = [json.loads(line) for line in file.read_text("utf-8").splitlines()]
    assert [line["event"] for line in lines] == ["identity", "trial_finished"] * 2
    assert all(time.strptime(line["at"][:19], "%Y-%m-%dT%H:%M:%S") for line in lines)
    assert status.done == 2


def test_what_the_driver_tells_is_what_is_shown(tmp_path: Path) -> None:
    """Every event of a whole sweep, through the lines for logs."""
    from tests.orchestrator.run.test_driver import run, sweep

    config, out = sweep(tmp_path, changes={"constraints": ["fid <= 1.2 * vanilla"]}), io.StringIO()
    status = Status(config.budget.trials)
    status.take(OBJECTIVES)
    outcome = run(config, tmp_path / "store", InstantWorkers(), tell=teller(status, Plain(status, out), None))
    lines = [line for line in out.getvalue().splitlines() if line.startswith("trial ")]
    assert len(lines) == status.done == 24
    assert lines[0].startswith("trial 0 vanilla: speedup 1.")
    assert any(line.startswith("trial 3 eagle ") for line in lines), "a proposal is told by its setting"
    beyond = [record for record in outcome.records if not record.feasible]
    assert sum(line.endswith("beyond the constraints") for line in lines) == len(beyond) > 0
    assert status.in_flight == {}
    assert {number for number, _, _ in status.front()} <= {r.number for r in outcome.records if r.feasible}
