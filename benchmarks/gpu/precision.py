"""Images that differ between vanilla and speculative decoding at temperature 0, where none should but for rounding: the
same token gets other logits in a pass over many tokens than in a pass over one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache, partial

from torch import Tensor

from benchmarks.common import draw, engine_for, held_out_requests
from benchmarks.gpu.record import Case, Row, Setup
from search_spaces.presets import CATALOGUE
from search_spaces.trial import DecodingConfig
from workers.loading.models import Models
from workers.loading.models_yaml import folder_entry, load_entry

DTYPES = ("float32", "bfloat16", "float16")
IMAGES, BATCH = 32, 8


def differing(load: Callable[[], Models], vanilla: Callable[[], Tensor], config: DecodingConfig, images: int) -> Row:
    """Images with another token than vanilla's, and the mean index of the first such token."""
    ours, theirs = greedy(load, config, images), vanilla()
    other = ours != theirs
    wrong = other.any(1)
    first = other.int().argmax(1)[wrong].float()
    return {"images": images, "differing": int(wrong.sum()), "first_index": float(first.mean()) if len(first) else None}


def greedy(load: Callable[[], Models], config: DecodingConfig, images: int) -> Tensor:
    """Tokens [images, image_len] at temperature 0."""
    models = load()
    sampling = replace(models.target.sampling, temperature=0.0, top_k=0, top_p=1.0)
    engine = engine_for(models, config, batch=min(images, BATCH), sampling=sampling)
    return draw(engine, held_out_requests(models, images)).tokens


def cases(setup: Setup) -> Iterator[Case]:
    images = 1 if setup.is_tiny else IMAGES
    for dtype in ("bfloat16",) if setup.is_tiny else DTYPES:
        load = cache(partial(load_entry, replace(folder_entry(), dtype=dtype), setup.device))
        vanilla = cache(partial(greedy, load, DecodingConfig(), images))
        for name, found in CATALOGUE.items():
            is_exact = found.config.acceptance.is_exact(temperature=0.0) and name != "vanilla"
            if is_exact and (not setup.is_tiny or name == "eagle2"):
                yield f"{name}, {dtype}", partial(differing, load, vanilla, found.config, images)
