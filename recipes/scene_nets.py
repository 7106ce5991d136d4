"""Training of the metrics' built-in networks on procedural scenes: the feature network and the tiny
CLIP.

The feature network learns to predict a scene's attributes and how much blur, noise and wobble were
added to it.

The CLIP has a contrastive loss. Among random captions the background's colour nearly suffices to
find the right one, so each image has one more negative: its own caption with one attribute changed.
In training, linear heads also predict the attributes from both embeddings.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Generator, Tensor, nn

from recipes.scene_set import SceneSet, amounts, corrupt
from workers.metrics.caption_accuracy import applicable
from workers.metrics.clip_score import ClipConfig, SceneClip
from workers.metrics.features import SLOT_SIZES, FeatureConfig, SceneFeatures
from workers.models.own_files import save
from workers.scenes.captions import SLOTS, caption
from workers.training.loop import TrainConfig, batch_indices, train

_RELATION = [name for name, _ in SLOTS].index("relation")
_FIRST_VALUE = torch.tensor([int(values[0] in ("none", "alone")) for _, values in SLOTS])
_BATCH_NORM_BATCHES = 32  # number of batches for the BatchNorm statistics at the end


def train_features(
    scenes: SceneSet,
    config: TrainConfig,
    out: Path,
    *,
    net: FeatureConfig | None = None,
    resume: bool = False,
    log: Callable[[str], None] = print,
) -> Path:
    """Trains on the CPU (about two minutes) and writes out/features.safetensors, fp16; returns its
    path.

    The loss is the attributes' cross-entropy plus the squared error of the corruption amounts. The
    same seed, threads and machine give the same file.
    """
    torch.manual_seed(config.seed)
    shape, path = net or FeatureConfig(), out / "features.safetensors"
    model: SceneFeatures = SceneFeatures(shape).to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    def loss(indices: Tensor, generator: Generator) -> Tensor:
        images, amount = _corrupted(scenes, indices, generator)
        features = model(images)
        logits, quality = model.attribute_logits(features), model.quality(features)
        reading = attribute_loss(tuple(part.float() for part in logits), scenes.rows[indices])
        return reading + F.mse_loss(quality.float(), amount)

    average, _ = train(
        model, loss, len(scenes), config, out, name="features", resume=resume, log=log
    )
    _set_batch_norm(average, scenes, config)
    save(path, average, asdict(shape))
    return path


class _ClipReader(nn.Module):
    """The CLIP, and heads that predict a scene's attributes from either of its embeddings."""

    def __init__(self, config: ClipConfig) -> None:
        super().__init__()
        self.model = SceneClip(config).train()
        # the fused kernel's backward pass is slow on a CPU at these lengths
        self.model.clip.set_attn_implementation("eager")
        self.heads = nn.Linear(config.projection, sum(SLOT_SIZES))


def train_clip(
    scenes: SceneSet,
    config: TrainConfig,
    out: Path,
    *,
    net: ClipConfig | None = None,
    resume: bool = False,
    log: Callable[[str], None] = print,
) -> Path:
    """Trains on the CPU (about two minutes) and writes out/clip.safetensors, fp16; returns its
    path.

    The loss is CLIP's plus the attributes' cross-entropy. The same seed, threads and machine give
    the same file.
    """
    torch.manual_seed(config.seed)
    shape, path = net or ClipConfig(), out / "clip.safetensors"
    reader = _ClipReader(shape)
    model = reader.model

    def loss(indices: Tensor, generator: Generator) -> Tensor:
        images, _ = _corrupted(scenes, indices, generator)
        rows = scenes.rows[indices]
        ids, mask = model.tokens(
            [caption(row) for row in torch.cat([rows, altered(rows, generator)]).tolist()]
        )
        image, text = model.embed_images(images), model.embed_tokens(ids, mask)
        with torch.autocast("cpu", enabled=False):
            contrast = _contrastive_loss(image, text, model.clip.logit_scale)
            # embeddings have length 1; scaled, so that the heads' inputs have entries of about 1
            logits = reader.heads(
                torch.cat([image, text[: len(rows)]]) * math.sqrt(shape.projection)
            )
            return contrast + attribute_loss(
                logits.split(list(SLOT_SIZES), dim=1), rows.repeat(2, 1)
            )

    average, _ = train(reader, loss, len(scenes), config, out, name="clip", resume=resume, log=log)
    save(path, average.model, asdict(shape))
    return path


def altered(rows: Tensor, generator: Generator) -> Tensor:
    """Attribute rows [n, slots], each with one applicable attribute changed to another value; not
    the object count.
    """
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


def _corrupted(scenes: SceneSet, indices: Tensor, generator: Generator) -> tuple[Tensor, Tensor]:
    """The scenes [B, 3, H, W], corrupted (channels last), and the corruption amounts [B, 3]."""
    amount = amounts(len(indices), generator)
    with torch.autocast("cpu", enabled=False):
        images = corrupt(scenes.floats(indices), amount, generator)
    return images.contiguous(memory_format=torch.channels_last), amount


@torch.no_grad()
def _set_batch_norm(net: SceneFeatures, scenes: SceneSet, config: TrainConfig) -> None:
    """Recomputes the BatchNorm statistics in fp32 as plain averages over some batches, with the
    current weights.

    Features then have mean 0 and variance 1 over the training scenes, corrupted as in training.
    """
    for norm in net.modules():
        if isinstance(norm, torch.nn.BatchNorm1d | torch.nn.BatchNorm2d):
            norm.reset_running_stats()
            norm.momentum = None  # a plain average over batches
    generator = Generator().manual_seed(config.seed)
    for step in range(min(config.steps, _BATCH_NORM_BATCHES)):
        indices = batch_indices(config.seed, step, config.batch, len(scenes))
        net(_corrupted(scenes, indices, generator)[0])


def attribute_loss(logits: tuple[Tensor, ...], rows: Tensor) -> Tensor:
    """Mean cross-entropy in nats over images and slots; rows [n, slots]."""
    return torch.stack([F.cross_entropy(part, rows[:, i]) for i, part in enumerate(logits)]).mean()


def _contrastive_loss(images: Tensor, texts: Tensor, logit_scale: Tensor) -> Tensor:
    """CLIP's symmetric loss of images [B, d] and texts [2B, d]: the images' captions, then their
    altered captions.
    """
    logits = images @ texts.mT * logit_scale.clamp(max=math.log(100)).exp()
    labels = torch.arange(len(images))
    return (
        F.cross_entropy(logits, labels) + F.cross_entropy(logits[:, : len(images)].mT, labels)
    ) / 2
