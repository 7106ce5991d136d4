"""The independent drafter: after its own prompt and the tokens so far, the plain causal pass of a
small AR model.
"""

from __future__ import annotations

from dataclasses import replace
from typing import cast

import pytest
from torch import Tensor

from tests.fakes.toys import BASE, toy_drafter, toy_target
from tests.oracles import plain_layers
from tests.oracles.drafter_rounds import CAPTIONS, DrafterInputs, assert_rounds
from workers.drafters.independent import IndependentDrafter
from workers.models.target import Conditioner
from workers.models.transformer import Transformer


def expected_logits(
    drafter: IndependentDrafter, inputs: DrafterInputs, row: int, path: tuple[int, ...]
) -> Tensor:
    """Logits after the tokens so far and a path below them; the target's prompt and features play
    no part.
    """
    model, caption = drafter.decoder, inputs.caption(row)
    assert isinstance(model, Transformer)
    assert model.embed is not None
    assert model.head is not None
    conditioner = cast(Conditioner, drafter.conditioner)
    prompt = conditioner(CAPTIONS)
    if row >= len(CAPTIONS):
        prompt = conditioner.null(prompt)
    slots = [
        (t - inputs.target.prompt_len, prompt.embeds[caption, t]) for t in inputs.prompt_slots(row)
    ]
    slots += [
        (n, model.embed.weight[token]) for n, token in enumerate([*inputs.tokens[caption], *path])
    ]
    places, embeddings = zip(*slots, strict=True)
    return plain_layers.linear(model.head, plain_layers.causal_pass(model, embeddings, places)[-1])


@pytest.mark.parametrize("streams", [1, 2])
@pytest.mark.parametrize(
    ("rope", "prompt_rope"), [("grid", "zero"), ("grid", "identity"), ("line", "zero")]
)
def test_every_node_is_what_one_causal_pass_predicts(
    rope: str, prompt_rope: str, streams: int
) -> None:
    target = toy_target(config=replace(BASE, rope=rope, prompt_rope=prompt_rope))  # type: ignore[arg-type]
    drafter = toy_drafter("independent", target)
    assert isinstance(drafter, IndependentDrafter)
    assert_rounds(
        target,
        drafter,
        lambda inputs, row, path: expected_logits(drafter, inputs, row, path),
        streams=streams,
    )
