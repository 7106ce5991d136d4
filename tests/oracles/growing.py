"""EAGLE-2's tree and ADT-Tree's way of choosing its size, spelled out: plain lists and floats, one
image at a time.

Written from the papers' formulas (EAGLE-2; ADT-Tree, first submitted as PEANUT, with TokenFlock),
so that a mistake in the fast code cannot repeat itself here. A node is its path: the tokens from
the root's child to itself.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction

from search_spaces.trees import Adjacency

Path = tuple[int, ...]
ProbsFunction = Callable[[Path], Sequence[float]]
"""The drafter's distribution after a path."""


def score(all_probs: ProbsFunction, path: Path) -> float:
    """log of the product of the drafter's probabilities along the path."""
    return sum(math.log(all_probs(path[:depth])[token]) for depth, token in enumerate(path))


def children(all_probs: ProbsFunction, path: Path, width: int) -> list[Path]:
    """The most likely codes after a path, best first; what the drafter holds impossible is no
    child.
    """
    probs = all_probs(path)
    ranked = sorted(
        (code for code in range(len(probs)) if probs[code] > 0), key=lambda code: -probs[code]
    )
    return [(*path, code) for code in ranked[:width]]


def eagle2(all_probs: ProbsFunction, depth: int, width: int, nodes: int) -> list[Path]:
    """Grow `width` children of each of a level's `width` surest nodes, `depth` levels; keep the
    best of all.
    """
    level = children(all_probs, (), width)
    grown = list(level)
    for _ in range(depth - 1):
        frontier = sorted(level, key=lambda path: -score(all_probs, path))[:width]
        level = [child for path in frontier for child in children(all_probs, path, width)]
        grown += level
    return sorted(grown, key=lambda path: (-score(all_probs, path), len(path)))[:nodes]


@dataclass(frozen=True)
class Drafted:
    """The tree that a token was drafted with; alpha None: no tree was, as for the first token."""

    depth: float
    width: float
    alpha: float | None


class Map:
    """What every token of one image was drafted with, in the grids of these rows and columns.
    `draws` gives the two uniform numbers of a token's cell.
    """

    def __init__(
        self,
        policy: Adjacency,
        grids: Sequence[tuple[int, int]],
        ceiling: int,
        draws: Callable[[int], Sequence[float]],
    ) -> None:
        self.policy, self.ceiling, self.draws = policy, ceiling, draws
        self.places = [
            (grid, row, col)
            for grid, (rows, cols) in enumerate(grids)
            for row in range(rows)
            for col in range(cols)
        ]
        # the first token comes from the prefill
        self.cells = [Drafted(policy.start_depth, policy.start_width, None)]

    def next_tree(self) -> tuple[int, int]:
        """Depth and width for the token about to be drafted."""
        origin = self.inherit(len(self.cells))
        alpha = origin.alpha if self.policy.alpha == "neighbour" else self.cells[-1].alpha
        fixed_depth, fixed_width = self.policy.fixed_depth, self.policy.fixed_width
        depth = origin.depth if fixed_depth is None else fixed_depth
        return self.adapt(depth, origin.width if fixed_width is None else fixed_width, alpha)

    def inherit(self, token: int) -> Drafted:
        policy = self.policy
        grid, row, col = self.places[token]
        if policy.initialisation == "random":
            one, two = self.draws(token)
            (least_d, most_d), (least_k, most_k) = policy.depth_range, policy.width_range
            # a random shape is nobody's: the alpha is the previous round's
            return Drafted(
                least_d + math.floor(one * (most_d - least_d + 1)),
                least_k + math.floor(two * (most_k - least_k + 1)),
                self.cells[-1].alpha,
            )
        if policy.initialisation == "tokenflock":
            return self.flock(grid, row, col)
        # in the first column the left one is the upper one
        left = policy.initialisation == "horizontal" and col > 0
        neighbour = (grid, row, col - 1) if left else (grid, row - 1, col)
        return self.cells[self.places.index(neighbour)] if neighbour in self.places else self.start

    @property
    def start(self) -> Drafted:
        return Drafted(self.policy.start_depth, self.policy.start_width, None)

    def flock(self, grid: int, row: int, col: int) -> Drafted:
        """Means over the earlier tokens within the radius, weighted by (radius - rows above + 1) /
        radius.
        """
        radius = Fraction(self.policy.radius)  # exact: the means are rounded to whole numbers
        near: list[tuple[Fraction, Drafted]] = []
        for token, drafted in enumerate(self.cells):
            own, y, x = self.places[token]
            if own == grid and math.hypot(row - y, col - x) <= radius:
                near.append(((radius - (row - y) + 1) / radius, drafted))
        if not near:  # the first of a grid that follows another one
            return self.start
        total = sum(weight for weight, _ in near)
        judged = [(weight, drafted.alpha) for weight, drafted in near if drafted.alpha is not None]
        return Drafted(
            round(sum(weight * Fraction(drafted.depth) for weight, drafted in near) / total),
            round(sum(weight * Fraction(drafted.width) for weight, drafted in near) / total),
            float(sum(w * Fraction(alpha) for w, alpha in judged) / sum(w for w, _ in judged))
            if judged
            else None,
        )

    def adapt(self, depth: float, width: float, alpha: float | None) -> tuple[int, int]:
        """Deeper and narrower where the tree was used up to beta, else shallower and wider; then
        into the ranges.

        The shallowest tree may be of any width that the codebook and the number of nodes allow.
        """
        policy = self.policy
        if alpha is not None:
            used = alpha >= policy.beta
            depth += policy.depth_step if used else -policy.depth_step
            width += -policy.width_step if used else policy.width_step
        depth = int(min(max(depth, policy.depth_range[0]), policy.depth_range[1]))
        if depth > policy.depth_range[0]:
            width = min(max(width, policy.width_range[0]), policy.width_range[1])
        return depth, int(min(max(width, 1), self.ceiling))

    def emit(self, depth: int, width: int, accepted: int) -> None:
        """A round's end: all its tokens, the bonus included, remember its tree and how much of it
        was used.
        """
        used = accepted + (self.policy.numerator == "tokens")
        self.cells += [Drafted(depth, width, used / depth)] * (accepted + 1)
