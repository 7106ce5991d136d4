"""Images from one setting: runs the engine over captions; writes pictures, sheet, heat map, statistics and setting."""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import yaml
from PIL import Image, PngImagePlugin

from orchestrator.errors import FAILED, INTERRUPTED, WRONG_USAGE, CommandError, ends_with, in_memory
from orchestrator.results.overrides import Chosen
from orchestrator.run.contact_sheet import contact_sheet, enlarge, heat_map, to_pictures
from orchestrator.run.models import Models, load_models
from search_spaces.settings import SettingError
from search_spaces.trial import DecodingConfig
from workers.data.pictures import accepted_by_cell
from workers.decoding.engine import DecodingError, Engine, Result
from workers.decoding.state import Job
from workers.decoding.statistics import PHASES
from workers.loading.models import versions
from workers.models.target import Grid

PICTURE_SIDE = 384  # what a single picture is enlarged to, by a whole factor
NAME_LENGTH = 48  # characters of the caption in a file name
PICTURE = re.compile(r"\d{4,}-\d+(-[a-z0-9-]+)?\.png")  # what `file_name` gives
MEANS = ("mean_accepted_length", "step_compression", "mean_tree_depth")


@dataclass(frozen=True, slots=True)
class Run:
    """Everything about a run that is neither its setting nor its captions."""

    preset: str | None
    seed: int
    batch: int
    samples: int
    folder: Path
    weights: str | None
    device: str | None
    models: str | None = None


@dataclass
class Gallery:
    """The finished images of a run, kept in the order of their jobs whatever the order they finish in."""

    folder: Path
    digest: str
    seed: int
    entries: dict[tuple[int, int], tuple[Result, Image.Image, str]] = field(default_factory=dict)

    def add(self, result: Result, picture: Image.Image) -> None:
        """Write one picture, with its caption and setting inside the file, and remember it."""
        job = result.job
        note = PngImagePlugin.PngInfo()
        note.add_itxt("caption", job.caption)
        origin = f"setting {self.digest}, seed {self.seed}, caption {job.caption_id}, sample {job.sample}"
        note.add_text("specfrontier", origin)
        name = file_name(job)
        enlarge(picture, PICTURE_SIDE).save(self.folder / name, pnginfo=note)
        self.entries[job.caption_id, job.sample] = (result, picture, name)

    @property
    def ordered(self) -> list[tuple[Result, Image.Image, str]]:
        return [self.entries[key] for key in sorted(self.entries)]


def generate_images(chosen: Chosen, captions: Sequence[str], run: Run, *, as_json: bool) -> str:
    """Draw all captions and write the folder; returns what to print.

    Raises:
        CommandError: the setting, a caption or the folder is wrong (2); weights or decoding fail (1); interrupt (130).
    """
    with ends_with(WRONG_USAGE):
        run.folder.mkdir(parents=True, exist_ok=True)
    with in_memory(
        "while the models were loaded; free some, or give a larger device, or dtype bfloat16 in models.yaml"
    ):
        models = load_models(run.weights, run.device, run.models)
        engine, config = make_engine(chosen, models, run)
    with ends_with(WRONG_USAGE):
        models.target.check(captions)  # every one, before the first is drawn
    jobs = [Job(index, text, sample) for index, text in enumerate(captions) for sample in range(run.samples)]
    gallery = Gallery(run.folder, config.digest(), run.seed)
    with ends_with(WRONG_USAGE):
        remove_earlier(run.folder)
    with in_memory(f"at batch {engine.batch_size}; try --batch {max(1, engine.batch_size // 2)}"):
        seconds = draw(engine, jobs, gallery, progress(len(jobs)))
    head = {
        "versions": versions(),
        "target": models.target.name,
        "weights": models.hashes,
        "device": str(engine.device),
        "threads": torch.get_num_threads(),
        "preset": run.preset,
        "config": config.to_mapping(),
        "digest": gallery.digest,
        "seed": run.seed,
        "batch": min(run.batch, len(jobs)),
        "samples": run.samples,
    }
    with ends_with(FAILED):
        statistics = write_report(gallery, engine.target.grid, head, seconds)
    return json.dumps(statistics, indent=2, ensure_ascii=False) if as_json else summary(statistics, run.folder)


def remove_earlier(folder: Path) -> None:
    """Remove the pictures of the run before, those that its statistics.json names, so that a folder is one run's."""
    statistics = folder / "statistics.json"
    try:
        rows = json.loads(statistics.read_text("utf-8"))["images"]
        names = [str(row["file"]) for row in rows]
    except (OSError, ValueError, KeyError, TypeError):
        return  # no run before, or a file that is none of ours
    for name in names:
        if PICTURE.fullmatch(name):
            (folder / name).unlink(missing_ok=True)
    statistics.unlink()


def make_engine(chosen: Chosen, models: Models, run: Run) -> tuple[Engine, DecodingConfig]:
    """The engine for the setting, its sampling completed by the target's own.

    Raises:
        CommandError: the setting does not suit the model.
    """
    target = models.target
    config = chosen.complete(target.sampling)
    config = config if config.sampling else config.with_sampling(target.sampling)
    try:
        config.check_model(target.vocab_size, drafters=models.drafters.keys())
    except SettingError as error:
        raise chosen.blame(error) from error
    drafter = models.drafters.get(config.drafter.kind)
    with ends_with(WRONG_USAGE):
        return Engine(target, config, drafter, seed=run.seed, batch_size=run.batch), config


