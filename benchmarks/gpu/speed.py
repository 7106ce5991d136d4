"""Decoding steps of full-size models without their files: published shapes, random weights, EAGLE
layers of usual size.

Distributions are flat and similar, so what a step accepts, and with it tokens/s, is meaningful for
vanilla only; a step's time depends on shapes alone (an adjacency tree's shape on what was accepted:
see its nodes). The minimum of a step: each pass of the target, and one of the EAGLE layer per
level, reads its weights and its cache once, at the bandwidth of a large copy. Prefill is not
counted. A profile is of eager passes: device time inside and outside of the models' forwards, and
the kernels of attention.
"""

from __future__ import annotations

import statistics
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cache, partial
from typing import Any
from unittest.mock import patch

import torch
from torch import nn
from torch.profiler import ProfilerActivity, record_function

from benchmarks.common import engine_for
from benchmarks.floor import copy_bandwidth, round_bytes
from benchmarks.gpu.models import XL, needed, random_models, shapes_of
from benchmarks.gpu.plan import planned_gpu
from benchmarks.gpu.record import Case, Row, Setup
from benchmarks.overhead import networks
from search_spaces.drafters import Eagle
from search_spaces.presets import preset
from search_spaces.trees import Chain
from search_spaces.trial import DecodingConfig
from workers.decoding.engine import Engine
from workers.decoding.graphs import run_until_replayed
from workers.decoding.state import Request
from workers.loading.dry_run import footprint
from workers.loading.models import Models
from workers.runtime.timing import synchronize

SETTINGS = {
    "vanilla": preset("vanilla"),
    "jacobi window": preset("sjd"),
    "chain": DecodingConfig(Eagle(), Chain(length=4)),
    "static": preset("eagle1"),
    "dynamic": preset("eagle2"),
    "relaxed": preset("lantern"),
    "adjacency": preset("adt"),
}
MODELS = (XL, "llamagen-3b-c2i", "anole-7b")
BATCHES, PROFILED = (1, 8, 32), (1, 32)
TOKENS, SECONDS = 64, 3.0  # of each image, and of a measurement: it ends with the first of them
# characters of a name
_INSIDE, _ATTENTION, _NAME = "forward of a model", "aten::scaled_dot_product_attention", 100


@dataclass(frozen=True, slots=True)
class Step:
    """seconds: until the host knows what was accepted. bytes: the minimum that it reads. nodes:
    drafted per image.
    """

    seconds: float
    bytes: int
    nodes: float


@torch.inference_mode()
def decode(
    engine: Engine, models: Models, batch: int, tokens: int, seconds: float
) -> tuple[list[Step], int]:
    """Steps until each of `batch` images has `tokens` tokens after the prefill's, or `seconds` have
    passed, and the fewest tokens of an image, at most `tokens`.
    """
    state, _ = engine.open(deque(Request(number, "0") for number in range(batch)))
    steps, emitted, start = list[Step](), [1] * batch, time.perf_counter()
    while (
        min(emitted) <= tokens
        and max(emitted) < engine.image_len
        and time.perf_counter() - start < seconds
    ):
        columns = state.streams * sum(state.prompt_len + count - 1 for count in emitted)
        synchronize(engine.device)
        begin = time.perf_counter()
        counts = engine.read(state, engine.step(state))
        took, emitted = time.perf_counter() - begin, counts.so_far
        state.sync_host_counts(emitted)
        steps.append(
            Step(
                took,
                round_bytes(models, columns, max(counts.depth)),
                statistics.fmean(counts.nodes),
            )
        )
    engine.keep(state)
    return steps, min(tokens, min(emitted) - 1)


