"""Standard streams that the caller has closed: `specfrontier ... >&-`, or a service without a terminal."""

from __future__ import annotations

import os
import sys

_STREAMS = (("stdin", "r"), ("stdout", "w"), ("stderr", "w"))  # in the order of their descriptors


def open_closed_streams() -> None:
    """Open each closed standard stream on the null device, before any other file can get its descriptor. Child
    processes inherit it.
    """
    for name, mode in _STREAMS:
        if getattr(sys, name) is None:
            stream = open(os.devnull, mode, encoding="utf-8")  # gets the lowest free descriptor: the stream's own
            os.set_inheritable(stream.fileno(), True)
            setattr(sys, name, stream)
            setattr(sys, f"__{name}__", stream)
