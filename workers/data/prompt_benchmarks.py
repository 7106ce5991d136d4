"""Benchmarks of fixed prompts whose own tools score the images: the folders that these tools read,
and the files of results that they write.

    geneval     GenEval (arXiv 2310.11513; djghosh13/geneval at af4902f)
    dpg_bench   DPG-Bench (arXiv 2403.05135; TencentQQGYLab/ELLA at 3c228f1)

Detectors and question answering models are not part of this project.
"""

from __future__ import annotations

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from search_spaces.documents import parse_json
from workers.data.captions import Caption, captions_in_order
from workers.data.text_files import (
    caption_in_one_line,
    collect_errors,
    read_lines,
    read_table,
)

if TYPE_CHECKING:
    from PIL.Image import Image

_TAG = re.compile(r"[a-z][a-z0-9_]*")  # a tag is a part of a metric's name
_ITEM_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")  # an item's id is a part of a file's name
# A picture's path: the folder of all images, the prompt's folder and the sample.
_GENEVAL_FILE = re.compile(r"(?:(?:.*[/\\])?([^/\\]+)[/\\])?(\d+)[/\\]samples[/\\](\d+)\.png", re.S)
_DPG_LINE = re.compile(r"(?:(?:.*[/\\])?([^/\\]+)[/\\])?([^/\\]+)\.png, (.+)")
_DPG_END = "Model: "  # begins the summary that follows the images
_DPG_COLUMNS = ("item_id", "text")


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt of a benchmark."""

    id: str  # by which the tool names it
    text: str  # the caption, in one line
    group: str = ""  # GenEval's tag
    metadata: str = ""  # its line of the prompts' file, which GenEval's tool reads again


@dataclass(frozen=True, slots=True)
class ImageScore:
    """What a tool says of one image."""

    prompt: str  # the prompt's id
    sample: int
    score: float  # from 0 to 1
    group: str  # the benchmark's value is the mean over groups; "" if it has none
    folder: str  # name of the folder that the tool read; "" if the result does not say
    text: str  # the prompt; "" if the result does not say
    location: str  # such as "results.jsonl, line 3"


class PromptBenchmark(ABC):
    """The files of a benchmark."""

    name: ClassVar[str]  # name of the layout and of the metric
    title: ClassVar[str]
    about: ClassVar[str]  # what the metric is
    definition: ClassVar[str]  # what the metric is computed from
    max_samples: ClassVar[int | None] = None  # most images of a prompt; None: any number
    # folder of its images beside files of others, if the tool reads every file of a folder
    subfolder: ClassVar[str] = ""

    @abstractmethod
    def read_prompts(self, path: Path) -> list[Prompt]:
        """The prompts of a file, by row: a caption's id in that file is its prompt's index.

        Raises:
            ValueError: it is not such a file, or a row is invalid.
        """

    @abstractmethod
    def picture_name(self, prompt: Prompt, sample: int) -> str:
        """The file that has an image, relative to the folder of all images."""

    @abstractmethod
    def files(self, prompt: Prompt, images: Sequence[Image]) -> dict[str, bytes]:
        """All files of a prompt, by name, from its images by sample."""

    @abstractmethod
    def read_results(self, path: Path) -> list[ImageScore]:
        """The scores of a file of results.

        Raises:
            ValueError: a line is not what the tool writes; the message names the first one.
        """


class GenEval(PromptBenchmark):
    """`00000/metadata.jsonl` is the first prompt's own line, `00000/samples/0000.png` its first
    image. evaluate_images.py writes a JSON object for each image.
    """

    name = "geneval"
    title = "GenEval"
    about = "GenEval's overall score: the mean over its tags of the share of correct images"
    definition = "results of GenEval's evaluate_images.py"

    def read_prompts(self, path: Path) -> list[Prompt]:
        if path.suffix.lower() != ".jsonl":
            raise ValueError(
                f"{path}: GenEval's prompts are a .jsonl file (evaluation_metadata.jsonl)"
            )
        captions = captions_in_order(path, column="prompt")
        prompts = []
        with collect_errors("line") as collect:
            for caption, (location, line) in zip(captions, read_lines(path), strict=True):
                with collect():
                    tag = _checked_tag(parse_json(line), location)
                    prompts.append(Prompt(f"{caption.id:05d}", caption.text, tag, line.strip()))
        return prompts

    def picture_name(self, prompt: Prompt, sample: int) -> str:
        return f"{prompt.id}/samples/{sample:04d}.png"

    def files(self, prompt: Prompt, images: Sequence[Image]) -> dict[str, bytes]:
        from workers.data.pictures import png

        found = {f"{prompt.id}/metadata.jsonl": f"{prompt.metadata}\n".encode()}
        for sample, image in enumerate(images):
            found[self.picture_name(prompt, sample)] = png(image)
        return found

    def read_results(self, path: Path) -> list[ImageScore]:
        found = []
        with collect_errors("line") as collect:
            for location, line in read_lines(path):
                with collect():
                    found.append(_geneval_score(line, location))
        return found


def _geneval_score(line: str, location: str) -> ImageScore:
    """The score in a line of GenEval's results. Raises ValueError if it has none."""
    try:
        entry = parse_json(line)
    except json.JSONDecodeError as error:
        raise ValueError(f"{location}: broken JSON: {error.msg}; is the file whole?") from error
    tag = _checked_tag(entry, location)
    place = _GENEVAL_FILE.fullmatch(str(entry.get("filename")))
    if place is None:
        raise ValueError(
            f"{location}: filename {entry.get('filename')!r} is not FOLDER/00000/samples/0000.png"
        )
    folder, prompt, sample = place.groups()
    correct = entry.get("correct")
    if not isinstance(correct, bool):
        raise ValueError(f"{location}: `correct` must be true or false, got {correct!r}")
    text = caption_in_one_line(entry.get("prompt"), location)
    return ImageScore(prompt, int(sample), float(correct), tag, folder or "", text, location)


