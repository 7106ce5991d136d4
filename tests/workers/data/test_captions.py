"""Captions: every format gives the same ones, subsets are stable, and a broken row is named."""

from __future__ import annotations

import csv
import gzip
import io
import json
import os
import random
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from workers.data.captions import (
    Caption,
    Choose,
    captions_hash,
    captions_in_order,
    captions_of_text,
    read_captions,
    scene_captions,
)
from workers.decoding.rng import image_keys
from workers.scenes.images import render, sample_attributes, sample_captions

# holds captions_val2017.json, PartiPrompts.tsv
PUBLISHED = Path(os.environ.get("SPECFRONTIER_CAPTIONS", "captions"))
TEXTS = ['a "quoted" cat, asleep', "two dogs", "ein Käfer im Gras", "四つの花"]


def write(folder: Path, name: str, content: str | bytes) -> Path:
    path = folder / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def quoted(text: str) -> str:
    return '"' + text.replace('"', '""') + '"'


def formats(folder: Path, texts: list[str] = TEXTS, column: str = "caption") -> list[Path]:
    """The same captions in every format that has one a row."""
    pq.write_table(pa.table({"n": range(len(texts)), column: texts}), folder / "a.parquet")
    return [
        write(folder, "a.txt", "".join(f"{text}\n" for text in texts)),
        write(folder, "windows.txt", "\ufeff" + "\r\n".join(texts)),
        write(
            folder,
            "a.csv",
            f"n,{column}\n" + "".join(f"{i},{quoted(t)}\n" for i, t in enumerate(texts)),
        ),
        write(
            folder,
            "a.TSV",
            f"{column}\tn\n" + "".join(f"{quoted(t)}\t{i}\n" for i, t in enumerate(texts)),
        ),
        write(
            folder,
            "a.jsonl",
            "".join(json.dumps({"n": i, column: t}) + "\n" for i, t in enumerate(texts)),
        ),
        folder / "a.parquet",
    ]


def coco(folder: Path, annotations: list[dict[str, Any]]) -> Path:
    return write(folder, "captions.json", json.dumps({"images": [], "annotations": annotations}))


ANNOTATIONS = [
    {"image_id": image, "id": 100 * image + view, "caption": f"view {view} of {image}\n"}
    for image in range(40)
    for view in range(5)
]


def test_every_format_gives_the_same_captions(tmp_path: Path) -> None:
    expected = {Caption(i, text) for i, text in enumerate(TEXTS)}
    for path in formats(tmp_path):
        assert set(read_captions(path)) == expected, path
        assert read_captions(path, seed=3) == read_captions(tmp_path / "a.txt", seed=3)


@pytest.mark.parametrize("column", ["caption", "text", "Prompt", "TEXT"])
def test_usual_columns_are_found(column: str, tmp_path: Path) -> None:
    for path in formats(tmp_path, column=column)[2:]:
        assert {caption.text for caption in read_captions(path)} == set(TEXTS)


def test_a_column_can_be_named(tmp_path: Path) -> None:
    path = write(tmp_path, "a.csv", "caption,long\nno,yes\n")
    assert read_captions(path, column="long") == [Caption(0, "yes")]
    assert read_captions(path) == [Caption(0, "no")]
    for path in formats(tmp_path)[2:]:
        with pytest.raises(
            ValueError, match=r"no column 'titel'; its columns are .*'caption'.*; name one"
        ) as raised:
            read_captions(path, column="titel")
        assert path.name in str(raised.value)


def test_quotation_marks_of_published_tabs_stay(tmp_path: Path) -> None:
    lines = ["Prompt\tn", '"Hi" on a sign\t1', 'a "b"\t2', '"a ""c"""\t3', '"d" and "e"\t4']
    captions = read_captions(write(tmp_path, "a.tsv", "\n".join(lines)))
    assert sorted(c.text for c in captions) == ['"Hi" on a sign', '"d" and "e"', 'a "b"', 'a "c"']


