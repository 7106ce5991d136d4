"""Errors of several trials together: what they share cancels in a difference, and moves all of them
in a sample.

Trials of a sweep generate images for the same captions with the same random numbers, trials of one
shape share the costs of a step, and all that were timed in a session, or in a sitting (of several
sweeps, too), share what vanilla cost there. So the errors of their metrics are correlated, and the
error of a difference is not the root of the sum of squares. A value is modelled as

    value + sum_g z_g sqrt((G - 1) / G) (v_g - mean v) + sum_s z_s noise_s

with independent standard normal z: one for each block of captions, whose jackknife replicates are
v_g, and one for each source of noise in the costs (see `workers.metrics.costs`). The variances and
covariances of the first part are those of the delete-a-group jackknife (Shao and Tu 1995, section
2.3). A value without replicates has an error of its own.

These variances are estimates: of 24 blocks, or of a few timing sessions. So tests and samples use
Student's t: a z is divided by an independent sqrt(chi-square / dof) of its group: all blocks of
captions, or sources that were estimated together.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from itertools import product
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from orchestrator.front.pareto import LEVEL, SAMPLES, Bools, Floats
from orchestrator.store.identity import Identity
from orchestrator.store.lossless import OwnedSource
from orchestrator.store.records import TrialRecord
from search_spaces.constraints import split_batch
from workers.metrics.definition import Direction, Metric
from workers.metrics.estimate import Estimate, Noise

# the share of a normal variable within its standard deviation
_ONE_SIGMA = 2 * NormalDist().cdf(1) - 1


def directions(metrics: Sequence[Metric]) -> list[Direction]:
    return [metric.direction for metric in metrics]


def values_of(records: Sequence[TrialRecord], metrics: Sequence[Metric]) -> Floats:
    """The trials' values [records, metrics]; NaN where a trial lacks one."""
    missing = Estimate(np.nan, np.inf, 0)
    values = [
        record.metrics.get(metric.name, missing).value for record in records for metric in metrics
    ]
    return np.array(values, dtype=np.float64).reshape(len(records), len(metrics))


