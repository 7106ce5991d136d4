"""The minimum time of a decoding round: the bytes it must read, at the bandwidth of a large
copy.

    python -m benchmarks.floor

prints this minimum for a pass of the built-in model's target on one thread of this machine, and the
CPU time of passes over more and more tokens, at batch 1 without guidance, in the middle of an
image.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Sequence

import torch

from benchmarks.common import engine_for
from search_spaces.trial import DecodingConfig, Sampling
from workers.drafters.eagle import EagleDrafter
from workers.loading.dry_run import size_of
from workers.loading.models import Models
from workers.loading.models_yaml import load_folder
from workers.models.transformer import Body
from workers.runtime.process import use_threads
from workers.runtime.timing import synchronize

_WIDTHS = (1, 2, 4, 8, 12, 16, 32, 64)  # tokens of a pass
_PASSES = 100  # of each width


def copy_bandwidth(device: torch.device) -> float:
    """Bytes a second that a large copy on the device reads and writes, the best of ten. On a CPU by
    the time of the thread that copies, in which other processes have no part.
    """
    clock = time.perf_counter if device.type == "cuda" else time.thread_time
    source = torch.ones(2**30 if device.type == "cuda" else 2**26, dtype=torch.uint8, device=device)
    destination, seconds = torch.zeros_like(source), []
    for _ in range(10):
        synchronize(device)
        begin = clock()
        destination.copy_(source)
        synchronize(device)
        seconds.append(clock() - begin)
    return 2 * source.nbytes / min(seconds)


def pass_bytes(body: Body, columns: int) -> int:
    """The minimum that a pass reads: all weights except the embedding's (it reads a few of its
    rows), and keys and values of `columns` of the cache, those of all rows together.
    """
    weights = size_of(weight for name, weight in body.named_parameters() if name != "embed.weight")
    config, item_bytes = body.config, next(body.parameters()).element_size()
    return weights + 2 * item_bytes * config.n_layers * columns * config.kv_heads * config.channels


def round_bytes(models: Models, columns: int, levels: int) -> int:
    """The minimum that a round reads: one pass of the target and, for each drafted level, one of
    the EAGLE layer and of the target's head. Both have cached the same columns; what the round
    itself adds is not counted.
    """
    target, total = models.target, pass_bytes(models.target.transformer, columns)
    for drafter in models.drafters.values():
        assert isinstance(drafter, EagleDrafter)
        extra = size_of([*drafter.layer.fc.parameters(), *target.head.parameters()])
        total += levels * (pass_bytes(drafter.decoder, columns) + extra)
    return total


@torch.inference_mode()
def pass_s(models: Models, width: int, passes: int = _PASSES) -> float:
    """CPU seconds of a pass of the target over so many tokens in the middle of an image, with its
    embedding and head: the median of some passes.
    """
    target = models.target
    batch = engine_for(models, DecodingConfig(sampling=Sampling()), batch=1).allocate(1)
    first = target.prompt_len + target.grid.tokens // 2
    columns = torch.arange(first, first + width)[None]
    mask = batch.chain_mask(columns)[..., : first + width]
    tokens = torch.zeros(1, width, dtype=torch.int64)
    seconds = []
    for _ in range(passes):
        begin = time.thread_time()
        cache = batch.cache.at(columns, first + width)
        features = target.transformer(target.embed(tokens), columns, mask=mask, cache=cache)
        target.head(features)
        seconds.append(time.thread_time() - begin)
    return statistics.median(seconds)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.parse_args(arguments)
    use_threads(1)
    models = load_folder()
    target = models.target
    columns = target.prompt_len + target.grid.tokens // 2
    size = pass_bytes(target.transformer, columns)
    bandwidth = copy_bandwidth(torch.device("cpu"))
    print(
        f"a pass reads {size / 1e6:.1f} MB in float32, at {bandwidth / 1e9:.1f} GB/s in "
        f"{1e3 * size / bandwidth:.2f} ms; in float16, as linear layers do, half of it"
    )
    one = pass_s(models, 1)
    for width in _WIDTHS:
        seconds = pass_s(models, width)
        print(f"{width:3} tokens: {1e3 * seconds:.2f} ms, {seconds / one:.2f} passes of one token")


if __name__ == "__main__":
    main()
