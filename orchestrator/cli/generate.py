"""`specfrontier generate`: images from captions, with one setting."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from orchestrator.cli import generate_options as o
from orchestrator.errors import WRONG_USAGE, CommandError, ends_with

if TYPE_CHECKING:
    from orchestrator.results.overrides import Chosen

EPILOG = """\b
Examples:
  specfrontier generate "a large red circle on a striped green background" --preset lantern
  specfrontier generate --captions captions.txt --preset eagle2 --depth 4 --temperature 0 --out drawn
  specfrontier generate "a small blue star" --config drawn/config.yaml --set acceptance.divergence=jsd --json
"""


def generate(
    captions: o.Captions = None,
    captions_file: o.CaptionsFile = None,
    preset: o.Preset = None,
    list_presets: o.ListPresets = False,
    config: o.ConfigFile = None,
    drafter: o.Drafter = None,
    tree: o.Tree = None,
    depth: o.Depth = None,
    width: o.Width = None,
    nodes: o.Nodes = None,
    neighbourhood: o.Neighbourhood = None,
    k: o.K = None,
    delta: o.Delta = None,
    lam: o.Lambda = None,
    schedule: o.Schedule = None,
    budget: o.Budget = None,
    resampling: o.Resampling = None,
    temperature: o.Temperature = None,
    top_k: o.TopK = None,
    top_p: o.TopP = None,
    cfg: o.Cfg = None,
    sets: o.Sets = None,
    batch: o.Batch = 16,
    seed: o.Seed = 0,
    samples: o.Samples = 1,
    out: o.Out = "generated",
    weights: o.Weights = None,
    models: o.ModelsFile = None,
    device: o.Device = None,
    as_json: o.AsJson = False,
) -> None:
    """Draw images of captions with one setting: a preset or a YAML file, and options that override its keys one by one.

    Writes a PNG for each image, contact_sheet.png, heatmap.png (accepted length over the image grid), statistics.json,
    and config.yaml, which --config takes again. Without --preset and --config: plain decoding.
    """
    if list_presets:
        typer.echo(presets_in_words())
        return
    chosen = choose_setting(
        preset,
        config,
        {
            "--drafter": ("drafter.kind", drafter),
            "--tree": ("tree.policy", tree),
            "--depth": ("tree.depth", depth),
            "--width": ("tree.width", width),
            "--nodes": ("tree.nodes", nodes),
            "--neighbourhood": ("acceptance.neighbourhood", neighbourhood),
            "--k": ("acceptance.k", k),
            "--delta": ("acceptance.delta", delta),
            "--lambda": ("acceptance.lambda", lam),
            "--schedule": ("acceptance.schedule", schedule),
            "--budget": ("acceptance.budget", budget),
            "--resampling": ("acceptance.resampling", resampling),
            "--temperature": ("sampling.temperature", temperature),
            "--top-k": ("sampling.top_k", top_k),
            "--top-p": ("sampling.top_p", top_p),
            "--cfg": ("sampling.cfg", cfg),
        },
        sets or [],
    )
    texts = read_captions(captions or [], captions_file)
    from orchestrator.run.generation import Run, generate_images  # after the checks: this is where torch is imported

    run = Run(preset, seed, batch, samples, Path(out), weights, device, models)
    typer.echo(generate_images(chosen, texts, run, as_json=as_json))


def presets_in_words() -> str:
    """One line for each preset: name, what it is, source."""
    from search_spaces.presets import ALIASES, CATALOGUE

    also = {name: f" (also: {alias})" for alias, name in ALIASES.items()}
    return "\n".join(
        f"{name:<20} {entry.about}{also.get(name, '')} [{entry.source}]" for name, entry in CATALOGUE.items()
    )


def choose_setting(
    preset: str | None, config: str | None, given: Mapping[str, tuple[str, Any]], sets: list[str]
) -> Chosen:
    """The setting of a preset or a file (plain decoding if neither), with the options that were given.

    Raises:
        CommandError: wrong usage, in words.
    """
    from orchestrator.results.overrides import Override, choose, read_file, read_sets
    from search_spaces.presets import preset as find_preset

    if preset is not None and config is not None:
        raise CommandError("--preset and --config: give one of them; options override keys of either", WRONG_USAGE)
    base: dict[str, Any] = {}
    if preset is not None:
        with ends_with(WRONG_USAGE):
            base = find_preset(preset).to_mapping()
    elif config is not None:
        base = read_file(config)
    overrides = [Override(flag, key, value) for flag, (key, value) in given.items() if value is not None]
    return choose(base, [*overrides, *read_sets(sets)])


def read_captions(given: list[str], file: str | None) -> list[str]:
    """The captions of the line, then those of the file (or standard input); blank lines of a file are skipped.

    Raises:
        CommandError: none at all, an empty one, or a file that cannot be read as UTF-8 text.
    """
    if any(not caption.strip() for caption in given):
        raise CommandError("a caption is empty: say what to draw", WRONG_USAGE)
    captions = [caption.strip() for caption in given]
    if file is not None:
        with ends_with(WRONG_USAGE):
            try:
                data = sys.stdin.buffer.read() if file == "-" else Path(file).read_bytes()
                text = data.decode("utf-8-sig")
            except UnicodeDecodeError as error:
                raise ValueError(f"{file}: not UTF-8 text (byte {error.start}); captions are one a line") from error
        captions += [line.strip() for line in text.splitlines() if line.strip()]
    if not captions:
        source = (
            "give them as arguments, or with --captions FILE"
            if file is None
            else f"{'standard input' if file == '-' else file} is empty"
        )
        raise CommandError(f"no captions: {source}", WRONG_USAGE)
    return captions
