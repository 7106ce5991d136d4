"""The outcome of a token check (see `workers.decoding.token_checker`). This module does without
torch: results are read without it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

BINS = 16  # of the transform u
TESTS = 5  # of one check: their p-values are multiplied by it (Bonferroni)
FALSE_ALARMS = 1e-4  # how often a check fails whose tokens are the target's


@dataclass(frozen=True, slots=True)
class TokenCheck:
    """The outcome of a check."""

    images: int
    tokens: int
    z: float  # of the tokens' log probs; 0 at temperature 0, and where they vary too little
    p_value: float  # of all tests together, at most 1
    impossible: int  # tokens whose probability is 0; at temperature 0, that are not the argmax
    is_greedy: bool = False

    @property
    def passed(self) -> bool:
        """Whether the tokens may be the target's own."""
        return self.p_value >= FALSE_ALARMS

    @property
    def summary(self) -> str:
        """The outcome of a setting that claims to be lossless, in words."""
        if self.passed:
            return f"its {self.tokens:,} tokens may be the target's (p = {self.p_value:.2g})"
        return (
            "claims to be lossless, but its tokens are not the target's "
            f"(z = {self.z:.1f}, p = {self.p_value:.1g})"
        )

    @property
    def detectable(self) -> float:
        """The smallest share of tokens whose shift from one bin of u to another is noticed in nine
        of ten checks of so many; at temperature 0, the share of wrong tokens.
        """
        if self.is_greedy:
            return float(1 - 0.1 ** (1 / max(1, self.tokens)))
        # the noncentrality at which a chi-square test of 15 degrees of freedom at a level of
        # FALSE_ALARMS / TESTS has this power
        noncentrality = 52.9
        return min(1.0, math.sqrt(noncentrality / (2 * BINS * max(1, self.tokens))))
