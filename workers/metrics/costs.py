"""What decoding costs, from timing sessions: the seconds of a batch are its prefill's plus its
passes times the cost of a pass.

The counts of passes are known exactly from every image that was generated; only the costs need a
clock. In a session vanilla and other settings are timed in turn on the same batches of captions.
With the seconds at P passes of setting s in session j on unit u (a batch in one repetition),
relative to a scale that does not matter,

    log seconds[s, j, u] = cost[s] + state[s, j] + moment[j, u] + noise[s, j, u]

`state`, the machine's own from session to session, has the standard deviation tau, `noise` the
sigma of its session. A cost relative to vanilla's is the mean of log seconds[s, j] - log
seconds[vanilla, j] over the sessions that timed s, weighted by the inverse of tau^2 + 2 sigma^2 /
units (a random-effects meta-analysis: DerSimonian and Laird 1986). Sigma is that of the residuals
of units and settings, shrunk to that of all sessions (Smyth 2004, but with a fixed weight): from
its own few readings alone, a session that seems quiet by chance would weigh too much, and the more
of them there are, the smaller the smallest. Tau is the moment estimate over all settings that
several sessions timed, shrunk to `ASSUMED_STATE`.

This module needs numpy alone: the results of a sweep are priced without torch.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from workers.metrics.estimate import Estimate, MetricUnavailable, Noise

Floats = NDArray[np.float64]
ASSUMED_STATE = 0.015  # tau before a setting was timed in two sessions
_ASSUMED_DOF = 2  # degrees of freedom with which the assumed tau counts
_POOLED_DOF = 2  # degrees of freedom with which the noise of all sessions counts in each session's
_TINY = 1e-18  # variance of a clock without noise


@dataclass(frozen=True, eq=False)
class Session:
    """The readings of a timing session at one batch size: S settings on each of U units."""

    name: str
    shapes: tuple[Hashable, ...]  # [S] what the costs of each setting depend on, vanilla's first
    settings: tuple[str, ...]  # [S] digests of their configs
    prefill: Floats  # [S, U] seconds of the prefill
    per_pass: Floats  # [S, U] seconds of a pass after the prefill
    passes: Floats  # [S, U] number of these passes
    seconds: Floats  # [S, U] seconds of all

    def __post_init__(self) -> None:
        """Raises MetricUnavailable for a single unit, whose noise is not known."""
        if self.units < 2:
            raise MetricUnavailable(
                f"{self.name}: a single batch of captions was timed once, but a standard error "
                "needs at least 2: raise timing.images"
            )

    @property
    def units(self) -> int:
        return int(self.prefill.shape[1])

    def rows(self, shape: Hashable) -> list[int]:
        """The settings of a shape."""
        return [row for row, other in enumerate(self.shapes) if other == shape]

    def log_seconds(self, shape: Hashable, passes: Floats) -> Floats:
        """Log seconds [K, U] of a shape at numbers of passes [K], the mean over its settings. An
        infinite number of passes stands for one pass without the prefill.
        """
        rows = self.rows(shape)
        counts = passes[:, None, None]
        prefill = np.where(np.isinf(counts), 0.0, self.prefill[rows])
        seconds = prefill + np.where(np.isinf(counts), 1.0, counts) * self.per_pass[rows]
        mean: Floats = np.log(seconds).mean(axis=1)
        return mean

    def timed_passes(self, shape: Hashable) -> float:
        """The mean number of passes of a timed batch."""
        return float(self.passes[self.rows(shape)].mean())

    @property
    def noise_dof(self) -> int:
        return max(1, len(self.prefill) - 1) * (self.units - 1)

    @cached_property
    def noise(self) -> float:
        """Variance of a log reading that neither its setting nor its unit explains; with a single
        setting, the variance over units.
        """
        logs = np.log(self.prefill + self.passes.mean(axis=1, keepdims=True) * self.per_pass)
        rest = logs - logs.mean(axis=1, keepdims=True)
        if len(logs) > 1:
            rest = rest - rest.mean(axis=0)
        return float(np.square(rest).sum()) / self.noise_dof


class Prices:
    """The costs of settings on one device at one batch size, from all sessions there (see the
    module). Costs are relative to those of the shape `vanilla`.
    """

    def __init__(self, sessions: Sequence[Session], vanilla: Hashable) -> None:
        self.sessions = tuple(sorted(sessions, key=lambda session: session.name))
        self.vanilla = vanilla
        self._of_shape: defaultdict[Hashable, list[Session]] = defaultdict(list)
        for session in self.sessions:
            for shape in dict.fromkeys(session.shapes):
                self._of_shape[shape].append(session)
        self._noise = _shrink_noises(self.sessions)
        self.state, self.state_dof = self._measure_state()

    def __contains__(self, shape: object) -> bool:
        return shape in self._of_shape

    def sessions_of(self, shape: Hashable) -> tuple[Session, ...]:
        """The sessions that timed a shape. Raises MetricUnavailable if there are none."""
        if shape not in self._of_shape:
            raise MetricUnavailable("its shape was not timed")
        return tuple(self._of_shape[shape])

    def speedup(self, shape: Hashable, passes: Floats, n: int) -> Estimate:
        """Vanilla's seconds over a shape's.

        Args:
            shape: what the costs of the setting depend on.
            passes: [1 + G] mean passes of a batch: first over all captions, then without each block
                of captions (see `batch_passes`).
            n: number of images.

        Raises:
            MetricUnavailable: the shape was not timed.
        """
        if shape == self.vanilla:
            self.sessions_of(shape)
            return Estimate.from_replicates(np.ones(len(passes)), n)
        logs, noises = self._against_vanilla(shape, passes)
        return self._estimate(np.exp(-logs), noises, n, sign=-1.0)

    def latency(self, shape: Hashable, passes: Floats, n: int, batch: int) -> Estimate:
        """Seconds per image at a batch size: vanilla's in all sessions, over the speed-up.

        The other arguments are those of `speedup`. What vanilla's noise in a session adds to its
        seconds, the speed-up takes off again.
        """
        level, noises = self._level
        logs = np.zeros(len(passes))
        if shape != self.vanilla:
            logs, own = self._against_vanilla(shape, passes)
            noises = [*noises, *own]
        return self._estimate(np.exp(level + logs) / batch, noises, n, sign=1.0)

    def step_cost(self, shape: Hashable) -> Estimate:
        """Seconds of a pass, with all that belongs to it, over those of a pass of vanilla; `n`
        counts timed units.
        """
        n = sum(session.units for session in self.sessions_of(shape))
        if shape == self.vanilla:
            return Estimate(1.0, 0.0, n)
        logs, noises = self._against_vanilla(shape, np.array([np.inf]))
        return self._estimate(np.exp(logs), noises, n, sign=1.0)

    @staticmethod
    def _estimate(values: Floats, noises: Sequence[Noise], n: int, sign: float) -> Estimate:
        """The estimate of a value whose logarithm has these noises; several effects of one source
        are added.
        """
        effects = defaultdict[tuple[Hashable, Hashable, int], float](float)
        for group, source, effect, dof in noises:
            effects[group, source, dof] += sign * values[0] * effect
        summed = [
            Noise(group, source, effect, dof) for (group, source, dof), effect in effects.items()
        ]
        return Estimate.from_replicates(values, n, summed)

    def _against_vanilla(self, shape: Hashable, passes: Floats) -> tuple[Floats, list[Noise]]:
        """[K] log seconds of a shape's batches minus vanilla's, and the difference's noises."""
        sessions = self.sessions_of(shape)
        logs = np.stack([self._difference(session, shape, passes) for session in sessions])
        variances = [
            self._noise_of_difference(session, shape, self._noise[session][0])
            for session in sessions
        ]
        weights = 1 / (self.state + np.array(variances) + _TINY)
        weights /= weights.sum()
        noises = []
        for weight, session in zip(weights, sessions, strict=True):
            variance, dof = self._noise[session]
            spread = weight * math.sqrt(variance / session.units)
            own = spread / math.sqrt(len(session.rows(shape)))
            group = f"noise {session.name}"
            noises += [
                Noise(
                    self._own("state"),
                    (session.name, shape),
                    weight * math.sqrt(self.state),
                    self.state_dof,
                ),
                Noise(group, shape, own, dof),
                Noise(group, self.vanilla, -spread, dof),
            ]
        return weights @ logs, noises

    def _own(self, source: str) -> str:
        """The name of a source of noise that prices on another device, or at another batch size, do
        not share.
        """
        return f"{source} {self.sessions[0].name}"

    def _difference(self, session: Session, shape: Hashable, passes: Floats) -> Floats:
        """[K] log seconds of a shape's batches minus vanilla's in a session."""
        counts = np.where(np.isinf(passes), np.inf, session.timed_passes(self.vanilla))
        difference = session.log_seconds(shape, passes) - session.log_seconds(self.vanilla, counts)
        mean: Floats = difference.mean(axis=1)
        return mean

    @staticmethod
    def _noise_of_difference(session: Session, shape: Hashable, noise: float) -> float:
        """Variance of a shape's mean log seconds minus vanilla's, given the state of a session and
        the variance `noise` of a reading.
        """
        return noise * (1 / len(session.rows(shape)) + 1) / session.units

    def _measure_state(self) -> tuple[float, int]:
        """Variance of a log cost ratio from session to session, and its degrees of freedom: each
        group of sessions that repeated settings link adds one less than the number of its sessions.
        """
        squares = _ASSUMED_DOF * ASSUMED_STATE**2
        count = float(_ASSUMED_DOF)
        linked = list[set[str]]()
        for shape, sessions in self._of_shape.items():
            if shape == self.vanilla or len(sessions) < 2:
                continue
            passes = np.array([np.mean([session.timed_passes(shape) for session in sessions])])
            logs = np.array([self._difference(session, shape, passes)[0] for session in sessions])
            noise = np.mean(
                [self._noise_of_difference(session, shape, session.noise) for session in sessions]
            )
            squares += float(np.square(logs - logs.mean()).sum()) - (len(logs) - 1) * float(noise)
            count += len(logs) - 1
            names = {session.name for session in sessions}
            names = names.union(*(group for group in linked if group & names))
            linked = [group for group in linked if not group & names] + [names]
        return max(0.0, squares / count), _ASSUMED_DOF + sum(len(group) - 1 for group in linked)

    @cached_property
    def _level(self) -> tuple[float, list[Noise]]:
        """Vanilla's mean log seconds of a batch, and the noises of that mean: vanilla's own in each
        session, and what else makes sessions differ (with a single session, its units).
        """
        sessions = self.sessions_of(self.vanilla)
        readings = []
        noises = []
        for session in sessions:
            passes = np.array([session.timed_passes(self.vanilla)])
            readings.append(session.log_seconds(self.vanilla, passes)[0])
            variance, dof = self._noise[session]
            effect = math.sqrt(variance / session.units) / len(sessions)
            noises.append(Noise(f"noise {session.name}", self.vanilla, effect, dof))
        logs = readings[0]
        if len(readings) > 1:
            logs = np.array([units.mean() for units in readings])
        explained = math.fsum(noise.effect**2 for noise in noises)
        variance = float(logs.var(ddof=1)) / len(logs) - explained
        rest = Noise(self._own("level"), "vanilla", math.sqrt(max(0.0, variance)), len(logs) - 1)
        return float(logs.mean()), [*noises, rest]


