"""The views of a sweep that lie beside it: tables and the front's picture, made anew from the trials' records."""

from __future__ import annotations

import time

from orchestrator.results.store import FRONT_PLOT, FRONT_TABLE, TRIAL_TABLE, write_table
from orchestrator.results.sweep import Sweep
from search_spaces.trial import DecodingConfig
from workers.data.storage import Storage

EVERY = 20.0  # seconds between two writings while the sweep runs, at least
COST = 50.0  # the writing takes at most the 50th part of the time


class Views:
    """Writes the views of a store, while it fills at most once in `EVERY` seconds."""

    def __init__(self, storage: Storage) -> None:
        self.storage = storage
        self._next = time.monotonic() + EVERY

    def refresh(self) -> str | None:
        """Write tables and picture if they are old; returns why that failed, for it must not stop a sweep."""
        begin = time.monotonic()
        if begin < self._next:
            return None
        problem = None
        try:
            self.write()
        except (ValueError, OSError) as error:
            problem = str(error)
        now = time.monotonic()
        self._next = now + max(EVERY, COST * (now - begin))
        return problem

    def write(self) -> None:
        """Write tables and picture."""
        sweep = Sweep.open(self.storage)
        if not sweep.records:
            return
        write_table(self.storage, TRIAL_TABLE, sweep.trials())
        write_table(self.storage, FRONT_TABLE, sweep.front())
        self.storage.write(FRONT_PLOT, front_picture(sweep))


def front_picture(sweep: Sweep) -> bytes:
    """The sweep's own front among all its trials, as a PNG."""
    from orchestrator.results.plots import front_png

    table = sweep.front(everything=True)
    settings = {record.number: record.config for record in sweep.records}
    shown = [settings[number] or DecodingConfig() for number in table["number"].to_pylist()]
    return front_png(table, shown, sweep.axes(), title=f"{sweep.name}: {sweep.identity.target}")
