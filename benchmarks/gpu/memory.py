"""What graphs and engines keep over a trial of 200 images, and over 40 trials of a sweep.

A trial generates its images as a worker does, with the engines of `workers.runtime.engines`.
Recaptures: graphs that were captured although their pass had been captured before. Pools: the
memory that only graphs use.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, partial
from typing import Any
from unittest.mock import patch

import torch

from benchmarks.common import held_out_requests
from benchmarks.gpu.models import XL, builtin_models, random_models
from benchmarks.gpu.record import Case, Row, Setup
from search_spaces.presets import CATALOGUE, preset
from search_spaces.trial import DecodingConfig
from workers.decoding import graphs
from workers.decoding.state import Request
from workers.loading.models import Models
from workers.runtime.engines import Engines

CODES = 16384
TRIAL = ("vanilla", "eagle1", "eagle2", "adt")
IMAGES, BATCH, TRIALS, TRIALS_S = 200, 32, 40, 120.0  # seconds after which no further trial begins
PHASES = 4  # graphs of a pass


@dataclass
class Captures:
    """Their number, and the seconds of all."""

    count: int = 0
    seconds: float = 0.0

    @contextmanager
    def counting(self) -> Iterator[None]:
        """Counts captures inside."""
        make = graphs.CudaCapture

        def counted(device: torch.device) -> graphs.Capture:
            capture = make(device)

            def call(function: Callable[[], Any]) -> tuple[graphs.Graph, Any]:
                begin = time.perf_counter()
                out = capture(function)
                self.count, self.seconds = (
                    self.count + 1,
                    self.seconds + time.perf_counter() - begin,
                )
                return out

            return call

        with patch.object(graphs, "CudaCapture", counted):
            yield


def live_graphs() -> list[graphs.PassGraphs]:
    """Those of all batches that are still in memory."""
    gc.collect()
    return [found for found in gc.get_objects() if type(found) is graphs.PassGraphs]


def device_memory(setup: Setup) -> Row:
    """Bytes of tensors, of what torch keeps of the device, and of the pools that only graphs
    use.
    """
    if not setup.is_cuda:
        return {}
    pools: dict[tuple[int, ...], int] = {}
    for segment in torch.cuda.memory_snapshot():  # type: ignore[no-untyped-call]
        pool = tuple(segment.get("segment_pool_id", (0, 0)))
        pools[pool] = pools.get(pool, 0) + segment["total_size"]
    pools.pop((0, 0), None)
    return {
        "allocated_bytes": torch.cuda.memory_allocated(setup.device),
        "reserved_bytes": torch.cuda.memory_reserved(setup.device),
        "peak_bytes": torch.cuda.max_memory_allocated(setup.device),
        "pools": len(pools),
        "pool_bytes": sum(pools.values()),
    }


def trial(setup: Setup, load: Callable[[], Models], config: DecodingConfig) -> Row:
    """The images of a trial, and what is kept after it."""
    images, batch = (6, 2) if setup.is_tiny else (IMAGES, BATCH)
    models, captures = load(), Captures()
    if setup.is_cuda:
        torch.cuda.reset_peak_memory_stats(setup.device)
    with captures.counting():
        engines = Engines(models, 0, lambda: False)
        begin = time.perf_counter()
        results, used = engines.generate(config, held_out_requests(models, images), batch)
        seconds = time.perf_counter() - begin
    keys = sum(len(found.keys) for found in live_graphs())
    return {
        "images": len(results),
        "batch": used,
        "seconds": seconds,
        "passes": max(result.statistics.passes for result in results),
        "captures": captures.count,
        "captured_passes": keys,
        "recaptures": captures.count - PHASES * keys,
        "capture_s": captures.seconds,
        **device_memory(setup),
    }


def trials(setup: Setup, load: Callable[[], Models]) -> Row:
    """Trees of other sizes one after another, as a search tries them, and after every fourth a
    timing session of vanilla and the last four; what is kept after every tenth.
    """
    count, images, batch = (4, 2, 2) if setup.is_tiny else (TRIALS, 8, 8)
    models, captures, vanilla, kept = load(), Captures(), preset("vanilla"), list[Row]()
    requests = held_out_requests(models, images)
    with captures.counting():
        engines, begin, found = (
            Engines(models, 0, lambda: False),
            time.perf_counter(),
            configs()[:count],
        )
        for number, config in enumerate(found, 1):
            engines.generate(config, requests, batch)
            if number % 4 == 0:
                time_together(engines, [vanilla, *found[number - 4 : number]], requests[:2])
            seconds = time.perf_counter() - begin
            is_last = number == count or seconds > TRIALS_S
            if number % 10 == 0 or is_last:
                live = live_graphs()
                keys = sum(len(each.keys) for each in live)
                kept.append(
                    {"live_graphs": len(live), "captured_passes": keys, **device_memory(setup)}
                )
            if is_last:
                break
    row = {
        "trials": number,
        "seconds": seconds,
        "captures": captures.count,
        "capture_s": captures.seconds,
    }
    return row | {key: [each[key] for each in kept] for key in kept[0]}


def time_together(
    engines: Engines, configs: Sequence[DecodingConfig], requests: Sequence[Request]
) -> None:
    """Two images of each config in turn, one at a time."""
    for request in requests:
        for config in configs:
            engines.generate_once(config, [request], 1, configs)


def configs() -> list[DecodingConfig]:
    """40 settings of different shapes."""
    base = preset("eagle2").to_mapping()
    rules: tuple[Any, ...] = ("exact", "lantern")
    return [
        DecodingConfig.from_mapping(
            base
            | {
                "tree": {"policy": "dynamic", "depth": depth, "width": width, "nodes": nodes},
                "acceptance": rule,
            }
        )
        for nodes in (16, 26, 42, 58)
        for depth in range(2, 7)
        for width, rule in zip((6, 10), rules, strict=True)
    ]


def cases(setup: Setup) -> Iterator[Case]:
    published = cache(partial(random_models, setup, XL))
    small = published if setup.is_tiny else cache(partial(builtin_models, setup, CODES))
    for name in TRIAL:
        yield f"trial: {name}, built-in", partial(trial, setup, small, CATALOGUE[name].config)
    yield "trials: built-in", partial(trials, setup, small)
    for name in ("vanilla", "eagle2"):
        yield f"trial: {name}, {XL}", partial(trial, setup, published, CATALOGUE[name].config)
