"""The report as a view of a sweep that runs: written once, when the sweep ends."""

from __future__ import annotations

from orchestrator.report.page import write_report
from orchestrator.results.sweep import Sweep
from orchestrator.views.follower import Ending, View


class ReportView(View[Sweep]):
    """report.html, with images decoded from tokens unless the user interrupts the sweep."""

    may_recover, end_timeout_s, short_timeout_s = False, 600.0, 8.0

    def update(self, source: Sweep) -> None:
        return

    def end(self, source: Sweep, how: Ending) -> None:
        write_report(source.storage, draw=how == "finished")

    def describe(self, problem: str) -> str:
        return f"report not written: {problem}"
