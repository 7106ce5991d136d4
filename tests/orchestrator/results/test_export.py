"""A setting that leaves its sweep: its folder draws the same images elsewhere, and nothing is overwritten."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import yaml
from PIL import Image

from orchestrator.results.export import CARD, PAGE, REQUIREMENTS, SCRIPT, SETTING, export_files
from orchestrator.results.front import front_of
from specfrontier import DecodingConfig, Sweep, load_engine
from tests.fakes.command_line import error_of, specfrontier
from tests.fakes.drawn_sweeps import write_drawn_sweep

FILES = {SETTING, SCRIPT, REQUIREMENTS, PAGE}
CAPTION = "a large red circle"


@pytest.fixture(scope="module")
def sweep(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sweeps") / "drawn"
    versions = {"specfrontier": "0.1.0", "python": "3.11.7", "torch": "2.13.0+cpu"}
    write_drawn_sweep(folder, [CAPTION], trials=8, versions=versions)
    return folder


def test_the_folder_draws_the_same_images(sweep: Path, tmp_path: Path) -> None:
    trial = Sweep.open(sweep).best("fid <= 1.2 * vanilla")
    out = tmp_path / "out"
    done = specfrontier("export", str(sweep), "--best", "fid <= 1.2 * vanilla", "--out", str(out))
    assert done.code == 0, done.err
    assert {path.name for path in out.iterdir()} == FILES | ({CARD} if trial.config.drafter.has_weights else set())
    assert DecodingConfig.from_mapping(yaml.safe_load((out / SETTING).read_text())) == trial.config
    assert (out / REQUIREMENTS).read_text() == "# Python 3.11.7\ntorch==2.13.0\n", "an index need not have this project"
    assert "specfrontier 0.1.0" in (out / PAGE).read_text()
    assert f"BATCH = {trial.batch} " in (out / SCRIPT).read_text(), "the speed is of this batch size"
    drawn = tmp_path / "drawn"
    drawn.mkdir()
    subprocess.run([sys.executable, out / SCRIPT, CAPTION], cwd=drawn, check=True, capture_output=True)
    expected = load_engine(trial).draw(CAPTION)[0].image
    assert np.array_equal(np.array(Image.open(drawn / "0000.png")), np.array(expected))
    assert len((out / SCRIPT).read_text().splitlines()) <= 35
    for words in ([], ["--help"], ["an unknown word"]):
        command = [sys.executable, str(out / SCRIPT), *words]
        ran = subprocess.run(command, cwd=drawn, capture_output=True, text=True, check=False)
        assert ran.returncode == 1
        assert "Traceback" not in ran.stderr
        assert ran.stderr.startswith("error: caption" if words == ["an unknown word"] else "usage: ")


def test_the_page_has_what_was_measured_and_the_card_its_drafter(sweep: Path, tmp_path: Path) -> None:
    front = front_of([Sweep.open(sweep)])
    trial = next(trial for trial in front.candidates if trial.config.drafter.kind == "eagle")
    assert specfrontier("export", str(sweep), "--trial", str(trial.number), "--out", str(tmp_path)).code == 0
    page, card = (tmp_path / PAGE).read_text(), (tmp_path / CARD).read_text()
    for name in trial.objectives:
        assert str(trial.metrics[name]) in page
        assert str(trial.metrics[name]) in card
    assert "jadohu/LANTERN" in page
    head = yaml.safe_load(card.split("---")[1])
    assert "eagle" in head["tags"]
    assert trial.sweep.identity.target in card


def test_vanilla_has_no_drafter_to_describe(sweep: Path, tmp_path: Path) -> None:
    assert specfrontier("export", str(sweep), "--trial", "0", "--out", str(tmp_path / "out")).code == 0
    assert {path.name for path in (tmp_path / "out").iterdir()} == FILES


@pytest.mark.parametrize("label", ['"""; raise SystemExit(7); """', "\\N{x}", "\\", "x\nraise SystemExit(7)"])
def test_a_label_is_no_code(label: str, sweep: Path) -> None:
    trial = next(iter(front_of([Sweep.open(sweep)]).candidates))
    script = export_files(replace(trial, record=replace(trial.record, label=label)))[SCRIPT]
    names: dict[str, object] = {"__name__": "draw", "__file__": SCRIPT}
    exec(compile(script, SCRIPT, "exec"), names)
    assert names["BATCH"] == trial.batch


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
