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
from orchestrator.cli.tables import safe_text
from orchestrator.errors import FAILED, WRONG_USAGE, CommandError, ends_with
from orchestrator.options import output_file
from orchestrator.outputs import CONFIGS, PLOTS, TABLES, ending_of, table_bytes, write_output

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
  specfrontier pareto quickstart --trial 0 --config vanilla.yaml
  specfrontier pareto mine --stopped
  specfrontier pareto sweeps/mine s3://lab/sweeps/theirs --hypervolume --reference-point 0,30 --json
"""

Volume = Annotated[bool, typer.Option("--hypervolume", help="Show the front's hypervolume.")]
Config = Annotated[
    str | None,
    typer.Option(
        metavar="YAML",
        callback=output_file(CONFIGS),
        help="Write the config of --trial, --best, --lossless or --knee to a file for `generate`; its comments say "
        "what the sweep measured.",
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

_NO_CHOICE = "--config: add --trial N, --best LIMIT, --lossless or --knee to choose the config"
_MAX_LISTED = 10  # trials in a note


def pareto(
    sweeps: o.Sweeps,
    x: o.X = None,
    y: o.Y = None,
    z: o.Z = None,
    where: o.Where = None,
    subject_to: o.SubjectTo = None,
    infeasible: o.Infeasible = False,
    trial: o.Trial = None,
    best: o.Best = None,
    lossless: o.Lossless = False,
    knee: o.Knee = False,
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
    selection = o.read_selection(trial, best, lossless=lossless, knee=knee and config is not None)
    if config is not None and not selection:
        raise CommandError(_NO_CHOICE, WRONG_USAGE)
    from orchestrator.results import choices as c
    from orchestrator.results.sweep import front_of

    with o.query_errors():
        front = front_of(o.open_sweeps(sweeps), x, y, z, where or (), subject_to or (), feasible=not infeasible)
        corner = o.read_point(reference_point, len(front.axes))
        facts = _volume(front, corner) if hypervolume and front.candidates else {}
        facts |= {"stopped": _stopped_trials(front, where or ())} if stopped else {}
        limits = best or ([default] if (default := c.default_limit(front)) else [])
        chosen = c.select(front, selection) if selection else None
        choices = {c.TRIAL: chosen} if trial is not None and chosen is not None else {}
        choices |= c.choose(front, limits, lossless=lossless and bool(best))
        warnings = _warnings(front, where or (), subject_to or (), best or ())
        warnings += [c.NO_KNEE] if knee and c.KNEE not in choices else []
        facts |= {"warnings": warnings} | c.choices_mapping(choices, limits)
    rows = front.candidates if everything else front.members
    with ends_with(FAILED):
        written = _write_plot_and_table(front, rows, plot, table)
        if config is not None and chosen is not None:
            written["config"] = _write_config(front, chosen, config)
    if as_json:
        found = _to_mapping(front, rows) | facts | {"written": written}
        typer.echo(json.dumps(found, indent=2, allow_nan=False))
    else:
        lines = [f"{what}: {file}" for what, file in written.items()]
        if "config" in written and chosen is not None:
            lines[-1] += f" ({_generate_command(chosen, written['config'])})"
        typer.echo(safe_text([*describe_front(front, rows, facts, choices.values(), long=long), *lines]))


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


def _warnings(front: Front, where: Sequence[str], subject_to: Sequence[str], best: Sequence[str]) -> list[str]:
    """Filters that match nothing (see `unmatched`), and what to know about the results (see `notes`) and limits."""
    from orchestrator.results.choices import limit_notes
    from orchestrator.results.notes import sweep_notes, waiting_note
    from orchestrator.results.query import unmatched
    from orchestrator.results.speed_check import time_notes

    sweeps, named = front.sweeps.values(), [*(axis.name for axis in front.axes), *subject_to, *best, *where]
    own = [
        f"{sweep.name}, {text}"
        for sweep in sweeps
        for text in (*waiting_note(sweep), *unmatched(sweep.table, where), *sweep_notes(sweep))
    ]
    return [
        *own,
        *_unmeasured(front),
        *time_notes([sweep.identity for sweep in sweeps], named),
        *limit_notes(front, best),
    ]


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


def _write_config(front: Front, chosen: Choice, path: str) -> str:
    """Returns where the file is."""
    from orchestrator.results.config_file import config_text

    return write_output(path, config_text(front, chosen).encode())


def _generate_command(chosen: Choice, file: str) -> str:
    """The command that generates with the config in a file."""
    from orchestrator.results.store import with_plugins

    return f'{shlex.join(with_plugins("generate", chosen.trial.config.plugins))} "..." --config {shlex.quote(file)}'
