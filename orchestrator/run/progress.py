"""Progress of a sweep: a live view on a terminal, else lines or JSON events; all events also go to a file."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from orchestrator.results.json_lines import append_line
from orchestrator.run.forecast import Forecast, Range
from orchestrator.run.pending import utc_now
from orchestrator.run.tasks import Event, EventSink

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

_LINE_INTERVAL_S = 5.0  # between lines about finished shards


@dataclass
class Progress:
    """The state of a sweep, updated by its events.

    objectives: metric and direction. candidates: summary and metrics of the trials that meet the constraints, by trial
    number.
    """

    planned: int | None
    objectives: tuple[tuple[str, str], ...] = ()
    done: int = 0
    failed: int = 0
    stopped: int = 0
    images: int = 0
    running: dict[int, str] = field(default_factory=dict)
    candidates: dict[int, tuple[str, Mapping[str, float]]] = field(default_factory=dict)
    note: str = ""
    workers: int = 0
    start_time: float = field(default_factory=time.monotonic)
    forecast: Forecast = field(default_factory=Forecast)

    def update(self, event: Event) -> None:
        kind = event["event"]
        self.forecast.update(event, time.monotonic())
        if kind == "launch":  # workers start once more: the driver emits every trial again
            self.done = self.failed = self.stopped = self.workers = 0
            self.running.clear()
        elif kind == "trial_started":
            self.running[event["trial"]] = event["summary"]
        elif kind == "shard" and event["kind"] == "quality":
            self.images += event["images"]
        elif kind == "trial_finished":
            self.running.pop(event["trial"], None)
            self.done += 1
            self.failed += event["state"] == "failed"
            self.stopped += event["state"] == "stopped"
            if event["feasible"]:
                self.candidates[event["trial"]] = (event["summary"], event["metrics"])
        elif kind == "trial_revived":
            self.stopped -= event["state"] != "stopped"
            if event["feasible"]:
                self.candidates[event["trial"]] = (event["summary"], event["metrics"])
        elif kind == "workers":
            self.workers = event["alive"]
        elif kind == "identity":
            self.objectives = tuple((entry["metric"], entry["direction"]) for entry in event["objectives"])
        self.note = event.get("note", self.note)

    @property
    def elapsed(self) -> float:
        """Seconds since the start of this run."""
        return time.monotonic() - self.start_time

    @property
    def images_per_second(self) -> float:
        return self.images / max(self.elapsed, 1e-9)

    def front(self) -> list[tuple[int, str, Mapping[str, float]]]:
        """Number, summary and metrics of the nondominated trials, ordered by the first objective."""
        from orchestrator.results.pareto import nondominated

        names, directions = [name for name, _ in self.objectives], [direction for _, direction in self.objectives]
        rows = [(n, summary, m) for n, (summary, m) in self.candidates.items() if all(name in m for name in names)]
        if not rows or not names:
            return []
        import numpy as np

        mask = nondominated(np.array([[m[name] for name in names] for _, _, m in rows], dtype=float), directions)
        return sorted((row for row, kept in zip(rows, mask, strict=True) if kept), key=lambda row: row[2][names[0]])


def format_duration(seconds: float) -> str:
    """`4:07` or `2:10:00`."""
    total = round(seconds)
    hours, minutes = divmod(total // 60, 60)
    return f"{hours}:{minutes:02d}:{total % 60:02d}" if hours else f"{minutes}:{total % 60:02d}"


def describe_remaining(remaining: Range | None) -> str:
    """`49:00 left (35:00 to 63:00)`."""
    if remaining is None:
        return "? left"
    value, low, high = (format_duration(seconds) for seconds in remaining)
    return f"{value} left" + (f" ({low} to {high})" if low != high else "")


def headline(progress: Progress) -> str:
    """The sweep's state in one line."""
    failed = f", {progress.failed} failed" if progress.failed else ""
    failed += f", {progress.stopped} stopped early" if progress.stopped else ""
    total = f"/{progress.planned}" if progress.planned else ""
    workers = f"{progress.workers} worker{'' if progress.workers == 1 else 's'}"
    return (
        f"{progress.done}{total} trials{failed} · {progress.images} images, {progress.images_per_second:.1f}/s · "
        f"{workers} · {format_duration(progress.elapsed)} elapsed, "
        f"{describe_remaining(progress.forecast.remaining(time.monotonic()))}"
    )


