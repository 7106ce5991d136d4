"""The neighbour table: for every code, the codes nearest to it.

It depends only on the codebook, so it is computed once per codebook and proximity, in chunks and wide enough for most
k, and cached by the process. Large tables are also cached on disk, under the codebook's hash.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import tempfile
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from workers.decoding import rng
from workers.models.own_files import save

_CHUNK_ENTRIES = 1 << 20  # distances held at once: some 30 MB with all temporaries
_DISK_CACHE_MIN_PAIRS = 1 << 22  # codebook pairs above which a table is written to disk
_MIN_COLUMNS = 1024  # columns computed at least: they cost little, and the tables of all smaller k are slices
_MAX_TABLES = 4
_FILE_VERSION = 2  # raise it whenever the same codebook gives another table

_tables: dict[tuple[str, str, torch.device], Tensor] = {}  # this process's tables, the newest last


def neighbour_table(codebook: Tensor, proximity: str, k: int, cache: Path | None = None) -> Tensor:
    """Neighbours [V, k] (int32, a view) of codebook rows [V, d], each row starting with the code itself, then by
    increasing distance.

    Distances are l2 or cosine in fp32, ties broken by index; "random" gives every code a fixed random order (LANTERN's
    control). cache: folder for large tables (default: the user's cache folder).

    Raises:
        ValueError: k exceeds the codebook, or the proximity is unknown.
    """
    size = codebook.shape[0]
    if not 1 <= k <= size:
        raise ValueError(f"neighbourhood size k={k} does not fit a codebook of {size} codes; choose 1 <= k <= {size}")
    if proximity not in ("l2", "cosine", "random"):
        raise ValueError(f"unknown proximity {proximity!r}; use l2, cosine or random")
    digest = hashlib.sha256(codebook.detach().float().cpu().contiguous().numpy().tobytes()).hexdigest()[:16]
    key = (digest, proximity, codebook.device)
    if key not in _tables or _tables[key].shape[1] < k:
        columns = min(size, max(k, _MIN_COLUMNS))
        if size * size <= _DISK_CACHE_MIN_PAIRS:
            _tables[key] = compute_table(codebook, proximity, columns)
        else:
            name = f"neighbours{_FILE_VERSION}-{digest}-{proximity}-{columns}.safetensors"
            _tables[key] = _load_or_compute(codebook, proximity, columns, (cache or _default_cache()) / name)
        while len(_tables) > _MAX_TABLES:
            del _tables[next(iter(_tables))]
    return _tables[key][:, :k]


def _load_or_compute(codebook: Tensor, proximity: str, k: int, path: Path) -> Tensor:
    """The table [V, k] (int32) at `path`; if the file is missing or damaged, it is computed and written if possible."""
    try:
        return load_file(path)["neighbours"].to(codebook.device)
    except (OSError, SafetensorError, KeyError):
        table = compute_table(codebook, proximity, k)
    # the file only saves the next process some seconds, so a full disk or a read-only folder is no error
    with contextlib.suppress(OSError, SafetensorError):
        path.parent.mkdir(parents=True, exist_ok=True)
        save(path, {"neighbours": table}, {})
    return table


def _default_cache() -> Path:
    try:
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "specfrontier"
    except RuntimeError:  # a user without a home directory, as in containers
        return Path(tempfile.gettempdir()) / "specfrontier"


def compute_table(codebook: Tensor, proximity: str, k: int) -> Tensor:
    """The table [V, k] (int32), some rows at a time."""
    size, device = codebook.shape[0], codebook.device
    vectors = codebook.detach().float()
    if proximity == "cosine":
        vectors = torch.nn.functional.normalize(vectors, dim=1)
    codes = torch.arange(size, device=device)
    table = torch.empty(size, k, dtype=torch.int32, device=device)
    for chunk in torch.split(codes, max(1, _CHUNK_ENTRIES // size)):
        order = _random_order(chunk, codes) if proximity == "random" else _order(vectors, chunk, codes)
        # the code itself comes first, even if another code is identical
        order[torch.arange(len(chunk), device=device), chunk] = torch.iinfo(torch.int64).min
        table[chunk] = order.topk(k, dim=1, largest=False).indices.int()
    return table


def _order(vectors: Tensor, chunk: Tensor, codes: Tensor) -> Tensor:
    """Integers [n, V] that sort the codes by their distance to the chunk's codes [n], then by index.

    The bits of a float that is not negative, read as an integer, increase with it; the index fills the lower half, so
    that no two integers of a row are equal and `topk` needs no stable sort.
    """
    distance = torch.cdist(vectors[chunk], vectors, compute_mode="donot_use_mm_for_euclid_dist")
    return torch.add(codes, distance.view(torch.int32).long(), alpha=1 << 32)


def _random_order(chunk: Tensor, codes: Tensor) -> Tensor:
    """Random integers [n, V], a fixed row for every code of the chunk [n]."""
    bits = rng.bits(chunk[:, None], chunk.new_zeros(1), rng.Purpose.NEIGHBOURS, codes)
    return bits.clamp(min=torch.iinfo(torch.int64).min + 1)
