"""The EAGLE drafter against its formula: slot t takes W [e(x_{t+1}) ; f_t] + b and predicts the
feature of t+1.

A bad draft is never wrong, only slow, so no lossless test sees one. Here every logit of three
rounds' trees is held against one plain causal pass (tests/oracles/plain_layers.py) over the slots
as the paper pairs them.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest
import torch
from torch import Tensor

from tests.fakes.toys import BASE, toy_drafter, toy_target
from tests.oracles import plain_layers
from tests.oracles.drafter_rounds import DrafterInputs, assert_rounds
from workers.drafters.eagle import EagleDrafter
from workers.models.target import Target
from workers.models.transformer import TransformerConfig

CONFIGS: dict[str, TransformerConfig] = {
    "LlamaGen's grid": replace(BASE, prompt_rope="zero"),
    "grid, prompt not turned": BASE,
    "line": replace(BASE, rope="line"),
}


def eagle(target: Target, filler: int | None) -> EagleDrafter:
    made = toy_drafter("eagle", target)
    assert isinstance(made, EagleDrafter)
    return EagleDrafter(target, made.layer, filler=filler)


def expected_logits(
    drafter: EagleDrafter,
    known: dict[object, Tensor],
    inputs: DrafterInputs,
    row: int,
    path: tuple[int, ...],
) -> Tensor:
    """Logits after the tokens so far and a path below them, slot by slot. known: what earlier calls
    predicted.
    """
    target, prompt_len = inputs.target, inputs.target.prompt_len
    tokens = inputs.tokens[inputs.caption(row)]
    slots: list[tuple[int, Tensor, Tensor]] = []  # place, embedding of x_{t+1}, feature f_t
    for t in inputs.prompt_slots(row)[:-1]:
        # prompts without token ids: one code's embedding stands in for the next token's
        following = (
            inputs.prompt.embeds[row, t + 1]
            if drafter.filler is None
            else target.embed.weight[drafter.filler]
        )
        slots.append((t - (prompt_len - 1), following, inputs.features[row, t]))
    for n, (token, feature) in enumerate(zip(tokens, inputs.before[row], strict=True)):
        slots.append((n, target.embed.weight[token], feature))
    # a draft's feature is what its parent's slot predicted
    for n, token in enumerate(path, start=len(tokens)):
        slots.append(
            (n, target.embed.weight[token], known[row, len(tokens), path[: n - len(tokens)]])
        )
    known[row, len(tokens), path] = predicted(drafter, slots)
    return plain_layers.linear(target.head, known[row, len(tokens), path])


def predicted(drafter: EagleDrafter, slots: list[tuple[int, Tensor, Tensor]]) -> Tensor:
    """The last slot's output."""
    fused = [
        plain_layers.linear(drafter.layer.fc, torch.cat([e.double(), f.double()]))
        for _, e, f in slots
    ]
    return plain_layers.causal_pass(drafter.layer.decoder, fused, [place for place, _, _ in slots])[
        -1
    ]


@pytest.mark.parametrize("filler", [0, 7, None])
@pytest.mark.parametrize("name", CONFIGS)
def test_every_node_is_what_one_causal_pass_predicts(name: str, filler: int | None) -> None:
    target = toy_target(config=CONFIGS[name])
    drafter = eagle(target, filler)
    assert_rounds(target, drafter, partial(expected_logits, drafter, {}))


def test_without_guidance_there_is_one_stream() -> None:
    target = toy_target(config=CONFIGS["line"])
    drafter = eagle(target, 0)
    assert_rounds(target, drafter, partial(expected_logits, drafter, {}), streams=1)
