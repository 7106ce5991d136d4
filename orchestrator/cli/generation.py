"""Generates images from captions with one decoding config; writes contact sheet, heat map,
statistics and config.
"""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from PIL import Image, PngImagePlugin

from orchestrator.cli.query_options import GenerationOptions
from orchestrator.errors import (
    FAILED,
    INTERRUPTED,
    WRONG_USAGE,
    CommandError,
    ends_with,
    in_memory,
)
from orchestrator.options import find_models, pick_device
from orchestrator.shown.status import drafter_warning, is_hardly_accepted
from orchestrator.store.config_file import Setting
from orchestrator.store.names import VANILLA, SettingNames, format_number
from orchestrator.text import counted
from search_spaces.documents import write_document
from search_spaces.trial import DecodingConfig, Sampling
from workers.data.pictures import accepted_by_cell, contact_sheet, enlarge, heat_map, to_pictures
from workers.decoding.engine import DecodingError, Engine
from workers.decoding.kernels import implementation
from workers.decoding.state import Request
from workers.decoding.statistics import Result
from workers.decoding.timer import PHASES
from workers.loading.models import Models
from workers.loading.models_yaml import load_entry
from workers.metrics.estimate import measured, ratio_estimate
from workers.models.checkpoint_files import collect_notes
from workers.runtime.device import device_name, this_device, versions
from workers.runtime.timing import time_in_turn

_PICTURE_SIDE = 384  # pixels; pictures are enlarged to about this side, by a whole factor
_BATCH = 16  # by default
_MAX_CAPTION_CHARS = 48  # characters of a caption in a file name
_PICTURE_NAME = re.compile(r"\d{4,}-\d+(-[a-z0-9-]+)?\.png")  # as `file_name` writes it
_STATISTICS = "statistics.json"
_SUMMARIES = ("contact_sheet.png", "heatmap.png", "config.yaml")
_MEANS = ("mean_accepted_length", "step_compression", "mean_tree_depth")


