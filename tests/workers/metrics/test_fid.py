"""The metrics fid, drift and fid_gain: equal to NumPy on the stored features, and the coverage of
their errors.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor
from torchmetrics.image.fid import FrechetInceptionDistance

from tests.fakes import metric_inputs
from workers.metrics.definition import FEATURES
from workers.metrics.estimate import BLOCKS, Estimate
from workers.metrics.frechet import Gaussian, difference, distance_between
from workers.metrics.metric import METRICS, MetricInputs, ReferenceFeatures, Rows
from workers.metrics.registry import compute_metrics


def numpy_fid(a: Tensor, b: Tensor) -> float:
    x, y = a.numpy().astype(np.float64), b.numpy().astype(np.float64)
    s, t = np.cov(x, rowvar=False), np.cov(y, rowvar=False)
    roots = np.sqrt(np.linalg.eigvals(s @ t).astype(complex)).real.sum()
    return float(np.square(x.mean(0) - y.mean(0)).sum() + np.trace(s) + np.trace(t) - 2 * roots)


def test_fid_drift_and_gain_equal_numpy_on_the_stored_features() -> None:
    inputs = metric_inputs.trial_inputs()
    estimates, _ = compute_metrics(inputs, ["fid", "drift", "fid_gain"])
    trial, vanilla, real = (
        inputs.column("features"),
        inputs.baseline_column("features"),
        inputs.reference().features,
    )
    assert estimates["fid"].value == pytest.approx(numpy_fid(trial, real), rel=1e-6)
    assert estimates["drift"].value == pytest.approx(numpy_fid(trial, vanilla), rel=1e-6)
    assert estimates["fid_gain"].value == pytest.approx(
        numpy_fid(trial, real) - numpy_fid(vanilla, real), rel=1e-6
    )
    # pairs share their captions' difficulty
    assert estimates["fid_gain"].error < estimates["fid"].error


def test_a_value_of_vanilla_by_definition_is_exact() -> None:
    """Rounding alone would make it a tiny number of either sign, which a front would take for a
    difference.
    """
    inputs = metric_inputs.trial_inputs()
    assert inputs.baseline is not None
    known = {
        name: metric.vanilla
        for name, metric in METRICS.all().items()
        if metric.vanilla is not None and FEATURES in metric.needs
    }
    assert known.keys() == {"drift", "fid_gain"}
    estimates, _ = compute_metrics(replace(inputs, images=inputs.baseline), known)
    assert {name: estimate.value for name, estimate in estimates.items()} == known
    assert estimates["drift"] == Estimate(0.0, 0.0, inputs.baseline.count, (0.0,) * BLOCKS)


def test_wide_features_agree_as_well() -> None:
    generator = torch.Generator().manual_seed(3)
    features = (torch.randn(150, 64, generator=generator) * 1.2).half()
    rows = Rows(metric_inputs.keys(150) | {"features": features})
    real = torch.randn(400, 64, generator=generator).half()
    assert metric_inputs.fid_of(rows, ReferenceFeatures(real)).value == pytest.approx(
        numpy_fid(features, real), rel=1e-6
    )


@pytest.mark.filterwarnings("ignore::UserWarning")  # of torchmetrics: its buffer
def test_equals_torchmetrics() -> None:
    generator = torch.Generator().manual_seed(4)
    features = torch.randn(90, 6, generator=generator).double() * 1.2 + 0.1
    real = torch.randn(200, 6, generator=generator).double()
    net = torch.nn.Flatten()
    net.num_features = 6  # type: ignore[assignment]
    metric = FrechetInceptionDistance(feature=net, input_img_size=(6, 1, 1)).set_dtype(
        torch.float64
    )
    metric.update(features[:, :, None, None], real=False)
    metric.update(real[:, :, None, None], real=True)
    rows = Rows(metric_inputs.keys(90) | {"features": features})
    assert metric_inputs.fid_of(rows, ReferenceFeatures(real)).value == pytest.approx(
        metric.compute().item(), rel=1e-6
    )


def test_a_block_leaves_out_whole_captions() -> None:
    features = torch.randn(40, 3, generator=torch.Generator().manual_seed(0))
    other = features + 0.3 * torch.randn(40, 3, generator=torch.Generator().manual_seed(1))
    rows = Rows(metric_inputs.keys(10, 4) | {"features": features})
    inputs = MetricInputs(images=rows, baseline=Rows({**rows, "features": other}))
    drift = compute_metrics(inputs, ["drift"])[0]["drift"]
    assert drift == distance_between(features, other, torch.arange(40) // 4)
    assert len(drift.replicates) == 10


def test_the_error_covers_at_its_nominal_rate_over_subsamples() -> None:
    """Captions of two samples each, sampled repeatedly from one population; nominal 95% (t, 23
    degrees of freedom).

    200 repetitions: 3 deviations of the share are 4.6 points. The value is compared with its own
    mean (it is biased at any n), the debiased value with the population's distance.
    """
    generator = torch.Generator().manual_seed(5)
    captions, samples, repetitions = 150, 2, 200
    shared = torch.randn(20000, 4, generator=generator, dtype=torch.float64)
    noise = torch.randn(20000, samples, 4, generator=generator, dtype=torch.float64)
    population = 1.1 * (0.8 * shared[:, None] + 0.6 * noise) + 0.15
    real = torch.randn(20000, 4, generator=generator, dtype=torch.float64)
    reference = ReferenceFeatures(real)
    truth = numpy_fid(population.flatten(0, 1), real)
    runs = []
    for _ in range(repetitions):
        chosen = torch.randint(20000, (captions,), generator=generator)
        rows = Rows(
            metric_inputs.keys(captions, samples) | {"features": population[chosen].flatten(0, 1)}
        )
        runs.append(metric_inputs.fid_of(rows, reference))
    mean = float(np.mean([run.value for run in runs]))
    assert 0.9 <= share_within(runs, mean, lambda run: run.value) <= 0.995
    assert 0.9 <= share_within(runs, truth, lambda run: run.debiased) <= 0.995
    assert mean > truth


def test_fid_debiased_covers_the_limit_that_fid_misses_at_the_size_of_a_sweep() -> None:
    """192 images, 64 channels whose variances fall off as a network's do; nominal 95% (t, 23
    degrees of freedom).

    120 repetitions: 3 deviations of the share are 6 points. The jackknife is conservative here, so
    only the lower bound is tested. fid itself is so far above its limit that no interval covers it.
    """
    generator = torch.Generator().manual_seed(6)
    dim, n, repetitions = 64, 192, 120
    scale = torch.linspace(0, -2, dim, dtype=torch.float64).exp()
    rotation = torch.linalg.qr(
        torch.eye(dim).double() + 0.02 * torch.randn(dim, dim, generator=generator).double()
    )[0]

    def sample(count: int) -> Tensor:
        rows: Tensor = (
            1.1 * scale * torch.randn(count, dim, generator=generator).double()
        ) @ rotation + 0.1
        return rows

    reference = ReferenceFeatures(scale * torch.randn(4000, dim, generator=generator).double())
    truth = numpy_fid(sample(100_000), reference.features)
    keys = metric_inputs.keys(n)
    runs = []
    for _ in range(repetitions):
        inputs = MetricInputs(
            images=Rows(keys | {"features": sample(n)}), references={FEATURES: reference}
        )
        runs.append(compute_metrics(inputs, ["fid", "fid_debiased"])[0])
    debiased, biased = ([run[name] for run in runs] for name in ("fid_debiased", "fid"))
    assert (
        sum(abs(run.value - truth) <= 2.069 * run.error for run in debiased) / repetitions >= 0.89
    )
    assert not any(abs(run.value - truth) <= 2.069 * run.error for run in biased)
    values = np.array([run.value for run in debiased])
    assert abs(values.mean() - truth) < 0.12 * abs(np.mean([run.value for run in biased]) - truth)
    assert values.std() <= np.mean([run.error for run in debiased]) <= 1.6 * values.std()
    assert all(run.n == n for run in debiased)


def test_differences_at_fewer_images_than_channels_cover() -> None:
    """12 images, 16 channels, 300 repetitions: 3 deviations of the share are 3.8 points. The truth
    is the mean at equal n. The jackknife of so nonlinear a statistic is conservative (Efron and
    Stein 1981), so only the lower bound counts; and it must not be useless: below twice the spread.
    """
    generator = torch.Generator().manual_seed(8)
    reference = Gaussian.fit(torch.randn(2000, 16, generator=generator).double())
    values, errors = [], []
    for _ in range(300):
        shared = torch.randn(12, 16, generator=generator).double()
        a, b = (
            shared + 0.5 * torch.randn(12, 16, generator=generator) + shift for shift in (0.0, 0.3)
        )
        estimate = difference(a, b, reference, torch.arange(12))
        values.append(estimate.value)
        errors.append(estimate.error)
    off = np.abs(np.array(values) - np.mean(values))
    assert (off <= 2.201 * np.array(errors)).mean() >= 0.912
    assert np.std(values) <= np.mean(errors) < 2 * np.std(values)


def share_within(runs: list[Estimate], centre: float, value: Callable[[Estimate], float]) -> float:
    return sum(abs(value(run) - centre) <= 2.069 * run.error for run in runs) / len(runs)


def test_errors_shrink_with_more_images() -> None:
    def error(captions: int) -> Estimate:
        rows = Rows(metric_inputs.columns(captions, 2, seed=2, shift=0.3))
        return metric_inputs.fid_of(rows, metric_inputs.reference())

    assert error(1000).error < 0.5 * error(60).error
