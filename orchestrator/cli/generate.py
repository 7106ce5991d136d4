"""`specfrontier generate`: images from captions, with one decoding config."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from orchestrator import options as o
from orchestrator.cli import query_options as q
from orchestrator.errors import FAILED, WRONG_USAGE, CommandError, ends_with
from orchestrator.options import complete_preset, complete_sweep
from orchestrator.outputs import output_folder, read_input

if TYPE_CHECKING:
    from orchestrator.store import config_file
    from workers.data.captions import Caption
    from workers.data.prompt_benchmarks import PromptSet

EPILOG = """\b
Examples:
  specfrontier generate "a large red circle on a cloudy blue background" --preset lantern
  specfrontier generate --captions captions.txt --preset eagle2 --set acceptance=lantern --set tree.depth=4
  specfrontier generate "a small blue star" --config generated/config.yaml --set acceptance.divergence=jsd --json
  specfrontier generate "a small blue star" --from quickstart --best 'fid <= 1.2 * vanilla' --against vanilla
  specfrontier generate "a small blue star" --from quickstart --trial 0
  specfrontier generate --captions captions.txt --preset eagle2 --verify
  specfrontier generate --captions evaluation_metadata.jsonl --layout geneval --samples 4 --preset cool
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """The options that say what is generated, and with which config."""

    captions: Annotated[
        list[str] | None,
        typer.Argument(metavar="CAPTION", help="Captions; quote each one.", show_default=False),
    ] = None
    captions_file: str | None = o.option(
        "File with one caption per line, or any file or folder of captions that a sweep reads; - "
        "for standard input.",
        "FILE",
        "--captions",
        callback=o.input_path,
    )
    preset: str | None = o.option(
        "A published method with its paper's parameters; see --list-presets.",
        "NAME",
        autocompletion=complete_preset,
    )
    list_presets: bool = o.flag("List the presets and exit.")
    config: str | None = o.option(
        "A config file, such as the config.yaml of an earlier run: a path or URI.",
        "YAML",
        callback=o.input_place,
    )
    sweep: str | None = o.option(
        "Take the config of a sweep's trial, with its sampling, and the sweep's models and timing "
        "batch: --trial, --best, --lossless or --knee say which; by default the best one within "
        "the default quality bar.",
        "SWEEP",
        "--from",
        autocompletion=complete_sweep,
    )
    infeasible: bool = o.flag("Of --from: also trials that violate the sweep's constraints.")


@o.grouped
def generate(source: Source, selection: q.TrialOptions, options: q.GenerationOptions) -> None:
    """Generate images from captions with one decoding config: a preset, a YAML file or a sweep's
    trial, with --set for single keys.

    Writes a PNG for each image, contact_sheet.png, heatmap.png (accepted length over the image
    grid), statistics.json, and config.yaml, which --config accepts. Without --preset, --config and
    --from: vanilla autoregressive decoding. Sampling keys that are not set have the target's
    defaults, which need not be a sweep's: --from takes the sweep's.
    """
    if source.list_presets:
        typer.echo(_describe_presets())
        return
    setting = _read_setting(source, selection)
    mapping = _with_assignments(setting.mapping, options.assignments or [])
    if options.layout is None:
        prompts = None
        captions = _read_captions(source.captions or [], source.captions_file, options.seed)
    else:
        prompts = _read_prompts(source, options)
        captions = prompts.captions
    o.say_on_terminal("loading the models")
    from orchestrator.cli.generation import generate_images  # after the checks: this imports torch

    with output_folder(Path(options.out)):
        text, problem = generate_images(mapping, captions, setting, source.preset, options, prompts)
        typer.echo(text)
    if problem is not None:
        raise CommandError(problem, FAILED)


def _describe_presets() -> str:
    """One line for each preset: name, description, source."""
    from search_spaces.presets import ALIASES, CATALOGUE

    aliases = {name: f" (also: {alias})" for alias, name in ALIASES.items()}
    return "\n".join(
        f"{name:<20} {entry.about}{aliases.get(name, '')} [{entry.source}]"
        for name, entry in CATALOGUE.items()
    )


def _read_setting(source: Source, selection: q.TrialOptions) -> config_file.Setting:
    """The config of a preset, a file or a sweep's trial (vanilla without any), and what was
    measured of it.

    The section `sampling` has only the keys that were given.

    Raises:
        CommandError: wrong usage, or the sweep has no such trial.
    """
    from orchestrator.store import config_file
    from search_spaces.documents import read_document
    from search_spaces.presets import preset as find_preset
    from search_spaces.trial import DecodingConfig, Sampling

    is_chosen = selection.is_given()
    given = {"--preset": source.preset, "--config": source.config, "--from": source.sweep}
    names = [name for name, value in given.items() if value is not None]
    if len(names) > 1:
        raise CommandError(
            f"{names[0]} and {names[1]} cannot be combined; give one and adjust it with --set",
            WRONG_USAGE,
        )
    if source.sweep is not None:
        return _read_trial(source.sweep, selection, infeasible=source.infeasible)
    if is_chosen or source.infeasible:
        options = "--trial, --best, --lossless, --knee and --infeasible"
        raise CommandError(f"{options} choose a sweep's trial; add --from SWEEP", WRONG_USAGE)
    with ends_with(WRONG_USAGE):
        if source.preset is not None:
            return config_file.Setting(find_preset(source.preset).to_mapping())
        if (file := source.config) is None:
            return config_file.Setting({})
        data = read_input(file)
        document = read_document(data, file)
        text = data.decode("utf-8-sig")
        with document.locate_errors(), config_file.naming_plugins(text):
            whole = DecodingConfig.from_mapping(document.data, Sampling())
        mapping = whole.with_sampling(None).to_mapping() | {
            "sampling": document.data.get("sampling")
        }
        return config_file.Setting(
            mapping,
            speed=config_file.MeasuredSpeed.read(text),
            comments=config_file.head_comments(text),
        )


