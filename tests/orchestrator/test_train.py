"""`specfrontier train`: order of pieces, what is passed on, how it ends. The training itself has its own tests."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

import workers.training.recipes as recipes
from orchestrator.cli import main
from orchestrator.commands.train import ALL, PIECES, SCENES_ONLY, in_order
from workers.models.weights import WeightsError


def train(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["specfrontier", "train", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    assert isinstance(ended.value.code, int)
    return ended.value.code


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
    ],
)
def test_wrong_usage(
    arguments: tuple[str, ...], part: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert train(monkeypatch, *arguments) == 2
    assert part in capsys.readouterr().err
