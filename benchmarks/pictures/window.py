"""A Jacobi window that slides over the token grid: an animation, and the same passes as stills."""

from __future__ import annotations

from typing import Any

from benchmarks.pictures.cells import COLUMNS, Grid, in_raster_order, swatch
from benchmarks.pictures.runs import WINDOW, colours, png, record
from benchmarks.pictures.svg import WIDTH, Picture
from workers.loading.models import Models

_PASSES = 16  # passes of the animation
_STILLS = 6
_FROM_ROW = 3  # where the image has more than background
_DRAFTS_S = 0.7  # how long a pass's drafts are shown
_OUTCOME_S = 1.1  # how long it is shown what became of them


def measure(models: Models) -> dict[str, Any]:
    run = record(models, WINDOW)
    start = next(pass_.number for pass_ in run.passes if pass_.position >= COLUMNS * _FROM_ROW) - 1
    passes = run.passes[start : start + _PASSES]
    codes = [code for pass_ in passes for code in pass_.drafts]
    return {
        "tokens": run.tokens,
        "pass_count": len(run.passes),
        "accepted_length": round(run.accepted_length, 2),
        "accepted": [pass_.accepted for pass_ in run.passes],
        "passes": [
            {
                "number": pass_.number,
                "position": pass_.position,
                "drafts": pass_.drafts,
                "accepted": pass_.accepted,
            }
            for pass_ in passes
        ],
        "colours": colours(models, {*codes, *run.tokens}),
        "image": png(models, run.tokens),
    }


def draw(facts: dict[str, Any]) -> Picture:
    """The animation. Where motion is not wanted, and on paper, it shows one pass."""
    total = len(facts["passes"]) * (_DRAFTS_S + _OUTCOME_S)
    picture = Picture(
        "A window of eleven drafts slides over the token grid. In each pass the first drafts are"
        " accepted, the target samples one more token, and the other drafts are replaced.",
        326,
        _animation(total),
    )
    grid = Grid(16, 42, 22)
    grid.image(picture, facts["image"])
    for index, entry in enumerate(facts["passes"]):
        begin = index * (_DRAFTS_S + _OUTCOME_S)
        with picture.group(class_="drafts", style=_delay(begin - total)):
            _draw_drafts(picture, grid, entry, facts)
        is_still = " still" if index == 0 else ""
        with picture.group(class_=f"outcome{is_still}", style=_delay(begin + _DRAFTS_S - total)):
            _draw_outcome(picture, grid, entry, facts)
    _draw_legend(picture, 298)
    return picture


def _animation(total: float) -> str:
    shares = {"drafts": 100 * _DRAFTS_S / total, "outcome": 100 * _OUTCOME_S / total}
    rules = "".join(
        f".{name} {{ visibility: hidden; animation: {name} {total:g}s step-end infinite; }}\n"
        f"@keyframes {name} {{ 0% {{ visibility: visible; }}"
        f" {share:.4f}% {{ visibility: hidden; }} }}\n"
        for name, share in shares.items()
    )
    return (
        f"{rules}@media (prefers-reduced-motion: reduce), print {{\n"
        ".drafts, .outcome { animation: none; }\n.still { visibility: visible; }\n}\n"
    )


def _delay(seconds: float) -> str:
    """A negative delay: the animation is under way from the start."""
    return f"animation-delay: {seconds:.2f}s"


def _draw_drafts(
    picture: Picture, grid: Grid, entry: dict[str, Any], facts: dict[str, Any]
) -> None:
    position = entry["position"]
    grid.cover(picture, in_raster_order(position))
    for place, code in enumerate(entry["drafts"]):
        if position + place < len(facts["tokens"]):
            x, y = grid.place(position + place)
            swatch(picture, x + 1, y + 1, grid.cell - 2, facts["colours"][str(code)])
            picture.rect(x + 1, y + 1, grid.cell - 2, grid.cell - 2, "mark", rx=3)
    _draw_count(picture, grid, entry, facts, f"{position} tokens")


def _draw_outcome(
    picture: Picture, grid: Grid, entry: dict[str, Any], facts: dict[str, Any]
) -> None:
    position = entry["position"]
    accepted = entry["accepted"]
    grid.cover(picture, in_raster_order(position + accepted + 1))
    for place, code in enumerate(entry["drafts"]):
        if position + place < len(facts["tokens"]):
            x, y = grid.place(position + place)
            if place > accepted:
                with picture.group(opacity=0.4):
                    swatch(picture, x + 1, y + 1, grid.cell - 2, facts["colours"][str(code)])
            else:
                classes = "yes" if place < accepted else "new"
                picture.rect(x + 1, y + 1, grid.cell - 2, grid.cell - 2, classes, rx=3)
    words = f"{position} + {accepted + 1} tokens"
    _draw_count(picture, grid, entry, facts, words)