def test_subsets_are_stable_and_nested(tmp_path: Path) -> None:
    path = write(tmp_path, "a.txt", "".join(f"caption {i}\n" for i in range(1000)))
    some = read_captions(path, count=6, seed=1)
    assert [caption.id for caption in some] == [819, 989, 691, 932, 661, 509]
    assert all(caption.text == f"caption {caption.id}" for caption in some), (
        "the id stays that of the source"
    )
    assert read_captions(path, count=60, seed=1)[:6] == some
    assert read_captions(path, seed=1)[:6] == some
    assert read_captions(path, count=6, seed=2) != some
    spread = [caption.id for caption in read_captions(path, count=400, seed=5)]
    assert abs(sum(spread) / 400 - 499.5) < 45, "three standard errors of a mean of 400 draws"


def test_coco_gives_one_caption_an_image_whatever_the_order(tmp_path: Path) -> None:
    captions = read_captions(coco(tmp_path, ANNOTATIONS), seed=4)
    assert sorted(caption.id // 100 for caption in captions) == list(range(40))
    assert all(
        caption.text == f"view {caption.id % 100} of {caption.id // 100}" for caption in captions
    )
    assert len({caption.id % 100 for caption in captions}) == 5, "not always the same annotation"
    shuffled = random.Random(0).sample(ANNOTATIONS, len(ANNOTATIONS))
    assert read_captions(coco(tmp_path, shuffled), seed=4) == captions
    assert {c.id for c in read_captions(coco(tmp_path, ANNOTATIONS), seed=5)} != {
        c.id for c in captions
    }


def test_the_papers_choices_among_an_images_captions(tmp_path: Path) -> None:
    """By hand: image 1 has its longest caption second and first listed last; image 2 has two of
    equal length.
    """
    annotations = [
        {"image_id": 1, "id": 30, "caption": "a cat"},
        {"image_id": 2, "id": 12, "caption": "two dogs"},
        {"image_id": 1, "id": 20, "caption": "a cat on a mat"},
        {"image_id": 2, "id": 11, "caption": "big dogs   "},
        {"image_id": 1, "id": 10, "caption": "an old cat"},
    ]
    path = coco(tmp_path, annotations)

    def ids(**options: Any) -> set[int]:
        return {caption.id for caption in read_captions(path, **options)}

    assert ids(choose="longest") == {20, 11}
    assert ids(choose="first") == {30, 12}
    assert ids(choose="seeded") == ids()
    coco(tmp_path, annotations[::-1])
    assert ids(choose="longest") == {20, 11}, "whatever the order"
    assert ids(choose="first") == {10, 11}, "the file's order is what this choice is about"
    for seed in (0, 1):
        some = read_captions(path, count=1, seed=seed, choose="longest")
        assert some == read_captions(path, seed=seed, choose="longest")[:1]


def test_where_there_is_one_caption_a_row_nothing_is_chosen(tmp_path: Path) -> None:
    path = formats(tmp_path)[0]
    assert (
        read_captions(path, choose="longest")
        == read_captions(path, choose="first")
        == read_captions(path)
    )


def test_classes_are_their_numbers() -> None:
    captions = read_captions("classes", count=40, seed=3)
    assert all(caption.text == str(caption.id) and 0 <= caption.id < 1000 for caption in captions)
    assert captions == read_captions("classes", seed=3)[:40]
    assert len({caption.id for caption in read_captions("classes")}) == 1000
    with pytest.raises(
        ValueError,
        match=r"classes: count is 1001, but it has 1000 captions \(the classes of ImageNet\)",
    ):
        read_captions("classes", count=1001)


def test_captions_know_their_lines(tmp_path: Path) -> None:
    """As an editor counts them: the header and the line ends inside of a quoted caption count
    too.
    """
    path = write(tmp_path, "a.csv", 'caption\none\n"two\nlines"\nthree\n')
    places = {caption.text: caption.location for caption in read_captions(path)}
    assert places == {
        "one": f"{path}, line 2",
        "two lines": f"{path}, line 3",
        "three": f"{path}, line 5",
    }


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        (
            "a.txt",
            "one\n\ntwo\n \n\nthree\n",
            "line 2: blank caption; .* \\(2 more rows are wrong\\)",
        ),
        (
            "a.csv",
            "caption,n\n ,1\none,two,3\ntwo,4\n",
            "line 2: blank caption; .* \\(1 more row is wrong\\)",
        ),
        (
            "a.jsonl",
            '["one"]\n{"n": 2}\n{"caption": \n',
            r"line 1: not an object .* \(2 more rows are wrong\)",
        ),
        (
            "a.json",
            '{"annotations": [{"id": 1}, {"id": 2, "image_id": 2, "caption": ""}, 3]}',
            r"annotation 1: needs .* \(2 more annotations are wrong\)",
        ),
    ],
)
def test_all_broken_rows_are_counted(name: str, content: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=message):
        read_captions(write(tmp_path, name, content))


