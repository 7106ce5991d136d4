"""Generates images from captions with one decoding config; writes contact sheet, heat map, statistics and config."""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import yaml
from PIL import Image, ImageDraw, ImageFont, PngImagePlugin

from orchestrator.errors import FAILED, INTERRUPTED, WRONG_USAGE, CommandError, ends_with, in_memory
from orchestrator.results.names import SettingNames
from orchestrator.results.notes import drafter_warning, is_hardly_accepted
from orchestrator.results.text import counted
from search_spaces.trial import DecodingConfig, NoDrafter, Sampling
from workers.data.pictures import (
    INK,
    LINE,
    MARGIN,
    PAPER,
    TEXT_SIZE,
    accepted_by_cell,
    enlarge,
    heat_map,
    to_pictures,
    wrap,
)
from workers.decoding.engine import DecodingError, Engine
from workers.decoding.kernels import implementation
from workers.decoding.state import Request
from workers.decoding.statistics import Result
from workers.decoding.timer import PHASES
from workers.loading.models_yaml import find_entry, load_entry
from workers.models.target import Grid
from workers.runtime.device import versions

_PICTURE_SIDE = 384  # pixels; pictures are enlarged to about this side, by a whole factor
_MAX_CAPTION_CHARS = 48  # of a caption in a file name
_PICTURE_NAME = re.compile(r"\d{4,}-\d+(-[a-z0-9-]+)?\.png")  # as `file_name` writes it
_STATISTICS = "statistics.json"
_MEANS = ("mean_accepted_length", "step_compression", "mean_tree_depth")


@dataclass(frozen=True, slots=True)
class Generation:
    """Options of a run besides its config and captions. preset: the name that the user gave, for the statistics."""

    preset: str | None
    seed: int
    batch: int
    samples: int
    folder: Path
    device: torch.device
    models: str = "builtin"


@dataclass
class Gallery:
    """The finished images of a run, in the order of their requests."""

    folder: Path
    digest: str
    seed: int
    entries: dict[tuple[int, int], tuple[Result, Image.Image, str]] = field(default_factory=dict)

    def add(self, result: Result, picture: Image.Image) -> None:
        """Write one picture, with caption and config digest as PNG text, and keep it."""
        request = result.request
        note = PngImagePlugin.PngInfo()
        note.add_itxt("caption", request.caption)
        origin = f"config {self.digest}, seed {self.seed}, caption {request.caption_id}, sample {request.sample}"
        note.add_text("specfrontier", origin)
        name = file_name(request)
        enlarge(picture, _PICTURE_SIDE).save(self.folder / name, pnginfo=note)
        self.entries[request.caption_id, request.sample] = (result, picture, name)

    @property
    def ordered(self) -> list[tuple[Result, Image.Image, str]]:
        return [self.entries[key] for key in sorted(self.entries)]


def generate_images(mapping: Mapping[str, Any], captions: Sequence[str], options: Generation, *, as_json: bool) -> str:
    """Generate all images and write the output folder; returns the text to print.

    mapping: a `DecodingConfig` as a mapping; missing sampling keys have the target's defaults.

    Raises:
        CommandError: config, models, captions or folder are invalid (2); weights or decoding fail (1); interrupt (130).
    """
    with in_memory("while loading the models; free some memory, use a larger device, or set dtype: bfloat16"):
        with ends_with(WRONG_USAGE):
            entry = find_entry(options.models)
        with ends_with(FAILED):
            models = load_entry(entry, options.device)
        target = models.target
        with ends_with(WRONG_USAGE):
            config = DecodingConfig.from_mapping(mapping, target.sampling)
            config.check_model(target.vocab_size, drafters=models.drafters.keys())
            drafter = models.drafters.get(config.drafter.kind)
            engine = Engine(target, config, drafter, seed=options.seed, batch_size=options.batch)
            target.check(captions)  # all of them, before the first image is generated
    requests = [
        Request(index, text, sample) for index, text in enumerate(captions) for sample in range(options.samples)
    ]
    gallery = Gallery(options.folder, config.digest(), options.seed)
    with ends_with(WRONG_USAGE):
        replaced = _remove_previous(options.folder)
    with in_memory(f"at batch {engine.batch_size}; try --batch {max(1, engine.batch_size // 2)}"):
        seconds = _draw(engine, requests, gallery)
    header = {
        "versions": versions(),
        "target": target.name,
        "weights": models.hashes,
        "device": str(engine.device),
        "threads": torch.get_num_threads(),
        "cuda_graphs": engine.uses_graphs,
        "kernels": implementation(engine.device.type),
        "preset": options.preset,
        "setting": SettingNames(Sampling()).name(config),
        "config": config.to_mapping(),
        "digest": gallery.digest,
        "seed": options.seed,
        "batch": min(options.batch, len(requests)),
        "samples": options.samples,
        "warnings": _warnings(gallery, config.drafter.kind, entry.files),
    }
    with ends_with(FAILED):
        statistics = _write_report(gallery, target.grid, header, seconds)
    if as_json:
        return json.dumps(statistics, indent=2, ensure_ascii=False)
    return _summary(statistics, options.folder, replaced)


