"""The views in a sweep's folder, rebuilt from the trials' records: tables and a plot of the front."""

from __future__ import annotations

import io
import time

from orchestrator.results.store import FRONT_PLOT, FRONT_TABLE, TRIAL_TABLE
from orchestrator.results.sweep import Sweep, front_of
from workers.data.storage import Storage

INTERVAL_S = 20.0  # between two writes, at least
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
        import pyarrow.parquet as pq

        from orchestrator.results.plots import front_png

        sweep = Sweep.open(self.storage)
        if not sweep.records:
            return
        for name, table in ((TRIAL_TABLE, sweep.trials()), (FRONT_TABLE, sweep.front())):
            buffer = io.BytesIO()
            pq.write_table(table, buffer)
            self.storage.write(name, buffer.getvalue())
        title = f"{sweep.name}: {sweep.identity.target}"
        self.storage.write(FRONT_PLOT, front_png(front_of([sweep]), title))