def test_a_caption_is_one_line(tmp_path: Path) -> None:
    path = write(tmp_path, "a.csv", 'caption\n"  a cat\non a mat "\n')
    assert read_captions(path) == [Caption(0, "a cat on a mat")]


# `str.splitlines` splits at them, an editor does not
BREAKS = "\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029"


@pytest.mark.parametrize("ending", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("character", BREAKS, ids=ascii)
def test_only_line_ends_end_a_row(character: str, ending: str, tmp_path: Path) -> None:
    """In every format, for a sweep as for `generate`; within a caption each break is a space."""
    texts = [f"a red{character}ball", "two", f"{character}three "]
    expected = [Caption(0, "a red ball"), Caption(1, "two"), Caption(2, "three")]
    for path in formats(tmp_path, texts):
        if path.suffix != ".parquet":
            path.write_bytes(
                path.read_bytes().replace(b"\r\n", b"\n").replace(b"\n", ending.encode())
            )
        assert captions_in_order(path) == expected, path
        assert sorted(read_captions(path), key=lambda caption: caption.id) == expected, path
    assert captions_of_text(ending.join(texts), "standard input") == expected


def test_scenes_are_those_that_the_model_holds_out() -> None:
    captions = scene_captions(20, 1)
    assert [caption.id for caption in captions] == list(range(20))
    assert [caption.text for caption in captions] == sample_captions(1, 20)
    assert read_captions("scenes", count=20, seed=1) == captions
    with pytest.raises(ValueError, match="set count"):
        read_captions("scenes")


def test_the_hash_sees_every_change() -> None:
    captions = [Caption(0, "a"), Caption(1, "b")]
    assert captions_hash(captions) == "ed2ad7c772b1dcb657af"
    others = [
        captions[:1],
        captions[::-1],
        [Caption(0, "a"), Caption(2, "b")],
        [Caption(0, "a"), Caption(1, "c")],
    ]
    assert len({captions_hash(each) for each in [captions, *others]}) == 5


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.txt", "one\n\ntwo\n", "line 2: blank caption; fill it in or remove the row"),
        ("a.txt", "", "no captions"),
        ("a.txt", "\n\n", "no captions"),
        ("a.txt", b"one\ntw\xff\n", "line 2: not UTF-8 text; save the file as UTF-8"),
        ("a.txt", "one".encode("utf-16"), "line 1: not UTF-8"),
        ("a.csv", "caption,n\none,1\n  ,2\n", "line 3: blank caption"),
        ("a.csv", "n,caption\n1,one\n2\n", "line 3: blank caption"),
        ("a.csv", "caption\none\n\ntwo\n", "line 3: blank caption"),
        (
            "a.csv",
            "caption,n\none, two,3\n",
            "line 2: 3 fields under 2 columns; put the caption in double quotes",
        ),
        (
            "a.csv",
            'caption\n"one" two\n',
            'line 2: a stray quotation mark .*; .* write " inside a quoted field as ""',
        ),
        ("a.csv", 'caption\n"one\n', "line 2: .*end of data"),
        (
            "a.tsv",
            "n\tcaption\n1\ttwo\tfields\n",
            "line 2: 3 fields under 2 columns; remove the tabs",
        ),
        ("a.csv", "caption\n", "no captions"),
        ("a.csv", "", "no column caption or text or prompt; its columns are none"),
        (
            "a.csv",
            "titel,n\none,1\n",
            "no column caption or text or prompt; its columns are 'titel', 'n'",
        ),
        ("a.csv", "caption,caption\none,1\n", "two columns"),
        ("a.jsonl", '{"caption": "one"}\n{"caption": \n', "line 2: broken JSON: .*truncated"),
        (
            "a.jsonl",
            '{"caption": "one"}\n{"caption": "two", "n": ' + 5000 * "1" + "}\n",
            "line 2: broken JSON: an integer of more than 4300 digits",
        ),
        ("a.jsonl", '{"caption": "one"}\n["two"]\n', "line 2: not an object"),
        (
            "a.jsonl",
            '{"caption": "one"}\n{"n": 2}\n',
            "line 2: no column caption or .*; its columns are 'n'",
        ),
        ("a.jsonl", '{"caption": "one"}\n\n{"caption": "two"}\n', "line 2: empty"),
        ("a.jsonl", '{"caption": 7}\n', "line 1: the caption is 7, not text"),
        ("a.jsonl", '{"caption": null}\n', "line 1: blank caption"),
        ("a.jsonl", '{"caption": "\\ud800"}\n', "line 1: invalid character"),
        ("a.json", '{"annotations": [\n{"id": 1,}', r"broken JSON: .*\(line 2, column 10\)"),
        ("a.json", '["one", "two"]', r"not COCO captions .*use \.txt"),
        ("a.json", "", "empty"),
        ("a.json", '{"annotations": []}', "no captions"),
        (
            "a.json",
            '{"annotations": [{"id": 1, "image_id": 2, "caption": " "}]}',
            r"annotation 1 \(id 1\): blank caption",
        ),
        (
            "a.json",
            '{"annotations": [{"id": 1, "image_id": 2}]}',
            r"annotation 1 \(id 1\): blank caption",
        ),
        (
            "a.json",
            '{"annotations": [{"id": "1", "image_id": 2, "caption": "x"}]}',
            "annotation 1: needs integers",
        ),
        ("a.json", '{"annotations": [{"id": 1, "caption": "x"}]}', "annotation 1: needs integers"),
        (
            "a.json",
            json.dumps({"annotations": [{"id": 1, "image_id": i, "caption": "x"} for i in (1, 2)]}),
            "annotation 2: id 1 occurs twice",
        ),
        ("a.parquet", b"PAR1nothing", "not a readable Parquet file"),
        ("a.docx", "one\n", r"use a file of captions \(\.txt, .*, \.json\), not \.docx"),
        ("captions", "one\n", "a file without an ending"),
    ],
)
def test_broken_sources_are_named(
    name: str, content: str | bytes, message: str, tmp_path: Path
) -> None:
    path = write(tmp_path, name, content)
    with pytest.raises(ValueError, match=message) as raised:
        read_captions(path)
    assert str(raised.value).startswith(str(path))


