"""Progress of a sweep: its state from events, as lines, as JSON, and on a terminal."""

from __future__ import annotations

import io
import json
import sys
import time
from pathlib import Path

import pytest
from rich.console import Console

from benchmarks.instant import InstantWorkers
from orchestrator.run.progress import (
    activity,
    choose_view,
    event_sink,
    front_so_far,
    headline,
    render,
    show_json,
    show_lines,
    show_live,
    trial_line,
)
from orchestrator.store import events
from orchestrator.store.names import title
from orchestrator.store.progress import SweepProgress
from tests.fakes.sweep_events import OBJECTIVES, after, failed, finished, revived, shard, started


def test_what_happens_now_is_said_in_every_state() -> None:
    progress = after(events.Phase("loading the models"), trials=2)
    assert activity(progress) == "loading the models"
    progress.update(events.Phase(""))
    assert activity(progress) == "starting"
    progress.update(started(0))
    assert activity(progress) == "running: 0 chain 0"
    progress.update(finished(0))
    assert activity(progress) == "waiting for the next trial"
    progress.update(finished(1, state="stopped", feasible=False, cause="trial 0 is better"))
    assert activity(progress) == "all trials are done"
    progress.update(started(1, kind=events.TrialResumed))
    assert activity(progress) == "running: 1 chain 1", "a stopped trial goes on"
    progress.update(events.RevivalFailed(1, note="trial 1 stays stopped"))
    assert activity(progress) == "all trials are done"
    progress.update(events.Timing("worker-1", 3))
    assert activity(progress) == "timing 3 settings on worker-1"
    progress.update(events.Timing("worker-1", 0))
    assert activity(progress) == "all trials are done"


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
        (trial.trial, title(trial.label, trial.setting)) for trial in front_so_far(progress)
    ] == [
        (0, "chain 0"),
        (1, "chain 1"),
        (5, "chain 5"),
    ]
    assert front_so_far(after()) == []
    assert front_so_far(SweepProgress(3)) == [], "no objectives yet"


def test_the_plateau_is_shown() -> None:
    progress = after(started(0), events.Plateau(0.01, 5, 5, 0.023, False, "front: +2.3 %"))
    assert "front: +2.3 %" in headline(progress)
    screen = io.StringIO()
    Console(file=screen, width=100).print(render(progress))
    assert "front: +2.3 %" in screen.getvalue()


def test_headline() -> None:
    text = headline(
        after(
            shard(0, 40),
            events.Workers(2),
            finished(0),
            failed(1),
            finished(2),
            seconds=21,
        )
    )
    assert (
        text
        == "30 % · 3/10 trials, 1 failed · 40 images, 1.9/s · 2 workers · 0:21 elapsed · 0:01 left "
        "(0:01 to 0:03)"
    )
    assert headline(after(trials=None)).startswith("0 trials · 0 images, ")
    assert headline(after(finished(0, new=False))).startswith("10 % · 1/10 trials · 0 new images, ")


def test_the_headline_does_not_claim_that_a_running_sweep_is_done() -> None:
    """The last of 200 trials waits for its measurement, then the sweep for its last steps."""
    workers, whole = events.Workers(2), [finished(number) for number in range(199)]
    progress = after(workers, *whole, started(199), shard(199), trials=200)
    assert headline(progress).startswith("99 % · 199/200 trials")
    progress.update(finished(199))
    assert headline(progress).startswith("99 % · 200/200 trials")
    assert headline(progress).endswith(" · finishing")


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
        events.Phase("loading the models"),
        shard(0),
        shard(0),
        events.Timing("worker-1", 3),
        events.Timing("worker-1", 0),
        finished(0, new=False),
        finished(1),
    ):
        progress.update(event)
        show(event)
    lines = out.getvalue().splitlines()
    assert lines[0] == "loading the models"
    assert lines[1].startswith("0 % · 0/10 trials · 8 images")
    assert lines[2:] == [
        "timing 3 settings on worker-1",
        "trial 1, chain 1: speedup 1, fid 5.00 ± 0.25",
    ], "one headline; old trials in none"


def test_json_has_every_event(capsys: pytest.CaptureFixture[str]) -> None:
    given = finished(0, setting="ring “ü”"), shard(1)
    for event in given:
        show_json(event)
    lines = capsys.readouterr().out.splitlines()
    assert [json.loads(line) for line in lines] == [event.to_mapping() for event in given]


def live(progress: SweepProgress, *given: events.Event, width: int = 100) -> str:
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
        for event in given:
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
        events.Note(note="tables not written: disk full"),
    )
    whole = [finished(0, 1.0, 4.0), finished(1, 2.0, 5.0), finished(2, 0.5, 6.0)]
    timing = events.Timing("worker-1", 7)
    text = live(progress, *whole, failed(4), failed(5, new=False), note, timing)
    assert "5/10 trials, 2 failed" in text
    assert "running: 3 [bold]x[/bold]" in text, "not read as markup"
    assert "timing 7 settings on worker-1" in text
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
    progress = after()
    metric = events.Objective(f"{label} speedup", "maximize")
    progress.objectives = (metric, events.Objective("fid", "minimize"))
    progress.update(finished(0, label=label, metrics={metric.metric: 1.0, "fid": 5.0}))
    text = live(
        progress,
        started(1, label),
        failed(2, label=label),
        events.Phase(label, note=label),
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
        trials += [started(n), shard(n, 90_000, seconds=1000.0 * n), finished(n)]
    progress = SweepProgress(400, start_time=time.monotonic() - 90_000)
    progress.update(events.Workers(16), progress.start_time)
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
        started(0, "eagle-chain4 exact", label="exact"), started(1, "eagle-chain5 additive")
    )
    assert activity(progress) == "running: 0 exact, 1 eagle-chain5 additive"


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
    lost = events.Workers.losing("worker-1 on node-b", "no heartbeat for 60 s", alive=1)
    text = live(
        after(),
        events.Workers(2),
        lost,
        events.Workers(2),
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
    progress = SweepProgress(3)
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
    progress, file = SweepProgress(3), tmp_path / "events.jsonl"
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
    progress = SweepProgress(config.budget.trials)
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
    assert {trial.trial for trial in front_so_far(progress)} <= {
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
    progress = after(finished(0), finished(1), stop, revived(3, 9.0, 1.0))
    assert (progress.done, progress.stopped) == (3, 0)
    assert 3 in progress.candidates
