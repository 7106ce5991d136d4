"""Images that differ between vanilla and speculative decoding at temperature 0, where none should
but for rounding: the same token gets other logits in a pass over many tokens than in a pass over
one.

    python -m benchmarks.gpu.precision --images 8 --only eagle2 sjd      # on a CPU, one thread
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cache, partial

import torch
from torch import Tensor

from benchmarks.common import draw, engine_for, held_out_requests
from benchmarks.gpu.record import Case, Row, Setup
from search_spaces.presets import CATALOGUE, PRESETS
from search_spaces.trial import DecodingConfig
from workers.loading.models import Models
from workers.loading.models_yaml import folder_entry, load_entry
from workers.runtime.process import use_threads

DTYPES = ("float32", "bfloat16", "float16")
IMAGES, BATCH = 32, 8


def differing(
    load: Callable[[], Models], vanilla: Callable[[], Tensor], config: DecodingConfig, images: int
) -> Row:
    """Images with another token than vanilla's, and the mean index of the first such token."""
    ours, theirs = greedy(load, config, images), vanilla()
    other = ours != theirs
    wrong = other.any(1)
    first = other.int().argmax(1)[wrong].float()
    return {
        "images": images,
        "differing": int(wrong.sum()),
        "first_index": float(first.mean()) if len(first) else None,
    }


def greedy(load: Callable[[], Models], config: DecodingConfig, images: int) -> Tensor:
    """Tokens [images, image_len] at temperature 0."""
    models = load()
    sampling = replace(models.target.sampling, temperature=0.0, top_k=0, top_p=1.0)
    engine = engine_for(models, config, batch=min(images, BATCH), sampling=sampling)
    return draw(engine, held_out_requests(models, images)).tokens


def cases(setup: Setup) -> Iterator[Case]:
    exact = [
        name
        for name, found in CATALOGUE.items()
        if found.config.acceptance.is_exact(temperature=0.0)
    ]
    names = ["eagle2"] if setup.is_tiny else [name for name in exact if name != "vanilla"]
    for dtype in ("bfloat16",) if setup.is_tiny else DTYPES:
        yield from cases_of(dtype, names, setup.device, 1 if setup.is_tiny else IMAGES)


def cases_of(dtype: str, names: Sequence[str], device: torch.device, images: int) -> Iterator[Case]:
    """The presets of these names against vanilla, which is decoded once."""
    load = cache(partial(load_entry, replace(folder_entry(), dtype=dtype), device))
    vanilla = cache(partial(greedy, load, DecodingConfig(), images))
    for name in names:
        yield f"{name}, {dtype}", partial(differing, load, vanilla, PRESETS[name], images)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--only", nargs="+", choices=CATALOGUE, default=["eagle2", "sjd"], metavar="PRESET"
    )
    parser.add_argument("--images", type=int, default=IMAGES)
    args = parser.parse_args()
    use_threads(1)
    for dtype in DTYPES:
        for name, measure in cases_of(dtype, args.only, torch.device("cpu"), args.images):
            found = measure()
            first = (
                f", at token {found['first_index']:.0f} on average" if found["differing"] else ""
            )
            print(f"{name}: {found['differing']} of {args.images} images differ{first}", flush=True)


if __name__ == "__main__":
    main()
