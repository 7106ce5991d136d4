"""Processor time of an image against the batch size, for a small target with a large vocabulary and random weights.

    python -m benchmarks.batches                        # 16,384 codes, 6 layers 192 wide, 6 x 6 tokens, CFG
    MALLOC_ARENA_MAX=8 python -m benchmarks.batches     # a variable of glibc's allocator: freed memory is not kept

One thread, and processor time instead of the wall clock, so that other work on the machine changes little.
"""

from __future__ import annotations

import argparse
import time

import torch

from benchmarks.common import draw, engine_for
from benchmarks.random_models import published_shape, randomise, with_usual_drafter
from search_spaces.presets import PRESETS
from workers.decoding.state import Request
from workers.runtime.process import use_threads

SHAPE = {"dim": 192, "n_layers": 6, "n_heads": 6, "ffn_dim": 512, "rows": 6, "cols": 6}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=PRESETS, default=["vanilla", "eagle1", "eagle2"], metavar="PRESET")
    parser.add_argument("--codes", type=int, default=16384)
    parser.add_argument("--images", type=int, default=32)
    parser.add_argument("--batches", nargs="+", type=int, default=[8, 32])
    args = parser.parse_args()
    use_threads(1)
    requests = [Request(index, str(index)) for index in range(args.images)]
    for name in args.only:
        shape = published_shape("llamagen-3b-c2i", torch.float32, tiny=True, vocab_size=args.codes, **SHAPE)
        models = with_usual_drafter(shape, PRESETS[name])
        for module in (models.target, *models.drafters.values()):
            randomise(module, torch.device("cpu"))
        for batch in args.batches:
            engine = engine_for(models, PRESETS[name], batch=batch)
            draw(engine, requests[:2])
            begin = time.process_time()
            draw(engine, requests)
            milliseconds = 1e3 * (time.process_time() - begin) / len(requests)
            print(f"{name}, batch {batch}: {milliseconds:.0f} ms an image", flush=True)


if __name__ == "__main__":
    main()
