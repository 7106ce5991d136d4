"""`specfrontier pareto`: the front of one or more sweeps, its knee, and the best config within limits."""

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
    from orchestrator.results.store import Axis
    from orchestrator.results.sweep import Front

EPILOG = """\b
Examples:
  specfrontier pareto quickstart
  specfrontier pareto quickstart --y drift --where acceptance.neighbourhood=additive --plot front.png
  specfrontier pareto quickstart --best 'fid<=vanilla+0.5' --config best.yaml
  specfrontier pareto sweeps/mine s3://lab/sweeps/theirs --hypervolume --reference-point 0,30 --json
"""

Best = Annotated[
    list[str] | None,
    typer.Option(metavar="LIMIT", help="Show the trial with the best first objective within this limit. Repeatable."),
]
Knee = Annotated[bool, typer.Option("--knee", help="Show the trial furthest from the line between the ends.")]
Volume = Annotated[bool, typer.Option("--hypervolume", help="Show the front's hypervolume.")]
Config = Annotated[
    str | None,
    typer.Option(metavar="YAML", help="Write the config of --best or --knee to a file for `generate`."),
]
Csv = Annotated[str | None, typer.Option("--csv", metavar="FILE", help="Write the rows with all columns.")]
Plot = Annotated[str | None, typer.Option(metavar="FILE", help="Plot the front as a PNG file.")]
Everything = Annotated[bool, typer.Option("--all", help="Also list trials that are not on the front.")]


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
    """Show the front: the configs that no other dominates, with their confidence.

    "on front" is the share of draws from the measured errors in which a trial stays on the front. "within error of"
    names the front's trials that differ from it significantly in no objective (5 % level).
    """
    if config is not None and not (best or knee):
        raise CommandError("--config: add --best LIMIT or --knee to choose the config", WRONG_USAGE)
    opened = o.open_sweeps(sweeps)
    from orchestrator.results.sweep import front_of

    with o.query_errors():
        front = front_of(opened, o.query(x, y, z, where, subject_to, infeasible))
        corner = o.read_point(reference_point, len(front.axes))
        facts: dict[str, Any] = {}
        if hypervolume and front.table.num_rows:
            corner = corner or front.reference_point()
            facts = {"hypervolume": front.hypervolume(corner), "reference_point": corner}
        marks = {"knee": front.knee()} if knee else {}
        if best:
            marks["best"] = _best_row(front, best)
    rows = list(range(front.table.num_rows)) if everything else front.rows
    with ends_with(FAILED):
        if plot is not None:
            from orchestrator.results.plots import front_png

            Path(plot).write_bytes(front_png(front, ", ".join(front.sweeps)))
        if csv_file is not None:
            _write_csv(front, rows, csv_file)
        if config is not None:
            _write_config(front, marks.get("best", marks.get("knee")), config)
    if as_json:
        chosen = {name: None if row is None else front.to_mapping(row) for name, row in marks.items()}
        typer.echo(json.dumps(_to_mapping(front, rows) | facts | chosen, indent=2))
    else:
        typer.echo("\n".join(describe_front(front, rows, facts, marks, best or [])))
        if config is not None:
            typer.echo(f'config: {config} (specfrontier generate "..." --config {config})')


def _best_row(front: Front, limits: list[str]) -> int:
    """The best row within the limits.

    Raises:
        CommandError: no trial is within them.
    """
    found = front.best(limits)
    if found is None:
        raise CommandError(f"no trial is within {' and '.join(limits)} ({front.table.num_rows} trials checked)", FAILED)
    return found


