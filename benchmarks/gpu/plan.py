"""What `doctor --plan` predicts, against what is measured: the constants of its model of a GPU,
then memory and seconds of whole images of a target with random weights.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from functools import cache, partial
from unittest.mock import patch

import torch

from benchmarks.common import engine_for, held_out_requests
from benchmarks.floor import copy_bandwidth
from benchmarks.gpu.clock import seconds_of
from benchmarks.gpu.models import XL, random_models, shapes_of
from benchmarks.gpu.record import Case, Row, Setup
from orchestrator.doctor.gpus import (
    BANDWIDTH_SHARE,
    COMPUTE_SHARE,
    GIB,
    KERNEL_LAUNCH_S,
    Gpu,
    gpu_of,
)
from search_spaces.presets import preset
from workers.decoding.graphs import PassGraphs
from workers.loading.dry_run import footprint
from workers.loading.models import Models
from workers.runtime.timing import time_images

SETTINGS = ("vanilla", "eagle2")
_LAUNCHES = 1000


def planned_gpu(setup: Setup) -> Gpu:
    """The GPU as a plan takes it; on a CPU some GPU."""
    if not setup.is_cuda:
        return gpu_of(24.0)
    found = torch.cuda.get_device_properties(setup.device)
    return gpu_of(found.total_memory / GIB, device=found.name)


def constants(setup: Setup) -> Row:
    """What the model of a GPU assumes, and what is reached."""
    gpu, side = planned_gpu(setup), 256 if setup.is_tiny else 8192
    a, b = (torch.ones(side, side, dtype=setup.dtype, device=setup.device) for _ in range(2))
    small = torch.ones(1, device=setup.device)

    def launch() -> None:
        for _ in range(_LAUNCHES):
            small.add_(1.0)

    bandwidth, compute = (
        copy_bandwidth(setup.device),
        2 * side**3 / seconds_of(lambda: a @ b, setup)["eager_s"],
    )
    return {
        "gpu": gpu.name,
        "bandwidth": bandwidth,
        "bandwidth_share": bandwidth / gpu.bandwidth,
        "assumed_bandwidth_share": BANDWIDTH_SHARE,
        "compute": compute,
        "compute_share": compute / gpu.compute,
        "assumed_compute_share": COMPUTE_SHARE,
        "launch_s": seconds_of(launch, setup, is_first=True)["eager_s"] / _LAUNCHES,
        "assumed_launch_s": KERNEL_LAUNCH_S,
    }


def images(setup: Setup, load: Callable[[], Models], name: str, batch: int) -> Row:
    """Seconds of an image with CUDA graphs and without, of its decoding to pixels, and the peak
    memory of all.
    """
    models, config, gpu = load(), preset(name), planned_gpu(setup)
    engine, requests = engine_for(models, config, batch=batch), held_out_requests(models, batch)
    if setup.is_cuda:
        torch.cuda.reset_peak_memory_stats(setup.device)
    row: Row = {}
    for mode in (
        ("graphs", *(["eager"] if batch == 1 else [])) if engine.uses_graphs else ("eager",)
    ):
        with (
            nullcontext()
            if mode == "graphs"
            else patch.object(PassGraphs, "failure", "not to be used now")
        ):
            list(engine.run(requests))
            _, wall, results = time_images(
                lambda requests: list(engine.run(requests)), requests, setup.device
            )
        row[f"{mode}_image_s"] = wall / batch
    passes = max(result.statistics.passes for result in results)
    tokens = torch.stack([result.tokens for result in results]).to(setup.device)
    models.target.decode(tokens).cpu()
    begin = time.perf_counter()
    models.target.decode(tokens).cpu()
    pictures = time.perf_counter() - begin
    found = footprint(shapes_of(setup, XL), config, batch, batch)
    return row | {
        "passes": passes,
        "predicted_image_s": gpu.seconds_per_image(found, passes, batch),
        "picture_s": pictures / batch,
        "predicted_picture_s": gpu.seconds(found.picture) / batch,
        "peak_bytes": torch.cuda.max_memory_allocated(setup.device) if setup.is_cuda else None,
        "predicted_bytes": (found.with_graphs() if engine.uses_graphs else found).bytes,
    }


def cases(setup: Setup) -> Iterator[Case]:
    yield "constants", partial(constants, setup)
    load = cache(partial(random_models, setup, XL))
    for name in SETTINGS:
        for batch in (2,) if setup.is_tiny else (1, 8, 32):
            yield f"{XL}, {name}, batch {batch}", partial(images, setup, load, name, batch)
