"""Trains components of a model as the shipped ones were trained, each into one weight file in a
folder.

    python -m recipes tokenizer target eagle eagle3 medusa independent vertical --out runs/scenes
    python -m recipes all --data photos --out runs/photos

Components need each other: a target needs its tokenizer, a drafter its target. They are trained in
that order. Without --data they are trained on procedural scenes, and the built-in model replaces a
component that is not in the folder. --resume continues from the checkpoints in the folder.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import torch

from recipes import COMPONENTS, SCENES_ONLY
from search_spaces.paths import local_path
from workers.runtime.process import check_working_directory

ALL = "all"


def ordered_components(components: Sequence[str], *, with_data: bool) -> list[str]:
    """The components in the order of their dependencies; "all" are those that can be trained on the
    data.
    """
    trainable = [
        component for component in COMPONENTS if not (with_data and component in SCENES_ONLY)
    ]
    chosen = {*components, *(trainable if ALL in components else [])}
    return [component for component in COMPONENTS if component in chosen]


def _path(text: str) -> Path:
    try:
        return local_path(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m recipes", description="Train components of a model."
    )
    parser.add_argument("components", nargs="+", choices=(*COMPONENTS, ALL), metavar="COMPONENT",
                        help=f"{', '.join(COMPONENTS)}; or {ALL}")  # fmt: skip
    parser.add_argument(
        "--out", type=_path, default=Path("runs/train"), help="folder for weights and checkpoints"
    )
    parser.add_argument(
        "--data",
        type=_path,
        help="your captioned or class-labelled images; default: procedural scenes",
    )
    parser.add_argument("--steps", type=int, help="default: the recipe's")
    parser.add_argument(
        "--recipe-of",
        choices=COMPONENTS,
        metavar="COMPONENT",
        help="train by this component's recipe, to compare drafters at equal cost",
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", help="default: a GPU if torch can use one")
    parser.add_argument("--threads", type=int, help="CPU threads; default: torch's")
    parser.add_argument(
        "--resume", action="store_true", help="resume from the checkpoints in the folder"
    )
    options = parser.parse_args(arguments)
    try:
        check_working_directory()
        _train(options)
    except (ValueError, OSError) as error:
        parser.exit(1, f"error: {error}\n")


def _train(options: argparse.Namespace) -> None:
    """Train the components and print their files."""
    from recipes.components import train_component

    if options.threads is not None:
        torch.set_num_threads(options.threads)
    for component in ordered_components(options.components, with_data=options.data is not None):
        path = train_component(
            component,
            options.out,
            options.data,
            seed=options.seed,
            device=options.device,
            steps=options.steps,
            recipe_of=options.recipe_of,
            resume=options.resume,
        )
        print(f"{component}: {path}")


if __name__ == "__main__":
    main()
