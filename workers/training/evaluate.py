"""Held-out metrics of targets and drafters, teacher forced on real tokens.

    python -m workers.training.evaluate [--folder DIR] [--images N]

prints the metrics of a folder's target and drafters on procedural scenes, such as the documented numbers of the
built-in model. Probabilities are at temperature 1 without top-k or top-p, in fp32. Scales are those of classifier-free
guidance; 1 is no guidance.

Shape legend: B images, N tokens of an image, P prompt positions, V codes.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from workers.decoding.row_ends import teacher_forced
from workers.drafters.eagle import EagleDrafter
from workers.drafters.independent import IndependentDrafter
from workers.drafters.medusa import MedusaDrafter
from workers.loading.models_yaml import load_folder
from workers.models.families.scenes import BUILTIN
from workers.models.target import Target
from workers.models.vq import VQModel
from workers.training.drafters import Drafter, combine, draft_levels, encode_pairs, head_logits
from workers.training.examples import Examples
from workers.training.loop import Figures
from workers.training.tokenizer import tokenize_scenes

_SCALES = (1.0, 3.0)
_LEVELS = 4  # draft levels of an EAGLE layer that the command measures


@torch.no_grad()
def evaluate_target(target: Target, data: Examples, *, scales: Sequence[float] = _SCALES, batch: int = 64) -> Figures:
    """Cross-entropy in nats per token with and without the caption; mean total probability of the 1 and 10 most likely
    tokens.
    """
    sums: defaultdict[str, Any] = defaultdict(float)  # tensors: reading them waits for the device
    for captions, tokens in _batches(data, batch, target.device):
        logits = _logits(target, captions, tokens)
        weight = len(tokens) / len(data)
        for stream, rows in zip(("cond", "null"), logits.chunk(2), strict=True):
            sums[f"cross-entropy {stream}"] += F.cross_entropy(rows.flatten(0, 1), tokens.flatten()) * weight
        for scale in scales:
            top = combine(logits, scale).softmax(-1).topk(10).values.mean((0, 1))
            sums[f"top-1{_suffix(scale)}"] += top[0] * weight
            sums[f"top-10{_suffix(scale)}"] += top.sum() * weight
    return {name: float(value) for name, value in sums.items()}


@torch.no_grad()
def evaluate_drafter(
    target: Target,
    drafter: Drafter | Target,
    data: Examples,
    *,
    scales: Sequence[float] = _SCALES,
    levels: int = 1,
    batch: int = 16,
) -> Figures:
    """Metrics per guidance scale and draft level. An independent drafter is given as a `Target` and has one level.

    top-k: fraction of positions where the target's most likely token is among the drafter's k most likely; TV: mean
    total variation between their probabilities (1 - TV is the exact rule's probability of accepting a sampled draft).
    """
    sums: defaultdict[str, Any] = defaultdict(float)  # tensors: reading them waits for the device
    for captions, tokens in _batches(data, batch, target.device):
        weight = len(tokens) / len(data)
        for level, (student, teacher) in enumerate(_pairs(target, drafter, captions, tokens, levels), start=1):
            for scale in scales:
                p, q = combine(student, scale).softmax(-1), combine(teacher, scale).softmax(-1)
                hit = (p.topk(3).indices == q.argmax(-1, keepdim=True)).float()
                suffix = _suffix(scale) + (f" level {level}" if level > 1 else "")
                sums[f"top-1{suffix}"] += hit[..., 0].mean() * weight
                sums[f"top-3{suffix}"] += hit.sum(-1).mean() * weight
                sums[f"TV{suffix}"] += (p - q).abs().sum(-1).mean() / 2 * weight
    return {name: float(value) for name, value in sums.items()}


def held_out_figures(folder: Path = BUILTIN, images: int = 256, seed: int = 1) -> dict[str, Figures]:
    """Figures of the target and of every drafter in the folder, on scenes 0..images-1 of a seed (training used seed 0).

    Raises:
        WeightsError: a file that is missing or damaged.
    """
    models = load_folder(folder)
    target = models.target
    assert isinstance(target.codec, VQModel)
    data = tokenize_scenes(target.codec, seed, range(images))
    figures = {"target": evaluate_target(target, data)}
    for kind, drafter in models.drafters.items():
        match drafter:
            case EagleDrafter():
                figures[kind] = evaluate_drafter(target, drafter.layer, data, levels=_LEVELS)
            case MedusaDrafter():
                figures[kind] = evaluate_drafter(target, drafter.heads, data)
            case IndependentDrafter():
                own = Target(kind, drafter.decoder, drafter.conditioner, None, target.sampling)
                figures[kind] = evaluate_drafter(target, own, data)
    return figures


def _pairs(
    target: Target, drafter: Drafter | Target, captions: list[str], tokens: Tensor, levels: int
) -> list[tuple[Tensor, Tensor]]:
    """For each draft level the logits [2B, n, V] of drafter and target at the same positions."""
    if isinstance(drafter, Target):
        return [(_logits(drafter, captions, tokens), _logits(target, captions, tokens))]
    inputs = encode_pairs(target, captions, tokens)
    teacher = head_logits(target, inputs.labels)
    return [(logits, teacher[:, j:]) for j, (logits, _) in enumerate(draft_levels(target, drafter, inputs, levels))]


def _logits(target: Target, captions: list[str], tokens: Tensor) -> Tensor:
    """Logits [2B, N, V] of every token of images [B, N] under their captions, then under the null prompt."""
    features = teacher_forced(target, target.encode(captions, guided=True), tokens[:, :-1].repeat(2, 1))
    return head_logits(target, features[:, target.prompt_len - 1 :])


def _batches(data: Examples, batch: int, device: torch.device) -> Iterator[tuple[list[str], Tensor]]:
    for start in range(0, len(data), batch):
        yield data.pick(torch.arange(start, min(start + batch, len(data))), device)


def _suffix(scale: float) -> str:
    return "" if scale == 1 else f" cfg {scale:g}"


def main() -> None:
    parser = argparse.ArgumentParser(description="Held-out figures of the target and of every drafter in a folder.")
    parser.add_argument("--folder", type=Path, default=BUILTIN)
    parser.add_argument("--images", type=int, default=256)
    arguments = parser.parse_args()
    for component, figures in held_out_figures(arguments.folder, arguments.images).items():
        print(component)
        for name, value in figures.items():
            print(f"  {name:32s} {value:.4f}")


if __name__ == "__main__":
    main()
