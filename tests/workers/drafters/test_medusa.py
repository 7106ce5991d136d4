"""Medusa's heads against their formula: on the feature f_t that the root was sampled from, head m
gives the logits of the token m after the root, logits_m = W_m (f + SiLU(V_m f + b_m)), whatever
path leads there.
"""

from __future__ import annotations

from typing import cast

import pytest
import torch
from torch import Tensor, nn

from tests.fakes.toys import toy_drafter, toy_target
from tests.oracles import plain_layers
from tests.oracles.drafter_rounds import DrafterInputs, assert_rounds
from workers.drafters.medusa import MedusaDrafter, MedusaHeads


def expected_logits(
    heads: MedusaHeads, inputs: DrafterInputs, row: int, path: tuple[int, ...]
) -> Tensor:
    feature, depth = inputs.before[row][-1].double(), len(path)
    hidden = feature + plain_layers.silu(plain_layers.linear(heads.residuals[depth], feature))
    head = inputs.target.head if heads.heads is None else heads.heads[depth]
    return plain_layers.linear(head, hidden)


@pytest.mark.parametrize("streams", [1, 2])
@pytest.mark.parametrize("shared_head", [False, True])
def test_every_node_is_what_its_levels_head_predicts(shared_head: bool, streams: int) -> None:
    target = toy_target()
    drafter = toy_drafter("medusa", target)
    assert isinstance(drafter, MedusaDrafter)
    heads = drafter.heads
    if shared_head:
        config = target.transformer.config
        heads = MedusaHeads(config.dim, config.vocab_size, 4, shared_head=True)
        torch.manual_seed(2)
        for parameter in heads.parameters():
            nn.init.normal_(parameter, std=0.2)
        drafter = MedusaDrafter(target, heads.requires_grad_(False))
    assert_rounds(
        target,
        drafter,
        lambda inputs, row, path: expected_logits(heads, inputs, row, path),
        streams=streams,
    )


def test_heads_start_as_the_targets_own() -> None:
    """Before any training V and b are zero, so that a shared head repeats the target's logits."""
    target = toy_target()
    heads = MedusaHeads(target.transformer.config.dim, target.vocab_size, 2, shared_head=True)
    features = torch.randn(
        3, target.transformer.config.dim, generator=torch.Generator().manual_seed(1)
    )
    for head in range(2):
        assert torch.equal(heads(features, head, target.head), cast(Tensor, target.head(features)))