def draw(engine: Engine, jobs: Sequence[Job], gallery: Gallery, tell: Callable[[int], None]) -> float:
    """Run all jobs, writing each picture as it finishes; `tell` hears how many are done.

    Returns the engine's seconds of wall time; turning tokens into pixels and writing files are not part of it.

    Raises:
        CommandError: decoding failed (1) or was interrupted (130).
    """
    seconds, mark = 0.0, time.perf_counter()
    try:
        for result in engine.run(jobs):
            seconds += time.perf_counter() - mark
            gallery.add(result, to_pictures(engine.target.decode(result.tokens[None].to(engine.device)))[0])
            tell(len(gallery.entries))
            mark = time.perf_counter()
    except KeyboardInterrupt:
        done = f"{len(gallery.entries)} of {len(jobs)} images are in {gallery.folder}"
        raise CommandError(f"interrupted; {done}. The same command draws the same images again", INTERRUPTED) from None
    except (DecodingError, OSError) as error:
        raise CommandError(str(error), FAILED) from error
    return seconds


def progress(total: int) -> Callable[[int], None]:
    """Tells a terminal how many images are done; says nothing to a file or a pipe."""

    def tell(done: int) -> None:
        if sys.stderr.isatty():
            sys.stderr.write(f"\r{done}/{total} images" + ("\n" if done == total else ""))
            sys.stderr.flush()

    return tell


def file_name(job: Job) -> str:
    """e.g. 0000-0-a-large-red-circle.png: caption id, sample, and the caption's letters and digits."""
    words = re.sub(r"[^a-z0-9]+", "-", job.caption.lower()).strip("-")[:NAME_LENGTH].rstrip("-")
    return f"{job.caption_id:04d}-{job.sample}{'-' if words else ''}{words}.png"


def image_row(result: Result, file: str) -> dict[str, Any]:
    """One image's numbers. `latency`: its share of the seconds of the rounds it took part in."""
    job, numbers = result.job, result.statistics
    return {
        "file": file,
        "caption_id": job.caption_id,
        "caption": job.caption,
        "sample": job.sample,
        "target_passes": numbers.rounds,
        **{name: getattr(numbers, name) for name in MEANS},
        "latency": numbers.latency,
        "seconds": {phase: numbers.seconds[phase] for phase in PHASES},
    }


def overall(rows: Sequence[dict[str, Any]], wall: float) -> dict[str, Any]:
    """Figures of all images together.

    Accepted length: all tokens but the prefills' over all target passes; step compression and tree depth: means over
    the images. `latency`: wall time per image at this batch size. `seconds`: sums over the images.
    """
    passes = sum(row["target_passes"] for row in rows)
    means = {name: sum(row[name] for row in rows) / len(rows) for name in MEANS}
    means["mean_accepted_length"] = sum(row["mean_accepted_length"] * row["target_passes"] for row in rows) / passes
    return {
        "images": len(rows),
        "target_passes": passes,
        **means,
        "latency": wall / len(rows),
        "wall_seconds": wall,
        "seconds": {phase: sum(row["seconds"][phase] for row in rows) for phase in PHASES},
    }


def acceptance_map(results: Iterable[Result], grid: Grid) -> list[list[float | None]]:
    """For every grid cell, the mean over images of the accepted length of the round that emitted its token.

    The first cell comes from the prefill, not from a round: None.
    """
    return accepted_by_cell((result.statistics.emitted.tolist() for result in results), grid.rows, grid.cols)


def write_report(gallery: Gallery, grid: Grid, head: dict[str, Any], wall: float) -> dict[str, Any]:
    """Write contact_sheet.png, heatmap.png, statistics.json and config.yaml; returns the statistics."""
    entries, folder = gallery.ordered, gallery.folder
    rows = [image_row(result, name) for result, _, name in entries]
    cells = acceptance_map([result for result, _, _ in entries], grid)
    statistics = {**head, "overall": overall(rows, wall), "accepted_length_by_cell": cells, "images": rows}
    contact_sheet([picture for _, picture, _ in entries], [row["caption"] for row in rows]).save(
        folder / "contact_sheet.png"
    )
    mean, images = statistics["overall"]["mean_accepted_length"], counted(len(rows))
    # a long round covers more cells than a short one, so the cells lie higher than the mean over rounds
    title = f"accepted length of each cell's round, {images} (mean over rounds {mean:.2f})"
    heat_map(cells, title).save(folder / "heatmap.png")
    text = json.dumps(statistics, indent=2, ensure_ascii=False)
    (folder / "statistics.json").write_text(text + "\n", "utf-8")
    (folder / "config.yaml").write_text(yaml.safe_dump(head["config"], sort_keys=False, allow_unicode=True), "utf-8")
    return statistics


def summary(statistics: dict[str, Any], folder: Path) -> str:
    """The statistics in four lines."""
    means = statistics["overall"]
    images = counted(means["images"])
    return "\n".join(
        [
            f"{images} in {means['wall_seconds']:.2f} s, {means['latency']:.3f} s each at batch {statistics['batch']}",
            ", ".join(f"{name.replace('_', ' ')} {means[name]:.2f}" for name in MEANS),
            "seconds: " + ", ".join(f"{phase} {seconds:.2f}" for phase, seconds in means["seconds"].items()),
            f"{folder / 'contact_sheet.png'} (heatmap.png, statistics.json and config.yaml beside it)",
        ]
    )


def counted(images: int) -> str:
    return f"{images} image{'' if images == 1 else 's'}"
