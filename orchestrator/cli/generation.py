"""Generates images from captions with one decoding config; writes contact sheet, heat map, statistics and config."""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
import yaml
from PIL import Image, ImageDraw, ImageFont, PngImagePlugin

from orchestrator.errors import FAILED, INTERRUPTED, WRONG_USAGE, CommandError, ends_with, in_memory
from orchestrator.results.config_file import Setting
from orchestrator.results.names import VANILLA, SettingNames, format_number
from orchestrator.results.status import drafter_warning, is_hardly_accepted
from orchestrator.results.text import counted
from search_spaces.trial import DecodingConfig, Sampling
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
from workers.loading.models import Models
from workers.loading.models_yaml import find_entry, load_entry
from workers.metrics.costs import VANILLA as SIDE
from workers.metrics.estimate import measured as number_text
from workers.metrics.estimate import ratio_estimate
from workers.models.target import Grid
from workers.runtime.device import device_name, versions
from workers.runtime.timing import Generate, time_pairs

_PICTURE_SIDE = 384  # pixels; pictures are enlarged to about this side, by a whole factor
_MAX_CAPTION_CHARS = 48  # of a caption in a file name
_PICTURE_NAME = re.compile(r"\d{4,}-\d+(-[a-z0-9-]+)?\.png")  # as `file_name` writes it
_STATISTICS = "statistics.json"
_MEANS = ("mean_accepted_length", "step_compression", "mean_tree_depth")


@dataclass(frozen=True, slots=True)
class Generation:
    """Options of a run besides its config and captions. preset: the name that the user gave, for the statistics.
    setting: where the config is from. against_vanilla: generate vanilla's images too, and measure the speed-up.
    """

    preset: str | None
    seed: int
    batch: int
    samples: int
    folder: Path
    device: torch.device
    models: str = "builtin"
    setting: Setting = field(default_factory=lambda: Setting({}))
    against_vanilla: bool = False


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
            config.check_model(target.vocab_size, drafters=models.drafter_levels)
            drafter = models.drafters.get(config.drafter.kind)
            engine = Engine(target, config, drafter, seed=options.seed, batch_size=options.batch)
            target.check(captions)  # all of them, before the first image is generated
    requests = [
        Request(index, text, sample) for index, text in enumerate(captions) for sample in range(options.samples)
    ]
    gallery = Gallery(options.folder, config.digest(), options.seed)
    with ends_with(WRONG_USAGE):
        replaced = _remove_previous(options.folder) + _remove_previous(options.folder / VANILLA)
    against = None
    with in_memory(f"at batch {engine.batch_size}; try --batch {max(1, engine.batch_size // 2)}"):
        if options.against_vanilla:
            vanilla = _vanilla(config, options.setting, target.sampling)
            engines = Engine(target, vanilla, seed=options.seed, batch_size=options.batch), engine
            against = VanillaRun(*engines, Gallery(options.folder / VANILLA, vanilla.digest(), options.seed))
            seconds = against.draw(requests, gallery)
        else:
            seconds = _draw(engine, requests, gallery)
    header = _header(mapping, engine, models, options, len(requests)) | {
        "warnings": _warnings(gallery, config.drafter.kind, entry.files),
        "against": None if against is None else against.facts(),
    }
    with ends_with(FAILED):
        comments = options.setting.comments_for(config.digest())
        statistics = _write_report(gallery, target.grid, header, seconds, comments)
        if against is not None:
            against.write(header)
    if as_json:
        return json.dumps(statistics, indent=2, ensure_ascii=False)
    return _summary(statistics, options.folder, replaced)


def _vanilla(config: DecodingConfig, setting: Setting, sampling: Sampling) -> DecodingConfig:
    """What `config` is compared with: the sweep's vanilla, unless its sampling was changed since; else vanilla with the
    config's sampling. sampling: the target's defaults."""
    stated = DecodingConfig.from_mapping(setting.mapping, sampling)
    is_unchanged = setting.baseline is not None and config.sampling == stated.sampling
    return setting.baseline if is_unchanged and setting.baseline else DecodingConfig(sampling=config.sampling)


