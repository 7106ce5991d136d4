"""`specfrontier generate` on a tiny random model: the files it writes and the messages of wrong
usage.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from PIL import Image
from torch import Tensor

import orchestrator.cli.generation
from orchestrator.cli import gallery
from orchestrator.cli.gallery import file_name
from orchestrator.errors import CommandError
from orchestrator.options import pick_device
from tests.fakes.command_line import CommandResult, error_of, specfrontier
from tests.fakes.toys import toy_drafter, toy_target
from workers.data.pictures import contact_sheet, thumbnail
from workers.decoding.engine import Engine
from workers.decoding.state import Request
from workers.decoding.timer import PHASES
from workers.loading.models import Models
from workers.models.target import Target

CAPTIONS = ("a red circle", "a blue star")
CHAIN = ("--set", "drafter.kind=eagle", "--set", "tree.policy=chain", "--set", "tree.length=3")


def toy_models(head_weight: float | None = None) -> Models:
    """A toy target with all drafters; `head_weight` overwrites one row of the target's head."""
    target = toy_target()
    if head_weight is not None:
        dict(target.head.named_parameters())["weight"].data[3] = head_weight
    drafters = {
        kind: toy_drafter(kind, target)
        for kind in ("eagle", "eagle3", "medusa", "independent", "vertical")
    }
    return Models(
        target,
        {kind: drafter for kind, drafter in drafters.items() if drafter is not None},
        {"toy": "0" * 64},
    )


@pytest.fixture(scope="module")
def shared_models() -> Models:
    return toy_models()


@pytest.fixture
def toy(monkeypatch: pytest.MonkeyPatch, shared_models: Models) -> None:
    monkeypatch.setattr(orchestrator.cli.generation, "load_entry", lambda *_: shared_models)


def generate(*arguments: str) -> CommandResult:
    return specfrontier("generate", *arguments)


@pytest.mark.usefixtures("toy")
def test_all_files_are_written(tmp_path: Path) -> None:
    out = tmp_path / "new" / "folder"
    result = generate(
        *CAPTIONS, *CHAIN, "--samples", "2", "--batch", "3", "--out", str(out), "--json"
    )
    assert result.code == 0
    printed = result.json
    assert printed == json.loads((out / "statistics.json").read_text())
    files = [row["file"] for row in printed["images"]]
    assert files[0] == "0000-0-a-red-circle.png"
    assert len(set(files)) == 4
    assert {path.name for path in out.iterdir()} == {
        *files, "contact_sheet.png", "heatmap.png", "statistics.json", "config.yaml"
    }  # fmt: skip
    for row in printed["images"]:
        with Image.open(out / row["file"]) as picture:
            assert picture.size == (384, 384)
            assert picture.text["caption"] == row["caption"]  # type: ignore[attr-defined]
        assert row["seconds"].keys() == set(PHASES)
        assert row["latency"] == pytest.approx(sum(row["seconds"].values()))
        assert 1 <= row["mean_accepted_length"] <= 4
        assert row["mean_tree_depth"] <= 3
    assert printed["preset"] is None
    assert printed["config"]["sampling"] == {
        "temperature": 1.0,
        "top_k": 0,
        "top_p": 1.0,
        "cfg": 2.0,
    }
    assert len(printed["digest"]) == 16
    assert printed["weights"] == {"toy": "0" * 64}
    check_overall(printed)


def check_overall(printed: dict[str, Any]) -> None:
    means, rows = printed["overall"], printed["images"]
    assert means["images"] == len(rows)
    for name in ("step_compression", "mean_tree_depth"):
        assert means[name] == pytest.approx(sum(row[name] for row in rows) / len(rows))
    assert means["mean_accepted_length"] == pytest.approx(
        15 * len(rows) / sum(row["target_passes"] for row in rows)
    )
    assert means["latency"] == pytest.approx(means["wall_seconds"] / len(rows))
    assert sum(means["seconds"].values()) <= means["wall_seconds"]
    assert printed["accepted_length_by_cell"][0][0] is None
    assert all(value is not None for row in printed["accepted_length_by_cell"] for value in row[1:])


@pytest.mark.usefixtures("toy")
def test_a_new_run_removes_only_the_pictures_of_the_previous_one(tmp_path: Path) -> None:
    assert generate(*CAPTIONS, "--out", str(tmp_path)).code == 0
    (tmp_path / "0007-0-mine.png").touch()
    statistics = tmp_path / "statistics.json"
    statistics.write_text(
        statistics.read_text().replace("0001-0-a-blue-star.png", "../outside.png")
    )
    (tmp_path.parent / "outside.png").touch()
    ran = generate("a green ring", "--out", str(tmp_path))
    assert ran.code == 0
    assert ran.out.splitlines()[-1].startswith(f"replaced {len(CAPTIONS) - 1} image")
    pictures = {path.name for path in tmp_path.glob("0*.png")}
    assert pictures == {"0000-0-a-green-ring.png", "0001-0-a-blue-star.png", "0007-0-mine.png"}
    assert (tmp_path.parent / "outside.png").exists()


