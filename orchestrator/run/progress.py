"""Progress of a sweep: a live view on a terminal, else lines or JSON events; all events also go to
a file.

The time left is a plain extrapolation: what is left of the budget, at the pace of this launch.
"""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from statistics import fmean, stdev
from typing import TYPE_CHECKING, Any, NamedTuple, TextIO

from orchestrator.cluster.tasks import Event, EventSink
from orchestrator.errors import explain
from orchestrator.run.search import Proposal
from orchestrator.store.checked_text import append_line
from orchestrator.store.names import SettingNames, title, trial_title
from orchestrator.store.records import TrialRecord
from orchestrator.streams import drop_lost_terminal
from orchestrator.text import clean, counted
from workers.data.shards import TAKEN_FROM
from workers.metrics.estimate import measured

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

_LINE_INTERVAL_S = 5.0  # between lines about finished shards
_MIN_TIME_LEFT_S = 1.0  # the least that is shown
_BAR_WIDTH = 20  # columns
_MAX_SHARE = 0.99  # the most that is shown: a sweep is done when its launch returns
_MIN_TRIALS = 3  # finished, before their spread is known
# the range before that, over the estimate: vanilla is first, and most others are faster
_EARLY_RANGE = (0.4, 1.5)
# share of what was left after the last shard, if the next one takes longer than all of it
_OVERRUN = 0.1
_NINETY_PERCENT = 1.645  # standard errors


def utc_now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def trial_event(event: str, trial: Proposal | TrialRecord, names: SettingNames) -> dict[str, Any]:
    """An event of a trial, with its label and the name of its setting."""
    return {
        "event": event,
        "trial": trial.number,
        "label": trial.label,
        "setting": names.name(trial.config),
    }


def finished_event(event: str, record: TrialRecord, names: SettingNames) -> dict[str, Any]:
    """The event of a trial that has a new record."""
    return trial_event(event, record, names) | {
        "state": record.state,
        "cause": record.cause,
        "feasible": record.feasible,
        "images": record.images,
        "metrics": {name: entry.value for name, entry in record.metrics.items()},
        "errors": {
            name: entry.error
            for name, entry in record.metrics.items()
            if math.isfinite(entry.error)
        },
    }


class TimeLeft(NamedTuple):
    """An estimate in seconds, and the ends of its range."""

    value: float
    low: float
    high: float


@dataclass
class _Trial:
    """A trial in flight. images: of all captions. missing: shards that do not exist yet; racing may
    stop the trial before the last. copies: those among them that will be copied. seconds: spent on
    its shards in this launch.
    """

    name: str
    images: int
    missing: int
    shards: int
    copies: int = 0
    seconds: float = 0.0

    @property
    def share(self) -> float:
        """The share that is done. The measurement after the last shard counts as a shard."""
        return (self.shards - self.missing) / (self.shards + 1)