def _draw_count(
    picture: Picture, grid: Grid, entry: dict[str, Any], facts: dict[str, Any], words: str
) -> None:
    picture.text(grid.x, 28, f"pass {entry['number']} of {facts['pass_count']}", "bold")
    picture.text(grid.x + grid.side, 28, words, "end")


def _draw_legend(picture: Picture, x: float) -> None:
    entries = (
        ("mark", "the window:", "eleven drafts"),
        ("yes", "accepted", ""),
        ("new", "sampled from", "the target"),
        ("", "replaced for", "the next pass"),
    )
    for row, (classes, first, second) in enumerate(entries):
        y = 60 + 52 * row
        with picture.group(opacity=None if classes else 0.4):
            picture.rect(x, y, 18, 18, "soft-fill", rx=3)
        if classes:
            picture.rect(x, y, 18, 18, classes, rx=3)
        picture.text(x + 28, y + (13 if not second else 7), first)
        picture.text(x + 28, y + 22, second)


def draw_stills(facts: dict[str, Any]) -> Picture:
    """The first passes of the animation: a row for each, a column for each position."""
    passes = facts["passes"][:_STILLS]
    first = passes[0]["position"]
    columns = passes[-1]["position"] + len(passes[-1]["drafts"]) - first
    cell = (WIDTH - 80) / columns
    row_height = cell + 14
    picture = Picture(
        "The same window as rows, one for each pass: it moves to the right by the number of emitted"
        " tokens. A thick line marks drafts that are mere copies.",
        110 + row_height * len(passes),
    )
    picture.text(66, 24, "token positions, from left to right", "small soft")
    for row, entry in enumerate(passes):
        y = 38 + row_height * row
        picture.text(14, y + cell / 2 + 4, f"pass {entry['number']}", "small")
        _draw_row(picture, (66, y, cell), first, entry, facts)
    _draw_row_legend(picture, 58 + row_height * len(passes))
    return picture


def _draw_row(
    picture: Picture,
    place: tuple[float, float, float],
    first: int,
    entry: dict[str, Any],
    facts: dict[str, Any],
) -> None:
    """The tokens emitted before, from position `first` on, then the window."""
    left, y, cell = place
    position = entry["position"]
    accepted = entry["accepted"]
    side = cell - 2
    for index in range(first, position + accepted + 1):
        x = left + cell * (index - first)
        swatch(picture, x, y, side, facts["colours"][str(facts["tokens"][index])])
        if index >= position:
            picture.rect(x, y, side, side, "yes" if index < position + accepted else "new", rx=3)
    for offset, code in enumerate(entry["drafts"][accepted + 1 :]):
        x = left + cell * (position + accepted + 1 + offset - first)
        with picture.group(opacity=0.45):
            swatch(picture, x, y, side, facts["colours"][str(code)])
        if code == facts["tokens"][position + accepted + 1 + offset]:
            picture.add("circle", cx=x + side / 2, cy=y + side / 2, r=2, class_="ink-fill")
    width = cell * len(entry["drafts"])
    picture.path(
        [
            (left + cell * (position - first) - 1, y + side + 3),
            (left + cell * (position - first) - 1, y + side + 6),
            (left + cell * (position - first) + width - 1, y + side + 6),
            (left + cell * (position - first) + width - 1, y + side + 3),
        ],
        "line",
    )
    guesses = count_guesses(facts, entry)
    end = left + cell * (position - first) + width - 1
    if guesses:
        picture.path([(end - cell * guesses, y + side + 6), (end, y + side + 6)], "mark")


def count_guesses(facts: dict[str, Any], entry: dict[str, Any]) -> int:
    """How many drafts at the window's end are no samples: a pass gives probs at all positions of
    its window and at the one after it, and the window slides by one more than was accepted.
    """
    accepted: int = facts["accepted"][entry["number"] - 2]
    return accepted


def _draw_row_legend(picture: Picture, y: float) -> None:
    entries = (
        ("yes", "accepted", 66),
        ("new", "sampled", 150),
        ("", "replaced after the pass", 228),
    )
    for classes, name, x in entries:
        with picture.group(opacity=None if classes else 0.45):
            picture.rect(x, y - 10, 12, 12, "soft-fill", rx=3)
        if classes:
            picture.rect(x, y - 10, 12, 12, classes, rx=3)
        picture.text(x + 18, y, name, "small")
    picture.path([(64, y + 11), (64, y + 14), (80, y + 14), (80, y + 11)], "line")
    picture.text(84, y + 18, "the window", "small")
    picture.path([(160, y + 14), (176, y + 14)], "mark")
    picture.text(182, y + 18, "no probs yet: copies of the draft on the left", "small")
    picture.add("circle", cx=72, cy=y + 32, r=2, class_="ink-fill")
    picture.text(84, y + 36, "already, before it is replaced, the code emitted here later", "small")
