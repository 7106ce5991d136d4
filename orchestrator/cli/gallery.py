"""The images that `specfrontier generate` writes: a folder with pictures, contact sheet, heat map,
statistics and config.
"""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from PIL import PngImagePlugin

from orchestrator.errors import FAILED, INTERRUPTED, CommandError, ends_with
from orchestrator.images import DrawnImage, ImageEngine, time_against_vanilla
from orchestrator.store.names import SettingNames
from orchestrator.text import counted
from search_spaces.documents import write_document
from search_spaces.trial import Sampling
from workers.data.pictures import (
    accepted_by_cell,
    contact_sheet,
    enlarge,
    heat_map,
    thumbnail,
)
from workers.data.prompt_benchmarks import PromptSet
from workers.decoding.engine import DecodingError
from workers.decoding.state import Request
from workers.decoding.statistics import ImageStatistics, Result
from workers.decoding.timer import PHASES
from workers.metrics.acceptance import AcceptanceCounts
from workers.metrics.estimate import BLOCKS

_PICTURE_SIDE = 384  # pixels; pictures are enlarged to about this side, by a whole factor
_MAX_ON_SHEET = 96  # images of a contact sheet
_MAX_CAPTION_CHARS = 48  # characters of a caption in a file name
# as `file_name` writes it, and as a benchmark's layout has it
_PICTURE_NAME = re.compile(
    r"\d{4,}-\d+(-[a-z0-9-]+)?\.png|\d{5,}/samples/\d{4,}\.png|images/[A-Za-z0-9_-]+\.png"
)
_STATISTICS = "statistics.json"
SUMMARIES = ("contact_sheet.png", "heatmap.png", "config.yaml")
_MEANS = ("mean_accepted_length", "step_compression", "mean_tree_depth")


