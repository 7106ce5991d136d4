"""Losses and held-out metrics: drafters that are distilled from the features of a frozen target
(EAGLE layer, Medusa heads), and AR models (the independent drafter, and the built-in target, which
is trained likewise).

One teacher-forced pass gives the target's features f. Slot s of the EAGLE layer pairs f_s with the
embedding of the token at position s + 1 and predicts f_{s+1}; Medusa's head m reads f_s and
predicts the token m + 2 positions later. The distillation compares drafter and target at each draft
level, over the slots that draft a token of the image:

    sum over levels j of level_decay^j (cross_entropy CE(q, p) + feature SmoothL1(fhat, f))

with q the target's probabilities and p the drafter's. An EAGLE layer has one level, and Medusa has
one per head. `Distillation` has the weights. Its defaults are the published recipe (EAGLE-1;
LANTERN's settings for images): noise on the features, a tenth of the examples under the null
prompt. Three points differ from the released code: tokens are shifted by one for every family, the
slot that drafts the image's second token is trained, and prompt padding is masked.

The loss of an AR model is cross-entropy. Some captions are replaced by the null prompt, which
classifier-free guidance needs.

An EAGLE-3 layer has no feature loss. It is unrolled over `UNROLLED` levels (the published
training-time test), and compared with q over the codes that it drafts, in the slots where the
likeliest token under q is one of them.

Held-out metrics are teacher forced on real tokens. Their probabilities are at temperature 1 without
top-k or top-p, in fp32, with classifier-free guidance at the given scales (1: none).

All random numbers of an example are determined by the step and its index in the batch, so the
number of processes does not matter.

Shape legend: B examples, R rows (B, or 2B with guidance: conditional, then null), N tokens of an
image, P prompt positions, S = P + N - 2 slots, D width, V codes.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import product
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from workers.decoding.row_ends import teacher_forced
from workers.drafters.eagle import EagleLayer
from workers.drafters.eagle3 import Eagle3Layer, default_taps
from workers.drafters.medusa import MedusaHeads
from workers.models.families.conditioners import CodedConditioner, build_conditioner
from workers.models.families.scenes import ARModel
from workers.models.masks import causal_padding_mask
from workers.models.target import Prompt, Target
from workers.models.transformer import Layer, Transformer, TransformerConfig
from workers.models.vertical import VerticalBranch
from workers.training.examples import Examples
from workers.training.loop import Figures, LossFunction, ProcessGroup
from workers.training.unroll import Slots, unroll
from workers.training.vertical import mixed_logits, token_logits

Drafter = EagleLayer | MedusaHeads
Level = tuple[Tensor, Tensor | None]  # logits, and predicted features
LevelsOf = Callable[[Target, Drafter, "Slots"], list[Level]]
Forward = Callable[[Transformer, Tensor, Tensor], Tensor]

_CAPTION_DROPOUT = 0.1  # fraction of examples with the null prompt (Ho & Salimans 2022)
# Sizes of the independent drafter of the built-in model.
_DRAFTER = TransformerConfig(
    dim=128,
    n_layers=2,
    n_heads=4,
    head_dim=32,
    ffn_dim=352,
    vocab_size=1,
    rope="grid",
    prompt_rope="identity",
)
SCALES = (1.0, 3.0)  # guidance scales of held-out metrics
UNROLLED = 7  # levels of an EAGLE-3 layer in training
# Logit of the codes that a layer cannot draft; finite, so that guidance can combine it.
_NOT_DRAFTED = -1e4
_INPUT_NORM = "attention_norm.weight"


@dataclass(frozen=True, slots=True, kw_only=True)
class Distillation:
    """Weights and augmentation of the loss (see the module's docstring). The defaults are EAGLE's
    published recipe.
    """

    cross_entropy: float = 0.1  # weight of the cross-entropy
    feature: float = 1.0  # weight of the feature loss
    level_decay: float = 0.8  # factor of the loss from one level to the next
    noise: float = 0.2  # uniform noise of width noise x 512 / S is added to the input features
    caption_dropout: float = 0.1  # probability of the null prompt


@torch.no_grad()
def slots(target: Target, prompt: Prompt, tokens: Tensor, taps: Sequence[int] = ()) -> Slots:
    """The slots of images [R, N] under their prompts, in fp32; with `taps`, their features are the
    inputs of those layers.
    """
    outputs = teacher_forced(target, prompt, tokens[:, :-1], taps).float()
    dim = target.transformer.config.dim
    features = outputs
    if taps:
        features = outputs[..., dim:]
    following = prompt.embeds[:, 1:]
    filler = prompt_filler(target)
    if filler is not None:
        following = target.embed(torch.full(following.shape[:2], filler, device=tokens.device))
    embeddings = torch.cat([following, target.embed(tokens[:, :-1])], dim=1).float()
    valid = F.pad(prompt.valid[:, :-1], (0, tokens.shape[1] - 1), value=True)
    labels = outputs[:, prompt.valid.shape[1] :, :dim]
    return Slots(embeddings, features[:, :-1], causal_padding_mask(valid), labels)


def prompt_filler(target: Target) -> int | None:
    """Token id used where prompts have no token ids (LlamaGen; see `EagleDrafter`); else None."""
    if target.transformer.config.rope == "grid":
        return 0
    return None


def head_logits(target: Target, features: Tensor) -> Tensor:
    """The target's logits [..., V] in fp32 of features [..., D] in any dtype."""
    out: Tensor = target.head(features.to(target.dtype))
    return out.float()


def combine(logits: Tensor, scales: Tensor | float) -> Tensor:
    """Guided logits [B, n, V] in fp32 of conditional and null rows [2B, n, V]; scales [B, 1, 1]."""
    cond, null = logits.float().chunk(2)
    return torch.add(null, scales * (cond - null))


def draft_levels(target: Target, drafter: Drafter, inputs: Slots) -> list[Level]:
    """For each draft level j from 0: the drafter's logits [R, N - 1 - j, V] for the tokens of
    labels [:, j:], and an EAGLE layer's predictions [R, N - 1 - j, D] of those labels.
    """
    count = inputs.labels.shape[1]
    if isinstance(drafter, EagleLayer):
        levels = UNROLLED if isinstance(drafter, Eagle3Layer) else 1
        return unrolled_levels(target, drafter, inputs, levels)
    features = inputs.features[:, -count:].to(target.dtype)
    heads = range(len(drafter.residuals))
    return [(drafter(features[:, : count - j], j, target.head).float(), None) for j in heads]


def unrolled_levels(target: Target, layer: EagleLayer, inputs: Slots, levels: int) -> list[Level]:
    """The levels of `draft_levels` of an EAGLE layer that is unrolled over so many levels."""
    count = inputs.labels.shape[1]
    if isinstance(layer, Eagle3Layer):
        inputs = inputs._replace(features=layer.fc(inputs.features))
    outputs = [
        out[:, out.shape[1] - count + j :] for j, out in enumerate(unroll(layer, inputs, levels))
    ]
    if isinstance(layer, Eagle3Layer):
        return [
            (layer.spread(layer.head(layer.norm(out)).float(), _NOT_DRAFTED), None)
            for out in outputs
        ]
    return [(head_logits(target, out), out) for out in outputs]


def drafted_probs(drafter: Drafter, probs: Tensor) -> Tensor:
    """The target's probs [..., V] over the codes that an EAGLE-3 layer drafts, normalised; zeros
    where the likeliest code is another one.
    """
    if not isinstance(drafter, Eagle3Layer) or drafter.drafts_all:
        return probs
    kept = torch.zeros_like(probs).index_copy_(-1, drafter.ids, probs[..., drafter.ids])
    has_likeliest = kept.amax(-1, keepdim=True) == probs.amax(-1, keepdim=True)
    return kept / kept.sum(-1, keepdim=True) * has_likeliest


def drafter_loss(
    target: Target, drafter: Drafter, data: Examples, config: Distillation
) -> LossFunction:
    """A function that computes the loss of this process's share of a batch of examples."""

    def loss(indices: Tensor, generator: torch.Generator) -> Tensor:
        share = ProcessGroup.current().share(len(indices))
        size = len(indices)
        captions, tokens = data.pick(indices[share], target.device)
        prompt = target.encode(captions, guided=True)
        dropped = torch.rand(size, generator=generator) < config.caption_dropout
        rows = (torch.arange(len(captions)) + len(captions) * dropped[share]).to(tokens.device)
        inputs = slots(
            target, Prompt(prompt.embeds[rows], prompt.valid[rows]), tokens, drafter.taps
        )
        seeds = torch.randint(1 << 62, (size,), generator=generator)[share]
        if config.noise:
            noise = torch.stack(
                [feature_noise(inputs.features[0], int(seed), config.noise) for seed in seeds]
            )
            inputs = inputs._replace(features=inputs.features + noise)
        with torch.no_grad():
            probs = drafted_probs(drafter, head_logits(target, inputs.labels).softmax(-1))
        total = torch.zeros((), device=tokens.device)
        for j, (logits, predicted) in enumerate(draft_levels(target, drafter, inputs)):
            term = config.cross_entropy * -(probs[:, j:] * logits.log_softmax(-1)).sum(-1).mean()
            if predicted is not None:
                term = term + config.feature * F.smooth_l1_loss(
                    predicted.float(), inputs.labels[:, j:]
                )
            total = total + config.level_decay**j * term
        return total

    return loss


def feature_noise(like: Tensor, seed: int, scale: float) -> Tensor:
    """(U - 1/2) scale 512 / S, U uniform in [0, 1), of the shape [S, D] of `like` (EAGLE's feature
    augmentation).
    """
    generator = torch.Generator(like.device).manual_seed(seed)
    uniform = torch.rand(like.shape, generator=generator, device=like.device)
    return (uniform - 0.5) * (scale * 512 / like.shape[0])


def new_eagle(target: Target, seed: int) -> EagleLayer:
    """An untrained EAGLE layer of the target's shape, with an input norm if its prompts are tokens
    (Chameleon). It is initialised from the target's last layer if that is one of this project's
    layers.
    """
    torch.manual_seed(seed)
    body = target.transformer.config
    layer = EagleLayer(
        replace(body, n_layers=1, vocab_size=0, input_norm=body.rope == "line", final_norm=False)
    )
    if isinstance(target.transformer, Transformer):
        last = target.transformer.layers[-1].state_dict()
        kept = {
            key: value for key, value in last.items() if body.rope == "line" or key != _INPUT_NORM
        }
        layer.decoder.layers[0].load_state_dict(kept)
    return layer.to(target.device)


def new_eagle3(target: Target, seed: int, ids: Tensor | None = None) -> Eagle3Layer:
    """An untrained EAGLE-3 layer of the target's shape that drafts the codes `ids` [V_d] (rising;
    None: all). If the target's layers are this project's, it is initialised from the last of them
    and from the target's head, and its state is the highest tap.
    """
    torch.manual_seed(seed)
    body = target.transformer.config
    dim = target.transformer.config.dim
    config = replace(
        body, n_layers=1, vocab_size=0, qk_norm=False, input_norm=True, final_norm=False
    )
    ids = torch.arange(target.vocab_size) if ids is None else ids.cpu()
    layer = Eagle3Layer(
        config,
        taps=default_taps(body.n_layers),
        vocab_size=target.vocab_size,
        draft_vocab=len(ids),
    )
    layer.ids = ids
    if isinstance(target.transformer, Transformer) and target.transformer.head is not None:
        layer.to(target.device)
        block = layer.decoder.block
        last = target.transformer.layers[-1]
        assert isinstance(last, Layer)
        state = {key: value for key, value in last.state_dict().items() if "attention." not in key}
        block.load_state_dict(state, strict=False)
        with torch.no_grad():
            layer.fc.weight.zero_()[:, -dim:].fill_diagonal_(1)
            block.attention.wo.weight.copy_(last.attention.wo.weight)
            block.attention.wqkv.weight[:, dim:] = last.attention.wqkv.weight
            layer.decoder.hidden_norm.load_state_dict(last.attention_norm.state_dict())
            layer.norm.load_state_dict(target.transformer.norm.state_dict())
            layer.head.weight.copy_(target.transformer.head.weight[layer.ids])
    return layer.to(target.device)


def frequent_codes(tokens: Tensor, vocab_size: int, count: int) -> Tensor:
    """The `count` most frequent codes [count] of images' tokens, rising."""
    return tokens.flatten().long().bincount(minlength=vocab_size).topk(count).indices.sort().values


def new_medusa(target: Target, heads: int, *, shared_head: bool = False) -> MedusaHeads:
    """Medusa heads that start as the target's own head."""
    config = target.transformer.config
    medusa = MedusaHeads(config.dim, config.vocab_size, heads, shared_head=shared_head)
    for head in medusa.heads or ():
        head.load_state_dict(target.head.state_dict())
    return medusa.to(target.device)


def header(target: Target, drafter: Drafter | VerticalBranch) -> dict[str, Any]:
    """The config stored in the drafter file's header."""
    if isinstance(drafter, VerticalBranch):
        return drafter.settings()
    if isinstance(drafter, EagleLayer):
        own: dict[str, Any] = {
            "transformer": asdict(drafter.decoder.config),
            "filler": prompt_filler(target),
        }
        if isinstance(drafter, Eagle3Layer):
            own |= {
                "taps": drafter.taps,
                "vocab_size": drafter.vocab_size,
                "draft_vocab": len(drafter.ids),
            }
        return own
    own_heads = drafter.heads is not None
    sizes = {"dim": drafter.dim, "vocab_size": drafter.vocab_size, "heads": len(drafter.residuals)}
    return {**sizes, "shared_head": not own_heads}


def encode_pairs(
    target: Target, captions: Sequence[str], tokens: Tensor, taps: Sequence[int] = ()
) -> Slots:
    """The slots of images [B, N] under their captions, then under the null prompt: R = 2B. For
    `taps` see `slots`.
    """
    return slots(target, target.encode(captions, guided=True), tokens.repeat(2, 1), taps)


@torch.no_grad()
def evaluate_drafter(
    target: Target,
    drafter: Drafter | VerticalBranch | Target,
    data: Examples,
    *,
    scales: Sequence[float] = SCALES,
    batch: int = 16,
    levels_of: LevelsOf = draft_levels,
) -> Figures:
    """Held-out metrics per guidance scale and draft level.

    "top-k" is the fraction of positions where the target's most likely token is among the drafter's
    k most likely, "TV" the mean total variation between their probabilities (1 - TV is the exact
    rule's probability of accepting a sampled draft).

    Args:
        target: the target.
        drafter: the drafter; an independent one is given as a `Target` and has one level, as a
            vertical branch has.
        data: the held-out examples.
        scales: the guidance scales.
        batch: examples at a time.
        levels_of: computes the draft levels of a batch.
    """
    # The sums stay tensors until the end: reading a number waits for the device.
    sums: defaultdict[str, Any] = defaultdict(float)
    for captions, tokens in data.batches(batch, target.device):
        weight = len(tokens) / len(data)
        if isinstance(drafter, Target):
            pairs = [
                (target_logits(drafter, captions, tokens), target_logits(target, captions, tokens))
            ]
        elif isinstance(drafter, VerticalBranch):
            prompt = target.encode(captions, guided=True)
            found = token_logits(target, drafter, prompt, tokens.repeat(2, 1))
            mixed = mixed_logits(drafter, found)
            pairs = [(mixed, target_logits(target, captions, tokens))]
        else:
            inputs = encode_pairs(target, captions, tokens, drafter.taps)
            teacher = head_logits(target, inputs.labels)
            pairs = [
                (logits, teacher[:, j:])
                for j, (logits, _) in enumerate(levels_of(target, drafter, inputs))
            ]
        for (level, (student, true)), scale in product(enumerate(pairs, start=1), scales):
            p, q = combine(student, scale).softmax(-1), combine(true, scale).softmax(-1)
            hit = (p.topk(3).indices == q.argmax(-1, keepdim=True)).float()
            suffix = suffix_of(scale)
            if level > 1:
                suffix += f" level {level}"
            sums[f"top-1{suffix}"] += hit[..., 0].mean() * weight
            sums[f"top-3{suffix}"] += hit.sum(-1).mean() * weight
            sums[f"TV{suffix}"] += (p - q).abs().sum(-1).mean() / 2 * weight
    return {name: float(value) for name, value in sums.items()}


def target_logits(target: Target, captions: list[str], tokens: Tensor) -> Tensor:
    """Logits [2B, N, V] of every token of images [B, N] under their captions, then under the null
    prompt.
    """
    features = teacher_forced(
        target, target.encode(captions, guided=True), tokens[:, :-1].repeat(2, 1)
    )
    return head_logits(target, features[:, target.prompt_len - 1 :])


def suffix_of(scale: float) -> str:
    """The end of a metric's name at a guidance scale."""
    if scale == 1:
        return ""
    return f" cfg {scale:g}"


def build_model(config: TransformerConfig, conditioner: Mapping[str, Any], seed: int) -> ARModel:
    """An untrained model: normal weights of scale 1/sqrt(fan in), output projections scaled down by
    the depth.
    """
    torch.manual_seed(seed)
    model = ARModel(Transformer(config), build_conditioner(conditioner, config.dim))
    assert model.conditioner.prompt_len == config.prompt_len
    for name, weight in model.transformer.named_parameters():
        if weight.dim() == 2:
            std = weight.shape[1] ** -0.5
            if name.endswith(("wo.weight", "w2.weight")):
                std *= (2 * config.n_layers) ** -0.5
            nn.init.normal_(weight, std=std)
    nn.init.normal_(model.embed.weight, std=1.0)
    nn.init.zeros_(model.head.weight)
    return model


def independent_conditioner(target: Target) -> CodedConditioner:
    """The target's conditioner, if an independent drafter can have one like it.

    Raises:
        ValueError: the target reads captions by another network.
    """
    if not isinstance(target.conditioner, CodedConditioner):
        problem = (
            "an independent drafter reads captions by classes, words or n-grams, as targets of the "
            "family scenes do"
        )
        raise ValueError(f"{target.name}: {problem}; train eagle, eagle3 or medusa")
    return target.conditioner


def new_independent(target: Target, seed: int) -> ARModel:
    """An untrained independent drafter with the target's codes, grid and captions, of the built-in
    drafter's size.

    Raises:
        ValueError: see `independent_conditioner`.
    """
    conditioner = independent_conditioner(target)
    grid = target.grid
    config = replace(
        _DRAFTER,
        prompt_len=conditioner.prompt_len,
        vocab_size=target.vocab_size,
        rows=grid.rows,
        cols=grid.cols,
        preview=grid.preview,
        rope="line" if grid.preview else _DRAFTER.rope,
    )
    return build_model(config, conditioner.settings(), seed).to(target.device)


def ar_loss(
    model: ARModel, data: Examples, forward: Forward = Transformer.__call__
) -> LossFunction:
    """A function that computes the mean cross-entropy in nats per token; the null prompt replaces a
    caption with probability `_CAPTION_DROPOUT`. `forward` computes the transformer's features of
    inputs at positions, without a cache.
    """

    def loss(indices: Tensor, generator: torch.Generator) -> Tensor:
        share = ProcessGroup.current().share(len(indices))
        captions, tokens = data.pick(indices[share], model.head.weight.device)
        codes = model.conditioner.codes(captions).to(tokens.device)
        dropped = (torch.rand(len(indices), generator=generator) < _CAPTION_DROPOUT)[share].to(
            tokens.device
        )
        prompt = torch.where(
            dropped[:, None, None], model.conditioner.nothing, model.conditioner.embed(codes)
        )
        x = torch.cat([prompt, model.embed(tokens[:, :-1])], dim=1)
        hidden = forward(model.transformer, x, torch.arange(x.shape[1], device=x.device))
        logits = model.head(hidden[:, prompt.shape[1] - 1 :])
        return F.cross_entropy(logits.float().flatten(0, 1), tokens.flatten())

    return loss
