"""`python -m recipes`: the order of components, and the options that reach a recipe."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import recipes.components
from recipes import COMPONENTS, SCENES_ONLY
from recipes.__main__ import ALL, main, ordered_components


def test_components_are_ordered() -> None:
    assert ordered_components(["eagle", "tokenizer", "eagle"], with_data=False) == [
        "tokenizer",
        "eagle",
    ]
    assert ordered_components([ALL], with_data=False) == list(COMPONENTS)
    assert ordered_components([ALL], with_data=True) == [
        name for name in COMPONENTS if name not in SCENES_ONLY
    ]
    assert ordered_components([ALL, "clip"], with_data=True)[-1] == "clip"


def test_options_reach_the_recipe(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    calls: list[tuple[Any, ...]] = []

    def fake_train_component(component: str, out: Path, data: Path | None, **options: Any) -> Path:
        calls.append((component, out, data, options))
        return out / f"{component}.safetensors"

    monkeypatch.setattr(recipes.components, "train_component", fake_train_component)
    words = (
        "--out",
        str(tmp_path),
        "--data",
        "photos",
        "--seed",
        "3",
        "--steps",
        "7",
        "--device",
        "cpu",
        "--resume",
        "--recipe-of",
        "medusa",
    )
    main(["eagle", "target", *words])
    options = {"seed": 3, "device": "cpu", "steps": 7, "resume": True, "recipe_of": "medusa"}
    assert calls == [
        (component, tmp_path, Path("photos"), options) for component in ("target", "eagle")
    ]
    assert f"eagle: {tmp_path / 'eagle.safetensors'}" in capsys.readouterr().out


def test_an_unknown_component_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["tokeniser"])
    assert "invalid choice: 'tokeniser'" in capsys.readouterr().err


def test_mistakes_end_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["tokenizer", "--out", str(tmp_path / "out"), "--data", str(tmp_path / "none")])
    assert ended.value.code == 1
    assert capsys.readouterr().err == f"error: {tmp_path / 'none'}: no such folder of images\n"