def _checked_tag(entry: Any, location: str) -> str:
    """The tag of a prompt or of a result. Raises ValueError if it has none."""
    tag = entry.get("tag") if isinstance(entry, Mapping) else None
    if not isinstance(tag, str) or not _TAG.fullmatch(tag):
        raise ValueError(
            f'{location}: needs GenEval\'s `tag`, such as "single_object", got {tag!r}'
        )
    return tag


class DPGBench(PromptBenchmark):
    """One picture for each prompt, named by its `item_id`: a single image, or up to four in a
    square. compute_dpg_bench.py writes a line for each picture, with the score of each image and
    their mean.
    """

    name = "dpg_bench"
    title = "DPG-Bench"
    about = "DPG-Bench's score / 100: the mean share of a prompt's questions answered by yes"
    definition = "results of DPG-Bench's compute_dpg_bench.py"
    max_samples = 4
    subfolder = "images"

    def read_prompts(self, path: Path) -> list[Prompt]:
        if path.suffix.lower() != ".csv":
            raise ValueError(
                f"{path}: DPG-Bench's prompts are a .csv file with the columns item_id and text, "
                "as dpg_bench.csv has them"
            )
        header, rows = read_table(path)
        if missing := [name for name in _DPG_COLUMNS if name not in header]:
            raise ValueError(f"{path}: no column {missing[0]!r}, by which DPG-Bench names prompts")
        places = [header.index(name) for name in _DPG_COLUMNS]
        texts: dict[str, str] = {}
        prompts = []
        with collect_errors("row") as collect:
            for location, row in rows:
                with collect():
                    if isinstance(row, ValueError):
                        raise row
                    prompt = _dpg_prompt(*(row[place] for place in places), location=location)
                    if texts.setdefault(prompt.id, prompt.text) != prompt.text:
                        raise ValueError(
                            f"{location}: item_id {prompt.id!r} occurs with two texts; give each "
                            "prompt its own"
                        )
                    prompts.append(prompt)
        return prompts

    def picture_name(self, prompt: Prompt, sample: int) -> str:
        return f"{prompt.id}.png"

    def files(self, prompt: Prompt, images: Sequence[Image]) -> dict[str, bytes]:
        from workers.data.pictures import image_grid, png

        columns = min(2, len(images))
        return {self.picture_name(prompt, 0): png(image_grid(images, columns, gap=0))}

    def read_results(self, path: Path) -> list[ImageScore]:
        found = []
        with collect_errors("line") as collect:
            for location, line in read_lines(path):
                if line.startswith(_DPG_END):
                    break
                with collect():
                    found += _dpg_scores(line.strip(), location)
        return found


def _dpg_prompt(item: str, text: str, *, location: str) -> Prompt:
    """The prompt of a row. Raises ValueError if its id or its text is invalid."""
    if not _ITEM_ID.fullmatch(item):
        raise ValueError(f"{location}: item_id {item!r} must have letters, digits, - and _ only")
    return Prompt(item, caption_in_one_line(text, location))


def _dpg_scores(line: str, location: str) -> list[ImageScore]:
    """The scores in a line of DPG-Bench's results, by sample. Raises ValueError if it has none."""
    parts = _DPG_LINE.fullmatch(line)
    numbers: list[float] = []
    if parts is not None:
        try:
            numbers = [float(number) for number in parts[3].split(", ")]
        except ValueError:
            numbers = []
    if parts is None or len(numbers) < 2 or not all(0 <= number <= 1 for number in numbers):
        raise ValueError(
            f"{location}: not FOLDER/ITEM.png with the score of each image and their mean: {line!r}"
        )
    # the tool takes what is before the first point for the item's id
    item = parts[2].partition(".")[0]
    return [
        ImageScore(item, sample, score, "", parts[1] or "", "", location)
        for sample, score in enumerate(numbers[:-1])
    ]


@dataclass(frozen=True, slots=True)
class PromptSet:
    """Prompts whose images are written in a benchmark's layout."""

    benchmark: PromptBenchmark
    prompts: Sequence[Prompt]  # by caption id
    samples: int  # images of each prompt

    @property
    def captions(self) -> list[Caption]:
        """The prompts as captions, whose ids number them."""
        return [
            Caption(number, prompt.text, prompt.id, prompt.group)
            for number, prompt in enumerate(self.prompts)
        ]

    def picture_name(self, caption_id: int, sample: int) -> str:
        """The file that has an image."""
        name = self.benchmark.picture_name(self.prompts[caption_id], sample)
        return self._below(name)

    def files(self, caption_id: int, images: Sequence[Image]) -> dict[str, bytes]:
        """All files of a prompt, by name, from its images by sample."""
        found = self.benchmark.files(self.prompts[caption_id], images)
        return {self._below(name): data for name, data in found.items()}

    def _below(self, name: str) -> str:
        folder = self.benchmark.subfolder
        return f"{folder}/{name}" if folder else name


PROMPT_BENCHMARKS: Mapping[str, PromptBenchmark] = {
    benchmark.name: benchmark for benchmark in (GenEval(), DPGBench())
}
