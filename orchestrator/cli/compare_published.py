"""`specfrontier compare SWEEP --published`: a sweep's trials next to the rows of a paper's table."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import typer

from orchestrator.cli import query_options as o
from orchestrator.cli.tables import safe_text, shown_table
from orchestrator.errors import WRONG_USAGE, CommandError
from orchestrator.results.text import counted, measured

if TYPE_CHECKING:
    from orchestrator.results.replication import Replication, TableRow


def compare_with_papers(names: list[str], *, as_json: bool) -> None:
    """Print each sweep next to each table. names: sweeps and tables; without a table, the one with the sweep's name.

    Raises:
        CommandError: no sweep, or no such table.
    """
    from orchestrator.results.published import FOLDER, tables
    from orchestrator.results.replication import replicate

    given_tables = [name for name in names if name in tables()]
    opened = o.open_sweeps([name for name in names if name not in given_tables])
    if not opened:
        raise CommandError(f"--published: give a sweep to compare with {', '.join(given_tables)}", WRONG_USAGE)
    with o.query_errors():
        replications = [replicate(sweep, table) for sweep in opened for table in given_tables or [FOLDER + sweep.name]]
    if as_json:
        typer.echo(json.dumps([entry.to_mapping() for entry in replications], indent=2, ensure_ascii=False))
    else:
        typer.echo("\n\n".join(safe_text(_describe(entry)) for entry in replications))


def _describe(found: Replication) -> list[str]:
    """The replication as lines of text."""
    from orchestrator.results.replication import RULE

    head = ["config", "trial", "metric", "measured", "published", "z", ""]
    cells = [line for row in found.rows for line in _row_lines(row)]
    different, equal = found.with_verdict("differs"), found.with_verdict("agrees")
    verb, total = "differs" if len(different) == 1 else "differ", counted(len(different) + len(equal), "figure")
    which = "; ".join(f"{row.row.label} ({figure.metric})" for row, figure in different)
    lines = [
        f"{found.sweep} next to {found.table}",
        *found.notes,
        "",
        shown_table(head, cells, right=[1, 3, 4, 5]),
        "",
        f"{len(different)} of {total} {verb} beyond the measured uncertainty{': ' if different else ''}{which}",
    ]
    undecided = {"not measured": found.with_verdict("not measured"), "no error": found.with_verdict("no error")}
    lines += [f"{counted(len(f), 'figure')} not compared: {why}" for why, f in undecided.items() if f]
    lines += [f"{row.row.label}: run with {', '.join(row.differences)}" for row in found.rows if row.differences]
    return [*lines, RULE]


def _row_lines(row: TableRow) -> list[list[str]]:
    """The table's lines for a row: its figures, then the paper's figures that have no metric here."""
    trial = "none" if row.trial is None else str(row.trial)
    lines = []
    for figure in row.figures:
        value = "-" if figure.measured is None else measured(figure.measured.value, figure.measured.error)
        is_same_unit = float(figure.printed) == figure.published
        printed = figure.printed if is_same_unit else f"{figure.published:g} ({figure.printed})"
        z = "-" if figure.z is None else f"{figure.z:.1f}"
        lines.append([figure.metric, value, printed, z, figure.verdict])
    lines += [[name, "-", value, "-", "no metric here"] for name, value in row.row.figures.items()]
    lines = lines or [["-", "-", "-", "-", "no figures"]]
    return [[*((row.row.label, trial) if index == 0 else ("", "")), *line] for index, line in enumerate(lines)]
