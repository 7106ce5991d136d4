"""`specfrontier pareto`: the front of one or more sweeps, its knee, and the best config within limits."""

from __future__ import annotations

import csv
import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from orchestrator.cli import query_options as o
from orchestrator.cli.front_text import describe_front
from orchestrator.cli.tables import safe_text
from orchestrator.errors import FAILED, WRONG_USAGE, CommandError, ends_with
from search_spaces.documents import write_document

if TYPE_CHECKING:
    import pyarrow

    from orchestrator.results.fronts import Candidate
    from orchestrator.results.sweep import Front

EPILOG = """\b
Examples:
  specfrontier pareto quickstart
  specfrontier pareto quickstart --y drift --where acceptance.neighbourhood=additive --plot front.png
  specfrontier pareto quickstart --best 'fid<=vanilla+0.5' --config best.yaml
  specfrontier pareto quickstart --lossless --config lossless.yaml
  specfrontier pareto mine --stopped
  specfrontier pareto sweeps/mine s3://lab/sweeps/theirs --hypervolume --reference-point 0,30 --json
"""

Best = Annotated[
    list[str] | None,
    typer.Option(metavar="LIMIT", help="Show the trial with the best first objective within this limit. Repeatable."),
]
Knee = Annotated[bool, typer.Option("--knee", help="Show the trial furthest from the line between the ends.")]
Lossless = Annotated[
    bool, typer.Option("--lossless", help="Choose among trials that leave the distribution of images as it is.")
]
Volume = Annotated[bool, typer.Option("--hypervolume", help="Show the front's hypervolume.")]
Config = Annotated[
    str | None,
    typer.Option(metavar="YAML", help="Write the config of --best, --lossless or --knee to a file for `generate`."),
]
Csv = Annotated[str | None, typer.Option("--csv", metavar="FILE", help="Write the rows with all columns.")]
Plot = Annotated[str | None, typer.Option(metavar="FILE", help="Plot the front as a PNG file.")]
Everything = Annotated[bool, typer.Option("--all", help="Also list trials that are not on the front.")]
Stopped = Annotated[
    bool, typer.Option("--stopped", help="Also list trials that racing stopped: after how many images, and why.")
]


def pareto(
    sweeps: o.Sweeps,
    x: o.X = None,
    y: o.Y = None,
    z: o.Z = None,
    where: o.Where = None,
    subject_to: o.SubjectTo = None,
    infeasible: o.Infeasible = False,
    best: Best = None,
    lossless: Lossless = False,
    knee: Knee = False,
    config: Config = None,
    hypervolume: Volume = False,
    reference_point: o.ReferencePoint = None,
    everything: Everything = False,
    stopped: Stopped = False,
    csv_file: Csv = None,
    plot: Plot = None,
    long: o.Long = False,
    as_json: o.AsJson = False,
) -> None:
    """Show the front: the configs that no other dominates, with their confidence.

    "front" is the share of draws from the measured errors in which a trial stays on the front. Trials are "within error
    of" each other if they differ significantly in no objective (5 % level, paired Student's t). --knee, --best and
    --hypervolume say how sure they are, too; --knee and --best also in how many draws the trial is better than vanilla
    in the first objective.
    """
    if config is not None and not (best or lossless or knee):
        raise CommandError("--config: add --best LIMIT, --lossless or --knee to choose the config", WRONG_USAGE)
    opened = o.open_sweeps(sweeps)
    from orchestrator.results.sweep import front_of

    with o.query_errors():
        front = front_of(opened, x, y, z, where or (), subject_to or (), feasible=not infeasible)
        corner = o.read_point(reference_point, len(front.axes))
        facts = _volume(front, corner) if hypervolume and front.candidates else {}
        marks = _choose(front, best or [], lossless=lossless, knee=knee)
        facts |= {"stopped": _stopped_trials(front, where or ())} if stopped else {}
        warnings = _warnings(front, where or (), [*(subject_to or ()), *(best or ())]) + _unlimited(front, best or [])
        facts |= confidences(front, marks, best or []) | {"warnings": warnings}
    chosen = marks.get("best") or (marks["best_lossless"] if lossless else marks.get("knee"))
    rows = front.candidates if everything else front.members
    with ends_with(FAILED):
        if plot is not None:
            from orchestrator.results.plots import front_png

            Path(plot).write_bytes(front_png(front, ", ".join(front.sweeps)))
        if csv_file is not None:
            _write_csv(front.table(rows), csv_file)
        if config is not None and chosen is not None:
            Path(config).write_text(write_document(chosen.config.to_mapping()), encoding="utf-8")
    if as_json:
        marked = {name: None if trial is None else trial.to_mapping() for name, trial in marks.items()}
        typer.echo(json.dumps(_to_mapping(front, rows) | facts | marked, indent=2))
    else:
        typer.echo(safe_text(describe_front(front, rows, facts, marks, best or [], long=long)))
        if config is not None:
            typer.echo(f'config: {config} (specfrontier generate "..." --config {config})')


