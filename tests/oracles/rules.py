"""The acceptance rules spelled out: slow, plain, float64, no tensors.

Written from the formulas alone, so that a mistake in the fast code cannot repeat itself here. Probs
are lists of floats over the codebook; a proposal of ``None`` is a point mass on the child itself (a
child taken deterministically).

Sources: Leviathan et al. 2023 (exact rule), LANTERN (additive; TVD and JSD), LANTERN++
(multiplicative), Cool-SD Thm 2 (optimal resampling, schedules), GSD (grouped), Medusa (typical),
FSD (fuzzy).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

Probs = list[float]


@dataclass(frozen=True)
class Rule:
    """One acceptance rule; fields that do not belong to ``kind`` are ignored.

    ``order[x]`` lists the codebook by increasing distance from x, x first; ``k`` counts x itself.
    """

    kind: str = "none"  # none | tvd | jsd | multiplicative | grouped | typical | fuzzy
    resampling: str = "optimal"  # optimal | paper
    k: int = 1
    delta: float = 0.0
    lam: float = 1.0
    order: Sequence[Sequence[int]] = ()
    below: int = 7
    above: int = 6
    tolerance: float = 0.15
    radius: float = 0.5
    codebook: Sequence[Sequence[float]] = ()
    epsilon: float = 0.09
    alpha: float = 0.3
    threshold: float = 0.0
    divergence: str = "tvd"  # of a fuzzy rule: tvd | kl | reverse_kl | jsd

    @property
    def is_threshold(self) -> bool:
        """Whether a test decides alone, so that a draft is accepted with probability 0 or omega."""
        return self.kind in ("typical", "fuzzy")


# --- schedules -------------------------------------------------------------------------------------------------------


def constant(levels: int, budget: float) -> list[float]:
    """UniformRSD: the same factor at every depth."""
    return [budget for _ in range(levels)]


def linear(levels: int, budget: float, slope: float) -> list[float]:
    """omega_i = budget + slope ((L + 1) / 2 - i)."""
    return [budget + slope * ((levels + 1) / 2 - i) for i in range(1, levels + 1)]


def exponential(levels: int, budget: float, nu: float) -> list[float]:
    """omega_i = budget L exp(-nu i) / sum_j exp(-nu j)."""
    total = sum(math.exp(-nu * j) for j in range(1, levels + 1))
    return [budget * levels * math.exp(-nu * i) / total for i in range(1, levels + 1)]


# --- what the rule credits -------------------------------------------------------------------------------------------


def jsd_of_move(r_x: float, moved: float) -> float:
    """Jensen-Shannon divergence (nats) between a distribution and itself with the mass ``moved``
    carried onto x.

    Straight from the definition, entry by entry: the emptied entries together held ``moved`` (each
    contributes in proportion to its mass), x held ``r_x``.
    """

    def part(a: float, b: float) -> float:
        return a * math.log(a / b) if a > 0 else 0.0

    middle_moved, middle_x = moved / 2, r_x + moved / 2
    before = part(moved, middle_moved) + part(r_x, middle_x)
    after = part(r_x + moved, middle_x)
    return (before + after) / 2


def members(rule: Rule, r: Sequence[float], x: int) -> list[int]:
    """The admitted neighbours A of x, x itself left out."""
    if rule.kind == "none" or rule.is_threshold:
        return []
    if rule.kind == "grouped":
        return _group(rule, r, x)
    admitted: list[int] = []
    total = 0.0
    for y in list(rule.order[x])[1 : rule.k]:
        total += r[y]
        if rule.kind == "tvd":
            fits = total < rule.delta
        elif rule.kind == "jsd":
            fits = jsd_of_move(r[x], total) < rule.delta
        else:
            fits = r[x] + total < rule.lam * r[x]
        if not fits:
            break
        admitted.append(y)
    return admitted


def _group(rule: Rule, r: Sequence[float], x: int) -> list[int]:
    """GSD's group without x; empty when the window falls off the unlikely end (then x counts for
    itself).

    The codebook is ranked from the least to the most likely code, equals in index order.
    """
    ranking = sorted(range(len(r)), key=lambda y: (r[y], y))
    place = ranking.index(x)
    if place < rule.below:
        return []
    near = []
    for y in ranking[place - rule.below : place + rule.above + 1]:
        distance = sum(
            (a - b) ** 2 for a, b in zip(rule.codebook[x], rule.codebook[y], strict=True)
        )
        if y != x and abs(r[y] - r[x]) < rule.tolerance and distance < rule.radius:
            near.append(y)
    return near


def typical_threshold(rule: Rule, r: Sequence[float]) -> float:
    """min(epsilon, alpha exp(-H)), with H = -sum r log(r + 1e-5)."""
    entropy = -math.fsum(mass * math.log(mass + 1e-5) for mass in r)
    return min(rule.epsilon, rule.alpha * math.exp(-entropy))


def distance(rule: Rule, r: Sequence[float], p: Sequence[float]) -> float:
    """How far target and drafter are apart, for a fuzzy rule."""

    def kl(a: Sequence[float], b: Sequence[float]) -> float:
        terms = []
        for x, y in zip(a, b, strict=True):
            if x > 0 and y == 0:
                return math.inf
            terms.append(x * math.log(x / y) if x > 0 else 0.0)
        return math.fsum(terms)

    if rule.divergence == "tvd":
        return math.fsum(max(0.0, a - b) for a, b in zip(r, p, strict=True))
    if rule.divergence == "kl":
        return kl(r, p)
    if rule.divergence == "reverse_kl":
        return kl(p, r)
    middle = [(a + b) / 2 for a, b in zip(r, p, strict=True)]
    return kl(r, middle) / 2 + kl(p, middle) / 2


def neighbourhood_mass(
    rule: Rule, r: Sequence[float], p: Sequence[float] | None, x: int
) -> tuple[float, float]:
    """(S_r(x), the proposal mass it is compared with)."""
    if rule.kind == "typical":
        proposal = 1.0 if p is None else p[x]
        return (proposal if r[x] > typical_threshold(rule, r) else 0.0), proposal
    if rule.kind == "fuzzy":
        assert p is not None
        return (p[x] if distance(rule, r, p) <= rule.threshold else 0.0), p[x]
    admitted = members(rule, r, x)
    mass = r[x] + sum(r[y] for y in admitted)
    if p is None:
        return mass, 1.0
    if rule.kind == "grouped":
        return mass, p[x] + sum(p[y] for y in admitted)
    return mass, p[x]


def acceptance_prob(
    rule: Rule, r: Sequence[float], p: Sequence[float] | None, x: int, omega: float
) -> float:
    """f(x) = min(1, omega S_r(x) / p(x)); what could not have been proposed is not accepted,
    whatever its group.
    """
    if p is not None and p[x] <= 0:
        return 0.0
    mass, proposal = neighbourhood_mass(rule, r, p, x)
    return min(1.0, omega * mass / proposal)


# --- what is drawn after a rejection ---------------------------------------------------------------------------------


def optimal_mass(
    rule: Rule, r: Sequence[float], p: Sequence[float] | None, x: int, omega: float
) -> Probs:
    """[r - p f]_+, the full formula, unnormalised (Cool-SD Thm 2)."""
    if p is None:
        return [
            max(0.0, r[y] - acceptance_prob(rule, r, None, y, omega)) if y == x else r[y]
            for y in range(len(r))
        ]
    return [max(0.0, r[y] - p[y] * acceptance_prob(rule, r, p, y, omega)) for y in range(len(r))]


def exact_mass(r: Sequence[float], p: Sequence[float] | None, x: int) -> Probs:
    """[r - p]_+, unnormalised."""
    proposal = [float(y == x) for y in range(len(r))] if p is None else p
    return [max(0.0, a - b) for a, b in zip(r, proposal, strict=True)]


def paper_mass(
    rule: Rule, r: Sequence[float], p: Sequence[float] | None, x: int, omega: float
) -> Probs:
    """What each paper subtracts, unnormalised: [r_A - p]_+ with A's mass carried onto x; GSD [r -
    p]_+.

    A neighbourhood that can never admit anybody (k = 1, a zero bound) is none, where the papers do
    the optimal thing.
    """
    if rule.is_threshold:
        return list(r)
    empty = {
        "none": True,
        "tvd": not rule.delta,
        "jsd": not rule.delta,
        "multiplicative": rule.lam == 1,
    }
    if rule.kind != "grouped" and (empty[rule.kind] or rule.k == 1):
        return optimal_mass(rule, r, p, x, omega)
    carried = list(r)
    if rule.kind != "grouped":
        for y in members(rule, r, x):
            carried[x] += r[y]
            carried[y] = 0.0
    proposal = [float(y == x) for y in range(len(r))] if p is None else p
    return [max(0.0, a - b) for a, b in zip(carried, proposal, strict=True)]


def residual(
    rule: Rule, r: Sequence[float], p: Sequence[float] | None, x: int, omega: float
) -> Probs:
    """The distribution that stands in for r after x was rejected.

    When the papers' has no mass left, the exact rule's, [r - p]_+; when that has none either, r
    itself.
    """
    attempts = [optimal_mass(rule, r, p, x, omega)]
    if rule.resampling == "paper":
        attempts = [paper_mass(rule, r, p, x, omega), exact_mass(r, p, x)]
    for mass in attempts:
        if sum(mass) > 0:
            return normalised(mass)
    return list(r)


def normalised(mass: Sequence[float]) -> Probs:
    """``mass`` over its sum."""
    total = math.fsum(mass)
    return [m / total for m in mass]


# --- temperature 0 ---------------------------------------------------------------------------------------------------


def greedy(rule: Rule, q: Sequence[float], x: int, omega: float) -> bool:
    """x is kept iff omega S(x) reaches every code outside S(x). GSD has no greedy form, nor have
    rules that are a threshold: there S(x) = q(x).
    """
    admitted = [] if rule.kind == "grouped" else members(rule, q, x)
    mass = q[x] + sum(q[y] for y in admitted)
    return all(omega * mass >= q[y] for y in range(len(q)) if y != x and y not in admitted)
