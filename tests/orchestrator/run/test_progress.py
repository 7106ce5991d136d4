"""Progress of a sweep: its state from events, as lines, as JSON, and on a terminal."""

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
from orchestrator.cluster.tasks import lost_event
from orchestrator.run.progress import (
    Progress,
    TimeLeft,
    choose_view,
    describe_time_left,
    event_sink,
    format_duration,
    headline,
    render,
    show_json,
    show_lines,
    show_live,
    trial_line,
)
from orchestrator.store.names import title

OBJECTIVES = {
    "event": "identity",
    "objectives": [
        {"metric": "speedup", "direction": "maximize"},
        {"metric": "fid", "direction": "minimize"},
    ],
}


def started(trial: int, setting: str = "", images: int = 8) -> dict[str, Any]:
    facts = {"label": "", "setting": setting or f"chain {trial}", "images": images, "config": {}}
    return {"event": "trial_started", "trial": trial, "shards": 1, "total_shards": 1, **facts}


def shard(trial: int, images: int = 8, kind: str = "quality") -> dict[str, Any]:
    return {
        "event": "shard",
        "trial": trial,
        "kind": kind,
        "images": images,
        "seconds": 1.0,
        "worker": "w",
    }


def finished(trial: int, speedup: float = 1.0, fid: float = 5.0, **changes: Any) -> dict[str, Any]:
    event = {
        "event": "trial_finished",
        "trial": trial,
        "label": "",
        "setting": f"chain {trial}",
        "state": "complete",
        "new": True,
    }
    values = {"metrics": {"speedup": speedup, "fid": fid}, "errors": {"fid": 0.25}}
    return event | {"cause": None, "feasible": True, "images": 8, **values} | changes


def failed(trial: int, **changes: Any) -> dict[str, Any]:
    return finished(
        trial,
        state="failed",
        feasible=False,
        metrics={},
        cause="OutOfMemory: at batch 4",
        **changes,
    )


def after(*events: Mapping[str, Any], trials: int | None = 10, seconds: float = 0.0) -> Progress:
    progress = Progress(trials)
    progress.start_time -= seconds
    for event in (OBJECTIVES, *events):
        progress.update(event)
    return progress


def test_events_are_counted() -> None:
    workers = {"event": "workers", "alive": 3, "note": "worker-1 is replaced"}
    shards = [shard(0), shard(1, 4), shard(0, 3, "timing")]
    progress = after(started(0), started(1), started(2), *shards, finished(0), failed(1), workers)
    assert (progress.done, progress.failed, progress.images, progress.workers) == (2, 1, 12, 3)
    assert {number: trial.name for number, trial in progress.running.items()} == {2: "chain 2"}
    assert progress.note == "worker-1 is replaced"
    progress.update({"event": "workers", "alive": 0, "note": "no worker is running"})
    assert (progress.workers, progress.note) == (0, "no worker is running")
    progress.update({"event": "workers", "alive": 2})
    assert (progress.workers, progress.note) == (2, "")


def test_what_happens_now_is_said_in_every_state() -> None:
    progress = after({"event": "phase", "phase": "loading the models"}, trials=2)
    assert progress.activity == "loading the models"
    progress.update({"event": "phase", "phase": ""})
    assert progress.activity == "starting"
    progress.update(started(0))
    assert progress.activity == "running: 0 chain 0"
    progress.update(finished(0))
    assert progress.activity == "waiting for the next trial"
    progress.update(finished(1, state="stopped", feasible=False, cause="trial 0 is better"))
    assert progress.activity == "all trials are done"
    progress.update(started(1) | {"event": "trial_resumed"})
    assert progress.activity == "running: 1 chain 1", "a stopped trial goes on"
    progress.update({"event": "revival_failed", "trial": 1, "note": "trial 1 stays stopped"})
    assert progress.activity == "all trials are done"


def test_a_label_precedes_the_setting_and_neither_controls_the_terminal() -> None:
    event = finished(
        1, label="mine \x1b[31m\x9b2J", state="failed", cause="caption '\x1b]0;title\x07' is empty"
    )
    out = io.StringIO()
    show_lines(after(), out)(event)
    text = out.getvalue() + live(after(started(1, "a\x1b[2Jb")), event)
    assert "mine �[31m��2J: chain 1: failed: caption" in text.replace("\u009b", "�").replace(
        "�2J", "��2J"
    )
    assert not {"\x1b", "\x9b", "\x07"} & set(text)


