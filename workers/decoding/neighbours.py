"""The neighbour table: for every code, the codes nearest to it.

It depends only on the codebook, so it is computed once per codebook and proximity, in chunks, wide enough for most k,
and kept by the process; large ones are kept on disk under their content's hash as well.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import tempfile
import uuid
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from workers.decoding import rng

_CHUNK_ENTRIES = 1 << 24  # distances held at once
_WORTH_KEEPING = 1 << 22  # codebook pairs above which the table goes to disk
_WIDTH = 1024  # columns computed at least: the sort behind them finds all, and every smaller k is a slice
_KNOWN: dict[tuple[str, str, torch.device], Tensor] = {}  # tables of this process, the latest last
_KNOWN_TABLES = 4
_EDITION = 2  # of the files: another whenever the same codebook gives another table


def neighbour_table(codebook: Tensor, proximity: str, k: int, cache: Path | None = None) -> Tensor:
    """Neighbours [V, k] (int32, a view) of codebook rows [V, d], each row starting with the code itself, then by
    increasing distance.

    Distances are l2 or cosine in fp32, ties broken by index; "random" gives every code a fixed random order (LANTERN's
    control). `cache`: folder for large tables (default: the user's cache folder).

    Raises:
        ValueError: k exceeds the codebook, or the proximity is unknown.
    """
    size = codebook.shape[0]
    if not 1 <= k <= size:
        raise ValueError(f"neighbourhood size k={k} does not fit a codebook of {size} codes: choose 1 <= k <= {size}")
    if proximity not in ("l2", "cosine", "random"):
        raise ValueError(f"unknown proximity {proximity!r}: use l2, cosine or random")
    digest = hashlib.sha256(codebook.detach().float().cpu().contiguous().numpy().tobytes()).hexdigest()[:16]
    key = (digest, proximity, codebook.device)
    if key not in _KNOWN or _KNOWN[key].shape[1] < k:
        width = min(size, max(k, _WIDTH))
        if size * size <= _WORTH_KEEPING:
            _KNOWN[key] = _compute(codebook, proximity, width).int()
        else:
            path = (cache or _default_cache()) / f"neighbours{_EDITION}-{digest}-{proximity}-{width}.safetensors"
            _KNOWN[key] = _stored(codebook, proximity, width, path)
        while len(_KNOWN) > _KNOWN_TABLES:
            del _KNOWN[next(iter(_KNOWN))]
    return _KNOWN[key][:, :k]


def _stored(codebook: Tensor, proximity: str, k: int, path: Path) -> Tensor:
    """The table [V, k] (int32) at `path`, computed if it is not there or damaged, and put there if that can be done."""
    try:
        return load_file(path)["neighbours"].to(codebook.device)
    except (OSError, SafetensorError, KeyError):
        table = _compute(codebook, proximity, k).int()
    # it only saves the next process some seconds: a full disk or a folder that is not ours costs no more than that
    with contextlib.suppress(OSError, SafetensorError):
        path.parent.mkdir(parents=True, exist_ok=True)
        scratch = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
        try:
            save_file({"neighbours": table.cpu()}, scratch)
            scratch.chmod(0o644)  # the writer leaves it readable by its owner alone
            scratch.replace(path)
        finally:
            scratch.unlink(missing_ok=True)
    return table


def _default_cache() -> Path:
    try:
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "specfrontier"
    except RuntimeError:  # a user without a home, as containers have them
        return Path(tempfile.gettempdir()) / "specfrontier"


def _compute(codebook: Tensor, proximity: str, k: int) -> Tensor:
    size, device = codebook.shape[0], codebook.device
    book = codebook.detach().float()
    if proximity == "cosine":
        book = torch.nn.functional.normalize(book, dim=1)
    codes = torch.arange(size, device=device)
    rows = []
    for chunk in torch.split(codes, max(1, _CHUNK_ENTRIES // size)):
        if proximity == "random":
            order = rng.bits(chunk[:, None], chunk.new_zeros(1), rng.Purpose.NEIGHBOURS, codes)
            distance = order.clamp(min=torch.iinfo(torch.int64).min + 1)
            distance[torch.arange(len(chunk), device=device), chunk] = torch.iinfo(torch.int64).min
        else:
            distance = torch.cdist(book[chunk], book, compute_mode="donot_use_mm_for_euclid_dist")
            # itself first, even beside an identical code
            distance[torch.arange(len(chunk), device=device), chunk] = -1.0
        rows.append(distance.sort(dim=1, stable=True).indices[:, :k])
    return torch.cat(rows)