@pytest.mark.usefixtures("toy")
def test_the_written_config_draws_the_same_images(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    keys = ("acceptance.budget=2", "acceptance.nu=0.2", "sampling.temperature=0.8")
    sets = [word for key in keys for word in ("--set", key)]
    assert (
        generate(*CAPTIONS, "--preset", "cool", *sets, "--seed", "5", "--out", str(first)).code == 0
    )
    config = str(first / "config.yaml")
    assert (
        generate(
            *CAPTIONS, "--config", config, "--seed", "5", "--batch", "1", "--out", str(second)
        ).code
        == 0
    )
    before, after = (
        json.loads((folder / "statistics.json").read_text()) for folder in (first, second)
    )
    assert before["config"] == after["config"]
    assert before["digest"] == after["digest"]
    written = yaml.safe_load((first / "config.yaml").read_text())
    assert written["acceptance"]["budget"] == 2.0
    assert written["sampling"] == {"temperature": 0.8, "top_k": 0, "top_p": 1.0, "cfg": 2.0}, (
        "the rest is the target's"
    )
    for row in before["images"]:
        assert (first / row["file"]).read_bytes() == (second / row["file"]).read_bytes()


@pytest.mark.usefixtures("toy")
def test_captions_from_arguments_file_and_standard_input(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "captions.txt"
    file.write_bytes("\ufeffa red circle\r\n  a blå star \r\n\r\n".encode())
    out = ("--out", str(tmp_path / "o"), "--json")
    captions = [
        row["caption"] for row in generate("a ring", "--captions", str(file), *out).json["images"]
    ]
    assert captions == ["a ring", "a red circle", "a blå star"]
    with file.open("rb") as standard_input:
        monkeypatch.setattr(sys, "stdin", type("Stdin", (), {"buffer": standard_input}))
        result = generate("--captions", "-", *out)
    assert [row["caption"] for row in result.json["images"]] == captions[1:]


@pytest.mark.usefixtures("toy")
def test_a_file_has_the_captions_that_a_sweep_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = ["a red\u2028circle", "a blue\x0cstar", "a\x85ring"]
    expected = ["a red circle", "a blue star", "a ring"]
    contents = {
        "a.txt": "\n".join(texts),
        "a.list": "\n".join(texts),  # of an ending that no sweep reads: as text
        "a.csv": "caption\n" + "".join(f'"{text}"\n' for text in texts),
        "a.jsonl": "".join(
            json.dumps({"caption": text}, ensure_ascii=False) + "\n" for text in texts
        ),
    }
    for name, content in contents.items():
        file = tmp_path / name
        file.write_bytes(content.encode())
        run = generate("--captions", str(file), "--out", str(tmp_path / "o"), "--json")
        assert [row["caption"] for row in run.json["images"]] == expected, name
    with (tmp_path / "a.txt").open("rb") as standard_input:
        monkeypatch.setattr(sys, "stdin", type("Stdin", (), {"buffer": standard_input}))
        run = generate("--captions", "-", "--out", str(tmp_path / "o"), "--json")
    assert [row["caption"] for row in run.json["images"]] == expected


@pytest.mark.usefixtures("toy")
def test_the_summary_names_the_sheet(tmp_path: Path) -> None:
    result = generate(CAPTIONS[0], "--out", str(tmp_path))
    assert (result.code, result.err) == (0, "")
    setting, sampling, speed, passes, files = result.out.splitlines()
    assert setting.startswith("vanilla cfg2, target ")
    assert sampling.startswith(
        "sampling: guidance (cfg) 2, temperature 1, top_k 0, top_p 1 (all by the target's"
    )
    assert speed.startswith("1 image in")
    assert "images/s" in speed
    assert passes.endswith("each for 1.00 tokens")
    assert files.startswith(str(tmp_path / "contact_sheet.png"))


def sets(*assignments: str) -> tuple[str, ...]:
    return tuple(word for assignment in assignments for word in ("--set", assignment))


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        ((), ("no captions",)),
        (("",), ("a caption is empty",)),
        (("a ring", "--captions", "none.txt"), ("none.txt", "no such file")),
        (("--captions", "empty.txt"), ("no captions", "empty.txt")),
        (("--captions", "latin1.txt"), ("latin1.txt", "UTF-8")),
        (("--captions", "blank.txt"), ("blank.txt, line 2", "blank caption")),
        (("a ring", "--preset", "lantren"), ("'lantern'",)),
        (("a ring", "--preset", "lantern", "--config", "x.yaml"), ("--preset and --config",)),
        (("a ring", "--config", "x.yaml"), ("x.yaml", "No such file")),
        (("a ring", "--config", "bad.yaml"), ("bad.yaml:2", "tree.length")),
        (("a ring", "--preset", "eagle2", *sets("tree.depth=0")), ("tree.depth", "in [1, 256]")),
        (("a ring", "--preset", "eagle2", *sets("tree.depth")), ("--set tree.depth", "KEY=VALUE")),
        (
            ("a ring", "--preset", "lantern", *sets("acceptance.k=5000")),
            ("acceptance.k", "5000", "24 codes"),
        ),
        (("a ring", *CHAIN, *sets("sampling.top_k=25")), ("sampling.top_k", "25", "24 codes")),
        (
            ("a ring", *sets("drafter.kind=medusa", "tree.policy=chain", "tree.length=9")),
            ("9", "6", "edusa"),
        ),
        (("a ring", "--no-such-option"), ("--no-such-option",)),
        (("a ring", "--batch", "0"), ("--batch", "greater than or equal to 1")),
        (("a ring", "--out", "empty.txt/sub"), ("empty.txt",)),
    ],
)
@pytest.mark.usefixtures("toy")
def test_wrong_usage_gets_one_message(
    arguments: tuple[str, ...],
    parts: tuple[str, ...],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty.txt").write_text("\n  \n")
    (tmp_path / "blank.txt").write_text("a ring\n\na star\n")
    (tmp_path / "latin1.txt").write_bytes("ein blåer Kreis".encode("latin-1"))
    (tmp_path / "bad.yaml").write_text("drafter: eagle\ntree: {policy: chain, length: 0}\n")
    message = error_of("generate", *arguments, code=2)
    for part in parts:
        assert part in message


def test_a_missing_drafter_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    models = Models(toy_target(), {}, {})
    monkeypatch.setattr(orchestrator.cli.generation, "load_entry", lambda *_: models)
    message = error_of("generate", "a ring", "--preset", "lantern", "--out", str(tmp_path), code=2)
    assert "'eagle' drafter" in message


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_broken_logits_fail(bad: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    models = toy_models(head_weight=bad)
    monkeypatch.setattr(orchestrator.cli.generation, "load_entry", lambda *_: models)
    message = error_of("generate", "a ring", *CHAIN, "--out", str(tmp_path), code=1)
    assert "not finite" in message
    assert message.count("\n") == 1


@pytest.mark.usefixtures("toy")
def test_an_interrupt_counts_the_images_drawn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    decode, calls = Target.decode, []

    def interrupted(self: Target, tokens: Tensor) -> Tensor:
        calls.append(1)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return decode(self, tokens)

    monkeypatch.setattr(Target, "decode", interrupted)
    message = error_of("generate", *CAPTIONS, "--batch", "1", "--out", str(tmp_path), code=130)
    assert "Interrupted; 1 of 2 images are in" in message
    assert len(list(tmp_path.glob("*.png"))) == 1


@pytest.mark.usefixtures("toy")
@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("no"),
        RuntimeError("DefaultCPUAllocator: can't allocate memory"),
        MemoryError(),
    ],
    ids=["cuda", "cpu", "python"],
)
@pytest.mark.parametrize(
    ("function", "advice"),
    [
        ((Engine, "open"), "at batch 8; try --batch 4"),
        ((orchestrator.cli.generation, "load_entry"), "loading the models"),
    ],
    ids=["drawing", "loading"],
)
def test_out_of_memory_says_what_to_try(
    error: Exception,
    function: tuple[object, str],
    advice: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def full(*_: object) -> None:
        raise error

    monkeypatch.setattr(*function, full)
    message = error_of("generate", *CAPTIONS, "--batch", "8", "--out", str(tmp_path), code=1)
    assert "out of memory" in message
    assert advice in message


def test_sheets_hold_every_picture() -> None:
    for count in range(1, 40):
        pictures = [Image.new("RGB", (4, 4), (255, 0, 0))] * count
        sheet = contact_sheet(pictures, ["one"] * count, side=4)
        reds = sum(pixel == (255, 0, 0) for pixel in sheet.get_flattened_data())
        assert reds == 16 * count


def write_prompts(folder: Path) -> tuple[str, list[str]]:
    """A file as GenEval's evaluation_metadata.jsonl, and its lines."""
    lines = [
        json.dumps({"tag": tag, "include": [{"class": "ball", "count": 1}], "prompt": text})
        for tag, text in (("colors", CAPTIONS[0]), ("counting", CAPTIONS[1]))
    ]
    file = folder / "evaluation_metadata.jsonl"
    file.write_text("".join(f"{line}\n" for line in lines))
    return str(file), lines


def test_pictures_of_a_sheet_are_small() -> None:
    """A sheet of the two thousand pictures of a benchmark, of 1024 pixels, needed 7 gigabytes."""
    large = Image.new("RGB", (1024, 512), (255, 0, 0))
    assert thumbnail(large).size == (192, 96)
    assert thumbnail(large.resize((80, 40))).size == (160, 80)
    assert contact_sheet([large] * 8, ["one"] * 8).width < 6 * 210
    assert large.size == (1024, 512)


@pytest.mark.usefixtures("toy")
def test_thumbnails_of_written_images_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gallery, "thumbnail", lambda picture: picture.resize((3, 2)))
    monkeypatch.setattr(gallery, "_MAX_ON_SHEET", 1)
    shown: list[list[tuple[int, int]]] = []

    def sheet(pictures: list[Image.Image], captions: list[str]) -> Image.Image:
        shown.append([picture.size for picture in pictures])
        return contact_sheet(pictures, captions)

    monkeypatch.setattr(gallery, "contact_sheet", sheet)
    file, _ = write_prompts(tmp_path)
    words = ("--captions", file, "--samples", "2", "--out", str(tmp_path / "out"), "--json")
    for layout in ((), ("--layout", "geneval"), ("--against", "vanilla")):
        printed = generate(*words, *layout).json
        with Image.open(tmp_path / "out" / printed["images"][-1]["file"]) as picture:
            assert picture.size[0] > 3
    assert shown == [[(3, 2)]] * 4


