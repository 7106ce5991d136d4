"""Training of drafters: the EAGLE layer is unrolled as it will draft; every drafter comes nearer to the target."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from workers.drafters.eagle import EagleLayer
from workers.models.transformer import TransformerConfig
from workers.training.drafters import (
    DistillConfig,
    Drafter,
    eagle_inputs,
    guided,
    law_loss,
    medusa_logits,
    new_eagle,
    new_medusa,
    train_drafter,
    unroll,
)
from workers.training.evaluate import eagle_pairs, evaluate_drafter, independent_pairs, medusa_pairs
from workers.training.loop import Figures, TrainConfig
from workers.training.parts import ARModel, TokenSet, build_model
from workers.training.target import train_target

SMALL = TransformerConfig(
    dim=32, n_layers=3, n_heads=2, ffn_dim=48, vocab_size=12, prompt_rope="identity", prompt_len=2, rows=3, cols=3
)
WORDS = {"kind": "words", "words": ["a", "b", "c"], "length": 2}


def target() -> ARModel:
    made = build_model(SMALL, WORDS, 0)
    nn.init.normal_(made.head.weight, std=0.4)
    return made.requires_grad_(False)


def examples(count: int) -> TokenSet:
    generator = torch.Generator().manual_seed(0)
    return TokenSet(
        torch.randint(12, (count, 9), generator=generator), torch.randint(4, (count, 2), generator=generator)
    )


def test_unrolled_levels_equal_drafting_step_by_step() -> None:
    torch.manual_seed(0)
    layer = EagleLayer(dataclasses.replace(SMALL, n_layers=1, vocab_size=0, input_norm=False, final_norm=False))
    embeddings, features, positions = torch.randn(2, 8, 32), torch.randn(2, 8, 32), torch.arange(1, 9)
    outputs = unroll(layer, embeddings, features, positions, 4)
    torch.testing.assert_close(outputs[0], layer(embeddings, features, positions))
    for slot in range(4, 8):
        for level in range(2, 5):
            seen = features[:, : slot + 1].clone()
            for t in range(slot - level + 2, slot + 1):  # drafted slots read the prediction of the slot before
                seen[:, t] = layer(embeddings[:, :t], seen[:, :t], positions[:t])[:, -1]
            expected = layer(embeddings[:, : slot + 1], seen, positions[: slot + 1])[:, slot]
            torch.testing.assert_close(outputs[level - 1][:, slot], expected, atol=1e-5, rtol=1e-4)


def test_eagle_slots_pair_features_with_the_next_token() -> None:
    model, data = target(), examples(3)
    features = model.streams(data.tokens, data.codes)
    embeddings, before, positions = eagle_inputs(model, data.tokens, features)
    assert embeddings.shape == before.shape == (6, 9, 32)  # prompt 2, image 9: slots 0..8
    assert positions.tolist() == list(range(1, 10))
    assert torch.equal(embeddings[0, 1], model.embed.weight[data.tokens[0, 0]]), "the last prompt slot takes token 0"
    assert torch.equal(embeddings[4, 0], model.embed.weight[0]), "prompt slots take code 0"


def test_medusa_starts_as_the_targets_head() -> None:
    model, data = target(), examples(2)
    features = model.streams(data.tokens, data.codes)[:, 1:]
    for shared in (True, False):
        rows = medusa_logits(model, new_medusa(model, 3, shared_head=shared), features)
        assert [row.shape[1] for row in rows] == [8, 7, 6]
        torch.testing.assert_close(rows[2], model.head(features[:, :6]))


def test_law_loss_is_least_at_the_targets_own_law() -> None:
    torch.manual_seed(0)
    teacher, scales = torch.randn(4, 5, 12), torch.tensor([1.0, 3.0])[:, None, None]
    law = guided(teacher, scales).softmax(-1)
    assert torch.allclose(guided(teacher, scales)[0], teacher[0]), "scale 1 is the conditional stream alone"
    config = DistillConfig()
    best = law_loss(teacher, law, scales, config)
    for _ in range(20):
        assert law_loss(teacher + 0.3 * torch.randn_like(teacher), law, scales, config) > best


RUN = TrainConfig(steps=120, batch=16, warmup=10, save_every=60, log_every=60, bf16=False, ema=0.9)


def quiet(_: str) -> None: ...


@pytest.mark.parametrize("kind", ["eagle", "medusa"])
def test_training_brings_the_drafter_nearer_to_the_target(kind: str) -> None:
    model, data = target(), examples(96)
    drafter: Drafter = new_eagle(model, 0) if kind == "eagle" else new_medusa(model, 2, shared_head=False)
    saved: list[nn.Module] = []
    before = variation(model, drafter, data)
    average, progress = train_drafter(
        drafter, model, data, RUN, DistillConfig(), name=kind, save_to=saved.append, log=quiet
    )
    assert len(saved) == 2
    assert sum(progress.losses[-10:]) < sum(progress.losses[:10])
    after = variation(model, average, data)
    for level, value in after.items():
        assert value < before[level], f"{level}: TV went from {before[level]:.3f} to {value:.3f}"


def test_an_independent_drafter_learns_what_the_target_draws(tmp_path: Path) -> None:
    model, codes = target(), examples(600).codes
    data = TokenSet(sample(model, codes), codes)
    small = build_model(dataclasses.replace(SMALL, n_layers=1), WORDS, 1)
    before = variation(model, small, data)["level 1 cfg 1 TV"]
    average, _ = train_target(small, data, data, RUN, tmp_path, name="toy", piece="independent", log=quiet)
    assert (tmp_path / "independent.safetensors").exists()
    assert variation(model, average, data)["level 1 cfg 1 TV"] < 0.8 * before


def variation(model: ARModel, drafter: nn.Module, data: TokenSet) -> Figures:
    if isinstance(drafter, EagleLayer):
        pairs = eagle_pairs(model, drafter, 3)
    elif isinstance(drafter, ARModel):
        pairs = independent_pairs(model, drafter)
    else:
        pairs = medusa_pairs(model, drafter)  # type: ignore[arg-type]
    return {name: value for name, value in evaluate_drafter(pairs, data).items() if name.endswith("TV")}


@torch.no_grad()
def sample(model: ARModel, codes: Tensor) -> Tensor:
    """Tokens [B, 9] of codes [B, 2] under the conditional probabilities."""
    generator, tokens = torch.Generator().manual_seed(0), torch.zeros(len(codes), 9, dtype=torch.int64)
    for n in range(9):
        probs = model.head(model.streams(tokens, codes)[: len(codes), 1 + n]).softmax(-1)
        tokens[:, n] = torch.multinomial(probs, 1, generator=generator)[:, 0]
    return tokens
