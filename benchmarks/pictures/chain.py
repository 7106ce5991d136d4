"""A chain of drafts: three passes, and what became of each draft."""

from __future__ import annotations

from typing import Any

from benchmarks.pictures.cells import mark_test, swatch
from benchmarks.pictures.runs import CHAIN, Pass, colours, record
from benchmarks.pictures.svg import WIDTH, Picture
from workers.loading.models import Models

_PASSES = 3
_SIDE = 30


def measure(models: Models) -> dict[str, Any]:
    """The first passes in a row of which one accepts nothing and another one the whole chain."""
    run = record(models, CHAIN)
    length = CHAIN["tree"]["length"]
    for start in range(len(run.passes)):
        passes = run.passes[start : start + _PASSES]
        if {0, length} <= {pass_.accepted for pass_ in passes}:
            break
    palette = colours(models, [code for pass_ in passes for code in _codes(pass_)])
    return {
        "tokens": run.tokens,
        "pass_count": len(run.passes),
        "accepted_length": round(run.accepted_length, 2),
        "accepted": [pass_.accepted for pass_ in run.passes],
        "passes": [
            {
                "number": pass_.number,
                "root": pass_.root,
                "drafts": pass_.drafts,
                "acceptance_probs": [round(prob, 3) for prob in acceptance_probs(pass_)],
                "accepted": pass_.accepted,
                "last": pass_.emitted[-1],
            }
            for pass_ in passes
        ],
        "colours": palette,
    }


def _codes(pass_: Pass) -> list[int]:
    return [pass_.root, *pass_.drafts, pass_.emitted[-1]]


def acceptance_probs(pass_: Pass) -> list[float]:
    """min(1, q / p) of each draft of a chain."""
    found = []
    for level, code in enumerate(pass_.drafts):
        q = float(pass_.target[level, code])
        p = float(pass_.proposal[level, code])
        found.append(min(1.0, q / p))
    return found


def draw(facts: dict[str, Any]) -> Picture:
    picture = Picture(
        "Three passes, each with a chain of four drafts behind the last token: the accepted drafts,"
        " the first rejected one, and the token that the target adds.",
        64 + 78 * len(facts["passes"]),
    )
    for text, x in (
        ("last token", 84),
        ("drafts: code, min(1, q / p)", 152),
        ("emitted", 350),
    ):
        picture.text(x, 22, text, "small soft")
    for row, entry in enumerate(facts["passes"]):
        _draw_pass(picture, 36 + 78 * row, entry, facts["colours"])
    picture.text(
        WIDTH / 2,
        51 + 78 * len(facts["passes"]),
        f"{facts['pass_count']} passes, {facts['accepted_length']:.2f} tokens each on average.",
        "middle",
    )
    return picture


def _draw_pass(picture: Picture, y: float, entry: dict[str, Any], palette: dict[str, str]) -> None:
    accepted = entry["accepted"]
    picture.text(16, y + 19, f"pass {entry['number']}")
    swatch(picture, 92, y, _SIDE, palette[str(entry["root"])])
    picture.arrow(127, y + _SIDE / 2, 20)
    for place, (code, prob) in enumerate(
        zip(entry["drafts"], entry["acceptance_probs"], strict=True)
    ):
        x = 152 + 43 * place
        is_tested = place <= accepted
        with picture.group(opacity=None if is_tested else 0.35):
            swatch(picture, x, y, _SIDE, palette[str(code)])
        picture.text(x + _SIDE / 2, y + _SIDE + 14, f"{code}", "small soft middle")
        if is_tested:
            words = f"{100 * prob:.0f} %"
            picture.text(x + _SIDE / 2, y + _SIDE + 28, words, "small middle")
        if is_tested:
            mark_test(picture, x, y, _SIDE, is_accepted=place < accepted)
    picture.arrow(325, y + _SIDE / 2, 18)
    emitted = [*entry["drafts"][:accepted], entry["last"]]
    size = 14
    for place, code in enumerate(emitted):
        x = 350 + (size + 2) * place
        swatch(picture, x, y + 8, size, palette[str(code)])
        picture.rect(x, y + 8, size, size, "new" if place == accepted else "yes", rx=3)
    words = "1 token" if accepted == 0 else f"{accepted + 1} tokens"
    picture.text(350, y + _SIDE + 14, words, "small")
    picture.text(350, y + _SIDE + 28, f"sampled: {entry['last']}", "small soft")