@q.query_errors()
def _read_trial(source: str, selection: q.TrialOptions, *, infeasible: bool) -> config_file.Setting:
    """The setting of a sweep's trial; by default of the best one within the default quality bar.

    Raises:
        CommandError: no such sweep or trial, or the sweep has no default quality bar.
    """
    (sweep,) = q.PriceOptions().open([source])  # the statistics have notes
    from orchestrator.front.choice import default_limit
    from orchestrator.front.front import front_of
    from orchestrator.shown.status import session_problems

    front = front_of([sweep], feasible=not infeasible)
    if not selection.is_given() and not front.infeasible_note:
        if (limit := default_limit(front)) is None:
            problem = f"--from {source}: this sweep has no default quality bar"
            raise CommandError(
                f"{problem}; add --trial N, --best LIMIT, --lossless or --knee", WRONG_USAGE
            )
        selection = q.TrialOptions(best=[limit])
    return replace(selection.select(front).to_setting(), notes=tuple(session_problems(sweep)))


def _with_assignments(base: Mapping[str, Any], assignments: list[str]) -> dict[str, Any]:
    """A config as a mapping, with assignments applied. Everything that does not depend on the model
    is validated.

    Raises:
        CommandError: wrong usage.
    """
    from search_spaces.trial import DecodingConfig, Sampling, override, parse_assignments

    with ends_with(WRONG_USAGE):
        mapping = override(dict(base), parse_assignments(assignments))
        DecodingConfig.from_mapping(mapping, Sampling())
    return mapping


def _read_captions(captions: list[str], file: str | None, seed: int) -> list[Caption]:
    """The captions of the command line, then those of the file or folder in its order (`-`:
    standard input). It is read as a sweep's is; a file of another ending, as text with one caption
    per line.

    Raises:
        CommandError: no captions, an empty one, or a file that cannot be read.
    """
    from workers.data.captions import (
        ENDINGS,
        Caption,
        captions_in_order,
        captions_of_text,
    )
    from workers.data.text_files import caption_in_one_line, decode, read_text

    if any(not caption.strip() for caption in captions):
        raise CommandError("a caption is empty; describe an image", WRONG_USAGE)
    with ends_with(WRONG_USAGE):
        found = [
            Caption(number, caption_in_one_line(caption, f"caption {number}"))
            for number, caption in enumerate(captions, start=1)
        ]
        if file is None:
            listed = []
        elif file == "-":
            text = decode(sys.stdin.buffer.read(), "standard input")
            listed = captions_of_text(text, "standard input")
        elif Path(file).is_dir() or Path(file).suffix.lower() in ENDINGS:
            listed = captions_in_order(Path(file), seed=seed)
        else:
            listed = captions_of_text(read_text(Path(file)), file)
        found += listed
    if not found:
        fix = "give them as arguments, or with --captions FILE"
        if file is not None:
            fix = f"{'standard input' if file == '-' else file} is empty"
        raise CommandError(f"no captions: {fix}", WRONG_USAGE)
    return found


def _read_prompts(source: Source, options: q.GenerationOptions) -> PromptSet:
    """The prompts of --captions in the layout of their benchmark.

    Raises:
        CommandError: captions from elsewhere, more images of a prompt than the benchmark takes, or a
            file that is not one of its prompts.
    """
    from workers.data.prompt_benchmarks import PROMPT_BENCHMARKS, PromptSet

    assert options.layout is not None
    benchmark = PROMPT_BENCHMARKS[options.layout]
    if source.captions or source.captions_file in (None, "-"):
        raise CommandError(
            f"--layout {benchmark.name} needs the file of {benchmark.title}'s prompts, and no other "
            "captions; add --captions FILE",
            WRONG_USAGE,
        )
    if benchmark.max_samples is not None and options.samples > benchmark.max_samples:
        raise CommandError(
            f"{benchmark.title} takes at most {benchmark.max_samples} images of a prompt; lower "
            "--samples",
            WRONG_USAGE,
        )
    assert source.captions_file is not None
    with ends_with(WRONG_USAGE):
        # dpg_bench.csv has a row for each question
        prompts = list(dict.fromkeys(benchmark.read_prompts(Path(source.captions_file))))
    if not prompts:
        raise CommandError(f"no captions: {source.captions_file} is empty", WRONG_USAGE)
    return PromptSet(benchmark, prompts, options.samples)
