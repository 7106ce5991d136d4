"""Drafts of equal age in recorded Jacobi windows."""

from __future__ import annotations

import pytest
import torch

from search_spaces.acceptance import EXACT
from search_spaces.neighbourhoods import NeighbourTables
from workers.replay.recording import RecordedSteps
from workers.replay.walk import walk
from workers.replay.windows import drafts_of_age, solve_slide

STEPS, LENGTH, CODES = 5, 4, 3


def window() -> RecordedSteps:
    """A window whose token at position i is i modulo the codes, accepted with chance (i + 1) / 10."""
    generator = torch.Generator().manual_seed(0)
    position = torch.arange(LENGTH).expand(STEPS, -1)
    target = torch.rand(STEPS, LENGTH, CODES, generator=generator).softmax(2)
    proposal = torch.rand(STEPS, LENGTH, CODES, generator=generator).softmax(2)
    full = torch.full((STEPS,), LENGTH)
    nothing = torch.zeros(STEPS, LENGTH)
    return RecordedSteps(
        torch.arange(STEPS), torch.ones(STEPS, dtype=torch.int64), full * 10, full, position % CODES, position + 1,
        position, position[..., None], target, proposal, None, nothing, nothing,
    )  # fmt: skip


def test_the_recorded_window_at_its_own_speed_is_itself() -> None:
    steps = window()
    same = drafts_of_age(steps, LENGTH, 1.0)
    assert torch.equal(walk(same, EXACT, NeighbourTables()).at_least, walk(steps, EXACT, NeighbourTables()).at_least)


@pytest.mark.parametrize(
    ("length", "ratio", "picks"),
    [(2, 1.0, [2, 3]), (4, 2.0, [2, 2, 3, 3]), (3, 0.5, [0, 0, 2]), (6, 1.0, [0, 0, 0, 1, 2, 3])],
)
def test_drafts_have_waited_as_long_as_their_substitutes(length: int, ratio: float, picks: list[int]) -> None:
    """A draft at i has waited (length - i) / ratio passes of the recorded window, whose draft at j has 4 - j."""
    steps = window()
    found = drafts_of_age(steps, length, ratio)
    assert found.tokens[0].tolist() == [pick % CODES for pick in picks]
    assert torch.equal(found.target, steps.target[:, picks])
    assert found.depth[0].tolist() == list(range(1, length + 1))


def test_the_speed_is_a_fixed_point() -> None:
    assert solve_slide(lambda ratio: 1 + 0.1 * ratio) == pytest.approx(1 / 0.9, rel=1e-3)
