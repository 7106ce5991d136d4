"""SIGINT, SIGTERM and SIGHUP: the first one ends a command cleanly, the second one at once.

Ctrl-C sends SIGINT. Slurm, Kubernetes and spot instances send SIGTERM, and SIGKILL some seconds
later. A terminal that is closed sends SIGHUP, often twice, so a SIGHUP is never the second signal.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from types import FrameType

from orchestrator.errors import INTERRUPTED, last_words
from orchestrator.streams import drop_lost_terminal

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_SHOW_CURSOR = "\x1b[?25h"  # a live view hides it


class Terminated(KeyboardInterrupt):
    """SIGTERM or SIGHUP arrived. Whatever ends cleanly at Ctrl-C ends cleanly at this."""


@dataclass
class _Command:
    """The command that runs."""

    received: int | None = None  # the first signal
    message: str = "interrupted"  # printed if it ends at once
    timeout_s: float | None = None  # for its clean end; None: no limit
    timer: threading.Timer | None = None  # of this timeout
    # called at an immediate end, for what would outlive the process
    cleanups: list[Callable[[], object]] = field(default_factory=list)


_command = _Command()


@contextmanager
def interruptible() -> Iterator[None]:
    """Raise KeyboardInterrupt in the block at the first SIGINT, `Terminated` at the first SIGTERM
    or SIGHUP.

    A second signal ends the process at once. Signals that are ignored stay ignored.
    """
    global _command
    outer = _command
    _command = _Command()
    before = {}
    if threading.current_thread() is threading.main_thread():
        before = {number: signal.getsignal(number) for number in _SIGNALS}
    for number, handler in before.items():
        if handler not in (signal.SIG_IGN, None):
            signal.signal(number, _handle)
    try:
        yield
    finally:
        if _command.timer is not None:
            _command.timer.cancel()
        for number, handler in before.items():
            if handler is not None:
                signal.signal(number, handler)
        _command = outer


@contextmanager
def ending_within(timeout_s: float, message: str) -> Iterator[None]:
    """While the block runs: the command has `timeout_s` to end after a signal, then it ends at once
    with `message`.
    """
    before = _command.timeout_s, _command.message
    _command.timeout_s = timeout_s
    _command.message = message
    try:
        yield
    finally:
        _command.timeout_s, _command.message = before


@contextmanager
def cleaned_up(cleanup: Callable[[], object]) -> Iterator[None]:
    """Call `cleanup` if the command ends at once while the block runs. A signal may interrupt it
    and call it again.
    """
    _command.cleanups.append(cleanup)
    try:
        yield
    finally:
        _command.cleanups.remove(cleanup)


def exit_code(code: str | int | None) -> str | int | None:
    """The command's exit code: instead of 130, 143 if SIGTERM interrupted it, and 129 if SIGHUP
    did.
    """
    if code == INTERRUPTED and _command.received:
        return 128 + _command.received
    return code


def _handle(number: int, frame: FrameType | None) -> None:
    if number == signal.SIGHUP:
        drop_lost_terminal()
        if _command.received is not None:
            return
    if _command.received is not None:
        _end_at_once(number)
    _command.received = number
    if _command.timeout_s is not None:
        _command.timer = threading.Timer(_command.timeout_s, _end_at_once, [number])
        _command.timer.daemon = True
        _command.timer.start()
    raise KeyboardInterrupt if number == signal.SIGINT else Terminated


def _end_at_once(number: int) -> None:
    """Print the message, clean up and exit. The interpreter's own exit could wait for threads and
    connections.
    """
    cursor = _SHOW_CURSOR if sys.stderr.isatty() else ""
    with suppress(OSError):
        os.write(2, f"{cursor}{last_words(_command.message, INTERRUPTED)}\n".encode())
    for cleanup in reversed(_command.cleanups):
        with suppress(Exception):
            cleanup()
    os._exit(128 + number)
