"""Which nets a sweep reads its images by: the user's before the built-in ones, and nothing replaced in silence."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

import workers.metrics.extractors as extractors_module
from workers.loading import models_yaml
from workers.metrics.extractor import ExtractorFactory, ExtractorInfo
from workers.metrics.extractors import Extractors, check_keys, feature_info, manifold_infos
from workers.metrics.features import announce_features, load_features
from workers.metrics.metric import MANIFOLD, NET
from workers.metrics.registry import extractors, scorers
from workers.models.checkpoint_files import WeightsError
from workers.models.families.scenes import BUILTIN
from workers.scenes.captions import caption
from workers.scenes.images import render, sample_attributes

ROWS = sample_attributes(1, range(4))
CAPTIONS = [caption(row) for row in ROWS.tolist()]
CPU = torch.device("cpu")


class Means:
    """Mean colours, as an extractor of any role."""

    side, width = 16, 3

    def __init__(self, name: str, classes: bool) -> None:
        self.name, self.identity = name, f"{name}@1"
        if classes:
            self.class_logits = lambda features: features.double()

    def extract(self, images: Tensor, batch: int = 0) -> Tensor:
        return images.mean((2, 3))

    def to(self, device: torch.device) -> Means:
        return self


@pytest.fixture
def two(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """An extractor of each role beside the real ones, and the weights that ask for them."""
    more = {
        "colours": ExtractorFactory(
            "colours", "features", lambda path: ExtractorInfo("colours@1", 3, None), lambda path: Means("colours", True)
        ),
        "corners": ExtractorFactory(
            "corners",
            "manifold",
            lambda path: ExtractorInfo("corners@1", 3, None),
            lambda path: Means("corners", False),
        ),
    }
    every = {**extractors(), **more}
    monkeypatch.setattr(extractors_module, "extractors", lambda: every)
    return {"colours": "colours.pth", "corners": "corners.pth"}


def load(weights: dict[str, str] | None = None, *, size: int = 48, captions: list[str] = CAPTIONS) -> Extractors:
    return Extractors.load(BUILTIN, image_size=size, captions=captions, device=CPU, weights=weights)


def test_without_weights_the_built_in_nets_serve() -> None:
    found = load()
    assert found.identities == load({}).identities
    assert set(found.identities) == {"features", "clip_score", "caption_accuracy"}
    assert found.stored == {"features": "scenes"}
    assert found.columns == {"features", NET, "score.clip_score", "score.caption_accuracy"}
    assert set(found.absent) == {"score.hpsv2", "score.image_reward", "score.aesthetic"}
    assert all("no weights are given for it: metrics." in reason for reason in found.absent.values())
    assert feature_info(BUILTIN).identity == found.identities["features"]
    assert feature_info(BUILTIN).takes == 48


def test_nets_that_nobody_asks_for_are_not_loaded() -> None:
    def asked(*metrics: str) -> set[str]:
        found = Extractors.load(BUILTIN, image_size=48, captions=CAPTIONS, device=CPU, metrics=metrics)
        for name in {"clip_score", "caption_accuracy"} - set(found.scores):
            assert found.absent[f"score.{name}"] == "no metric that is asked for needs it"
        return set(found.scores)

    assert asked("fid", "step_compression") == set()
    assert asked("caption_accuracy", "fid") == {"caption_accuracy"}
    assert asked("clip_score") == {"clip_score"}


def test_the_users_nets_go_before_them(two: dict[str, str]) -> None:
    found, images = load(two), render(ROWS, 1, range(4))
    assert found.identities["features"] == "colours@1"
    assert found.identities[MANIFOLD] == "corners@1"
    assert found.stored == {"features": "colours", MANIFOLD: "corners"}
    assert found.columns >= {"features", NET, "score.caption_accuracy"}
    read = found.read(images, CAPTIONS)
    assert set(read.features) == {"colours", "corners"}
    assert torch.equal(read.features["colours"], images.mean((2, 3)))
    expected = load().read(images, CAPTIONS).scores["caption_accuracy"]
    assert torch.equal(read.scores["caption_accuracy"], expected), "the scenes' net still reads what it is for"
    assert feature_info(BUILTIN, two) == ExtractorInfo("colours@1", 3, None)


def test_what_serves_beside_the_features_is_announced(two: dict[str, str]) -> None:
    assert manifold_infos(two) == {"corners": "corners@1"}
    assert manifold_infos({}) == {}


def test_images_of_other_sizes_have_features_only_by_the_users_nets(two: dict[str, str]) -> None:
    alone = load(size=256, captions=["a dog"])
    assert alone.absent["features"] == "the feature net takes images of 48 pixels, not 256"
    assert alone.columns == set()
    assert alone.reader is None
    given = load({"colours": two["colours"]}, size=256, captions=["a dog"])
    assert "features" not in given.absent
    assert given.columns == {"features", NET}
    assert {"score.clip_score", "score.caption_accuracy"} <= given.absent.keys()
    with pytest.raises(WeightsError, match="beside other features"):
        load({"corners": two["corners"]}, size=256, captions=["a dog"])
    assert load({"corners": two["corners"]}).stored == {"features": "scenes", MANIFOLD: "corners"}


def test_keys_are_checked() -> None:
    known = {"inception", "inception_tf", "vgg", "clip", "clip_l14", "hpsv2", "image_reward", "aesthetic"}
    assert known == {*extractors(), *(key for scorer in scorers().values() for key in scorer.takes)}
    assert known == set(models_yaml.METRICS), "what an entry of models.yaml may name"
    with pytest.raises(WeightsError, match=r"metrics: .*did you mean 'inception'"):
        load({"inceptoin": "a.pth"})
    with pytest.raises(WeightsError, match="inception and inception_tf are two answers to one question"):
        check_keys({"inception": "a.pth", "inception_tf": "a.pth"})


@pytest.mark.parametrize("key", ["inception", "inception_tf", "vgg", "clip", "hpsv2", "image_reward", "aesthetic"])
def test_absent_files_are_refused_by_name(key: str, tmp_path: Path) -> None:
    with pytest.raises(WeightsError, match=r"nowhere|metrics\.aesthetic"):
        load({key: str(tmp_path / "nowhere")})
    (tmp_path / "empty.pth").touch()
    with pytest.raises(WeightsError, match=rf"{tmp_path}|metrics\.aesthetic"):
        load({key: str(tmp_path / "empty.pth")})


def test_the_built_in_net_is_announced_as_it_loads() -> None:
    net = load_features()
    assert announce_features(extractors_module.scene_features_path(Path("none"))) == ExtractorInfo(
        net.identity, net.width, net.side
    )