def test_broken_parquet_rows_are_named(tmp_path: Path) -> None:
    for values, message in (
        (["one", None], "row 2: blank caption"),
        (["one", "a\x1bb"], "row 2: control"),
    ):
        pq.write_table(pa.table({"caption": values}), tmp_path / "a.parquet")
        with pytest.raises(ValueError, match=message):
            read_captions(tmp_path / "a.parquet")


ARCHIVED = io.BytesIO()
with tarfile.open(fileobj=ARCHIVED, mode="w") as archive:
    archive.addfile(tarfile.TarInfo("captions.txt"), io.BytesIO())
INSTANCES = {"id": 1, "image_id": 2, "bbox": [0, 0, 1, 1], "category_id": 3, "iscrowd": 0}
FOREIGN: list[tuple[str, bytes, str]] = [
    (
        "a.txt",
        "one\ntwo".encode("utf-16"),
        "line 1: not UTF-8 text but UTF-16; save the file as UTF-8",
    ),
    ("a.txt", "one\ntwo\n".encode("utf-16-le"), "line 1: not UTF-8 text but UTF-16"),
    ("a.csv", "caption\none\n".encode("utf-16-be"), "line 1: not UTF-8 text but UTF-16"),
    ("a.txt", b"one\ntwo\0\n", "line 2: a NUL character; remove it"),
    (
        "a.txt",
        b"one\ntwo\x1b[2J\nthree\x07\n",
        r"line 2: control character '\\x1b' in 'two.*'; .*1 more row is wrong",
    ),
    ("a.tsv", b"caption\none\nit\xc2\x92s\n", r"line 3: control character '\\x92'"),
    ("a.jsonl", b'{"caption": "one\\u0000"}\n', r"line 1: control character '\\x00'"),
    ("a.txt", ARCHIVED.getvalue(), "not text but a tar archive; unpack it"),
    ("a.txt", gzip.compress(b"one", mtime=0), "not text but a gzip archive; unpack it"),
    (
        "a.csv",
        b"PK\x03\x04rest",
        "not text but a zip archive or an office program's document; unpack it",
    ),
    ("a.txt", b"\x89PNG\r\n\x1a\n", "not text but an image"),
    (
        "a.txt",
        b"PAR1\x15\x04rest",
        r"not text but a Parquet file; give it a name that ends in \.parquet",
    ),
    (
        "a.json",
        b"version https://git-lfs.github.com/spec/v1\noid sha256:00\n",
        "a pointer of Git LFS; .*git lfs pull",
    ),
    ("a.txt", b"\n<!DOCTYPE html>\n<html>", "not text but a web page"),
    (
        "a.parquet",
        b"version https://git-lfs.github.com/spec/v1\n",
        "not a Parquet file but a pointer of Git LFS",
    ),
    ("a.parquet", gzip.compress(b"one", mtime=0), "not a Parquet file but a gzip archive"),
    ("a.tar.gz", b"one", r"not \.gz; unpack it"),
    ("a.zip", b"one", r"not \.zip; unpack it"),
    (
        "a.json",
        b'{"caption": "one"}\n{"caption": "two"}\n',
        r"JSON Lines, .*; rename it to \.jsonl",
    ),
    (
        "a.json",
        b'{"annotations": []} x',
        r"broken JSON: Extra data \(line 1, column 21\); correct it",
    ),
    ("a.json", b'{"annotations": [{"id": 1', "broken JSON: .*; the file may be truncated"),
    ("a.json", b'{"annotations": [{"id": "', "broken JSON: .*; the file may be truncated"),
    ("a.jsonl", b'[\n {"caption": "one"}\n]\n', "a.jsonl: JSON over several lines, not JSON Lines"),
    (
        "a.json",
        json.dumps({"annotations": [INSTANCES] * 3}).encode(),
        "not captions but .*bbox.*; give COCO",
    ),
    ("a.csv", b'caption,n\none,1\n"two,2\nthree,3\n', "line 3: a stray quotation mark"),
    (
        "a.csv",
        b'caption,n\n"two,2\nthree,3\na "red" ball,4\n',
        "line 2: a stray quotation mark .* in line 4",
    ),
]


