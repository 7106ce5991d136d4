"""The best-first tree by a heap, as DDTree (arXiv 2604.12989) states it."""

from __future__ import annotations

import heapq
from collections.abc import Sequence

Ranks = tuple[int, ...]


def best_first(levels: Sequence[Sequence[float]], nodes: int) -> dict[Ranks, float]:
    """The likeliest nodes of all and their log confidences, by the log probs of each level's ranks
    in falling order.
    """
    heap: list[tuple[float, Ranks]] = [(-levels[0][0], (0,))]
    tree: dict[Ranks, float] = {}
    while heap and len(tree) < nodes:
        cost, ranks = heapq.heappop(heap)
        tree[ranks] = -cost
        *above, rank = ranks
        own = levels[len(above)]
        if rank + 1 < len(own):
            heapq.heappush(heap, (cost + own[rank] - own[rank + 1], (*above, rank + 1)))
        if len(ranks) < len(levels):
            heapq.heappush(heap, (cost - levels[len(ranks)][0], (*ranks, 0)))
    return tree