@dataclass
class Gallery:
    """The images of one engine: each is written to the folder as soon as it is added. results,
    pictures: by request.
    """

    engine: Engine
    folder: Path
    results: dict[Request, Result] = field(default_factory=dict)
    pictures: dict[Request, Image.Image] = field(default_factory=dict)

    def add(self, result: Result) -> None:
        """Write one picture, with caption and config digest as PNG text, and keep it."""
        request, engine = result.request, self.engine
        (picture,) = to_pictures(engine.target.decode(result.tokens[None].to(engine.device)))
        note = PngImagePlugin.PngInfo()
        note.add_itxt("caption", request.caption)
        image = f"caption {request.caption_id}, sample {request.sample}"
        note.add_text(
            "specfrontier", f"config {engine.config.digest()}, seed {engine.seed}, {image}"
        )
        enlarge(picture, _PICTURE_SIDE).save(self.folder / file_name(request), pnginfo=note)
        self.results[request], self.pictures[request] = result, picture

    def generate(self, requests: Sequence[Request]) -> float:
        """Generate the images of all requests.

        Returns the engine's wall time in seconds; it excludes decoding tokens to pixels and writing
        files.

        Raises:
            CommandError: decoding failed (1) or was interrupted (130).
        """
        seconds, mark = 0.0, time.perf_counter()
        with self.progress(len(requests)) as advance:
            for result in self.engine.run(requests):
                seconds += time.perf_counter() - mark
                self.add(result)
                advance()
                mark = time.perf_counter()
        return seconds

    def generate_beside(
        self, vanilla: Gallery, requests: Sequence[Request]
    ) -> list[dict[str, Any]]:
        """Generate vanilla's images too, in turn, batch by batch; returns the timings (see
        `time_in_turn`): vanilla is setting 0, this one setting 1.

        Both first generate a batch that is not timed. A batch ends with its longest image, as in a
        sweep's timings.

        Raises:
            CommandError: decoding failed (1) or was interrupted (130).
        """
        size, target = self.engine.batch_size, self.engine.target
        batches = [requests[start : start + size] for start in range(0, len(requests), size)]
        galleries = (vanilla, self)
        found: tuple[dict[Request, Result], dict[Request, Result]] = ({}, {})

        def run(side: int, batch: Sequence[Request]) -> list[Result]:
            results = list(galleries[side].engine.run(batch))
            for result in results:
                # the batch that is not timed is generated again
                if side and result.request not in found[side]:
                    advance()
                found[side][result.request] = result
            return results

        with self.progress(len(requests)) as advance:
            try:
                return time_in_turn(
                    {str(side): partial(run, side) for side in (0, 1)},
                    batches,
                    self.engine.device,
                    encode=lambda batch: target.encode(
                        [request.caption for request in batch], guided=False
                    ),
                )
            finally:
                for gallery, results in zip(galleries, found, strict=True):
                    for result in results.values():
                        gallery.add(result)

    @contextmanager
    def progress(self, images: int) -> Iterator[Callable[[], None]]:
        """A bar (see `_progress`) around decoding, whose errors become CommandErrors: 1 failed, 130
        interrupted.
        """
        try:
            with ends_with(FAILED, DecodingError, OSError), _progress(images) as advance:
                yield advance
        except KeyboardInterrupt:
            done = f"{len(self.results)} of {images} images are in {self.folder}"
            again = "The same command generates the same images again"
            raise CommandError(f"interrupted; {done}. {again}", INTERRUPTED) from None

    def write(
        self, header: Mapping[str, Any], wall_seconds: float, comments: str = ""
    ) -> dict[str, Any]:
        """Write contact_sheet.png, heatmap.png, statistics.json and config.yaml; returns the
        statistics.

        header: facts of the run, to which those of the config are added. comments: at the head of
        config.yaml.
        """
        config, grid = self.engine.config, self.engine.target.grid
        results = sorted(
            self.results.values(),
            key=lambda result: (result.request.caption_id, result.request.sample),
        )
        rows = [_image_row(result) for result in results]
        cells = accepted_by_cell(
            (result.statistics.emitted.tolist() for result in results), grid.rows, grid.cols
        )
        overall = _overall(rows, wall_seconds)
        own = {"setting": SettingNames(Sampling()).name(config), "config": config.to_mapping()}
        own["digest"] = config.digest()
        statistics = {
            **header,
            **own,
            "overall": overall,
            "accepted_length_by_cell": cells,
            "images": rows,
        }
        pictures = [self.pictures[result.request] for result in results]
        contact_sheet(pictures, [row["caption"] for row in rows]).save(
            self.folder / "contact_sheet.png"
        )
        mean, images = overall["mean_accepted_length"], counted(len(rows), "image")
        # passes that accept more cover more cells, so the mean over cells exceeds the mean over
        # passes
        title = f"accepted length of each cell's pass, {images} (mean over passes {mean:.2f})"
        heat_map(cells, title).save(self.folder / "heatmap.png")
        text = json.dumps(statistics, indent=2, ensure_ascii=False)
        (self.folder / _STATISTICS).write_text(text + "\n", "utf-8")
        text = comments + write_document(config.to_mapping(), is_compact=False)
        (self.folder / "config.yaml").write_text(text, "utf-8")
        return statistics


