"""Training of an EAGLE drafter for any target, by the published recipe (EAGLE-1; LANTERN's settings for images).

The target is frozen. One teacher-forced pass gives its features f; slot s pairs f_s with the embedding of the token at
position s + 1, and the layer learns to predict f_{s+1}:

    SmoothL1(fhat, f) + 0.1 CE(softmax(head(f)), head(fhat))        both averaged over the slots that draft a token

Input features get uniform noise, and a tenth of the examples see the null prompt, as under guidance. Three things are
mended that the released code does otherwise: tokens are shifted by one for every family, the slot that drafts the
image's second token is trained, and prompt padding is masked. All random numbers of an example follow from the step and
its place in the batch, so that any number of processes does the same.

`workers.training.drafters` has this project's own recipe, which distils the guided law; it reads coded captions only.

Shape legend: B examples, N tokens of an image, P prompt positions, S = P + N - 2 slots, D width, V codes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from workers.decoding.row_ends import teacher_forced
from workers.drafters.eagle import EagleLayer
from workers.models.target import Prompt, Target
from workers.models.transformer import Transformer
from workers.models.weights import read_config, save
from workers.training.loop import Figures, LossFunction, TrainConfig, train
from workers.training.process_group import SINGLE_PROCESS, ProcessGroup
from workers.training.recording import attention_mask

NAME = "eagle"
WEIGHTS, CHECKPOINT, JOURNAL = f"{NAME}.safetensors", f"{NAME}.checkpoint.pt", f"{NAME}.journal.jsonl"
BEST = "top-3"  # what the kept weights are best at, held out
MEASURED = 512  # held-out examples that are looked at, at most: two passes of the target each, at every save
_INPUT_NORM = "attention_norm.weight"


@dataclass(frozen=True, slots=True, kw_only=True)
class EagleRecipe:
    """The published settings. `steps` None: so many that every example is seen `epochs` times. bf16: on a GPU, mixed
    precision; a CPU, which it slows down, keeps to fp32.
    """

    batch: int = 16
    epochs: int = 20
    steps: int | None = None
    rate: float = 1e-4
    warmup: int = 2000
    clip_value: float = 0.5
    cross_entropy: float = 0.1
    noise: float = 0.2
    dropped: float = 0.1
    held_out: float = 0.05
    save_every: int = 1000
    bf16: bool = True
    seed: int = 0

    def split(self, examples: int) -> int:
        """How many of the examples, the last ones, are held out.

        Raises:
            ValueError: too few to learn from and to measure on.
        """
        held = max(1, round(self.held_out * examples))
        if examples - held < 1:
            raise ValueError(f"{examples} captions are too few to train a drafter and to measure it: give at least 2")
        return held

    def schedule(self, examples: int, device: torch.device) -> TrainConfig:
        """How the loop runs on so many training examples: AdamW, linear warm-up (at most a tenth) and decay."""
        steps = self.steps or max(1, self.epochs * examples // self.batch)
        return TrainConfig(
            steps=steps, batch=self.batch, optimiser="adamw", other_lr=self.rate, warmup=min(self.warmup, steps // 10),
            decay=1.0, clip=0.0, clip_value=self.clip_value, ema=0.0, seed=self.seed,
            bf16=self.bf16 and device.type == "cuda",
            save_every=self.save_every, log_every=min(50, self.save_every),
        )  # fmt: skip


@dataclass(frozen=True, slots=True, eq=False)
class Drawn:
    """Examples: captions, and the tokens [n, N] of the target's image of each."""

    captions: Sequence[str]
    tokens: Tensor

    def __len__(self) -> int:
        return len(self.captions)

    def pick(self, indices: Tensor, device: torch.device) -> tuple[list[str], Tensor]:
        """Captions and tokens [B, N] (int64) of the examples `indices`."""
        return [self.captions[i] for i in indices.tolist()], self.tokens[indices].long().to(device)


