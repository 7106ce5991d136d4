"""Held-out metrics of a folder's target and of its drafters, teacher forced on the tokens of
procedural scenes, or of captioned images that training has not seen.

    python -m recipes.evaluate [--folder DIR] [--images N]
    python -m recipes.evaluate --folder runs/photos --data held_out

prints them, such as the documented numbers of the built-in model; see `workers.training.drafters`
for what they are.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

from recipes.distillation import unrolled
from recipes.tokenizer import tokenize_images, tokenize_scenes
from workers.data.captioned_images import CaptionedImages, read_folder
from workers.drafters.eagle import EagleDrafter
from workers.drafters.independent import IndependentDrafter
from workers.drafters.medusa import MedusaDrafter
from workers.drafters.vertical import VerticalHead
from workers.loading.models_yaml import load_folder
from workers.models.families.conditioners import SceneConditioner
from workers.models.families.scenes import BUILTIN
from workers.models.own_files import read_module
from workers.models.target import Target
from workers.models.vertical import build_vertical
from workers.models.vq import VQModel
from workers.training.drafters import SCALES, combine, evaluate_drafter, suffix_of, target_logits
from workers.training.examples import Examples
from workers.training.loop import Figures

_LEVELS = 4  # draft levels of an EAGLE layer that the command measures


@torch.no_grad()
def evaluate_target(
    target: Target, data: Examples, *, scales: Sequence[float] = SCALES, batch: int = 64
) -> Figures:
    """Cross-entropy in nats per token with and without the caption; mean total probability of the 1
    and 10 most likely tokens.
    """
    sums: defaultdict[str, Any] = defaultdict(float)  # tensors: reading them waits for the device
    for captions, tokens in data.batches(batch, target.device):
        logits = target_logits(target, captions, tokens)
        weight = len(tokens) / len(data)
        for stream, rows in zip(("cond", "null"), logits.chunk(2), strict=True):
            sums[f"cross-entropy {stream}"] += (
                F.cross_entropy(rows.flatten(0, 1), tokens.flatten()) * weight
            )
        for scale in scales:
            top = combine(logits, scale).softmax(-1).topk(10).values.mean((0, 1))
            sums[f"top-1{suffix_of(scale)}"] += top[0] * weight
            sums[f"top-10{suffix_of(scale)}"] += top.sum() * weight
    return {name: float(value) for name, value in sums.items()}


def held_out_figures(
    folder: Path = BUILTIN, images: int = 256, seed: int = 1, data_folder: Path | None = None
) -> dict[str, Figures]:
    """Figures of the target and of every drafter in the folder.

    They are of scenes 0..images-1 of a seed (training used seed 0), or of at most `images` images
    of a folder of captioned images, which the seed selects.

    Raises:
        WeightsError: a file that is missing or damaged.
        ValueError: images or captions that cannot be read; a target that was trained on other
            captions than those of scenes, without a folder.
    """
    models = load_folder(folder)
    target = models.target
    assert isinstance(target.codec, VQModel)
    if data_folder is None:
        if not isinstance(target.conditioner, SceneConditioner):
            problem = "its captions are not those of scenes; give --data"
            raise ValueError(f"{folder}: {problem}, a folder of captioned images")
        data = tokenize_scenes(target.codec, seed, range(images))
    else:
        data = _shuffled(read_folder(data_folder), images, seed, target.codec)
    figures = {"target": evaluate_target(target, data)}
    for kind, drafter in models.drafters.items():
        match drafter:
            case EagleDrafter():
                figures[kind] = evaluate_drafter(
                    target, drafter.layer, data, levels_of=unrolled(_LEVELS)
                )
            case MedusaDrafter():
                figures[kind] = evaluate_drafter(target, drafter.heads, data)
            case VerticalHead():
                branch, _ = read_module(
                    folder / f"{kind}.safetensors", "a vertical head", build_vertical
                )
                figures[kind] = evaluate_drafter(target, branch, data)
            case IndependentDrafter():
                own = Target(kind, drafter.decoder, drafter.conditioner, None, target.sampling)
                figures[kind] = evaluate_drafter(target, own, data)
    return figures


def _shuffled(folder: CaptionedImages, images: int, seed: int, codec: VQModel) -> Examples:
    """At most `images` examples of a folder, in the order of a seed."""
    order = torch.randperm(len(folder), generator=torch.Generator().manual_seed(seed))
    chosen = order[:images].tolist()
    tokens = tokenize_images(codec, [folder.paths[i] for i in chosen])
    return Examples([folder.captions[i] for i in chosen], tokens)


def main() -> None:
    parser = argparse.ArgumentParser(
        description="Held-out figures of the target and of every drafter in a folder."
    )
    parser.add_argument("--folder", type=Path, default=BUILTIN)
    parser.add_argument(
        "--images", type=int, default=256, help="number of images, of --data at most"
    )
    parser.add_argument(
        "--data",
        type=Path,
        help="folder of captioned images that training has not seen; default: procedural scenes",
    )
    arguments = parser.parse_args()
    try:
        found = held_out_figures(arguments.folder, arguments.images, data_folder=arguments.data)
    except ValueError as error:
        parser.exit(1, f"error: {error}\n")
    for component, figures in found.items():
        print(component)
        for name, value in figures.items():
            print(f"  {name:32s} {value:.4f}")


if __name__ == "__main__":
    main()