@pytest.mark.parametrize(("name", "content", "message"), FOREIGN)
def test_a_file_of_another_kind_is_named(
    name: str, content: bytes, message: str, tmp_path: Path
) -> None:
    path = write(tmp_path, name, content)
    with pytest.raises(ValueError, match=message) as raised:
        read_captions(path)
    assert str(raised.value).startswith(str(path))
    assert str(raised.value).isprintable()


@pytest.mark.parametrize(
    "caption", ["GIF87 frames of a cat", "PAR1 is a golf course", "ARROW1 pointing up"]
)
def test_captions_may_begin_like_files_of_other_kinds(caption: str, tmp_path: Path) -> None:
    path = write(tmp_path, "a.txt", f"{caption}\ntwo\n".encode())
    assert sorted(found.text for found in read_captions(path)) == sorted([caption, "two"])


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (
            pa.array([["a", "b"]]),
            r"column 'caption' has lists \(list<.*string>\), not text; write one row for each",
        ),
        (
            pa.array([b"a"]),
            "column 'caption' has values of type binary, not text; decode them as UTF-8",
        ),
        (pa.array([{"raw": "a"}]), r"values of type struct<raw: string>, not text"),
        (pa.array([3, 4]), "values of type int64, not text"),
    ],
)
def test_columns_of_other_types_are_named(values: pa.Array, message: str, tmp_path: Path) -> None:
    pq.write_table(pa.table({"caption": values}), tmp_path / "a.parquet")
    with pytest.raises(ValueError, match=message):
        read_captions(tmp_path / "a.parquet")