@dataclass(frozen=True, slots=True, eq=False)
class JointErrors:
    """The values of n trials in m metrics, and the errors that they share."""

    values: Floats  # [n, m]; NaN where a trial lacks the metric
    # [n, m, k]: change of the value per standard deviation of each of k independent error sources
    effects: Floats
    # [k]: `("captions", captions, block)` of blocks of captions; of noise in costs, and in values
    # that lossless settings share, tuples that end in the source of the noise (see `Noise`)
    sources: tuple[tuple[Hashable, ...], ...]
    groups: NDArray[np.int64]  # [k]: -1 for blocks of captions, and from 0 those of noise in costs
    group_dof: Floats  # degrees of freedom of each group of noise in costs
    own: Floats  # [n, m]: standard error that no other value shares; NaN if the error is unknown
    dof: Floats  # [n, m]: degrees of freedom of the blocks' part; infinite without replicates
    own_dof: Floats  # [n, m]: degrees of freedom of `own`; infinite if not stated

    @classmethod
    def of(
        cls,
        records: Sequence[TrialRecord],
        metrics: Sequence[Metric],
        identities: Sequence[Identity] = (),
    ) -> JointErrors:
        """The errors of trials' metrics.

        identities: the sweep of each trial, if there are several. Sweeps of the same captions share
        their blocks.
        """
        columns: dict[tuple[Hashable, ...], int] = {}  # by source of error
        groups: dict[tuple[Hashable, ...], float] = {}  # degrees of freedom
        group_of: dict[int, int] = {}  # by column
        same: list[Hashable] = [None] * len(records)
        captions = [identity.caption_set for identity in identities] or same
        sweeps = [(identity.name, identity.id) for identity in identities] or same
        found = []  # of (trial, metric, column, effect)
        values = values_of(records, metrics)
        own = np.full(values.shape, np.nan)
        dof = np.full(values.shape, np.inf)
        own_dof = np.full(values.shape, np.inf)
        for i, j in product(range(len(records)), range(len(metrics))):
            record = records[i]
            metric = metrics[j]
            if metric.name not in record.metrics:
                continue
            entry = record.metrics[metric.name]
            effects: dict[tuple[Hashable, ...], float] = {
                ("captions", captions[i], block): float(effect)
                for block, effect in enumerate(block_effects(entry))
            }
            for noise in noises_of(record, metric):
                owned = noise.source
                if not isinstance(owned, OwnedSource):
                    owned = OwnedSource(sweeps[i], owned)
                group = ("costs", owned.sweep, noise.group)
                source = (*group, owned.key)
                effects[source] = noise.effect
                # sweeps that share sittings may know their standard deviations differently well
                groups[group] = min(groups.get(group, np.inf), noise.dof or np.inf)
                group_of[columns.setdefault(source, len(columns))] = list(groups).index(group)
            found += [
                (i, j, columns.setdefault(key, len(columns)), effect)
                for key, effect in effects.items()
            ]
            if np.isfinite(entry.error):
                unshared = entry.error**2 - sum(effect**2 for effect in effects.values())
                own[i, j] = np.sqrt(unshared) if unshared > 1e-9 * entry.error**2 else 0.0
            if entry.replicates:
                dof[i, j] = len(entry.replicates) - 1
            own_dof[i, j] = entry.error_dof or (0 if record.shape else entry.noise_dof) or np.inf
        dense = np.zeros((*values.shape, len(columns)))
        for i, j, column, effect in found:
            dense[i, j, column] = effect
        kinds = np.array([group_of.get(column, -1) for column in range(len(columns))], np.int64)
        group_dof = np.array(list(groups.values()), dtype=np.float64)
        return cls(values, dense, tuple(columns), kinds, group_dof, own, dof, own_dof)

    def samples(self, count: int = SAMPLES, seed: int = 0) -> Floats:
        """Samples [count, n, m] of all values together. A value whose error is unknown is taken as
        exact.
        """
        rng = np.random.default_rng(seed)
        blocks = self.groups < 0
        z = rng.standard_normal((count, len(blocks)))
        flat = self._flat_effects
        scales = _student_scale(1 - rng.random((count, len(self.group_dof))), self.group_dof)
        costs = z[:, ~blocks] * scales[:, self.groups[~blocks]]
        by_blocks = (z[:, blocks] @ flat[:, blocks].T).reshape(count, *self.values.shape)
        by_blocks *= _student_scale(1 - rng.random((count, 1, 1)), self.dof)
        samples: Floats = (
            self.values + by_blocks + (costs @ flat[:, ~blocks].T).reshape(by_blocks.shape)
        )
        own = np.nan_to_num(self.own)
        if own.any():
            scale = _student_scale(1 - rng.random(samples.shape), self.own_dof)
            samples += own * scale * rng.standard_normal(samples.shape)
        return samples

    def covariance(self) -> Floats:
        """The covariance of all values [n m, n m]."""
        flat = self._flat_effects
        covariance: Floats = flat @ flat.T + np.diag(np.nan_to_num(self.own).ravel() ** 2)
        return covariance

    @property
    def _flat_effects(self) -> Floats:
        """The effects [n m, k]."""
        return self.effects.reshape(self.values.size, self.effects.shape[2])

    def difference(self, a: int, b: int | NDArray[np.int64]) -> tuple[Floats, Floats, Floats]:
        """Trial a minus trial b: the difference [m], its standard error [m] (NaN: unknown), and its
        degrees of freedom [m], for Student's t: of all sources together (Welch 1947, Satterthwaite
        1946). Minus several: [trials, m] each.
        """
        squares = np.square(self.effects[a] - self.effects[b])
        blocks = squares[..., self.groups < 0].sum(axis=-1)
        # [..., m, groups]
        costs = squares @ (self.groups[:, None] == np.arange(len(self.group_dof)))
        is_other = np.not_equal(a, b)[..., None]
        own = [np.where(is_other, np.square(self.own[trial]), 0.0) for trial in (a, b)]
        variance = blocks + costs.sum(axis=-1) + own[0] + own[1]
        spread = blocks**2 / np.minimum(self.dof[a], self.dof[b]) + (costs**2 / self.group_dof).sum(
            axis=-1
        )
        spread += own[0] ** 2 / self.own_dof[a] + own[1] ** 2 / self.own_dof[b]
        dof = np.divide(variance**2, spread, out=np.full(variance.shape, np.inf), where=spread > 0)
        return self.values[a] - self.values[b], np.sqrt(variance), dof

    def differ(self, a: int, b: int | NDArray[np.int64], level: float = LEVEL) -> Bools:
        """Test in which metrics [m] two trials differ: a two-sided t test of each difference at
        `level`. Of a trial and several others: [trials, m].

        No correction for multiple tests. False where an error is unknown.
        """
        difference, error, dof = self.difference(a, b)
        # NaN compares as False
        differs: Bools = np.abs(difference) > critical_t(dof, level) * error
        return differs


