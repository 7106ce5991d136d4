"""`specfrontier train`: order of pieces, what is passed on, how it ends. The training itself has its own tests."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import workers.training.recipes as recipes
from orchestrator.cli.app import main
from orchestrator.cli.train import ALL, PIECES, SCENES_ONLY, in_order
from orchestrator.run import training
from orchestrator.run.tasks import PoolError
from orchestrator.run.training import Place, Tracking
from search_spaces.trial import DecodingConfig
from tests.fakes.tiny_llamagen import write_models
from workers.decoding.engine import Engine
from workers.decoding.state import Request
from workers.loading.manifest import load_entry, read_entry
from workers.models.weights import WeightsError
from workers.training.eagle import DrafterJob, EagleRecipe


def train(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["specfrontier", "train", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    assert isinstance(ended.value.code, int)
    return ended.value.code


def test_a_drafter_for_a_target_gets_everything_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    calls: list[tuple[DrafterJob, Place, Tracking, bool]] = []

    def instead(job: DrafterJob, place: Place, tracking: Tracking, *, resume: bool, tell: Any) -> Path:
        calls.append((job, place, tracking, resume))
        return job.out / "eagle.safetensors"

    monkeypatch.setattr(training, "train_drafter", instead)
    (tmp_path / "c.txt").write_text("red ring\nblue star\nred star\n")
    said = f"--captions {tmp_path}/c.txt --out {tmp_path}/out --count 2 --batch 8 --rate 0.01 --steps 9 --save-every 3"
    more = "--seed 4 --workers 2 --address auto --tracking-uri sqlite:///x.db --resume"
    assert train(monkeypatch, "eagle", *said.split(), *more.split()) == 0
    ((job, place, tracking, resume),) = calls
    assert job.recipe == EagleRecipe(batch=8, rate=0.01, steps=9, save_every=3, seed=4)
    assert (job.weights, len(job.captions), job.out) == ("builtin", 2, tmp_path / "out")
    assert place == Place(device="cpu", workers=2, address="auto")
    assert (tracking, resume) == (Tracking(uri="sqlite:///x.db"), True)
    assert f"eagle: {tmp_path / 'out' / 'eagle.safetensors'}" in capsys.readouterr().out
    assert train(monkeypatch, "eagle", *said.split(), "--no-mlflow") == 0
    assert (calls[1][2].wanted, calls[1][3]) == (False, False)


def test_a_drafter_for_an_entry_of_models_yaml_serves_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From the official layout to a drafter, which the entry then names, and drafts with."""
    manifest = write_models(tmp_path / "made")
    (tmp_path / "c.txt").write_text("0\n7\n999\n12\n")
    said = (
        f"--captions {tmp_path}/c.txt --models {manifest}#classes --out {tmp_path}/out --batch 2 --steps 2 --no-mlflow"
    )
    assert train(monkeypatch, "eagle", *said.split(), "--device", "cpu") == 0
    entry = read_entry(manifest, "classes")
    trained = replace(entry, drafters={"eagle": str(tmp_path / "out" / "eagle.safetensors")})
    models = load_entry(trained, torch.device("cpu"))
    engine = Engine(
        models.target,
        DecodingConfig.from_mapping({"drafter": "eagle", "tree": {"policy": "chain", "length": 3}}),
        models.drafters["eagle"],
        batch_size=2,
    )
    results = list(engine.run([Request(0, "7"), Request(1, "999")]))
    assert all(len(result.tokens) == models.target.grid.tokens for result in results)
    shipped = load_entry(entry, torch.device("cpu")).drafters["eagle"]
    assert not all(map(torch.equal, models.drafters["eagle"].parameters(), shipped.parameters()))


