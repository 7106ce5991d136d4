"""The captions that the documentation draws with the built-in model come out as written, at the
default seed.
"""

from __future__ import annotations

import shlex
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from tests.docs.pages import PAGES, blocks
from tests.fakes.command_line import specfrontier
from workers.metrics.features import load_features
from workers.scenes.captions import SLOTS, parse

pytestmark = pytest.mark.slow(seconds=20)


def documented() -> list[tuple[str, ...]]:
    """The commands that generate with the built-in model. `--config` and `--from` give a setting
    that a sweep recommends: here one of its kind.
    """
    lines = {line for page in PAGES for block in blocks(page) for line in block.text.splitlines()}
    commands = (
        tuple(shlex.split(line, comments=True))
        for line in lines
        if line.startswith('specfrontier generate "')
    )
    found = set()
    for command in commands:
        if "--models" in command:
            continue
        if {"--config", "--from"} & set(command):
            found.add((*command[1:3], "--preset", "gsd"))
        else:
            found.add(_for_one_image(command[1:]))
    return sorted(found)


def _for_one_image(command: tuple[str, ...]) -> tuple[str, ...]:
    """The command without what further images are for: only the first one is looked at."""
    words = [word for word in command if word != "--verify"]
    if "--samples" in words:
        place = words.index("--samples")
        del words[place : place + 2]
    return tuple(words)


@pytest.mark.parametrize("command", documented(), ids=" ".join)
def test_a_documented_caption_comes_out_as_written(
    command: tuple[str, ...], tmp_path: Path
) -> None:
    net = load_features()
    assert specfrontier(*command, "--out", str(tmp_path)).code == 0
    with Image.open(next(iter(sorted(tmp_path.glob("0000-0-*.png"))))) as image:
        small = image.convert("RGB").resize((net.config.image_size,) * 2, Image.Resampling.BOX)
    pixels = torch.from_numpy(np.array(small)).permute(2, 0, 1)[None] / 255
    (read,) = net.read(net.extract(pixels)).tolist()
    asked = parse(command[1])
    wrong = {
        name: values[got]
        for (name, values), got, want in zip(SLOTS, read, asked, strict=True)
        if got != want
    }
    assert wrong.keys() <= {"position"}, wrong


def test_the_commands_were_found() -> None:
    found = {command[1] for command in documented()}
    assert {"a large red circle", "a large red circle on a cloudy blue background"} <= found
