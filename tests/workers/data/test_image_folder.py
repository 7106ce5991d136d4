"""Image files of a user: which files of a folder are images, and how they become tensors."""

from __future__ import annotations

import os
import random
import struct
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from PIL import Image, PngImagePlugin

from tests.fakes.png_files import broken_chunk_type, chunk, noise, without_pixels
from workers.data.image_folder import (
    ENDINGS,
    any_transparent,
    check_images,
    find_images,
    load_images,
)

RED, BLUE = (220, 30, 30), (30, 30, 220)


def picture(path: Path, colour: tuple[int, int, int] = RED) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (12, 12), colour).save(path)
    return path


def names(folder: Path) -> list[str]:
    return list(find_images(folder).images)


def test_images_are_centre_squares(tmp_path: Path) -> None:
    wide = Image.new("RGB", (40, 10), BLUE)
    wide.paste(RED, (15, 0, 25, 10))
    wide.save(tmp_path / "wide.png")
    images = load_images([tmp_path / "wide.png"], 8)
    assert images.shape == (1, 3, 8, 8)
    assert images.dtype == torch.uint8
    assert images[0, :, 4, 4].tolist() == list(RED)
    assert images[0, :, 0, 0].tolist() == list(RED)


def hidden_colours(mode: str, path: Path) -> None:
    """An image with a transparent, a half transparent and an opaque third, whose transparent pixels
    have a colour.
    """
    image = Image.new("RGBA", (12, 12), (*RED, 0))
    image.paste((*RED, 128), (4, 0, 8, 12))
    image.paste((*RED, 255), (8, 0, 12, 12))
    if mode == "P":
        image = Image.new("P", (12, 12), 0)
        image.putpalette([*BLUE, *RED])
        image.paste(1, (8, 0, 12, 12))
        image.info["transparency"] = 0
    elif mode == "LA":
        image = image.convert("LA")
    image.save(path)


@pytest.mark.parametrize("mode", ["RGBA", "LA", "P"])
def test_transparent_pixels_are_blended_with_white(mode: str, tmp_path: Path) -> None:
    path, opaque = tmp_path / "a.png", tmp_path / "b.png"
    hidden_colours(mode, path)
    (pixels,) = load_images([path], 12)
    colour = torch.tensor(RED if mode != "LA" else [86] * 3)
    assert pixels[:, 0, 1].tolist() == [255] * 3
    if mode != "P":
        half = (255 * (255 - 128) + colour * 128) / 255
        assert (pixels[:, 0, 6] - half).abs().max() <= 1
    assert (pixels[:, 0, 10] - colour).abs().max() <= 1
    Image.new("RGBA", (12, 12), (*RED, 255)).save(opaque)
    assert load_images([opaque], 12)[0, :, 3, 3].tolist() == list(RED)
    photo, broken = tmp_path / "c.jpg", tmp_path / "d.png"
    picture(photo)
    broken.write_text("x")
    assert not any_transparent([photo, broken, picture(tmp_path / "e.png")])
    assert any_transparent([photo, broken, path])


def test_images_are_found_at_any_depth_and_all_other_files_are_counted(tmp_path: Path) -> None:
    for name in ("b.PNG", "a/1.jpg", "a/deep/2.Jpeg", "c d/3.webp"):
        picture(tmp_path / name)
    for name in ("1.tif", "a/2.TIF", "notes", "a/1.json"):
        (tmp_path / name).write_text("x")
    os.mkfifo(tmp_path / "pipe.png")
    found = find_images(tmp_path)
    assert list(found.images) == ["a/1.jpg", "a/deep/2.Jpeg", "b.PNG", "c d/3.webp"]
    assert all(path == tmp_path / name for name, path in found.images.items())
    assert found.left_out().startswith("2 .tif, ")
    assert set(found.left_out().split(", ")) == {
        "2 .tif",
        "1 .json",
        "1 without an ending",
        "1 not a regular file",
    }
    assert "json" not in found.left_out(["a/1.json"])


def test_copies_that_tools_leave_are_no_images(tmp_path: Path) -> None:
    """Jupyter's checkpoints and macOS's archives have a second file for each image."""
    root = tmp_path / ".data"  # hidden itself, but named by its owner
    for name in (
        "1.png",
        ".ipynb_checkpoints/1-checkpoint.png",
        "__MACOSX/._1.png",
        "._1.png",
        "a/.hidden/2.png",
    ):
        picture(root / name)
    assert names(root) == ["1.png"]


