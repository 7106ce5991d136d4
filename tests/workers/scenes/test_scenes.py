"""Scenes depend on (seed, index) alone, show what their caption says, and captions go to attributes
and back.
"""

from __future__ import annotations

import pytest
import torch

from workers.scenes.captions import (
    BACKGROUND_COLOURS,
    COLOURS,
    SHAPES,
    SLOT_INDEX,
    SLOTS,
    caption,
    parse,
)
from workers.scenes.images import IMAGE_SIZE, render, sample_attributes


def row_of(text: str) -> torch.Tensor:
    """The attributes [1, slots] of a caption."""
    return torch.tensor([parse(text)])


def test_a_scene_is_the_same_whatever_its_batch() -> None:
    rows = sample_attributes(3, range(40))
    images = render(rows, 3, range(40))
    some = torch.tensor([31, 7, 7])
    assert torch.equal(sample_attributes(3, some), rows[some])
    assert torch.allclose(render(rows[some], 3, some), images[some], atol=1e-6)


def test_seeds_and_indices_give_other_scenes() -> None:
    rows = sample_attributes(0, range(2))[:1].expand(2, -1)
    assert not torch.allclose(render(rows, 0, range(2))[0], render(rows, 0, range(2))[1], atol=0.05)
    assert not torch.equal(sample_attributes(0, range(50)), sample_attributes(1, range(50)))


def test_attributes_are_in_range_and_cover_every_value() -> None:
    rows = sample_attributes(0, range(4000))
    for slot, (name, values) in enumerate(SLOTS):
        assert sorted(set(rows[:, slot].tolist())) == list(range(len(values))), name
    alone = rows[:, SLOT_INDEX["relation"]] == 0
    assert 0.35 < alone.float().mean() < 0.45
    assert (rows[alone, SLOT_INDEX["second_shape"] :] == 0).all()
    assert (rows[~alone, SLOT_INDEX["second_shape"] :] > 0).all()
    assert (rows[~alone, SLOT_INDEX["position"]] == 0).all()


def test_no_object_has_the_colour_of_its_background() -> None:
    for row in sample_attributes(5, range(1000)).tolist():
        background = BACKGROUND_COLOURS[row[SLOT_INDEX["background_colour"]]]
        assert background != COLOURS[row[SLOT_INDEX["first_colour"]]]
        second = row[SLOT_INDEX["second_colour"]]
        assert second == 0 or background != COLOURS[second - 1]


def test_every_caption_parses_back() -> None:
    for row in sample_attributes(2, range(1000)).tolist():
        assert parse(caption(row)) == tuple(row), caption(row)


@pytest.mark.parametrize(
    ("loose", "canonical"),
    [
        ("a large red circle", "a large red circle on a smooth grey background"),
        ("Big RED disc!", "a large red circle on a smooth grey background"),
        (
            "a blue ring, small, on a gray checkered background",
            "a small blue ring on a checkered grey background",
        ),
        (
            "small green star at the top",
            "a small green star at the top on a smooth grey background",
        ),
        (
            "on a cloudy pink background, a red cross",
            "a large red cross on a cloudy pink background",
        ),
        (
            "red ring right of a blue star",
            "a large blue star left of a large red ring on a smooth grey background",
        ),
        (
            "a red ring below a tiny blue star",
            "a small blue star above a large red ring on a smooth grey background",
        ),
        (
            "a spotted white ring on top of a black cross on a striped background",
            "a large white dotted ring above a large black cross on a striped grey background",
        ),
    ],
)
def test_loose_captions(loose: str, canonical: str) -> None:
    assert caption(parse(loose)) == canonical


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a large red dog", "unknown word 'dog'; known words are shape: circle, square"),
        ("a large circle", "no colour; name one of: red"),
        ("something", "unknown word 'something'"),
        ("a red wavy circle", "pattern: plain, striped; "),
        ("", "no shape"),
        ("a red blue circle", "two values for colour: 'red' and 'blue'"),
        ("a red circle on a wavy background", "the background has an unknown word 'wavy'"),
        ("a red circle left of", "second object has no shape"),
        ("a red circle at the top left of a blue star", "unknown word 'top'"),
    ],
)
def test_a_caption_that_cannot_be_drawn_is_refused(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse(text)


@pytest.mark.parametrize("shape", SHAPES)
def test_objects_stand_where_the_caption_says(shape: str) -> None:
    """Red pixels lie left of (above) blue ones; a large shape covers more than a small one."""
    index = range(8)

    def mean_places(text: str) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Mean (x, y) [8, 2] of red and of blue pixels, and the number of red ones [8], in eight
        images.
        """
        image = render(row_of(text).expand(8, -1), 0, index, grain=False)
        red = ((image[:, 0] - image[:, 1:].amax(1)) > 0.2).float()
        blue = ((image[:, 2] - image[:, :2].amax(1)) > 0.2).float()
        axis = torch.arange(IMAGE_SIZE, dtype=torch.float32)
        place = [
            torch.stack([(m.sum(d) * axis).sum(1) / m.sum((1, 2)) for d in (1, 2)], 1)
            for m in (red, blue)
        ]
        return place[0], place[1], red.sum((1, 2))

    red, blue, large = mean_places(f"a large red {shape} left of a large blue {shape}")
    assert (red[:, 0] + 10 < blue[:, 0]).all()
    red, blue, small = mean_places(f"a small red {shape} above a large blue {shape}")
    assert (red[:, 1] + 10 < blue[:, 1]).all()
    assert (small < large).all()


def test_values_and_grain() -> None:
    """Grain is the noise that is added to every pixel."""
    rows = sample_attributes(0, range(64))
    grainy, clean = render(rows, 0, range(64)), render(rows, 0, range(64), grain=False)
    assert grainy.shape == (64, 3, IMAGE_SIZE, IMAGE_SIZE)
    assert grainy.min() >= 0
    assert grainy.max() <= 1
    assert 0.02 < (grainy - clean).std() < 0.03


def test_mismatched_rows_are_refused() -> None:
    with pytest.raises(ValueError, match=r"shape \[2, 12\] for 3 indices"):
        render(sample_attributes(0, range(2)), 0, range(3))
