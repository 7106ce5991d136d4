"""`specfrontier pareto`: the front of one or more sweeps, and the settings that it recommends."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from orchestrator.cli import query_options as o
from orchestrator.cli.text import describe_front, for_output, heading, show, shown_table
from orchestrator.errors import WRONG_USAGE, CommandError
from orchestrator.options import AsJson, flag, grouped, option, output_file
from orchestrator.outputs import (
    CONFIGS,
    PAPER_TABLES,
    PLOTS,
    TABLES,
    ending_of,
    table_bytes,
    write_output,
)
from orchestrator.text import counted, some_trials

if TYPE_CHECKING:
    from orchestrator.front.choice import Choice
    from orchestrator.front.front import Front
    from orchestrator.front.trial import Candidate

EPILOG = """\b
Examples:
  specfrontier pareto quickstart
  specfrontier pareto quickstart --y drift --where acceptance.neighbourhood=additive --plot front.pdf
  specfrontier pareto quickstart --best 'fid<=vanilla+0.5' --config best.yaml
  specfrontier pareto quickstart --lossless --config lossless.yaml
  specfrontier pareto mine --all --table trials.parquet
  specfrontier pareto mine --table front.tex --column clip_score --plot front.pdf --plot-size 3x2.4
  specfrontier pareto quickstart --trial 0 --config vanilla.yaml
  specfrontier pareto mine --stopped
  specfrontier pareto mine --next --importance
  specfrontier pareto mine --device A10G --batch 8
  specfrontier pareto sweeps/mine s3://lab/sweeps/theirs --hypervolume --reference-point 0,30 --json