@dataclass
class Gallery:
    """The images of one engine. Each is written to the folder as soon as it is added, in the layout
    of a benchmark with all others of its prompt; then a thumbnail is kept, because those of a whole
    benchmark need gigabytes.
    """

    engine: ImageEngine
    folder: Path
    prompts: PromptSet | None = None  # with the layout of their benchmark
    groups: Sequence[str] = ()  # of the captions by their ids; empty: none
    images: dict[Request, DrawnImage] = field(default_factory=dict)
    written: int = 0  # images in the folder

    def __post_init__(self) -> None:
        self.folder.mkdir(exist_ok=True)

    def add(self, result: Result) -> None:
        """Write one picture, with caption and config digest as PNG text, and keep a thumbnail."""
        request = result.request
        drawn = self.engine.image_of(result)
        self.images[request] = drawn
        if self.prompts is not None:
            self._write_prompt(self.prompts, request.caption_id)
            return
        note = PngImagePlugin.PngInfo()
        note.add_itxt("caption", request.caption)
        origin = f"config {self.engine.config.digest()}, seed {self.engine.decoder.seed}"
        image = f"caption {request.caption_id}, sample {request.sample}"
        note.add_text("specfrontier", f"{origin}, {image}")
        enlarge(drawn.image, _PICTURE_SIDE).save(self.folder / file_name(request), pnginfo=note)
        self._reduce([request])

    def _write_prompt(self, prompts: PromptSet, caption_id: int) -> None:
        """Write the files of a prompt once all of its images are there, of the target's own size."""
        own = [request for request in self.images if request.caption_id == caption_id]
        if len(own) < prompts.samples:
            return
        own.sort(key=lambda request: request.sample)
        pictures = [self.images[request].image for request in own]
        for name, data in prompts.files(caption_id, pictures).items():
            file = self.folder / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(data)
        self._reduce(own)

    def _reduce(self, written: Sequence[Request]) -> None:
        """Keep thumbnails of images that are in the folder."""
        for request in written:
            drawn = self.images[request]
            self.images[request] = replace(drawn, image=thumbnail(drawn.image))
        self.written += len(written)

    def _acceptance(self) -> AcceptanceCounts:
        """Counts of accepted drafts, with the captions' blocks as in a sweep of all captions."""
        statistics = [drawn.statistics for drawn in self.images.values()]
        captions = [request.caption_id for request in self.images]
        return AcceptanceCounts.of(
            [image.acceptance_histogram.tolist() for image in statistics],
            [image.tested.tolist() for image in statistics],
            [self.groups[caption] if self.groups else "" for caption in captions],
            [caption % BLOCKS for caption in captions],
        )

    def _file_name(self, request: Request) -> str:
        """The file that has an image, relative to the folder."""
        if self.prompts is None:
            return file_name(request)
        return self.prompts.picture_name(request.caption_id, request.sample)

    def generate(self, requests: Sequence[Request]) -> float:
        """Generate the images of all requests.

        Returns the engine's wall time in seconds; it excludes decoding tokens to pixels and writing
        files.

        Raises:
            CommandError: decoding failed (1) or was interrupted (130).
        """
        seconds = 0.0
        mark = time.perf_counter()
        with self.progress(len(requests)) as advance:
            for result in self.engine.decoder.run(requests):
                seconds += time.perf_counter() - mark
                self.add(result)
                advance()
                mark = time.perf_counter()
        return seconds

    def generate_beside(
        self, vanilla: Gallery, requests: Sequence[Request]
    ) -> list[dict[str, Any]]:
        """Generate vanilla's images too, in turn, batch by batch; returns the timings (see
        `time_against_vanilla`): vanilla is setting 0, this one setting 1.

        Raises:
            CommandError: decoding failed (1) or was interrupted (130).
        """
        galleries = (vanilla, self)
        found: tuple[dict[Request, Result], dict[Request, Result]] = ({}, {})

        def add(side: int, result: Result) -> None:
            # the batch that is not timed is generated again
            if side and result.request not in found[side]:
                advance()
            found[side][result.request] = result

        with self.progress(len(requests)) as advance:
            try:
                return time_against_vanilla(
                    vanilla.engine.decoder, self.engine.decoder, requests, add
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
            raise CommandError(
                f"interrupted; {self.written} of {images} images are in {self.folder}. The "
                "same command generates the same images again",
                INTERRUPTED,
            ) from None

    def write(
        self, header: Mapping[str, Any], wall_seconds: float, comments: str = ""
    ) -> dict[str, Any]:
        """Write contact_sheet.png, heatmap.png, statistics.json and config.yaml; returns the
        statistics.

        header: facts of the run, to which those of the config are added. comments: at the head of
        config.yaml.
        """
        config = self.engine.config
        grid = self.engine.decoder.target.grid
        images = sorted(
            self.images.items(), key=lambda entry: (entry[0].caption_id, entry[0].sample)
        )
        rows = [
            {"file": self._file_name(request), **_image_row(request, drawn.statistics)}
            for request, drawn in images
        ]
        cells = accepted_by_cell((drawn.statistics.emitted.tolist() for _, drawn in images), grid)
        overall = _overall(rows, wall_seconds)
        statistics = {
            **header,
            "setting": SettingNames(Sampling()).name(config),
            "config": config.to_mapping(),
            "digest": config.digest(),
            "overall": overall,
            "acceptance": self._acceptance().to_mapping(),
            "accepted_length_by_cell": cells,
            "images": rows,
        }
        sheet = contact_sheet(
            [drawn.image for _, drawn in images[:_MAX_ON_SHEET]],
            [row["caption"] for row in rows[:_MAX_ON_SHEET]],
        )
        sheet.save(self.folder / "contact_sheet.png")
        # passes that accept more cover more cells, so the mean over cells exceeds the mean over
        # passes
        title = (
            f"accepted length of each cell's pass, {counted(len(rows), 'image')} (mean over passes "
            f"{overall['mean_accepted_length']:.2f})"
        )
        heat_map(cells, title).save(self.folder / "heatmap.png")
        text = json.dumps(statistics, indent=2, ensure_ascii=False)
        (self.folder / _STATISTICS).write_text(text + "\n", "utf-8")
        text = comments + write_document(config.to_mapping(), is_compact=False)
        (self.folder / "config.yaml").write_text(text, "utf-8")
        return statistics


def remove_previous(folder: Path, *others: str) -> int:
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
        for name in dict.fromkeys(names)
        if _PICTURE_NAME.fullmatch(name) and (folder / name).exists()
    ]
    for path in [*pictures, statistics, *(folder / name for name in others)]:
        path.unlink(missing_ok=True)
    for path in dict.fromkeys(path.parent for path in pictures if path.parent != folder):
        _remove_prompt(path, folder)
    return len(pictures)


def _remove_prompt(pictures: Path, folder: Path) -> None:
    """Remove a folder of pictures that a benchmark's layout has below `folder`, with GenEval's
    folder of the prompt around it; if others have files there, it stays.
    """
    with suppress(OSError):
        pictures.rmdir()
    if pictures.parent == folder:
        return
    (pictures.parent / "metadata.jsonl").unlink(missing_ok=True)
    with suppress(OSError):
        pictures.parent.rmdir()


def file_name(request: Request) -> str:
    """Caption id, sample, and the caption's letters and digits: `0000-0-a-large-red-circle.png`."""
    words = re.sub(r"[^a-z0-9]+", "-", request.caption.lower()).strip("-")
    slug = words[:_MAX_CAPTION_CHARS].rstrip("-")
    name = f"{request.caption_id:04d}-{request.sample}"
    return f"{name}-{slug}.png" if slug else f"{name}.png"


def _image_row(request: Request, statistics: ImageStatistics) -> dict[str, Any]:
    """The statistics of one image. `latency`: its share of the seconds of its passes."""
    return {
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
