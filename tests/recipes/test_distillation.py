"""The loss of the built-in drafters: guided terms against formulas, unrolling against drafting step
by step.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

from recipes.distillation import GuidedDistillation, guided_loss, soft_loss, unrolled
from recipes.optimisers import MuonConfig
from tests.fakes.toys import BASE, toy_target
from tests.workers.training.test_drafters import random_examples
from workers.drafters.eagle import EagleLayer
from workers.training.drafters import (
    Drafter,
    combine,
    encode_pairs,
    evaluate_drafter,
    head_logits,
    new_eagle,
    new_medusa,
)
from workers.training.job import train_drafter
from workers.training.unroll import Slots, unroll


@pytest.mark.parametrize("kind", ["eagle", "medusa"])
def test_the_guided_loss_compares_the_combined_probabilities_of_each_level(kind: str) -> None:
    target, low = toy_target(), 2.5
    drafter: Drafter = new_eagle(target, 0) if kind == "eagle" else new_medusa(target, 2)
    data, config = random_examples(target, 3), GuidedDistillation(levels=2, guidance=(low, low))
    inputs = encode_pairs(target, *data.pick(torch.arange(3), target.device))
    with torch.no_grad():
        loss = guided_loss(target, drafter, data, config)(torch.arange(3), torch.Generator())
        teacher, expected = head_logits(target, inputs.labels), 0.0
        for j, (logits, predicted) in enumerate(unrolled(2)(target, drafter, inputs)):
            p, q = ((1 - low) * x[3:] + low * x[:3] for x in (logits, teacher[:, j:]))
            p, q = p.softmax(-1), q.softmax(-1)
            term = -0.5 * (q * p.log()).sum(-1).mean() + (p - q).abs().sum(-1).mean() / 2
            if predicted is not None:
                term = term + 0.1 * nn.functional.smooth_l1_loss(predicted, inputs.labels[:, j:])
            expected += 0.8**j * float(term)
    assert float(loss) == pytest.approx(expected, rel=1e-5)


def test_the_soft_loss_is_least_at_the_targets_own_probabilities() -> None:
    torch.manual_seed(0)
    teacher, scales = torch.randn(4, 5, 12), torch.tensor([1.0, 3.0])[:, None, None]
    probs = combine(teacher, scales).softmax(-1)
    assert torch.allclose(combine(teacher, scales)[0], teacher[0]), (
        "scale 1 is the conditional stream alone"
    )
    best = soft_loss(combine(teacher, scales), probs, GuidedDistillation())
    for _ in range(20):
        noisy = teacher + 0.3 * torch.randn_like(teacher)
        assert soft_loss(combine(noisy, scales), probs, GuidedDistillation()) > best


def test_unrolled_levels_equal_drafting_step_by_step() -> None:
    torch.manual_seed(0)
    layer = EagleLayer(
        replace(BASE, n_layers=1, vocab_size=0, input_norm=False, final_norm=False)
    ).eval()
    hidden = torch.zeros(9, dtype=torch.bool)
    hidden[:2] = True  # padding at the prompt's start
    mask = (
        torch.ones(9, 9, dtype=torch.bool).tril() & ~hidden | torch.eye(9, dtype=torch.bool)
    ).expand(2, 1, 9, 9)
    inputs = Slots(torch.randn(2, 9, 32), torch.randn(2, 9, 32), mask, torch.zeros(0))
    embeddings, features, positions = inputs.embeddings, inputs.features, inputs.positions
    with torch.no_grad():
        outputs = unroll(layer, inputs, 4)
        torch.testing.assert_close(
            outputs[0], layer(embeddings, features, positions, mask), atol=1e-5, rtol=1e-4
        )
        for slot in range(6, 9):
            for level in range(2, 5):
                read = features[:, : slot + 1].clone()
                # drafted slots read the prediction of the slot before
                for t in range(slot - level + 2, slot + 1):
                    read[:, t] = layer(
                        embeddings[:, :t], read[:, :t], positions[:t], mask[..., :t, :t]
                    )[:, -1]
                end = slot + 1
                expected = layer(embeddings[:, :end], read, positions[:end], mask[..., :end, :end])[
                    :, slot
                ]
                torch.testing.assert_close(
                    outputs[level - 1][:, slot], expected, atol=1e-5, rtol=1e-4
                )


@pytest.mark.parametrize("kind", ["eagle", "medusa"])
def test_training_brings_every_level_nearer_to_the_target(kind: str, tmp_path: Path) -> None:
    target = toy_target()
    data = random_examples(target, 32)
    drafter: Drafter = new_eagle(target, 0) if kind == "eagle" else new_medusa(target, 2)
    config = MuonConfig(
        steps=50, batch=8, warmup=5, save_every=25, log_every=25, bf16=False, ema=0.9
    )
    before = evaluate_drafter(target, drafter, data, levels_of=unrolled(3))
    loss = guided_loss(target, drafter, data, GuidedDistillation())
    average = train_drafter(
        target, drafter, loss, (data, data), config, tmp_path, facts={}, log=lambda line: None
    )
    assert isinstance(average, type(drafter))
    after = evaluate_drafter(target, average, data, levels_of=unrolled(3))
    assert (tmp_path / f"{kind}.safetensors").exists()
    for name in (name for name in before if name.startswith("TV")):
        assert after[name] < before[name]