def _header(
    mapping: Mapping[str, Any], engine: Engine, models: Models, options: Generation, images: int
) -> dict[str, Any]:
    """What the statistics say of the run besides its images. measured: the speed-up that a sweep measured of this
    config, and why it is not that of this run."""
    config, setting, batch = engine.config, options.setting, min(options.batch, images)
    measured = None
    if setting.speed is not None:
        files = setting.differing_files(models.hashes)
        reasons = setting.speed.differences(config.digest(), batch, device_name(engine.device), files)
        measured = asdict(setting.speed) | {"differences": reasons, "text": setting.speed.describe(reasons)}
    return {
        "versions": versions(),
        "target": engine.target.name,
        "weights": models.hashes,
        "device": str(engine.device),
        "threads": torch.get_num_threads(),
        "cuda_graphs": engine.uses_graphs,
        "kernels": implementation(engine.device.type),
        "preset": options.preset,
        "origin": setting.origin,
        "setting": SettingNames(Sampling()).name(config),
        "config": config.to_mapping(),
        "default_sampling": [key for key in Sampling.fields() if key not in (mapping.get("sampling") or {})],
        "digest": config.digest(),
        "seed": options.seed,
        "batch": batch,
        "samples": options.samples,
        "measured": measured,
    }


def _warnings(gallery: Gallery, drafter: str, files: Mapping[str, str]) -> list[str]:
    """A sentence if hardly anything is accepted of a drafter with weights. files: of the models, by key."""
    statistics = [result.statistics for result, _, _ in gallery.entries.values()]
    tokens, passes = sum(int(image.emitted.sum()) for image in statistics), sum(image.passes for image in statistics)
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
    with _decoding(gallery, len(requests)) as advance:
        for result in engine.run(requests):
            seconds += time.perf_counter() - mark
            gallery.add(result, to_pictures(engine.target.decode(result.tokens[None].to(engine.device)))[0])
            advance()
            mark = time.perf_counter()
    return seconds


@dataclass
class VanillaRun:
    """Vanilla's images of the same captions, generated in turn with a config's, batch by batch. rows: see
    `time_pairs`."""

    vanilla: Engine
    engine: Engine
    gallery: Gallery
    rows: list[dict[str, Any]] = field(default_factory=list)

    def draw(self, requests: Sequence[Request], gallery: Gallery) -> float:
        """Run all requests with both engines and write the pictures; returns the config's wall time in seconds.

        Both first draw a batch that is not timed. A batch ends with its longest image, as in a sweep's timings.

        Raises:
            CommandError: decoding failed (1) or was interrupted (130).
        """
        self.gallery.folder.mkdir(exist_ok=True)
        size, target = self.engine.batch_size, self.engine.target
        batches = [requests[start : start + size] for start in range(0, len(requests), size)]
        results: dict[Request, Result] = {}
        vanillas: dict[Request, Result] = {}

        def drawing(engine: Engine, found: dict[Request, Result], advance: Callable[[], None]) -> Generate:
            def draw(batch: Sequence[Request]) -> list[Result]:
                drawn = list(engine.run(batch))
                for result in drawn:
                    if result.request not in found:  # the batch that is not timed is generated again
                        advance()
                    found[result.request] = result
                return drawn

            return draw

        with _decoding(gallery, len(requests)) as advance:
            try:
                self.rows = time_pairs(
                    drawing(self.vanilla, vanillas, lambda: None),
                    drawing(self.engine, results, advance),
                    batches,
                    repetitions=1,
                    device=self.engine.device,
                    encode=lambda batch: target.encode([request.caption for request in batch], guided=False),
                )
            finally:
                for place, found in ((self.gallery, vanillas), (gallery, results)):
                    for result in found.values():
                        place.add(result, to_pictures(target.decode(result.tokens[None].to(self.engine.device)))[0])
        return sum(float(row["seconds"]) for row in self.rows)

    def facts(self) -> dict[str, Any]:
        """The measured speed-up with its standard error (None: of a single batch), vanilla's seconds per image, and
        where its images are."""
        vanilla, own = (torch.tensor([row[f"seconds{side}"] for row in self.rows]) for side in (SIDE, ""))
        batches = torch.arange(len(self.rows))
        error = ratio_estimate(vanilla, own, batches).error if len(self.rows) > 1 else None
        images, ratio = sum(row["images"] for row in self.rows), float(vanilla.sum() / own.sum())
        latency = float(vanilla.sum()) / images
        return {"speedup": ratio, "error": error, "latency_vanilla": latency, "folder": str(self.gallery.folder)}

    def write(self, header: Mapping[str, Any]) -> None:
        """Write vanilla's contact sheet, heat map, statistics and config. header: of the config's statistics."""
        config = self.vanilla.config
        own: dict[str, Any] = {"preset": None, "origin": "", "measured": None, "against": None, "warnings": []}
        own |= {"setting": SettingNames(Sampling()).name(config), "config": config.to_mapping()}
        seconds = sum(row[f"seconds{SIDE}"] for row in self.rows)
        _write_report(self.gallery, self.vanilla.target.grid, {**header, **own, "digest": self.gallery.digest}, seconds)


