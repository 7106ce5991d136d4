"""The result files in a sweep's folder, rebuilt from the trials' records: tables and a plot of the
front.
"""

from __future__ import annotations

from orchestrator.front.front import front_of
from orchestrator.front.questions import trial_rows
from orchestrator.store import checked_text, files
from orchestrator.store.sweep import Sweep
from orchestrator.views.follower import View
from workers.data.pictures import is_intact_png
from workers.data.storage import Storage

_KIND = "trials"  # of the tables


class Tables(View[Sweep]):
    """trials.parquet, front.parquet and front.png, written at most once per interval and in 1/50 of
    the time.
    """

    interval_s, cost_factor = 20.0, 50.0
    may_recover, end_timeout_s, short_timeout_s = False, 600.0, 8.0

    def __init__(self) -> None:
        super().__init__()
        self._is_checked = False

    def update(self, source: Sweep) -> None:
        if not self._is_checked:
            self.notes += replace_damaged(source.storage)
            self._is_checked = True
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


def replace_damaged(storage: Storage) -> list[str]:
    """Write the tables and the plot again if one of them is damaged, and set a damaged report
    aside; returns a sentence about each damaged file.
    """
    place = storage.display_name
    notes = []
    for name in filter(storage.exists, (files.TRIAL_TABLE, files.FRONT_TABLE)):
        try:
            files.read_table(storage, name, [], fix="rewritten from the trials' records")
        except ValueError as error:
            notes.append(str(error))
    if storage.exists(files.FRONT_PLOT) and not is_intact_png(storage.read(files.FRONT_PLOT)):
        notes.append(f"{place}/{files.FRONT_PLOT}: damaged; plotted again from the trials' records")
    if notes:
        write_tables(Sweep.open(storage))
    try:
        if storage.exists(files.REPORT):
            checked_text.load_text(storage.read(files.REPORT), checked_text.HTML_COMMENT)
    except ValueError as error:
        storage.move(files.REPORT, f"{files.REPORT}.damaged")
        notes.append(f"{place}/{files.REPORT}: {error}; `specfrontier report` writes it again")
    return notes