class Slots(NamedTuple):
    """What the layer reads: embeddings [B, S, D], features [B, S, D], mask [B, 1, S, S]; and the features it should
    predict [B, N - 1, D] in its last N - 1 slots.
    """

    embeddings: Tensor
    features: Tensor
    mask: Tensor
    wanted: Tensor

    def predicted(self, layer: EagleLayer, noise: Tensor | float = 0.0) -> Tensor:
        """The layer's predictions [B, N - 1, D] of `wanted`, with noise on the features it reads."""
        positions = torch.arange(1, self.features.shape[1] + 1, device=self.features.device)
        out: Tensor = layer(self.embeddings, self.features + noise, positions, self.mask)
        return out[:, -self.wanted.shape[1] :]


def prompt_filler(target: Target) -> int | None:
    """What stands in for the token ids of the target's prompts (see `EagleDrafter`): LlamaGen's have none."""
    return 0 if target.transformer.config.rope == "grid" else None


@torch.no_grad()
def slots(target: Target, prompt: Prompt, tokens: Tensor) -> Slots:
    """The slots of images [B, N] under their prompts, in fp32."""
    features = teacher_forced(target, prompt, tokens[:, :-1]).float()
    following, filler = prompt.embeds[:, 1:], prompt_filler(target)
    if filler is not None:
        following = target.embed(torch.full(following.shape[:2], filler, device=tokens.device))
    embeddings = torch.cat([following, target.embed(tokens[:, :-1])], dim=1).float()
    valid = F.pad(prompt.valid[:, :-1], (0, tokens.shape[1] - 1), value=True)
    return Slots(embeddings, features[:, :-1], attention_mask(valid), features[:, prompt.valid.shape[1] :])


def head(target: Target, features: Tensor) -> Tensor:
    """Logits [..., V] in fp32 of features [..., D] in any dtype."""
    out: Tensor = target.head(features.to(target.dtype))
    return out.float()


def eagle_loss(
    target: Target, layer: EagleLayer, data: Drawn, recipe: EagleRecipe, group: ProcessGroup = SINGLE_PROCESS
) -> LossFunction:
    """The loss of this process's share of a batch of examples."""

    def loss(indices: Tensor, generator: torch.Generator) -> Tensor:
        dropped = torch.rand(len(indices), generator=generator) < recipe.dropped
        seeds = torch.randint(1 << 62, (len(indices),), generator=generator)
        mine = group.share(len(indices))
        captions, tokens = data.pick(indices[mine], target.device)
        given = slots(target, _prompts(target, captions, dropped[mine]), tokens)
        noise = torch.stack([_noise(given.features[0], int(seed), recipe.noise) for seed in seeds[mine]])
        out = given.predicted(layer, noise)
        distance = F.smooth_l1_loss(out.float(), given.wanted)
        law = head(target, given.wanted).softmax(-1)
        miss = -(law * head(target, out).log_softmax(-1)).sum(-1).mean()
        return distance + recipe.cross_entropy * miss

    return loss


def _prompts(target: Target, captions: Sequence[str], dropped: Tensor) -> Prompt:
    """The captions' prompts; the null prompt where `dropped` [B]."""
    both = target.encode(captions, guided=True)
    rows = torch.arange(len(captions)) + len(captions) * dropped
    rows = rows.to(both.embeds.device)
    return Prompt(both.embeds[rows], both.valid[rows])


def _noise(like: Tensor, seed: int, scale: float) -> Tensor:
    """(U - 1/2) scale 512 / S, of the shape [S, D] of `like` (EAGLE's augmentation of features)."""
    generator = torch.Generator(like.device).manual_seed(seed)
    drawn = torch.rand(like.shape, generator=generator, device=like.device)
    return (drawn - 0.5) * (scale * 512 / like.shape[0])