@contextmanager
def _decoding(gallery: Gallery, images: int) -> Iterator[Callable[[], None]]:
    """A bar (see `_progress`) around decoding, whose errors become CommandErrors: 1 failed, 130 interrupted."""
    try:
        with _progress(images) as advance:
            yield advance
    except KeyboardInterrupt:
        finished = f"{len(gallery.entries)} of {images} images are in {gallery.folder}"
        raise CommandError(
            f"interrupted; {finished}. The same command draws the same images again", INTERRUPTED
        ) from None
    except (DecodingError, OSError) as error:
        raise CommandError(str(error), FAILED) from error


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
        "target_passes": statistics.passes,
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


def _write_report(
    gallery: Gallery, grid: Grid, header: dict[str, Any], wall_seconds: float, comments: str = ""
) -> dict[str, Any]:
    """Write contact_sheet.png, heatmap.png, statistics.json and config.yaml; returns the statistics. comments: at the
    head of config.yaml."""
    entries, folder = gallery.ordered, gallery.folder
    rows = [_image_row(result, name) for result, _, name in entries]
    cells = accepted_by_cell((result.statistics.emitted.tolist() for result, _, _ in entries), grid.rows, grid.cols)
    statistics = {**header, "overall": _overall(rows, wall_seconds), "accepted_length_by_cell": cells, "images": rows}
    sheet = contact_sheet([picture for _, picture, _ in entries], [row["caption"] for row in rows])
    sheet.save(folder / "contact_sheet.png")
    mean, images = statistics["overall"]["mean_accepted_length"], counted(len(rows), "image")
    # passes that accept more cover more cells, so the mean over cells exceeds the mean over passes
    title = f"accepted length of each cell's pass, {images} (mean over passes {mean:.2f})"
    heat_map(cells, title).save(folder / "heatmap.png")
    text = json.dumps(statistics, indent=2, ensure_ascii=False)
    (folder / _STATISTICS).write_text(text + "\n", "utf-8")
    text = comments + yaml.safe_dump(header["config"], sort_keys=False, allow_unicode=True)
    (folder / "config.yaml").write_text(text, "utf-8")
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
    measured, against = statistics["measured"], statistics["against"]
    ratio = "" if against is None else number_text(against["speedup"], against["error"])
    ratio += ", of one batch, so without an error" if against is not None and against["error"] is None else ""
    return "\n".join(
        [
            f"{statistics['setting']}, target {statistics['target']} on {statistics['device']}",
            *([statistics["origin"]] if statistics["origin"] else []),
            _describe_sampling(config["sampling"], statistics["default_sampling"]),
            f"{counted(images, 'image')} in {means['wall_seconds']:.2f} s: {speed}",
            passes + ("" if DecodingConfig.from_mapping(config).is_vanilla else drafts),
            *([] if measured is None else [measured["text"]]),
            *(
                []
                if against is None
                else [f"speed-up against vanilla in this run: {ratio}; images: {against['folder']}"]
            ),
            *(f"note: {text}" for text in statistics["warnings"]),
            f"{folder / 'contact_sheet.png'} (and heatmap.png, statistics.json, config.yaml)",
            *([f"replaced {counted(replaced, 'image')} of the last run; --out keeps runs apart"] if replaced else []),
        ]
    )


def _describe_sampling(sampling: Mapping[str, Any], defaults: Sequence[str]) -> str:
    """`sampling: guidance (cfg) 1.5, temperature 1, top_k 0, top_p 1`, and which of them are the target's defaults."""
    names = {"cfg": "guidance (cfg)"}
    values = {name: sampling[name] for name in ("cfg", "temperature", "top_k", "top_p")}
    text = ", ".join(f"{names.get(name, name)} {format_number(value, 6)}" for name, value in values.items())
    if not defaults:
        return f"sampling: {text}"
    which = "all" if len(defaults) == len(values) else ", ".join(name for name in values if name in defaults)
    return f"sampling: {text} ({which} by the target's default; a sweep's may differ, see --from)"
