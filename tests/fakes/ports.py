"""Ports of servers under test, which nobody else takes between the choice and the start."""

from __future__ import annotations

import itertools
import os
import socket
from pathlib import Path

HOST = "127.0.0.1"
_FIRST = 20_000
_LAST = 32_768
_LEAST = 1_000  # ports, among which there is always a free one
_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")
_claims: list[socket.socket] = []  # for as long as this process lives


def claim_port() -> int:
    """A port that is free, and that no other call returns on this machine while this process lives.

    It is none of those that the kernel gives to connections and to servers without a number, unless
    those are nearly all ports of the machine. The claim is a UDP socket: servers under test use TCP
    alone.
    """
    numbers = _numbers(*map(int, _RANGE.read_text().split()))
    start = os.getpid() * 97 % len(numbers)
    for port in itertools.islice(itertools.cycle(numbers), start, start + len(numbers)):
        claim = socket.socket(type=socket.SOCK_DGRAM)
        try:
            claim.bind((HOST, port))
            with socket.socket() as probe:
                probe.bind((HOST, port))
        except OSError:
            claim.close()
            continue
        _claims.append(claim)
        return port
    raise RuntimeError(f"no free port from {numbers.start} to {numbers.stop}")


def _numbers(first: int, last: int) -> range:
    """Ports below those that the kernel gives, `first` to `last`; else above them; else among
    them.
    """
    below, above = range(_FIRST, first), range(max(_FIRST, last + 1), 1 << 16)
    return next((found for found in (below, above) if len(found) >= _LEAST), range(_FIRST, _LAST))
