"""A sweep's real images: their features are computed once by all extractors, and those of another
sweep are refused.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from torch import Tensor

from workers.data.records import ShardError
from workers.data.reference import FILE
from workers.data.storage import Storage
from workers.metrics.definition import FEATURES, MANIFOLD
from workers.metrics.extractors import Extractors
from workers.metrics.networks import Extractor
from workers.metrics.sweep_reference import SweepReference


class QuarterColours(Extractor):
    """The mean colours of one quarter of an image; images are resized to 12 pixels."""

    side, width = 12, 3

    def __init__(self, name: str, corner: int, version: int = 1) -> None:
        super().__init__()
        self.name, self.identity, self.corner = name, f"{name}@{version}", corner

    def extract(self, images: Tensor) -> Tensor:
        assert images.shape[2:] == (12, 12)
        quarters = images.view(len(images), 3, 2, 6, 2, 6).mean((3, 5)).flatten(2)
        return quarters[:, :, self.corner]


FIRST, SECOND = QuarterColours("first", 0), QuarterColours("second", 3)


@pytest.fixture
def section(tmp_path: Path) -> dict[str, Any]:
    folder = tmp_path / "photos"
    folder.mkdir()
    for number in range(6):
        pixels = torch.randint(0, 256, (20, 24, 3), generator=torch.Generator().manual_seed(number))
        Image.fromarray(pixels.byte().numpy()).save(folder / f"{number}.png")
    return {"source": str(folder)}


def reference_of(
    store: Path, section: dict[str, Any] | None, *extractors: QuarterColours
) -> SweepReference:
    by_role = dict(zip((FEATURES, MANIFOLD), extractors, strict=False))
    return SweepReference(Storage(store), section, Extractors(by_role, {}, {}), image_size=512)


def test_extractors_of_both_roles_read_the_same_images(
    section: dict[str, Any], tmp_path: Path
) -> None:
    both = reference_of(tmp_path / "a", section, FIRST, SECOND)
    assert both.facts is not None
    assert both.facts["extractor"] == "first@1"
    assert both.facts["also"] == {"second": "second@1"}
    assert both.facts["identity"].endswith("6 images, by first@1")
    assert both.prepare() is True
    assert both.prepare() is False
    single = {}
    for name, extractor in (("b", FIRST), ("c", SECOND)):
        separate = reference_of(tmp_path / name, section, extractor)
        separate.prepare()
        assert set(separate.load()) == {"features"}
        single[name] = separate.load()["features"].features
    again = reference_of(tmp_path / "a", section, FIRST, SECOND).load()
    assert set(again) == {"features", MANIFOLD}
    assert torch.equal(again["features"].features, single["b"])
    assert torch.equal(again[MANIFOLD].features, single["c"])
    assert not torch.equal(single["b"], single["c"])


def test_other_extractors_and_images_are_refused(section: dict[str, Any], tmp_path: Path) -> None:
    reference_of(tmp_path / "a", section, FIRST).prepare()
    with pytest.raises(ValueError, match=r"first@1.*first@2"):
        reference_of(tmp_path / "a", section, QuarterColours("first", 0, version=2)).load()
    with pytest.raises(ValueError, match=r"no second.*second@1"):
        reference_of(tmp_path / "a", section, FIRST, SECOND).load()
    with pytest.raises(ValueError, match=r"6 images of photos@\w+, but the sweep has 5"):
        reference_of(tmp_path / "a", section | {"count": 5}, FIRST).load()


def test_a_reference_that_was_deleted_is_unusable_and_can_be_made_again(
    section: dict[str, Any], tmp_path: Path
) -> None:
    reference_of(tmp_path, section, FIRST).prepare()
    (tmp_path / FILE).unlink()
    other = reference_of(tmp_path, section, FIRST)
    with pytest.raises(ShardError) as caught:
        other.load()
    assert caught.value.reasons == {FILE: f"{tmp_path / FILE}: missing"}
    assert other.prepare() is True


def test_no_reference_without_a_section_or_extractor(
    section: dict[str, Any], tmp_path: Path
) -> None:
    assert reference_of(tmp_path, None, FIRST).facts is None
    assert reference_of(tmp_path, section).facts is None


def test_scenes_need_images_of_their_size(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"48 pixels.*512.*folder"):
        reference_of(tmp_path, {"source": "scenes", "count": 9}, FIRST)
