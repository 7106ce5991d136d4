"""Training of the tiny CLIP on scenes and their captions: contrastive, with captions that are wrong in one word.

Among random captions a background's colour is nearly enough to find the right one. So every image also meets its own
caption with one attribute changed, and, in training only, linear heads read the attributes from both embeddings.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Generator, Tensor, nn

from workers.data.scenes import SLOTS, caption
from workers.metrics.caption_accuracy import applicable
from workers.metrics.clip_score import ClipConfig, SceneClip, load_clip
from workers.metrics.features import SLOT_SIZES, attribute_loss
from workers.models.weights import save
from workers.training.corruptions import amounts, corrupt
from workers.training.scene_set import SceneSet

_RELATION = [name for name, _ in SLOTS].index("relation")
_FROM_ONE = torch.tensor([int(values[0] in ("none", "alone")) for _, values in SLOTS])


@dataclass(frozen=True, slots=True, kw_only=True)
class ClipTraining:
    """Everything that decides the result of `train_clip`, with the scenes and the seed.

    `reading`: weight of the attribute heads' loss.
    """

    model: ClipConfig = field(default_factory=ClipConfig)
    steps: int = 900
    batch: int = 128
    learning_rate: float = 2.5e-3
    weight_decay: float = 0.02
    reading: float = 1.0
    bf16: bool = True
    log_every: int = 50


@dataclass(frozen=True, slots=True)
class ClipReport:
    """On held-out scenes: mean cosine with the right caption, the one with an attribute changed, and another scene's.

    `prefers_right`: share of images that are closer to their caption than to it with one attribute changed.
    `retrieval`: share of images whose own caption is the closest of 256 scenes' captions.
    """

    cosine: float
    altered_cosine: float
    other_cosine: float
    prefers_right: float
    retrieval: float


def train_clip(
    config: ClipTraining, scenes: SceneSet, out_dir: Path, seed: int, *, report: Callable[[str], None] = print
) -> Path:
    """Trains on the CPU (about two minutes) and writes `out_dir/clip.safetensors`, fp16; returns its path.

    The seed decides weights, order and corruptions; the same threads and machine give the same file.
    """
    out_dir.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(seed)
    generator = Generator().manual_seed(seed)
    model = SceneClip(config.model).train()
    model.clip.set_attn_implementation("eager")  # the fused kernel's backward pass is slow on a CPU at these lengths
    heads = nn.Linear(config.model.projection, sum(SLOT_SIZES))
    trained = [*model.parameters(), *heads.parameters()]
    optimizer = torch.optim.AdamW(trained, lr=config.learning_rate, betas=(0.9, 0.98), weight_decay=config.weight_decay)
    one_cycle = torch.optim.lr_scheduler.OneCycleLR
    schedule = one_cycle(optimizer, config.learning_rate, total_steps=config.steps, pct_start=0.1)
    started = time.perf_counter()
    for step in range(config.steps):
        chosen = torch.randint(len(scenes), (config.batch,), generator=generator)
        rows = scenes.rows[chosen]
        images = corrupt(scenes.floats(chosen), amounts(config.batch, generator), generator)
        ids, mask = model.tokens(_captions(torch.cat([rows, altered(rows, generator)])))
        with torch.autocast("cpu", torch.bfloat16, enabled=config.bf16):
            seen, said = model.embed_images(images), model.embed_tokens(ids, mask)
        matching = contrastive_loss(seen, said, model.clip.logit_scale)
        scale = math.sqrt(config.model.projection)  # embeddings have length 1; heads learn from entries of about 1
        read = heads(torch.cat([seen, said[: len(rows)]]) * scale)
        reading = attribute_loss(read.split(list(SLOT_SIZES), dim=1), rows.repeat(2, 1))
        optimizer.zero_grad(set_to_none=True)
        (matching + config.reading * reading).backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.step()
        schedule.step()
        if (step + 1) % config.log_every == 0:
            left = (time.perf_counter() - started) / (step + 1) * (config.steps - step - 1)
            losses = f"matching {matching.item():.3f} nats, attributes {reading.item():.3f} nats"
            report(f"clip step {step + 1}/{config.steps}  {losses}, {left:.0f} s left")
    path = out_dir / "clip.safetensors"
    save(path, model, asdict(config.model))
    return path


def contrastive_loss(seen: Tensor, said: Tensor, logit_scale: Tensor) -> Tensor:
    """CLIP's symmetric loss; seen [B, d] images, said [2B, d]: their captions, then captions that fit none of them."""
    logits = seen @ said.mT * logit_scale.clamp(max=math.log(100)).exp()
    right = torch.arange(len(seen))
    return (F.cross_entropy(logits, right) + F.cross_entropy(logits[:, : len(seen)].mT, right)) / 2


def altered(rows: Tensor, generator: Generator) -> Tensor:
    """Attribute rows [n, slots], each with one applicable attribute changed to another value; not the object count."""
    open_slots = applicable(rows).float()
    open_slots[:, _RELATION] = open_slots[:, _RELATION] * (rows[:, _RELATION] > 0)
    slot = torch.multinomial(open_slots, 1, generator=generator)[:, 0]
    low = _FROM_ONE[slot]
    values = torch.tensor(SLOT_SIZES)[slot] - low
    step = 1 + (torch.rand(len(rows), generator=generator) * (values - 1)).long()
    changed = rows.clone()
    index = torch.arange(len(rows))
    changed[index, slot] = low + (rows[index, slot] - low + step) % values
    return changed


def _captions(rows: Tensor) -> list[str]:
    return [caption(row) for row in rows.tolist()]


@torch.no_grad()
def evaluate_clip(path: Path, held_out: SceneSet, seed: int = 0) -> ClipReport:
    """Measures a saved CLIP on scenes that it has not seen."""
    model = load_clip(path)
    images, right = held_out.floats(slice(None)), _captions(held_out.rows)
    wrong = _captions(altered(held_out.rows, Generator().manual_seed(seed)))
    good, bad = model.cosines(images, right), model.cosines(images, wrong)
    other = model.cosines(images, right[1:] + right[:1])
    few = min(256, len(right))
    table = model.embed_images(images[:few]) @ model.embed_captions(right[:few]).mT
    hits = (table.argmax(1) == torch.arange(few)).float().mean()
    means = (good.mean(), bad.mean(), other.mean(), (good > bad).float().mean(), hits)
    return ClipReport(*(value.item() for value in means))
