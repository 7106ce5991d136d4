"""`export --layout`, and `measure`: a trial's images for a benchmark's tool, and its results."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import chdir
from pathlib import Path

import numpy as np
import pytest
import yaml
from PIL import Image

from orchestrator.store import files
from orchestrator.store.sweep import Sweep
from tests.fakes.command_line import error_of, specfrontier
from tests.fakes.drawn_sweeps import write_drawn_sweep
from workers.data.records import read_shard
from workers.data.storage import Storage

TAGS = ("colors", "counting", "position")
PROMPTS: list[dict[str, object]] = [
    {"tag": TAGS[number % 3], "include": [{"class": "cat", "count": number}], "prompt": f"cat {number}"}
    for number in range(30)
]  # fmt: skip


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A working directory with a sweep of these prompts (vanilla, a lossless setting, a lossy one),
    and with the images of vanilla and of the lossy setting.
    """
    folder = tmp_path_factory.mktemp("measured")
    texts = [str(line["prompt"]) for line in PROMPTS]
    write_drawn_sweep(folder / "sweeps" / "mine", texts, trials=3, name="mine")
    write_prompts(folder / "geneval.jsonl", PROMPTS)
    storage = Storage(folder / "sweeps" / "mine")
    captions = {"captions": {"source": str(folder / "geneval.jsonl")}}
    plan = {**files.read_sweep_yaml(storage), **captions}
    files.write_sweep_text(storage, yaml.safe_dump(plan))
    with chdir(folder):
        for trial in ("0", "2"):
            export(trial, "--layout", "geneval")
    return folder


@pytest.fixture(autouse=True)
def _unmeasured(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(made)
    shutil.rmtree(made / "sweeps" / "mine" / files.SCORES, ignore_errors=True)


def write_prompts(path: Path, lines: list[dict[str, object]]) -> None:
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))


def export(trial: str, *options: str) -> None:
    result = specfrontier("export", "mine", "--trial", trial, "--out", "images", *options)
    assert result.code == 0, result.err


def images_of(trial: int) -> Path:
    (path,) = Path("images").glob(f"mine-{trial}-*")
    return path


def detect(images: Path, is_correct: Callable[[int], bool]) -> Iterator[str]:
    """What GenEval's tool writes of a folder, if the images of these prompts are correct."""
    for prompt in sorted(images.iterdir()):
        metadata = json.loads((prompt / "metadata.jsonl").read_text())
        for image in (prompt / "samples").iterdir():
            yield json.dumps(
                {
                    "filename": str(image),
                    "tag": metadata["tag"],
                    "prompt": metadata["prompt"],
                    "correct": is_correct(int(prompt.name)),
                    "reason": "",
                    "metadata": json.dumps(metadata),
                    "details": "{}",
                }
            )


def write_results(lines: list[str]) -> None:
    Path("results.jsonl").write_text("".join(f"{line}\n" for line in lines))


def test_geneval_of_a_trial_is_a_metric_like_any_other() -> None:
    images = images_of(2)
    assert json.loads((images / "00004" / "metadata.jsonl").read_text()) == PROMPTS[4]
    with Image.open(images / "00004" / "samples" / "0000.png") as picture:
        assert picture.size == (48, 48)
    # colors: 3 of 10 are correct, counting: all, position: none
    write_results(list(detect(images, lambda number: number % 3 == 1 or number in (0, 9, 27))))
    result = specfrontier("measure", "mine", "2", "--geneval", "results.jsonl", "--json")
    assert result.code == 0, result.err
    found = result.json["metrics"]
    assert found["geneval"]["value"] == pytest.approx((0.3 + 1 + 0) / 3)
    assert found["geneval_colors"]["value"] == pytest.approx(0.3)
    assert found["geneval_colors"]["error"] > 0
    assert found["geneval_counting"] == {"value": 1.0, "error": 0.0, "images": 10}
    sweep = Sweep.open("sweeps/mine")
    assert sweep.records[2].metrics["geneval"].value == pytest.approx(1.3 / 3)
    assert "geneval" not in sweep.records[0].metrics
    table, _ = read_shard(sweep.storage, files.TRIAL_TABLE, ["geneval", "geneval_error"])
    assert table["geneval"].to_pylist()[2] == pytest.approx(1.3 / 3)
    front = specfrontier("pareto", "mine", "--y", "geneval", "--json")
    assert [trial["number"] for trial in front.json["rows"]] == [2], front.err


