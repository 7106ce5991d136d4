"""`specfrontier pareto`: the front of one or more sweeps, and the settings that it recommends."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from orchestrator.cli import query_options as o
from orchestrator.cli.front_text import describe_front
from orchestrator.cli.options import output_file
from orchestrator.cli.tables import safe_text
from orchestrator.errors import FAILED, WRONG_USAGE, CommandError, ends_with
from orchestrator.outputs import CONFIGS, PLOTS, TABLES, ending_of, table_bytes, write_output
from orchestrator.results.text import clean, counted
from search_spaces.documents import write_document

if TYPE_CHECKING:
    from orchestrator.results.choices import Choice
    from orchestrator.results.fronts import Candidate
    from orchestrator.results.sweep import Front

EPILOG = """\b
Examples:
  specfrontier pareto quickstart
  specfrontier pareto quickstart --y drift --where acceptance.neighbourhood=additive --plot front.pdf
  specfrontier pareto quickstart --best 'fid<=vanilla+0.5' --config best.yaml
  specfrontier pareto quickstart --lossless --config lossless.yaml
  specfrontier pareto mine --all --table trials.parquet
  specfrontier pareto mine --stopped
  specfrontier pareto sweeps/mine s3://lab/sweeps/theirs --hypervolume --reference-point 0,30 --json
