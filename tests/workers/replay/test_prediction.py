"""Predictions of the built-in model's decoding, against runs of it; the sums, against arithmetic by
hand.
"""

from __future__ import annotations

import pytest
import torch

from search_spaces.params import ConfigError
from search_spaces.trees import Chain
from search_spaces.trial import DecodingConfig, Sampling
from workers.data.grid import Grid
from workers.decoding.build import build_tables
from workers.decoding.engine import Engine
from workers.decoding.state import Request
from workers.loading.models import Models
from workers.loading.models_yaml import load_folder
from workers.metrics.estimate import MetricUnavailable
from workers.replay.outcomes import StepOutcomes, step_outcomes
from workers.replay.prediction import MEASURES, Prediction, predict
from workers.replay.recording import StepRecorder
from workers.replay.replayer import Replayer
from workers.replay.subtrees import subtree
from workers.scenes.images import sample_captions

IMAGES, RECORDED = 8, Chain(5)
REQUESTS = [Request(index, text) for index, text in enumerate(sample_captions(1, IMAGES))]


def models_of_fewer_rows() -> Models:
    """The built-in model for images of 8 of its 12 rows."""
    models = load_folder()
    models.target.grid = Grid(8, models.target.grid.cols)
    return models


@pytest.fixture(scope="module")
def windows() -> Replayer:
    """Recordings of Jacobi windows of 3 and of 6 drafts, all their steps."""
    replayer = Replayer(models_of_fewer_rows(), REQUESTS, max_steps=10**6)
    replayer.record([config(length, "exact", "jacobi") for length in (3, 6)])
    return replayer


def config(length: int, acceptance: object, drafter: str = "eagle") -> DecodingConfig:
    tree = {"policy": "chain", "length": length}
    mapping = {"drafter": drafter, "tree": tree, "acceptance": acceptance}
    return DecodingConfig.from_mapping(mapping).with_sampling(Sampling())


def make_engine(models: Models, config: DecodingConfig) -> Engine:
    return Engine(models.target, config, models.drafters["eagle"], batch_size=IMAGES)


@pytest.mark.slow(seconds=8)
def test_accepted_lengths_are_those_of_a_run() -> None:
    """Within 5 %: 8 images of both, whose own standard errors are about 2.5 %, and the same random
    numbers.
    """
    models = models_of_fewer_rows()
    recording = make_engine(models, config(RECORDED.length, "exact"))
    recording.observer = recorder = StepRecorder(Sampling(), models.target.codebook)
    list(recording.run(REQUESTS))
    steps = recorder.steps()
    image, row = (
        torch.unique(steps.image, return_inverse=True)[1],
        steps.position // models.target.grid.cols,
    )
    for length, acceptance in ((3, {"schedule": "constant", "budget": 1.5}), (5, "lantern")):
        setting = config(length, acceptance)
        kept, levels = subtree(steps, RECORDED, setting.policy)
        tables = build_tables(setting, models.target)
        grid = models.target.grid
        outcomes = step_outcomes(steps, setting.acceptance, tables, grid, kept=kept, levels=levels)
        predicted = predict(outcomes, image, row, IMAGES).mean_accepted_length
        results = [result.statistics for result in make_engine(models, setting).run(REQUESTS)]
        measured = sum(int(s.emitted.sum()) for s in results) / sum(s.passes for s in results)
        assert predicted.value == pytest.approx(measured, rel=0.05)
        assert 0 < predicted.error < 0.05 * predicted.value


@pytest.mark.slow(seconds=8)
@pytest.mark.parametrize(
    ("length", "acceptance"),
    [
        (3, "exact"),
        (6, {"schedule": "constant", "budget": 4.0}),
        (4, {"schedule": "constant", "budget": 1.8}),
    ],
)
def test_accepted_lengths_of_windows_are_those_of_a_run(
    windows: Replayer, length: int, acceptance: object
) -> None:
    """The two recorded rules at recorded lengths, and a rule and a length between them. Within 5 %,
    as above.
    """
    setting = config(length, acceptance, "jacobi")
    results = [result.statistics for result in windows.engine(setting, IMAGES).run(REQUESTS)]
    measured = sum(int(s.emitted.sum()) for s in results) / sum(s.passes for s in results)
    assert windows.predict(setting).mean_accepted_length.value == pytest.approx(measured, rel=0.05)