"""

_NO_CHOICE = "--config: add --trial N, --best LIMIT, --lossless or --knee to choose the config"
_MIN_INCHES = 2.0  # sides of a plot
_MAX_INCHES = 40.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    """The options that say what is shown and written."""

    config: str | None = option(
        "Write the config of --trial, --best, --lossless or --knee to a file for `generate`; its "
        "comments say what the sweep measured.",
        "YAML",
        callback=output_file(CONFIGS),
    )
    hypervolume: bool = flag("Show the front's hypervolume.")
    reference_point: o.ReferencePoint = None
    everything: bool = flag("Also list trials that are not on the front.", "--all")
    stopped: bool = flag("Also list trials that racing stopped: after how many images, and why.")
    next: bool = flag(
        "Say what would tell trials apart that are within error of each other: more images, more "
        "timing sessions, or timings on more days."
    )
    importance: bool = flag(
        "Show how much each searched parameter matters for being among the best quarter of the "
        "trials."
    )
    table: str | None = option(
        "Write the rows with all columns (.csv, .parquet or .json), or the table of a paper, with "
        "vanilla and the choices (.tex or .md).",
        "FILE",
        "--table",
        "--csv",
        callback=output_file((*TABLES, *PAPER_TABLES)),
    )
    column: list[str] | None = option(
        "Another metric for the table of a paper. Repeatable.", "METRIC"
    )
    wide: bool = flag(
        "Make the table in .tex as wide as the page (table*), with the names of settings after "
        "labels. Default: as wide as a column."
    )
    plot: str | None = option(
        "Plot the front: .png, .pdf or .svg. A matplotlibrc in this folder sets the style.",
        "FILE",
        callback=output_file(PLOTS),
    )
    plot_size: str | None = option(
        "Width and height of the plot in inches, such as 3x2.4 for a column.", "WxH"
    )
    long: o.Long = False
    as_json: AsJson = False


@grouped
@o.query_errors()
def pareto(
    sweeps: o.Sweeps,
    query: o.Query,
    prices: o.PriceOptions,
    selection: o.TrialOptions,
    output: Output,
) -> None:
    """Show the front: the configs that no other dominates; and the best one within a limit, the
    best lossless one and the knee.

    "front" is the share of draws from the measured errors in which a trial stays on the front.
    Trials are "within error of" each other if they differ significantly in no objective (5 % level,
    paired Student's t). Trials are ranked by the value of the first objective that is 90 % sure; a
    lossless one within error of the best is preferred. A choice says in how many draws it holds, and
    in how many it is better than vanilla in the first objective.
    """
    if output.config is None:
        asked = replace(selection, knee=False)  # the knee is shown in any case
    else:
        asked = selection
    is_chosen = asked.is_given()
    if output.config is not None and not is_chosen:
        raise CommandError(_NO_CHOICE, WRONG_USAGE)
    size = _read_size(output)
    from orchestrator.front.answer import Answer, Hypervolume
    from orchestrator.front.choice import NO_KNEE, recommend

    front = for_output(query.front(prices.open(sweeps)), long=output.long, as_json=output.as_json)
    corner = o.read_point(output.reference_point, len(front.metrics))
    recommended = recommend(
        front,
        selection.best,
        lossless=selection.lossless and bool(selection.best),
        trial=None if selection.trial is None else front.trial(selection.trial),
    )
    chosen = recommended.require(asked.kind) if is_chosen else None
    notes = _notes(front, query, selection.best or ())
    if selection.knee and "knee" not in recommended.choices:
        notes.append(NO_KNEE)
    rows = front.candidates if output.everything else front.members
    answer = Answer.of(
        front,
        rows,
        recommended=recommended,
        notes=notes,
        hypervolume=Hypervolume.of(front, corner) if output.hypervolume and front.rows else None,
        stopped=_stopped_trials(front, query.where or ()) if output.stopped else None,
    )
    written = _write_files(front, rows, chosen, output, size)
    more, lines = _on_request(front, rows, output)
    facts = answer.to_mapping() | {"written": written} | more
    lines += [f"{what}: {file}" for what, file in written.items()]
    if "config" in written and chosen is not None:
        lines[-1] += f" ({_generate_command(chosen, written['config'])})"
    show(facts, [*describe_front(answer), *lines], as_json=output.as_json)


def _on_request(
    front: Front, rows: Sequence[Candidate], output: Output
) -> tuple[dict[str, Any], list[str]]:
    """What --long, --next and --importance add, as data and as lines of text."""
    facts = dict[str, Any]()
    lines = _explanations(rows) if output.long else []
    if output.next:
        facts["next"], more = _what_next(front)
        lines += more
    if output.importance:
        facts["importance"], more = _importances(front)
        lines += more
    return facts, lines


def _explanations(rows: Sequence[Candidate]) -> list[str]:
    """What each setting does, in plain sentences, with its papers."""
    from orchestrator.store.explain import papers_of

    lines = [""]
    for row in rows:
        papers = papers_of(row.config)
        source = f" From {', '.join(papers)}." if papers else ""
        lines.append(f"{row.name}: {row.explanation}{source}")
    return lines


def _what_next(front: Front) -> tuple[dict[str, Any], list[str]]:
    """What more measurements would show, as data and as lines of text."""
    from orchestrator.front.what_next import what_next

    found = what_next(front)
    return found.to_mapping(), ["", heading("what next"), *(f"  {line}" for line in found.lines)]


def _importances(front: Front) -> tuple[dict[str, Any], list[str]]:
    """The importances of each sweep as data, and as lines of text."""
    from orchestrator.front.importance import importances

    facts = {}
    lines = list[str]()
    for name, sweep in front.sweeps.items():
        found = importances(sweep, front.metrics)
        facts[name] = found.to_mapping()
        lines += ["", f"importances in {name}, of {counted(found.trials, 'measured trial')}:"]
        if found.problem:
            lines[-1] = f"{name}: {found.problem}"
        else:
            head, rows = found.table
            lines.append(shown_table(head, rows, right=range(1, len(head))))
    return facts, lines


def _stopped_trials(front: Front, where: Sequence[str]) -> list[dict[str, Any]]:
    """The trials that racing stopped and that were not revived; rival, images and chance: see
    `EarlyStop`.
    """
    from orchestrator.front.questions import trial_rows

    found = []
    for name, sweep in front.sweeps.items():
        chosen = set(trial_rows(sweep, where, ["number"])["number"].to_pylist())
        for record in sweep.records:
            if not record.is_stopped or record.duplicate_of is not None:
                continue
            if record.stop is not None and record.number in chosen:
                facts = {
                    "sweep": name,
                    "number": record.number,
                    "label": record.label,
                    "cause": record.cause or "",
                    "setting": front.names.name(record.config),
                    "description": front.names.describe(record.config),
                }
                found.append(facts | asdict(record.stop))
    return found


def _notes(front: Front, query: o.Query, best: Sequence[str]) -> list[str]:
    """Filters that match nothing (see `unmatched`), and what to know about the results (see
    `notes`) and limits.
    """
    from orchestrator.front.query import limit_notes, unmatched
    from orchestrator.shown.status import sweep_notes, waiting_note

    where = query.where or ()
    notes = []
    for name, sweep in front.sweeps.items():
        whose = f"{name}, " if len(front.sweeps) > 1 else ""
        texts = waiting_note(sweep)
        if where:
            texts += unmatched(sweep.table, where)
        texts += sweep_notes(sweep)
        notes += [whose + text for text in texts]
    if front.infeasible_note:
        notes.append(f"{front.infeasible_note}; add --infeasible to include them")
    return [*notes, *_unmeasured(front), *limit_notes(front.metrics, best)]


def _unmeasured(front: Front) -> list[str]:
    """A note on each objective that complete trials lack, with their numbers, except for speeds
    (see `timing_notes`).
    """
    from orchestrator.store.prices import is_priced

    notes = []
    for name, sweep in front.sweeps.items():
        complete = [
            record for record in sweep.records if record.is_complete and record.duplicate_of is None
        ]
        for metric in front.metrics:
            if sweep.machine is not None and is_priced(metric.name):
                continue
            missing = [record.number for record in complete if metric.name not in record.metrics]
            if not missing:
                continue
            trials = some_trials(missing, len(complete))
            if len(front.sweeps) > 1:
                trials += f" of {name}"
            notes.append(f"{metric.name} was not measured in {trials}")
    return notes


def _read_size(output: Output) -> tuple[float, float] | None:
    """The width and height of the plot in inches; None for the default.

    Raises:
        CommandError: they are invalid, or an option has no file to apply to.
    """
    ending = ""
    if output.table is not None:
        ending = ending_of(output.table, (*TABLES, *PAPER_TABLES))
    if output.column and ending not in PAPER_TABLES:
        raise CommandError(
            "--column adds to the table of a paper: give --table a file in .tex or .md",
            WRONG_USAGE,
        )
    if output.wide and ending != ".tex":
        raise CommandError(
            "--wide is for a table in LaTeX: give --table a file in .tex", WRONG_USAGE
        )
    if output.plot_size is None:
        return None
    if output.plot is None:
        raise CommandError("--plot-size is the size of --plot FILE; add it", WRONG_USAGE)
    size = (0.0, 0.0)
    if found := re.fullmatch(r"(\d+\.?\d*)\s*[x,×]\s*(\d+\.?\d*)", output.plot_size.strip()):
        size = (float(found[1]), float(found[2]))
    if not all(_MIN_INCHES <= side <= _MAX_INCHES for side in size):
        problem = (
            f"give a width and a height of {_MIN_INCHES:g} to {_MAX_INCHES:g} inches, such as 3x2.4"
        )
        raise CommandError(f"--plot-size {output.plot_size}: {problem}", WRONG_USAGE)
    return size


def _write_files(
    front: Front,
    rows: Sequence[Candidate],
    chosen: Choice | None,
    output: Output,
    size: tuple[float, float] | None,
) -> dict[str, str]:
    """Write what the options ask for; returns the files by option."""
    written = dict[str, str]()
    if output.table is not None:
        written["table"] = write_output(output.table, _table_file(front, rows, output))
    if output.plot is not None:
        from orchestrator.shown.plots import front_plot

        picture = front_plot(front, ", ".join(front.sweeps), ending_of(output.plot, PLOTS), size)
        written["plot"] = write_output(output.plot, picture)
    if output.config is not None and chosen is not None:
        written["config"] = write_output(output.config, chosen.config_text.encode())
    return written


def _table_file(front: Front, rows: Sequence[Candidate], output: Output) -> bytes:
    from orchestrator.front.compare import require_comparable
    from orchestrator.shown.paper_tables import front_paper_table

    ending = ending_of(output.table or "", (*TABLES, *PAPER_TABLES))
    if ending in TABLES:
        return table_bytes(front.table(rows), ending)
    sweeps = list(front.sweeps.values())
    columns = output.column or ()
    for name in columns:
        for sweep in sweeps:
            sweep.metric(name)
        require_comparable([sweep.identity for sweep in sweeps], name)
    metrics = [sweeps[0].metric(name) for name in columns]
    is_wide = output.wide or ending != ".tex"
    return front_paper_table(front, rows, metrics, is_wide=is_wide).write(ending)


def _generate_command(chosen: Choice, file: str) -> str:
    """The command that generates with the config in a file."""
    from orchestrator.store import files

    command = shlex.join(files.with_plugins("generate", chosen.config.plugins))
    return f'{command} "..." --config {shlex.quote(file)}'
