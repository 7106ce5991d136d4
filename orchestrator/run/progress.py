"""Progress of a sweep: a live view on a terminal, else lines or JSON events; all events also go to
a file.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from orchestrator.errors import explain
from orchestrator.run.time_left import describe_time_left, estimate_time_left, format_duration
from orchestrator.store import events
from orchestrator.store.names import title, trial_title
from orchestrator.store.progress import SweepProgress
from orchestrator.streams import drop_lost_terminal
from orchestrator.text import clean, counted
from workers.metrics.estimate import measured

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

_LINE_INTERVAL_S = 5.0  # between lines about finished shards
_BAR_WIDTH = 20  # columns
_MAX_SHARE = 0.99  # the most that is shown: a sweep is done when its launch returns


def activity(progress: SweepProgress) -> str:
    """What happens now, in one line."""
    if progress.running:
        trials = sorted(progress.running.items())
        return "running: " + ", ".join(f"{number} {trial.name}" for number, trial in trials)
    if progress.timing:
        return progress.timing_text
    if progress.phase:
        return progress.phase
    if progress.planned is not None and progress.done >= progress.planned:
        return "all trials are done"
    return "waiting for the next trial" if progress.done else "starting"


def front_so_far(progress: SweepProgress) -> list[events.TrialResult]:
    """The nondominated trials, ordered by the first objective."""
    import numpy as np

    from orchestrator.front.pareto import nondominated

    names = [objective.metric for objective in progress.objectives]
    rows = [trial for trial in progress.candidates.values() if trial.metrics.keys() >= set(names)]
    if not rows or not names:
        return []
    values = np.array([[trial.metrics[name] for name in names] for trial in rows], dtype=float)
    on_front = nondominated(values, [objective.direction for objective in progress.objectives])
    front = [row for row, kept in zip(rows, on_front, strict=True) if kept]
    return sorted(front, key=lambda trial: trial.metrics[names[0]])


def headline(progress: SweepProgress) -> str:
    """The sweep's state in one line."""
    parts = [_trials(progress), _rate(progress), _elapsed(progress), _time_left(progress)]
    if progress.share is not None:
        parts.insert(0, f"{_percent(progress)} %")
    if progress.plateau is not None:
        parts.append(progress.plateau.text)
    return " · ".join(parts)


def _percent(progress: SweepProgress) -> int:
    return int(100 * min(progress.share or 0.0, _MAX_SHARE))


def _trials(progress: SweepProgress) -> str:
    text = f"{progress.done}"
    if progress.planned:
        text += f"/{progress.planned}"
    text += " trials"
    if progress.failed:
        text += f", {progress.failed} failed"
    if progress.stopped:
        text += f", {progress.stopped} stopped early"
    return text


def _rate(progress: SweepProgress) -> str:
    """Images of this process, copied ones apart, and its workers."""
    copied = progress.copied.total()
    generated = progress.images.total() - copied
    text = f"{generated} new images" if progress.has_earlier_work else f"{generated} images"
    if copied:
        text += f" and {copied} taken over"
    rate = generated / max(_elapsed_s(progress), 1e-9)
    return f"{text}, {rate:.1f}/s · {counted(progress.workers or 0, 'worker')}"


def _elapsed_s(progress: SweepProgress) -> float:
    return time.monotonic() - progress.start_time


def _elapsed(progress: SweepProgress) -> str:
    return f"{format_duration(_elapsed_s(progress))} elapsed"


def _time_left(progress: SweepProgress) -> str:
    left = estimate_time_left(progress, time.monotonic())
    return describe_time_left(left, is_upper_bound=progress.is_upper_bound)


def show_lines(progress: SweepProgress, out: TextIO | None = None) -> events.EventSink:
    """Shows events as lines for logs: phases, each finished trial, and the headline every few
    seconds.
    """
    last = 0.0

    def write(text: str) -> None:
        print("\n".join(map(clean, text.split("\n"))), file=out or sys.stderr, flush=True)

    def show(event: events.Event) -> None:
        nonlocal last
        match event:
            case events.TrialRevived() | events.TrialFinished(new=True):
                write(trial_line(event, progress))
            case events.Event(note=str(text)) | events.Phase(phase=text) if text:
                write(text)
            case events.Timing() if event.settings:
                write(event.text)
            case events.Shard() if time.monotonic() - last > _LINE_INTERVAL_S:
                last = time.monotonic()
                write(headline(progress))

    return show


def trial_line(event: events.TrialResult, progress: SweepProgress) -> str:
    """A trial that has a new record in one line."""
    name = clean(trial_title(event.trial, event.label, event.setting))
    if event.state == "failed":
        return f"{name}: failed: {event.cause}"
    if event.state == "stopped" and isinstance(event, events.TrialRevived):
        return f"{name}: revived, {event.images} images so far"
    if event.state == "stopped":
        return f"{name}: stopped at {event.images} images: {event.cause}"
    values = [
        f"{objective.metric} {_measured(event, objective)}"
        for objective in progress.objectives
        if objective.metric in event.metrics
    ]
    text = f"{name}: {', '.join(values)}"
    return text if event.feasible else f"{text}; infeasible"


