"""A trial's images in the layout of a benchmark's tool, and the tool's results of them."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator.errors import FAILED, WRONG_USAGE, CommandError, ends_with, in_memory
from orchestrator.options import find_models, pick_device, show_notes
from orchestrator.outputs import output_folder
from orchestrator.store import files
from orchestrator.store.identity import plugins_of
from orchestrator.store.scores import ScoredImage, images_digest, images_folder
from orchestrator.text import counted
from search_spaces.paths import local_path
from workers.data.prompt_benchmarks import ImageScore, Prompt, PromptBenchmark
from workers.data.text_files import collect_errors

if TYPE_CHECKING:
    from PIL.Image import Image

    from orchestrator.front.trial import Trial
    from orchestrator.store.sweep import Sweep
    from workers.models.target import Target

_MAX_PIXELS = 1 << 22  # of the images that are decoded at once


def prompts_of(trial: Trial, benchmark: PromptBenchmark, file: str | None) -> dict[int, Prompt]:
    """The prompts of a trial's images, by their captions' ids.

    Args:
        trial: a trial with images.
        benchmark: whose prompts they are.
        file: the prompts' file; None: that of the sweep's captions.

    Raises:
        CommandError: there is no such file, or the sweep's captions are not its prompts (2); the
            trial has no images (1).
        ValueError: a shard is missing or damaged.
    """
    rows = trial.sweep.images(trial.number, ["caption_id", "caption"]).to_pylist()
    if not rows:
        raise CommandError(f"trial {trial.number} has no images", FAILED)
    path = local_path(file) if file is not None else _captions_file(trial.sweep)
    with ends_with(WRONG_USAGE):
        prompts = benchmark.read_prompts(path)
    found = {}
    for row in rows:
        number, text = row["caption_id"], row["caption"]
        if number >= len(prompts) or prompts[number].text != text:
            raise CommandError(
                f"{path}: caption {number} of the sweep is {text!r}, which is not row {number} of "
                "this file, counted from 0; give the file of the sweep's captions with --captions",
                WRONG_USAGE,
            )
        found[number] = prompts[number]
    _check_ids(found, path)
    return found


def _captions_file(sweep: Sweep) -> Path:
    """The file of the sweep's captions. Raises CommandError if it is not on this machine."""
    given = files.read_sweep_yaml(sweep.storage).get("captions")
    source = given.get("source") if isinstance(given, Mapping) else None
    path = Path(str(source))
    if not path.is_file():
        raise CommandError(
            f"sweep {sweep.name}: its captions are {source}, no file on this machine; name the "
            "prompts' file with --captions",
            WRONG_USAGE,
        )
    return path


def _check_ids(prompts: Mapping[int, Prompt], path: Path) -> None:
    """Raise CommandError if two captions have one id, so that one picture would be of both."""
    owners: dict[str, int] = {}
    for number, prompt in prompts.items():
        if owners.setdefault(prompt.id, number) != number:
            raise CommandError(
                f"{path}: captions {owners[prompt.id]} and {number} of the sweep are both "
                f"{prompt.id}; sweep over a file with a row for each prompt",
                WRONG_USAGE,
            )


def export_images(
    trial: Trial,
    benchmark: PromptBenchmark,
    prompts: Mapping[int, Prompt],
    out: Path,
    models: str | None,
) -> Path:
    """Write all images of a trial, of the target's own size, to a new folder in `out`; returns it.
    models: where they are now; None: where they were.

    Raises:
        CommandError: the folder exists, or the tool takes fewer images of a prompt (2); the models
            cannot be loaded, or are not the sweep's (1).
    """
    folder = out / images_folder(trial.sweep.name, trial.record)
    samples = trial.sweep.identity.samples
    if benchmark.max_samples is not None and samples > benchmark.max_samples:
        raise CommandError(
            f"{benchmark.title} takes at most {benchmark.max_samples} images of a prompt; the "
            f"sweep has {samples}",
            WRONG_USAGE,
        )
    if folder.exists():
        raise CommandError(f"{folder} exists; give another --out", WRONG_USAGE)
    target = _load_target(trial.sweep, models)
    with (
        output_folder(out),
        tempfile.TemporaryDirectory(prefix=".specfrontier-", dir=out) as place,
    ):
        for number, images in _decoded(trial, target):
            for name, data in benchmark.files(prompts[number], images).items():
                file = Path(place, folder.name, name)
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_bytes(data)
        Path(place, folder.name).rename(folder)
    return folder


