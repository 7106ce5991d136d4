"""Runs of the built-in model on one caption, without guidance: what each pass read and emitted."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from search_spaces.trial import DecodingConfig, Sampling
from workers.data.pictures import to_pictures
from workers.decoding.engine import Engine, Observer
from workers.decoding.sampling import to_probs
from workers.decoding.state import Batch, Request
from workers.decoding.statistics import Result
from workers.decoding.tree import DraftTree
from workers.loading.models import Models

CAPTION = "a large yellow star on a smooth blue background"
SAMPLING = Sampling()
SEED = 0
CHAIN: Mapping[str, Any] = {"drafter": "eagle", "tree": {"policy": "chain", "length": 4}}
# of the quick start's setting `scd window`
WINDOW: Mapping[str, Any] = {
    "drafter": {"kind": "jacobi", "initialisation": "repeat_left", "redraw": "coupled"},
    "tree": {"policy": "chain", "length": 11},
}


@dataclass(frozen=True, slots=True)
class Pass:
    """One pass of the target. V codes, N drafts."""

    number: int  # among the image's passes, from 1; the prefill is none
    position: int  # the index of the first token that it emitted
    root: int  # the token before that
    drafts: list[int]  # [N] the tokens of the draft tree's nodes
    parents: list[int]  # [N] the node of each one's parent; -1: the root
    emitted: list[int]  # the accepted drafts, and one more
    target: Tensor  # [N+1, V] the target's probs after the root and after each draft
    proposal: Tensor  # [M, V] what drafts were sampled from, level by level; M = 0 without drafts

    @property
    def accepted(self) -> int:
        """How many drafts were accepted."""
        return len(self.emitted) - 1


@dataclass(frozen=True, slots=True)
class Run:
    """One image."""

    tokens: list[int]
    passes: list[Pass]

    @property
    def accepted_length(self) -> float:
        """Mean tokens of a pass."""
        return (len(self.tokens) - 1) / len(self.passes)


def setting(mapping: Mapping[str, Any]) -> DecodingConfig:
    """A config with the sampling of the pictures."""
    return replace(DecodingConfig.from_mapping(mapping), sampling=SAMPLING)


def draw(models: Models, config: DecodingConfig, observer: Observer) -> Result:
    """The image of the caption, whose passes the observer sees."""
    drafter = models.drafters.get(config.drafter.kind)
    engine = Engine(models.target, config, drafter, seed=SEED, observer=observer)
    (result,) = engine.run([Request(0, CAPTION)])
    return result


def record(models: Models, mapping: Mapping[str, Any]) -> Run:
    """The image and its passes, for settings that decode in raster order."""
    seen: list[tuple[DraftTree, Tensor, Tensor]] = []

    def observe(batch: Batch, tree: DraftTree, logits: Tensor) -> None:
        proposal = logits.new_zeros(0, logits.shape[2])
        if tree.probs is not None:
            proposal = tree.probs[0].clone()  # a window overwrites its own
        seen.append((tree, to_probs(logits, SAMPLING)[0], proposal))

    result = draw(models, setting(mapping), observe)
    tokens = result.tokens.tolist()
    passes: list[Pass] = []
    counts = zip(
        result.statistics.position.tolist(), result.statistics.emitted.tolist(), strict=True
    )
    for (tree, target, proposal), (position, emitted) in zip(seen, counts, strict=True):
        passes.append(
            Pass(
                len(passes) + 1,
                position,
                tokens[position - 1],
                tree.tokens[0].tolist(),
                tree.shape.parents[0].tolist(),
                tokens[position : position + emitted],
                target,
                proposal,
            )
        )
    return Run(tokens, passes)


def colours(models: Models, codes: Iterable[int]) -> dict[str, str]:
    """The colour of each code: the mean of an image that consists of it."""
    chosen = sorted(set(codes))
    rows = torch.tensor(chosen)[:, None].expand(-1, models.target.grid.tokens)
    means = models.target.decode(rows).mean((2, 3)).mul(255).round().int().tolist()
    return {
        str(code): f"#{red:02x}{green:02x}{blue:02x}"
        for code, (red, green, blue) in zip(chosen, means, strict=True)
    }


def png(models: Models, tokens: list[int], box: tuple[int, int, int, int] | None = None) -> str:
    """The decoded image as a PNG in base64. box: the part that is kept, in pixels: left, upper,
    right, lower.
    """
    (picture,) = to_pictures(models.target.decode(torch.tensor([tokens])))
    file = io.BytesIO()
    picture.crop(box).save(file, "PNG", optimize=True)
    return base64.b64encode(file.getvalue()).decode()
