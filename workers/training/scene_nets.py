"""Training of the metrics' built-in nets on procedural scenes: the feature net and the tiny CLIP.

The feature net learns to read a scene's attributes and the amounts of blur, noise and wobble that were put into it.

The CLIP learns by contrast. Among random captions the background's colour is nearly enough to find the right one, so
each image also meets its own caption with one attribute changed, and (in training only) linear heads read the
attributes from both embeddings.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Generator, Tensor, nn

from workers.metrics.caption_accuracy import applicable
from workers.metrics.clip_score import ClipConfig, SceneClip
from workers.metrics.features import SLOT_SIZES, FeatureConfig, SceneFeatures, attribute_loss
from workers.models.own_files import save
from workers.scenes.captions import SLOTS, caption
from workers.training.scene_set import SceneSet, amounts, corrupt

_RELATION = [name for name, _ in SLOTS].index("relation")
_FIRST_VALUE = torch.tensor([int(values[0] in ("none", "alone")) for _, values in SLOTS])
_BATCH_NORM_BATCHES = 32  # over which the BatchNorm averages are taken at the end


@dataclass(frozen=True, slots=True, kw_only=True)
class FeatureTraining:
    """Everything that decides the result of `train_features`, except the scenes and the seed.

    quality: weight of the corruption amounts' squared error beside the attributes' cross-entropy.
    """

    net: FeatureConfig = field(default_factory=FeatureConfig)
    steps: int = 1200
    batch: int = 128
    learning_rate: float = 4e-3
    weight_decay: float = 0.02
    quality: float = 1.0
    bf16: bool = True
    log_every: int = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class ClipTraining:
    """Everything that decides the result of `train_clip`, except the scenes and the seed.

    reading: weight of the attribute heads' loss.
    """

    model: ClipConfig = field(default_factory=ClipConfig)
    steps: int = 900
    batch: int = 128
    learning_rate: float = 2.5e-3
    weight_decay: float = 0.02
    reading: float = 1.0
    bf16: bool = True
    log_every: int = 50


def train_features(
    config: FeatureTraining, scenes: SceneSet, out_dir: Path, seed: int, *, log: Callable[[str], None] = print
) -> Path:
    """Trains on the CPU (about two minutes) and writes `out_dir/features.safetensors`, fp16; returns its path.

    The seed decides weights, order and corruptions; the same threads and machine give the same file.
    """
    torch.manual_seed(seed)
    generator = Generator().manual_seed(seed)
    net: SceneFeatures = SceneFeatures(config.net).to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    def loss() -> tuple[Tensor, dict[str, Tensor]]:
        images, amount, rows = _batch(scenes, config.batch, generator)
        images = images.contiguous(memory_format=torch.channels_last)
        with torch.autocast("cpu", torch.bfloat16, enabled=config.bf16):
            features = net(images)
            logits, quality = net.attribute_logits(features), net.quality(features)
        reading = attribute_loss(tuple(part.float() for part in logits), rows)
        error = F.mse_loss(quality.float(), amount)
        return reading + config.quality * error, {"attributes": reading, "squared corruption error": error}

    parameters = list(net.parameters())
    optimizer = torch.optim.AdamW(parameters, lr=config.learning_rate, weight_decay=config.weight_decay)
    _train("features", config, loss, optimizer, warmup=0.15, log=log)
    batches = range(min(config.steps, _BATCH_NORM_BATCHES))
    _set_batch_norm(net, (_batch(scenes, config.batch, generator)[0] for _ in batches))
    return _save(out_dir / "features.safetensors", net, config.net)


def train_clip(
    config: ClipTraining, scenes: SceneSet, out_dir: Path, seed: int, *, log: Callable[[str], None] = print
) -> Path:
    """Trains on the CPU (about two minutes) and writes `out_dir/clip.safetensors`, fp16; returns its path.

    The seed decides weights, order and corruptions; the same threads and machine give the same file.
    """
    torch.manual_seed(seed)
    generator = Generator().manual_seed(seed)
    model = SceneClip(config.model).train()
    model.clip.set_attn_implementation("eager")  # the fused kernel's backward pass is slow on a CPU at these lengths
    heads = nn.Linear(config.model.projection, sum(SLOT_SIZES))

    def loss() -> tuple[Tensor, dict[str, Tensor]]:
        images, _, rows = _batch(scenes, config.batch, generator)
        ids, mask = model.tokens([caption(row) for row in torch.cat([rows, altered(rows, generator)]).tolist()])
        with torch.autocast("cpu", torch.bfloat16, enabled=config.bf16):
            image, text = model.embed_images(images), model.embed_tokens(ids, mask)
        contrast = _contrastive_loss(image, text, model.clip.logit_scale)
        scale = math.sqrt(config.model.projection)  # embeddings have length 1; heads learn from entries of about 1
        logits = heads(torch.cat([image, text[: len(rows)]]) * scale)
        reading = attribute_loss(logits.split(list(SLOT_SIZES), dim=1), rows.repeat(2, 1))
        return contrast + config.reading * reading, {"contrast": contrast, "attributes": reading}

    parameters = [*model.parameters(), *heads.parameters()]
    optimizer = torch.optim.AdamW(
        parameters, lr=config.learning_rate, betas=(0.9, 0.98), weight_decay=config.weight_decay
    )
    _train("clip", config, loss, optimizer, warmup=0.1, max_norm=1.0, log=log)
    return _save(out_dir / "clip.safetensors", model, config.model)


def altered(rows: Tensor, generator: Generator) -> Tensor:
    """Attribute rows [n, slots], each with one applicable attribute changed to another value; not the object count."""
    open_slots = applicable(rows).float()
    open_slots[:, _RELATION] = open_slots[:, _RELATION] * (rows[:, _RELATION] > 0)
    slot = torch.multinomial(open_slots, 1, generator=generator)[:, 0]
    low = _FIRST_VALUE[slot]
    values = torch.tensor(SLOT_SIZES)[slot] - low
    step = 1 + (torch.rand(len(rows), generator=generator) * (values - 1)).long()
    changed = rows.clone()
    index = torch.arange(len(rows))
    changed[index, slot] = low + (rows[index, slot] - low + step) % values
    return changed


def _train(
    name: str,
    config: FeatureTraining | ClipTraining,
    loss: Callable[[], tuple[Tensor, Mapping[str, Tensor]]],
    optimizer: torch.optim.Optimizer,
    *,
    warmup: float,
    max_norm: float | None = None,
    log: Callable[[str], None],
) -> None:
    """Steps of the one-cycle schedule, rising over the share `warmup`. `loss` gives the loss and its named parts."""
    parameters = optimizer.param_groups[0]["params"]
    one_cycle = torch.optim.lr_scheduler.OneCycleLR
    schedule = one_cycle(optimizer, config.learning_rate, total_steps=config.steps, pct_start=warmup)
    started = time.perf_counter()
    for step in range(1, config.steps + 1):
        total, parts = loss()
        optimizer.zero_grad(set_to_none=True)
        total.backward()  # type: ignore[no-untyped-call]
        if max_norm is not None:
            nn.utils.clip_grad_norm_(parameters, max_norm)
        optimizer.step()
        schedule.step()
        if step % config.log_every == 0:
            left = (time.perf_counter() - started) / step * (config.steps - step)
            figures = ", ".join(f"{part} {value.item():.3f}" for part, value in parts.items())
            log(f"{name} step {step}/{config.steps}  {figures}, {left:.0f} s left")


def _save(path: Path, net: nn.Module, config: FeatureConfig | ClipConfig) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    save(path, net, asdict(config))
    return path


def _batch(scenes: SceneSet, size: int, generator: Generator) -> tuple[Tensor, Tensor, Tensor]:
    """Corrupted images [B, 3, H, W], their corruption amounts [B, 3], and attribute rows of randomly drawn scenes."""
    chosen = torch.randint(len(scenes), (size,), generator=generator)
    amount = amounts(size, generator)
    return corrupt(scenes.floats(chosen), amount, generator), amount, scenes.rows[chosen]


@torch.no_grad()
def _set_batch_norm(net: SceneFeatures, batches: Iterable[Tensor]) -> None:
    """Sets the BatchNorm averages to exact ones over some batches [B, 3, H, W], for the final weights and in fp32.

    Features then have mean 0 and variance 1 over the training scenes, corruptions included.
    """
    for norm in net.modules():
        if isinstance(norm, torch.nn.BatchNorm1d | torch.nn.BatchNorm2d):
            norm.reset_running_stats()
            norm.momentum = None  # a plain average over batches
    net.train()
    for images in batches:
        net(images.contiguous(memory_format=torch.channels_last))


def _contrastive_loss(images: Tensor, texts: Tensor, logit_scale: Tensor) -> Tensor:
    """CLIP's symmetric loss of images [B, d] and texts [2B, d]: the images' captions, then captions that fit none."""
    logits = images @ texts.mT * logit_scale.clamp(max=math.log(100)).exp()
    labels = torch.arange(len(images))
    return (F.cross_entropy(logits, labels) + F.cross_entropy(logits[:, : len(images)].mT, labels)) / 2