@pytest.mark.parametrize(
    ("raised", "code", "part"),
    [
        (ValueError("begun with another rate"), 2, "begun with another rate"),
        (PoolError("no Ray cluster"), 1, "no Ray cluster"),
        (KeyboardInterrupt(), 130, "go on with the same command and --resume"),
    ],
)
def test_how_a_drafters_training_ends(
    raised: BaseException, code: int, part: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def instead(*arguments: Any, **options: Any) -> Path:
        raise raised

    monkeypatch.setattr(training, "train_drafter", instead)
    assert train(monkeypatch, "eagle", "--captions", "scenes", "--count", "4") == code
    assert part in capsys.readouterr().err


def test_the_pieces_are_those_of_the_recipes() -> None:
    assert tuple(recipes.PIECES) == PIECES
    assert set(SCENES_ONLY) < set(PIECES)


def test_pieces_are_put_in_order() -> None:
    assert in_order(["eagle", "tokenizer", "eagle"], with_data=False) == ["tokenizer", "eagle"]
    assert in_order([ALL], with_data=False) == list(PIECES)
    assert in_order([ALL], with_data=True) == [piece for piece in PIECES if piece not in SCENES_ONLY]
    assert in_order([ALL, "clip"], with_data=True)[-1] == "clip"


def test_everything_said_reaches_the_recipe(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    calls: list[tuple[Any, ...]] = []

    def recipe(piece: str, out: Path, data: Path | None, **options: Any) -> Path:
        options.pop("tell")(f"step 1 of {piece}")
        calls.append((piece, out, data, options))
        return out / f"{piece}.safetensors"

    monkeypatch.setattr(recipes, "train_piece", recipe)
    said = ("--out", str(tmp_path), "--data", "photos", "--seed", "3", "--steps", "7", "--device", "cpu", "--resume")
    assert train(monkeypatch, "eagle", "target", *said) == 0
    options = {"seed": 3, "device": "cpu", "steps": 7, "resume": True}
    assert calls == [(piece, tmp_path, Path("photos"), options) for piece in ("target", "eagle")]
    assert f"eagle: {tmp_path / 'eagle.safetensors'}" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("raised", "code", "part"),
    [
        (ValueError("photos: no images"), 2, "photos: no images"),
        (WeightsError("target.safetensors: truncated"), 1, "truncated"),
        (KeyboardInterrupt(), 130, "specfrontier train target eagle --out 'a b' --seed 0 --resume"),
    ],
)
def test_endings(
    raised: BaseException,
    code: int,
    part: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def recipe(*arguments: Any, **options: Any) -> Path:
        raise raised

    monkeypatch.setattr(recipes, "train_piece", recipe)
    assert train(monkeypatch, "eagle", "target", "--out", "a b") == code
    error = capsys.readouterr().err
    assert part in error
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (("tokeniser",), "unknown piece 'tokeniser'"),
        ((), "Missing argument"),
        (("target", "--steps", "0"), "--steps"),
        (("target", "--device", "gpu"), "--device gpu"),
        (("target", "--captions", "c.txt"), "--captions trains a drafter for a target: say `train eagle`"),
        (("eagle", "--captions", "c.txt", "--data", "photos"), "without --data"),
        (("eagle", "--batch", "64"), "--batch goes with --captions"),
        (("eagle", "--no-mlflow"), "--no-mlflow goes with --captions"),
        (("eagle", "--captions", "c.txt", "--workers", "2", "--device", "cpu"), "--device is for one process"),
        (("eagle", "--captions", "scenes", "--weights", "w", "--models", "m.yaml"), "--weights and --models: give one"),
        (("eagle", "--captions", "scenes", "--count", "4", "--models", "nowhere.yaml"), "nowhere.yaml"),
        (("eagle", "--captions", "nowhere.txt"), "nowhere.txt: no such file"),
        (("eagle", "--captions", "scenes"), "scenes: say how many captions"),
        (("eagle", "--captions", "scenes", "--count", "4", "--batch", "3", "--workers", "2"), "batch of 3 cannot be"),
    ],
)
def test_wrong_usage(
    arguments: tuple[str, ...], part: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert train(monkeypatch, *arguments) == 2
    assert part in capsys.readouterr().err
