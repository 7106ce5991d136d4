"""The exact distribution of what one round of speculative decoding emits, by enumeration of
everything that can happen.

For small codebooks and trees only: every ordered draw of every node's children is visited.
Distributions are lists of floats; contexts are the tokens since the root.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from tests.oracles.rules import Probs, Rule, acceptance_prob, normalised, residual

Context = tuple[int, ...]
Table = Mapping[Context, Sequence[float]]
Shape = tuple["Shape", ...]
"""A tree without tokens: one entry per child in rank order, each the shape of that child's own subtree."""
Drawn = dict[int, "Drawn"]
"""A tree of tokens taken deterministically: child token -> its subtree, in the order of trial."""

Residual = Callable[[Rule, Sequence[float], Sequence[float] | None, int, float], Probs]
Modulate = Callable[[Context, Rule, float], tuple[Rule, float]]
"""What a rule and a budget become after a context."""


def unmodulated(_context: Context, rule: Rule, omega: float) -> tuple[Rule, float]:
    """The same everywhere."""
    return rule, omega


@dataclass
class Outcome:
    """What can happen at one node: ``accepted[(rank, token)]`` and, nothing accepted,
    ``emitted[token]``.
    """

    accepted: dict[tuple[int, int], float]
    emitted: Probs

    def probs(self) -> Probs:
        """The distribution of the token that leaves the node, accepted or drawn from the
        residual.
        """
        total = list(self.emitted)
        for (_, token), weight in self.accepted.items():
            total[token] += weight
        return total


def top(p: Sequence[float], count: int) -> list[int]:
    """The ``count`` most likely codes in order, equals by index; codes without mass are no
    children.
    """
    ranked = sorted(range(len(p)), key=lambda y: (-p[y], y))
    return [y for y in ranked[:count] if p[y] > 0]


def node(
    rule: Rule,
    q: Sequence[float],
    p: Sequence[float],
    children: int | Sequence[int],
    omega: float,
    redraw: Residual = residual,
) -> Outcome:
    """Everything that can happen at a node, with its probability.

    ``children`` is a count (drawn from ``p`` without replacement: every ordered draw is enumerated)
    or the very tokens (deterministic children, tried in that order). ``redraw`` gives the residual
    after a rejection.
    """
    outcome = Outcome({}, [0.0] * len(q))

    def trial(r: Sequence[float], weight: float, taken: tuple[int, ...], rank: int) -> None:
        if rank == (children if isinstance(children, int) else len(children)):
            for y, mass in enumerate(r):
                outcome.emitted[y] += weight * mass
            return
        if isinstance(children, int):
            left = [0.0 if y in taken else p[y] for y in range(len(p))]
            if sum(left) <= 0:  # fewer codes than children: the surplus is void
                trial(r, weight, taken, children)
                return
            proposal: Probs | None = normalised(left)
            draws = [(y, mass) for y, mass in enumerate(proposal or ()) if mass > 0]
        else:
            proposal, draws = None, [(children[rank], 1.0)]
        for x, drawn in draws:
            keep = acceptance_prob(rule, r, proposal, x, omega)
            outcome.accepted[rank, x] = outcome.accepted.get((rank, x), 0.0) + weight * drawn * keep
            if keep < 1:
                trial(
                    redraw(rule, r, proposal, x, omega),
                    weight * drawn * (1 - keep),
                    (*taken, x),
                    rank + 1,
                )

    trial(q, 1.0, (), 0)
    return outcome


def round_distribution(
    rule: Rule,
    q: Table,
    p: Table,
    tree: Shape | Drawn,
    omegas: Sequence[float],
    redraw: Residual = residual,
    modulate: Modulate = unmodulated,
) -> dict[Context, float]:
    """The exact distribution of all tokens that one round emits: the accepted path, then one more
    token.

    ``q`` and ``p`` give the distributions after each context. The children of a ``Shape`` are
    sampled from p without replacement; a ``Drawn`` names them (see ``likeliest`` for the static
    tree of top codes).
    """
    probs: dict[Context, float] = {}

    def visit(context: Context, here: Shape | Drawn, weight: float) -> None:
        subtrees: list[Shape | Drawn] = list(here.values() if isinstance(here, dict) else here)
        if not here:  # a leaf: the bonus token
            outcome = node(rule, q[context], (), [], 1.0, redraw)
        else:
            own, omega = modulate(context, rule, omegas[len(context)])
            if isinstance(here, dict):
                outcome = node(own, q[context], (), list(here), omega, redraw)
            else:
                outcome = node(own, q[context], p[context], len(here), omega, redraw)
        for y, mass in enumerate(outcome.emitted):
            if mass > 0:
                probs[*context, y] = probs.get((*context, y), 0.0) + weight * mass
        for (rank, token), mass in outcome.accepted.items():
            visit((*context, token), subtrees[rank], weight * mass)

    visit((), tree, 1.0)
    return probs


def likeliest(p: Table, shape: Shape, context: Context = ()) -> Drawn:
    """The static tree ``shape`` filled with the most likely codes of each node."""
    tokens = top(p[context], len(shape)) if shape else []
    return {x: likeliest(p, below, (*context, x)) for x, below in zip(tokens, shape, strict=False)}


def completed(probs: Mapping[Context, float], q: Table, length: int) -> dict[Context, float]:
    """``probs`` over sequences of at most ``length`` tokens, each completed to ``length`` by the
    target itself.
    """
    full: dict[Context, float] = {}
    for context, weight in probs.items():
        if len(context) >= length:
            full[context[:length]] = full.get(context[:length], 0.0) + weight
        else:
            for rest, mass in completed(
                {(*context, y): m for y, m in enumerate(q[context])}, q, length
            ).items():
                full[rest] = full.get(rest, 0.0) + weight * mass
    return full


def target_distribution(q: Table, length: int) -> dict[Context, float]:
    """The joint distribution of the next ``length`` tokens by the target alone."""
    return completed({(): 1.0}, q, length)


def total_variation(a: Mapping[Context, float], b: Mapping[Context, float]) -> float:
    """Half the l1 distance of two distributions on sequences."""
    return sum(abs(a.get(key, 0.0) - b.get(key, 0.0)) for key in {*a, *b}) / 2


def expected_accepted(probs: Mapping[Context, float]) -> float:
    """E[N]: accepted drafts of a round whose distribution is ``distribution``."""
    return sum((len(context) - 1) * weight for context, weight in probs.items())