def generate_images(
    mapping: Mapping[str, Any],
    captions: Sequence[str],
    setting: Setting,
    preset: str | None,
    options: GenerationOptions,
) -> str:
    """Generate all images and write the output folder; returns the text to print.

    mapping: a `DecodingConfig` as a mapping; missing sampling keys have the target's defaults.
    setting: where the config is from. preset: the name that the user gave, for the statistics.

    Raises:
        CommandError: config, models, captions or folder are invalid (2); weights or decoding fail
            (1); interrupt (130).
    """
    folder, batch, device = (
        Path(options.out),
        options.batch or setting.batch or _BATCH,
        pick_device(options.device),
    )
    with in_memory(
        "while loading the models; free some memory, use a larger device, or set dtype: bfloat16"
    ):
        entry = find_models(options.models, setting.models)
        with ends_with(FAILED), collect_notes() as notes:
            models = load_entry(entry, device)
        with ends_with(WRONG_USAGE):
            config = DecodingConfig.from_mapping(mapping, models.target.sampling)
            gallery = Gallery(models.engine(config, seed=options.seed, batch_size=batch), folder)
            models.target.check(captions)  # all of them, before the first image is generated
    requests = [
        Request(index, text, sample)
        for index, text in enumerate(captions)
        for sample in range(options.samples)
    ]
    with ends_with(WRONG_USAGE):
        replaced = _remove_previous(folder) + _remove_previous(folder / VANILLA, *_SUMMARIES)
        with suppress(OSError):  # it has files of others
            (folder / VANILLA).rmdir()
    baseline = _vanilla(config, setting, models.target.sampling)
    vanilla, timings = None, list[dict[str, Any]]()
    with in_memory(f"at batch {batch}; try --batch {max(1, batch // 2)}"):
        if options.against is None:
            seconds = gallery.generate(requests)
        else:
            vanilla = Gallery(
                models.engine(baseline, seed=options.seed, batch_size=batch), folder / VANILLA
            )
            vanilla.folder.mkdir(exist_ok=True)
            timings = gallery.generate_beside(vanilla, requests)
            vanilla_seconds, seconds = map(sum, _by_setting(timings, "wall"))
    header = _header(mapping, gallery.engine, models, setting, len(requests)) | {
        "preset": preset,
        "lossless": config.is_lossless(baseline.sampling, models.target.grid.cols),
        "samples": options.samples,
        "warnings": [
            *setting.notes,
            *notes,
            *_warnings(gallery, config.drafter.kind, entry.files),
        ],
        "against": (
            None if vanilla is None else _speedup(timings) | {"folder": str(vanilla.folder)}
        ),
    }
    with ends_with(FAILED):
        statistics = gallery.write(header, seconds, setting.comments_for(config.digest()))
        if vanilla is not None:
            others: dict[str, Any] = {
                "preset": None,
                "origin": "",
                "measured": None,
                "against": None,
                "warnings": [],
            }
            vanilla.write(header | others | {"lossless": True}, vanilla_seconds)
    as_json = json.dumps(statistics, indent=2, ensure_ascii=False)
    return as_json if options.as_json else _summary(statistics, folder, replaced)


