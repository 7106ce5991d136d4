"""Pictures drawn with Pillow: pixels, captions that wrap, heat maps."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image, ImageFont

from workers.data.grid import Grid
from workers.data.pictures import (
    NO_VALUE,
    RAMP,
    accepted_by_cell,
    enlarge,
    heat_map,
    is_intact_png,
    png,
    shade,
    to_pictures,
    wrap,
)


def test_pixels_survive_unchanged() -> None:
    images = torch.rand(2, 3, 5, 7, generator=torch.Generator().manual_seed(0))
    pictures = to_pictures(images)
    assert [picture.size for picture in pictures] == [(7, 5), (7, 5)]
    assert pictures[1].getpixel((6, 2)) == tuple(images[1, :, 2, 6].mul(255).round().int().tolist())


def test_no_changed_bit_and_no_cut_passes_for_a_picture() -> None:
    data = png(Image.new("RGB", (3, 3), (200, 30, 30)))
    assert is_intact_png(data)
    assert not any(is_intact_png(data[:length]) for length in range(len(data)))
    assert not is_intact_png(data + b"x")
    for place in range(8 * len(data)):
        changed = bytearray(data)
        changed[place // 8] ^= 1 << place % 8
        assert not is_intact_png(bytes(changed))


def test_out_of_range_values_are_clamped() -> None:
    picture = to_pictures(torch.tensor([-0.5, 0.5, 1.5]).view(1, 3, 1, 1))[0]
    assert picture.getpixel((0, 0)) == (0, 128, 255)


@pytest.mark.parametrize(
    ("size", "side", "expected"),
    [((48, 48), 192, (192, 192)), ((48, 24), 100, (96, 48)), ((48, 48), 20, (48, 48))],
)
def test_enlarging_keeps_pixels_square(
    size: tuple[int, int], side: int, expected: tuple[int, int]
) -> None:
    assert enlarge(Image.new("RGB", size), side).size == expected


def test_enlarging_adds_no_colour() -> None:
    picture = Image.new("RGB", (2, 1))
    picture.putpixel((1, 0), (255, 0, 0))
    assert set(enlarge(picture, 64).get_flattened_data()) == {(0, 0, 0), (255, 0, 0)}


def test_captions_wrap_within_the_thumbnail() -> None:
    font = ImageFont.load_default(12)
    text = "a large red circle left of a small blue square"
    lines = wrap(text, 90, font)
    assert " ".join(lines) == text
    assert len(lines) > 1
    assert all(font.getlength(line) <= 90 for line in lines)
    cut = wrap("x" * 200, 90, font)
    assert len(cut) == 1
    assert font.getlength(cut[0]) <= 90


def test_heat_maps_colour_each_cell_by_its_value() -> None:
    picture = heat_map([[None, 1.0], [2.0, 3.0]], "title", cell=10)
    pixels = set(picture.get_flattened_data())
    assert {NO_VALUE, RAMP[0], RAMP[2], RAMP[4]} <= pixels


def test_heat_maps_without_range_or_values_are_drawn() -> None:
    assert RAMP[2] in set(heat_map([[2.0, 2.0]], "same").get_flattened_data())
    assert heat_map([[None]], "nothing").size[0] > 32


def test_the_ramp_is_monotone_in_lightness() -> None:
    lightness = (shade(np.linspace(0, 1, 51), 0, 1) @ (0.299, 0.587, 0.114)).tolist()
    assert lightness == sorted(lightness)
    assert shade(np.array([-5, 5]), 0, 1).tolist() == [list(RAMP[0]), list(RAMP[-1])]


def test_cells_carry_the_accepted_length_of_their_round() -> None:
    grid = Grid(2, 4)
    assert accepted_by_cell([[3, 1, 2]], grid) == [[None, 3, 3, 3], [1, 2, 2, None]]
    assert accepted_by_cell([[3, 1, 2], [6]], grid) == [[None, 4.5, 4.5, 4.5], [3.5, 4, 4, None]]


def test_a_preview_is_above_the_grid() -> None:
    found = accepted_by_cell([[3, 1, 4]], Grid(2, 3, (3, 1)))
    nothing = [None, None, None]
    assert found == [
        [None, *nothing[1:]],
        [3, None, None],
        [3, None, None],
        nothing,
        [3, 1, 4],
        [4, 4, 4],
    ]
    assert accepted_by_cell([], Grid(1, 1, (1, 2))) == [[None, None]] * 3
