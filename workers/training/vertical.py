"""The loss of FlashAR's vertical branch (arXiv 2605.09430; see `workers.models.vertical`).

One pass over a whole image, under the attention mask of diagonal decoding, gives the horizontal and
the vertical logits of every token. The loss is the cross-entropy of the mixed ones at all tokens,
with the distillation from the target's own probabilities in raster order and the cross-entropy of
the vertical logits alone as smaller terms. The target's weights stay as they are: the branch, its
gate and the adapters are trained together.

Shape legend: B examples, R rows, N tokens of an image, P prompt positions, V codes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

from workers.data.grid import Grid
from workers.decoding.row_ends import teacher_forced
from workers.drafters.vertical import RANK, untrained_branch
from workers.models.linear import fp32_logits, is_linear
from workers.models.masks import causal_padding_mask
from workers.models.target import Prompt, Target
from workers.models.transformer import Body, Transformer
from workers.models.vertical import VerticalBranch, adapted_weights, mix
from workers.training.examples import Examples
from workers.training.forward import features as training_features
from workers.training.forward import layer_states
from workers.training.loop import LossFunction, ProcessGroup


@dataclass(frozen=True, slots=True, kw_only=True)
class VerticalTraining:
    """Weights of the loss. The defaults are those published for Emu3.5."""

    distillation: float = 0.2  # weight of the target's probabilities
    temperature: float = 2.0  # of the distillation
    below: float = 0.05  # weight of the cross-entropy of the vertical logits alone
    caption_dropout: float = 0.1  # probability of the null prompt


class TokenLogits(NamedTuple):
    """The two predictions of every token of images, in raster order."""

    right: Tensor  # [R, N, V] horizontal logits
    below: Tensor  # [R, N, V] vertical logits
    edges: Tensor  # [N] see `mix`


def new_vertical(target: Target, seed: int, *, rank: int = RANK) -> VerticalBranch:
    """An untrained vertical branch of the target's shape. If the target's layers are this
    project's, its layer, norm and head start as the target's last ones.
    """
    torch.manual_seed(seed)
    branch = untrained_branch(target, rank=rank)
    body = target.transformer
    if isinstance(body, Transformer):
        branch.decoder.layers[0].load_state_dict(body.layers[-1].state_dict())
        branch.decoder.norm.load_state_dict(body.norm.state_dict())
    if is_linear(target.head) and target.head.bias is None:
        branch.head.load_state_dict(target.head.state_dict())
    return branch.to(target.device)


def diagonal_mask(valid: Tensor, grid: Grid) -> Tensor:
    """The boolean attention mask [R, 1, P + N, P + N] of prompts, whose positions are valid [R, P]
    or padding, and their images: causal among prompts; a cell sees the prompt and the cells of its
    own and of earlier diagonals.
    """
    cells = torch.arange(grid.tokens, device=valid.device)
    prompt = torch.arange(valid.shape[1], device=valid.device)
    order = torch.cat([prompt, len(prompt) + cells // grid.cols + cells % grid.cols])
    return causal_padding_mask(F.pad(valid, (0, grid.tokens), value=True), order)


class _Forward(nn.Module):
    """A pass of a target for training: its features, and the inputs of layer `start`."""

    def __init__(self, body: Body, start: int) -> None:
        super().__init__()
        self.body = body
        self.start = start

    def forward(self, x: Tensor, positions: Tensor, mask: Tensor) -> Sequence[Tensor]:
        if isinstance(self.body, Transformer):
            states = layer_states(self.body, x, positions, mask)
            return self.body.norm(states[-1]), states[self.start]
        outputs: Tensor = self.body(x, positions, mask=mask, taps=(self.start,))
        return outputs.chunk(2, dim=-1)


def token_logits(
    target: Target, branch: VerticalBranch, prompt: Prompt, tokens: Tensor
) -> TokenLogits:
    """The logits, in fp32, of every token of images [R, N] under their prompts."""
    grid = target.grid
    x = torch.cat([prompt.embeds, target.embed(tokens)], dim=1)
    positions = torch.arange(x.shape[1], device=x.device)
    mask = diagonal_mask(prompt.valid, grid)
    weights = {}
    if len(branch.adapters):
        changed = adapted_weights(target.transformer, branch.adapters)
        weights = {f"body.{name}": weight for name, weight in changed.items()}
    forward = _Forward(target.transformer, branch.start)
    features, source = functional_call(forward, weights, (x, positions, mask))
    vertical = training_features(branch.decoder, source, positions, mask)
    last = prompt.embeds.shape[1] - 1
    right = fp32_logits(target.head, features[:, last:])
    below = fp32_logits(branch.head, vertical[:, last:])
    edges = torch.zeros(grid.rows, grid.cols, dtype=torch.int64, device=x.device)
    edges[0, 1:] = 1
    edges[1:, 0] = -1
    return TokenLogits(
        _next_cell(right, grid, dim=2), _next_cell(below, grid, dim=1), edges.flatten()
    )


def _next_cell(logits: Tensor, grid: Grid, dim: int) -> Tensor:
    """Logits [R, N, V] of each cell by the one before it in the dimension, of those behind the
    prompt's last token and each cell [R, 1 + N, V]. The first cell's are the prompt's.
    """
    cells = logits[:, 1:].reshape(len(logits), grid.rows, grid.cols, -1)
    moved = cells.roll(1, dims=dim).flatten(1, 2)
    return torch.cat([logits[:, :1], moved[:, 1:]], dim=1)


def mixed_logits(branch: VerticalBranch, found: TokenLogits, form: str = "learned") -> Tensor:
    """The logits [R, N, V] from which tokens are sampled, by a form of the gate."""
    weight = branch.gate.weight(form, found.right, found.below)
    return mix(found.right, found.below, weight, found.edges)


def vertical_loss(
    target: Target, branch: VerticalBranch, data: Examples, config: VerticalTraining
) -> LossFunction:
    """A function that computes the loss of this process's share of a batch of examples."""

    def loss(indices: Tensor, generator: torch.Generator) -> Tensor:
        share = ProcessGroup.current().share(len(indices))
        captions, tokens = data.pick(indices[share], target.device)
        prompt = target.encode(captions, guided=True)
        dropped = torch.rand(len(indices), generator=generator) < config.caption_dropout
        rows = (torch.arange(len(captions)) + len(captions) * dropped[share]).to(tokens.device)
        prompt = Prompt(prompt.embeds[rows], prompt.valid[rows])
        found = token_logits(target, branch, prompt, tokens)
        mixed = mixed_logits(branch, found)
        total = _cross_entropy(mixed, tokens)
        if config.distillation:
            total = total + config.distillation * _distillation(
                target, prompt, tokens, mixed, config
            )
        if config.below:
            total = total + config.below * _cross_entropy(
                found.below[:, found.edges < 1], tokens[:, found.edges < 1]
            )
        # trains the scalar gate, and nothing else; it does not count
        apart = TokenLogits(found.right.detach(), found.below.detach(), found.edges)
        by_scalar = _cross_entropy(mixed_logits(branch, apart, "scalar"), tokens)
        return total + (by_scalar - by_scalar.detach())

    return loss


def _cross_entropy(logits: Tensor, tokens: Tensor) -> Tensor:
    """The mean cross-entropy in nats of tokens [R, n] under logits [R, n, V]."""
    return F.cross_entropy(logits.flatten(0, 1), tokens.flatten())


def _distillation(
    target: Target, prompt: Prompt, tokens: Tensor, logits: Tensor, config: VerticalTraining
) -> Tensor:
    """The mean divergence, in nats, of the target's probs from those of logits [R, N, V], at the
    temperature and times its square.
    """
    features = teacher_forced(target, prompt, tokens[:, :-1])[:, prompt.embeds.shape[1] - 1 :]
    teacher = fp32_logits(target.head, features)
    log_p = (logits / config.temperature).log_softmax(-1)
    log_q = (teacher / config.temperature).log_softmax(-1)
    divergence = (log_q.exp() * (log_q - log_p)).sum(-1).mean()
    return divergence * config.temperature**2
