"""Training of the drafters that read the target's features, by distilling its *guided* law; the target is frozen.

At decoding time a drafter's conditional and null logits are combined by classifier-free guidance before a draft is
drawn, and accepted by comparison with the target's combined law. So the loss compares the two combined laws, at a scale
drawn per image: cross-entropy to the target's law (a good gradient far away) plus total variation (what the exact rule
rejects). The EAGLE layer adds the smooth L1 distance of its features (Li et al. 2024) and is unrolled: at level j it
reads its own features of the levels before, as it will when drafting (the idea of HASS, Zhang et al. 2024).

Shape legend: B images, R = 2B rows (conditional, then null), N tokens of an image, P prompt positions, S slots,
D width, V codes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from workers.drafters.eagle import EagleLayer
from workers.drafters.medusa import MedusaHeads
from workers.models.transformer import Layer
from workers.training.forward import finish, project, rotation
from workers.training.loop import Figures, LossFunction, Progress, TrainConfig, train
from workers.training.parts import ARModel, TokenSet

Drafter = EagleLayer | MedusaHeads


@dataclass(frozen=True, slots=True, kw_only=True)
class DistillConfig:
    """Weights of the loss. `fade` multiplies each further draft level; guidance scales are uniform between bounds."""

    cross_entropy: float = 0.5
    variation: float = 1.0
    feature: float = 0.1
    fade: float = 0.8
    levels: int = 3
    lowest_scale: float = 1.0
    highest_scale: float = 4.0

    def scales(self, count: int, generator: torch.Generator) -> Tensor:
        """Guidance scales [B, 1, 1]."""
        width = self.highest_scale - self.lowest_scale
        return (self.lowest_scale + width * torch.rand(count, generator=generator))[:, None, None]


def guided(logits: Tensor, scales: Tensor) -> Tensor:
    """Guided logits [B, n, V] in fp32 of conditional and null rows [R, n, V]; scales [B, 1, 1]."""
    cond, null = logits.float().chunk(2)
    return null + scales * (cond - null)


def law_loss(student: Tensor, law: Tensor, scales: Tensor, config: DistillConfig) -> Tensor:
    """Cross-entropy plus total variation to the target's guided law [B, n, V] of the student's logits [R, n, V]."""
    log_p = guided(student, scales).log_softmax(-1)
    cross_entropy = -(law * log_p).sum(-1).mean()
    variation = (law - log_p.exp()).abs().sum(-1).mean() / 2
    return config.cross_entropy * cross_entropy + config.variation * variation


def eagle_inputs(target: ARModel, tokens: Tensor, features: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Embeddings [R, S, D], features [R, S, D] and positions [S] of all slots; S = P + N - 2.

    Slot s pairs the target's feature at position s with the token at position s + 1; prompt positions have no token,
    code 0 stands in for them. features [R, P + N - 1, D], tokens [B, N].
    """
    prompt = target.conditioner.prompt_len
    shifted = F.pad(tokens[:, :-1], (prompt - 1, 0))
    embeddings = target.embed(shifted).repeat(2, 1, 1)
    return embeddings, features[:, :-1], torch.arange(1, features.shape[1], device=tokens.device)


def unroll(layer: EagleLayer, embeddings: Tensor, features: Tensor, positions: Tensor, levels: int) -> list[Tensor]:
    """Predicted features [R, S, D] at draft levels 1..`levels`; slot s predicts the feature at position s + 1.

    At level j, slot s stands for a draft whose j - 1 predecessors are drafts too: it reads the level j - 1 prediction
    of slot s - 1 instead of a true feature, and attends to slots s - i at level j - i for i < j - 1, to earlier ones at
    level 1. The first j - 1 image slots have no such history at level j; the loss leaves them out.
    """
    block, by = layer.decoder.layers[0], rotation(layer.decoder, positions)
    assert isinstance(block, Layer)
    size = features.shape[1]
    slots = torch.arange(size, device=features.device)
    distance = slots[:, None] - slots[None, :]
    keys: list[Tensor] = []
    values: list[Tensor] = []
    outputs: list[Tensor] = []
    current = features
    for level in range(levels):
        x = layer.fuse(embeddings, current)
        q, k, v = project(block.attention, block.attention_norm(x), by)
        keys.append(k)
        values.append(v)
        # Column s - i at level j - i: diagonal i of the scores against that level's keys. Only true slots come in bulk.
        bulk = (q @ keys[0].transpose(-1, -2)).float().masked_fill(distance < level, float("-inf"))
        recent = [_diagonal(q, keys[level - i], i) for i in range(level)]
        weights = torch.cat([bulk, *recent], dim=-1).softmax(-1).to(v.dtype)
        attended = weights[..., :size] @ values[0]
        for i in range(level):
            attended = attended + weights[..., size + i, None] * _later(values[level - i], i)
        outputs.append(layer.decoder.norm(finish(block, x, attended)))
        current = torch.cat([features[:, :1], outputs[-1][:, :-1].to(features.dtype)], dim=1)
    return outputs