def test_the_front_holds_the_feasible_nondominated_trials() -> None:
    whole = [
        finished(0, 1.0, 4.0),
        finished(1, 2.0, 5.0),
        finished(2, 1.5, 6.0),
        finished(5, 3, 9),
    ]
    progress = after(*whole, finished(3, 9.0, 1.0, feasible=False), failed(4))
    assert [
        (number, title(trial["label"], trial["setting"])) for number, trial in progress.front()
    ] == [
        (0, "chain 0"),
        (1, "chain 1"),
        (5, "chain 5"),
    ]
    assert after().front() == []
    assert Progress(3).front() == [], "no objectives yet"


@pytest.mark.parametrize(
    ("remaining", "text"),
    [
        (None, "? left"),
        (TimeLeft(0.4, 0.0, 20.0), "finishing"),
        (TimeLeft(60.0, 60.2, 59.8), "1:00 left"),
        (TimeLeft(600.0, 480.0, 7200.0), "10:00 left (8:00 to 2:00:00)"),
    ],
)
def test_remaining_time_has_a_range(remaining: TimeLeft | None, text: str) -> None:
    assert describe_time_left(remaining) == text
    bound = describe_time_left(remaining, is_upper_bound=True)
    assert bound == (f"at most {text}" if text[0].isdigit() else text)


class History:
    """Events of a sweep, by a clock of its own. Each trial has two shards, which take 5 s."""

    def __init__(self, trials: int | None, images: int | None = None, workers: int = 1) -> None:
        self.progress, self.now, self.number = Progress(trials, images), 100.0, 0
        self.add({"event": "workers", "alive": workers})

    def add(self, event: Mapping[str, Any], seconds: float = 0.0) -> None:
        self.now += seconds
        self.progress.update(event, self.now)

    def start(self, missing: int = 2, event: str = "trial_started") -> None:
        self.add(started(self.number) | {"event": event, "shards": missing, "total_shards": 2})

    def shard(self, seconds: float = 5.0) -> None:
        self.add(shard(self.number) | {"seconds": seconds}, seconds)

    def finish(self, **changes: Any) -> None:
        self.add(finished(self.number, **changes))
        self.number += 1

    def run(self, *seconds: float) -> None:
        """One trial with these shards, or with two that take 5 s."""
        self.start()
        for each in seconds or (5.0, 5.0):
            self.shard(each)
        self.finish()

    @property
    def left(self) -> TimeLeft | None:
        return self.progress.time_left(self.now)


@pytest.mark.parametrize(("trials", "images"), [(10, None), (None, 80), (10, 800), (100, 80)])
def test_equal_trials_leave_no_doubt(trials: int | None, images: int | None) -> None:
    history = History(trials, images)
    for _ in range(4):
        history.run()
    assert history.progress.share == pytest.approx(0.4)
    assert history.left == pytest.approx((60, 60, 60))
    history.add({"event": "note"}, 3)
    assert history.left == pytest.approx((57, 57, 57))
    history.add({"event": "note"}, 70)
    assert history.left == pytest.approx((6, 6, 6)), "the next shard is late"


def test_the_share_that_is_done_grows_with_every_shard() -> None:
    """The measurement counts as a shard."""
    history = History(4)
    assert (history.progress.share, history.left) == (0, None)
    history.start()
    history.shard()
    assert history.progress.share == pytest.approx(1 / 12)
    assert history.left == pytest.approx((55, 0.4 * 55, 1.5 * 55)), "an early estimate"
    history.finish(state="stopped")
    assert history.progress.share == pytest.approx(1 / 4)
    history.shard()
    assert history.progress.share == pytest.approx(1 / 4), (
        "a damaged shard of a finished trial is drawn again"
    )


def test_the_range_is_that_of_the_mean_so_far_and_of_the_mean_to_come() -> None:
    """Costs 4, 8, 12: mean 8, standard deviation 4; three more trials."""
    history = History(6)
    for seconds in (4.0, 8.0, 12.0):
        history.run(seconds / 2, seconds / 2)
    half = 1.645 * 4 / 8 * (1 / 3 + 1 / 3) ** 0.5 * 24
    assert history.left == pytest.approx((24, 24 - half, 24 + half))


