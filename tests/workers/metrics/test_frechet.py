"""Frechet distance against closed forms, its merging, and what its error bars promise."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from workers.metrics.estimate import BLOCKS, jackknife_error
from workers.metrics.frechet import (
    Gaussian,
    difference,
    distance_between,
    distance_to_reference,
    frechet_distance,
)


def rotation(dim: int, seed: int) -> Tensor:
    square = torch.randn(
        dim, dim, generator=torch.Generator().manual_seed(seed), dtype=torch.float64
    )
    q: Tensor = torch.linalg.qr(square)[0]
    return q


def with_moments(n: int, mean: Tensor, covariance: Tensor, seed: int) -> Tensor:
    """n points whose sample mean and unbiased sample covariance are exactly those given."""
    x = torch.randn(
        n, mean.numel(), generator=torch.Generator().manual_seed(seed), dtype=torch.float64
    )
    x = x - x.mean(0)
    white = torch.linalg.solve_triangular(
        torch.linalg.cholesky(x.mT @ x / (n - 1)), x.mT, upper=False
    ).mT
    points: Tensor = white @ torch.linalg.cholesky(covariance).mT + mean
    return points


def gaussian(n: int, mean: Tensor, covariance: Tensor, generator: torch.Generator) -> Tensor:
    noise = torch.randn(n, mean.numel(), generator=generator, dtype=torch.float64)
    points: Tensor = noise @ torch.linalg.cholesky(covariance).mT + mean
    return points


def blocks_of(n: int) -> Tensor:
    return torch.arange(n) % BLOCKS


def test_known_distance_of_commuting_gaussians() -> None:
    """Covariances with common axes: d^2 = |m|^2 + sum (sqrt a - sqrt b)^2."""
    q = rotation(6, 0)
    a, b = (
        torch.tensor([1.0, 2, 3, 4, 5, 6]).double(),
        torch.tensor([0.5, 2, 1, 9, 5, 0.01]).double(),
    )
    shift = torch.tensor([0.3, -1, 0, 2, 0, 0.1]).double()
    one = Gaussian.fit(with_moments(50, torch.zeros(6).double(), q * a @ q.mT, 1))
    two = Gaussian.fit(with_moments(70, shift, q * b @ q.mT, 2))
    expected = shift.square().sum() + (a.sqrt() - b.sqrt()).square().sum()
    assert frechet_distance(one, two) == pytest.approx(expected.item(), abs=1e-9)
    assert frechet_distance(two, one) == pytest.approx(expected.item(), abs=1e-9)
    assert frechet_distance(one, one) == pytest.approx(0, abs=1e-9)


def test_equals_the_nonsymmetric_formula() -> None:
    """Tr (A^.5 B A^.5)^.5 is the sum of the roots of the eigenvalues of A B, computed by numpy."""
    generator = np.random.default_rng(0)
    x, y = (
        generator.normal(size=(300, 16)) @ generator.normal(size=(16, 16)),
        generator.normal(size=(200, 16)) + 0.5,
    )
    a, b = np.cov(x, rowvar=False), np.cov(y, rowvar=False)
    roots = np.sqrt(np.linalg.eigvals(a @ b).astype(complex)).real.sum()
    expected = np.square(x.mean(0) - y.mean(0)).sum() + np.trace(a) + np.trace(b) - 2 * roots
    got = frechet_distance(Gaussian.fit(torch.from_numpy(x)), Gaussian.fit(torch.from_numpy(y)))
    assert got == pytest.approx(expected, rel=1e-9)


def test_the_covariance_equals_numpys() -> None:
    x = torch.randn(257, 12, generator=torch.Generator().manual_seed(3)).half()
    fitted = Gaussian.fit(x)
    np.testing.assert_allclose(
        fitted.covariance.numpy(), np.cov(x.double().numpy(), rowvar=False), atol=1e-12
    )
    torch.testing.assert_close(fitted.root @ fitted.root, fitted.covariance, rtol=0, atol=1e-12)


def test_jackknife_of_a_mean_is_its_standard_error() -> None:
    x = torch.randn(40, generator=torch.Generator().manual_seed(4), dtype=torch.float64)
    left_out = (x.sum() - x) / 39
    assert jackknife_error(left_out).item() == pytest.approx(
        (x.double().std() / len(x) ** 0.5).item(), rel=1e-9
    )


def test_leaving_out_equals_recomputing() -> None:
    x = torch.randn(103, 5, generator=torch.Generator().manual_seed(5)).double()
    reference = Gaussian.fit(
        torch.randn(400, 5, generator=torch.Generator().manual_seed(6)).double() * 1.3
    )
    group = torch.arange(103) % 7  # blocks need not be contiguous
    distances = [frechet_distance(reference, Gaussian.fit(x[group != g])) for g in range(7)]
    values = torch.tensor(distances, dtype=torch.float64)
    estimate = distance_to_reference(x, reference, group)
    full = frechet_distance(reference, Gaussian.fit(x))
    assert estimate.value == pytest.approx(full, abs=1e-9)
    assert estimate.error == pytest.approx(jackknife_error(values).item(), rel=1e-6)
    assert estimate.debiased == pytest.approx(7 * full - 6 * values.mean().item(), abs=1e-8)
    assert estimate.replicates == pytest.approx(values.tolist(), abs=1e-9)
    assert estimate.n == 103


def test_few_images_have_a_distance_and_leave_out_whole_blocks() -> None:
    """Fewer images than channels: no inverse is needed, so the distance equals the non-symmetric
    formula's.
    """
    generator = np.random.default_rng(13)
    x, y, real = (torch.from_numpy(generator.normal(size=(n, 12)) + 0.2) for n in (10, 10, 300))
    reference, group = Gaussian.fit(real), torch.arange(10) % 5

    def plain(a: Tensor, b: Tensor) -> float:
        s, t = (np.cov(side.numpy(), rowvar=False) for side in (a, b))
        roots = np.sqrt(np.linalg.eigvals(s @ t).astype(complex)).real.sum()
        return float((a.mean(0) - b.mean(0)).square().sum() + np.trace(s) + np.trace(t) - 2 * roots)

    to_reference, between = (
        distance_to_reference(x, reference, group),
        distance_between(x, y, group),
    )
    assert to_reference.value == pytest.approx(plain(x, real), rel=1e-5)
    assert between.value == pytest.approx(plain(x, y), rel=1e-5)
    kept = [group != block for block in range(5)]
    assert to_reference.replicates == pytest.approx(
        [plain(x[rows], real) for rows in kept], rel=1e-5
    )
    assert between.replicates == pytest.approx([plain(x[rows], y[rows]) for rows in kept], rel=1e-5)
    assert between.error == pytest.approx(
        jackknife_error(torch.tensor(between.replicates)).item(), rel=1e-5
    )


def test_interval_covers_the_truth_and_debiasing_removes_the_bias() -> None:
    """Nominal 95% (t, 23 degrees of freedom), 1000 repetitions: 3 deviations are 2.1 points (false
    alarm 0.3%).
    """
    generator = torch.Generator().manual_seed(7)
    dim, n, repetitions = 8, 400, 1000
    q, scale = rotation(dim, 8), torch.linspace(0.5, 2, dim).double()
    mean, covariance = torch.full((dim,), 0.2).double(), q * scale @ q.mT
    truth = mean.square().sum().item() + (scale.sqrt() - 1).square().sum().item()
    exact = Gaussian.fit(with_moments(5000, torch.zeros(dim).double(), torch.eye(dim).double(), 9))
    samples = (gaussian(n, mean, covariance, generator) for _ in range(repetitions))
    runs = [distance_to_reference(sample, exact, blocks_of(n)) for sample in samples]
    covered = sum(abs(run.debiased - truth) <= 2.069 * run.error for run in runs) / repetitions
    assert 0.929 <= covered <= 0.971
    values, debiased = (
        np.array([run.value for run in runs]),
        np.array([run.debiased for run in runs]),
    )
    bias_error = values.std() / repetitions**0.5
    assert values.mean() - truth > 5 * bias_error  # biased upwards
    assert abs(debiased.mean() - truth) < 3 * debiased.std() / repetitions**0.5
    assert np.mean([run.error for run in runs]) == pytest.approx(values.std(), rel=0.15)


def test_paired_difference_is_tighter_and_right() -> None:
    """Two settings on the same captions share most of their variation, which only the paired error
    sees.
    """
    generator = torch.Generator().manual_seed(10)
    dim, n = 8, 500
    reference = Gaussian.fit(
        gaussian(3000, torch.zeros(dim).double(), torch.eye(dim).double(), generator)
    )
    paired, spread, unpaired = [], [], []
    for _ in range(60):
        shared = gaussian(n, torch.full((dim,), 0.3).double(), torch.eye(dim).double(), generator)
        a = shared + 0.1 * torch.randn(n, dim, generator=generator).double()
        b = shared * 1.05 + 0.1 * torch.randn(n, dim, generator=generator).double()
        estimate = difference(a, b, reference, blocks_of(n))
        one, two = (distance_to_reference(x, reference, blocks_of(n)) for x in (a, b))
        assert estimate.value == pytest.approx(one.value - two.value, abs=1e-9)
        paired.append(estimate.error)
        spread.append(estimate.value)
        unpaired.append((one.error**2 + two.error**2) ** 0.5)
    assert np.mean(paired) < 0.5 * np.mean(unpaired)
    assert np.mean(paired) == pytest.approx(np.std(spread), rel=0.3)


def test_drift_of_a_set_from_itself_is_zero_and_pairing_helps() -> None:
    generator = torch.Generator().manual_seed(11)
    x = torch.randn(300, 6, generator=generator).double()
    same = distance_between(x, x, blocks_of(300))
    assert max(abs(same.value), same.error) < 1e-9
    y = x * 1.5 + 0.3
    shuffled = y[torch.randperm(300, generator=generator)]
    paired, mixed = (distance_between(x, other, blocks_of(300)) for other in (y, shuffled))
    assert paired.value == pytest.approx(mixed.value, abs=1e-9)
    assert paired.error < 0.7 * mixed.error


def test_wrong_features_are_refused() -> None:
    x = torch.randn(100, 8, generator=torch.Generator().manual_seed(12))
    reference = Gaussian.fit(x)
    broken = x.clone()
    broken[3, 2] = float("nan")
    for features, words in [
        (x[:2], "too few for covariances"),
        (broken, "1 of 100 images"),
        (torch.randn(100, 7), "their extractors differ"),
        (x[0], r"shape \[images, channels\]"),
    ]:
        with pytest.raises(ValueError, match=words):
            distance_to_reference(features, reference, blocks_of(len(features)))
    with pytest.raises(ValueError, match="at least 2 independent"):
        distance_to_reference(x, reference, torch.zeros(100).long())
    with pytest.raises(ValueError, match="equal n"):
        difference(x, x[:90], reference, blocks_of(100))
    with pytest.raises(ValueError, match="more than 8 images"):
        frechet_distance(reference, Gaussian.fit(x[:8]))
