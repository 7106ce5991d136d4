"""`specfrontier compare SWEEP --published`: a sweep's trials beside the rows of a paper's table."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import typer

from orchestrator.cli import query_options as o
from orchestrator.cli.tables import counted, measured, shown_table
from orchestrator.errors import WRONG_USAGE, CommandError

if TYPE_CHECKING:
    from orchestrator.results.replication import Beside, Compared, Replication


def against_papers(places: list[str], *, as_json: bool) -> None:
    """Print each sweep beside the table of its own name, or beside those tables that are among the places.

    Raises:
        CommandError: no sweep, or no such table.
    """
    from orchestrator.results.published import tables
    from orchestrator.results.replication import replicate, table_of

    named = [place for place in places if place in tables()]
    opened = o.open_sweeps([place for place in places if place not in named])
    if not opened:
        raise CommandError(f"--published: give a sweep to hold against {', '.join(named)}", WRONG_USAGE)
    with o.answered():
        found = [replicate(sweep, table) for sweep in opened for table in named or [table_of(sweep)]]
    if as_json:
        typer.echo(json.dumps([one.to_mapping() for one in found], indent=2, ensure_ascii=False))
    else:
        typer.echo("\n\n".join("\n".join(in_words(one)) for one in found))


def in_words(found: Replication) -> list[str]:
    """The answer for a person."""
    from orchestrator.results.replication import RULE

    head = ["setting", "trial", "metric", "measured", "published", "z", ""]
    cells = [line for row in found.rows for line in lines_of(row)]
    apart, alike = found.having("differs"), found.having("agrees")
    verb, total = "differs" if len(apart) == 1 else "differ", counted(len(apart) + len(alike), "figure")
    which = "; ".join(f"{row.row.label} ({figure.metric})" for row, figure in apart)
    lines = [
        f"{found.sweep} beside {found.table}",
        *found.notes,
        "",
        shown_table(head, cells, right=[1, 3, 4, 5]),
        "",
        f"{len(apart)} of {total} {verb} beyond the measured uncertainty{': ' if apart else ''}{which}",
    ]
    untold = {"not measured": found.having("not measured"), "without an error": found.having("no error")}
    lines += [f"{counted(len(f), 'figure')} cannot be told: {why}" for why, f in untold.items() if f]
    lines += [f"{row.row.label}: run with {', '.join(row.differing)}" for row in found.rows if row.differing]
    return [*lines, RULE]


def lines_of(row: Compared) -> list[list[str]]:
    """The table's lines for a row: its figures, then what the paper gives that is no metric here."""
    trial = "none" if row.trial is None else str(row.trial)
    lines = []
    for figure in row.figures:
        value = "-" if figure.measured is None else measured(figure.measured.value, figure.measured.error)
        z = "-" if figure.z is None else f"{figure.z:.1f}"
        lines.append([figure.metric, value, printed(figure), z, figure.verdict])
    lines += [[name, "-", value, "-", "no metric here"] for name, value in row.row.figures.items()]
    lines = lines or [["-", "-", "-", "-", "no figure printed"]]
    return [[*((row.row.label, trial) if at == 0 else ("", "")), *line] for at, line in enumerate(lines)]


def printed(figure: Beside) -> str:
    """As printed; in this project's unit where that is another one."""
    text = figure.published.printed
    return text if float(text) == figure.published.value else f"{figure.published.value:g} ({text})"
