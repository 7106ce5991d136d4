"""A user's captioned images: every layout is read, and mistakes are reported."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.fakes.picture_folders import (
    COLOURS,
    as_img2dataset,
    in_classes,
    picture,
    with_csv,
    with_jsonl,
    with_lines,
    with_texts,
)
from workers.data.captioned_images import read_folder
from workers.data.captions import read_captions


@pytest.mark.parametrize("write", [with_texts, with_lines, with_csv, with_jsonl])
def test_captioned_layouts(tmp_path: Path, write: Callable[[Path], None]) -> None:
    write(tmp_path)
    folder = read_folder(tmp_path)
    assert [path.name for path in folder.paths] == ["0.png", "1.png", "2.png"]
    assert folder.captions == tuple(f"a {colour} wall" for colour in COLOURS)


@pytest.mark.parametrize(
    "character", ["\n", "\r\n", "\r", "\x0b", "\x0c", "\x1c", "\x85", "\u2028"], ids=ascii
)
def test_captions_are_those_that_a_sweep_reads(tmp_path: Path, character: str) -> None:
    """In every layout a caption is one line: breaks within it are spaces."""
    caption, name = f'a "red"{character}wall, old', "0.png"
    contents = {
        "captions.jsonl": json.dumps({"file": name, "caption": caption}, ensure_ascii=False),
        "captions.csv": f'file,caption\r\n{name},"{caption.replace(chr(34), 2 * chr(34))}"\r\n',
        "0.txt": caption,
    } | ({} if character in "\r\n" else {"captions.txt": f"{name}\t{caption}\n"})
    for file, content in contents.items():
        folder = tmp_path / file
        picture(folder / name, "red")
        (folder / file).write_bytes(content.encode())
        assert read_folder(folder).captions == ('a "red" wall, old',), file


def test_class_folders(tmp_path: Path) -> None:
    in_classes(tmp_path, each=2)
    folder = read_folder(tmp_path)
    assert folder.captions == ("blue", "blue", "green", "green", "red", "red")


def test_texts_beside_images_in_folders_are_their_captions(tmp_path: Path) -> None:
    as_img2dataset(tmp_path)
    folder = read_folder(tmp_path)
    assert [path.name for path in folder.paths] == [
        "000000000.JPG",
        "000000002.JPG",
        "000010001.JPG",
    ]
    assert folder.captions == ("a red wall", "a green wall", "a blue wall")
    assert folder.left_out == "5 .json"


def test_images_of_deeper_folders_have_the_class_of_the_upper_one(tmp_path: Path) -> None:
    in_classes(tmp_path, each=1)
    picture(tmp_path / "blue" / "more" / "deep" / "7.png", "blue")
    picture(tmp_path / "blue" / ".ipynb_checkpoints" / "0-checkpoint.png", "blue")
    folder = read_folder(tmp_path)
    assert folder.captions == ("blue", "blue", "green", "red")
    assert folder.left_out == ""


@pytest.mark.parametrize("name", ["b/0.png", "./b/../b/0.png"])
def test_listed_images_are_in_any_folder(name: str, tmp_path: Path) -> None:
    picture(tmp_path / "a.png", "red")
    picture(tmp_path / "b" / "0.png", "blue")
    picture(tmp_path / "b" / "1.tif", "blue")
    (tmp_path / "notes.doc").write_text("x")
    (tmp_path / "captions.csv").write_text(f"file,caption\na.png,a\n{name},b\nb/1.tif,c\n")
    folder = read_folder(tmp_path)
    assert sorted(folder.captions) == ["a", "b", "c"]
    assert folder.left_out == "1 .doc"


def test_listed_images_may_have_absolute_paths_or_those_through_links(tmp_path: Path) -> None:
    picture(tmp_path / "a.png", "red")
    picture(tmp_path / "b" / "0.png", "blue")
    (tmp_path / "link").symlink_to("b")
    (tmp_path / "captions.csv").write_text(f"file,caption\n{tmp_path / 'a.png'},a\nlink/0.png,b\n")
    assert sorted(read_folder(tmp_path).captions) == ["a", "b"]
    # another file of the folder, which has no caption
    (tmp_path / "b" / "1.png").symlink_to("0.png")
    with pytest.raises(ValueError, match=r"b/1\.png: no caption in captions\.csv"):
        read_folder(tmp_path)


def no_folder(folder: Path) -> None:
    folder.rmdir()


def nothing(folder: Path) -> None: ...


def one_without_caption(folder: Path) -> None:
    with_texts(folder)
    (folder / "1.txt").unlink()


def caption_of_nothing(folder: Path) -> None:
    with_lines(folder)
    (folder / "2.png").unlink()


def without_tab(folder: Path) -> None:
    (folder / "captions.txt").write_text("0.png a wall")


def without_header(folder: Path) -> None:
    (folder / "captions.csv").write_text("0.png,a wall")


def broken_json(folder: Path) -> None:
    (folder / "captions.jsonl").write_text('{"file": "0.png"}')


def empty_caption(folder: Path) -> None:
    with_csv(folder)
    (folder / "captions.csv").write_text("file,caption\n0.png, ")


def unquoted_comma(folder: Path) -> None:
    with_csv(folder)
    (folder / "captions.csv").write_text("file,caption\n0.png,a wall, red\n")


def open_quote(folder: Path) -> None:
    with_csv(folder)
    (folder / "captions.csv").write_text('file,caption\n0.png,"a wall\n')


def not_text(folder: Path) -> None:
    (folder / "captions.txt").write_bytes(b"\xff\xfe\x00x")


def several_without_caption(folder: Path) -> None:
    with_texts(folder)
    for name in ("0.txt", "1.txt"):
        (folder / name).unlink()


def not_listed(folder: Path) -> None:
    with_csv(folder)
    for name in ("3.png", "more/4.png"):
        picture(folder / name, "red")


def class_image_at_the_top(folder: Path) -> None:
    in_classes(folder)
    picture(folder / "cover.png", "red")


def text_of_some_in_folders(folder: Path) -> None:
    as_img2dataset(folder)
    (folder / "00000" / "000000002.TXT").unlink()


def folders_beside_captioned_images(folder: Path) -> None:
    with_texts(folder)
    picture(folder / "more" / "1.png", "red")


def captions_of_a_subfolder(folder: Path) -> None:
    for half in ("held_out", "train"):
        with_jsonl(folder / half)


def captions_of_another_library(folder: Path) -> None:
    picture(folder / "train" / "0.png", "red")
    line = json.dumps({"file_name": "train/0.png", "text": "a red wall"})
    (folder / "metadata.jsonl").write_text(line)


def dangling_link(folder: Path) -> None:
    with_texts(folder)
    (folder / "3.png").symlink_to("gone.png")


def several_wrong_lines(folder: Path) -> None:
    with_csv(folder)
    (folder / "captions.csv").write_text("file,caption\n0.png,a wall\nx.png,a\n1.png, \ny.png,b\n")


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (no_folder, "no such folder"),
        (nothing, "no images"),
        (one_without_caption, "1.png: no caption"),
        (caption_of_nothing, "'2.png' is not a file"),
        (without_tab, "line 1: not of the form file name, tab, caption"),
        (without_header, "columns file and caption"),
        (broken_json, "line 1: not of the form"),
        (empty_caption, "line 2: blank caption"),
        (unquoted_comma, "line 2: 3 fields under 2 columns"),
        (open_quote, r"captions\.csv, line 2: "),
        (not_text, "not UTF-8"),
        (several_without_caption, r"0.png: no caption; .* \(1 more image is wrong\)"),
        (not_listed, r"/3.png: no caption in captions.csv; .* \(1 more image is wrong\)"),
        (class_image_at_the_top, "cover.png: no caption; write it into cover.txt"),
        (text_of_some_in_folders, "000000002.JPG: no caption; write it into 000000002.txt"),
        (folders_beside_captioned_images, "more/1.png: no caption; write it into 1.txt"),
        (captions_of_a_subfolder, r"held_out/captions\.jsonl: captions that are not read here"),
        (captions_of_another_library, r"metadata\.jsonl: captions that are not read here"),
        (dangling_link, "3.png: a link to gone.png, which does not exist"),
        (
            several_wrong_lines,
            r"captions.csv, line 3: 'x.png' is not a file .* \(2 more lines are wrong\)",
        ),
    ],
)
def test_mistakes_are_told(tmp_path: Path, spoil: Callable[[Path], None], message: str) -> None:
    folder = tmp_path / "images"
    folder.mkdir()
    spoil(folder)
    with pytest.raises(ValueError, match=message):
        read_folder(folder)


@pytest.mark.parametrize("write", [with_jsonl, in_classes])
def test_a_folder_is_a_source_of_captions(tmp_path: Path, write: Callable[[Path], None]) -> None:
    """A caption's id is its image's position in the order of names."""
    write(tmp_path)
    images = read_folder(tmp_path)
    found = read_captions(tmp_path, seed=3)
    assert sorted((c.id, c.text) for c in found) == list(enumerate(images.captions))
    assert {c.location for c in found} == set(map(str, images.paths))
    assert images.are_classes == (write is in_classes)
    with pytest.raises(ValueError, match=rf"it has {len(images)} captions \(one per image\)"):
        read_captions(tmp_path, count=99)
    with pytest.raises(ValueError, match="a folder has no columns"):
        read_captions(tmp_path, column="caption")
