"""The reference: the right images, read as they should be, and never another extractor's
features.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pytest
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor

from workers.data.records import float_lists, write_shard
from workers.data.reference import (
    Extractor,
    Reference,
    build_reference,
    check_reference,
    read_reference,
    real_images,
    reference_facts,
    write_reference,
)
from workers.data.storage import Storage
from workers.metrics.features import load_features
from workers.scenes.images import render, sample_attributes


class Means:
    """An extractor of 12 features: the mean colours of the four quarters."""

    name, width = "means", 12

    def __init__(self, identity: str = "means@1") -> None:
        self.identity = identity

    def extract(self, images: Tensor) -> Tensor:
        return F.adaptive_avg_pool2d(images, 2).flatten(1)


def random_reference(identity: str = "means@1") -> Reference:
    """Features of 30 images by one extractor."""
    return Reference(
        (torch.randn(30, 12),),
        {"identity": identity, "source": "y@2", "resize": "none", "count": 30},
    )


def pictures(folder: Path, count: int = 20, size: int = 16) -> Path:
    """Noise in two subfolders, names in another order than their making."""
    for number in range(count):
        pixels = torch.randint(
            0, 256, (size, size + 4, 3), generator=torch.Generator().manual_seed(number)
        )
        path = folder / ("a" if number % 2 else "b/c") / f"{(7 * number) % count:02d}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels.byte().numpy()).save(path)
    (folder / "notes.txt").write_text("no image")
    return folder


def test_scenes_are_the_same_whatever_the_batch() -> None:
    net = load_features()
    made = build_reference("scenes", [net], size=48, count=300, seed=2)
    indices = range(300)
    expected = net.extract(render(sample_attributes(2, indices), 2, indices))
    torch.testing.assert_close(made.features[0], expected, rtol=1e-4, atol=1e-4)
    assert made.facts == {
        "identity": net.identity,
        "source": "scenes (seed 2)",
        "resize": "none",
        "count": 300,
    }
    assert reference_facts("scenes", [net], size=48, count=300, seed=2) == made.facts


def test_a_folder_is_read_with_its_subfolders(tmp_path: Path) -> None:
    folder, progress = pictures(tmp_path / "photos"), list[tuple[int, int]]()
    made = build_reference(
        folder, [Means()], size=8, on_progress=lambda done, total: progress.append((done, total))
    )
    assert made.facts["count"] == 20
    assert progress == [(20, 20)]
    assert made.facts["resize"] == "centre square, Pillow Lanczos to 8 x 8"
    assert made.facts["source"].startswith("photos@")
    assert reference_facts(folder, [Means()], size=8) == made.facts
    with Image.open(folder / "a" / "01.png") as picture:
        square = picture.crop((2, 0, 18, 16)).resize((8, 8), Image.Resampling.LANCZOS)
    pixels = torch.tensor(list(square.tobytes())).reshape(8, 8, 3).permute(2, 0, 1)[None] / 255
    first = Means().extract(pixels)[0]
    assert (made.features[0] - first).abs().amax(1).min() < 1e-6


def test_a_reference_says_that_transparent_pixels_are_white(tmp_path: Path) -> None:
    folder = pictures(tmp_path / "photos")
    Image.new("RGBA", (16, 16), (9, 9, 9, 0)).save(folder / "a" / "99.png")
    facts = reference_facts(folder, [Means()], size=8)
    assert facts["resize"] == "on white, centre square, Pillow Lanczos to 8 x 8"
    assert next(real_images(folder, size=8).batches()).amax() == 1


def test_images_of_the_right_size_are_left_alone(tmp_path: Path) -> None:
    picture = Image.effect_noise((16, 16), 80).convert("RGB")
    picture.save(tmp_path / "a.png")
    loaded = next(real_images(tmp_path, size=16).batches())
    assert (loaded[0] * 255).permute(1, 2, 0).round().byte().numpy().tobytes() == picture.tobytes()


def test_the_source_is_told_by_its_images(tmp_path: Path) -> None:
    folder = pictures(tmp_path / "photos")
    source = real_images(folder, size=8).describe()
    shutil.copytree(folder, tmp_path / "elsewhere" / "photos")
    assert real_images(tmp_path / "elsewhere" / "photos", size=8).describe() == source
    some = real_images(folder, size=8, count=5, seed=1)
    assert some.count == 5
    assert some.describe() == real_images(folder, size=8, count=5, seed=1).describe()
    assert (
        len({source, some.describe(), real_images(folder, size=8, count=5, seed=2).describe()}) == 3
    )
    assert real_images(folder, size=8, count=500).describe() == source, "at most so many"
    Image.new("RGB", (8, 8)).save(folder / "a" / "01.png")
    assert real_images(folder, size=8).describe() != source


@pytest.mark.parametrize("place", ["local", "mock:///sweeps/a"])
def test_what_is_written_comes_back(place: str, tmp_path: Path) -> None:
    storage = Storage(tmp_path if place == "local" else place)
    made = random_reference("x@1")
    write_reference(storage, "reference.parquet", made)
    read = read_reference(storage, extractors=[Means("x@1")])
    assert torch.equal(read.features[0], made.features[0])
    assert read.facts == made.facts
    assert read_reference(storage, "reference.parquet", count=20).features[0].shape == (20, 12)


def test_a_file_serves_as_a_source(tmp_path: Path) -> None:
    made = random_reference()
    path = tmp_path / "mine.parquet"
    write_reference(Storage(tmp_path), path.name, made)
    assert torch.equal(
        build_reference(path, [Means()], size=8, count=4096).features[0], made.features[0]
    )
    assert build_reference(str(path), [Means()], size=8, count=20).facts == {
        **made.facts,
        "count": 20,
    }
    assert reference_facts(path, [Means()], size=8, count=20) == {**made.facts, "count": 20}
    assert pd.read_parquet(path)["features"][3].tolist() == made.features[0][3].tolist()


class Corners:
    """A second extractor: the colours of two corners."""

    name, width = "corners", 6

    def __init__(self, identity: str = "corners@1") -> None:
        self.identity = identity

    def extract(self, images: Tensor) -> Tensor:
        return torch.cat([images[:, :, 0, 0], images[:, :, -1, -1]], dim=1)


def test_one_file_holds_the_same_images_by_several_extractors(tmp_path: Path) -> None:
    folder = pictures(tmp_path / "photos")
    both: list[Extractor] = [Means(), Corners()]
    made = build_reference(folder, both, size=8)
    alone = build_reference(folder, [Corners()], size=8)
    assert torch.equal(made.features[0], build_reference(folder, [Means()], size=8).features[0])
    assert torch.equal(made.features[1], alone.features[0])
    assert made.facts["also"] == {"corners": "corners@1"}
    assert reference_facts(folder, both, size=8) == made.facts
    write_reference(Storage(tmp_path), "both.parquet", made)
    assert (
        pd.read_parquet(tmp_path / "both.parquet")["features.corners"][3].tolist()
        == made.features[1][3].tolist()
    )
    read = build_reference(tmp_path / "both.parquet", both, size=8, count=15)
    assert torch.equal(read.features[1], alone.features[0][:15])
    assert read.facts == {**made.facts, "count": 15}
    assert "also" not in read_reference(tmp_path / "both.parquet", extractors=[Means()]).facts
    write_reference(Storage(tmp_path), "one.parquet", random_reference())
    with pytest.raises(ValueError, match=r"no corners.*corners@1"):
        read_reference(tmp_path / "one.parquet", extractors=both)
    with pytest.raises(ValueError, match=r"corners@1.*corners@2"):
        read_reference(tmp_path / "both.parquet", extractors=[Means(), Corners("corners@2")])


def test_images_of_all_modes_become_rgb(tmp_path: Path) -> None:
    """Grey and palette pictures of the same colours, and opaque ones with alpha, are the same
    image.
    """
    colours = Image.effect_noise((12, 12), 60)
    grey = Image.merge("RGB", [colours] * 3)
    opaque = grey.copy()
    opaque.putalpha(255)
    palette = grey.quantize(256)
    for name, picture in (("L", colours), ("P", palette), ("RGB", grey), ("RGBA", opaque)):
        assert picture.mode == name
        picture.save(tmp_path / f"{name}.png")
    images = next(real_images(tmp_path, size=12).batches())
    assert images.shape == (4, 3, 12, 12)
    for image in images:
        assert torch.equal(image, images[0])
    assert images.std() > 0.1


def test_pixels_of_16_bits_are_refused(tmp_path: Path) -> None:
    """Pillow would cut them off at 255 and leave white."""
    Image.new("I;16", (8, 8), 30000).save(tmp_path / "deep.png")
    with pytest.raises(
        ValueError, match=r"deep\.png: its pixels have more than 8 bits \(mode I;16\); save it"
    ):
        next(real_images(tmp_path, size=8).batches())
    for number in range(13):
        Image.new("RGB", (8, 8)).save(tmp_path / f"{number}.png")
    with pytest.raises(ValueError, match=r"deep\.png: its pixels have more than 8 bits"):
        check_reference(tmp_path, [Means()], size=8)


def test_another_extractor_is_refused(tmp_path: Path) -> None:
    storage = Storage(tmp_path)
    write_reference(storage, "reference.parquet", random_reference("inception@1"))
    with pytest.raises(ValueError, match=r"inception@1.*means@1.*specfrontier reference"):
        build_reference(tmp_path / "reference.parquet", [Means()], size=8)
    with pytest.raises(ValueError, match="means@1"):
        reference_facts(tmp_path / "reference.parquet", [Means()], size=8)


def test_a_file_that_lacks_a_second_extractor_is_refused_before_anything_is_drawn(
    tmp_path: Path,
) -> None:
    write_reference(Storage(tmp_path), "r.parquet", random_reference())
    check_reference(tmp_path / "r.parquet", [Means()], size=8)
    with pytest.raises(ValueError, match=r"no corners.*corners@3.*specfrontier reference"):
        check_reference(tmp_path / "r.parquet", [Means(), Corners("corners@3")], size=8)


def test_files_that_are_no_reference_are_refused(tmp_path: Path) -> None:
    storage = Storage(tmp_path)
    made = random_reference("x@1")
    write_reference(storage, "reference.parquet", made)
    whole = storage.read("reference.parquet")
    storage.write("cut.parquet", whole[:-100])
    with pytest.raises(
        ValueError, match=r"cut\.parquet: damaged .*specfrontier reference DIR --out FILE"
    ):
        read_reference(tmp_path / "cut.parquet")
    with pytest.raises(ValueError, match=r"none\.parquet: no such file; create it again"):
        read_reference(tmp_path / "none.parquet")
    table = pa.table({"features": float_lists(made.features[0])})
    write_shard(storage, "shard.parquet", table, {"kind": "quality"})
    with pytest.raises(ValueError, match="not a reference file but of kind 'quality'"):
        read_reference(tmp_path / "shard.parquet")
    write_shard(storage, "short.parquet", table, {"kind": "reference", **made.facts, "count": 40})
    with pytest.raises(ValueError, match=r"30 images.*40"):
        read_reference(tmp_path / "short.parquet")


def test_what_cannot_be_a_reference(tmp_path: Path) -> None:
    folder = pictures(tmp_path / "photos")
    few = build_reference(folder, [Means()], size=8, count=4)  # fewer than features: enough for kid
    assert few.features[0].shape == (4, 12)
    for check in (build_reference, check_reference):
        with pytest.raises(ValueError, match=r"photos.*: too few images \(3\); use at least 4"):
            check(folder, [Means()], size=8, count=3)
    with pytest.raises(ValueError, match="no such folder"):
        build_reference(tmp_path / "nothing", [Means()], size=8)
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match=r"no images.*\.png"):
        build_reference(tmp_path / "empty", [Means()], size=8)
    (folder / "a" / "99.png").write_bytes(b"no image")
    with pytest.raises(ValueError, match=r"99\.png: not a readable image"):
        build_reference(folder, [Means()], size=8)
    for wrong, message in (
        ({"count": None}, "set count"),
        ({"count": 0}, "at least 1"),
        ({"count": 9, "size": 64}, "scenes are 48 pixels wide"),
    ):
        with pytest.raises(ValueError, match=message):
            build_reference("scenes", [Means()], **({"size": 48} | wrong))


def test_features_that_are_not_finite_are_refused() -> None:
    class Broken(Means):
        def extract(self, images: Tensor) -> Tensor:
            return super().extract(images) / 0

    with pytest.raises(ValueError, match="means@1 gave features that are not finite"):
        build_reference("scenes", [Broken()], size=48, count=20)
