"""The neighbour table of a large codebook: time and memory, against a full stable sort of every
row.

    python -m benchmarks.neighbours [--codes 16384] [--width 8] [--k 1000] [--threads 1]

Each row is measured in its own process. Memory is the peak above what the process held before,
without the table. The two tables must be equal, ties included; else the exit status is 1.
"""

from __future__ import annotations

import argparse
import multiprocessing
import resource
import time
from collections.abc import Callable

import torch
from torch import Tensor

from workers.decoding import neighbours
from workers.runtime.process import use_threads

_SORT_CHUNK_ENTRIES = 1 << 24


def full_sort(codebook: Tensor, proximity: str, k: int) -> Tensor:
    """The table [V, k] by l2 distance, from a stable sort of whole rows."""
    assert proximity == "l2"
    rows = []
    for chunk in torch.split(
        torch.arange(len(codebook)), max(1, _SORT_CHUNK_ENTRIES // len(codebook))
    ):
        distance = torch.cdist(
            codebook[chunk], codebook, compute_mode="donot_use_mm_for_euclid_dist"
        )
        distance[torch.arange(len(chunk)), chunk] = -1.0
        rows.append(distance.sort(dim=1, stable=True).indices[:, :k])
    return torch.cat(rows).int()


METHODS: dict[str, Callable[[Tensor, str, int], Tensor]] = {
    "full sort": full_sort,
    "topk": neighbours.compute_table,
}


def measure(name: str, codes: int, width: int, k: int, threads: int) -> tuple[float, float, Tensor]:
    """(seconds, peak MiB above the table, table [codes, k]) of a method on a random codebook."""
    use_threads(threads)
    codebook = torch.nn.functional.normalize(
        torch.randn(codes, width, generator=torch.Generator().manual_seed(0))
    )
    METHODS[name](codebook[:64], "l2", min(k, 64))
    before, begin = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.perf_counter()
    table = METHODS[name](codebook, "l2", k)
    seconds = time.perf_counter() - begin
    peak = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    return seconds, peak - table.nbytes / 2**20, table


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--codes", type=int, default=16384)
    parser.add_argument("--width", type=int, default=8)
    parser.add_argument("--k", type=int, default=1000)
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    tables = []
    with multiprocessing.get_context("spawn").Pool(1, maxtasksperchild=1) as pool:
        for name in METHODS:
            seconds, peak, table = pool.apply(
                measure, (name, args.codes, args.width, args.k, args.threads)
            )
            tables.append(table)
            print(
                f"{name}: {seconds:.1f} s, {peak:.0f} MiB above the table's "
                f"{table.nbytes / 2**20:.0f}",
                flush=True,
            )
    if not torch.equal(*tables):
        raise SystemExit("the tables differ")


if __name__ == "__main__":
    main()
