"""The result files in a sweep's folder, rebuilt from the trials' records: tables and a plot of the
front.
"""

from __future__ import annotations

from orchestrator.front.front import front_of
from orchestrator.front.questions import trial_rows
from orchestrator.store import files
from orchestrator.store.sweep import Sweep
from orchestrator.views.follower import View

_KIND = "trials"  # of the tables


class Tables(View[Sweep]):
    """trials.parquet, front.parquet and front.png, written at most once per interval and in 1/50 of
    the time.
    """

    interval_s = 20.0
    cost_factor = 50.0
    may_recover = False
    end_timeout_s = 600.0
    short_timeout_s = 8.0

    def update(self, source: Sweep) -> None:
        write_tables(source)

    def describe(self, problem: str) -> str:
        return f"tables or plot not written: {problem}"


def write_tables(sweep: Sweep) -> None:
    """Write tables and plot, unless the sweep has no trials yet."""
    from orchestrator.shown.plots import front_plot
    from workers.data.records import write_shard

    if not sweep.records:
        return
    front = front_of([sweep])
    front_rows = front.table(front.members).drop_columns(["sweep"])
    for name, table in ((files.TRIAL_TABLE, trial_rows(sweep)), (files.FRONT_TABLE, front_rows)):
        write_shard(sweep.storage, name, table, {"kind": _KIND})
    title = f"{sweep.name}: {sweep.identity.target}"
    sweep.storage.write(files.FRONT_PLOT, front_plot(front, title))
