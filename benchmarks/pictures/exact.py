"""The exact test: what is accepted, and what is sampled after a rejection, add up to the target's
probs.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from benchmarks.pictures.cells import swatch
from benchmarks.pictures.runs import CHAIN, SEED, Run, colours, record
from benchmarks.pictures.svg import WIDTH, Picture
from search_spaces.acceptance import EXACT
from search_spaces.neighbourhoods import NeighbourhoodMass, NeighbourTables
from workers.loading.models import Models

_CODES = 9  # that are shown
_DRAWS = 20_000
_DISTANCES = (0.25, 0.5)  # total variation of p and q: enough of both to see
_HEIGHT = 150  # of the largest bar


def measure(models: Models) -> dict[str, Any]:
    p, q = _choose(record(models, CHAIN))
    accepted, residual = split(p, q)
    resampled = (1 - accepted.sum()) * residual
    counts = _sample(p, accepted, residual)
    order = (p + q).topk(_CODES).indices
    chosen = order[q[order].argsort(descending=True)].tolist()
    palette = colours(models, chosen)
    return {
        "accepted": round(float(accepted.sum()), 4),
        "resampled": round(float(resampled.sum()), 4),
        "largest_difference": float((accepted + resampled - q).abs().max()),
        "draws": _DRAWS,
        "codes": [
            {
                "code": code,
                "colour": palette[str(code)],
                "p": round(float(p[code]), 4),
                "q": round(float(q[code]), 4),
                "accepted": round(float(accepted[code]), 4),
                "resampled": round(float(resampled[code]), 4),
                "share": round(int(counts[code]) / _DRAWS, 4),
            }
            for code in chosen
        ],
    }


def _choose(run: Run) -> tuple[Tensor, Tensor]:
    """The drafter's and the target's probs of the position at which few codes have the most mass,
    of those at which the two differ clearly.
    """
    pairs = [(pass_.proposal[0], pass_.target[0]) for pass_ in run.passes]
    least, most = _DISTANCES
    clear = [pair for pair in pairs if least < float((pair[0] - pair[1]).abs().sum()) / 2 < most]
    return max(clear, key=lambda pair: float((pair[0] + pair[1]).topk(_CODES).values.sum()))


def split(p: Tensor, q: Tensor) -> tuple[Tensor, Tensor]:
    """The probability [V] that a code is drafted and accepted, and the probs [V] of a token after a
    rejection, by the engine's own rule.
    """
    codes = torch.arange(len(q))
    omega = torch.ones(1)
    tables = NeighbourTables()
    every_q = q.expand(len(q), -1)
    every_p = p.expand(len(p), -1)
    mass = EXACT.neighbourhood.mass(every_q, every_p, codes, tables)
    accepted = p * EXACT.acceptance_prob(mass, omega)
    first = NeighbourhoodMass(mass.target[:1], mass.proposal[:1])  # whichever draft was rejected
    residual = EXACT.residual(q[None], p[None], codes[:1], omega, first, tables)[0]
    return accepted, residual


def _sample(p: Tensor, accepted: Tensor, residual: Tensor) -> Tensor:
    """How often each code [V] was emitted in so many tests."""
    generator = torch.Generator().manual_seed(SEED)
    drafts = p.multinomial(_DRAWS, replacement=True, generator=generator)
    others = residual.multinomial(_DRAWS, replacement=True, generator=generator)
    chance = (accepted / p)[drafts]
    is_accepted = torch.rand(_DRAWS, generator=generator) < chance
    return torch.where(is_accepted, drafts, others).bincount(minlength=len(p))


def draw(facts: dict[str, Any]) -> Picture:
    picture = Picture(
        "Bars of nine codes. The accepted drafts and the samples after a rejection add up to the"
        " target's probability q of each code. The accepted and the rejected drafts add up to the"
        " drafter's probability p.",
        371,
    )
    largest = max(max(entry["p"], entry["q"]) for entry in facts["codes"])
    picture.text(
        22, 24, "one position: the nine codes with the largest p + q, sorted by q", "small soft"
    )
    base = 46 + _HEIGHT
    scale = _HEIGHT / largest
    for place, entry in enumerate(facts["codes"]):
        _draw_code(picture, 36 + 44 * place, base, scale, entry)
    for name, y in (("q", base + 36), ("p", base + 52)):
        picture.text(16, y, name, "small bold")
    picture.path([(14, base), (WIDTH - 14, base)], "line")
    _draw_legend(picture, base + 73, facts)
    return picture


def _draw_code(
    picture: Picture, x: float, base: float, scale: float, entry: dict[str, Any]
) -> None:
    width = 30
    kept = entry["accepted"] * scale
    picture.rect(x, base - kept, width, kept, "yes-fill")
    added = entry["resampled"] * scale
    if added > 0.5:
        picture.rect(x, base - kept - added, width, added, "new-fill")
    lost = (entry["p"] - entry["accepted"]) * scale
    if lost > 1:
        picture.rect(x + 1, base - kept - lost, width - 2, lost, "lost")
    top = base - entry["q"] * scale
    picture.path([(x - 4, top), (x + width + 4, top)], "level")
    picture.add("circle", cx=x + width / 2, cy=base - entry["share"] * scale, r=4, class_="dot")
    swatch(picture, x + width / 2 - 8, base + 6, 16, entry["colour"])
    for key, y in (("q", base + 36), ("p", base + 52)):
        picture.text(x + width / 2, y, f"{100 * entry[key]:.1f} %", "small middle")


def _draw_legend(picture: Picture, y: float, facts: dict[str, Any]) -> None:
    kept = f"{100 * facts['accepted']:.0f} %"
    lost = f"{100 * facts['resampled']:.0f} %"
    lines = (
        ("yes-fill", f"{kept}: drafts that are accepted, min(p, q) of each code"),
        ("lost", f"{lost}: drafts that are rejected, p above q"),
        ("new-fill", f"{lost}: samples in their place, from q above p"),
    )
    for row, (classes, words) in enumerate(lines):
        picture.rect(22, y + 18 * row - 10, 12, 12, classes)
        picture.text(42, y + 18 * row, words)
    line = y + 18 * len(lines)
    picture.path([(20, line - 4), (36, line - 4)], "level")
    picture.text(42, line, "q, the target's probability: green and orange together")
    picture.text(24, line + 18, "p", "bold")
    picture.text(42, line + 18, "the drafter's probability: green and dashed red together")
    picture.add("circle", cx=28, cy=line + 32, r=4, class_="dot")
    picture.text(42, line + 36, f"measured: emitted tokens of {facts['draws']:,} tests")