def _measured(trial: events.TrialResult, objective: events.Objective) -> str:
    return measured(trial.metrics[objective.metric], trial.errors.get(objective.metric))


def show_json(event: events.Event) -> None:
    """Prints an event as one JSON line on standard output."""
    print(json.dumps(event.to_mapping(), ensure_ascii=False), flush=True)


@contextmanager
def show_live(
    progress: SweepProgress, console: Console | None = None
) -> Iterator[events.EventSink]:
    """A view that redraws itself: headline, running trials, and the front so far. After the launch
    has returned, one line is left, because the summary shows the front.
    """
    from rich.console import Console
    from rich.live import Live

    console = console or Console(stderr=True)
    draw = render
    with Live(console=console, refresh_per_second=4, get_renderable=lambda: draw(progress)) as live:

        def write(line: str, style: str) -> None:
            live.console.print(clean(line), style=style, markup=False, highlight=False)

        def show(event: events.Event) -> None:
            match event:
                case events.TrialFinished(new=True, state="failed"):
                    write(trial_line(event, progress), "red")
                case events.Workers(lost=str(), note=str(note)):
                    write(note, "yellow")  # the next trial that ends replaces that of the view

        yield show
        draw = _render_end


def render(progress: SweepProgress) -> RenderableType:
    """The live view."""
    from rich.console import Group
    from rich.progress_bar import ProgressBar
    from rich.table import Table
    from rich.text import Text

    state = Table.grid(padding=(0, 1))
    if progress.share is not None:
        percent = _percent(progress)
        state.add_row(
            ProgressBar(completed=percent, width=_BAR_WIDTH), f"{percent:2} %", _time_left(progress)
        )
    trials = Text(f"{_trials(progress)} · {_elapsed(progress)}")
    running = Text(clean(activity(progress)), overflow="ellipsis", no_wrap=True)
    notes = []
    if progress.note:
        notes.append(Text(clean(progress.note), style="yellow"))
    if progress.running:
        waits = filter(None, (progress.phase, progress.timing_text))
        notes += [Text(clean(text), style="cyan") for text in waits]
    if progress.plateau is not None:
        notes.append(Text(progress.plateau.text, style="dim"))
    front: list[RenderableType] = []
    if rows := front_so_far(progress):
        front = ["", "on the front so far", _front_table(progress, rows)]
    return Group(state, trials, Text(_rate(progress)), running, *notes, *front)


def _render_end(progress: SweepProgress) -> RenderableType:
    from rich.text import Text

    return Text(f"{_trials(progress)} · {_elapsed(progress)} · {_rate(progress)}")


def _front_table(progress: SweepProgress, rows: Sequence[events.TrialResult]) -> RenderableType:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, show_edge=False, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("trial", justify="right")
    table.add_column("setting", overflow="fold")
    for objective in progress.objectives:
        table.add_column(Text(clean(objective.metric)), justify="right", no_wrap=True)
    for trial in rows:
        values = [Text(_measured(trial, objective)) for objective in progress.objectives]
        for value in values:
            value.highlight_regex(r"± .*", "dim")
        setting = clean(title(trial.label, trial.setting))
        table.add_row(str(trial.trial), Text(setting), *values)
    return table


def choose_view(
    progress: SweepProgress, *, as_json: bool
) -> AbstractContextManager[events.EventSink]:
    """Shows events as JSON if `as_json`, else in a live view on a terminal, else as lines."""
    if as_json:
        return nullcontext(show_json)
    if sys.stderr.isatty():
        return show_live(progress)
    return nullcontext(show_lines(progress))


def event_sink(
    progress: SweepProgress, show: events.EventSink, file: Path | None
) -> events.EventSink:
    """A sink that passes each event to the progress, to a JSON lines file, and to `show`."""

    def emit(event: events.Event) -> None:
        progress.update(event)
        try:
            if file is not None:
                events.append_event(file, event)
        finally:
            drop_lost_terminal()  # of a disowned command
            show(event)

    return emit


@contextmanager
def recorded_end(emit: events.EventSink) -> Iterator[None]:
    """Emit how the block ended: finished, interrupted, or failed and why."""
    try:
        yield
    except BaseException as error:
        end = events.End("failed")
        if isinstance(error, KeyboardInterrupt):
            end = events.End("interrupted")
        elif isinstance(error, Exception):
            end = events.End("failed", explain(error).partition("\n")[0])
        with suppress(OSError):  # of a full disk, which the launch's own error names
            emit(end)
        raise
    emit(events.End("finished"))