def _load_target(sweep: Sweep, models: str | None) -> Target:
    """The sweep's target. Raises CommandError if it cannot be loaded, or is another one."""
    place = pick_device(None)
    with (
        plugins_of(sweep.storage),
        in_memory("while loading the target; use another device"),
    ):
        entry = find_models(models, sweep.models)
        known = sweep.identity.models
        own = {key: value for key, value in entry.hashes.items() if "." not in key}  # no drafters'
        if changed := [key for key, value in own.items() if known.get(key, value) != value]:
            fix = "restore the originals, or name them with --models"
            raise CommandError(f"{', '.join(changed)}: not the sweep's; {fix}", FAILED)
        with ends_with(FAILED), show_notes():
            return entry.family.load(place, entry.dtype_on(place))


def _decoded(trial: Trial, target: Target) -> Iterator[tuple[int, list[Image]]]:
    """The images of each caption, by its id, in the order of samples."""
    import torch

    from workers.data.pictures import to_pictures

    columns = ["caption_id", "sample", "tokens"]
    table = trial.sweep.images(trial.number, columns).sort_by(
        [("caption_id", "ascending"), ("sample", "ascending")]
    )
    size = max(1, _MAX_PIXELS // trial.sweep.identity.image_size**2)

    def pictures() -> Iterator[tuple[int, Image]]:
        for start in range(0, table.num_rows, size):
            part = table.slice(start, size)
            tokens = torch.tensor(part["tokens"].to_pylist(), device=target.device)
            yield from zip(
                part["caption_id"].to_pylist(), to_pictures(target.decode(tokens)), strict=True
            )

    with torch.inference_mode(), in_memory("while decoding; use another device"):
        for number, found in groupby(pictures(), key=lambda pair: pair[0]):
            yield number, [picture for _, picture in found]


def scored_images(
    trial: Trial, prompts: Mapping[int, Prompt], scores: Sequence[ImageScore], file: str
) -> list[ScoredImage]:
    """The scores of a trial's images, in the order of the images.

    Args:
        trial: the trial.
        prompts: of its images, by their captions' ids.
        scores: what the file of results says.
        file: its name, for errors.

    Raises:
        CommandError: scores of other images, two of one image, or none of an image (2).
    """
    sweep = trial.sweep
    positions = {caption.id: place for place, caption in enumerate(sweep.captions())}
    table = sweep.images(trial.number, ["caption_id", "sample"])
    images = list(zip(table["caption_id"].to_pylist(), table["sample"].to_pylist(), strict=True))
    missing = {(prompts[number].id, sample): number for number, sample in images}
    found: dict[tuple[str, int], ImageScore] = {}
    with ends_with(WRONG_USAGE), collect_errors("result") as collect:
        for score in scores:
            with collect():
                _check_score(score, trial, missing, prompts)
                key = (score.prompt, score.sample)
                if key in found:
                    first = found[key].location
                    raise ValueError(
                        f"{score.location}: image {score.sample} of prompt {score.prompt} again, "
                        f"which {first} has; give the results of one run of the tool"
                    )
                found[key] = score
    if absent := [key for key in missing if key not in found]:
        prompt, sample = absent[0]
        more = f" and {counted(len(absent) - 1, 'other image')}" if len(absent) > 1 else ""
        raise CommandError(
            f"{file}: lacks image {sample} of prompt {prompt}{more} of trial {trial.number}; run "
            "the tool on the whole folder that `specfrontier export` wrote",
            WRONG_USAGE,
        )
    rows = []
    for number, sample in images:
        score = found[prompts[number].id, sample]
        rows.append(ScoredImage(number, sample, positions[number], score.group, score.score))
    return rows


def _check_score(
    score: ImageScore,
    trial: Trial,
    images: Mapping[tuple[str, int], Any],
    prompts: Mapping[int, Prompt],
) -> None:
    """Raise ValueError if a score is not of one of the trial's images."""
    own = images_folder(trial.sweep.name, trial.record)
    if score.folder.rpartition("-")[2] != images_digest(trial.record):
        where = f"in folder {score.folder!r}" if score.folder else "in a folder without a name"
        raise ValueError(
            f"{score.location}: of an image {where}; those of trial {trial.number} are in {own!r}, "
            "as `specfrontier export` wrote them"
        )
    number = images.get((score.prompt, score.sample))
    if number is None:
        raise ValueError(
            f"{score.location}: trial {trial.number} has no image {score.sample} of a prompt "
            f"{score.prompt}"
        )
    if score.text and score.text != prompts[number].text:
        raise ValueError(
            f"{score.location}: prompt {score.prompt} of trial {trial.number} is "
            f"{prompts[number].text!r}, not {score.text!r}"
        )
