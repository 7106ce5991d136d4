"""Which networks read a sweep's images: the user's instead of the built-in ones, and only those
that are needed.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from workers.metrics.definition import CLASSIFIER, FEATURES, MANIFOLD
from workers.metrics.extractors import Extractors, check_keys, load_extractors, unavailable_metrics
from workers.metrics.networks import EXTRACTORS, SCORERS, Extractor, register_extractor
from workers.metrics.registry import weight_keys
from workers.models.checkpoint_files import WeightsError, content_hash
from workers.models.families.scenes import BUILTIN
from workers.scenes.captions import caption
from workers.scenes.images import render, sample_attributes

ROWS = sample_attributes(1, range(4))
CAPTIONS = [caption(row) for row in ROWS.tolist()]
CPU = torch.device("cpu")


class MeanColours(Extractor):
    """Mean colours as features."""

    side, width = 16, 3

    def __init__(self) -> None:
        super().__init__()
        self.scale = torch.nn.Parameter(torch.ones(()), requires_grad=False)

    def forward(self, images: Tensor) -> Tensor:
        return images.mean((2, 3)) * self.scale


class ColourClasses(MeanColours):
    """As MeanColours, with classes."""

    def class_logits(self, features: Tensor) -> Tensor:
        return features.double()


@pytest.fixture
def user_weights(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> dict[str, str]:
    """Registers an extractor of each role; their weights, by key."""
    monkeypatch.setattr(EXTRACTORS, "_entries", {**EXTRACTORS.all()})
    (tmp_path / "weights.pth").write_bytes(b"weights")

    def load_colours(path: Path) -> MeanColours:
        return ColourClasses()

    def load_corners(path: Path) -> MeanColours:
        return MeanColours()

    register_extractor("colours", role="features", architecture="rgb", load=load_colours)
    register_extractor("corners", role="manifold", architecture="rgb", load=load_corners)
    return dict.fromkeys(("colours", "corners"), str(tmp_path / "weights.pth"))


def load(
    weights: dict[str, str] | None = None, *, size: int = 48, captions: list[str] = CAPTIONS
) -> Extractors:
    return Extractors.load(BUILTIN, image_size=size, captions=captions, device=CPU, weights=weights)


def test_without_weights_the_built_in_networks_are_used() -> None:
    extractors = load()
    assert extractors.identities == load({}).identities
    assert set(extractors.identities) == {"features", "clip_score", "caption_accuracy"}
    assert extractors.columns == {"features": "scenes"}
    scores = {"score.clip_score", "score.caption_accuracy"}
    assert extractors.available(reference=False) >= {"features", CLASSIFIER, *scores}
    assert set(extractors.unavailable) == {"score.hpsv2", "score.image_reward", "score.aesthetic"}
    shape = load_extractors(BUILTIN, None, torch.device("meta"))["features"]
    assert shape.identity == extractors.identities["features"], "also without reading the weights"
    assert (shape.name, shape.width, shape.image_size) == ("scenes", 64, 48)
    assert next(shape.parameters()).is_meta


def test_scores_that_no_metric_needs_are_not_loaded() -> None:
    def loaded(*metrics: str) -> set[str]:
        extractors = Extractors.load(
            BUILTIN, image_size=48, captions=CAPTIONS, device=CPU, metrics=metrics
        )
        for name in {"clip_score", "caption_accuracy"} - set(extractors.scorers):
            assert extractors.unavailable[f"score.{name}"] == "no requested metric needs it"
        return set(extractors.scorers)

    assert loaded("fid", "step_compression") == set()
    assert loaded("caption_accuracy", "fid") == {"caption_accuracy"}
    assert loaded("clip_score") == {"clip_score"}


def test_the_users_extractors_replace_the_built_in_one(user_weights: dict[str, str]) -> None:
    extractors, images = load(user_weights), render(ROWS, 1, range(4))
    identity = f"rgb@{content_hash(user_weights['colours'])}"
    assert {extractors.identities[role] for role in (FEATURES, MANIFOLD)} == {identity}
    assert extractors.columns == {"features": "colours", MANIFOLD: "corners"}
    assert extractors.available(reference=True) >= {
        "features",
        CLASSIFIER,
        "reference",
        "score.caption_accuracy",
    }
    result = extractors.score(images, CAPTIONS)
    assert set(result.features) == {"colours", "corners"}
    assert torch.equal(result.features["colours"], images.mean((2, 3)))
    expected = load().score(images, CAPTIONS).scores["caption_accuracy"]
    assert torch.equal(result.scores["caption_accuracy"], expected), (
        "caption accuracy still uses the scenes' extractor"
    )
    shapes = load_extractors(BUILTIN, user_weights, torch.device("meta"))
    assert {role: (shape.name, shape.identity) for role, shape in shapes.items()} == {
        role: (key, identity) for role, key in extractors.columns.items()
    }
    with pytest.raises(ValueError, match="one caption per image"):
        extractors.score(images, CAPTIONS[:2])


def test_images_of_other_sizes_need_the_users_extractors(user_weights: dict[str, str]) -> None:
    without = load(size=256, captions=["a dog"])
    assert "48 pixels, not 256" in without.unavailable["features"]
    assert not {"features", CLASSIFIER} & without.available(reference=False)
    assert without.classifier is None
    given = load({"colours": user_weights["colours"]}, size=256, captions=["a dog"])
    assert "features" not in given.unavailable
    assert {"features", CLASSIFIER} <= given.available(reference=False)
    assert {"score.clip_score", "score.caption_accuracy"} <= given.unavailable.keys()
    with pytest.raises(WeightsError, match=r"metrics\.corners.*metrics\.inception"):
        load({"corners": user_weights["corners"]}, size=256, captions=["a dog"])
    assert load({"corners": user_weights["corners"]}).columns == {
        "features": "scenes",
        MANIFOLD: "corners",
    }


def test_extractors_of_two_sizes_are_refused(user_weights: dict[str, str]) -> None:
    """Real images have one size. That of the images themselves suits all extractors."""

    class Wide(MeanColours):
        side = 256

    register_extractor("wide", role="wide", architecture="rgb", load=lambda path: Wide())
    weights = {"colours": user_weights["colours"], "wide": user_weights["colours"]}
    with pytest.raises(
        WeightsError, match=r"metrics\.wide: .* of 256 .* to 16 for metrics\.colours"
    ):
        load(weights, size=512, captions=["a dog"])
    assert set(load(weights, size=16, captions=["a dog"]).by_role) == {"features", "wide"}
    assert set(load({"wide": weights["wide"]}).by_role) == {"features", "wide"}


def test_unavailable_metrics_have_reasons() -> None:
    def reasons(*names: str, size: int = 48, reference: bool = True) -> dict[str, str]:
        return unavailable_metrics(
            names, BUILTIN, image_size=size, captions=CAPTIONS, weights=None, reference=reference
        )

    assert reasons("fid", "caption_accuracy", "speedup", "inception_score") == {}
    assert "metrics.hpsv2" in reasons("hpsv2")["hpsv2"]
    assert "no reference images" in reasons("fid", "drift", reference=False)["fid"]
    assert "metrics.inception" in reasons("drift", size=256)["drift"]
    assert "metrics.inception" in reasons("fid", size=256)["fid"]


def test_keys_are_checked() -> None:
    keys = {
        "inception",
        "inception_tf",
        "vgg",
        "clip",
        "clip_l14",
        "hpsv2",
        "image_reward",
        "aesthetic",
        "dinov2",
        "efficientnet",
        "clip_l336",
    }
    assert keys == set(weight_keys())
    assert set(weight_keys(["fid", "aesthetic"])) == keys - {"clip", "hpsv2", "image_reward"}
    with pytest.raises(WeightsError, match=r"metrics: .*did you mean 'inception'"):
        load({"inceptoin": "a.pth"})
    with pytest.raises(WeightsError, match="inception and inception_tf"):
        check_keys({"inception": "a.pth", "inception_tf": "a.pth"})


@pytest.mark.parametrize(
    "key",
    ["dinov2", "inception", "inception_tf", "vgg", "clip", "hpsv2", "image_reward", "aesthetic"],
)
def test_missing_and_empty_files_are_refused_by_name(key: str, tmp_path: Path) -> None:
    with pytest.raises(WeightsError, match=r"nowhere|metrics\.aesthetic"):
        load({key: str(tmp_path / "nowhere")})
    (tmp_path / "empty.pth").touch()
    with pytest.raises(WeightsError, match=rf"{tmp_path}|metrics\.aesthetic"):
        load({key: str(tmp_path / "empty.pth")})


@pytest.mark.parametrize("name", ["hpsv2", "image_reward", "aesthetic"])
def test_scores_name_the_weights_that_they_need(name: str) -> None:
    assert f"metrics.{name} (" in load().unavailable[f"score.{name}"]
    assert SCORERS.all()[name].weight_keys[0] == name


def test_a_score_with_a_part_of_its_weights_is_refused() -> None:
    with pytest.raises(WeightsError, match=r"metrics\.aesthetic.*set metrics\.clip_l14 too"):
        load({"aesthetic": "head.pth"})
    assert "score.aesthetic" in load({"clip_l14": "folder"}).unavailable