def test_workers_that_wait_for_the_first_shards_or_are_at_work_on_others_are_no_pace() -> None:
    """Two workers prepare for 20 s, and then finish a shard every 5 s, of 10 s each: 8 trials of 2
    shards take 85 s.

    Half of the work in flight and a measurement for each trial are not seen, so estimates are up to
    a third too high.
    """
    history = History(8, workers=2)
    history.add({"event": "note"}, 20)
    values = list[tuple[float, float, float]]()
    for number in range(6):
        history.start()
        for _ in range(2):
            seconds = 5.0 if history.progress.images else 10.0
            history.add(shard(number) | {"seconds": 10.0}, seconds)
            assert history.left is not None
            values.append((history.left.low, 75 - 5 * len(values), history.left.high))
        history.finish()
    assert all(0.7 * low <= true <= 1.3 * high for low, true, high in values), values


def test_what_earlier_launches_did_takes_no_time() -> None:
    """Five trials are stored, and half of the shards of the sixth."""
    history = History(10)
    for _ in range(5):
        history.finish(new=False)
    history.start(missing=1)
    assert history.left is None
    assert history.progress.share == pytest.approx((5 + 1 / 3) / 10)
    history.shard(4.0)
    history.finish()
    assert history.left is not None
    assert history.left.value == pytest.approx(24)


def test_the_plateau_is_shown() -> None:
    progress = after(started(0), {"event": "plateau", "text": "front: +2.3 %"})
    assert "front: +2.3 %" in headline(progress)
    screen = io.StringIO()
    Console(file=screen, width=100).print(render(progress))
    assert "front: +2.3 %" in screen.getvalue()


def test_copied_images_take_no_time_and_are_not_generated() -> None:
    """Two trials are copied from an earlier sweep, in no time at all, and half of a third one."""
    history = History(10)
    for _ in range(2):
        history.start()
        for _ in range(2):
            history.add(
                shard(history.number) | {"seconds": 0.01, "taken_from": "sweeps/mine"}, 0.01
            )
        history.finish()
    assert history.left is None
    history.start()
    history.add(shard(history.number) | {"seconds": 0.01, "taken_from": "sweeps/mine"}, 0.01)
    history.shard(5.0)
    history.finish()
    history.run()
    assert history.left is not None
    assert history.left.value == pytest.approx(6 / (1 + 2 / 3) * 15, rel=0.01)
    assert (history.progress.images, history.progress.taken) == (3 * 8, 5 * 8)
    assert "24 new images and 40 taken over" in headline(history.progress)


@pytest.mark.parametrize(("trials", "images"), [(4, None), (None, 32)])
def test_images_that_will_be_copied_take_no_time(trials: int | None, images: int | None) -> None:
    """Of four trials with two shards each, the last one will be copied, and half of the third."""
    history = History(trials, images)
    history.add({"event": "copies", "copied": {2: 1, 3: 2}, "shards": 2, "images": 8})
    values = list[float]()

    def look() -> None:
        assert history.left is not None
        values.append(history.left.value)

    for _ in range(2):
        history.run()
        look()
    history.start()
    history.add(shard(2) | {"taken_from": "sweeps/mine"})
    look()
    history.shard()
    history.finish()
    look()
    assert values[:3] == pytest.approx([20, 10, 10])
    assert 0 < values[3] < 5, "the measurement of the last one"
    history.start(missing=0)
    look()
    assert values[4] == pytest.approx(values[3]), "an earlier launch copied them"
    history.add({"event": "launch"})
    history.add({"event": "workers", "alive": 1})
    history.run()
    look()
    assert values[5] == pytest.approx(30), "another launch says it anew"


def test_nothing_is_said_without_a_budget_or_workers_and_nothing_is_left_of_a_budget_that_is_spent() -> (
    None
):
    without, idle, done = History(None), History(4, workers=0), History(2)
    for history in (without, idle, done):
        history.run()
        history.run()
    assert (without.progress.share, without.left, idle.left) == (None, None, None)
    assert done.left == (0, 0, 0)
    done.start(event="trial_resumed")
    assert (done.progress.share, done.left) == (
        1,
        (0, 0, 0),
    ), "stopped trials that go on are not counted"


