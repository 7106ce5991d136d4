"""The recipes of the codec and the metrics' nets: schedule and optimiser are those that the
built-in files had.
"""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch.optim.lr_scheduler import OneCycleLR

import recipes.components as recipes
from workers.training.loop import TrainConfig, train


def recorded(
    config: TrainConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> list[tuple[float, float, float]]:
    """Learning rate and betas of every step of a training by `config`."""
    model, seen = torch.nn.Linear(1, 1), list[tuple[float, float, float]]()
    step = torch.optim.AdamW.step

    def record(optimiser: torch.optim.AdamW) -> None:
        (group,) = optimiser.param_groups
        seen.append((group["lr"], *group["betas"]))
        step(optimiser)

    monkeypatch.setattr(torch.optim.AdamW, "step", record)
    train(
        model,
        lambda i, g: model(torch.ones(1, 1)).sum(),
        8,
        config,
        tmp_path,
        name="toy",
        log=lambda line: None,
    )
    return seen


@pytest.mark.parametrize(
    ("component", "rise", "beta"), [("features", 0.15, 0.999), ("clip", 0.1, 0.98)]
)
def test_the_nets_train_by_one_cycle(
    component: str, rise: float, beta: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (recipe,) = recipes._RECIPES[component]
    config = replace(recipe, steps=120)
    optimiser = torch.optim.AdamW([torch.zeros(1)], config.rate, betas=(0.9, beta))
    cycle = OneCycleLR(optimiser, config.rate, total_steps=config.steps, pct_start=rise)
    expected = []
    for _ in range(config.steps):
        (group,) = optimiser.param_groups
        expected.append((group["lr"], *group["betas"]))
        optimiser.step()
        cycle.step()
    seen = recorded(config, tmp_path, monkeypatch)
    torch.testing.assert_close(torch.tensor(seen), torch.tensor(expected), rtol=1e-5, atol=1e-9)
    assert (config.clip, config.weight_decay) == ({"features": 0.0, "clip": 1.0}[component], 0.02)


def test_the_codec_trains_by_a_cosine() -> None:
    (config,) = recipes._RECIPES["tokenizer"]
    rates = [config.learning_rate(step) for step in range(config.steps)]
    assert rates[:60] == [(step + 1) / 60 for step in range(60)]
    cosine = [0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * done / 1390)) for done in range(1390)]
    assert rates[60:] == pytest.approx(cosine)
    (optimiser,) = config.optimisers(torch.nn.Linear(1, 1), torch.float32)
    (group,) = optimiser.param_groups
    assert (group["lr"], group["betas"], group["weight_decay"], config.clip) == (
        2e-3,
        (0.9, 0.98),
        1e-4,
        1.0,
    )


@pytest.mark.parametrize(
    ("component", "steps"), [("clip", 10), ("clip", 1), ("features", 1), ("tokenizer", 1)]
)
def test_every_short_run_has_a_rate(component: str, steps: int, tmp_path: Path) -> None:
    job = recipes._Job(
        component=component,
        out=tmp_path,
        data=None,
        seed=0,
        device="cpu",
        steps=steps,
        resume=False,
        log=print,
    )
    (config,) = job.phases()
    assert all(0 < config.learning_rate(step) <= 1 for step in range(steps))


def test_drafters_can_be_trained_by_one_recipe(tmp_path: Path) -> None:
    jobs = [
        recipes._Job(
            component=component,
            out=tmp_path,
            data=None,
            seed=0,
            device="cpu",
            steps=None,
            resume=False,
            log=print,
            recipe_of=recipe_of,
        )
        for component, recipe_of in (("eagle", "eagle3"), ("eagle3", None), ("eagle", None))
    ]
    same, own, other = (job.phases() for job in jobs)
    assert same == own
    assert len(other) == 2
