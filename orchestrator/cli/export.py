"""`specfrontier export`: a trial's setting as a folder that draws images elsewhere."""

from __future__ import annotations

from pathlib import Path

import typer

from orchestrator import options as o
from orchestrator.cli import query_options as q
from orchestrator.errors import FAILED, WRONG_USAGE, CommandError
from orchestrator.outputs import write_folder
from orchestrator.text import clean

EPILOG = """\b
Examples:
  specfrontier export quickstart --best 'fid <= 1.2 * vanilla' --out fast
  specfrontier export quickstart --lossless --out exact
  specfrontier export mine --trial 7 --with-weights --out seven
"""


@o.grouped
@q.query_errors()
def export(
    sweep: q.OneSweep,
    query: q.Query,
    prices: q.PriceOptions,
    selection: q.TrialOptions,
    with_weights: bool = o.flag(
        "Include the files of the target and of the drafter, copied (large weights are hard links on "
        "the same disk), and a models.yaml that names them. Those of the built-in model are checked "
        "and not copied: they are part of this project."
    ),
    out: str = o.option(
        "Folder to write; created if missing.", "DIR", default="export", callback=o.output_path
    ),
) -> None:
    """Write a setting to a folder: setting.yaml; draw.py, which draws images with it and, with
    --measure, says whether its speed-up holds on another machine; the versions that it ran with;
    and README.md, a model card as the Hugging Face Hub reads it, with what was measured, the drafter
    and the flags of published code (LANTERN, EAGLE, SJD, GSD) or why they cannot express it.
    """
    from orchestrator.shown.export import CAPTIONS, export_files, models_place
    from orchestrator.shown.status import untimed_notes

    if not selection.is_given():
        raise CommandError(
            "add --trial N, --best LIMIT, --lossless or --knee to choose the setting", WRONG_USAGE
        )
    trial = selection.select(query.front(prices.open([sweep])))
    if not trial.metrics:
        raise CommandError(
            f"trial {trial.number} was not measured: {trial.record.cause or trial.record.state}",
            FAILED,
        )
    for text in untimed_notes(trial.sweep, [trial.record]):
        typer.echo(f"note: {clean(text)}", err=True)
    files = export_files(trial, with_weights=with_weights)
    write_folder(Path(out), files)
    names = dict.fromkeys(name.partition("/")[0] for name in files)
    if CAPTIONS not in files:
        note = (
            f"note: without {CAPTIONS}, which `draw.py --measure` reads: the sweep has no readable "
            "images of vanilla, whose captions it would have; write one caption a line"
        )
        typer.echo(note, err=True)
    typer.echo(clean(f"{out}: {trial.heading} ({', '.join(names)})"))
    typer.echo(clean(models_place(trial, files)))
