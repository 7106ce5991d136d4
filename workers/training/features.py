"""Training of the scenes feature net: read attributes, and tell how much a scene was blurred, roughened and bent."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Generator, Tensor

from workers.data.scenes import SLOTS
from workers.metrics.features import FeatureConfig, SceneFeatures, attribute_loss, load_features
from workers.models.weights import save
from workers.training.corruptions import amounts, corrupt
from workers.training.scene_set import SceneSet

SETTLING = 32  # batches over which the BatchNorm averages are taken at the end


@dataclass(frozen=True, slots=True, kw_only=True)
class FeatureTraining:
    """Everything that decides the result of `train_features`, with the scenes and the seed.

    `quality`: weight of the corruption amounts' squared error beside the attributes' cross-entropy.
    """

    net: FeatureConfig = field(default_factory=FeatureConfig)
    steps: int = 1200
    batch: int = 128
    learning_rate: float = 4e-3
    weight_decay: float = 0.02
    quality: float = 1.0
    bf16: bool = True
    log_every: int = 50


@dataclass(frozen=True, slots=True)
class FeatureReport:
    """On held-out scenes: share of attributes read right, in all, of each slot, and from corrupted scenes.

    `quality_r2`: share of the variance of the three corruption amounts that is read off.
    """

    accuracy: float
    per_slot: tuple[tuple[str, float], ...]
    softened_accuracy: float
    quality_r2: tuple[float, ...]


def train_features(
    config: FeatureTraining, scenes: SceneSet, out_dir: Path, seed: int, *, report: Callable[[str], None] = print
) -> Path:
    """Trains on the CPU (about two minutes) and writes `out_dir/features.safetensors`, fp16; returns its path.

    The seed decides weights, order and corruptions; the same threads and machine give the same file.
    """
    out_dir.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(seed)
    generator = Generator().manual_seed(seed)
    net: SceneFeatures = SceneFeatures(config.net).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    optimizer = torch.optim.AdamW(net.parameters(), lr=config.learning_rate, weight_decay=config.weight_decay)
    one_cycle = torch.optim.lr_scheduler.OneCycleLR
    schedule = one_cycle(optimizer, config.learning_rate, total_steps=config.steps, pct_start=0.15)
    started = time.perf_counter()
    for step in range(config.steps):
        images, amount, rows = _batch(scenes, config.batch, generator)
        with torch.autocast("cpu", torch.bfloat16, enabled=config.bf16):
            features = net(images)
            logits, quality = net.attribute_logits(features), net.quality(features)
        reading = attribute_loss(tuple(part.float() for part in logits), rows)
        judging = F.mse_loss(quality.float(), amount)
        optimizer.zero_grad(set_to_none=True)
        (reading + config.quality * judging).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        schedule.step()
        if (step + 1) % config.log_every == 0:
            left = (time.perf_counter() - started) / (step + 1) * (config.steps - step - 1)
            report(
                f"features step {step + 1}/{config.steps}  attributes {reading.item():.3f} nats, "
                f"corruption {math.sqrt(judging.item()):.3f} rms, {left:.0f} s left"
            )
    settle(net, (_batch(scenes, config.batch, generator)[0] for _ in range(min(config.steps, SETTLING))))
    path = out_dir / "features.safetensors"
    save(path, net, asdict(config.net))
    return path


def _batch(scenes: SceneSet, size: int, generator: Generator) -> tuple[Tensor, Tensor, Tensor]:
    """Corrupted images, how much [B, 3], and attribute rows of randomly drawn scenes."""
    chosen = torch.randint(len(scenes), (size,), generator=generator)
    amount = amounts(size, generator)
    images = corrupt(scenes.floats(chosen), amount, generator)
    return images.contiguous(memory_format=torch.channels_last), amount, scenes.rows[chosen]


@torch.no_grad()
def settle(net: SceneFeatures, batches: Iterable[Tensor]) -> None:
    """Sets the BatchNorm averages to exact ones over some batches [B, 3, H, W], for the final weights and in fp32.

    So features have mean 0 and variance 1 over the scenes that the net was trained on, faults included.
    """
    for norm in net.modules():
        if isinstance(norm, torch.nn.BatchNorm1d | torch.nn.BatchNorm2d):
            norm.reset_running_stats()
            norm.momentum = None  # a plain average over batches
    net.train()
    for images in batches:
        net(images)


@torch.no_grad()
def evaluate_features(path: Path, held_out: SceneSet, seed: int = 0) -> FeatureReport:
    """Measures a saved feature net on scenes that it has not seen, crisp and corrupted."""
    net = load_features(path)
    generator = Generator().manual_seed(seed)
    images = held_out.floats(slice(None))
    amount = amounts(len(images), generator)
    right = net.read(net.extract(images)) == held_out.rows
    features = net.extract(corrupt(images, amount, generator))
    soft = net.read(features) == held_out.rows
    per_slot = tuple((name, share) for (name, _), share in zip(SLOTS, right.float().mean(0).tolist(), strict=True))
    r2 = _r2(net.quality(features), amount)
    return FeatureReport(right.float().mean().item(), per_slot, soft.float().mean().item(), r2)


def _r2(guess: Tensor, truth: Tensor) -> tuple[float, ...]:
    unexplained = (guess - truth).square().mean(0) / truth.var(0, correction=0)
    return tuple((1 - unexplained).tolist())