@dataclass
class Progress:
    """The state of a sweep, updated by its events.

    planned, planned_images: the budget (None: no limit). is_upper_bound: whether it may end before.
    done, failed, stopped: numbers of trials, those of earlier launches included. plateau: how close
    the front is to it. images: generated in this launch. taken: images that it copied from earlier
    sweeps. objectives: metric and direction. running: trials by number. candidates: the last events
    of trials that meet the constraints, by number. phase: what is prepared. is_over: whether the
    launch has returned. Times are in seconds, by the monotonic clock.
    """

    planned: int | None
    planned_images: int | None = None
    is_upper_bound: bool = False
    objectives: tuple[tuple[str, str], ...] = ()
    done: int = 0
    failed: int = 0
    stopped: int = 0
    images: int = 0
    taken: int = 0
    running: dict[int, _Trial] = field(default_factory=dict)
    candidates: dict[int, Event] = field(default_factory=dict)
    phase: str = ""
    plateau: str = ""
    note: str = ""
    workers: int = 0
    is_over: bool = False
    start_time: float = field(default_factory=time.monotonic)
    _done_images: int = 0
    _given: float = 0.0  # share of the budget that this launch found done
    # seconds of the shards of each trial that this launch finished
    _costs: list[float] = field(default_factory=list)
    _copies: dict[int, int] = field(default_factory=dict)  # shards of trials that have not begun
    _trial_shards: int = 0
    _trial_images: int = 0
    _began: float | None = None  # when the first shard was
    _worked: float = 0.0  # seconds of the workers on shards
    _shard_at: float = 0.0  # when the last shard came

    def update(self, event: Event, now: float | None = None) -> None:
        now, before = time.monotonic() if now is None else now, self.share or 0.0
        kind = event["event"]
        if kind == "launch":  # workers start once more: the driver emits every trial again
            self.done = self.failed = self.stopped = self.workers = self._done_images = 0
            self._given, self._began, self._worked = 0.0, None, 0.0
            self.running.clear()
            self._costs.clear()
            self._copies.clear()
        elif kind in ("trial_started", "trial_resumed"):
            name = clean(event.get("label") or event["setting"])
            missing, total = event["shards"], event["total_shards"]
            copies = max(self._copies.pop(event["trial"], 0) - (total - missing), 0)
            self.running[event["trial"]] = _Trial(name, event["images"], missing, total, copies)
            self._given += (self.share or 0.0) - before
        elif kind == "shard":
            self._add_shard(event, now)
            self._given += (self.share or 0.0) - before if TAKEN_FROM in event else 0.0
        elif kind in ("trial_finished", "trial_revived", "revival_failed"):
            is_made = self._finish(event)
            self._given += (
                0.0 if is_made and event.get("new", True) else (self.share or 0.0) - before
            )
        elif kind == "workers":
            # that none was running
            self.note = "" if event["alive"] and not self.workers else self.note
            self.workers = event["alive"]
        elif kind == "phase":
            self.phase = event["phase"]
        elif kind == "copies":
            self._copies, self._trial_shards, self._trial_images = (
                dict(event["copied"]), event["shards"], event["images"]
            )  # fmt: skip
        elif kind == "plateau":
            self.plateau = event["text"]
        elif kind == "identity":
            self.objectives = tuple(
                (entry["metric"], entry["direction"]) for entry in event["objectives"]
            )
        self.note = event.get("note", self.note)

    def _add_shard(self, event: Event, now: float) -> None:
        if TAKEN_FROM in event:
            self.taken += event["images"]
        else:
            self._shard_at = now
            self._began = now - event["seconds"] if self._began is None else self._began
            self._worked += event["seconds"]
            self.images += event["images"] if event["kind"] == "quality" else 0
        if trial := self.running.get(event["trial"]):
            trial.seconds += 0.0 if TAKEN_FROM in event else event["seconds"]
            trial.missing = max(trial.missing - 1, 0)
            trial.copies = max(trial.copies - (TAKEN_FROM in event), 0)

    def _finish(self, event: Event) -> bool:
        """Returns whether the trial took time: not if all of its shards existed, or were copied."""
        kind, trial = event["event"], self.running.pop(event["trial"], None)
        self._copies.pop(event["trial"], None)
        if kind == "trial_finished":
            self.done += 1
            self._done_images += event["images"]
            self._costs += [trial.seconds] if trial and trial.seconds and event["new"] else []
            self.note = "" if event["new"] else self.note
            self.failed += event["state"] == "failed"
            self.stopped += event["state"] == "stopped"
        elif kind == "trial_revived":
            self.stopped -= event["state"] != "stopped"
        if event.get("feasible"):
            self.candidates[event["trial"]] = event
        return trial is None or trial.seconds > 0

    @property
    def has_earlier_work(self) -> bool:
        """Whether an earlier launch did a part of the budget; `images` are this launch's alone."""
        return self._given > 0

    @property
    def share(self) -> float | None:
        """The share of the budget's trials, or images, that is done; None without such a budget."""
        return min(max(self._shares())[0], 1.0) if self.planned or self.planned_images else None

    def _shares(self) -> Iterator[tuple[float, float]]:
        """The share of each budget that is done, and that of the images that are still to be
        copied.
        """
        running = self.running.values()
        copies = sum(trial.copies / (trial.shards + 1) for trial in running)
        copies += sum(self._copies.values()) / (self._trial_shards + 1)
        if self.planned:
            yield (
                (self.done + sum(trial.share for trial in running)) / self.planned,
                copies / self.planned,
            )
        if self.planned_images:
            images = self._done_images + sum(trial.share * trial.images for trial in running)
            yield images / self.planned_images, copies * self._trial_images / self.planned_images

    def time_left(self, now: float) -> TimeLeft | None:
        """What the rest of the budget takes at the pace of this launch so far, with its 90 % range.

        Images that will be copied take no time. Stopped trials that go on at the end are not
        counted. None without a budget of trials or images, without workers, or before the first
        shard.
        """
        share, began, count = self.share, self._began, len(self._costs)
        if share is None or not self.workers:
            return None
        if share == 1.0:
            return TimeLeft(0.0, 0.0, 0.0)
        if share <= self._given or began is None:
            return None
        # for each second so far
        left = max(1 - sum(max(self._shares())), 0.0) / (share - self._given)
        if not left:
            return TimeLeft(0.0, 0.0, 0.0)
        value = self._shard_at - began
        # shards in flight, of which there are many for the few that are done, count as none
        if count < _MIN_TRIALS:
            value = min(value, self._worked / self.workers)
        value *= left
        value = max(value - (now - self._shard_at), _OVERRUN * value)
        if count < _MIN_TRIALS or not (mean := fmean(self._costs)):
            return TimeLeft(value, *(bound * value for bound in _EARLY_RANGE))
        # of the mean so far, and of that of the trials to come
        error = (
            _NINETY_PERCENT
            * stdev(self._costs)
            / mean
            * math.sqrt(1 / count + 1 / (left * count))
            * value
        )
        return TimeLeft(value, max(value - error, 0.0), value + error)

    @property
    def activity(self) -> str:
        """What happens now, in one line."""
        if self.running:
            return "running: " + ", ".join(
                f"{number} {trial.name}" for number, trial in sorted(self.running.items())
            )
        if self.phase:
            return self.phase
        is_done = self.planned is not None and self.done >= self.planned
        return (
            "all trials are done"
            if is_done
            else "waiting for the next trial"
            if self.done
            else "starting"
        )

    @property
    def elapsed(self) -> float:
        """Seconds since the start of this run."""
        return time.monotonic() - self.start_time

    def front(self) -> list[tuple[int, Event]]:
        """The nondominated trials by number, ordered by the first objective."""
        from orchestrator.front.pareto import nondominated

        names, directions = (
            [name for name, _ in self.objectives],
            [direction for _, direction in self.objectives],
        )
        rows = [
            (n, trial)
            for n, trial in self.candidates.items()
            if trial["metrics"].keys() >= set(names)
        ]
        if not rows or not names:
            return []
        import numpy as np

        values = np.array(
            [[trial["metrics"][name] for name in names] for _, trial in rows], dtype=float
        )
        on_front = nondominated(values, directions)
        front = [row for row, kept in zip(rows, on_front, strict=True) if kept]
        return sorted(front, key=lambda row: row[1]["metrics"][names[0]])