@pytest.mark.parametrize(
    "kind", [pa.large_string(), pa.string_view(), pa.dictionary(pa.int32(), pa.string())]
)
def test_all_types_of_text_are_read(kind: pa.DataType, tmp_path: Path) -> None:
    pq.write_table(
        pa.table({"caption": pa.array(["one", "two"]).cast(kind)}), tmp_path / "a.parquet"
    )
    assert [caption.text for caption in captions_in_order(tmp_path / "a.parquet")] == ["one", "two"]


def test_fields_of_any_length_are_read(tmp_path: Path) -> None:
    """Some tables hold images in a column; Python's csv stops at 131,072 characters."""
    limit = csv.field_size_limit()
    path = write(tmp_path, "a.csv", f"image,caption\n{'A' * 200_000},one\n1,{'b' * 200_000}\n")
    assert [len(caption.text) for caption in captions_in_order(path)] == [3, 200_000]
    assert csv.field_size_limit() == limit


def test_a_space_before_a_quotation_mark_is_not_part_of_a_field(tmp_path: Path) -> None:
    path = write(
        tmp_path, "a.csv", 'n, caption\n1, "a cat, asleep"\n2,  two dogs\n3," ""Hi"" on a sign"\n'
    )
    assert [caption.text for caption in captions_in_order(path)] == [
        "a cat, asleep",
        "two dogs",
        '"Hi" on a sign',
    ]


def test_tabs_stay_in_captions(tmp_path: Path) -> None:
    assert captions_in_order(write(tmp_path, "a.txt", "a\tcat\n"))[0].text == "a\tcat"


def test_what_cannot_be_asked_for(tmp_path: Path) -> None:
    path = write(tmp_path, "a.txt", "one\ntwo\n")
    wrong: tuple[tuple[Callable[[], object], str], ...] = (
        (lambda: read_captions(path, count=3), "count is 3, but it has 2 .*; lower the count"),
        (
            lambda: read_captions(coco(tmp_path, ANNOTATIONS), count=41),
            r"it has 40 captions \(one per image\)",
        ),
        (lambda: read_captions(path, count=0), "at least 1"),
        (lambda: read_captions(path, column="text"), "has no columns"),
        (lambda: read_captions(tmp_path / "none.txt"), "no such file"),
        (lambda: read_captions(tmp_path / "none.json"), "No such file"),
        (lambda: read_captions("~/no/such.csv"), r"such\.csv: no such file"),
    )
    for act, message in wrong:
        with pytest.raises(ValueError, match=message):
            act()
    (tmp_path / "folder.csv").mkdir()
    with pytest.raises(ValueError, match=r"folder\.csv: no images"):
        read_captions(tmp_path / "folder.csv")


PUBLISHED_SETS = pytest.mark.skipif(
    not (PUBLISHED / "PartiPrompts.tsv").is_file(),
    reason="SPECFRONTIER_CAPTIONS names no folder of the published sets",
)


