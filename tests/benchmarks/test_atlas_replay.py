"""How replay's predictions are compared with a table whose truth is known."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from benchmarks.atlas_replay import (
    compare_replay,
    distinct_settings,
    left_out_predictions,
    length_errors,
    rank_correlations,
)
from benchmarks.atlas_table import HALF, SPANS, Atlas, Floats
from tests.fakes.tables import different_settings, make_table
from workers.replay.prediction import MEASURES

SETTINGS, IMAGES = 40, 2 * HALF


@pytest.fixture(scope="module")
def excess() -> Floats:
    return np.random.default_rng(3).random(SETTINGS)


@pytest.fixture(scope="module")
def atlas(excess: Floats) -> Atlas:
    """Fid is a smooth function of the predicted excess. Predicted lengths are too long by 0.1 times
    the excess, in logs; the last setting has no prediction.
    """
    length, fid = np.linspace(1, 3, SETTINGS), 2 + 20 * excess**1.5
    atlas = make_table(different_settings(SETTINGS), length, fid, noise=0.01, shared=3.0)
    predicted = atlas.mean_accepted_length((0, IMAGES))[:, 0] * np.exp(0.1 * excess)
    predicted[-1] = np.nan
    noise = np.random.default_rng(4).random(SETTINGS)
    predictions = {
        "mean_accepted_length": predicted,
        **dict.fromkeys(MEASURES, noise),
        "excess": excess,
    }
    return replace(atlas, predictions=predictions)


def test_all_other_settings_correct_a_predicted_length(atlas: Atlas, excess: Floats) -> None:
    rows, before, after = length_errors(atlas)
    assert rows.tolist() == list(range(1, SETTINGS - 1))
    assert before == pytest.approx(np.expm1(0.1 * excess[rows]))
    assert np.median(np.abs(after)) < 0.002
    assert np.abs(after).max() < 0.02, (
        "the slope of a kind with few settings is partly the common one"
    )


def test_shares_of_settings_within_3_percent(atlas: Atlas) -> None:
    (line,) = [line for line in compare_replay(atlas) if line.startswith("all")]
    within = np.mean(np.abs(length_errors(atlas)[1]) <= 0.03)
    assert [line.split()[place] for place in (1, 2, 6)] == ["38", f"{100 * within:.0f}", "100"]


def test_rank_correlations(atlas: Atlas, excess: Floats) -> None:
    """Settings that differ beyond noise are in the order of their truth; some of the others change
    places.
    """
    distinct, every = rank_correlations(atlas, excess, "fid")
    assert (distinct, every < 1, every > 0.99) == (1.0, True, True)
    assert rank_correlations(atlas, -excess, "fid") == (-1.0, -every)


def test_the_sampler_s_model_predicts_settings_that_it_was_not_fitted_to(atlas: Atlas) -> None:
    """It finds the one predicted quantity that matters among four. A setting's own value, far off
    its neighbours', hardly changes its own prediction: it is left out.
    """
    predicted = left_out_predictions(atlas, "fid")
    assert np.isnan(predicted[[0, -1]]).all()
    assert rank_correlations(atlas, predicted, "fid")[1] > 0.95
    fid = atlas.quality["fid"].copy()
    fid[5] = fid[5] + 15
    moved = left_out_predictions(replace(atlas, quality={**atlas.quality, "fid": fid}), "fid")
    ranks = [np.argsort(np.argsort(values[1:-1]))[4] for values in (predicted, moved)]
    assert abs(int(ranks[0]) - int(ranks[1])) <= 3


def test_distinct_settings_differ_by_two_paired_errors() -> None:
    """What all settings share does not count as noise; the second setting is within noise of the
    first.
    """
    atlas = make_table(
        different_settings(4), np.ones(4), np.array([5.0, 5.1, 7.0, 9.0]), noise=0.3, shared=8.0
    )
    assert distinct_settings(atlas.quality["fid"][:, SPANS.index((0, IMAGES))]) == [0, 2, 3]
