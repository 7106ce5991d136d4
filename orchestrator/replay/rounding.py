"""Proposals with short numbers: what a sampler chooses, to three significant digits.

People read, name and type these numbers, and no sweep can tell such neighbours apart.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from optuna.distributions import BaseDistribution, FloatDistribution
from optuna.samplers import BaseSampler
from optuna.study import Study
from optuna.trial import FrozenTrial, TrialState

_DIGITS = 3


def rounded(value: Any, distribution: BaseDistribution) -> Any:
    """A real number with three significant digits, or with more if the distribution would have
    fewer than a hundred such numbers. Other values, and numbers with a step, stay as they are.
    """
    if (
        not isinstance(distribution, FloatDistribution)
        or distribution.step is not None
        or distribution.single()
    ):
        return value
    width = distribution.high - distribution.low
    decimals = _DIGITS - 1 - math.floor(math.log10(min(abs(value) or width, width)))
    return min(max(round(float(value), decimals), distribution.low), distribution.high)


class RoundingSampler(BaseSampler):
    """Another sampler, whose real numbers are rounded before the study has them (see `rounded`)."""

    def __init__(self, sampler: BaseSampler) -> None:
        self._sampler = sampler

    def infer_relative_search_space(
        self, study: Study, trial: FrozenTrial
    ) -> dict[str, BaseDistribution]:
        return self._sampler.infer_relative_search_space(study, trial)

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        found = self._sampler.sample_relative(study, trial, search_space)
        return {name: rounded(value, search_space[name]) for name, value in found.items()}

    def sample_independent(
        self,
        study: Study,
        trial: FrozenTrial,
        param_name: str,
        param_distribution: BaseDistribution,
    ) -> Any:
        value = self._sampler.sample_independent(study, trial, param_name, param_distribution)
        return rounded(value, param_distribution)

    def before_trial(self, study: Study, trial: FrozenTrial) -> None:
        self._sampler.before_trial(study, trial)

    def after_trial(
        self, study: Study, trial: FrozenTrial, state: TrialState, values: Sequence[float] | None
    ) -> None:
        self._sampler.after_trial(study, trial, state, values)

    def reseed_rng(self) -> None:
        self._sampler.reseed_rng()