@PUBLISHED_SETS
def test_published_sets_load() -> None:
    annotations = json.loads((PUBLISHED / "captions_val2017.json").read_text())["annotations"]
    by_id = {entry["id"]: entry for entry in annotations}
    assert len(by_id) == 25_014
    captions = read_captions(PUBLISHED / "captions_val2017.json", seed=0)
    prompts = read_captions(PUBLISHED / "PartiPrompts.tsv", seed=0)
    assert len({by_id[caption.id]["image_id"] for caption in captions}) == len(captions) == 5000
    assert all(
        caption.text == " ".join(by_id[caption.id]["caption"].split("\n")).strip()
        for caption in captions
    )
    assert len(prompts) == 1632
    assert min(prompts, key=lambda prompt: prompt.id) == Caption(0, "bond")


#: What was chosen of the published sets when this was written: the same everywhere and for ever.
CHOSEN = {
    ("captions_val2017.json", 0, "seeded"): "5e48846a0a87c9520f3a",
    ("captions_val2017.json", 1, "seeded"): "f060b858bd5baecb73ce",
    ("captions_val2017.json", 0, "longest"): "cfe594cf542e8c6fc7d4",
    ("captions_val2017.json", 0, "first"): "690ce7f917fb5853746e",
    ("PartiPrompts.tsv", 0, "seeded"): "9cf887b6737368ed88bc",
}


@PUBLISHED_SETS
@pytest.mark.parametrize(("file", "seed", "choose"), CHOSEN)
def test_the_choice_of_published_captions_is_the_same_everywhere(
    file: str, seed: int, choose: Choose
) -> None:
    assert (
        captions_hash(read_captions(PUBLISHED / file, seed=seed, choose=choose))
        == CHOSEN[file, seed, choose]
    )


def test_the_largest_seed_that_a_sweep_takes_draws() -> None:
    seed = 2**63 - 1
    assert len({caption.text for caption in scene_captions(8, seed)}) > 4
    assert render(sample_attributes(seed, range(2)), seed, range(2)).isfinite().all()
    assert len(set(image_keys(seed, [0, 1], [0, 0]).tolist())) == 2


def test_groups_are_those_of_the_column_group_category_or_tag(tmp_path: Path) -> None:
    """Of any single value; lists, nulls and NaN, as pandas writes a missing one, are no groups."""
    rows = {
        "caption": ["a", "b", "c"],
        "tag": ["x", "y", "z"],
        "Category": ["long\n one ", "", "3"],
    }
    table = 'caption,tag,Category\na,x,"long\n one "\nb,y,\nc,z,3\n'
    for name in ("a.csv", "a.parquet"):
        if name == "a.csv":
            write(tmp_path, name, table)
        else:
            pq.write_table(pa.table(rows), tmp_path / name)
        groups = [caption.group for caption in captions_in_order(tmp_path / name)]
        assert groups == ["long one", "", "3"], name
    values = {"category": [True, None], "tag": [float("nan"), 1.5], "group": [["x"], []]}
    found = {}
    for name, column in values.items():
        pq.write_table(pa.table({"caption": ["a", "b"], name: column}), tmp_path / "b.parquet")
        found[name] = [caption.group for caption in captions_in_order(tmp_path / "b.parquet")]
    assert found == {"category": ["True", ""], "tag": ["", "1.5"], "group": ["", ""]}


@pytest.mark.parametrize("group", ["a\\u0007b", "a\\ud800"])
def test_a_group_with_invalid_characters_is_refused(tmp_path: Path, group: str) -> None:
    """It goes into Parquet files and onto terminals, as captions do."""
    lines = '{"caption": "a", "tag": "x"}\n' + f'{{"caption": "b", "tag": "{group}"}}\n'
    path = write(tmp_path, "a.jsonl", lines)
    with pytest.raises(ValueError, match=r"a\.jsonl, line 2: (control|invalid) character"):
        read_captions(path)