def test_links_are_followed(tmp_path: Path) -> None:
    pool, photos = tmp_path / "pool", tmp_path / "photos"
    for number in range(3):
        picture(pool / "deep" / f"{number}.png")
    photos.mkdir()
    (photos / "all").symlink_to(pool)
    (photos / "one.png").symlink_to(pool / "deep" / "1.png")
    assert names(photos) == ["all/deep/0.png", "all/deep/1.png", "all/deep/2.png", "one.png"]
    (tmp_path / "alias").symlink_to(photos)
    assert names(tmp_path / "alias") == names(photos)


def test_no_folder_is_read_twice(tmp_path: Path) -> None:
    """A folder keeps its own name, whatever the links to it are called; a loop ends."""
    picture(tmp_path / "photos" / "cats" / "1.png")
    (tmp_path / "photos" / "a").symlink_to("cats")
    (tmp_path / "photos" / "cats" / "up").symlink_to("..")
    (tmp_path / "photos" / "itself").symlink_to(tmp_path / "photos")
    found = find_images(tmp_path / "photos")
    assert list(found.images) == ["cats/1.png"]
    assert found.left_out() == "3 linked twice"
    picture(tmp_path / "pool" / "2.png")
    for name in ("c", "b"):
        (tmp_path / "photos" / name).symlink_to(tmp_path / "pool")
    assert names(tmp_path / "photos") == ["b/2.png", "cats/1.png"]


@pytest.mark.parametrize("name", ["9.png", "more", "9.tif"])
def test_dangling_links_are_refused_by_name(name: str, tmp_path: Path) -> None:
    picture(tmp_path / "1.png")
    (tmp_path / name).symlink_to(tmp_path / "gone")
    (tmp_path / "a.png").symlink_to("a.png")
    with pytest.raises(
        ValueError, match=r"a link to .*, which does not exist; .* \(1 more path is wrong\)"
    ) as raised:
        find_images(tmp_path)
    assert {str(tmp_path / name), str(tmp_path / "a.png")} & set(str(raised.value).split(": "))


def test_a_folder_that_cannot_be_read_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    picture(tmp_path / "photos" / "1.png")
    picture(tmp_path / "photos" / "closed" / "2.png")
    scandir = os.scandir

    def without_permission(path: Path) -> object:
        if path.name == "closed":
            raise PermissionError(13, "Permission denied")
        return scandir(path)

    monkeypatch.setattr(os, "scandir", without_permission)
    with pytest.raises(ValueError, match=r"closed: cannot be read \(Permission denied\)"):
        find_images(tmp_path / "photos")