def _warnings(gallery: Gallery, drafter: str, files: Mapping[str, str]) -> list[str]:
    """A sentence if hardly anything is accepted of a drafter with weights. files: of the models, by key."""
    statistics = [result.statistics for result, _, _ in gallery.entries.values()]
    tokens, passes = sum(int(image.emitted.sum()) for image in statistics), sum(image.rounds for image in statistics)
    file = files.get(f"drafters.{drafter}")
    return (
        []
        if file is None or not is_hardly_accepted(tokens, passes)
        else [drafter_warning(drafter, file, tokens, passes)]
    )


def _remove_previous(folder: Path) -> int:
    """Remove the pictures that the statistics.json of the previous run names, so that a folder holds one run; returns
    how many there were."""
    statistics = folder / _STATISTICS
    try:
        names = [str(row["file"]) for row in json.loads(statistics.read_text("utf-8"))["images"]]
    except (OSError, ValueError, KeyError, TypeError):
        return 0  # no previous run, or another program's file
    pictures = [folder / name for name in names if _PICTURE_NAME.fullmatch(name) and (folder / name).exists()]
    for path in [*pictures, statistics]:
        path.unlink(missing_ok=True)
    return len(pictures)


def _draw(engine: Engine, requests: Sequence[Request], gallery: Gallery) -> float:
    """Run all requests and write each picture when it is finished.

    Returns the engine's wall time in seconds; it excludes decoding tokens to pixels and writing files.

    Raises:
        CommandError: decoding failed (1) or was interrupted (130).
    """
    seconds, mark = 0.0, time.perf_counter()
    try:
        with _progress(len(requests)) as advance:
            for result in engine.run(requests):
                seconds += time.perf_counter() - mark
                gallery.add(result, to_pictures(engine.target.decode(result.tokens[None].to(engine.device)))[0])
                advance()
                mark = time.perf_counter()
    except KeyboardInterrupt:
        finished = f"{len(gallery.entries)} of {len(requests)} images are in {gallery.folder}"
        raise CommandError(
            f"interrupted; {finished}. The same command draws the same images again", INTERRUPTED
        ) from None
    except (DecodingError, OSError) as error:
        raise CommandError(str(error), FAILED) from error
    return seconds


@contextmanager
def _progress(images: int) -> Iterator[Callable[[], None]]:
    """A bar with the time that is left, on a terminal; yields a function to call after each image."""
    if not sys.stderr.isatty():
        yield lambda: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
    from rich.progress import TimeRemainingColumn as TimeLeft

    columns = (SpinnerColumn(), BarColumn(24), MofNCompleteColumn(), TextColumn("images"), TimeElapsedColumn())
    with Progress(*columns, TimeLeft(), TextColumn("left"), console=Console(stderr=True)) as bar:
        task = bar.add_task("", total=images)
        yield lambda: bar.advance(task)


def file_name(request: Request) -> str:
    """Caption id, sample, and the caption's letters and digits: `0000-0-a-large-red-circle.png`."""
    slug = re.sub(r"[^a-z0-9]+", "-", request.caption.lower()).strip("-")[:_MAX_CAPTION_CHARS].rstrip("-")
    return f"{request.caption_id:04d}-{request.sample}{'-' if slug else ''}{slug}.png"


def _image_row(result: Result, file: str) -> dict[str, Any]:
    """The statistics of one image. `latency`: its share of the seconds of its rounds."""
    request, statistics = result.request, result.statistics
    return {
        "file": file,
        "caption_id": request.caption_id,
        "caption": request.caption,
        "sample": request.sample,
        "target_passes": statistics.rounds,
        **{name: getattr(statistics, name) for name in _MEANS},
        "latency": statistics.latency,
        "seconds": {phase: statistics.seconds[phase] for phase in PHASES},
    }


