"""The minimum time of a decoding round: the bytes it must read, at the bandwidth of a large
copy.
"""

from __future__ import annotations

import time

import torch

from workers.drafters.eagle import EagleDrafter
from workers.loading.dry_run import size_of
from workers.loading.models import Models
from workers.models.transformer import Body
from workers.runtime.timing import synchronize


def copy_bandwidth(device: torch.device) -> float:
    """Bytes a second that a large copy on the device reads and writes, the best of ten."""
    source = torch.ones(2**30 if device.type == "cuda" else 2**26, dtype=torch.uint8, device=device)
    destination, seconds = torch.zeros_like(source), []
    for _ in range(10):
        synchronize(device)
        begin = time.perf_counter()
        destination.copy_(source)
        synchronize(device)
        seconds.append(time.perf_counter() - begin)
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
