"""A sweep's real images by all of its extractors: made once, read back by role, and never those of another sweep."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from torch import Tensor

from workers.data.storage import Storage
from workers.metrics.extractors import Extractors
from workers.metrics.metric import MANIFOLD
from workers.metrics.sweep_reference import SweepReference


class Quarter:
    """The mean colours of one quarter of an image; it asks for images of 12 pixels."""

    side, width = 12, 3

    def __init__(self, name: str, corner: int, version: int = 1) -> None:
        self.name, self.identity, self.corner = name, f"{name}@{version}", corner

    def extract(self, images: Tensor, batch: int = 0) -> Tensor:
        assert images.shape[2:] == (12, 12)
        quarters = images.view(len(images), 3, 2, 6, 2, 6).mean((3, 5)).flatten(2)
        return quarters[:, :, self.corner]


FIRST, SECOND = Quarter("first", 0), Quarter("second", 3)


@pytest.fixture
def section(tmp_path: Path) -> dict[str, Any]:
    folder = tmp_path / "photos"
    folder.mkdir()
    for number in range(6):
        pixels = torch.randint(0, 256, (20, 24, 3), generator=torch.Generator().manual_seed(number))
        Image.fromarray(pixels.byte().numpy()).save(folder / f"{number}.png")
    return {"source": str(folder)}


def made(store: Path, section: dict[str, Any] | None, first: Quarter | None, second: Quarter | None) -> SweepReference:
    return SweepReference(Storage(store), section, Extractors(first, second, {}, {}), image_size=512)


def test_every_role_reads_the_same_images(section: dict[str, Any], tmp_path: Path) -> None:
    both = made(tmp_path / "a", section, FIRST, SECOND)
    assert both.facts is not None
    assert both.facts["extractor"] == "first@1"
    assert both.facts["also"] == {"second": "second@1"}
    assert both.facts["identity"].endswith("6 images, by first@1")
    assert both.prepare() is True
    assert both.prepare() is False
    alone = {}
    for name, net in (("b", FIRST), ("c", SECOND)):
        only = made(tmp_path / name, section, net, None)
        only.prepare()
        assert set(only.load()) == {"features"}
        alone[name] = only.load()["features"].features
    again = made(tmp_path / "a", section, FIRST, SECOND).load()
    assert set(again) == {"features", MANIFOLD}
    assert torch.equal(again["features"].features, alone["b"])
    assert torch.equal(again[MANIFOLD].features, alone["c"])
    assert not torch.equal(alone["b"], alone["c"])


def test_other_nets_and_images_are_refused(section: dict[str, Any], tmp_path: Path) -> None:
    made(tmp_path / "a", section, FIRST, None).prepare()
    with pytest.raises(ValueError, match="holds features of first@1, but images are read by first@2"):
        made(tmp_path / "a", section, Quarter("first", 0, version=2), None).load()
    with pytest.raises(ValueError, match="holds features of no second, but images are read by second@1 as well"):
        made(tmp_path / "a", section, FIRST, SECOND).load()
    with pytest.raises(ValueError, match=r"made of 6 images of photos@\w+, but the sweep names 5"):
        made(tmp_path / "a", section | {"count": 5}, FIRST, None).load()


def test_without_a_section_or_features_there_is_none(section: dict[str, Any], tmp_path: Path) -> None:
    assert made(tmp_path, None, FIRST, None).facts is None
    assert made(tmp_path, section, None, None).facts is None


def test_scenes_are_for_targets_that_draw_scenes(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="scenes are 48 pixels wide, the model's images 512; give a folder"):
        made(tmp_path, {"source": "scenes", "count": 9}, FIRST, None)
