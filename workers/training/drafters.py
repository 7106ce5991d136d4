"""Distillation of drafters that read the target's features (EAGLE layer, Medusa heads), for any target; the target is
frozen.

One teacher-forced pass gives the target's features f. Slot s of the EAGLE layer pairs f_s with the embedding of the
token at position s + 1 and predicts f_{s+1}; Medusa's head m reads f_s and predicts the token m + 2 positions later.
The loss compares drafter and target at each draft level, over the slots that draft a token of the image:

    sum over levels j of level_decay^j (cross_entropy CE(q, p) + variation TV(q, p) + feature SmoothL1(fhat, f))

with q the target's probabilities and p the drafter's. `Distillation` has the weights. Its defaults are the published
recipe (EAGLE-1; LANTERN's settings for images): one level, noise on the features, a tenth of the examples under the
null prompt. Three points differ from the released code: tokens are shifted by one for every family, the slot that
drafts the image's second token is trained, and prompt padding is masked.

With `guidance`, q and p are those that decoding compares: conditional and null logits combined by classifier-free
guidance, at a scale drawn per image. With several levels the EAGLE layer is unrolled: at level j it reads its own
predictions of the levels before, as when drafting (the idea of HASS, Zhang et al. 2024).

All random numbers of an example are determined by the step and its index in the batch, so the number of processes does
not matter.

Shape legend: B examples, R rows (B, or 2B under guidance: conditional, then null), N tokens of an image, P prompt
positions, S = P + N - 2 slots, D width, V codes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from workers.decoding.row_ends import teacher_forced
from workers.drafters.eagle import EagleLayer
from workers.drafters.medusa import MedusaHeads
from workers.models.masks import causal_padding_mask
from workers.models.target import Prompt, Target
from workers.models.transformer import Layer, Transformer
from workers.training.examples import Examples
from workers.training.forward import finish, project, rotation
from workers.training.loop import LossFunction
from workers.training.process_group import SINGLE_PROCESS, ProcessGroup

Drafter = EagleLayer | MedusaHeads

_INPUT_NORM = "attention_norm.weight"


@dataclass(frozen=True, slots=True, kw_only=True)
class Distillation:
    """Weights and augmentation of the loss (see the module's docstring). The defaults are EAGLE's published recipe.

    guidance: bounds of the guidance scales, drawn uniformly per image; None: no guidance, and the null prompt replaces
    the caption with probability `caption_dropout`. noise: uniform noise of width noise x 512 / S is added to the input
    features. level_decay: factor of the loss from one level to the next.
    """

    cross_entropy: float = 0.1
    variation: float = 0.0
    feature: float = 1.0
    levels: int = 1
    level_decay: float = 0.8
    noise: float = 0.2
    caption_dropout: float = 0.1
    guidance: tuple[float, float] | None = None


class Slots(NamedTuple):
    """What the drafters read: embeddings [R, S, D], features [R, S, D] and mask [R, 1, S, S] (True: visible); and the
    features [R, N - 1, D] that the last N - 1 slots should predict.
    """

    embeddings: Tensor
    features: Tensor
    mask: Tensor
    labels: Tensor

    @property
    def positions(self) -> Tensor:
        """[S] positions of the slots' tokens."""
        return torch.arange(1, self.features.shape[1] + 1, device=self.features.device)


@torch.no_grad()
def slots(target: Target, prompt: Prompt, tokens: Tensor) -> Slots:
    """The slots of images [R, N] under their prompts, in fp32."""
    features = teacher_forced(target, prompt, tokens[:, :-1]).float()
    following, filler = prompt.embeds[:, 1:], prompt_filler(target)
    if filler is not None:
        following = target.embed(torch.full(following.shape[:2], filler, device=tokens.device))
    embeddings = torch.cat([following, target.embed(tokens[:, :-1])], dim=1).float()
    valid = F.pad(prompt.valid[:, :-1], (0, tokens.shape[1] - 1), value=True)
    return Slots(embeddings, features[:, :-1], causal_padding_mask(valid), features[:, prompt.valid.shape[1] :])


def prompt_filler(target: Target) -> int | None:
    """Token id used where prompts have no token ids (LlamaGen; see `EagleDrafter`); else None."""
    return 0 if target.transformer.config.rope == "grid" else None


def head_logits(target: Target, features: Tensor) -> Tensor:
    """The target's logits [..., V] in fp32 of features [..., D] in any dtype."""
    out: Tensor = target.head(features.to(target.dtype))
    return out.float()


def combine(logits: Tensor, scales: Tensor | float | None) -> Tensor:
    """Guided logits [B, n, V] in fp32 of conditional and null rows [2B, n, V]; scales [B, 1, 1]. With scales None, the
    logits in fp32.
    """
    if scales is None:
        return logits.float()
    cond, null = logits.float().chunk(2)
    return torch.add(null, scales * (cond - null))


def unroll(layer: EagleLayer, inputs: Slots, levels: int) -> list[Tensor]:
    """Predicted features [R, S, D] at draft levels 1..`levels`; slot s predicts the feature at position s + 1.

    At level j, slot s stands for a draft whose j - 1 predecessors are drafts too: it reads the level j - 1 prediction
    of slot s - 1 instead of a true feature, and attends to slots s - i at level j - i for i < j - 1, to earlier ones at
    level 1. The first j - 1 image slots have no such history at level j; the loss leaves them out.
    """
    embeddings, features, mask, _ = inputs
    if levels == 1:
        return [layer(embeddings, features, inputs.positions, mask)]
    block, rope = layer.decoder.layers[0], rotation(layer.decoder, inputs.positions)
    assert isinstance(block, Layer)
    size = features.shape[1]
    order = torch.arange(size, device=features.device)
    distance = order[:, None] - order[None, :]
    keys: list[Tensor] = []
    values: list[Tensor] = []
    outputs: list[Tensor] = []
    current = features
    for level in range(levels):
        x = layer.fuse(embeddings, current)
        q, k, v = project(block.attention, block.attention_norm(x), rope)
        keys.append(k)
        values.append(v)
        # slot s - i at level j - i is diagonal i of the scores against that level's keys; other slots are at level 1
        hidden = ~mask | (distance < level)
        bulk = (q @ keys[0].transpose(-1, -2)).float().masked_fill(hidden, float("-inf"))
        recent = [_diagonal(q, keys[level - i], i) for i in range(level)]
        weights = torch.cat([bulk, *recent], dim=-1).softmax(-1).to(v.dtype)
        attended = weights[..., :size] @ values[0]
        for i in range(level):
            attended = attended + weights[..., size + i, None] * _shift(values[level - i], i)
        outputs.append(layer.decoder.norm(finish(block, x, attended)))
        current = torch.cat([features[:, :1], outputs[-1][:, :-1].to(features.dtype)], dim=1)
    return outputs


def _shift(x: Tensor, offset: int) -> Tensor:
    """x [R, H, S, C] shifted by `offset` slots to the right, padded with zeros on the left."""
    return F.pad(x, (0, 0, offset, 0))[:, :, : x.shape[2]] if offset else x


def _diagonal(q: Tensor, k: Tensor, offset: int) -> Tensor:
    """Scores [R, H, S, 1] of each slot's query against the key `offset` slots before; -inf where there is none."""
    scores = (q * _shift(k, offset)).float().sum(-1, keepdim=True)
    missing = torch.arange(q.shape[2], device=q.device)[:, None] < offset
    return scores.masked_fill(missing, float("-inf")) if offset else scores


def draft_levels(target: Target, drafter: Drafter, inputs: Slots, levels: int) -> list[tuple[Tensor, Tensor | None]]:
    """For each draft level j from 0: the drafter's logits [R, N - 1 - j, V] for the tokens of labels [:, j:], and an
    EAGLE layer's predictions [R, N - 1 - j, D] of those labels. Medusa has one level per head.
    """
    count = inputs.labels.shape[1]
    if isinstance(drafter, EagleLayer):
        predictions = [out[:, out.shape[1] - count + j :] for j, out in enumerate(unroll(drafter, inputs, levels))]
        return [(head_logits(target, out), out) for out in predictions]
    features = inputs.features[:, -count:].to(target.dtype)
    heads = range(len(drafter.residuals))
    return [(drafter(features[:, : count - j], j, target.head).float(), None) for j in heads]


def soft_loss(logits: Tensor, probs: Tensor, config: Distillation) -> Tensor:
    """Weighted cross-entropy and total variation of the drafter's logits to the target's probabilities [B, n, V]."""
    log_p = logits.log_softmax(-1)
    loss = config.cross_entropy * -(probs * log_p).sum(-1).mean()
    if config.variation:
        loss = loss + config.variation * (probs - log_p.exp()).abs().sum(-1).mean() / 2
    return loss


def drafter_loss(
    target: Target,
    drafter: Drafter,
    data: Examples,
    config: Distillation,
    *,
    group: ProcessGroup = SINGLE_PROCESS,
    compiled: bool = False,
) -> LossFunction:
    """A function that computes the loss of this process's share of a batch of examples."""

    def levels_loss(inputs: Slots, probs: Tensor, scales: Tensor | None) -> Tensor:
        total = torch.zeros((), device=probs.device)
        for j, (logits, predicted) in enumerate(draft_levels(target, drafter, inputs, config.levels)):
            loss = soft_loss(combine(logits, scales), probs[:, j:], config)
            if predicted is not None:
                loss = loss + config.feature * F.smooth_l1_loss(predicted.float(), inputs.labels[:, j:])
            total = total + config.level_decay**j * loss
        return total

    run = torch.compile(levels_loss, dynamic=False) if compiled else levels_loss

    def loss(indices: Tensor, generator: torch.Generator) -> Tensor:
        share, scales, size = group.share(len(indices)), None, len(indices)
        captions, tokens = data.pick(indices[share], target.device)
        prompt = target.encode(captions, guided=True)
        if config.guidance is None:
            dropped = torch.rand(size, generator=generator) < config.caption_dropout
            rows = torch.arange(len(captions)) + len(captions) * dropped[share]
            prompt = Prompt(prompt.embeds[rows.to(tokens.device)], prompt.valid[rows.to(tokens.device)])
        else:
            low, high = config.guidance
            drawn = low + (high - low) * torch.rand(size, generator=generator)
            scales, tokens = drawn[share][:, None, None].to(tokens.device), tokens.repeat(2, 1)
        seeds = torch.randint(1 << 62, (size,), generator=generator)[share]
        inputs = slots(target, prompt, tokens)
        if config.noise:
            noise = torch.stack([feature_noise(inputs.features[0], int(seed), config.noise) for seed in seeds])
            inputs = inputs._replace(features=inputs.features + noise.repeat(len(tokens) // len(captions), 1, 1))
        with torch.no_grad():
            probs = combine(head_logits(target, inputs.labels), scales).softmax(-1)
        out: Tensor = run(inputs, probs, scales)
        return out

    return loss


def feature_noise(like: Tensor, seed: int, scale: float) -> Tensor:
    """(U - 1/2) scale 512 / S, U uniform in [0, 1), of the shape [S, D] of `like` (EAGLE's feature augmentation)."""
    generator = torch.Generator(like.device).manual_seed(seed)
    drawn = torch.rand(like.shape, generator=generator, device=like.device)
    return (drawn - 0.5) * (scale * 512 / like.shape[0])


def new_eagle(target: Target, seed: int) -> EagleLayer:
    """An untrained EAGLE layer of the target's shape, with an input norm if its prompts are tokens (Chameleon). It is
    initialised from the target's last layer if that is one of this project's layers.
    """
    torch.manual_seed(seed)
    body = target.transformer.config
    layer = EagleLayer(replace(body, n_layers=1, vocab_size=0, input_norm=body.rope == "line", final_norm=False))
    if isinstance(target.transformer, Transformer):
        last = target.transformer.layers[-1].state_dict()
        kept = {key: value for key, value in last.items() if body.rope == "line" or key != _INPUT_NORM}
        layer.decoder.layers[0].load_state_dict(kept)
    return layer.to(target.device)


def new_medusa(target: Target, heads: int, *, shared_head: bool = False) -> MedusaHeads:
    """Medusa heads that start as the target's own head."""
    config = target.transformer.config
    medusa = MedusaHeads(config.dim, config.vocab_size, heads, shared_head=shared_head)
    for head in medusa.heads or ():
        head.load_state_dict(target.head.state_dict())
    return medusa.to(target.device)


def header(target: Target, drafter: Drafter) -> dict[str, Any]:
    """The config stored in the drafter file's header."""
    if isinstance(drafter, EagleLayer):
        return {"transformer": asdict(drafter.decoder.config), "filler": prompt_filler(target)}
    own_heads = drafter.heads is not None
    sizes = {"dim": drafter.dim, "vocab_size": drafter.vocab_size, "heads": len(drafter.residuals)}
    return {**sizes, "shared_head": not own_heads}


def encode_pairs(target: Target, captions: Sequence[str], tokens: Tensor) -> Slots:
    """The slots of images [B, N] under their captions, then under the null prompt: R = 2B."""
    return slots(target, target.encode(captions, guided=True), tokens.repeat(2, 1))