def _later(x: Tensor, by: int) -> Tensor:
    """x [R, H, S, C] moved `by` slots later; zeros come in."""
    return F.pad(x, (0, 0, by, 0))[:, :, : x.shape[2]] if by else x


def _diagonal(q: Tensor, k: Tensor, by: int) -> Tensor:
    """Scores [R, H, S, 1] of each slot's query against the key `by` slots before; -inf where there is none."""
    scores = (q * _later(k, by)).float().sum(-1, keepdim=True)
    missing = torch.arange(q.shape[2], device=q.device)[:, None] < by
    return scores.masked_fill(missing, float("-inf")) if by else scores


def eagle_loss(target: ARModel, layer: EagleLayer, config: DistillConfig) -> Callable[..., Tensor]:
    """Loss of (tokens [B, N], codes [B, P], scales [B, 1, 1])."""
    first = target.conditioner.prompt_len - 1

    def loss(tokens: Tensor, codes: Tensor, scales: Tensor) -> Tensor:
        with torch.no_grad():
            features = target.streams(tokens, codes)
            inputs = eagle_inputs(target, tokens, features)
            laws = guided(target.head(features[:, first + 1 :]), scales).softmax(-1)
        total = torch.zeros((), device=features.device)
        for j, out in enumerate(unroll(layer, *inputs, config.levels)):
            drafted, true = out[:, first + j :], features[:, first + j + 1 :]
            distance = F.smooth_l1_loss(drafted.float(), true.float())
            miss = law_loss(target.head(drafted), laws[:, j:], scales, config)
            total = total + config.fade**j * (miss + config.feature * distance)
        return total

    return loss


def medusa_logits(target: ARModel, heads: MedusaHeads, features: Tensor) -> list[Tensor]:
    """Head m's logits [R, N - 1 - m, V] where its token exists; features [R, N, D] from the prompt's last position."""
    count = len(heads.residuals)
    return [heads(features[:, : features.shape[1] - 1 - m], m, target.head) for m in range(count)]


def medusa_loss(target: ARModel, heads: MedusaHeads, config: DistillConfig) -> Callable[..., Tensor]:
    def loss(tokens: Tensor, codes: Tensor, scales: Tensor) -> Tensor:
        with torch.no_grad():
            features = target.streams(tokens, codes)[:, target.conditioner.prompt_len - 1 :]
            laws = guided(target.head(features), scales).softmax(-1)
        total = torch.zeros((), device=features.device)
        for m, logits in enumerate(medusa_logits(target, heads, features)):
            total = total + config.fade**m * law_loss(logits, laws[:, m + 1 :], scales, config)
        return total

    return loss


def on_examples(run: Callable[..., Tensor], data: TokenSet, config: DistillConfig, *, compiled: bool) -> LossFunction:
    """The loss of example indices, as the training loop wants it, of a loss of (tokens, codes, scales)."""
    fast = torch.compile(run, dynamic=False) if compiled else run

    def loss(indices: Tensor, generator: torch.Generator) -> Tensor:
        tokens, codes = data.pick(indices)
        out: Tensor = fast(tokens, codes, config.scales(len(indices), generator).to(tokens.device))
        return out

    return loss


def new_eagle(target: ARModel, seed: int) -> EagleLayer:
    """An EAGLE layer of the target's shape that starts as its last layer (without the input norm)."""
    torch.manual_seed(seed)
    body = target.transformer
    layer = EagleLayer(replace(body.config, n_layers=1, vocab_size=0, input_norm=False, final_norm=False))
    last = {k: v for k, v in body.layers[-1].state_dict().items() if not k.startswith("attention_norm")}
    layer.decoder.layers[0].load_state_dict(last)
    return layer.to(body.rotations.device)


def new_medusa(target: ARModel, heads: int, *, shared_head: bool) -> MedusaHeads:
    """Medusa heads that start as the target's own head."""
    config = target.transformer.config
    made = MedusaHeads(config.dim, config.vocab_size, heads, shared_head=shared_head)
    for head in made.heads or ():
        head.load_state_dict(target.head.state_dict())
    return made.to(target.head.weight.device)


def train_drafter(
    drafter: Drafter,
    target: ARModel,
    data: TokenSet,
    config: TrainConfig,
    distill: DistillConfig,
    *,
    name: str,
    save_to: Callable[[nn.Module], None],
    checkpoint: Path | None = None,
    resume: bool = False,
    log: Callable[[str], None] = print,
) -> tuple[nn.Module, Progress]:
    """Trains a drafter in place, the target frozen; `save_to` gets the averaged weights at every save and the end."""
    target.requires_grad_(False)
    if isinstance(drafter, EagleLayer):
        run = eagle_loss(target, drafter, distill)
    else:
        run = medusa_loss(target, drafter, distill)

    def on_save(average: nn.Module) -> Figures:
        save_to(average)
        return {}

    loss = on_examples(run, data, distill, compiled=config.compile)
    return train(
        drafter, loss, len(data), config, name=name, checkpoint=checkpoint, resume=resume, on_save=on_save, log=log
    )
