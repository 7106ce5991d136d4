"""The views in a sweep's folder, rebuilt from the trials' records: tables and a plot of the front."""

from __future__ import annotations

import time

from orchestrator.results.checked_text import HTML, load_text
from orchestrator.results.store import FRONT_PLOT, FRONT_TABLE, REPORT, TRIAL_TABLE, read_table
from orchestrator.results.sweep import Sweep, front_of
from workers.data.pictures import is_intact_png
from workers.data.storage import Storage

INTERVAL_S = 20.0  # between two writes, at least
_KIND = "trials"  # of the tables
_COST_FACTOR = 50.0  # writing takes at most 1/50 of the time


class Views:
    """Writes a sweep's views, at most once per interval while it runs."""

    def __init__(self, storage: Storage) -> None:
        self.storage = storage
        self._next = time.monotonic() + INTERVAL_S

    def refresh(self) -> str | None:
        """Write the views if they are old. Returns the reason of a failure, which must not stop a sweep."""
        start = time.monotonic()
        if start < self._next:
            return None
        problem = None
        try:
            self.write()
        except (ValueError, OSError) as error:
            problem = str(error)
        now = time.monotonic()
        self._next = now + max(INTERVAL_S, _COST_FACTOR * (now - start))
        return problem

    def write(self) -> None:
        from orchestrator.results.plots import front_plot
        from workers.data.records import write_shard

        sweep = Sweep.open(self.storage)
        if not sweep.records:
            return
        for name, table in ((TRIAL_TABLE, sweep.trials()), (FRONT_TABLE, sweep.front())):
            write_shard(self.storage, name, table, {"kind": _KIND})
        title = f"{sweep.name}: {sweep.identity.target}"
        self.storage.write(FRONT_PLOT, front_plot(front_of([sweep]), title))

    def restore(self) -> list[str]:
        """Write the views again if a table or the plot is damaged, and set a damaged report aside; returns a sentence
        about each damaged file.
        """
        place, notes = self.storage.display_name, []
        for name in filter(self.storage.exists, (TRIAL_TABLE, FRONT_TABLE)):
            try:
                read_table(self.storage, name, [], fix="written anew from the trials' records")
            except ValueError as error:
                notes.append(str(error))
        if self.storage.exists(FRONT_PLOT) and not is_intact_png(self.storage.read(FRONT_PLOT)):
            notes.append(f"{place}/{FRONT_PLOT}: damaged; drawn anew from the trials' records")
        if notes:
            self.write()
        try:
            if self.storage.exists(REPORT):
                load_text(self.storage.read(REPORT), HTML)
        except ValueError as error:
            self.storage.move(REPORT, f"{REPORT}.damaged")
            notes.append(f"{place}/{REPORT}: {error}; `specfrontier report` writes it anew")
        return notes
