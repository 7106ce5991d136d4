"""Diagonal decoding spelled out: the logits of every token of an image, in float64, from FlashAR's
formulas (arXiv 2605.09430).
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from search_spaces.trial import Sampling
from tests.oracles import plain_layers
from workers.decoding.sampling import stream_count, to_probs
from workers.models.target import Target
from workers.models.transformer import Transformer
from workers.models.vertical import VerticalBranch


def changed(target: Target, branch: VerticalBranch, *, rounded: bool = True) -> Transformer:
    """The target's transformer with each layer's weight W + U D, rounded to float16."""
    model = copy.deepcopy(target.transformer)
    assert isinstance(model, Transformer)
    state = model.state_dict()
    own = branch.state_dict()
    names = [
        f"layers.{layer}.{part}.weight"
        for layer in range(model.config.n_layers)
        for part in ("attention.wqkv", "attention.wo", "feed_forward.w13", "feed_forward.w2")
    ]
    for number, name in enumerate(names):
        if branch.rank:
            state[name] += own[f"adapters.{number}.up"] @ own[f"adapters.{number}.down"]
            if rounded:
                state[name] = state[name].half().float()
    model.load_state_dict(state)
    return model


def gate(branch: VerticalBranch, right: Tensor, below: Tensor) -> float:
    """The published gate: a linear layer of both logits, centred and over their root mean square,
    within 6 of 0; SiLU; a linear layer; a sigmoid.
    """
    own = {name: value.double() for name, value in branch.gate.state_dict().items()}
    x = torch.cat([right, below])
    x = x - x.sum() / len(x)
    x = x / math.sqrt(float((x * x).sum()) / len(x))
    x = torch.where(x > 6, 6.0, torch.where(x < -6, -6.0, x))
    hidden = own["hidden.weight"] @ x
    out = own["out.weight"] @ (hidden / (1 + (-hidden).exp())) + own["out.bias"]
    return float(1 / (1 + (-out).exp()))


def predictions(
    target: Target,
    branch: VerticalBranch,
    prompt: Tensor,
    tokens: Sequence[int],
    *,
    rounded: bool = True,
) -> tuple[Tensor, Tensor]:
    """Horizontal and vertical logits [1 + N, V] behind the last token of a prompt [P, D] without
    padding, and behind each cell.
    """
    rows, cols = target.grid.rows, target.grid.cols
    cells = [divmod(cell, cols) for cell in range(rows * cols)]
    first = len(prompt)
    inputs = [*prompt, *target.embed(torch.tensor(tokens))]
    ends = [row * (target.row_end is not None) for row, _ in cells]
    places = [*range(-first, 0), *(cell + end for cell, end in enumerate(ends))]
    sees = [list(range(s + 1)) for s in range(first)]
    for row, col in cells:
        others = [n for n, (r, c) in enumerate(cells) if r + c <= row + col]
        sees.append([*range(first), *(first + n for n in others)])
    body = changed(target, branch, rounded=rounded)
    states = plain_layers.states(body, inputs, places, sees)
    right = plain_layers.linear(target.head, plain_layers.normed(body, states[-1]).T).T
    own = plain_layers.states(branch.decoder, list(states[branch.start]), places, sees)[-1]
    below = plain_layers.linear(branch.head, plain_layers.normed(branch.decoder, own).T).T
    return right[first - 1 :], below[first - 1 :]


def token_logits(
    target: Target,
    branch: VerticalBranch,
    prompt: Tensor,
    tokens: Sequence[int],
    form: str = "learned",
    *,
    rounded: bool = True,
) -> Tensor:
    """The logits [N, V] of every token."""
    cols = target.grid.cols
    right, below = predictions(target, branch, prompt, tokens, rounded=rounded)
    found = []
    for cell in range(target.grid.tokens):
        row, col = divmod(cell, cols)
        by_left = right[0 if cell == 0 else cell]  # entry n is behind cell n - 1
        by_upper = below[0 if cell == 0 else cell - cols + 1]
        if row == 0 and col > 0:
            found.append(by_left)
        elif col == 0 and row > 0:
            found.append(by_upper)
        else:
            weight = 0.5
            if form == "learned":
                weight = gate(branch, by_left, by_upper)
            elif form == "scalar":
                weight = float(branch.gate.scalar.double().sigmoid())
            found.append(weight * by_left + (1 - weight) * by_upper)
    return torch.stack(found)


def token_probs(
    target: Target,
    branch: VerticalBranch,
    caption: str,
    tokens: Sequence[int],
    sampling: Sampling,
    form: str = "learned",
) -> Tensor:
    """The probs [N, V] of every token: guidance of the mixed logits, then the filters."""
    prompt = target.encode([caption], guided=stream_count(sampling.cfg) == 2)
    cond, *null = (
        token_logits(target, branch, embeds[valid], tokens, form)
        for embeds, valid in zip(prompt.embeds, prompt.valid, strict=True)
    )
    for other in null:
        cond = other + sampling.cfg * (cond - other)
    return to_probs(cond, sampling)


def image_probs(
    target: Target, branch: VerticalBranch, caption: str, sampling: Sampling
) -> np.ndarray:
    """The probs of all images, the first cell most significant."""
    codes, count = target.vocab_size, target.grid.tokens
    probs = []
    for image in np.ndindex(*[codes] * count):
        found = token_probs(target, branch, caption, image, sampling)
        probs.append(math.prod(float(row[token]) for row, token in zip(found, image, strict=True)))
    return np.array(probs)
