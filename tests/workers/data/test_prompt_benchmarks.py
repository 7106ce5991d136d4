"""The files of GenEval and DPG-Bench."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from workers.data.captions import captions_in_order
from workers.data.prompt_benchmarks import PROMPT_BENCHMARKS

GENEVAL = PROMPT_BENCHMARKS["geneval"]
DPG = PROMPT_BENCHMARKS["dpg_bench"]
# as in GenEval's evaluation_metadata.jsonl
LINES = (
    '{"tag": "single_object", "include": [{"class": "bench", "count": 1}], "prompt": "a photo of a bench"}',
    '{"tag": "counting", "include": [{"class": "cow", "count": 3}], "exclude": [{"class": "cow", "count": 4}], "prompt": "a photo of three cows"}',
)
COLOURS = ((255, 0, 0), (0, 255, 0), (0, 0, 255), (255, 255, 0))


def pictures(count: int) -> list[Image.Image]:
    return [Image.new("RGB", (8, 8), colour) for colour in COLOURS[:count]]


def opened(data: bytes) -> Image.Image:
    return Image.open(io.BytesIO(data))


def result(**changed: Any) -> str:
    """A line as pandas writes it for GenEval's tool."""
    entry = {
        "filename": "out/mine-7-0011aabb/00001/samples/0002.png",
        "tag": "counting",
        "prompt": "a photo of three cows",
        "correct": False,
        "reason": "expected cow>=3, found 2",
        "metadata": LINES[1],
        "details": "{}",
    }
    return json.dumps(entry | changed).replace("/", "\\/")


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    path = tmp_path / "evaluation_metadata.jsonl"
    path.write_text("\n".join(LINES) + "\n")
    return path


def test_a_prompt_of_geneval_has_its_own_line_and_numbered_images(prompts: Path) -> None:
    first, second = GENEVAL.read_prompts(prompts)
    assert (first.id, second.id, second.group) == ("00000", "00001", "counting")
    assert [caption.group for caption in captions_in_order(prompts)] == [first.group, second.group]
    files = GENEVAL.files(second, pictures(2))
    assert list(files) == [
        "00001/metadata.jsonl", "00001/samples/0000.png", "00001/samples/0001.png"
    ]  # fmt: skip
    assert files["00001/metadata.jsonl"].decode().strip() == LINES[1]
    assert opened(files[GENEVAL.picture_name(second, 1)]).getpixel((0, 0)) == COLOURS[1]


def test_results_of_geneval_say_which_image_was_right(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    path.write_text(result() + "\n" + result(filename="00001/samples/00003.png", correct=True))
    first, second = GENEVAL.read_results(path)
    assert (first.prompt, first.sample, first.score, first.group) == ("00001", 2, 0.0, "counting")
    assert (first.folder, first.text) == ("mine-7-0011aabb", "a photo of three cows")
    assert (second.sample, second.score, second.folder) == (3, 1.0, "")


@pytest.mark.parametrize(
    "line",
    [
        "{",
        "[]",
        result(tag=None),
        result(tag="Two Objects"),
        result(filename="00001/0002.png"),
        result(correct="yes"),
        result(prompt=""),
    ],
)
def test_a_result_that_geneval_does_not_write_is_refused(line: str, tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    path.write_text(f"{result()}\n{line}\n")
    with pytest.raises(ValueError, match="line 2"):
        GENEVAL.read_results(path)


@pytest.mark.parametrize(
    ("name", "text", "problem"),
    [
        ("a.txt", "a photo of a bench\n", "jsonl"),
        ("a.jsonl", '{"prompt": "a bench"}\n', "line 1.*tag"),
        ("a.jsonl", f'{LINES[0]}\n{{"tag": "colors"}}\n', "line 2.*prompt"),
    ],
)
def test_other_files_are_no_prompts_of_geneval(
    name: str, text: str, problem: str, tmp_path: Path
) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(ValueError, match=problem):
        GENEVAL.read_prompts(tmp_path / name)


def test_a_prompt_of_dpg_bench_has_one_picture(tmp_path: Path) -> None:
    path = tmp_path / "dpg_bench.csv"
    path.write_text('item_id,text,tuple\npartiprompts7,"a cat, asleep",x\n12,a dog,y\n')
    cat, dog = DPG.read_prompts(path)
    assert (cat.id, cat.text, dog.id) == ("partiprompts7", "a cat, asleep", "12")
    ((name, data),) = DPG.files(cat, pictures(4)).items()
    assert name == "partiprompts7.png"
    picture = opened(data)
    assert picture.size == (16, 16)
    corners = [(0, 0), (8, 0), (0, 8), (8, 8)]  # as the tool cuts it
    assert [picture.getpixel(corner) for corner in corners] == list(COLOURS)
    (single,) = DPG.files(dog, pictures(1)).values()
    assert opened(single).size == (8, 8)


@pytest.mark.parametrize(
    "rows", ["../up,a cat\n", ",a cat\n", "1,a cat\n1,a dog\n", "1,a cat,more\n", "1,\n"]
)
def test_a_row_without_an_id_of_its_own_is_refused(rows: str, tmp_path: Path) -> None:
    path = tmp_path / "dpg.csv"
    path.write_text(f"item_id,text\n{rows}")
    with pytest.raises(ValueError, match=str(path)):
        DPG.read_prompts(path)


def test_results_of_dpg_bench_end_where_its_summary_begins(tmp_path: Path) -> None:
    path = tmp_path / "results.txt"
    path.write_text(
        "/x, y/mine-3-0011aabb/partiprompts7.png, 1.0, 0.25, 0.625\n"
        "/x, y/mine-3-0011aabb/12.png, 0.5, 0.75, 0.625\n"
        "Model: mine-3-0011aabb\nL1 category scores:\n\tentity: 81.2\nDPG-Bench score: 62.5\n"
    )
    found = DPG.read_results(path)
    assert [(each.prompt, each.sample, each.score) for each in found] == [
        ("partiprompts7", 0, 1.0), ("partiprompts7", 1, 0.25), ("12", 0, 0.5), ("12", 1, 0.75)
    ]  # fmt: skip
    assert {each.folder for each in found} == {"mine-3-0011aabb"}


@pytest.mark.parametrize("line", ["12.png, 0.5", "12.png, a, b", "12, 0.5, 0.5", "12.png, 2, 2"])
def test_a_result_that_dpg_bench_does_not_write_is_refused(line: str, tmp_path: Path) -> None:
    path = tmp_path / "results.txt"
    path.write_text(line + "\n")
    with pytest.raises(ValueError, match="line 1"):
        DPG.read_results(path)