def test_another_cluster_begins_anew() -> None:
    history = History(4)
    history.run()
    history.add({"event": "launch"}, 1000)
    history.add({"event": "workers", "alive": 1})
    history.finish(new=False)
    assert history.left is None
    history.run()
    assert history.left is not None
    assert history.left.value == pytest.approx(20)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0:00"), (59.6, "1:00"), (247, "4:07"), (3599, "59:59"), (7800, "2:10:00")],
)
def test_durations(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text


def test_headline() -> None:
    text = headline(
        after(
            shard(0, 40),
            {"event": "workers", "alive": 2},
            finished(0),
            failed(1),
            finished(2),
            seconds=21,
        )
    )
    assert (
        text
        == "30 % · 3/10 trials, 1 failed · 40 images, 1.9/s · 2 workers · 0:21 elapsed · 0:01 left "
        "(0:00 to 0:02)"
    )
    assert headline(after(trials=None)).startswith("0 trials · 0 images, ")
    assert headline(after(finished(0, new=False))).startswith("10 % · 1/10 trials · 0 new images, ")


def test_the_headline_does_not_claim_that_a_running_sweep_is_done() -> None:
    """The last of 200 trials waits for its measurement, then the sweep for its last steps."""
    workers, whole = {"event": "workers", "alive": 2}, [finished(number) for number in range(199)]
    progress = after(workers, *whole, started(199), shard(199), trials=200)
    assert headline(progress).startswith("99 % · 199/200 trials")
    progress.update(finished(199))
    assert headline(progress).startswith("99 % · 200/200 trials")
    assert headline(progress).endswith(" · finishing")


def test_a_finished_trial_ends_the_note_before_it() -> None:
    note = {
        "event": "note",
        "note": "worker-1 has run a shard for 62 s; another worker runs it too",
    }
    progress = after(note, finished(0, new=False))
    assert progress.note == note["note"], "an earlier launch finished that trial"
    progress.update(finished(1))
    assert progress.note == ""


def test_the_line_of_a_finished_trial() -> None:
    progress = after()
    assert (
        trial_line(finished(3, 1.2345, 5), progress)
        == "trial 3, chain 3: speedup 1.234, fid 5.00 ± 0.25"
    )
    assert trial_line(finished(3, feasible=False), progress).endswith("; infeasible")
    assert trial_line(failed(4), progress) == "trial 4, chain 4: failed: OutOfMemory: at batch 4"


def test_plain_lines() -> None:
    progress, out = after(), io.StringIO()
    show = show_lines(progress, out)
    for event in (
        {"event": "phase", "phase": "loading the models"},
        shard(0),
        shard(0),
        finished(0, new=False),
        finished(1),
    ):
        progress.update(event)
        show(event)
    lines = out.getvalue().splitlines()
    assert lines[0] == "loading the models"
    assert lines[1].startswith("0 % · 0/10 trials · 8 images")
    assert lines[2:] == ["trial 1, chain 1: speedup 1, fid 5.00 ± 0.25"], (
        "one headline; old trials in none"
    )


def test_a_second_cluster_counts_no_trial_twice() -> None:
    """After another `launch` the driver emits the finished trials again."""
    launch = {"event": "launch"}
    progress = Progress(3)
    for event in (
        launch,
        OBJECTIVES,
        started(0),
        shard(0),
        finished(0),
        started(1),
        launch,
        finished(0, new=False),
    ):
        progress.update(event)
    assert (progress.done, progress.images, progress.running) == (1, 8, {})
    assert len(progress.front()) == 1


def test_json_has_every_event(capsys: pytest.CaptureFixture[str]) -> None:
    show_json(finished(0, setting="ring “ü”"))
    show_json(shard(1))
    lines = capsys.readouterr().out.splitlines()
    assert [json.loads(line) for line in lines] == [finished(0, setting="ring “ü”"), shard(1)]


def live(progress: Progress, *events: Mapping[str, Any], width: int = 100) -> str:
    """The live view after these events, on a terminal of that width, below the lines that they left
    above it.
    """
    above, view = (
        Console(
            record=True, width=width, force_terminal=True, file=io.StringIO(), color_system=None
        )
        for _ in range(2)
    )
    with show_live(progress, above) as show:
        for event in events:
            progress.update(event)
            show(event)
        view.print(render(progress))
    lines = [
        line for line in above.export_text().splitlines() if line.startswith(("trial ", "lost "))
    ]
    return "\n".join([*lines, view.export_text()])


def test_the_live_view() -> None:
    progress, note = (
        after(started(3, "[bold]x[/bold]")),
        {"event": "note", "note": "tables not written: disk full"},
    )
    whole = [finished(0, 1.0, 4.0), finished(1, 2.0, 5.0), finished(2, 0.5, 6.0)]
    text = live(progress, *whole, failed(4), failed(5, new=False), note)
    assert "5/10 trials, 2 failed" in text
    assert "running: 3 [bold]x[/bold]" in text, "not read as markup"
    assert "tables not written: disk full" in text
    assert "━" in text, "the bar"
    rows = [line.split() for line in text.splitlines() if "chain" in line]
    assert ["0", "chain", "0", "1", "4.00", "±", "0.25"] in rows
    assert ["1", "chain", "1", "2", "5.00", "±", "0.25"] in rows
    assert not any(row[0] == "2" for row in rows), "trial 2 is dominated"
    assert text.count("failed: OutOfMemory: at batch 4") == 1, (
        "an earlier run showed that of trial 5"
    )


@pytest.mark.parametrize("label", ["[/a]", "a[link=http://x]b", "chain [/4]", "[bold]x"])
def test_the_live_view_shows_names_as_they_are(label: str) -> None:
    progress = after(finished(0, label=label))
    progress.objectives = ((f"{label} speedup", "maximize"), ("fid", "minimize"))
    progress.candidates[0]["metrics"][f"{label} speedup"] = 1.0
    text = live(
        progress,
        started(1, label),
        failed(2, label=label),
        {"event": "phase", "phase": label, "note": label},
    )
    assert f"{label}: chain 0" in text
    assert f"{label} speedup" in text
    assert f"{label}: chain 2: failed" in text
    assert f"running: 1 {label}" in text


def test_a_long_sweep_fits_80_columns() -> None:
    """Hours, hundreds of trials, failed and stopped ones: nothing is folded."""
    ends = [failed(number) for number in range(10)]
    ends += [
        finished(n, state="stopped", feasible=False, images=9, cause="") for n in range(10, 40)
    ]
    trials = []
    for n in range(40, 44):
        trials += [started(n), shard(n, 90_000) | {"seconds": 1000.0 * n}, finished(n)]
    progress = Progress(400, start_time=time.monotonic() - 90_000)
    progress.update({"event": "workers", "alive": 16}, progress.start_time)
    for event in (OBJECTIVES, *ends, *trials):
        progress.update(event)
    lines = live(progress, width=80).splitlines()
    assert max(map(len, lines)) <= 80
    assert any(" left (" in line for line in lines)
    assert any(line.startswith("44/400 trials, 10 failed, 30 stopped early · ") for line in lines)
    assert any(
        line.startswith("360000 images, ") and line.endswith(" · 16 workers") for line in lines
    )


def test_running_trials_are_listed_by_their_labels() -> None:
    progress = after(
        started(0, "eagle-chain4 exact") | {"label": "exact"}, started(1, "eagle-chain5 additive")
    )
    assert progress.activity == "running: 0 exact, 1 eagle-chain5 additive"


def test_a_finished_sweep_leaves_one_line() -> None:
    """The summary shows the front. An interrupted sweep has none."""
    console = Console(
        record=True, width=80, force_terminal=True, file=io.StringIO(), color_system=None
    )
    progress = after(finished(0), finished(1, 2.0, 6.0), trials=2)
    with show_live(progress, console):
        console.clear()
    assert [line.split(" · ")[0] for line in console.export_text().splitlines()] == ["2/2 trials"]
    progress, console.record = after(finished(0), trials=2), True
    with pytest.raises(KeyboardInterrupt), show_live(progress, console):
        raise KeyboardInterrupt
    assert "on the front so far" in console.export_text()


def test_a_lost_worker_is_said_until_the_end(capsys: pytest.CaptureFixture[str]) -> None:
    """The note of the view goes when the next trial ends; the line above the view stays."""
    lost = lost_event("worker-1 on node-b", "no heartbeat for 60 s", alive=1)
    text = live(
        after(),
        {"event": "workers", "alive": 2},
        lost,
        {"event": "workers", "alive": 2},
        finished(0),
    )
    assert text.count("worker-1 on node-b") == 1
    show_lines(after())(lost)
    assert "worker-1 on node-b" in capsys.readouterr().err


def test_a_narrow_terminal_keeps_one_line_for_running_trials() -> None:
    progress = after(
        *(started(number, "a very long description of a setting") for number in range(8))
    )
    text = live(progress, width=60)
    running = [line for line in text.splitlines() if "running" in line]
    assert running
    assert all(len(line) <= 60 for line in text.splitlines())
    assert running[-1].rstrip().endswith("…")


def test_the_view_suits_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    progress = Progress(3)
    kinds = ("show_live", "show_lines")
    for kind in kinds:
        monkeypatch.setattr(f"orchestrator.run.progress.{kind}", lambda _, kind=kind: kind)
    with choose_view(progress, as_json=True) as show:
        assert show is show_json
    monkeypatch.setattr(sys.stderr, "isatty", lambda: False, raising=False)
    with choose_view(progress, as_json=False) as show:
        assert repr(show) == "'show_lines'"
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    assert repr(choose_view(progress, as_json=False)) == "'show_live'"


def test_all_events_go_into_a_file_with_their_time(tmp_path: Path) -> None:
    progress, file = Progress(3), tmp_path / "events.jsonl"
    for _ in range(2):  # a resumed sweep writes on
        emit = event_sink(progress, show_lines(progress, io.StringIO()), file)
        emit(OBJECTIVES)
        emit(finished(0))
    lines = [json.loads(line) for line in file.read_text("utf-8").splitlines()]
    assert [line["event"] for line in lines] == ["identity", "trial_finished"] * 2
    assert all(time.strptime(line["at"][:19], "%Y-%m-%dT%H:%M:%S") for line in lines)
    assert progress.done == 2


def test_what_the_driver_tells_is_what_is_shown(tmp_path: Path) -> None:
    """Every event of the driver, shown as lines."""
    from tests.orchestrator.run.test_driver import run, sweep

    config, out = sweep(tmp_path, changes={"constraints": ["fid <= 1.2 * vanilla"]}), io.StringIO()
    progress = Progress(config.budget.trials)
    progress.update(OBJECTIVES)
    outcome = run(
        config,
        tmp_path / "store",
        InstantWorkers(),
        emit=event_sink(progress, show_lines(progress, out), None),
    )
    lines = [line for line in out.getvalue().splitlines() if line.startswith("trial ")]
    assert len(lines) == progress.done == 24
    assert lines[0].startswith("trial 0, vanilla: speedup 1.")
    assert any(line.startswith("trial 3, eagle-chain") for line in lines), (
        "a proposal without a label shows its setting"
    )
    beyond = [record for record in outcome.records if not record.feasible]
    assert sum(line.endswith("infeasible") for line in lines) == len(beyond) > 0
    assert progress.running == {}
    assert {number for number, _ in progress.front()} <= {
        r.number for r in outcome.records if r.feasible
    }


def test_stopped_trials_are_counted_and_are_no_candidates() -> None:
    stop = finished(
        3, 9.0, 1.0, state="stopped", feasible=False, cause="trial 1 is better", images=48
    )
    progress = after(finished(0), finished(1), stop)
    assert (progress.done, progress.failed, progress.stopped) == (3, 0, 1)
    assert 3 not in progress.candidates
    assert "1 stopped early" in headline(progress)
    line = trial_line(stop, progress)
    assert "48 images" in line
    assert line.endswith("trial 1 is better")
    progress = after(
        finished(0), finished(1), stop, {**finished(3, 9.0, 1.0), "event": "trial_revived"}
    )
    assert (progress.done, progress.stopped) == (3, 0)
    assert 3 in progress.candidates