@torch.no_grad()
def figures(target: Target, layer: EagleLayer, data: Drawn, batch: int = 16) -> Figures:
    """Share of places where the target's likeliest token is the drafter's (top-1), or among its three likeliest
    (top-3); for the conditional law and, if the target draws with guidance, for the guided one.
    """
    scales = {"": 1.0} if target.sampling.cfg == 1 else {"": 1.0, f" cfg {target.sampling.cfg:g}": target.sampling.cfg}
    sums: Figures = {}
    for indices in torch.arange(len(data)).split(batch):  # type: ignore[no-untyped-call]
        captions, tokens = data.pick(indices, target.device)
        given = slots(target, target.encode(captions, guided=True), tokens.repeat(2, 1))
        pair = [head(target, f).chunk(2) for f in (given.predicted(layer), given.wanted)]
        for words, scale in scales.items():
            mine, true = (null + scale * (cond - null) for cond, null in pair)
            hit = (mine.topk(3).indices == true.argmax(-1, keepdim=True)).float() * (len(indices) / len(data))
            sums[f"top-1{words}"] = sums.get(f"top-1{words}", 0.0) + float(hit[..., 0].mean())
            sums[f"top-3{words}"] = sums.get(f"top-3{words}", 0.0) + float(hit.sum(-1).mean())
    return dict(sorted(sums.items()))


def new_layer(target: Target, seed: int) -> EagleLayer:
    """An untrained EAGLE layer of the target's shape (with an input norm where its prompts are tokens: Chameleon's),
    started as the target's last layer, where that is a layer of this project's.
    """
    torch.manual_seed(seed)
    body = target.transformer.config
    layer = EagleLayer(replace(body, n_layers=1, vocab_size=0, input_norm=body.rope == "line", final_norm=False))
    if isinstance(target.transformer, Transformer):
        last = target.transformer.layers[-1].state_dict()
        kept = {key: value for key, value in last.items() if body.rope == "line" or key != _INPUT_NORM}
        layer.decoder.layers[0].load_state_dict(kept)
    return layer.to(target.device)


def train_eagle(
    target: Target,
    data: Drawn,
    out: Path,
    recipe: EagleRecipe,
    *,
    resume: bool = False,
    group: ProcessGroup = SINGLE_PROCESS,
    tell: Callable[[str], None] = print,
) -> Path:
    """Trains a drafter into `out`; returns its weight file, which holds the weights that were best at held-out top-3.

    `resume` goes on from the checkpoint in `out`, if there is one. In a team, all processes call this with the same
    arguments, and `out` is a folder that all of them see.

    Raises:
        ValueError: too few examples; a batch that the team cannot share; a loss that is not finite.
    """
    target.requires_grad_(False)
    target.read_together(recipe.batch)
    held = recipe.split(len(data))
    learn = Drawn(data.captions[:-held], data.tokens[:-held])
    measure = Drawn(data.captions[-held:][:MEASURED], data.tokens[-held:][:MEASURED])
    config = recipe.schedule(len(learn), target.device)
    group.share(config.batch)
    layer = new_layer(target, recipe.seed)
    header = {"transformer": asdict(layer.decoder.config), "filler": prompt_filler(target), "recipe": asdict(recipe)}
    weights = out / WEIGHTS

    def on_save(current: nn.Module) -> Figures:
        assert isinstance(current, EagleLayer)
        found = figures(target, current, measure, config.batch)
        if not weights.exists() or found[BEST] >= _held_out(weights).get(BEST, 0.0):
            save(weights, current, {**header, "held_out": found})
        return found

    going_on = resume and (out / CHECKPOINT).exists()
    if group.is_main and not going_on:
        weights.unlink(missing_ok=True)  # an earlier training's, which this one's may never beat
    loss = eagle_loss(target, layer, learn, recipe, group)
    train(
        layer, loss, len(learn), config, name=NAME, checkpoint=out / CHECKPOINT, resume=going_on, on_save=on_save,
        log=tell, journal=out / JOURNAL, group=group,
    )  # fmt: skip
    return weights


def _held_out(weights: Path) -> dict[str, float]:
    figures: dict[str, float] = read_config(weights).get("held_out", {})
    return figures
