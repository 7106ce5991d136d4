"""`specfrontier export`: a trial's setting as a folder that draws images elsewhere, or its images as
the tool of a benchmark reads them.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from orchestrator import options as o
from orchestrator.cli import query_options as q
from orchestrator.errors import FAILED, WRONG_USAGE, CommandError
from orchestrator.outputs import write_folder
from orchestrator.text import clean

if TYPE_CHECKING:
    from orchestrator.front.choice import Choice

EPILOG = """\b
Examples:
  specfrontier export quickstart --best 'fid <= 1.2 * vanilla' --out fast
  specfrontier export quickstart --lossless --out exact
  specfrontier export mine --trial 7 --with-weights --out seven
  specfrontier export mine --trial 7 --layout geneval --out images
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageOptions:
    """The options of images in the place of a setting."""

    layout: q.Layout = None
    captions: str | None = o.option(
        "Of --layout: the benchmark's prompts, of which the sweep's captions are. Default: the "
        "sweep's file.",
        "FILE",
        callback=o.input_path,
    )
    models: o.Models = None


@o.grouped
@q.query_errors()
def export(
    sweep: q.OneSweep,
    query: q.Query,
    prices: q.PriceOptions,
    selection: q.TrialOptions,
    images: ImageOptions,
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

    With --layout, write the trial's images instead, to a new folder in DIR that is named after the
    trial: the benchmark's own tool reads it, and `specfrontier measure` reads the tool's results.
    """
    if images.layout is None and images != ImageOptions():
        raise CommandError("--captions and --models are for --layout; add it", WRONG_USAGE)
    if images.layout is not None and with_weights:
        raise CommandError("--with-weights and --layout cannot be combined", WRONG_USAGE)
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
    if images.layout is not None:
        _export_images(trial, images, Path(out))
        return
    _export_setting(trial, Path(out), with_weights=with_weights)


def _export_images(trial: Choice, options: ImageOptions, out: Path) -> None:
    from orchestrator.cli.prompt_images import export_images, prompts_of
    from workers.data.prompt_benchmarks import PROMPT_BENCHMARKS

    assert options.layout is not None
    benchmark = PROMPT_BENCHMARKS[options.layout]
    if options.models is not None:
        o.find_models(
            options.models, options.models
        )  # refuses a wrong place before images are read
    prompts = prompts_of(trial, benchmark, options.captions)
    o.say_on_terminal("loading the target")
    folder = export_images(trial, benchmark, prompts, out, options.models)
    typer.echo(clean(f"{folder}: {trial.heading}, for the tool of {benchmark.title}"))


def _export_setting(trial: Choice, out: Path, *, with_weights: bool) -> None:
    from orchestrator.shown.export import CAPTIONS, export_files, models_place
    from orchestrator.shown.status import untimed_notes

    for text in untimed_notes(trial.sweep, [trial.record]):
        typer.echo(f"note: {clean(text)}", err=True)
    files = export_files(trial, with_weights=with_weights)
    write_folder(out, files)
    names = dict.fromkeys(name.partition("/")[0] for name in files)
    if CAPTIONS not in files:
        note = (
            f"note: without {CAPTIONS}, which `draw.py --measure` reads: the sweep has no readable "
            "images of vanilla, whose captions it would have; write one caption a line"
        )
        typer.echo(note, err=True)
    typer.echo(clean(f"{out}: {trial.heading} ({', '.join(names)})"))
    typer.echo(clean(models_place(trial, files)))
