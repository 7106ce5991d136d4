"""The front of a sweep in Markdown, for the pages of MLflow and of Optuna's dashboard."""

from __future__ import annotations

import re
from collections.abc import Callable

from orchestrator.results.sweep import Sweep
from orchestrator.results.trials import TrialRecord

_MAX_ROWS = 40


def front_table(sweep: Sweep, link: Callable[[TrialRecord], str] | None = None, rows: int = _MAX_ROWS) -> list[str]:
    """The lines of a table: the trials on the front, best first objective last, with their objectives and errors; no
    lines if there are none.

    link: the address of a trial's page, which its name links to.
    """
    if not sweep.front_records:
        return []
    names = [axis.name for axis in sweep.identity.objectives]
    lines = [f"| trial | {' | '.join(names)} |", "|---" * (1 + len(names)) + "|"]
    for record in sorted(sweep.front_records, key=lambda record: record.metrics[names[0]].value)[:rows]:
        title = literal(f"{record.number} {record.title(sweep.names.name(record.config))}")
        cells = [str(record.metrics[name]) for name in names]
        lines.append(f"| {f'[{title}]({link(record)})' if link else title} | {' | '.join(cells)} |")
    return lines


def literal(text: str) -> str:
    """Text that Markdown shows as it is."""
    return re.sub(r"([\\|\[\]<>*_`])", r"\\\1", text)