def test_a_folder_without_images_says_what_it_has(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no such folder"):
        find_images(tmp_path / "none")
    (tmp_path / "x.zip").write_text("x")
    with pytest.raises(ValueError, match=r"x\.zip: a file, not a folder"):
        find_images(tmp_path / "x.zip")
    with pytest.raises(ValueError, match=rf"no images \({', '.join(ENDINGS)}\).*; it has 1 \.zip"):
        find_images(tmp_path).check()


def no_image(path: Path) -> None:
    path.write_text("not an image")


def wrong_checksum(path: Path) -> None:
    data = bytearray(noise(path))
    data[len(data) // 2] ^= 0xFF
    path.write_bytes(data)


def cut_off(path: Path) -> None:
    path.write_bytes(noise(path)[:-2000])


def huge(path: Path) -> None:
    """A decompression bomb by its header."""
    without_pixels(path, 30_000)


def cut_off_jpeg(path: Path) -> None:
    Image.frombytes("RGB", (150, 150), random.Random(0).randbytes(3 * 150 * 150)).save(path, "JPEG")
    path.write_bytes(path.read_bytes()[:-3000])


def a_folder_of_that_name(path: Path) -> None:
    path.mkdir()


BROKEN = (
    no_image,
    broken_chunk_type,
    wrong_checksum,
    cut_off,
    huge,
    cut_off_jpeg,
    a_folder_of_that_name,
)


@pytest.mark.parametrize("spoil", BROKEN)
def test_an_image_that_cannot_be_read_is_named(
    spoil: Callable[[Path], None], tmp_path: Path
) -> None:
    good, broken = picture(tmp_path / "good.png"), tmp_path / "broken.png"
    spoil(broken)
    for read in (lambda: load_images([good, broken], 8), lambda: check_images([good, broken])):
        with pytest.raises(
            ValueError, match=r"broken\.png: not a readable image \(.+\); correct or remove it$"
        ):
            read()


@pytest.mark.parametrize(
    "error", [SyntaxError(), EOFError(), struct.error("x"), KeyError("x"), MemoryError()]
)
def test_every_error_of_pillow_names_the_file(
    error: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = picture(tmp_path / "a.png")

    def fail(self: Image.Image) -> None:
        raise error

    monkeypatch.setattr(PngImagePlugin.PngImageFile, "load", fail)
    with pytest.raises(ValueError, match=r"a\.png: not a readable image \(.+\)"):
        load_images([path], 8)


def test_all_broken_images_are_counted(tmp_path: Path) -> None:
    paths = [tmp_path / f"{number}.png" for number in range(40)]
    for number, path in enumerate(paths):
        (no_image if number % 8 == 3 else picture)(path)
    with pytest.raises(ValueError, match=r"/3\.png: .*\(4 more images are wrong\)"):
        check_images(paths)
    check_images(paths[:3])


def test_texts_and_profiles_of_any_size_do_not_matter(tmp_path: Path) -> None:
    """Pillow refuses compressed texts and colour profiles above a megabyte, and texts above 64."""
    plain, large = picture(tmp_path / "plain.png", BLUE), tmp_path / "large.png"
    data, text = plain.read_bytes(), zlib.compress(b"x" * 3_000_000)
    pixels, end = data.index(b"IDAT") - 4, data.index(b"IEND") - 4
    before = chunk(b"zTXt", b"k\0\0" + text) + chunk(b"iCCP", b"p\0\0" + text)
    after = chunk(b"iTXt", b"k\0\1\0\0\0" + text)
    large.write_bytes(data[:pixels] + before + data[pixels:end] + after + data[end:])
    assert torch.equal(load_images([large], 12), load_images([plain], 12))
    check_images([large])


def test_the_limit_of_pixels_is_pillows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = picture(tmp_path / "a.png")
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 71)  # 144 pixels are more than twice as many
    with pytest.raises(ValueError, match=r"a\.png: not a readable image \(Image size"):
        check_images([path])
    with pytest.raises(ValueError, match=r"a\.png: not a readable image \(Image size"):
        load_images([path], 8)


def test_names_that_are_not_utf8_are_refused(tmp_path: Path) -> None:
    picture(tmp_path / "1.png").rename(os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9.png"))
    with pytest.raises(
        ValueError, match=r"'[^']*/caf\\udce9\.png': not UTF-8; rename it"
    ) as raised:
        find_images(tmp_path)
    str(raised.value).encode()
    picture(tmp_path / "folder" / "1.png")
    (tmp_path / "folder").rename(os.fsdecode(os.fsencode(tmp_path) + b"/\xff"))
    with pytest.raises(ValueError, match=r"not UTF-8; rename it \(1 more path is wrong\)"):
        find_images(tmp_path)
    with pytest.raises(ValueError, match=r"/\\udcff': not UTF-8"):
        find_images(tmp_path / "\udcff")
    (tmp_path / "link").symlink_to(tmp_path / "\udcff")
    with pytest.raises(ValueError, match=r"/\\udcff': not UTF-8"):
        find_images(tmp_path / "link")


def test_the_name_of_a_file_that_is_left_out_does_not_matter(tmp_path: Path) -> None:
    picture(tmp_path / "1.png")
    Path(os.fsdecode(os.fsencode(tmp_path) + b"/a.caf\xe9")).write_text("x")
    found = find_images(tmp_path)
    (tmp_path / "a.\x1b[2J").write_text("x")
    found = find_images(tmp_path)
    assert found.left_out().isprintable()
    assert set(found.left_out().split(", ")) == {r"1 '.caf\udce9'", r"1 '.\x1b[2j'"}
    for number in range(50):
        (tmp_path / f"scan.{number:02}").write_text("x")
    assert find_images(tmp_path).left_out().endswith(", 46 others")
