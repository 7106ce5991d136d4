"""CUDA graphs against eager passes: the tokens and the time of every preset.

Three modes: graphs; the same batches without graphs, whose shapes are the same, so no token may
differ; and batches that shrink as images end, as without graphs, where rounding may decide another
token once in a while.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from functools import cache, partial
from unittest.mock import patch

from benchmarks.common import draw, engine_for, held_out_requests
from benchmarks.gpu.models import builtin_models
from benchmarks.gpu.record import Case, Row, Setup
from search_spaces.presets import CATALOGUE
from workers.decoding.graphs import PassGraphs
from workers.loading.models import Models

CODES = 16384
IMAGES, BATCH = 6, 4


def compare(load: Callable[[], Models], name: str, images: int, batch: int) -> Row:
    """The modes on the same captions, each after a run that warms up. Tokens are compared with
    those of graphs.
    """
    models, config = load(), CATALOGUE[name].config
    requests = held_out_requests(models, images)
    engine, shrinking = (
        engine_for(models, config, batch=batch),
        engine_for(models, config, batch=batch),
    )
    if engine.new_capture is None:
        return {"skipped": "no CUDA: passes are not captured here"}
    shrinking.new_capture = None
    modes = {"graphs": (engine, False), "eager": (engine, True), "shrinking": (shrinking, True)}
    tokens, row = {}, dict[str, object]({"images": images})
    for mode, (used, is_eager) in modes.items():
        with (
            patch.object(PassGraphs, "failure", "not to be used now") if is_eager else nullcontext()
        ):
            draw(used, requests)
            drawn = draw(used, requests)
        tokens[mode] = drawn.tokens
        row[f"{mode}_s"] = drawn.seconds / images
        if mode == "graphs" and (failure := PassGraphs.failure) is not None:
            raise RuntimeError(f"a pass could not be captured: {failure}")
    for mode in ("eager", "shrinking"):
        row[f"{mode}_differing"] = int((tokens[mode] != tokens["graphs"]).any(1).sum())
    return row


def cases(setup: Setup) -> Iterator[Case]:
    for codes in (None,) if setup.is_tiny else (None, CODES):
        load = cache(partial(builtin_models, setup, codes))
        for name, preset in CATALOGUE.items():
            if codes is None or preset.config.drafter.kind in ("none", "jacobi", "eagle"):
                images, batch = (2, 2) if setup.is_tiny else (IMAGES, BATCH)
                yield f"{name}, V {codes or 1024}", partial(compare, load, name, images, batch)
