"""Vanilla decoding: a pass gives probs for one token, which is sampled."""

from __future__ import annotations

from typing import Any

from benchmarks.pictures.cells import COLUMNS, Grid, in_raster_order, swatch
from benchmarks.pictures.runs import CAPTION, colours, png, record
from benchmarks.pictures.svg import WIDTH, Picture
from workers.loading.models import Models

_LIKELY = 8  # codes that are shown
_FROM_ROW = 4  # where the image has more than background


def measure(models: Models) -> dict[str, Any]:
    """The image, and the probs of the first token in its middle that was among the likely ones but
    not the first of them.
    """
    run = record(models, {})
    for pass_ in run.passes[COLUMNS * _FROM_ROW :]:
        probs, codes = pass_.target[0].topk(_LIKELY)
        token = pass_.emitted[0]
        if token in codes.tolist()[2:]:
            break
    palette = colours(models, codes.tolist())
    return {
        "caption": CAPTION,
        "tokens": run.tokens,
        "pass_count": len(run.passes),
        "position": pass_.position,
        "sampled": token,
        "likely": [
            {"code": code, "q": round(q, 4), "colour": palette[str(code)]}
            for code, q in zip(codes.tolist(), probs.tolist(), strict=True)
        ],
        "codes": models.target.vocab_size,
        "image": png(models, run.tokens),
    }


def draw(facts: dict[str, Any]) -> Picture:
    position = facts["position"]
    count = len(facts["tokens"])
    picture = Picture(
        f"Left: an image of which {position} of {count} tokens are emitted. Right: the target's"
        " probabilities of the next token, one of which is sampled.",
        264,
    )
    grid = Grid(16, 40, 14)
    picture.text(grid.x, 26, f"{position} of {count} tokens", "bold")
    grid.image(picture, facts["image"])
    grid.cover(picture, in_raster_order(position))
    x, y = grid.place(position)
    picture.rect(x, y, grid.cell, grid.cell, "mark", rx=2)
    _draw_probs(picture, 222, facts)
    lines = (
        "Reading the caption gives the first token. Then each",
        f"pass gives one: {facts['pass_count']} passes for the other {count - 1} tokens.",
    )
    for row, words in enumerate(lines):
        picture.text(WIDTH / 2, 232 + 18 * row, words, "middle")
    return picture


def _draw_probs(picture: Picture, x: float, facts: dict[str, Any]) -> None:
    picture.text(x, 26, f"probs of token {facts['position'] + 1}", "bold")
    largest = facts["likely"][0]["q"]
    for row, entry in enumerate(facts["likely"]):
        y = 40 + 18 * row
        is_sampled = entry["code"] == facts["sampled"]
        swatch(picture, x, y, 14, entry["colour"])
        picture.text(x + 46, y + 11, f"{entry['code']}", "small soft end")
        width = 84 * entry["q"] / largest
        picture.rect(x + 52, y + 1.5, width, 11, "mark-fill" if is_sampled else "soft-fill")
        words = f"{100 * entry['q']:.1f} %"
        picture.text(x + 57 + width, y + 11, words, "small bold" if is_sampled else "small")
        if is_sampled:
            picture.text(x + 97 + width, y + 11, "sampled", "small bold")
    rest = 1 - sum(entry["q"] for entry in facts["likely"])
    others = facts["codes"] - len(facts["likely"])
    words = f"{others} other codes: {100 * rest:.0f} %"
    picture.text(x, 40 + 18 * _LIKELY + 14, words, "small soft")