def _shrink_noises(sessions: Sequence[Session]) -> dict[Session, tuple[float, int]]:
    """Variance of a log reading in each session, and its degrees of freedom: the session's own, and
    up to `_POOLED_DOF` of those of the other sessions.
    """
    total = sum(session.noise_dof for session in sessions)
    noises = dict[Session, tuple[float, int]]()
    pooled = sum(session.noise_dof * session.noise for session in sessions) / max(1, total)
    for session in sessions:
        own = session.noise_dof
        added = min(_POOLED_DOF, total - own)
        dof = own + added
        noises[session] = ((own * session.noise + added * pooled) / dof, dof)
    return noises


def expected_max(values: Floats, size: int) -> float:
    """Mean of the largest of `size` values (at most n), over all ways to choose so many of [n].

    Of the sorted values, the i-th of n is the largest in C(i - 1, size - 1) of C(n, size) choices.
    """
    ordered = np.sort(np.asarray(values, dtype=np.float64))
    size = min(size, len(values))
    rank = np.arange(size, len(ordered) + 1, dtype=np.float64)
    logs = [math.lgamma(r) - math.lgamma(r - size + 1) for r in rank]
    weights = np.exp(np.array(logs) - max(logs))
    weights /= weights.sum()
    # exact if all values are equal
    return float(ordered[-1] - weights @ (ordered[-1] - ordered[size - 1 :]))


def batch_passes(passes: Floats, blocks: NDArray[np.int64], batch: int) -> Floats:
    """Mean passes [1 + G] of a batch of images, which ends with its longest one: first over all
    images, then without each block.

    Args:
        passes: [n] passes of each image.
        blocks: [n] block of captions of each image.
        batch: images of a batch.
    """
    kept = [passes, *(passes[blocks != block] for block in range(int(blocks.max()) + 1))]
    return np.array([expected_max(part, batch) for part in kept])
