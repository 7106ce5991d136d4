"""What a worker's hardware computes, in numbers: workers whose numbers agree generate the same
images, except where rounding decides a near-tie.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from search_spaces.trial import DecodingConfig
from workers.decoding.engine import Engine
from workers.decoding.state import Batch, Request
from workers.decoding.tree import DraftTree
from workers.metrics.extractors import Extractors
from workers.models.target import Target

CAPTIONS = 2
_VALUES = 64  # compared values of each output


def measure_numerics(
    target: Target, extractors: Extractors, captions: Sequence[str]
) -> dict[str, Any]:
    """A digest and some values of the logits after a prefill and one pass, and of an image's
    features.

    The pass is that of vanilla, whose first token is sampled: only a near-tie could make it differ
    between devices. The cost is that of two passes, one image and its features.
    """
    logits: list[Tensor] = []

    def keep(batch: Batch, tree: DraftTree, found: Tensor) -> None:
        logits.append(found.float().cpu())

    queue = deque(Request(number, caption) for number, caption in enumerate(captions[:CAPTIONS]))
    engine = Engine(target, DecodingConfig(), batch_size=len(queue), observer=keep)
    with torch.inference_mode():
        batch, _ = engine.open(queue)
        engine.step(batch)
        features = []
        if extractors.by_role:
            tokens = torch.arange(target.grid.tokens, device=target.device) % target.vocab_size
            image = target.decode(tokens[None])
            features = [
                extractor.extract(image).float().cpu() for extractor in extractors.by_role.values()
            ]
    outputs = {"logits": logits, "features": features}
    digest = hashlib.sha256(
        b"".join(part.numpy().tobytes() for parts in outputs.values() for part in parts)
    )
    values = {
        name: [value for part in parts for value in _some_values(part)]
        for name, parts in outputs.items()
    }
    return {"digest": digest.hexdigest()[:16], **values}


def _some_values(part: Tensor) -> list[float]:
    """Evenly spaced values; 0 for those that are not finite."""
    flat = part.flatten().nan_to_num(0.0, 0.0, 0.0)
    values: list[float] = flat[:: max(1, flat.numel() // _VALUES)].tolist()
    return values


def max_difference(first: Mapping[str, Any], other: Mapping[str, Any]) -> float:
    """The largest difference between two workers' values, relative to the largest value of its
    kind.
    """
    if first["digest"] == other["digest"]:
        return 0.0
    differences = []
    for name in ("logits", "features"):
        ours = torch.tensor(first[name])
        theirs = torch.tensor(other[name])
        if ours.shape != theirs.shape:
            return float("inf")
        if ours.numel():
            differences.append(
                float((ours - theirs).abs().max() / ours.abs().max().clamp_min(1e-30))
            )
    return max(differences, default=0.0)