def show_lines(progress: Progress, out: TextIO | None = None) -> EventSink:
    """Shows events as lines for logs: each finished trial, and the headline every few seconds."""
    last = 0.0

    def show(event: Event) -> None:
        nonlocal last
        if event["event"] == "trial_revived" or (event["event"] == "trial_finished" and event["new"]):
            print(trial_line(event, progress), file=out or sys.stderr, flush=True)
        elif event.get("note"):
            print(event["note"], file=out or sys.stderr, flush=True)
        elif event["event"] == "shard" and time.monotonic() - last > _LINE_INTERVAL_S:
            last = time.monotonic()
            print(headline(progress), file=out or sys.stderr, flush=True)

    return show


def trial_line(event: Event, progress: Progress) -> str:
    """A finished trial in one line."""
    if event["state"] == "failed":
        return f"trial {event['trial']} failed: {event['cause']}"
    metrics = event["metrics"]
    values = ", ".join(f"{name} {metrics[name]:.3g}" for name, _ in progress.objectives if name in metrics)
    if event["state"] == "stopped" and event["event"] == "trial_revived":
        return f"trial {event['trial']} {event['summary']}: revived, {event['images']} images so far"
    if event["state"] == "stopped":
        return f"trial {event['trial']} {event['summary']}: stopped at {event['images']} images: {event['cause']}"
    return f"trial {event['trial']} {event['summary']}: {values}" + ("" if event["feasible"] else "; infeasible")


def show_json(event: Event) -> None:
    """Prints an event as one JSON line on standard output."""
    print(json.dumps(event, ensure_ascii=False), flush=True)


@contextmanager
def show_live(progress: Progress, console: Console | None = None) -> Iterator[EventSink]:
    """A view that redraws itself: headline, running trials, and the front so far."""
    from rich.console import Console
    from rich.live import Live

    console = console or Console(stderr=True)
    with Live(console=console, refresh_per_second=4, get_renderable=lambda: render(progress)) as live:

        def show(event: Event) -> None:
            if event["event"] == "trial_finished" and event["new"] and event["state"] == "failed":
                live.console.print(trial_line(event, progress), markup=False, highlight=False)

        yield show


def render(progress: Progress) -> RenderableType:
    """The live view."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    running = ", ".join(f"{number} {summary}".strip() for number, summary in sorted(progress.running.items()))
    table = Table(box=None, pad_edge=False)
    for column in ("trial", "config on the front", *(name for name, _ in progress.objectives)):
        table.add_column(column, justify="left" if column.startswith("config") else "right")
    for number, summary, metrics in progress.front():
        table.add_row(str(number), Text(summary), *(f"{metrics[name]:.3f}" for name, _ in progress.objectives))
    state = Text(f"running: {running or 'starting'}", overflow="ellipsis", no_wrap=True)
    note = [Text(progress.note)] if progress.note else []
    return Group(Text(headline(progress)), state, *note, table)


def choose_view(progress: Progress, *, as_json: bool) -> AbstractContextManager[EventSink]:
    """Shows events as JSON if `as_json`, else in a live view on a terminal, else as lines."""
    if as_json:
        return nullcontext(show_json)
    return show_live(progress) if sys.stderr.isatty() else nullcontext(show_lines(progress))


def event_sink(progress: Progress, show: EventSink, file: Path | None) -> EventSink:
    """A sink that adds the time to each event and passes it to the progress, to `show` and to a JSON lines file."""

    def emit(event: Event) -> None:
        stamped = {"at": utc_now(), **event}
        progress.update(stamped)
        show(stamped)
        if file is not None:
            append_line(file, stamped, sync=False)

    return emit
