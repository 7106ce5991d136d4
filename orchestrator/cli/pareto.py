"""`specfrontier pareto`: the front of one sweep or several, its knee, and the best setting within limits."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from orchestrator.cli import query_options as o
from orchestrator.cli.tables import counted, measured, shown_table
from orchestrator.errors import FAILED, WRONG_USAGE, CommandError, ends_with

if TYPE_CHECKING:
    from orchestrator.results.selection import Selection
    from orchestrator.results.store import Axis

EPILOG = """\b
Examples:
  specfrontier pareto quickstart
  specfrontier pareto quickstart --y drift --where acceptance.neighbourhood=additive --plot front.png
  specfrontier pareto quickstart --best 'fid<=vanilla+0.5' --config best.yaml
  specfrontier pareto sweeps/mine s3://lab/sweeps/theirs --hypervolume --reference-point 0,30 --json
"""

Best = Annotated[
    list[str] | None,
    typer.Option(metavar="LIMIT", help="Say which trial has the best first objective within this. Repeatable."),
]
Knee = Annotated[bool, typer.Option("--knee", help="Say which trial is furthest from the line between the ends.")]
Volume = Annotated[bool, typer.Option("--hypervolume", help="Say how much the front dominates.")]
Config = Annotated[
    str | None,
    typer.Option(metavar="YAML", help="Write the setting of --best (or of --knee) to a file that `generate` takes."),
]
Csv = Annotated[str | None, typer.Option("--csv", metavar="FILE", help="Write the rows with all their columns.")]
Plot = Annotated[str | None, typer.Option(metavar="FILE", help="Write the front as a picture (PNG).")]
Everything = Annotated[bool, typer.Option("--all", help="List the trials off the front as well.")]


def pareto(
    sweeps: o.Sweeps,
    x: o.X = None,
    y: o.Y = None,
    z: o.Z = None,
    where: o.Where = None,
    subject_to: o.SubjectTo = None,
    infeasible: o.Infeasible = False,
    best: Best = None,
    knee: Knee = False,
    config: Config = None,
    hypervolume: Volume = False,
    reference_point: o.ReferencePoint = None,
    everything: Everything = False,
    csv_file: Csv = None,
    plot: Plot = None,
    as_json: o.AsJson = False,
) -> None:
    """Show the front: which settings nothing else beats in every objective at once, and how surely.

    "on front" is the share of draws from the measured errors in which a trial stays on the front. "no different from"
    names the trials of the front that cannot be told from it in any objective (5 % level).
    """
    if config is not None and not (best or knee):
        raise CommandError("--config: say which setting to write, with --best LIMIT or --knee", WRONG_USAGE)
    opened = o.open_sweeps(sweeps)
    from orchestrator.results.selection import select

    with o.answered():
        selection = select(opened, o.question(x, y, z, where, subject_to, infeasible))
        corner = o.read_point(reference_point, len(selection.axes))
        facts: dict[str, Any] = {}
        if hypervolume and selection.table.num_rows:
            facts["hypervolume"], facts["reference_point"] = selection.hypervolume(corner)
        marks = {"knee": selection.knee()} if knee else {}
        if best:
            marks["best"] = best_row(selection, best)
    rows = list(range(selection.table.num_rows)) if everything else selection.front_rows
    with ends_with(FAILED):
        if plot is not None:
            write_plot(selection, plot, ", ".join(selection.sweeps))
        if csv_file is not None:
            write_csv(selection, rows, csv_file)
        if config is not None:
            write_config(selection, marks.get("best", marks.get("knee")), config)
    if as_json:
        typer.echo(json.dumps(as_data(selection, rows) | facts | in_data(selection, marks), indent=2))
    else:
        typer.echo("\n".join(in_words(selection, rows, facts, marks, best or [])))
        if config is not None:
            typer.echo(f'setting: {config} (specfrontier generate "..." --config {config})')


def best_row(selection: Selection, limits: list[str]) -> int:
    """The best row within the limits.

    Raises:
        CommandError: no trial is within them.
    """
    found = selection.best(limits)
    if found is None:
        raise CommandError(
            f"no trial is within {' and '.join(limits)} ({selection.table.num_rows} were held against it)", FAILED
        )
    return found


def in_words(
    selection: Selection, rows: list[int], facts: dict[str, Any], marks: dict[str, int | None], limits: list[str]
) -> list[str]:
    """The answer for a person."""
    axes = " against ".join(
        f"{axis.name} ({'higher' if axis.direction == 'maximize' else 'lower'} is better)" for axis in selection.axes
    )
    lines = [
        f"{', '.join(selection.sweeps)}: {axes}",
        f"{len(selection.front_rows)} of {counted(selection.table.num_rows, 'trial')} "
        f"{'is' if len(selection.front_rows) == 1 else 'are'} on the front{left_out(selection)}",
    ]
    if not selection.table.num_rows:
        return lines
    lines += ["", front_table(selection, rows), "", *vanilla_lines(selection)]
    if "hypervolume" in facts:
        corner = ", ".join(f"{value:.4g}" for value in facts["reference_point"])
        lines.append(f"hypervolume: {facts['hypervolume']:.5g}, from the reference point ({corner})")
    if "knee" in marks:
        row = marks["knee"]
        lines.append("knee: the front has none" if row is None else f"knee: {one(selection, row)}")
    if (row := marks.get("best")) is not None:
        lines.append(f"best {selection.axes[0].name} within {' and '.join(limits)}: {one(selection, row)}")
    return lines if lines[-1] else lines[:-1]


def vanilla_lines(selection: Selection) -> list[str]:
    """Where vanilla is, for each sweep that has measured it."""
    lines = []
    for name, record in selection.vanilla().items():
        there = [(axis, record.metrics[axis.name]) for axis in selection.axes if axis.name in record.metrics]
        values = ", ".join(f"{axis.name} {measured(entry.value, entry.error)}" for axis, entry in there)
        whose = f" of {name}" if len(selection.sweeps) > 1 else ""
        lines.append(f"vanilla{whose}: trial {record.number} ({values})")
    return lines


def left_out(selection: Selection) -> str:
    """How many trials are not held against each other, by why: ` (left out: 11 by --where, 1 failed)`."""
    reasons = ", ".join(f"{count} {reason}" for reason, count in selection.left_out.items())
    return f" (left out: {reasons})" if reasons else ""


def one(selection: Selection, row: int) -> str:
    """A trial in one line."""
    values = ", ".join(f"{axis.name} {value_of(selection, axis, row)}" for axis in selection.axes)
    return f"trial {selection.names[row]}, {selection.words(row)} ({values})"


def front_table(selection: Selection, rows: list[int]) -> str:
    table = selection.table
    head = ["trial", "setting", *(axis.name for axis in selection.axes), "on front", "no different from"]
    cells = []
    for row in rows:
        share = f"{100 * table['confidence'][row].as_py():.0f} %"
        if not table["on_front"][row].as_py():
            share = f"no, {share}"
        values = [value_of(selection, axis, row) for axis in selection.axes]
        alike = ", ".join(table["alike"][row].as_py() or [])
        cells.append([selection.names[row], selection.words(row), *values, share, alike])
    right = range(2, 3 + len(selection.axes))
    return shown_table(head, cells, right=[*right])


def value_of(selection: Selection, axis: Axis, row: int) -> str:
    """A measured value with its error."""
    table = selection.table
    return measured(
        table[axis.name][row].as_py(), table[axis.error][row].as_py() if axis.error in table.column_names else None
    )


def as_data(selection: Selection, rows: list[int]) -> dict[str, Any]:
    from orchestrator.results.selection import row_facts

    return {
        "sweeps": {name: sweep.storage.shown for name, sweep in selection.sweeps.items()},
        "objectives": [{"metric": axis.name, "direction": axis.direction} for axis in selection.axes],
        "trials": selection.total,
        "measured": selection.table.num_rows,
        "left_out": dict(selection.left_out),
        "rows": [row_facts(selection, row) for row in rows],
    }


def in_data(selection: Selection, marks: dict[str, int | None]) -> dict[str, Any]:
    from orchestrator.results.selection import row_facts

    return {name: None if row is None else row_facts(selection, row) for name, row in marks.items()}


def write_plot(selection: Selection, path: str, title: str) -> None:
    from orchestrator.results.plots import front_png

    settings = [selection.setting(row) for row in range(selection.table.num_rows)]
    Path(path).write_bytes(front_png(selection.table, settings, selection.axes, title))


def write_csv(selection: Selection, rows: list[int], path: str) -> None:
    """All columns of the rows; lists as words with semicolons."""
    names = selection.table.column_names
    with Path(path).open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(names)
        for row in selection.table.take(rows).to_pylist():
            writer.writerow([";".join(v) if isinstance(v := row[name], list) else v for name in names])


def write_config(selection: Selection, row: int | None, path: str) -> None:
    """The setting of a row, as `generate --config` reads it; nothing if there is no row."""
    import yaml

    if row is not None:
        mapping = selection.setting(row).to_mapping()
        Path(path).write_text(yaml.safe_dump(mapping, sort_keys=False), encoding="utf-8")
