"""Several rows of the image at once: one token of each row (ZipAR), or a window in each (PJD)."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from benchmarks.pictures.cells import COLUMNS, Grid
from benchmarks.pictures.runs import draw as draw_image
from benchmarks.pictures.runs import png, setting
from benchmarks.pictures.svg import Picture
from workers.decoding.rows import RowsBatch
from workers.decoding.state import Batch
from workers.decoding.tree import DraftTree
from workers.loading.models import Models

_LAG = 4
_SETTINGS: dict[str, dict[str, Any]] = {
    "ZipAR": {"drafter": {"kind": "rows", "lag": _LAG}},
    "PJD": {
        "drafter": {"kind": "jacobi_rows", "lag": _LAG, "redraw": "maximal"},
        "tree": {"policy": "chain", "length": 7},
    },
}


def measure(models: Models) -> dict[str, Any]:
    """The pass in the middle of each image: how many tokens each row has before and after it."""
    facts: dict[str, Any] = {"lag": _LAG}
    for name, mapping in _SETTINGS.items():
        seen: list[list[int]] = []

        def observe(batch: Batch, tree: DraftTree, logits: Tensor, seen: Any = seen) -> None:
            assert isinstance(batch, RowsBatch)
            seen.append(batch.counts[0, 1:-1].tolist())

        result = draw_image(models, setting(mapping), observe)
        middle = next(i for i, counts in enumerate(seen) if sum(counts) >= COLUMNS**2 / 2)
        facts[name] = {
            "tokens": result.tokens.tolist(),
            "passes": result.statistics.passes,
            "number": middle + 1,
            "before": seen[middle],
            "after": seen[middle + 1],
            "image": png(models, result.tokens.tolist()),
        }
    return facts


def draw(facts: dict[str, Any]) -> Picture:
    picture = Picture(
        "Two images in the middle of decoding. Several rows have begun, each some tokens behind the"
        " row above it. Outlined cells are emitted in the same pass: sampled tokens, and in PJD"
        " also accepted drafts.",
        284,
    )
    for x, name in ((16, "ZipAR"), (232, "PJD")):
        state = facts[name]
        grid = Grid(x, 44, 16)
        picture.text(x, 28, f"{name}, pass {state['number']} of {state['passes']}", "bold")
        grid.image(picture, state["image"])
        grid.cover(picture, state["after"])
        for row, (before, after) in enumerate(zip(state["before"], state["after"], strict=True)):
            for column in range(before, after):
                left, top = grid.place(row * COLUMNS + column)
                # each row's last token is the target's, after the accepted drafts
                classes = "new" if column == after - 1 else "yes"
                picture.rect(left + 1, top + 1, grid.cell - 2, grid.cell - 2, classes, rx=2)
        emitted = sum(state["after"]) - sum(state["before"])
        picture.text(x, 252, f"this pass emits {emitted} tokens", "small")
    for x, classes, words in (
        (16, "new", "sampled from the target"),
        (232, "yes", "accepted drafts of a window"),
    ):
        picture.rect(x, 263, 11, 11, classes, rx=2)
        picture.text(x + 18, 272, words, "small")
    return picture