@pytest.mark.slow(seconds=8)
@pytest.mark.slow(seconds=8)
def test_a_lossless_setting_costs_no_quality() -> None:
    """Exactly, where recorded steps say so up to rounding: children are chosen, so that total
    variations are sums of differences. A rule that accepts less often than the exact one is
    lossless too.
    """
    tree = {"policy": "chain", "length": 3, "children": "top"}
    rules = ("exact", *({"schedule": "constant", "budget": budget} for budget in (0.8, 2.0)))
    settings = [
        DecodingConfig.from_mapping(
            {"drafter": "eagle", "tree": tree, "acceptance": rule}
        ).with_sampling(Sampling())
        for rule in rules
    ]
    replayer = Replayer(models_of_fewer_rows(), REQUESTS)
    replayer.record(settings)
    *lossless, relaxed = (replayer.predict(setting) for setting in settings)
    for predicted in lossless:
        assert 1 < predicted.mean_accepted_length.value < 4
        assert predicted.mean_accepted_length.error > 0
        costs = [predicted.values[name] for name in MEASURES]
        assert [(cost.value, cost.error) for cost in costs] == [(0.0, 0.0)] * len(MEASURES)
    assert relaxed.values["excess"].value > 0.01


def test_a_window_longer_than_the_recorded_ones_is_refused(windows: Replayer) -> None:
    with pytest.raises(ConfigError) as refused:
        windows.predict(config(7, "exact", "jacobi"))
    assert refused.value.path == ("tree", "length")


def outcomes_of(emitted: list[float], excess: list[float]) -> StepOutcomes:
    zeros = torch.zeros(len(emitted))
    return StepOutcomes(torch.tensor(emitted)[:, None], zeros, torch.tensor(excess), zeros, zeros)


def predict_steps(
    emitted: list[float], excess: list[float], image: list[int], row: list[int]
) -> Prediction:
    return predict(outcomes_of(emitted, excess), torch.tensor(image), torch.tensor(row), 2)


def test_rows_count_by_their_tokens() -> None:
    """A row of 1 token at 1/1 pass a token, and one of 3 at 1/4: 4 tokens in 1.75 passes."""
    found = predict(
        outcomes_of([1, 4, 1, 4], [0, 0, 0, 0]), torch.tensor([0, 0, 1, 1]),
        torch.tensor([0, 1, 0, 1]), 2, torch.tensor([1.0, 3.0]),
    )  # fmt: skip
    assert found.mean_accepted_length.value == pytest.approx(4 / 1.75)


def test_every_row_of_the_image_counts_equally() -> None:
    """Row 0 takes 1/1 pass a token, row 1 takes 1/4: 2 tokens in 1.25 passes, however many steps
    each row recorded.
    """
    found = predict_steps(
        [1, 1, 1, 3, 5], [0.0, 0.0, 0.0, 0.4, 0.4], [0, 0, 1, 0, 1], [0, 0, 0, 1, 1]
    )
    assert found.mean_accepted_length.value == pytest.approx(2 / 1.25)
    assert found.values["excess"].value == pytest.approx((0 + 0.4 / 4) / 2)


def test_errors_are_over_images() -> None:
    """Two images: the jackknife's error is half the difference of the values that each image gives
    alone.
    """
    found = predict_steps([2, 2, 4], [0.0, 0.0, 0.0], [0, 0, 1], [0, 0, 0])
    assert found.mean_accepted_length.value == pytest.approx(8 / 3)
    assert found.mean_accepted_length.error == pytest.approx((4 - 2) / 2)
    assert found.mean_accepted_length.n == 2
    assert found.mean_accepted_length.replicates == pytest.approx((4, 2))


def test_one_image_is_not_enough() -> None:
    with pytest.raises(MetricUnavailable):
        predict_steps([2, 2], [0, 0], [0, 0], [0, 1])
