"""Traversal verification as it is stated (arXiv 2505.12398): one draft after the other, on trees of
tokens that are enumerated.

Contexts are the tokens since the root.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import NamedTuple

from tests.oracles.rounds import Context, Shape, Table
from tests.oracles.rules import Probs

Drafted = tuple[tuple[int, "Drafted"], ...]
"""A tree of tokens in drawing order: each child's token, and its subtree."""


class Stop(NamedTuple):
    """A context that may be accepted last."""

    context: Context
    weight: float  # the probability that it is
    residual: Probs  # what the next token is then sampled from


def drawn(p: Table, shape: Shape, context: Context = ()) -> Iterator[tuple[Drafted, float]]:
    """Every tree of that shape that may be drawn without replacement, with its probability. A node
    has fewer children where p has fewer codes.
    """
    if not shape:
        yield (), 1.0
        return
    codes = [x for x, mass in enumerate(p[context]) if mass > 0]
    for tokens in itertools.permutations(codes, min(len(shape), len(codes))):
        weight, rest = 1.0, 1.0
        for x in tokens:
            weight *= p[context][x] / rest
            rest -= p[context][x]
        below = [
            list(drawn(p, part, (*context, x))) for x, part in zip(tokens, shape, strict=False)
        ]
        for parts in itertools.product(*below):
            subtrees = tuple((x, tree) for x, (tree, _) in zip(tokens, parts, strict=True))
            inside = 1.0
            for _, chance in parts:
                inside *= chance
            yield subtrees, weight * inside


def stops(q: Table, p: Table, tree: Drafted) -> list[Stop]:
    """What may be accepted last of one drawn tree, in the order of the tests."""
    found: list[Stop] = []

    def visit(context: Context, alpha: float, children: Drafted, weight: float) -> float:
        """The probability that nothing at or below the context is accepted."""
        target = list(q[context])
        proposal = list(p.get(context, ()))
        for x, below in children:
            ratio = alpha * target[x] / proposal[x]
            weight = visit((*context, x), min(1.0, ratio), below, weight)
            left = [max(alpha * a - b, 0.0) for a, b in zip(target, proposal, strict=True)]
            mass = sum(left)
            # a context with alpha 1 is accepted for sure
            alpha = mass / (mass + 1 - alpha) if mass + 1 - alpha > 0 else 1.0
            if mass > 0:
                target = [part / mass for part in left]
            proposal[x] = 0.0
            rest = sum(proposal)
            proposal = [part / rest if rest > 0 else 0.0 for part in proposal]
        if not context:
            alpha = 1.0
        found.append(Stop(context, weight * alpha, target))
        return weight * (1 - alpha)

    visit((), 1.0, tree, 1.0)
    return found
