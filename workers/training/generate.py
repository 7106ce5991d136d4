"""Plain sampling from a target during training, for drafters to learn on what it draws (as LANTERN's did)."""

from __future__ import annotations

import copy

import torch
from torch import Tensor

from workers.training.evaluate import mixed
from workers.training.parts import ARModel


@torch.no_grad()
def sample_tokens(model: ARModel, codes: Tensor, scales: Tensor, generator: torch.Generator) -> Tensor:
    """Tokens [B, N] of captions' codes [B, P] at guidance scales [B], temperature 1.

    `generator` lives on the model's device. Runs in bf16 on a GPU, where many rows are drawn at once, else in fp32.
    """
    device = codes.device
    body = copy.deepcopy(model.transformer)
    if device.type == "cuda":
        body = body.to(torch.bfloat16)
        body.rotations = model.transformer.rotations  # a change of type would drop the imaginary parts
    assert body.embed is not None
    assert body.head is not None
    config, prompt = body.config, model.conditioner.embed(codes)
    both = torch.cat([prompt, model.conditioner.nothing.expand_as(prompt)]).to(body.head.weight.dtype)
    rows, length = both.shape[0], config.prompt_len
    cache = body.new_cache(rows, length + config.image_len)
    places = torch.arange(length, device=device).expand(rows, -1)
    causal = torch.ones(length, length, dtype=torch.bool, device=device).tril().expand(rows, 1, -1, -1)
    hidden = body(both, places, cache=cache, columns=places, span=length, mask=causal)[:, -1]
    tokens: list[Tensor] = []
    for n in range(config.image_len):
        law = mixed(body.head(hidden).unflatten(0, (2, -1)).unsqueeze(2), scales[:, None, None])[:, 0].softmax(-1)
        tokens.append(torch.multinomial(law, 1, generator=generator))
        place = torch.full((rows, 1), length + n, device=device)
        x = body.embed(tokens[-1]).repeat(2, 1, 1)
        hidden = body(x, place, cache=cache, columns=place, span=length + n + 1)[:, -1]
    return torch.cat(tokens, dim=1)
