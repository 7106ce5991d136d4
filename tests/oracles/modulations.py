"""The modulations spelled out, from their formulas alone: what a rule and a budget become at a
node.
"""

import math
from collections.abc import Sequence
from dataclasses import replace

from tests.oracles.rules import Rule


def entropy(q: Sequence[float], gamma: float, reference: float, limit: float) -> float:
    """min(limit, (H / reference)^gamma), H in nats."""
    nats = -math.fsum(mass * math.log(mass) for mass in q if mass > 0)
    return _power(nats / reference, gamma, limit)


def margin(q: Sequence[float], gamma: float, reference: float, limit: float) -> float:
    """min(limit, ((1 - margin) / (1 - reference))^gamma)."""
    first, second = sorted(q, reverse=True)[:2]
    return _power((1 - first + second) / (1 - reference), gamma, limit)


def row(place: int, cols: int, rows: int, first: float, last: float) -> float:
    """The straight line from the first row to the last, at the token of this place."""
    return first + (last - first) * (place // cols) / (rows - 1)


def _power(base: float, gamma: float, limit: float) -> float:
    if base <= 0 and gamma < 0:
        return limit
    return float(min(limit, base**gamma))


def relaxed(rule: Rule, omega: float, m: float) -> tuple[Rule, float]:
    """The rule and the budget at a node whose factor is m."""
    scaled = replace(
        rule,
        delta=rule.delta * m,
        lam=1 + (rule.lam - 1) * m,
        radius=rule.radius * m,
        threshold=rule.threshold * m,
        epsilon=rule.epsilon / m if m else math.inf,
        alpha=rule.alpha / m if m else math.inf,
    )
    return scaled, 1 + m * (omega - 1) if omega > 1 else omega
