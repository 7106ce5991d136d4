"""Drawing with a setting from Python."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from search_spaces.presets import PRESETS
from specfrontier import ConfigError, ImageEngine, Sweep, load_engine
from tests.fakes.synthetic_sweeps import write_sweep

CAPTIONS = ["a large red circle", "a small blue star"]


@pytest.fixture(scope="module")
def engine() -> ImageEngine:
    return load_engine("speculative", device="cpu", batch=2, seed=3)


def test_images_come_in_order_and_are_those_of_the_command(
    engine: ImageEngine, tmp_path: Path
) -> None:
    from PIL import Image

    from tests.fakes.command_line import specfrontier

    drawn = engine.draw(CAPTIONS, samples=2)
    assert [(image.caption, image.sample) for image in drawn] == [
        (text, n) for text in CAPTIONS for n in range(2)
    ]
    assert "independent" in repr(engine)
    assert len(repr(engine)) < 120
    assert drawn[0]._repr_png_() is not None
    options = (
        "--preset",
        "speculative",
        "--seed",
        "3",
        "--samples",
        "2",
        "--out",
        str(tmp_path),
        "--device",
        "cpu",
    )
    assert specfrontier("generate", *CAPTIONS, *options).code == 0
    files = sorted(path for path in tmp_path.glob("0*.png"))
    for path, image in zip(files, drawn, strict=True):
        written = Image.open(path).resize(image.image.size, Image.Resampling.NEAREST)
        assert written.tobytes() == image.image.tobytes()


def test_every_form_of_a_setting(engine: ImageEngine, tmp_path: Path) -> None:
    write_sweep(tmp_path / "sweep", trials=4)
    trial = Sweep.open(tmp_path / "sweep").trial(1)
    saved = trial.save(tmp_path / "setting.yaml")
    for setting in (trial, trial.config, trial.config.to_mapping(), saved, str(saved)):
        assert load_engine(setting, device="cpu").config == trial.config
    assert f", {trial.title}, cpu)" in repr(load_engine(trial, device="cpu"))
    assert engine.config == PRESETS["speculative"].with_sampling(engine.decoder.target.sampling)


def test_invalid_settings_are_refused() -> None:
    with pytest.raises(ConfigError, match="lantern"):
        load_engine("lantren", device="cpu")
    with pytest.raises(FileNotFoundError, match=r"missing\.yaml: .*Trial\.save"):
        load_engine("missing.yaml", device="cpu")
    with pytest.raises(ValueError, match="unknown"):
        load_engine("vanilla", device="cpu").draw("a dragon")


def test_idle_threads_sleep_as_those_of_the_commands_do(monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads that spin made an image take 25 times as long on a busy machine. Torch reads the
    variables once.
    """
    for name in ("OMP_NUM_THREADS", "OMP_WAIT_POLICY", "GOMP_SPINCOUNT"):
        monkeypatch.delenv(name, raising=False)
    code = "from specfrontier import load_engine; import os; print(os.environ['OMP_WAIT_POLICY'])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "PASSIVE\n"
    late = subprocess.run(
        [sys.executable, "-c", f"import torch; {code}"], capture_output=True, text=True
    )
    assert "KeyError" in late.stderr, "the variables of a process that has torch are left alone"