def measure(
    setup: Setup,
    model: str,
    load: Callable[[], Models],
    config: DecodingConfig,
    batch: int,
    bandwidth: float,
) -> Row:
    """The numbers of a setting. The same steps run before: they compile kernels and capture
    graphs.
    """
    models = needed(load(), config)
    if setup.is_cuda:
        torch.cuda.reset_peak_memory_stats(setup.device)
    engine = engine_for(models, config, batch=batch)
    _, reached = decode(engine, models, batch, 4 if setup.is_tiny else TOKENS, SECONDS)

    def measured() -> tuple[list[Step], int]:
        engine.timer.take()
        return decode(engine, models, batch, max(1, reached), 2 * SECONDS)

    steps, drawn = run_until_replayed(measured)
    seconds, phases = statistics.median(step.seconds for step in steps), engine.timer.take()
    floor = statistics.median(step.bytes for step in steps) / bandwidth
    found = footprint(shapes_of(setup, model), config, batch, 1)
    found = found.with_graphs() if engine.uses_graphs else found
    return {
        "graphs": engine.uses_graphs,
        "steps": len(steps),
        "tokens_per_second": batch * drawn / sum(step.seconds for step in steps),
        "tokens_per_step": drawn / len(steps),
        "step_s": seconds,
        "bandwidth": bandwidth,
        "floor_s": floor,
        "times_floor": seconds / floor,
        "phases_s": {name: phases[name] / len(steps) for name in phases if name != "prefill"},
        "nodes": statistics.fmean(step.nodes for step in steps),
        "predicted_step_s": planned_gpu(setup).seconds(found.one_pass),
        "predicted_bytes": found.parameters + found.cache + found.graphs + found.activations,
        "peak_bytes": torch.cuda.max_memory_allocated(setup.device) if setup.is_cuda else None,
    }


@contextmanager
def marked(modules: list[nn.Module]) -> Iterator[None]:
    """Names the forwards of these modules in profiles."""

    def named(forward: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            with record_function(_INSIDE):
                return forward(*args, **kwargs)

        return call

    with ExitStack() as stack:
        for module in modules:
            stack.enter_context(patch.object(module, "forward", named(module.forward)))
        yield


@torch.inference_mode()
def profile(setup: Setup, load: Callable[[], Models], config: DecodingConfig, batch: int) -> Row:
    """Where the device's time of an eager step goes."""
    models, warm, profiled = needed(load(), config), 2, 2
    engine = engine_for(models, config, batch=batch)
    engine.new_capture = None
    state, _ = engine.open(deque(Request(number, "0") for number in range(batch)))
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if setup.is_cuda else [])]

    def steps(count: int) -> None:
        for _ in range(count):
            state.sync_host_counts(engine.read(state, engine.step(state)).so_far)

    with marked(networks(models, config)):
        steps(warm)
        with torch.profiler.profile(activities=activities) as found:
            steps(profiled)
            synchronize(setup.device)
    return summary(found.events(), profiled, is_cuda=setup.is_cuda)


def summary(events: Any, steps: int, *, is_cuda: bool) -> Row:
    """A profile in numbers for each step. On a CPU, operations stand for kernels."""
    seconds, launches, calls, kernels = (
        Counter[bool](),
        Counter[bool](),
        Counter[str](),
        Counter[str](),
    )
    for event in events:
        path = [event.name, *_names_above(event)]
        is_inside, is_attention = _INSIDE in path, _ATTENTION in path
        if len(path) > 1 and path[1] == _ATTENTION and path[0].startswith("aten::_scaled"):
            calls[path[0]] += 1
        if not is_cuda:
            seconds[is_inside] += event.self_cpu_time_total / 1e6
            launches[is_inside] += 1
        for kernel in event.kernels if path[0] != _INSIDE else ():
            seconds[is_inside] += kernel.duration / 1e6
            launches[is_inside] += 1
            kernels[kernel.name[:_NAME]] += kernel.duration / 1e6 * is_attention
    total = sum(seconds.values())
    return {
        "device_s": total / steps,
        "outside_share": seconds[False] / total if total else None,
        "launches_inside": launches[True] / steps,
        "launches_outside": launches[False] / steps,
        "attention_calls": {name: count / steps for name, count in calls.most_common()},
        "attention_kernels_s": {
            name: took / steps for name, took in kernels.most_common(5) if took
        },
    }


def _names_above(event: Any) -> Iterator[str]:
    while (event := event.cpu_parent) is not None:
        yield event.name


def cases(setup: Setup) -> Iterator[Case]:
    bandwidth = copy_bandwidth(setup.device)
    for model in MODELS[:1] if setup.is_tiny else MODELS:
        load = cache(partial(random_models, setup, model))
        for batch in (2,) if setup.is_tiny else BATCHES:
            for name, config in SETTINGS.items():
                yield (
                    f"{model}, {name}, batch {batch}",
                    partial(measure, setup, model, load, config, batch, bandwidth),
                )
        for batch in (2,) if setup.is_tiny else PROFILED:
            for name, config in SETTINGS.items():
                yield (
                    f"profile: {model}, {name}, batch {batch}",
                    partial(profile, setup, load, config, batch),
                )