def format_duration(seconds: float) -> str:
    """`4:07` or `2:10:00`."""
    total = round(seconds)
    hours, minutes = divmod(total // 60, 60)
    return f"{hours}:{minutes:02d}:{total % 60:02d}" if hours else f"{minutes}:{total % 60:02d}"


def describe_time_left(left: TimeLeft | None, *, is_upper_bound: bool = False) -> str:
    """`49:00 left (35:00 to 63:00)`, or `at most` that; `finishing` at the end."""
    if left is None:
        return "? left"
    if left.value < _MIN_TIME_LEFT_S:
        return "finishing"
    value, low, high = (format_duration(seconds) for seconds in left)
    return f"{'at most ' * is_upper_bound}{value} left" + (
        f" ({low} to {high})" if low != high else ""
    )


def headline(progress: Progress) -> str:
    """The sweep's state in one line."""
    percent = "" if progress.share is None else f"{_percent(progress)} % · "
    parts = [
        _trials(progress),
        _rate(progress),
        _elapsed(progress),
        _time_left(progress),
        progress.plateau,
    ]
    return percent + " · ".join(filter(None, parts))


def _percent(progress: Progress) -> int:
    return int(100 * min(progress.share or 0.0, _MAX_SHARE))


def _trials(progress: Progress) -> str:
    total = f"/{progress.planned}" if progress.planned else ""
    failed = f", {progress.failed} failed" if progress.failed else ""
    failed += f", {progress.stopped} stopped early" if progress.stopped else ""
    return f"{progress.done}{total} trials{failed}"


def _rate(progress: Progress) -> str:
    images = f"{progress.images} {'new ' if progress.has_earlier_work else ''}images"
    images += f" and {progress.taken} taken over" if progress.taken else ""
    rate = f"{images}, {progress.images / max(progress.elapsed, 1e-9):.1f}/s"
    return f"{rate} · {counted(progress.workers, 'worker')}"


def _elapsed(progress: Progress) -> str:
    return f"{format_duration(progress.elapsed)} elapsed"


def _time_left(progress: Progress) -> str:
    return describe_time_left(
        progress.time_left(time.monotonic()), is_upper_bound=progress.is_upper_bound
    )


def show_lines(progress: Progress, out: TextIO | None = None) -> EventSink:
    """Shows events as lines for logs: phases, each finished trial, and the headline every few
    seconds.
    """
    last = 0.0

    def write(text: str) -> None:
        print("\n".join(map(clean, text.split("\n"))), file=out or sys.stderr, flush=True)

    def show(event: Event) -> None:
        nonlocal last
        if event["event"] == "trial_revived" or (
            event["event"] == "trial_finished" and event["new"]
        ):
            write(trial_line(event, progress))
        elif text := event.get("note") or event.get("phase"):
            write(text)
        elif event["event"] == "shard" and time.monotonic() - last > _LINE_INTERVAL_S:
            last = time.monotonic()
            write(headline(progress))

    return show


def trial_line(event: Event, progress: Progress) -> str:
    """A finished trial in one line."""
    name = clean(trial_title(event["trial"], event.get("label", ""), event["setting"]))
    if event["state"] == "failed":
        return f"{name}: failed: {event['cause']}"
    if event["state"] == "stopped" and event["event"] == "trial_revived":
        return f"{name}: revived, {event['images']} images so far"
    if event["state"] == "stopped":
        return f"{name}: stopped at {event['images']} images: {event['cause']}"
    metrics, errors = event["metrics"], event["errors"]
    values = [
        f"{n} {measured(metrics[n], errors.get(n))}" for n, _ in progress.objectives if n in metrics
    ]
    return f"{name}: {', '.join(values)}" + ("" if event["feasible"] else "; infeasible")


def show_json(event: Event) -> None:
    """Prints an event as one JSON line on standard output."""
    print(json.dumps(event, ensure_ascii=False), flush=True)


@contextmanager
def show_live(progress: Progress, console: Console | None = None) -> Iterator[EventSink]:
    """A view that redraws itself: headline, running trials, and the front so far."""
    from rich.console import Console
    from rich.live import Live

    console = console or Console(stderr=True)
    with Live(
        console=console, refresh_per_second=4, get_renderable=lambda: render(progress)
    ) as live:

        def write(line: str, style: str) -> None:
            live.console.print(clean(line), style=style, markup=False, highlight=False)

        def show(event: Event) -> None:
            if event["event"] == "trial_finished" and event["new"] and event["state"] == "failed":
                write(trial_line(event, progress), "red")
            elif "lost" in event:  # the next trial that ends replaces the note
                write(event["note"], "yellow")

        yield show
        progress.is_over = True


def render(progress: Progress) -> RenderableType:
    """The live view; of a sweep that is over one line, because the summary shows its front."""
    from rich.console import Group
    from rich.progress_bar import ProgressBar
    from rich.table import Table
    from rich.text import Text

    if progress.is_over:
        return Text(f"{_trials(progress)} · {_elapsed(progress)} · {_rate(progress)}")
    state = Table.grid(padding=(0, 1))
    if progress.share is not None:
        percent = _percent(progress)
        state.add_row(
            ProgressBar(completed=percent, width=_BAR_WIDTH), f"{percent:2} %", _time_left(progress)
        )
    trials = Text(f"{_trials(progress)} · {_elapsed(progress)}")
    activity = Text(clean(progress.activity), overflow="ellipsis", no_wrap=True)
    notes = [Text(clean(note), style="yellow") for note in (progress.note,) if note]
    notes += (
        [Text(clean(progress.phase), style="cyan")] if progress.phase and progress.running else []
    )
    rows = progress.front()
    notes += [Text(progress.plateau, style="dim")] if progress.plateau else []
    front = ["", "on the front so far", _front_table(progress, rows)] if rows else []
    return Group(state, trials, Text(_rate(progress)), activity, *notes, *front)


def _front_table(progress: Progress, rows: Iterable[tuple[int, Event]]) -> RenderableType:
    """The front so far."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, show_edge=False, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("trial", justify="right")
    table.add_column("setting", overflow="fold")
    for name, _ in progress.objectives:
        table.add_column(Text(clean(name)), justify="right", no_wrap=True)
    for number, trial in rows:
        values = [
            Text(measured(trial["metrics"][name], trial["errors"].get(name)))
            for name, _ in progress.objectives
        ]
        for value in values:
            value.highlight_regex(r"± .*", "dim")
        table.add_row(
            str(number), Text(clean(title(trial.get("label", ""), trial["setting"]))), *values
        )
    return table


def choose_view(progress: Progress, *, as_json: bool) -> AbstractContextManager[EventSink]:
    """Shows events as JSON if `as_json`, else in a live view on a terminal, else as lines."""
    if as_json:
        return nullcontext(show_json)
    return show_live(progress) if sys.stderr.isatty() else nullcontext(show_lines(progress))


def event_sink(
    progress: Progress, show: EventSink, file: Path | None, *others: EventSink
) -> EventSink:
    """A sink that adds the time to each event and passes it to the progress, to a JSON lines file,
    to `show` and to others.
    """

    def emit(event: Event) -> None:
        stamped = {"at": utc_now(), **event}
        progress.update(stamped)
        try:
            if file is not None:
                append_line(file, stamped, sync=False)
        finally:
            drop_lost_terminal()  # of a disowned command
            show(stamped)
        for other in others:
            other(stamped)

    return emit


@contextmanager
def recorded_end(emit: EventSink) -> Iterator[None]:
    """Emit how the block ended: finished, interrupted, or failed and why."""
    try:
        yield
    except BaseException as error:
        ended = (
            {"state": "interrupted"}
            if isinstance(error, KeyboardInterrupt)
            else {"state": "failed"}
        )
        cause = {"cause": explain(error).partition("\n")[0]} if isinstance(error, Exception) else {}
        with suppress(OSError):  # of a full disk, which the launch's own error names
            emit({"event": "end", **ended, **cause})
        raise
    emit({"event": "end", "state": "finished"})