def _speedup(timings: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The measured speed-up with its standard error (None: of a single batch), and vanilla's
    seconds per image.
    """
    vanilla, own = (torch.tensor(seconds) for seconds in _by_setting(timings, "seconds"))
    error = ratio_estimate(vanilla, own, torch.arange(len(own))).error if len(own) > 1 else None
    latency = 2 * float(vanilla.sum()) / sum(row["batch"] for row in timings)
    return {
        "speedup": float(vanilla.sum() / own.sum()),
        "error": error,
        "latency_vanilla": latency,
    }


def _by_setting(timings: Sequence[Mapping[str, Any]], column: str) -> list[list[float]]:
    """A column of the timings of vanilla and of the setting, by batch."""
    return [
        [float(row[column]) for row in timings if row["setting"] == side] for side in ("0", "1")
    ]


def _vanilla(config: DecodingConfig, setting: Setting, sampling: Sampling) -> DecodingConfig:
    """What `config` is compared with: the sweep's vanilla, unless its sampling was changed since;
    else vanilla with the config's sampling. sampling: the target's defaults.
    """
    stated = DecodingConfig.from_mapping(setting.mapping, sampling)
    is_unchanged = setting.baseline is not None and config.sampling == stated.sampling
    return (
        setting.baseline
        if is_unchanged and setting.baseline
        else DecodingConfig(sampling=config.sampling)
    )


def _header(
    mapping: Mapping[str, Any], engine: Engine, models: Models, setting: Setting, images: int
) -> dict[str, Any]:
    """What the statistics say of the run besides its images. measured: the speed-up that a sweep
    measured of this config, and why it is not that of this run.
    """
    batch, promised = min(engine.batch_size, images), None
    if setting.speed is not None:
        files = setting.differing_files(models.hashes)
        devices = [str(this_device(engine.device)), device_name(engine.device)]
        reasons = setting.speed.differences(engine.config.digest(), batch, devices, files)
        promised = asdict(setting.speed) | {
            "differences": reasons,
            "text": setting.speed.describe(reasons),
        }
    return {
        "versions": versions(),
        "target": engine.target.name,
        "weights": models.hashes,
        "device": str(engine.device),
        "threads": torch.get_num_threads(),
        "cuda_graphs": engine.uses_graphs,
        "kernels": implementation(engine.device.type),
        "origin": setting.origin,
        "default_sampling": [
            key for key in Sampling.fields() if key not in (mapping.get("sampling") or {})
        ],
        "seed": engine.seed,
        "batch": batch,
        "measured": promised,
    }


def _warnings(gallery: Gallery, drafter: str, files: Mapping[str, str]) -> list[str]:
    """A sentence if hardly anything is accepted of a drafter with weights. files: of the models, by
    key.
    """
    images = [result.statistics for result in gallery.results.values()]
    tokens, passes = (
        sum(int(image.emitted.sum()) for image in images),
        sum(image.passes for image in images),
    )
    file = files.get(f"drafters.{drafter}")
    is_bad = file is not None and is_hardly_accepted(tokens, passes)
    return [drafter_warning(drafter, str(file), tokens, passes)] if is_bad else []


def _remove_previous(folder: Path, *others: str) -> int:
    """Remove the pictures that the statistics.json of the previous run names, and its other files
    that the next run does not write, so that a folder holds one run; returns how many pictures
    there were.
    """
    statistics = folder / _STATISTICS
    try:
        names = [str(row["file"]) for row in json.loads(statistics.read_text("utf-8"))["images"]]
    except (OSError, ValueError, KeyError, TypeError):
        return 0  # no previous run, or another program's file
    pictures = [
        folder / name
        for name in names
        if _PICTURE_NAME.fullmatch(name) and (folder / name).exists()
    ]
    for path in [*pictures, statistics, *(folder / name for name in others)]:
        path.unlink(missing_ok=True)
    return len(pictures)


@contextmanager
def _progress(images: int) -> Iterator[Callable[[], None]]:
    """A bar with the time that is left, on a terminal; yields a function to call after each
    image.
    """
    if not sys.stderr.isatty():
        yield lambda: None
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        SpinnerColumn,
        TextColumn,
        TimeElapsedColumn,
    )
    from rich.progress import TimeRemainingColumn as TimeLeft

    columns = (
        SpinnerColumn(),
        BarColumn(24),
        MofNCompleteColumn(),
        TextColumn("images"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, TimeLeft(), TextColumn("left"), console=Console(stderr=True)) as bar:
        task = bar.add_task("", total=images)
        yield lambda: bar.advance(task)


def file_name(request: Request) -> str:
    """Caption id, sample, and the caption's letters and digits: `0000-0-a-large-red-circle.png`."""
    slug = (
        re.sub(r"[^a-z0-9]+", "-", request.caption.lower())
        .strip("-")[:_MAX_CAPTION_CHARS]
        .rstrip("-")
    )
    return f"{request.caption_id:04d}-{request.sample}{'-' if slug else ''}{slug}.png"


def _image_row(result: Result) -> dict[str, Any]:
    """The statistics of one image. `latency`: its share of the seconds of its passes."""
    request, statistics = result.request, result.statistics
    return {
        "file": file_name(request),
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

    Accepted length: all tokens except those of the prefills, divided by all target passes. Step
    compression and tree depth: means over the images. `latency`: wall time per image at this batch
    size, a process's warm-up included unless the run was timed against vanilla's. `seconds`: sums
    over the images.
    """
    passes = sum(row["target_passes"] for row in rows)
    means = {name: sum(row[name] for row in rows) / len(rows) for name in _MEANS}
    means["mean_accepted_length"] = (
        sum(row["mean_accepted_length"] * row["target_passes"] for row in rows) / passes
    )
    return {
        "images": len(rows),
        "target_passes": passes,
        **means,
        "latency": wall_seconds / len(rows),
        "wall_seconds": wall_seconds,
        "seconds": {phase: sum(row["seconds"][phase] for row in rows) for phase in PHASES},
    }


def _summary(statistics: dict[str, Any], folder: Path, replaced: int) -> str:
    """The setting, its speed and its passes of the target, in words, and the files. replaced:
    images of the last run.
    """
    means, config = statistics["overall"], statistics["config"]
    images, speed = (
        means["images"],
        f"{1 / means['latency']:.3g} images/s at batch {statistics['batch']}",
    )
    warm_up = ", warm-up included" if statistics["against"] is None else ""
    is_vanilla = DecodingConfig.from_mapping(config).is_vanilla
    exactness = "" if is_vanilla else ", lossless" if statistics["lossless"] else ", not lossless"
    tokens, total = means["mean_accepted_length"], sum(means["seconds"].values())
    passes = (
        f"{means['target_passes'] / images:.1f} target passes per image, each for {tokens:.2f} "
        "tokens"
    )
    drafts = (
        f" (vanilla: 1); {100 * means['seconds']['drafter'] / total:.0f} % of the time went into "
        "drafting"
    )
    promised, against = statistics["measured"], statistics["against"]
    ratio = "" if against is None else measured(against["speedup"], against["error"])
    ratio += (
        ", of one batch, so without an error"
        if against is not None and against["error"] is None
        else ""
    )
    return "\n".join(
        [
            (
                f"{statistics['setting']}{exactness}, target {statistics['target']} on "
                f"{statistics['device']}"
            ),
            *([statistics["origin"]] if statistics["origin"] else []),
            _describe_sampling(config["sampling"], statistics["default_sampling"]),
            f"{counted(images, 'image')} in {means['wall_seconds']:.2f} s{warm_up}: {speed}",
            passes + ("" if is_vanilla else drafts),
            *([] if promised is None else [promised["text"]]),
            *(
                []
                if against is None
                else [f"speed-up against vanilla in this run: {ratio}; images: {against['folder']}"]
            ),
            *(f"note: {text}" for text in statistics["warnings"]),
            f"{folder / 'contact_sheet.png'} (and heatmap.png, statistics.json, config.yaml)",
            *(
                [f"replaced {counted(replaced, 'image')} of the last run; --out keeps runs apart"]
                if replaced
                else []
            ),
        ]
    )


def _describe_sampling(sampling: Mapping[str, Any], defaults: Sequence[str]) -> str:
    """`sampling: guidance (cfg) 1.5, temperature 1, top_k 0, top_p 1`, and which of them are the
    target's defaults.
    """
    names = {"cfg": "guidance (cfg)"}
    values = {name: sampling[name] for name in ("cfg", "temperature", "top_k", "top_p")}
    # of a dynamic temperature
    values |= {name: value for name, value in sampling.items() if name not in values}
    text = ", ".join(
        f"{names.get(name, name)} {value if isinstance(value, str) else format_number(value, 6)}"
        for name, value in values.items()
    )
    if not defaults:
        return f"sampling: {text}"
    which = (
        "all"
        if len(defaults) == len(values)
        else ", ".join(name for name in values if name in defaults)
    )
    return f"sampling: {text} ({which} by the target's default; a sweep's may differ, see --from)"
