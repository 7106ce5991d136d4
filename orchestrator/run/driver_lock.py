"""The lock of a sweep's driver."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from orchestrator.results.locks import LEASE_S, RENEWAL_S, Lock, exclusive
from orchestrator.results.store import DRIVER_LOCK
from orchestrator.run.tasks import SweepError
from workers.data.storage import Storage

_POLL_INTERVAL_S = (1.0, 3.0)  # at random: of two processes that refuse each other, one comes first


@contextmanager
def driver_lock(storage: Storage, note: Callable[[str], object] = lambda text: None) -> Iterator[Lock]:
    """Hold the sweep's lock while the block runs; `holder` is who held it and died.

    In object stores a dead driver's claim stays for a while, which is waited for. note: called with a sentence then.

    Raises:
        SweepError: another launch holds it.
    """
    end, waiting = time.monotonic() + LEASE_S + RENEWAL_S, False
    seen: dict[str, float] = {}  # when the claims of other processes were renewed first
    while True:
        with exclusive(storage, DRIVER_LOCK) as lock:
            if lock.acquired:
                yield lock
                return
        claim, renewed = lock.renewal or ("", 0.0)
        if not claim or renewed > seen.setdefault(claim, renewed) or time.monotonic() > end:
            raise SweepError(
                f"{storage.display_name}: another launch ({lock.holder or 'just started'}) is running this sweep; wait "
                "until it ends, or stop it"
            )
        if not waiting:
            waiting = True
            note(f"{lock.holder} was running this sweep; waiting until it renews its lock, at most {LEASE_S:g} s")
        time.sleep(random.uniform(*_POLL_INTERVAL_S))


def check_lock(storage: Storage, lock: Lock) -> None:
    """Raise SweepError if another launch has taken over."""
    if lock.is_lost:
        raise SweepError(
            f"{storage.display_name}: another launch has taken over, because this one did not renew its lock for "
            f"{LEASE_S:g} s"
        )
