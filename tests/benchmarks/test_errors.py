"""The benchmark of errors: regression by hand, and its coverage on images whose law is known."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from benchmarks.errors import METRICS, Images, deviations, independent_errors, pairs, remaining
from orchestrator.front.joint import critical_t
from tests.fakes import metric_inputs
from workers.metrics.metric import Rows


def images(captions: int) -> Images:
    """Three trials whose images of a caption share most of their features."""
    trials = []
    generator = torch.Generator().manual_seed(0)
    shared = torch.randn(captions, 6, generator=generator)
    for shift in (0.0, 0.3, 0.6):
        rows = metric_inputs.columns(captions, seed=1)
        features = 0.9 * shared + 0.4 * torch.randn(captions, 6, generator=generator) + shift
        passes = torch.randint(20, 60, (captions,), generator=generator)
        trials.append(Rows(rows | {"features": features, "passes": passes}))
    return Images(trials, metric_inputs.reference())


def test_what_a_regression_leaves() -> None:
    rng = np.random.default_rng(0)
    regressors, effects = rng.normal(size=(2, 24)), rng.normal(size=(1, 24))
    fitted = np.linalg.lstsq(regressors.T, effects[0], rcond=None)[0] @ regressors
    left = np.square(effects[0] - fitted).sum() / np.square(effects[0]).sum()
    assert remaining(effects, regressors) == pytest.approx([np.sqrt(min(1, left * 23 / 21))])
    assert remaining(2 * regressors[:1], regressors) == pytest.approx([0], abs=1e-7)


def test_stated_intervals_cover_and_pairing_helps() -> None:
    """Accepted lengths are ratios of independent sums: 95 % covers, within 4 points for these 3
    pairs x 48 parts.
    """
    drawn = images(192)
    off, paired, independent = (
        np.array(part) for part in zip(*deviations(drawn, 48, 12), strict=True)
    )
    assert off.shape == (48, 3, len(METRICS))
    covers = (np.abs(off) <= critical_t(np.array([23.0])) * paired).mean(axis=(0, 1))
    assert covers[2] == pytest.approx(0.95, abs=0.04)
    assert covers[0] > 0.9
    assert paired[..., 0].mean() < 0.85 * independent[..., 0].mean(), "fid"
    joint = drawn.joint(torch.arange(192))
    assert len(independent_errors(joint)) == len(pairs(joint)) == 3
