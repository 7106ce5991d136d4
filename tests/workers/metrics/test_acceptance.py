"""Acceptance by position and its histogram: against counts by hand and a brute-force jackknife."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest

from workers.metrics.acceptance import UNGROUPED, AcceptanceCounts
from workers.metrics.estimate import BLOCKS

Image = list[tuple[int, int]]  # of each verification, accepted drafts and tested positions
RATES = (0.8, 0.6, 0.3)  # at positions 1 to 3


def draw(rng: np.random.Generator, verifications: int, difficulty: float) -> Image:
    """Verifications of chains of three drafts, of which the next is tested if one is accepted."""
    image = []
    for _ in range(verifications):
        accepted = 0
        while accepted < 3 and rng.random() < RATES[accepted] * difficulty:
            accepted += 1
        image.append((accepted, min(3, accepted + 1)))
    return image


def images(count: int, seed: int) -> list[Image]:
    """Images of captions in order, some of which are harder than others."""
    rng = np.random.default_rng(seed)
    return [draw(rng, int(rng.integers(20, 40)), float(rng.uniform(0.6, 1))) for _ in range(count)]


def counts(found: list[Image], groups: list[str] | None = None) -> AcceptanceCounts:
    histograms = [np.bincount([a for a, _ in image]).tolist() for image in found]
    tested = [[sum(t >= d for _, t in image) for d in (1, 2, 3)] for image in found]
    names = groups or [""] * len(found)
    blocks = [place % BLOCKS for place in range(len(found))]
    return AcceptanceCounts.of(histograms, tested, names, blocks)


def rate(found: list[Image], position: int) -> float:
    made = [outcome for image in found for outcome in image]
    accepted = sum(a >= position for a, _ in made)
    return accepted / sum(t >= position for _, t in made)


def share(found: list[Image], drafts: int) -> float:
    made = [outcome for image in found for outcome in image]
    return sum(a == drafts for a, _ in made) / len(made)


def mean(found: list[Image], _: int) -> float:
    made = [outcome for image in found for outcome in image]
    return sum(a for a, _ in made) / len(made)


def jackknife(found: list[Image], value: Callable[[list[Image], int], float], at: int) -> float:
    """The error of a value that leaves out the captions of each block in turn."""
    left_out = [
        value([image for place, image in enumerate(found) if place % BLOCKS != block], at)
        for block in range(BLOCKS)
    ]
    spread = sum((each - sum(left_out) / BLOCKS) ** 2 for each in left_out)
    return math.sqrt((BLOCKS - 1) / BLOCKS * spread)


def test_rates_and_shares_are_ratios_with_a_brute_force_jackknife() -> None:
    found = images(60, seed=0)
    positions = counts(found).positions()
    assert [each.drafts for each in positions] == [0, 1, 2, 3]
    assert positions[0].rate is None
    for each in positions:
        assert each.share.value == pytest.approx(share(found, each.drafts))
        assert each.share.error == pytest.approx(jackknife(found, share, each.drafts))
    for each in positions[1:]:
        assert each.rate is not None
        assert each.rate.value == pytest.approx(rate(found, each.drafts))
        assert each.rate.error == pytest.approx(jackknife(found, rate, each.drafts))
    own = counts(found).mean_accepted()
    assert own.value == pytest.approx(mean(found, 0))
    assert own.error == pytest.approx(jackknife(found, mean, 0))
    assert sum(each.share.value for each in positions) == pytest.approx(1)
    assert sum(each.verifications for each in positions) == sum(map(len, found))


def test_the_error_is_that_of_other_captions() -> None:
    """The mean square of the errors is the variance over independent captions, within a third: of
    200 sets, a variance has a relative standard error of a tenth.
    """
    found = []
    for seed in range(200):
        value = counts(images(72, seed)).positions()[2].rate
        assert value is not None
        found.append(value)
    variance = np.var([each.value for each in found], ddof=1)
    assert np.mean([each.error**2 for each in found]) == pytest.approx(variance, rel=0.33)


def test_groups_are_counted_on_their_own_and_together() -> None:
    found = images(60, seed=1)
    groups = ["long" if place % 3 else "" for place in range(60)]
    made = counts(found, groups)
    assert made.groups == ("long", UNGROUPED)
    long = [image for image, group in zip(found, groups, strict=True) if group]
    assert made.mean_accepted("long").value == pytest.approx(mean(long, 0))
    assert made.mean_accepted().value == pytest.approx(mean(found, 0))
    rates = made.positions("long")[2].rate
    assert rates is not None
    assert rates.value == pytest.approx(rate(long, 2))
    plain = made.to_mapping()
    assert set(plain["groups"]) == {"long", UNGROUPED}
    assert "groups" not in counts(found).to_mapping()


def test_a_table_holds_all_of_it() -> None:
    made = counts(images(30, seed=2), ["a", "b", "b"] * 10)
    table = made.to_table()
    assert made.from_table(table).to_mapping() == made.to_mapping()
    rows = table.to_pylist()
    assert sum(row["tested"] for row in rows if row["drafts"] == 0) == sum(
        each.verifications for each in made.positions()
    )


def test_a_position_that_no_caption_but_one_reaches_has_no_error() -> None:
    found: list[Image] = [[(0, 1), (1, 2)] for _ in range(30)]
    found[7] = [(2, 3)]
    positions = counts(found).positions()
    assert positions[3].rate is not None
    assert positions[3].rate.known_error is None
    assert (positions[3].tested, positions[3].accepted) == (1, 0)


def test_vanilla_accepts_nothing() -> None:
    made = AcceptanceCounts.of([[12], [12]], [[], []], ["", ""], [0, 1])
    (only,) = made.positions()
    assert (only.verifications, only.share.value, only.rate) == (24, 1.0, None)
    assert made.mean_accepted().value == 0
    assert made.from_table(made.to_table()).to_mapping() == made.to_mapping()
