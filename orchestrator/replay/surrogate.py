"""Gaussian processes of objectives over a pool's features, and the setting whose result promises
most.

The acquisition is noisy expected hypervolume improvement (Daulton, Balandat, Bakshy 2021), by
BoTorch. A pool needs no gradients, so it is the plain expectation: its smoothed logarithm picks the
same settings here, takes ten to thirty times as long, and compiles C++ code where it finds a
compiler.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from orchestrator.front.compare import reference_point
from orchestrator.front.pareto import Floats

if TYPE_CHECKING:
    from botorch.models.model_list_gp_regression import ModelListGP

_BLOCK = 256  # candidates evaluated at once
_MIN_RELATIVE_NOISE = 1e-3  # smallest error, as a share of the objective's spread
# relative, of a fit's likelihood; SciPy's default takes up to eight times as long
_FIT_TOLERANCE = 1e-6


@dataclass(frozen=True, slots=True, eq=False)
class Observations:
    """Measured settings."""

    features: Floats  # [n, d]
    values: Floats  # [n, m] of the objectives
    errors: Floats  # [n, m] standard errors of the values, NaN where they are not known
    violations: Floats  # [n, c] violations of constraints, met at 0 or less
    directions: Sequence[str]  # of the m objectives
    # [m] the point that bounds the hypervolume; None: a tenth of each objective's range worse than
    # the worst value.
    reference: Floats | None = None
    # Of each objective and each constraint, the features that it depends on; None: on all of them.
    columns: Sequence[slice] | None = None

    @property
    def corner(self) -> Floats:
        """The reference point [m]; without a given one, that of the feasible trials."""
        if self.reference is not None:
            return self.reference
        feasible = (self.violations <= 0).all(axis=1)
        values = self.values[feasible] if feasible.any() else self.values
        return reference_point(values, self.directions)


def most_promising(
    observations: Observations, pending: Floats, candidates: Floats, *, samples: int, seed: int
) -> int:
    """The row of `candidates` [N, d] with the largest expected improvement of the feasible
    hypervolume.

    pending [p, d]: settings that run now, whose results are integrated over. samples: of the joint
    posterior, from a Sobol sequence of `seed`. The choice is the same for any number of threads.
    """
    with _reproducible(seed):
        surrogate = Surrogate(
            observations, np.concatenate([observations.features, pending, candidates])
        )
        gains = surrogate.improvements(pending, candidates, samples=samples, seed=seed)
        if not (gains > 0).any():  # no sample improves the front: look where the model knows least
            gains = surrogate.uncertainty(candidates)
        return int(gains.argmax())


class Surrogate:
    """A Gaussian process for each objective and constraint. everything [N, d]: all features, for
    their scale.
    """

    def __init__(self, observations: Observations, everything: Floats) -> None:
        self.observations = observations
        self._low = everything.min(axis=0)
        span = np.ptp(everything, axis=0)
        self._span = np.where(span > 0, span, 1.0)
        self.objectives = len(observations.directions)
        self._x = self._scaled(observations.features)
        errors = observations.errors
        self._outcomes = [
            _Outcome.objective(v, e) for v, e in zip(observations.values.T, errors.T, strict=True)
        ]
        self._outcomes += [
            _Outcome.constraint(violation) for violation in observations.violations.T
        ]
        self.model = _fit(self._x, self._outcomes, observations.columns)

    def improvements(
        self, pending: Floats, candidates: Floats, *, samples: int, seed: int
    ) -> Floats:
        """The expected gain [N] in feasible hypervolume of each candidate; see `most_promising`.

        The hypervolume is that of the report: of the objectives as they are, not of their logs.
        """
        from botorch.acquisition.multi_objective.monte_carlo import (
            qNoisyExpectedHypervolumeImprovement,
        )
        from botorch.acquisition.multi_objective.objective import GenericMCMultiOutputObjective
        from botorch.sampling.normal import SobolQMCNormalSampler

        directions = self.observations.directions
        outcomes = self._outcomes[: self.objectives]
        signs = torch.tensor(
            [-1.0 if direction == "minimize" else 1.0 for direction in directions]
        ).double()

        def objective(samples: Tensor, X: Tensor | None = None) -> Tensor:
            values = [
                outcome.restore(samples[..., index]) for index, outcome in enumerate(outcomes)
            ]
            return torch.stack(values, dim=-1) * signs

        acquisition = qNoisyExpectedHypervolumeImprovement(
            self.model,
            ref_point=torch.from_numpy(self.observations.corner) * signs,
            X_baseline=self._x,
            X_pending=self._scaled(pending) if len(pending) else None,
            sampler=SobolQMCNormalSampler(torch.Size([samples]), seed=seed),
            objective=GenericMCMultiOutputObjective(objective),
            constraints=[
                partial(_column, index) for index in range(self.objectives, len(self._outcomes))
            ]
            or None,
            prune_baseline=True,
        )
        with torch.no_grad():
            gains = [
                acquisition(block[:, None])
                for block in torch.split(self._scaled(candidates), _BLOCK)
            ]
        return torch.cat(gains).numpy()

    def uncertainty(self, candidates: Floats) -> Floats:
        """The product over objectives of the posterior variance [N]."""
        with torch.no_grad():
            variance = self.model.posterior(self._scaled(candidates)).variance[
                ..., : self.objectives
            ]
        return variance.prod(dim=-1).numpy()

    def _scaled(self, features: Floats) -> Tensor:
        return torch.from_numpy((features - self._low) / self._span)


@dataclass(frozen=True, slots=True, eq=False)
class _Outcome:
    """What a Gaussian process is fitted to: (value - shift) / scale."""

    target: Tensor  # [n, 1]
    variance: Tensor | None  # [n, 1]; None if the noise is not known
    shift: float
    scale: float
    log: bool = False  # whether the value's log takes the place of the value

    @classmethod
    def objective(cls, values: Floats, errors: Floats) -> _Outcome:
        log = bool((values > 0).all())
        if log:
            errors = errors / values
            values = np.log(values)
        shift = float(values.mean())
        scale = float(values.std()) or 1.0
        known = np.isfinite(errors)
        variance = None
        if known.any():
            relative = np.where(known, errors, np.median(errors[known])) / scale
            variance = _column_tensor(np.maximum(relative, _MIN_RELATIVE_NOISE) ** 2)
        return cls(_column_tensor((values - shift) / scale), variance, shift, scale, log)

    @classmethod
    def constraint(cls, violations: Floats) -> _Outcome:
        """Not shifted: it is met at 0 or less."""
        scale = float(violations.std()) or 1.0
        return cls(_column_tensor(violations / scale), None, 0.0, scale)

    def restore(self, targets: Tensor) -> Tensor:
        values = targets * self.scale + self.shift
        return values.exp() if self.log else values


def _column_tensor(values: Floats) -> Tensor:
    return torch.from_numpy(values)[:, None]


def _column(index: int, samples: Tensor) -> Tensor:
    return samples[..., index]


def _fit(x: Tensor, outcomes: Sequence[_Outcome], columns: Sequence[slice] | None) -> ModelListGP:
    from botorch.fit import fit_gpytorch_mll
    from botorch.models.gp_regression import SingleTaskGP
    from botorch.models.model_list_gp_regression import ModelListGP
    from botorch.models.transforms.input import FilterFeatures
    from gpytorch.mlls import ExactMarginalLogLikelihood

    models = []
    for index, outcome in enumerate(outcomes):
        rows = torch.arange(len(x))
        transform = None
        if columns is not None:
            used = torch.arange(x.shape[1])[columns[index]]
            transform = FilterFeatures(used)
            rows = _first_rows(x[:, used])
        model = SingleTaskGP(
            x[rows],
            outcome.target[rows],
            None if outcome.variance is None else outcome.variance[rows],
            outcome_transform=None,
            input_transform=transform,
        )
        likelihood = ExactMarginalLogLikelihood(model.likelihood, model)
        fit_gpytorch_mll(likelihood, optimizer_kwargs={"options": {"ftol": _FIT_TOLERANCE}})
        models.append(model)
    return ModelListGP(*models)


def _first_rows(x: Tensor) -> Tensor:
    """Of the rows [n, d] that are equal, the first: what was told of settings that are known to
    have one value is one measurement.
    """
    first: dict[tuple[float, ...], int] = {}
    for row, point in enumerate(map(tuple, x.tolist())):
        first.setdefault(point, row)
    return torch.tensor(list(first.values()))


@contextmanager
def _reproducible(seed: int) -> Iterator[None]:
    """One thread, and torch's random numbers from `seed`; both are restored."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
            # BoTorch advises gradients' log acquisition, and warns of refits
            warnings.simplefilter("ignore")
            torch.manual_seed(seed)
            yield
    finally:
        torch.set_num_threads(threads)