"""

BEST, LOSSLESS, KNEE = "best", "best_lossless", "knee"  # kinds of `choices`, whose import takes a part of a second

_NO_KNEE = "the front has no knee: no trial is on the better side of the line between its ends"

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
    typer.Option(
        metavar="YAML",
        callback=output_file(CONFIGS),
        help="Write the config of --best, --lossless or --knee to a file for `generate`.",
    ),
]
Table = Annotated[
    str | None,
    typer.Option(
        "--table",
        "--csv",
        metavar="FILE",
        callback=output_file(TABLES),
        help="Write the rows with all columns: .csv, .parquet or .json.",
    ),
]
Plot = Annotated[
    str | None,
    typer.Option(metavar="FILE", callback=output_file(PLOTS), help="Plot the front: .png, .pdf or .svg."),
]
Everything = Annotated[bool, typer.Option("--all", help="Also list trials that are not on the front.")]
Stopped = Annotated[
    bool, typer.Option("--stopped", help="Also list trials that racing stopped: after how many images, and why.")
]

_MAX_LISTED = 10  # trials in a note


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
    table: Table = None,
    plot: Plot = None,
    long: o.Long = False,
    as_json: o.AsJson = False,
) -> None:
    """Show the front: the configs that no other dominates; and the best one within a limit, the best lossless one and
    the knee.

    "front" is the share of draws from the measured errors in which a trial stays on the front. Trials are "within error
    of" each other if they differ significantly in no objective (5 % level, paired Student's t). A choice says in how
    many draws it holds, and in how many it is better than vanilla in the first objective.
    """
    if config is not None and not (best or lossless or knee):
        raise CommandError("--config: add --best LIMIT, --lossless or --knee to choose the config", WRONG_USAGE)
    opened = o.open_sweeps(sweeps)
    from orchestrator.results.choices import choices_mapping, default_limit
    from orchestrator.results.sweep import front_of

    with o.query_errors():
        front = front_of(opened, x, y, z, where or (), subject_to or (), feasible=not infeasible)
        corner = o.read_point(reference_point, len(front.axes))
        facts = _volume(front, corner) if hypervolume and front.candidates else {}
        limits = best or ([default] if (default := default_limit(front)) else [])
        choices = _choose(front, limits, best or [], lossless=lossless)
        facts |= {"stopped": _stopped_trials(front, where or ())} if stopped else {}
        warnings = _warnings(front, where or (), [*(subject_to or ()), *(best or ())]) + _unlimited(front, best or [])
        warnings += [_NO_KNEE] if knee and KNEE not in choices else []
        facts |= {"warnings": warnings} | choices_mapping(choices, limits)
    rows = front.candidates if everything else front.members
    with ends_with(FAILED):
        written = _write_plot_and_table(front, rows, plot, table)
        if config is not None:
            kind = BEST if best else LOSSLESS if lossless else KNEE
            written["config"], use_of_config = _write_config(choices.get(kind), config)
    if as_json:
        found = _to_mapping(front, rows) | facts | {"written": written}
        typer.echo(json.dumps(found, indent=2, allow_nan=False))
    else:
        typer.echo(safe_text(describe_front(front, rows, facts, choices.values(), long=long)))
        for what, file in written.items():
            use = f" ({use_of_config})" if what == "config" else ""
            typer.echo(f"{what}: {file}{use}")


def _choose(front: Front, limits: list[str], given: list[str], *, lossless: bool) -> dict[str, Choice]:
    """What the front recommends. limits: of --best, or the default bar. given: those of --best.

    Raises:
        CommandError: it has no trial within the limits of --best, or none for --lossless.
    """
    from orchestrator.results.choices import choose

    found = choose(front, limits, lossless=lossless and bool(given))
    axis, trials = front.axes[0], counted(len(front.candidates), "trial")
    if lossless and LOSSLESS not in found:
        if not axis.is_of_counts:
            problem = f"--lossless: lossless trials differ in {axis.name} by chance; add --x speedup"
            raise CommandError(problem, WRONG_USAGE)
        raise CommandError(f"--lossless: no lossless trial among these {trials} is {axis.better} than vanilla", FAILED)
    if given and BEST not in found:
        within = f"{'lossless and ' if lossless else ''}within {' and '.join(given)}"
        raise CommandError(f"none of {trials} is {within}", FAILED)
    return found


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
    """Filters that match nothing (see `unmatched`), and what to know about the results (see `notes`)."""
    from orchestrator.results.notes import sweep_notes, waiting_note
    from orchestrator.results.query import unmatched
    from orchestrator.results.speed_check import time_notes

    axes, sweeps = [axis.name for axis in front.axes], front.sweeps.values()
    own = [
        f"{sweep.name}, {text}"
        for sweep in sweeps
        for text in (*waiting_note(sweep), *unmatched(sweep.table, where), *sweep_notes(sweep))
    ]
    return [*own, *_unmeasured(front), *time_notes([sweep.identity for sweep in sweeps], [*axes, *limits, *where])]


def _unmeasured(front: Front) -> list[str]:
    """A note on each objective that complete trials lack, with their numbers."""
    from orchestrator.results.axes import OWN_TIMINGS
    from orchestrator.results.trials import COMPLETE

    notes = []
    for name, sweep in front.sweeps.items():
        complete = [record for record in sweep.records if record.state == COMPLETE and record.duplicate_of is None]
        for axis in front.axes:
            missing = [str(record.number) for record in complete if axis.name not in record.metrics]
            trials = ", ".join(missing[:_MAX_LISTED]) + (", ..." if len(missing) > _MAX_LISTED else "")
            why = (
                "; timing.direct is how many trials of a shape are timed themselves"
                if OWN_TIMINGS in axis.needs
                else ""
            )
            whose = f" of {name}" if len(front.sweeps) > 1 else ""
            if missing:
                notes.append(f"{axis.name} was not measured in trial{'s' * (len(missing) > 1)} {trials}{whose}{why}")
    return notes


def _unlimited(front: Front, limits: Sequence[str]) -> list[str]:
    """A hint if every limit is on the metric that is optimised, so that nothing limits the others."""
    from search_spaces.constraints import Constraint

    first, second = (axis.name for axis in front.axes[:2])
    if not limits or any(Constraint.parse(text).metric != first for text in limits):
        return []
    return [
        f"--best limits {first} alone, whatever {second}; for the best {second} within {limits[0]} add --x {second}"
    ]


def _to_mapping(front: Front, rows: list[Candidate]) -> dict[str, Any]:
    return {
        "sweeps": {name: sweep.storage.display_name for name, sweep in front.sweeps.items()},
        "objectives": [{"metric": axis.name, "direction": axis.direction} for axis in front.axes],
        "trials": front.trials.num_rows,
        "measured": len(front.candidates),
        "left_out": dict(front.left_out),
        "rows": [row.to_mapping() for row in rows],
    }


def _write_plot_and_table(front: Front, rows: list[Candidate], plot: str | None, table: str | None) -> dict[str, str]:
    """The files that were written, by option."""
    written = {}
    if plot is not None:
        from orchestrator.results.plots import front_plot

        written["plot"] = write_output(plot, front_plot(front, ", ".join(front.sweeps), ending_of(plot, PLOTS)))
    if table is not None:
        written["table"] = write_output(table, table_bytes(front.table(rows), ending_of(table, TABLES)))
    return written


def _write_config(chosen: Choice | None, path: str) -> tuple[str, str]:
    """Where the config is written, and the command that generates with it.

    Raises:
        CommandError: nothing was chosen: --best and --lossless find a trial, --knee may not.
    """
    from orchestrator.results.store import with_plugins

    if chosen is None:
        raise CommandError(f"--config: {_NO_KNEE}", FAILED)
    trial, origin = chosen.trial, f"{chosen.heading}: trial {chosen.trial.record.number} of {chosen.trial.sweep}"
    file = write_output(path, f"# {clean(origin)}\n{write_document(trial.config.to_mapping())}".encode())
    return file, f'{shlex.join(with_plugins("generate", trial.config.plugins))} "..." --config {file}'
