"""Checks that this machine has the resources that a sweep's workers ask for. On a cluster, Ray's nodes decide."""

from __future__ import annotations

import math
from collections.abc import Collection

from workers.runtime.threads import cores

_MAX_WORKERS_PER_CORE = 16  # on this machine, where workers may share cores


def check_resources(
    workers: int | None, cpus: float, gpus: float, address: str | None, metrics: Collection[str]
) -> None:
    """Refuse resources that no machine has; without an address, those that this machine lacks. cpus, gpus: per worker.

    metrics: of the sweep (none: all). Workers that share a GPU would slow each other down in timing shards.

    Raises:
        ValueError: names the option and what the machine has.
    """
    for option, amount in (("--cpus-per-worker", cpus), ("--gpus-per-worker", gpus)):
        if not math.isfinite(amount):
            raise ValueError(f"{option} {amount}: give a finite number")
    if gpus > 1 and gpus != int(gpus):
        raise ValueError(f"--gpus-per-worker {gpus:g}: Ray gives a fraction of one GPU, or whole GPUs")
    if 0 < gpus < 1:
        from workers.metrics.registry import uses_timings

        if uses_timings(metrics):
            raise ValueError(
                f"--gpus-per-worker {gpus:g}: workers that share a GPU disturb each other's timings; give whole GPUs, "
                "or leave speeds out of the sweep's metrics, objectives and constraints (docs/cluster.md)"
            )
    if address is not None:
        return
    advice = "lower it, or give the --address of a cluster"
    if cpus > cores():
        raise ValueError(f"--cpus-per-worker {cpus:g}: this machine has {cores()} cores; {advice}")
    if workers is not None and workers > cores() * _MAX_WORKERS_PER_CORE:
        most = cores() * _MAX_WORKERS_PER_CORE
        raise ValueError(f"--workers {workers}: this machine has {cores()} cores, for at most {most} workers; {advice}")
    if gpus > 0:
        import torch

        if gpus > (count := torch.cuda.device_count()):
            raise ValueError(f"--gpus-per-worker {gpus:g}: this machine has {count} GPUs that torch can use; {advice}")
