"""A neighbourhood: the mass of codes near a draft counts for it (LANTERN)."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from benchmarks.pictures.cells import COLUMNS, swatch
from benchmarks.pictures.chain import acceptance_probs
from benchmarks.pictures.runs import CHAIN, Pass, colours, png, record, setting
from benchmarks.pictures.svg import Picture
from search_spaces.neighbourhoods import NeighbourTables
from workers.decoding.build import build_tables
from workers.loading.models import Models

_RULE = {"neighbourhood": "additive", "k": 10, "delta": 0.2}
_LEAST = 0.01  # of q: enough to see
_CROPS = 4  # codes whose images are shown, the draft's own among them
_TOKENS = 5  # of a crop's side
_PIXELS = 4  # of a token's side


class _Test(NamedTuple):
    """A draft, and how much of the target's probs counts for it."""

    source: Pass
    level: int  # the draft's place in the chain
    q: float  # the target's probability of it
    exact: float  # min(1, q / p)
    relaxed: float  # the same with the neighbourhood's mass
    mass: float
    members: list[int]  # the draft's neighbours, the nearest first
    is_counted: list[bool]


def measure(models: Models) -> dict[str, Any]:
    """Of the rejected drafts of an exact chain that the target might have emitted, the one for
    which the neighbourhood changes the most.
    """
    run = record(models, CHAIN)
    tables = build_tables(setting({**CHAIN, "acceptance": _RULE}), models.target)
    rejected = [pass_ for pass_ in run.passes if pass_.accepted < len(pass_.drafts)]
    tests = [_test(pass_, pass_.accepted, tables) for pass_ in rejected]
    likely = [test for test in tests if test.q >= _LEAST]
    test = max(likely, key=lambda test: test.relaxed - test.exact)
    draft = test.source.drafts[test.level]
    q = test.source.target[test.level]
    place = test.source.position + test.level
    codes = [draft, *test.members]
    far = int(torch.cdist(models.target.codebook[draft][None], models.target.codebook).argmax())
    palette = colours(models, [*codes, far])
    return {
        "k": _RULE["k"],
        "delta": _RULE["delta"],
        "p": round(float(test.source.proposal[test.level, draft]), 4),
        "mass": round(test.mass, 4),
        "exact": round(test.exact, 4),
        "relaxed": round(test.relaxed, 4),
        "codes": [
            {
                "code": code,
                "colour": palette[str(code)],
                "q": round(float(q[code]), 4),
                "is_counted": is_counted,
            }
            for code, is_counted in zip(codes, [True, *test.is_counted], strict=True)
        ],
        "crops": [
            {"code": code, "png": _crop(models, run.tokens, place, code)}
            for code in [*codes[:_CROPS], far]
        ],
    }


def _test(pass_: Pass, level: int, tables: NeighbourTables) -> _Test:
    rule = setting({**CHAIN, "acceptance": _RULE}).acceptance
    draft = torch.tensor([pass_.drafts[level]])
    q = pass_.target[level, None]
    p = pass_.proposal[level, None]
    mass = rule.neighbourhood.mass(q, p, draft, tables)
    assert mass.members is not None
    assert mass.admitted is not None
    return _Test(
        pass_,
        level,
        float(q[0, draft]),
        acceptance_probs(pass_)[level],
        float(rule.acceptance_prob(mass, torch.ones(1))),
        float(mass.target),
        mass.members[0].tolist(),
        mass.admitted[0].tolist(),
    )


def _crop(models: Models, tokens: list[int], place: int, code: int) -> str:
    """The surroundings of a token in the decoded image, with this code in its place."""
    changed = [*tokens[:place], code, *tokens[place + 1 :]]
    half = _TOKENS // 2
    row = min(max(place // COLUMNS, half), COLUMNS - 1 - half) - half
    column = min(max(place % COLUMNS, half), COLUMNS - 1 - half) - half
    left, top = column * _PIXELS, row * _PIXELS
    return png(models, changed, (left, top, left + _TOKENS * _PIXELS, top + _TOKENS * _PIXELS))


def draw(facts: dict[str, Any]) -> Picture:
    picture = Picture(
        "Above: the same place of an image with the drafted code, with three of its neighbours and"
        " with a far code. Below: the target's probabilities of the draft and its neighbours.",
        357,
    )
    names = ["the draft", *[f"neighbour {rank}" for rank in range(1, _CROPS)], "a far code"]
    for place, (crop, name) in enumerate(zip(facts["crops"], names, strict=True)):
        x = 18 + 83 * place
        picture.image(x, 16, 72, crop["png"])
        picture.text(x + 36, 104, name, "small middle")
    base = 236
    scale = 82 / max(entry["q"] for entry in facts["codes"])
    picture.text(18, 134, _heading(facts), "small soft")
    for place, entry in enumerate(facts["codes"]):
        x = 18 + 41 * place
        height = entry["q"] * scale
        classes = "yes-fill" if entry["is_counted"] else "soft-fill"
        picture.rect(x, base - height, 30, height, "mark-fill" if place == 0 else classes)
        picture.text(x + 15, base - height - 4, f"{100 * entry['q']:.1f} %", "small middle")
        swatch(picture, x + 7, base + 6, 16, entry["colour"])
    _draw_legend(picture, 276, facts["delta"])
    p = _percent(facts["p"], 1)
    own = _percent(facts["codes"][0]["q"], 1)
    mass = _percent(facts["mass"], 1)
    exact = f"q = {own}, p = {p}: accepted with {_percent(facts['exact'])}"
    lines = (
        ("exact:", f"{exact};"),
        ("", "in this run the draft was rejected"),
        ("LANTERN:", f"S = {mass}, p = {p}: accepted with {_percent(facts['relaxed'])}"),
    )
    for row, (name, words) in enumerate(lines):
        picture.text(18, 302 + 19 * row, name, "bold")
        picture.text(102, 302 + 19 * row, words)
    return picture


def _heading(facts: dict[str, Any]) -> str:
    count = facts["k"]
    return f"q of the draft and its {count - 1} nearest codes (k = {count}), the nearest first"


def _draw_legend(picture: Picture, y: float, delta: float) -> None:
    entries = (
        (18, "mark-fill", "the draft"),
        (96, "yes-fill", f"count for it: in all below δ = {_percent(delta)}"),
        (330, "soft-fill", "stay out"),
    )
    for x, classes, words in entries:
        picture.rect(x, y - 9, 10, 10, classes)
        picture.text(x + 16, y, words, "small")


def _percent(share: float, decimals: int = 0) -> str:
    return f"{100 * share:.{decimals}f} %"