@pytest.mark.usefixtures("toy")
def test_images_in_the_layout_of_geneval(tmp_path: Path) -> None:
    file, lines = write_prompts(tmp_path)
    out = tmp_path / "out"
    words = ("--captions", file, "--preset", "vanilla", "--out", str(out), "--json")
    printed = generate(*words, "--layout", "geneval", "--samples", "2").json
    assert (out / "00001" / "metadata.jsonl").read_text() == lines[1] + "\n"
    files = [row["file"] for row in printed["images"]]
    assert files == [f"0000{n}/samples/000{sample}.png" for n in (0, 1) for sample in (0, 1)]
    with Image.open(out / files[0]) as picture, Image.open(out / files[1]) as other:
        assert picture.tobytes() != other.tobytes()
        grid = Image.open(out / "contact_sheet.png")
        assert max(picture.size) < grid.width, "they are not enlarged"
    assert set(printed["acceptance"]["groups"]) == {"colors", "counting"}
    (out / "00000" / "notes.txt").write_text("mine")
    assert len(generate(*words).json["images"]) == 2
    left = {str(path.relative_to(out)) for path in out.rglob("*") if path.is_file()}
    assert {name for name in left if "/" in name} == {"00000/notes.txt"}


@pytest.mark.usefixtures("toy")
def test_images_in_the_layout_of_dpg_bench(tmp_path: Path) -> None:
    """The file has a row for each question, and the picture all samples of a prompt."""
    file = tmp_path / "dpg_bench.csv"
    rows = [f"item{n},{text},{question}\n" for n, text in enumerate(CAPTIONS) for question in "ab"]
    file.write_text("item_id,text,tuple\n" + "".join(rows))
    out = tmp_path / "out"
    words = ("--captions", str(file), "--layout", "dpg_bench", "--out", str(out), "--samples")
    printed = specfrontier("generate", *words, "4", "--json").json
    assert [row["caption"] for row in printed["images"]] == [CAPTIONS[0]] * 4 + [CAPTIONS[1]] * 4
    assert {path.name for path in (out / "images").iterdir()} == {"item0.png", "item1.png"}
    assert "--samples" in error_of("generate", *words, "5", code=2)