def test_lossless_settings_share_vanillas_value() -> None:
    write_results(list(detect(images_of(0), lambda number: number < 12)))
    assert specfrontier("measure", "mine", "0", "--geneval", "results.jsonl").code == 0
    vanilla, lossless, lossy = Sweep.open("sweeps/mine").records
    assert vanilla.metrics["geneval"].value == pytest.approx(0.4)
    assert lossless.metrics["geneval"].value == vanilla.metrics["geneval"].value
    assert "geneval" not in lossy.metrics


def doubled(lines: list[str]) -> list[str]:
    return [*lines, lines[3]]


def missing(lines: list[str]) -> list[str]:
    return lines[:-2]


def foreign(lines: list[str]) -> list[str]:
    return [*lines, lines[0].replace("00000/samples", "00077/samples")]


def another_prompt(lines: list[str]) -> list[str]:
    return [*lines[:-1], lines[-1].replace("cat 29", "cat 28")]


def another_trial(lines: list[str]) -> list[str]:
    return [line.replace("mine-2-", "mine-2-0") for line in lines]


def no_folder(lines: list[str]) -> list[str]:
    return [f'{{"filename": "{line.partition("mine-2-")[2][9:]}' for line in lines]


@pytest.mark.parametrize(
    ("spoil", "problem"),
    [
        (doubled, "line 31: image 0 of prompt 00003 again"),
        (missing, "image 0 of prompt 00028 and 1 other image"),
        (foreign, "line 31: trial 2 has no image 0 of a prompt 00077"),
        (another_prompt, "line 30: prompt 00029"),
        (another_trial, "line 1: of an image in folder"),
        (no_folder, "line 1: of an image in a folder without a name"),
    ],
)
def test_results_of_other_images_are_refused(
    spoil: Callable[[list[str]], list[str]], problem: str
) -> None:
    write_results(spoil(list(detect(images_of(2), bool))))
    assert problem in error_of("measure", "mine", "2", "--geneval", "results.jsonl", code=2)
    assert not Storage("sweeps/mine").names(files.SCORES)


def test_prompts_that_are_not_the_captions_are_refused() -> None:
    write_prompts(Path("other.jsonl"), [{**line, "prompt": "a dog"} for line in PROMPTS])
    write_prompts(Path("short.jsonl"), PROMPTS[:-1])
    trial = ("export", "mine", "--trial", "2")
    words = (*trial, "--layout", "geneval", "--captions")
    assert "'cat 0'" in error_of(*words, "other.jsonl", code=2)
    assert "'cat 29'" in error_of(*words, "short.jsonl", code=2)
    assert "--layout" in error_of(*trial, "--captions", "other.jsonl", code=2)
    assert "exists" in error_of(*words, "geneval.jsonl", "--out", "images", code=2)


def test_captions_of_another_place_are_named() -> None:
    Path("geneval.jsonl").rename("moved.jsonl")
    words = ("measure", "mine", "2", "--geneval", "results.jsonl")
    write_results(list(detect(images_of(2), bool)))
    assert "--captions" in error_of(*words, code=2)
    assert specfrontier(*words, "--captions", "moved.jsonl").code == 0
    Path("moved.jsonl").rename("geneval.jsonl")


def test_dpg_bench_takes_one_picture_a_prompt() -> None:
    rows = [f"item{number},cat {number}\n" for number in range(30)]
    Path("dpg.csv").write_text("item_id,text\n" + "".join(rows))
    shutil.rmtree("dpg", ignore_errors=True)
    export("2", "--layout", "dpg_bench", "--captions", "dpg.csv", "--out", "dpg")
    (images,) = Path("dpg").iterdir()
    assert {path.name for path in images.iterdir()} == {f"item{n}.png" for n in range(30)}
    scores = np.random.default_rng(0).random(30)
    lines = [f"{images}/item{n}.png, {score}, {score}\n" for n, score in enumerate(scores)]
    Path("results.txt").write_text("".join(lines) + "Model: mine\nDPG-Bench score: 1\n")
    words = ("measure", "mine", "2", "--dpg-bench", "results.txt", "--captions", "dpg.csv")
    result = specfrontier(*words, "--json")
    assert result.code == 0, result.err
    assert result.json["metrics"]["dpg_bench"]["value"] == pytest.approx(scores.mean())


def test_one_file_of_results_is_needed() -> None:
    assert "--geneval" in error_of("measure", "mine", "2", code=2)
