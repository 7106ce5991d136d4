"""The neighbour table: for every code, the codes nearest to it.

It depends only on the codebook, so a process computes it once per codebook and proximity, in chunks
and wide enough for most k: seconds for the published codebooks (`benchmarks.neighbours`).
"""

from __future__ import annotations

import hashlib

import torch
from torch import Tensor

from workers.decoding import rng

_CHUNK_ENTRIES = 1 << 20  # distances held at once: some 30 MB with all temporaries
# A table has this many columns or more: they cost little, and the tables of smaller k are slices.
_MIN_COLUMNS = 1024
_MAX_TABLES = 4  # tables that a process keeps

_tables: dict[tuple[str, str, torch.device], Tensor] = {}  # this process's tables, the newest last


def neighbour_table(codebook: Tensor, proximity: str, k: int) -> Tensor:
    """Neighbours [V, k] (int32, a view) of codebook rows [V, d], each row starting with the code
    itself, then by increasing distance.

    Distances are l2 or cosine in fp32, ties broken by index; "random" gives every code a fixed
    random order (LANTERN's control).

    Raises:
        ValueError: k exceeds the codebook, or the proximity is unknown.
    """
    size = codebook.shape[0]
    if not 1 <= k <= size:
        raise ValueError(
            f"neighbourhood size k={k} does not fit a codebook of {size} codes; choose 1 <= k <= "
            f"{size}"
        )
    if proximity not in ("l2", "cosine", "random"):
        raise ValueError(f"unknown proximity {proximity!r}; use l2, cosine or random")
    digest = hashlib.sha256(
        codebook.detach().float().cpu().contiguous().numpy().tobytes()
    ).hexdigest()[:16]
    key = (digest, proximity, codebook.device)
    if key not in _tables or _tables[key].shape[1] < k:
        _tables[key] = compute_table(codebook, proximity, min(size, max(k, _MIN_COLUMNS)))
        while len(_tables) > _MAX_TABLES:
            del _tables[next(iter(_tables))]
    return _tables[key][:, :k]


def compute_table(codebook: Tensor, proximity: str, k: int) -> Tensor:
    """The table [V, k] (int32), some rows at a time."""
    size = codebook.shape[0]
    device = codebook.device
    vectors = codebook.detach().float()
    if proximity == "cosine":
        vectors = torch.nn.functional.normalize(vectors, dim=1)
    codes = torch.arange(size, device=device)
    table = torch.empty(size, k, dtype=torch.int32, device=device)
    for chunk in torch.split(codes, max(1, _CHUNK_ENTRIES // size)):
        if proximity == "random":
            order = _random_order(chunk, codes)
        else:
            order = _order(vectors, chunk, codes)
        # the code itself comes first, even if another code is identical
        order[torch.arange(len(chunk), device=device), chunk] = torch.iinfo(torch.int64).min
        table[chunk] = order.topk(k, dim=1, largest=False).indices.int()
    return table


def _order(vectors: Tensor, chunk: Tensor, codes: Tensor) -> Tensor:
    """Integers [n, V] that sort the codes by their distance to the chunk's codes [n], then by
    index.

    The bits of a float that is not negative, read as an integer, increase with it; the index fills
    the lower half, so that no two integers of a row are equal and `topk` needs no stable sort.
    """
    distance = torch.cdist(vectors[chunk], vectors, compute_mode="donot_use_mm_for_euclid_dist")
    return torch.add(codes, distance.view(torch.int32).long(), alpha=1 << 32)


def _random_order(chunk: Tensor, codes: Tensor) -> Tensor:
    """Random integers [n, V], a fixed row for every code of the chunk [n]."""
    bits = rng.bits(chunk[:, None], chunk.new_zeros(1), rng.Purpose.NEIGHBOURS, codes)
    return bits.clamp(min=torch.iinfo(torch.int64).min + 1)