def describe_front(
    front: Front, rows: list[int], facts: dict[str, Any], marks: dict[str, int | None], limits: list[str]
) -> list[str]:
    """The front as lines of text."""
    axes = " against ".join(
        f"{axis.name} ({'higher' if axis.direction == 'maximize' else 'lower'} is better)" for axis in front.axes
    )
    lines = [
        f"{', '.join(front.sweeps)}: {axes}",
        f"{len(front.rows)} of {counted(front.table.num_rows, 'trial')} "
        f"{'is' if len(front.rows) == 1 else 'are'} on the front{_left_out(front)}",
    ]
    if not front.table.num_rows:
        return lines
    lines += ["", front_table(front, rows), "", *_vanilla_lines(front)]
    if "hypervolume" in facts:
        corner = ", ".join(f"{value:.4g}" for value in facts["reference_point"])
        lines.append(f"hypervolume: {facts['hypervolume']:.5g}, from the reference point ({corner})")
    if "knee" in marks:
        row = marks["knee"]
        lines.append("knee: the front has none" if row is None else f"knee: {describe_row(front, row)}")
    if (row := marks.get("best")) is not None:
        lines.append(f"best {front.axes[0].name} within {' and '.join(limits)}: {describe_row(front, row)}")
    return lines if lines[-1] else lines[:-1]


def _vanilla_lines(front: Front) -> list[str]:
    """Vanilla's objectives in each sweep."""
    lines = []
    for name, record in front.vanilla().items():
        entries = [(axis, record.metrics[axis.name]) for axis in front.axes if axis.name in record.metrics]
        values = ", ".join(f"{axis.name} {measured(entry.value, entry.error)}" for axis, entry in entries)
        whose = f" of {name}" if len(front.sweeps) > 1 else ""
        lines.append(f"vanilla{whose}: trial {record.number} ({values})")
    return lines


def _left_out(front: Front) -> str:
    """The number of trials left out, by reason: ` (left out: 11 by --where, 1 failed)`."""
    reasons = ", ".join(f"{count} {reason}" for reason, count in front.left_out.items())
    return f" (left out: {reasons})" if reasons else ""


def describe_row(front: Front, row: int) -> str:
    """A trial in one line."""
    values = ", ".join(f"{axis.name} {_format_value(front, axis, row)}" for axis in front.axes)
    return f"trial {front.names[row]}, {front.describe(row)} ({values})"


def front_table(front: Front, rows: list[int]) -> str:
    table = front.table
    head = ["trial", "config", *(axis.name for axis in front.axes), "on front", "within error of"]
    cells = []
    for row in rows:
        share = f"{100 * table['confidence'][row].as_py():.0f} %"
        if not table["on_front"][row].as_py():
            share = f"no, {share}"
        values = [_format_value(front, axis, row) for axis in front.axes]
        within = ", ".join(table["within_error_of"][row].as_py() or [])
        cells.append([front.names[row], front.describe(row), *values, share, within])
    right = range(2, 3 + len(front.axes))
    return shown_table(head, cells, right=[*right])


def _format_value(front: Front, axis: Axis, row: int) -> str:
    """A measured value with its error."""
    table = front.table
    return measured(
        table[axis.name][row].as_py(), table[axis.error][row].as_py() if axis.error in table.column_names else None
    )


def _to_mapping(front: Front, rows: list[int]) -> dict[str, Any]:
    return {
        "sweeps": {name: sweep.storage.shown for name, sweep in front.sweeps.items()},
        "objectives": [{"metric": axis.name, "direction": axis.direction} for axis in front.axes],
        "trials": front.total,
        "measured": front.table.num_rows,
        "left_out": dict(front.left_out),
        "rows": [front.to_mapping(row) for row in rows],
    }


def _write_csv(front: Front, rows: list[int], path: str) -> None:
    """All columns of the rows; list entries are separated by semicolons."""
    names = front.table.column_names
    with Path(path).open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(names)
        for row in front.table.take(rows).to_pylist():
            writer.writerow([";".join(v) if isinstance(v := row[name], list) else v for name in names])


def _write_config(front: Front, row: int | None, path: str) -> None:
    """The config of a row, for `generate --config`; no file without a row."""
    import yaml

    if row is not None:
        mapping = front.config(row).to_mapping()
        Path(path).write_text(yaml.safe_dump(mapping, sort_keys=False), encoding="utf-8")