def _overall(rows: Sequence[dict[str, Any]], wall_seconds: float) -> dict[str, Any]:
    """Statistics over all images.

    Accepted length: all tokens except those of the prefills, divided by all target passes. Step compression and tree
    depth: means over the images. `latency`: wall time per image at this batch size. `seconds`: sums over the images.
    """
    passes = sum(row["target_passes"] for row in rows)
    means = {name: sum(row[name] for row in rows) / len(rows) for name in _MEANS}
    means["mean_accepted_length"] = sum(row["mean_accepted_length"] * row["target_passes"] for row in rows) / passes
    return {
        "images": len(rows),
        "target_passes": passes,
        **means,
        "latency": wall_seconds / len(rows),
        "wall_seconds": wall_seconds,
        "seconds": {phase: sum(row["seconds"][phase] for row in rows) for phase in PHASES},
    }


def _write_report(gallery: Gallery, grid: Grid, header: dict[str, Any], wall_seconds: float) -> dict[str, Any]:
    """Write contact_sheet.png, heatmap.png, statistics.json and config.yaml; returns the statistics."""
    entries, folder = gallery.ordered, gallery.folder
    rows = [_image_row(result, name) for result, _, name in entries]
    cells = accepted_by_cell((result.statistics.emitted.tolist() for result, _, _ in entries), grid.rows, grid.cols)
    statistics = {**header, "overall": _overall(rows, wall_seconds), "accepted_length_by_cell": cells, "images": rows}
    sheet = contact_sheet([picture for _, picture, _ in entries], [row["caption"] for row in rows])
    sheet.save(folder / "contact_sheet.png")
    mean, images = statistics["overall"]["mean_accepted_length"], counted(len(rows), "image")
    # rounds that accept more cover more cells, so the mean over cells exceeds the mean over rounds
    title = f"accepted length of each cell's round, {images} (mean over rounds {mean:.2f})"
    heat_map(cells, title).save(folder / "heatmap.png")
    text = json.dumps(statistics, indent=2, ensure_ascii=False)
    (folder / _STATISTICS).write_text(text + "\n", "utf-8")
    (folder / "config.yaml").write_text(yaml.safe_dump(header["config"], sort_keys=False, allow_unicode=True), "utf-8")
    return statistics


def contact_sheet(pictures: Sequence[Image.Image], captions: Sequence[str], *, side: int = 192) -> Image.Image:
    """All pictures, each enlarged to about `side` pixels, with its caption below. Up to four pictures are one row; more
    are a grid of at most six columns that is as square as possible.
    """
    font = ImageFont.load_default(TEXT_SIZE)
    thumbs = [enlarge(picture, side) for picture in pictures]
    width, height = max(thumb.width for thumb in thumbs), max(thumb.height for thumb in thumbs)
    texts = [wrap(caption, width, font) for caption in captions]
    columns = len(thumbs) if len(thumbs) <= 4 else min(6, max(3, round(len(thumbs) ** 0.5 + 0.49)))
    rows = [range(start, min(start + columns, len(thumbs))) for start in range(0, len(thumbs), columns)]
    row_heights = [height + LINE * max(len(texts[i]) for i in row) + 2 * MARGIN for row in rows]
    sheet = Image.new("RGB", (columns * (width + MARGIN) + MARGIN, sum(row_heights) + MARGIN), PAPER)
    draw = ImageDraw.Draw(sheet)
    top = MARGIN
    for row, row_height in zip(rows, row_heights, strict=True):
        for column, index in enumerate(row):
            left = MARGIN + column * (width + MARGIN)
            sheet.paste(thumbs[index], (left, top))
            for number, line in enumerate(texts[index]):
                draw.text((left, top + height + 4 + number * LINE), line, INK, font)
        top += row_height
    return sheet


def _summary(statistics: dict[str, Any], folder: Path, replaced: int) -> str:
    """The setting, its speed and its passes of the target, in words, and the files. replaced: images of the
    last run."""
    means, config = statistics["overall"], statistics["config"]
    images, speed = means["images"], f"{1 / means['latency']:.3g} images/s at batch {statistics['batch']}"
    tokens, total = means["mean_accepted_length"], sum(means["seconds"].values())
    passes = f"{means['target_passes'] / images:.1f} target passes per image, each for {tokens:.2f} tokens"
    drafts = f" (vanilla: 1); {100 * means['seconds']['drafter'] / total:.0f} % of the time went into drafting"
    return "\n".join(
        [
            f"{statistics['setting']}, target {statistics['target']} on {statistics['device']}",
            f"{counted(images, 'image')} in {means['wall_seconds']:.2f} s: {speed}",
            passes + (drafts if config["drafter"]["kind"] != NoDrafter.kind else ""),
            *(f"note: {text}" for text in statistics["warnings"]),
            f"{folder / 'contact_sheet.png'} (and heatmap.png, statistics.json, config.yaml)",
            *([f"replaced {counted(replaced, 'image')} of the last run; --out keeps runs apart"] if replaced else []),
        ]
    )
