"""Processor time of an image against the batch size.

    python -m benchmarks.batches                        # the built-in model
    python -m benchmarks.batches --codes 16384          # the built-in model with more codes
    python -m benchmarks.batches --random           # a small random target, 16,384 codes
    python -m benchmarks.batches --profile              # the operators of a pass, instead of times
    MALLOC_ARENA_MAX=8 python -m benchmarks.batches   # glibc's allocator keeps no freed memory

One thread, and processor time instead of the wall clock, so that other work on the machine changes
little. Batch sizes take turns, and the least time counts.
"""

from __future__ import annotations

import argparse
import time
from collections import deque
from collections.abc import Sequence

import torch
from torch.profiler import ProfilerActivity, profile

from benchmarks.common import draw, engine_for, held_out_requests
from benchmarks.random_models import published_shape, randomise, with_codes, with_usual_drafter
from search_spaces.presets import PRESETS
from workers.decoding.engine import Engine
from workers.decoding.state import Request
from workers.loading.models import Models
from workers.loading.models_yaml import load_folder
from workers.runtime.process import use_threads

# of the random target
SHAPE = {"dim": 192, "n_layers": 6, "n_heads": 6, "ffn_dim": 512, "rows": 6, "cols": 6}
_RANDOM_CODES = 16384
_WARM, _PROFILED, _SHOWN = 4, 4, 6  # passes, and operators of a profile


def random_models(preset: str, codes: int) -> Models:
    """A small target with random weights, 6 x 6 tokens and CFG, and the drafter of a preset."""
    shape = published_shape("llamagen-3b-c2i", torch.float32, tiny=True, vocab_size=codes, **SHAPE)
    models = with_usual_drafter(shape, PRESETS[preset])
    for module in (models.target, *models.drafters.values()):
        randomise(module, torch.device("cpu"))
    return models


def operators(engine: Engine, requests: Sequence[Request]) -> str:
    """The operators that take most of a pass's processor time, each with its share."""
    with torch.inference_mode():
        state, _ = engine.open(deque(requests[: engine.batch_size]))

        def passes(count: int) -> None:
            for _ in range(count):
                state.sync_host_counts(engine.read(state, engine.step(state)).so_far)

        passes(_WARM)
        with profile(activities=[ProfilerActivity.CPU]) as found:
            passes(_PROFILED)
    took = {event.key: event.self_cpu_time_total for event in found.key_averages()}
    largest = sorted(took, key=lambda key: -took[key])[:_SHOWN]
    return ", ".join(
        f"{key.removeprefix('aten::')} {took[key] / sum(took.values()):.0%}" for key in largest
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--only",
        nargs="+",
        choices=PRESETS,
        default=["vanilla", "eagle1", "eagle2"],
        metavar="PRESET",
    )
    parser.add_argument(
        "--random", action="store_true", help="random weights; default: the built-in model"
    )
    parser.add_argument("--codes", type=int, help="for the built-in model, a multiple of 1024")
    parser.add_argument("--images", type=int, default=32)
    parser.add_argument("--batches", nargs="+", type=int, default=[8, 32])
    parser.add_argument("--repetitions", type=int, default=1)
    parser.add_argument(
        "--profile",
        action="store_true",
        help="print the operators of a pass, and measure no times",
    )
    args = parser.parse_args()
    use_threads(1)
    builtin = load_folder()
    if args.codes and not args.random:
        builtin = with_codes(builtin, args.codes)
    for name in args.only:
        models = random_models(name, args.codes or _RANDOM_CODES) if args.random else builtin
        requests = held_out_requests(models, args.images)
        if args.random:
            requests = [
                type(request)(request.caption_id, str(request.caption_id)) for request in requests
            ]
        engine, least = (
            engine_for(models, PRESETS[name], batch=1),
            dict.fromkeys(args.batches, float("inf")),
        )
        draw(engine, requests[:2])
        if args.profile:
            for engine.batch_size in args.batches:
                print(
                    f"{name}, batch {engine.batch_size}: {operators(engine, requests)}", flush=True
                )
            continue
        for _ in range(args.repetitions):
            for batch in args.batches:
                engine.batch_size = batch
                begin = time.process_time()
                draw(engine, requests)
                least[batch] = min(least[batch], (time.process_time() - begin) / len(requests))
        figures = ", ".join(
            f"batch {batch}: {1e3 * seconds:.0f}" for batch, seconds in least.items()
        )
        print(f"{name}, ms an image at {figures}", flush=True)


if __name__ == "__main__":
    main()
