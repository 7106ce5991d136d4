"""Small folders of captioned images, in every layout that is read."""

from __future__ import annotations

import json
from pathlib import Path

from PIL import Image

COLOURS = {"red": (220, 30, 30), "blue": (30, 30, 220), "green": (30, 200, 30)}


def picture(path: Path, colour: str, size: tuple[int, int] = (20, 16)) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, COLOURS[colour]).save(path)
    return f"a {colour} wall"


def in_classes(folder: Path, each: int = 4) -> None:
    for colour in COLOURS:
        for i in range(each):
            picture(folder / colour / f"{i}.png", colour)


def with_texts(folder: Path) -> None:
    for i, colour in enumerate(COLOURS):
        (folder / f"{i}.txt").write_text(picture(folder / f"{i}.png", colour))


def with_lines(folder: Path) -> None:
    rows = [f"{i}.png\t{picture(folder / f'{i}.png', colour)}" for i, colour in enumerate(COLOURS)]
    (folder / "captions.txt").write_text("\n".join(rows))


def with_csv(folder: Path) -> None:
    rows = [f'{i}.png,"{picture(folder / f"{i}.png", colour)}"' for i, colour in enumerate(COLOURS)]
    (folder / "captions.csv").write_text("\n".join(["file,caption", *rows]))


def with_jsonl(folder: Path) -> None:
    rows = [
        {"file": f"{i}.png", "caption": picture(folder / f"{i}.png", c)}
        for i, c in enumerate(COLOURS)
    ]
    (folder / "captions.jsonl").write_text("\n".join(json.dumps(row) for row in rows))


def as_img2dataset(folder: Path) -> None:
    """Shards with a text and a JSON file beside each image."""
    for i, colour in enumerate(COLOURS):
        stem = folder / f"0000{i % 2}" / f"0000{i % 2}000{i}"
        stem.parent.mkdir(exist_ok=True)
        caption = picture(stem.with_suffix(".JPG"), colour)
        stem.with_suffix(".TXT" if i else ".txt").write_text(caption)
        stem.with_suffix(".json").write_text("{}")
        (folder / f"0000{i % 2}_stats.json").write_text("{}")
