"""Seeing a sweep run: a live view on a terminal, plain lines elsewhere, JSON events for machines, and a file of all
events.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from orchestrator.run.pending import now

if TYPE_CHECKING:
    from rich.console import RenderableType

Event = Mapping[str, Any]
ENOUGH = 3  # trials from which the time to go is told
PLAIN_EVERY = 5.0  # seconds between plain lines about shards


@dataclass
class Status:
    """Where a sweep stands, as its events tell."""

    trials: int | None
    objectives: tuple[tuple[str, str], ...] = ()  # metric, direction
    done: int = 0
    failed: int = 0
    images: int = 0
    in_flight: dict[int, str] = field(default_factory=dict)
    points: dict[int, tuple[str, Mapping[str, float]]] = field(default_factory=dict)  # within the constraints
    note: str = ""
    workers: int = 0
    began: float = field(default_factory=time.monotonic)
    fresh: int = 0  # trials finished since `began`

    def take(self, event: Event) -> None:
        """Learn from one event."""
        kind = event["event"]
        if kind == "trial_started":
            self.in_flight[event["trial"]] = event["words"]
        elif kind == "shard" and event["kind"] == "quality":
            self.images += event["images"]
        elif kind == "trial_finished":
            self._told(event)
        elif kind == "workers":
            self.workers = event["alive"]
        elif kind == "identity":
            self.objectives = tuple((entry["metric"], entry["direction"]) for entry in event["objectives"])
        self.note = event.get("note", self.note)

    def _told(self, event: Event) -> None:
        self.in_flight.pop(event["trial"], None)
        self.done += 1
        self.fresh += event["new"]
        self.failed += event["state"] == "failed"
        if event["feasible"]:
            self.points[event["trial"]] = (event["words"], event["metrics"])

    @property
    def elapsed(self) -> float:
        return time.monotonic() - self.began

    @property
    def rate(self) -> float:
        """Images a second since the start."""
        return self.images / max(self.elapsed, 1e-9)

    @property
    def remaining(self) -> float | None:
        """Seconds to go at the pace so far; None while nothing can be said."""
        if not self.trials or self.fresh < ENOUGH:
            return None
        return self.elapsed / self.fresh * max(self.trials - self.done, 0)

    def front(self) -> list[tuple[int, str, Mapping[str, float]]]:
        """The nondominated trials so far, by the first objective."""
        from orchestrator.results.pareto import nondominated

        names, directions = [name for name, _ in self.objectives], [way for _, way in self.objectives]
        rows = [(n, words, m) for n, (words, m) in self.points.items() if all(name in m for name in names)]
        if not rows or not names:
            return []
        import numpy as np

        keep = nondominated(np.array([[m[name] for name in names] for _, _, m in rows], dtype=float), directions)
        return sorted((row for row, kept in zip(rows, keep, strict=True) if kept), key=lambda row: row[2][names[0]])


def clock(seconds: float | None) -> str:
    """e.g. 4:07, 2:10:00; a question mark for None."""
    if seconds is None:
        return "?"
    whole = round(seconds)
    hours, minutes = divmod(whole // 60, 60)
    return f"{hours}:{minutes:02d}:{whole % 60:02d}" if hours else f"{minutes}:{whole % 60:02d}"


def headline(status: Status) -> str:
    """The state in one line."""
    failed = f", {status.failed} failed" if status.failed else ""
    total = f"/{status.trials}" if status.trials else ""
    workers = f"{status.workers} worker{'' if status.workers == 1 else 's'}"
    return (
        f"{status.done}{total} trials{failed} · {status.images} images, {status.rate:.1f}/s · "
        f"{workers} · {clock(status.elapsed)} gone, {clock(status.remaining)} to go"
    )


class Plain:
    """Lines for logs: each finished trial, and now and then where the sweep stands."""

    def __init__(self, status: Status, out: TextIO | None = None) -> None:
        self.status, self.out, self._last = status, out or sys.stderr, 0.0

    def __enter__(self) -> Plain:
        return self

    def __exit__(self, *_: object) -> None: ...

    def show(self, event: Event) -> None:
        if event["event"] == "trial_finished" and event["new"]:
            print(told_line(event, self.status), file=self.out, flush=True)
        elif event.get("note"):
            print(event["note"], file=self.out, flush=True)
        elif event["event"] == "shard" and time.monotonic() - self._last > PLAIN_EVERY:
            self._last = time.monotonic()
            print(headline(self.status), file=self.out, flush=True)


def told_line(event: Event, status: Status) -> str:
    """One finished trial in a line."""
    if event["state"] == "failed":
        return f"trial {event['trial']} failed: {event['cause']}"
    values = ", ".join(
        f"{name} {event['metrics'][name]:.3g}" for name, _ in status.objectives if name in event["metrics"]
    )
    beyond = "" if event["feasible"] else "; beyond the constraints"
    return f"trial {event['trial']} {event['words']}: {values}{beyond}"


class Machine:
    """Every event as one JSON line on standard output."""

    def __enter__(self) -> Machine:
        return self

    def __exit__(self, *_: object) -> None: ...

    def show(self, event: Event) -> None:
        print(json.dumps(event, ensure_ascii=False), flush=True)


class Live:
    """A view that redraws itself: headline, trials in flight, and the front so far."""

    def __init__(self, status: Status) -> None:
        from rich.console import Console
        from rich.live import Live as RichLive

        self.status = status
        self._live = RichLive(console=Console(stderr=True), refresh_per_second=4, get_renderable=self._draw)

    def __enter__(self) -> Live:
        self._live.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._live.__exit__(*error)

    def show(self, event: Event) -> None:
        if event["event"] == "trial_finished" and event["new"] and event["state"] == "failed":
            self._live.console.print(told_line(event, self.status), markup=False, highlight=False)

    def _draw(self) -> RenderableType:
        from rich.console import Group
        from rich.table import Table
        from rich.text import Text

        status = self.status
        running = ", ".join(f"{number} {words}".strip() for number, words in sorted(status.in_flight.items()))
        table = Table(box=None, pad_edge=False)
        for column in ("trial", "setting on the front so far", *(name for name, _ in status.objectives)):
            table.add_column(column, justify="left" if column.startswith("setting") else "right")
        for number, words, metrics in status.front():
            table.add_row(str(number), Text(words), *(f"{metrics[name]:.3f}" for name, _ in status.objectives))
        lines = [Text(headline(status)), Text(f"running: {running or 'starting'}", overflow="ellipsis", no_wrap=True)]
        return Group(*lines, *([Text(status.note)] if status.note else []), table)


View = Plain | Machine | Live


def view(status: Status, *, as_json: bool) -> View:
    """What suits standard error: a live view on a terminal, plain lines elsewhere."""
    if as_json:
        return Machine()
    return Live(status) if sys.stderr.isatty() else Plain(status)


def teller(status: Status, shown: View, file: Path | None) -> Callable[[Event], None]:
    """Takes events: into the status, onto the view and (with the time) into a file of JSON lines."""

    def tell(event: Event) -> None:
        stamped = {"at": now(), **event}
        status.take(stamped)
        shown.show(stamped)
        if file is not None:
            with file.open("a", encoding="utf-8") as lines:
                lines.write(json.dumps(stamped, ensure_ascii=False) + "\n")

    return tell