def test_a_layout_needs_the_prompts_of_its_benchmark(tmp_path: Path) -> None:
    file, _ = write_prompts(tmp_path)
    layout = ("--layout", "geneval", "--out", str(tmp_path / "out"))
    assert "--captions" in error_of("generate", "a red circle", *layout, code=2)
    both = ("a red circle", "--captions", file)
    assert "no other captions" in error_of("generate", *both, *layout, code=2)
    (tmp_path / "captions.txt").write_text("a red circle\n")
    other = ("--captions", str(tmp_path / "captions.txt"))
    assert ".jsonl" in error_of("generate", *other, *layout, code=2)


@pytest.mark.parametrize(
    ("caption", "name"),
    [
        ("A  Red/Circle!", "0003-1-a-red-circle.png"),
        ("../../etc/passwd", "0003-1-etc-passwd.png"),
        ("圆", "0003-1.png"),
        ("x" * 500, f"0003-1-{'x' * 48}.png"),
    ],
)
def test_file_names_are_safe(caption: str, name: str) -> None:
    assert file_name(Request(3, caption, 1)) == name


@pytest.mark.parametrize("name", ["gpu", "meta", "mps", "cuda:99"])
def test_devices_that_are_not_here_are_refused(name: str) -> None:
    with pytest.raises(CommandError, match=f"--device {name}"):
        pick_device(name)