def _choose(front: Front, limits: list[str], *, lossless: bool, knee: bool) -> dict[str, Candidate | None]:
    """The best lossless trial, and those of --best and --knee if they were asked for.

    Raises:
        CommandError: no trial is within the limits, or --lossless found none.
    """
    marks = {"best_lossless": front.best_lossless()} | ({"knee": front.knee()} if knee else {})
    if lossless and marks["best_lossless"] is None:
        axis = front.axes[0]
        if not axis.is_of_counts:
            problem = f"--lossless: lossless trials differ in {axis.name} by chance; add --x speedup"
            raise CommandError(problem, WRONG_USAGE)
        problem = f"--lossless: no lossless trial among these {len(front.candidates)} is {axis.better} than vanilla"
        raise CommandError(problem, FAILED)
    if limits:
        marks["best"] = front.best(limits, lossless=lossless)
        if marks["best"] is None:
            trials = f"none of {len(front.candidates)} trials is {'lossless and ' if lossless else ''}within"
            raise CommandError(f"{trials} {' and '.join(limits)}", FAILED)
    return marks


def _volume(front: Front, corner: list[float] | None) -> dict[str, Any]:
    """The hypervolume, its error and its reference point."""
    point = corner or front.reference_point()
    return {
        "hypervolume": front.hypervolume(point),
        "hypervolume_error": front.hypervolume_error(point),
        "reference_point": point,
    }


def _stopped_trials(front: Front, where: Sequence[str]) -> list[dict[str, Any]]:
    """The trials that racing stopped and that were not revived; rival, images and chance: see `EarlyStop`."""
    from orchestrator.results.trials import STOPPED

    found = []
    for name, sweep in front.sweeps.items():
        chosen = set(sweep.trials(where, ["number"])["number"].to_pylist())
        stopped = [record for record in sweep.records if record.state == STOPPED and record.duplicate_of is None]
        for record in stopped:
            if record.stop is not None and record.number in chosen:
                facts = {"sweep": name, "number": record.number, "label": record.label, "cause": record.cause or ""}
                facts |= {
                    "setting": sweep.names.name(record.config),
                    "description": sweep.names.describe(record.config),
                }
                found.append(facts | asdict(record.stop))
    return found


def _warnings(front: Front, where: Sequence[str], limits: Sequence[str]) -> list[str]:
    """Filters that match nothing (see `unmatched`), and what to know about speeds (see `speed_check`)."""
    from orchestrator.results.query import unmatched
    from orchestrator.results.speed_check import speed_warnings, time_notes

    axes, sweeps = [axis.name for axis in front.axes], front.sweeps.values()
    own = [
        f"{sweep.name}, {text}"
        for sweep in sweeps
        for text in (*unmatched(sweep.table, where), *speed_warnings(sweep.records, sweep.identity.timing))
    ]
    return [*own, *time_notes([sweep.identity for sweep in sweeps], [*axes, *limits, *where])]


def _unlimited(front: Front, limits: Sequence[str]) -> list[str]:
    """A hint if every limit is on the metric that is optimised, so that nothing limits the others."""
    from search_spaces.constraints import Constraint

    first, second = (axis.name for axis in front.axes[:2])
    if not limits or any(Constraint.parse(text).metric != first for text in limits):
        return []
    return [
        f"--best limits {first} alone, whatever {second}; for the best {second} within {limits[0]} add --x {second}"
    ]


def confidences(front: Front, marks: dict[str, Candidate | None], limits: list[str]) -> dict[str, float]:
    """Shares of draws from the errors: `knee_confidence`, with this knee; `best_confidence`, within the limits; for
    each mark, such as `knee_gain_confidence`, better than vanilla in the first objective."""
    found = {}
    if (knee := marks.get("knee")) is not None:
        found["knee_confidence"] = front.knee_confidence(knee)
    if (best := marks.get("best")) is not None:
        found["best_confidence"] = front.limit_confidence(best, limits)
    for mark, trial in marks.items():
        if trial is not None and (gain := front.gain_confidence(trial)) is not None:
            found[f"{mark}_gain_confidence"] = gain
    return found


def _to_mapping(front: Front, rows: list[Candidate]) -> dict[str, Any]:
    return {
        "sweeps": {name: sweep.storage.display_name for name, sweep in front.sweeps.items()},
        "objectives": [{"metric": axis.name, "direction": axis.direction} for axis in front.axes],
        "trials": front.trials.num_rows,
        "measured": len(front.candidates),
        "left_out": dict(front.left_out),
        "rows": [row.to_mapping() for row in rows],
    }


def _write_csv(table: pyarrow.Table, path: str) -> None:
    """All columns; list entries are separated by semicolons."""
    with Path(path).open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(table.column_names)
        for row in table.to_pylist():
            writer.writerow([";".join(v) if isinstance(v, list) else v for v in row.values()])
