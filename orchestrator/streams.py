"""Standard streams that are closed (`specfrontier ... >&-`), or whose terminal is gone."""

from __future__ import annotations

import errno
import os
import sys
import termios

_STREAMS = (("stdin", "r"), ("stdout", "w"), ("stderr", "w"))  # in the order of their descriptors


def open_closed_streams() -> None:
    """Open each closed standard stream on the null device, before any other file can get its
    descriptor. Child processes inherit it.
    """
    for name, mode in _STREAMS:
        if getattr(sys, name) is None:
            # It gets the lowest free descriptor, which is the stream's own.
            stream = open(os.devnull, mode, encoding="utf-8")  # noqa: SIM115
            os.set_inheritable(stream.fileno(), True)
            setattr(sys, name, stream)
            setattr(sys, f"__{name}__", stream)


def drop_lost_terminal() -> None:
    """Lead the standard streams of a terminal that is gone to the null device: each write to it
    would fail.
    """
    for number in range(len(_STREAMS)):
        if _is_lost(number):
            null = os.open(os.devnull, os.O_RDWR)
            os.dup2(null, number)
            os.close(null)


def _is_lost(descriptor: int) -> bool:
    try:
        termios.tcgetattr(descriptor)
    except termios.error as error:
        return bool(error.args[0] == errno.EIO)
    return False
