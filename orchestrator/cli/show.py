"""`specfrontier show`: one trial, with all that is known of it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from orchestrator.cli import query_options as o
from orchestrator.cli.text import for_output, heading, show, shown_table
from orchestrator.options import AsJson, grouped
from orchestrator.text import counted, percent

if TYPE_CHECKING:
    from orchestrator.front.trial import Candidate

EPILOG = """\b
Examples:
  specfrontier show quickstart 5
  specfrontier show s3://lab/sweeps/joint 12 --json
"""


@grouped
@o.query_errors()
def show_trial(
    sweep: o.OneSweep,
    number: Annotated[int, typer.Argument(metavar="N", help="The number of a trial.", min=0)],
    as_json: AsJson = False,
    *,
    prices: o.PriceOptions,
) -> None:
    """Show a trial: what its setting does, in plain sentences, and the papers that it is from; all
    of its values with errors, against vanilla's; its keys; its images.
    """
    from orchestrator.front.front import front_of
    from orchestrator.shown.status import untimed_notes

    front = front_of([o.open_sweep(sweep, prices)], feasible=False)
    trial = for_output(front, long=False, as_json=as_json).trial(number)
    notes = untimed_notes(trial.sweep, [trial.record])
    lines = [*_lines(trial), *(f"note: {text}" for text in notes)]
    show(_facts(trial) | {"warnings": notes}, lines, as_json=as_json)


def _facts(trial: Candidate) -> dict[str, Any]:
    from orchestrator.store.explain import papers_of

    record = trial.record
    return trial.to_mapping() | {
        "state": record.state,
        "cause": record.cause,
        "explanation": trial.explanation,
        "papers": papers_of(trial.config),
        "images": record.images,
        "image_grid": trial.image_grid,
        "started": record.started,
        "finished": record.finished,
    }


def _lines(trial: Candidate) -> list[str]:
    from orchestrator.store.explain import papers_of
    from search_spaces.documents import write_document

    record = trial.record
    lines = [heading(trial.heading), trial.explanation]
    if papers := papers_of(trial.config):
        lines.append(f"from: {', '.join(papers)}")
    lines += ["", *_state(trial)]
    if trial.metrics:
        lines += ["", _metric_table(trial)]
    lines += ["", *write_document(trial.config.to_mapping()).rstrip().split("\n"), ""]
    lines.append(f"images: {record.images:,}")
    if trial.image_grid is not None:
        lines[-1] += f"; the first ones: {trial.image_grid}"
    return lines


def _state(trial: Candidate) -> list[str]:
    """How it ended, and its place on the front of the sweep's objectives."""
    record = trial.record
    if not record.is_complete:
        return [f"{record.state}: {record.cause}"]
    lines = [f"complete: {counted(record.images, 'image')} in {record.seconds:.0f} s of workers"]
    if record.duplicate_of is not None:
        lines.append(f"the same setting as trial {record.duplicate_of}, whose images it shares")
    names = " and ".join(metric.name for metric in trial.front_metrics)
    share = percent(trial.confidence)
    verb = "is" if trial.on_front else "is not"
    lines.append(f"{verb} on the front of {names}; in {share} of draws it is")
    return lines


def _metric_table(trial: Candidate) -> str:
    """All values, and how far they are from vanilla's."""
    vanilla = {} if trial.sweep.baseline is None else trial.sweep.baseline.metrics
    with_all_metrics = replace(trial, front_metrics=tuple(trial.sweep.identity.metrics.values()))
    rows = []
    for name, entry in trial.metrics.items():
        metric = trial.sweep.identity.metrics.get(name)
        unit = "" if metric is None else metric.unit
        is_comparable = metric is None or metric.is_of_counts or not trial.record.is_stopped
        base = str(vanilla[name]) if name in vanilla and is_comparable else "-"
        change = with_all_metrics.change(name) if is_comparable else "of fewer images"
        rows.append([name, str(entry), unit, base, change])
    return shown_table(
        ["metric", "value", "unit", "vanilla", "against vanilla"], rows, right=[1, 3]
    )
