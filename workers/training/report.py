"""Held-out figures of a folder's target and drafters on procedural scenes: `python -m workers.training.report`.

What the README says about the built-in model's laws is what this prints.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from workers.models.families.conditioners import SceneConditioner
from workers.models.families.scenes import BUILTIN, build_eagle, build_medusa, read_piece
from workers.models.vq import load_vq
from workers.training.evaluate import (
    eagle_pairs,
    evaluate_drafter,
    evaluate_target,
    independent_pairs,
    medusa_pairs,
)
from workers.training.loop import Figures
from workers.training.parts import TokenSet, load_model
from workers.training.tokenizer import tokenize_scenes


def held_out_figures(folder: Path = BUILTIN, images: int = 256, seed: int = 1) -> dict[str, Figures]:
    """Figures of the target and of every drafter in the folder, on scenes 0..images-1 of a seed (training used seed 0).

    Raises:
        WeightsError: a file that is missing or damaged.
    """
    drawn = tokenize_scenes(load_vq(folder / "tokenizer.safetensors"), seed, range(images))
    data = TokenSet(drawn["tokens"], SceneConditioner(1).from_attributes(drawn["attributes"]))
    target = load_model(folder / "target.safetensors").eval()
    figures = {"target": evaluate_target(target, data)}
    paths = {kind: folder / f"{kind}.safetensors" for kind in ("eagle", "medusa", "independent")}
    if paths["eagle"].exists():
        pairs = eagle_pairs(target, read_piece(paths["eagle"], "an EAGLE layer", build_eagle), levels=4)
        figures["eagle"] = evaluate_drafter(pairs, data)
    if paths["medusa"].exists():
        pairs = medusa_pairs(target, read_piece(paths["medusa"], "Medusa heads", build_medusa))
        figures["medusa"] = evaluate_drafter(pairs, data)
    if paths["independent"].exists():
        figures["independent"] = evaluate_drafter(independent_pairs(target, load_model(paths["independent"])), data)
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description="Held-out figures of the target and of every drafter in a folder.")
    parser.add_argument("--folder", type=Path, default=BUILTIN)
    parser.add_argument("--images", type=int, default=256)
    given = parser.parse_args()
    for piece, figures in held_out_figures(given.folder, given.images).items():
        print(piece)
        for name, value in figures.items():
            print(f"  {name:32s} {value:.4f}")


if __name__ == "__main__":
    main()