def noises_of(record: TrialRecord, metric: Metric) -> Sequence[Noise]:
    """The sources of noise of a trial's value. Where they are not known, that is its shape's costs
    on a device, which make all of its trials slower together. A slower step is worse, whichever way
    the metric counts.
    """
    entry = record.metrics[metric.name]
    if entry.noises or not (record.shape and entry.noise):
        return entry.noises
    effect = -entry.noise if metric.direction == "maximize" else entry.noise
    costs = (record.shape, record.device, split_batch(metric.name)[1])
    return [Noise(costs, costs, effect, entry.noise_dof)]


def critical_t(dof: NDArray[np.float64], level: float = LEVEL) -> Floats:
    """The two-sided critical value of Student's t; normal for infinite degrees of freedom."""
    from scipy.special import ndtri, stdtrit  # the import takes a part of a second

    p = 1 - level / 2
    finite = np.isfinite(dof)
    critical: Floats = np.where(finite, stdtrit(np.where(finite, dof, 1.0), p), ndtri(p))
    return critical


def degrees_of_freedom(entry: Estimate) -> float:
    """The degrees of freedom of a value's error, from blocks, step costs and the rest (Welch,
    Satterthwaite).
    """
    blocks = float(np.square(block_effects(entry)).sum())
    noise = entry.noise**2
    total = (entry.known_error or 0.0) ** 2
    own = max(0.0, total - blocks - noise) if entry.error_dof else 0.0
    parts = [(blocks, len(entry.replicates) - 1), (noise, entry.noise_dof), (own, entry.error_dof)]
    spread = sum(part**2 / dof for part, dof in parts if dof > 0)
    return total**2 / spread if spread else np.inf


def standard_error(samples: Floats) -> float:
    """The spread of samples [count] as a standard error: half of the central 68.3 %. Their standard
    deviation may not exist, because Student's t has none with two degrees of freedom or fewer.
    """
    low, high = np.quantile(samples, [(1 - _ONE_SIGMA) / 2, (1 + _ONE_SIGMA) / 2])
    return float(high - low) / 2


def _student_scale(uniforms: Floats, dof: Floats) -> Floats:
    """Samples of sqrt(dof / chi-square) with `dof` degrees of freedom, quantiles at `uniforms` in
    (0, 1]; 1 for infinite dof. The two broadcast.
    """
    from scipy.special import gammaincinv  # the import takes a part of a second

    scales: Floats = np.ones(np.broadcast_shapes(uniforms.shape, dof.shape))
    for value in np.unique(dof[np.isfinite(dof)]):
        scales = np.where(
            dof == value, np.sqrt(value / 2 / gammaincinv(value / 2, uniforms)), scales
        )
    return scales


def block_effects(entry: Estimate) -> Floats:
    """Change [G] of a value per standard deviation of each block of captions; empty without
    replicates.
    """
    replicates = np.array(entry.replicates, dtype=np.float64)
    count = len(replicates)
    if not count:
        return replicates
    effects: Floats = np.sqrt((count - 1) / count) * (replicates - replicates.mean())
    return effects
