"""The latest launch of a sweep, from its lock and its events. The process that runs it is not
contacted.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from orchestrator.store import events
from orchestrator.store.files import (
    DRIVER_LOCK,
    EVENTS,
    IDENTITY,
    STORE_ID,
    SWEEP,
    SWEEPS,
    TRIALS,
    NoSweepError,
    command,
    near_path,
)
from orchestrator.store.identity import Identity, read_identity
from orchestrator.store.locks import read_holder
from orchestrator.store.progress import SweepProgress, read_progress
from orchestrator.text import counted, describe_duration
from search_spaces.paths import local_path
from workers.data.storage import Storage

RUNNING: Final = "running"
FINISHED: Final = "finished"
INTERRUPTED: Final = "interrupted"
FAILED: Final = "failed"
KILLED: Final = "killed"
# how it ended is unknown: an object store has no events
STOPPED: Final = "not running"

_RESUME = "specfrontier launch SPACE --resume"  # if the events do not have the command
RESUME_CALL = "the same call and resume=True"  # in the place of a command, for a call from Python
_NOTIFY = "NOTIFY-VARIABLE"
NOTIFY_VARIABLE = '"$SPECFRONTIER_NOTIFY"'  # in a command, for an address that may be a secret


def _is_resume(text: str, storage: Storage) -> bool:
    """Whether a text is the command of a launch and nothing else: a user will run it. A plugin in
    the sweep's folder would be code that came with the sweep.
    """
    plain = text.replace(NOTIFY_VARIABLE, _NOTIFY)
    try:
        words = shlex.split(plain)
    except ValueError:  # of quotation marks
        return False
    if not text.isprintable():
        return False
    if text == RESUME_CALL:
        return True
    modules = []
    rest = words[1:]
    while rest:
        option, equals_sign, module = rest[0].partition("=")
        if option != "--plugin":
            break
        rest = rest[1:]
        if not equals_sign:
            module = "".join(rest[:1])
            rest = rest[1:]
        modules.append(module)
    file = storage.path(EVENTS)
    brought = file is not None and any(
        Path(*module.split(".")).resolve().is_relative_to(file.parent.resolve())
        for module in modules
    )
    is_launch = words[:1] == ["specfrontier"] and rest[:1] == ["launch"]
    return is_launch and not brought and shlex.join(words) == plain


def _resume_here(text: str, place: str, storage: Storage) -> str:
    """The command of a launch for the sweep's folder as it is now: that may have been moved, copied
    or renamed, or be seen from another folder. place: the folder at the launch.
    """
    file = storage.path(EVENTS)
    if file is None:
        return text
    folder = file.parent
    if text == RESUME_CALL:
        if place == storage.display_name:
            return text
        words = ["specfrontier", "launch", near_path(storage, SWEEP)]
    else:
        words = shlex.split(text.replace(NOTIFY_VARIABLE, _NOTIFY))
    kept, out = _without_place(words)
    if text != RESUME_CALL and (local_path(out) / Path(place).name).resolve() == folder.resolve():
        return text
    parent = str(Path(near_path(storage)).parent)
    found = shlex.join([*kept, "--out", parent, "--name", folder.name, "--resume"])
    return found.replace(_NOTIFY, NOTIFY_VARIABLE)


def _without_place(words: Sequence[str]) -> tuple[list[str], str]:
    """The words of a launch without the options that say where its sweep is, and its --out."""
    kept = list[str]()
    out: str = SWEEPS
    rest = list(words)
    while rest:
        word = rest.pop(0)
        option, equals_sign, value = word.partition("=")
        if option not in ("--out", "--name", "--resume"):
            kept.append(word)
            continue
        if option != "--resume" and not equals_sign:
            value = rest.pop(0) if rest else ""
        if option == "--out":
            out = value
    return kept, out


def describe_event(event: events.Event) -> str:
    """`03:00:19 trial 19 failed`."""
    trial = ""
    verb = event.event
    about = event.note
    match event:
        case events.TrialResult():
            verb = event.state
            about = event.cause
        case events.TrialEvent():
            verb = event.event.removeprefix("trial_")
        case events.Workers():
            verb = counted(event.alive, "worker")
        case events.End():
            verb = event.state
            about = event.cause
        case events.Phase():
            about = event.phase
        case events.Timing():
            about = event.text.removeprefix("timing ")
    if isinstance(event, events.TrialEvent | events.RevivalFailed):
        trial = f"trial {event.trial} "
    text = f"{datetime.fromisoformat(event.at):%H:%M:%S} {trial}{verb}"
    return f"{text}: {about}" if about else text


@dataclass(frozen=True, slots=True)
class Launch:
    """The latest launch."""

    state: str  # RUNNING, FINISHED, INTERRUPTED, FAILED, KILLED or STOPPED
    driver: str | None = None  # the process that runs it, or that was killed
    cause: str | None = None  # why it failed
    phase: str = ""  # the timing sessions that run; else what it prepares before the first trials
    workers: int | None = None  # that are alive; None if unknown
    elapsed_s: float | None = None  # until now, or until it ended; None if unknown
    resume: str = _RESUME  # the command that resumes it

    @property
    def is_running(self) -> bool:
        return self.state == RUNNING

    @property
    def text(self) -> str:
        """The launch in one line: `running for 42 seconds (process 7 on node1, since ...): loading
        the models`.
        """
        if self.state == RUNNING:
            return self._describe_running()
        resume = f"; resume with: {self.resume}"
        if self.state == KILLED:
            return f"not running: {self.driver}, was killed, or its machine stopped{resume}"
        text = self.state
        if self.elapsed_s is not None:
            text += f" after {describe_duration(self.elapsed_s)}"
        if self.cause:
            text += f": {self.cause}"
        if self.state in (INTERRUPTED, FAILED):
            text += resume
        return text

    def _describe_running(self) -> str:
        text = "running"
        if self.elapsed_s is not None:
            text += f" for {describe_duration(self.elapsed_s)}"
        text += f" ({self.driver})"
        if self.phase:
            text += f": {self.phase}"
        if self.workers is not None:
            text += f"; {counted(self.workers, 'worker')}"
        return text


def find_launch(
    storage: Storage, progress: SweepProgress | None = None, now: datetime | None = None
) -> Launch:
    """The latest launch of a sweep.

    Args:
        storage: of the sweep.
        progress: the state by its events; None: they are read.
        now: the end of the time that a running launch has taken so far, by default now.
    """
    if progress is None:
        progress = read_progress(storage)
    holder = read_holder(storage, DRIVER_LOCK)
    ended = progress.ended
    driver = None if holder is None else holder.name
    elapsed = None
    if progress.launched is not None:
        end = now or datetime.now(UTC)
        if ended:
            end = datetime.fromisoformat(ended.at)
        elapsed = (end - datetime.fromisoformat(progress.launched)).total_seconds()
    if holder is not None and holder.is_alive:
        phase = progress.timing_text or ("" if progress.running else progress.phase)
        workers = None if ended else progress.workers
        return Launch(RUNNING, driver, None, phase, workers, elapsed)
    resume = progress.resume
    if resume is None or not _is_resume(resume, storage):
        resume = _RESUME
    elif progress.place is not None:
        resume = _resume_here(resume, progress.place, storage)
    if ended:
        return Launch(ended.state, None, ended.cause, elapsed_s=elapsed, resume=resume)
    return Launch(STOPPED if holder is None else KILLED, driver, resume=resume)


def is_preparing(storage: Storage) -> bool:
    """Whether a launch has begun here that has no results yet."""
    if storage.exists(IDENTITY) or storage.names(TRIALS):
        return False
    return (
        any(map(storage.exists, (EVENTS, STORE_ID)))
        or read_holder(storage, DRIVER_LOCK) is not None
    )


def load_identity(storage: Storage) -> Identity:
    """The identity of a sweep.

    Raises:
        NoSweepError: there is no sweep, or its launch has no results yet; the message says what it
            does. Or this file alone is missing.
        ValueError: the file is damaged.
    """
    identity = read_identity(storage)
    if identity is None and storage.names(TRIALS):
        raise NoSweepError(
            f"{storage.locate(IDENTITY)}: missing, though there are trials; restore the file"
        )
    if identity is None and is_preparing(storage):
        status = command(storage, "status")
        raise NoSweepError(
            f"{storage.display_name}: no results yet; {find_launch(storage).text} (`{status}`)"
        )
    if identity is None:
        problem = f"{storage.display_name}: no sweep here (no {IDENTITY})"
        if names := sorted(path.parent.name for path in Path(SWEEPS).glob(f"*/{IDENTITY}")):
            problem += f"; ./{SWEEPS} has {', '.join(names)}"
        raise NoSweepError(problem)
    return identity
