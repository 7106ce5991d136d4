"""A user's own images: all components train on twelve tiny images, and mistakes are reported."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

import recipes.components as recipes
from recipes.components import train_component
from recipes.evaluate import held_out_figures
from tests.fakes.picture_folders import as_img2dataset, in_classes, picture, with_texts
from workers.data.captioned_images import read_folder
from workers.loading.models_yaml import load_folder


def test_the_number_of_images_is_logged(tmp_path: Path) -> None:
    as_img2dataset(tmp_path)
    lines: list[str] = []
    assert recipes._read_folder(tmp_path, lines.append) == read_folder(tmp_path)
    assert lines == [f"{tmp_path}: 3 images; left out: 5 .json"]


def test_the_names_of_folders_that_are_captions_are_logged(tmp_path: Path) -> None:
    """All images below one folder would have its name."""
    for number in range(2):
        picture(tmp_path / "img" / "64" / f"{number}.png", "red")
    lines: list[str] = []
    recipes._read_folder(tmp_path, lines.append)
    for name in "edcab":
        picture(tmp_path / name / "0.png", "red")
    recipes._read_folder(tmp_path, lines.append)
    ends = ["2 images; classes: img", "7 images; classes: a, b, c, d and 2 more"]
    assert lines == [f"{tmp_path}: {end}" for end in ends]


def quiet(_: str) -> None: ...


@pytest.mark.slow
@pytest.mark.parametrize("write", [in_classes, with_texts])
def test_every_component_trains_on_a_users_folder(
    tmp_path: Path, write: Callable[[Path], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A model of classes refuses others; one of texts reads words that it has not seen."""
    small = {
        component: tuple(replace(phase, batch=2, bf16=False) for phase in phases)
        for component, phases in recipes._RECIPES.items()
    }
    monkeypatch.setattr(recipes, "_RECIPES", small)
    monkeypatch.setattr(recipes, "TARGET", replace(recipes.TARGET, n_layers=1))
    monkeypatch.setattr(recipes, "INDEPENDENT", replace(recipes.INDEPENDENT, n_layers=1))
    data, out = tmp_path / "images", tmp_path / "model"
    data.mkdir()
    write(data)
    for component in (
        "tokenizer",
        "target",
        "eagle",
        "eagle3",
        "medusa",
        "independent",
        "vertical",
    ):
        path = train_component(component, out, data, steps=2, device="cpu", log=quiet)
        assert path == out / f"{component}.safetensors"
        assert path.exists()
    models = load_folder(out)
    drafters = {"eagle", "eagle3", "medusa", "independent", "vertical"}
    assert set(models.drafters) == drafters
    assert models.target.name == "model"
    assert models.target.encode(["Blue!"] * 3, guided=True).embeds.shape[0] == 6
    if write is in_classes:
        with pytest.raises(ValueError, match="'purple"):
            models.target.encode(["purple"], guided=False)
    else:
        models.target.encode(["a purple wall, far away in the mountains"], guided=False)
    assert set(held_out_figures(out, 2, data_folder=data)) == {"target", *drafters}
    with pytest.raises(ValueError, match="give --data"):
        held_out_figures(out)


def test_components_are_refused_in_words(tmp_path: Path) -> None:
    with_texts(tmp_path)
    with pytest.raises(ValueError, match="unknown component 'engine'; known: tokenizer, target"):
        train_component("engine", tmp_path / "out")
    with pytest.raises(ValueError, match="run python -m recipes tokenizer first"):
        train_component("target", tmp_path / "out", tmp_path)
    with pytest.raises(ValueError, match="procedural scenes"):
        train_component("features", tmp_path / "out", tmp_path)
    with pytest.raises(ValueError, match="at least 1"):
        train_component("target", tmp_path / "out", steps=0)
