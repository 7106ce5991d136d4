"""What decoding costs, from timing sessions: the seconds of a batch are its prefill's plus its
passes times the cost of a pass.

The counts of passes are known exactly from every image that was generated; only the costs need a
clock. In a session vanilla and other settings are timed in turn on the same batches of captions.
Sessions of one call on one machine share its state (its memory layout, its neighbours, its
frequency): they are a sitting (see `workers.metrics.timings`). With the seconds at P passes of
setting s in sitting k, session j and unit u (a batch in one repetition), relative to a scale that
does not matter,

    log seconds[s, k, j, u] = cost[s] + sitting[s, k] + session[s, j] + unit[j, u] + noise[s, j, u]

These are random effects. That of a sitting less vanilla's there has the standard deviation omega,
that of a session tau, and the noise sigma, which is the session's own. A cost relative to vanilla's
is the mean of log seconds[s, j] - log seconds[vanilla, j]: over the sessions of a sitting weighted
by the inverse of tau^2 + 2 sigma^2 / units, and over sittings by the inverse of omega^2 + the
variance of that mean (a random-effects meta-analysis at both levels: DerSimonian and Laird 1986).
So the weight of a sitting does not grow in proportion to the number of its sessions.

- Sigma is that of the residuals of units and settings, shrunk to that of all sessions (Smyth 2004,
  but with a fixed weight): from its own few readings alone, a session that seems quiet by chance
  would weigh too much, and the more of them there are, the smaller the smallest.
- Tau is the moment estimate over all settings that several sessions of a sitting timed, shrunk to
  `ASSUMED_STATE`.
- Omega is `QUIET` or `BUSY`, by the load of the machine, times a factor: the moment estimate over
  all settings that several sittings timed, shrunk to 1. A single sitting does not tell it.

The effect of a sitting less vanilla's has a part that all settings share, because vanilla's is in
all of these differences, and a part that only settings of one shape share. `COMMON_SHARE` of the
variance is the former.

This module needs numpy alone: the results of a sweep are priced without torch.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator, Sequence
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from workers.metrics.estimate import Estimate, MetricUnavailable, Noise
from workers.metrics.readings import Floats, Session


class _Spread(NamedTuple):
    """Standard deviations from sitting to sitting on one machine, or their squares."""

    ratio: float  # of the log of a setting's seconds over vanilla's
    seconds: float  # of the log of vanilla's seconds


# What is assumed of sittings before the sessions of a sweep tell more. Quiet and busy machines are
# told apart by `workers.metrics.timings.Load`. `python -m benchmarks.speed_repeats` prints all of
# these: `QUIET` and `BUSY.seconds` as "between sittings", `BUSY.ratio` as the distance of busy
# sittings from quiet ones. They were measured on two occasions (see docs/metrics.md).
QUIET = _Spread(ratio=0.032, seconds=0.06)
BUSY = _Spread(ratio=0.052, seconds=0.2)
COMMON_SHARE = 0.9  # of omega^2, what all settings of a sitting share; by the same command
ASSUMED_STATE = 0.015  # tau, where no setting was timed in two sessions of a sitting
_ASSUMED_DOF = 2  # degrees of freedom with which each of these assumptions counts
_POOLED_DOF = 2  # degrees of freedom with which the noise of all sessions counts in each session's
_TINY = 1e-18  # variance of a clock without noise


class SittingSource(NamedTuple):
    """A source of noise that all values timed in a sitting share, those of other sweeps too."""

    sitting: str  # its name
    quantity: str  # of what: a field of `_Spread`
    shape: Hashable = None  # whose cost it changes; None: that of vanilla, and so all ratios


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
        self._differences: dict[tuple[Hashable, bytes], tuple[Floats, list[Noise]]] = {}
        self.state, self.state_dof = self._measure_state()  # tau^2
        # omega^2 over that of `QUIET` or `BUSY`
        self.sitting_factor, self.sitting_dof = self._measure_sittings()

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

    def error_in_sitting(self, shape: Hashable, sitting: str) -> float:
        """The part of the relative standard error of a pass of a shape against vanilla's that comes
        from the sessions of one sitting. More of its sessions bring this part to 0. They do not do
        so with the others: what differs from sitting to sitting, and the sessions of other ones.

        Infinite if the sitting did not time the shape.
        """
        if shape == self.vanilla:
            return 0.0
        for timed in self._weigh_sittings(shape, np.array([np.inf])):
            if timed.name == sitting:
                noises = self._noises_of_sessions(timed, shape)
                return self._estimate(np.ones(1), noises, 1, sign=1.0).noise
        return math.inf

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
        """[K] log seconds of a shape's batches minus vanilla's, and the difference's noises.
        Speed-up and latency of a trial have one, and all trials of a shape have one cost of a step.
        """
        key = (shape, passes.tobytes())
        if key not in self._differences:
            self._differences[key] = self._compare(shape, passes)
        return self._differences[key]

    def _compare(self, shape: Hashable, passes: Floats) -> tuple[Floats, list[Noise]]:
        """What `_against_vanilla` keeps."""
        total = np.zeros(len(passes))
        noises = []
        group = self._own("sitting")
        for timed in self._weigh_sittings(shape, passes):
            total += timed.weight * timed.logs
            common = SittingSource(timed.name, "ratio")
            effects = {
                common: timed.effect * math.sqrt(COMMON_SHARE),
                common._replace(shape=shape): timed.effect * math.sqrt(1 - COMMON_SHARE),
            }
            noises += [
                Noise(group, source, effect, self.sitting_dof) for source, effect in effects.items()
            ]
            noises += self._noises_of_sessions(timed, shape)
        return total, noises

    def _weigh_sittings(self, shape: Hashable, passes: Floats) -> list[_TimedSitting]:
        """What each sitting that timed a shape says of its batches against vanilla's."""
        sittings = _by_sitting(self.sessions_of(shape))
        found = [self._sitting_difference(sessions, shape, passes) for sessions in sittings]
        spreads = self.sitting_factor * np.array([_variance(each).ratio for each in sittings])
        weights = 1 / (spreads + np.array([variance for _, _, variance in found]) + _TINY)
        weights /= weights.sum()
        return [
            _TimedSitting(sessions, logs, float(weight), weight * of_sessions, weight * spread)
            for sessions, weight, spread, (logs, of_sessions, _) in zip(
                sittings, weights, np.sqrt(spreads), found, strict=True
            )
        ]

    def _noises_of_sessions(self, timed: _TimedSitting, shape: Hashable) -> list[Noise]:
        """What the sessions of a sitting add to the error of a shape against vanilla."""
        noises = []
        for weight, session in zip(timed.session_weights, timed.sessions, strict=True):
            noises += self._session_noises(session, shape, float(weight))
        return noises

    def _sitting_difference(
        self, sessions: Sequence[Session], shape: Hashable, passes: Floats
    ) -> tuple[Floats, Floats, float]:
        """[K] log seconds of a shape's batches minus vanilla's in the sessions of a sitting, the
        weights of these sessions, and the variance that sessions and noise give the difference.
        """
        logs = np.stack([self._difference(session, shape, passes) for session in sessions])
        noises = [
            self._noise_of_difference(session, shape, self._noise[session][0])
            for session in sessions
        ]
        weights = 1 / (self.state + np.array(noises) + _TINY)
        total = float(weights.sum())
        weights /= total
        return weights @ logs, weights, 1 / total

    def _session_noises(self, session: Session, shape: Hashable, weight: float) -> list[Noise]:
        """What the effect and the noise of a session of this weight add to the error of a shape
        against vanilla.
        """
        variance, dof = self._noise[session]
        spread = weight * math.sqrt(variance / session.units)
        own = spread / math.sqrt(len(session.rows(shape)))
        group = f"noise {session.name}"
        state = weight * math.sqrt(self.state)
        return [
            Noise(self._own("state"), (session.name, shape), state, self.state_dof),
            Noise(group, shape, own, dof),
            Noise(group, self.vanilla, -spread, dof),
        ]

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
        """Variance of a shape's mean log seconds minus vanilla's in a session, from the variance
        `noise` of a reading.
        """
        return noise * (1 / len(session.rows(shape)) + 1) / session.units

    def _measure_state(self) -> tuple[float, int]:
        """Variance of a log cost ratio from session to session of a sitting, and its degrees of
        freedom: each group of sessions that repeated settings link adds one less than the number
        of its sessions.
        """
        squares = _ASSUMED_DOF * ASSUMED_STATE**2
        count = float(_ASSUMED_DOF)
        linked = list[set[str]]()
        for shape, sessions in self._repeated():
            passes = np.array([np.mean([session.timed_passes(shape) for session in sessions])])
            logs = np.array([self._difference(session, shape, passes)[0] for session in sessions])
            noise = np.mean(
                [self._noise_of_difference(session, shape, session.noise) for session in sessions]
            )
            squares += float(np.square(logs - logs.mean()).sum()) - (len(logs) - 1) * float(noise)
            count += len(logs) - 1
            linked = _link(linked, {session.name for session in sessions})
        return max(0.0, squares / count), _ASSUMED_DOF + sum(len(group) - 1 for group in linked)

    def _repeated(self) -> Iterator[tuple[Hashable, list[Session]]]:
        """Each shape but vanilla's with the sessions of a sitting that timed it, if there are
        several.
        """
        for shape, sessions in self._of_shape.items():
            for sitting in _by_sitting(sessions):
                if shape != self.vanilla and len(sitting) > 1:
                    yield shape, sitting

    def _measure_sittings(self) -> tuple[float, int]:
        """Variance of a log cost ratio from sitting to sitting over the assumed one, and its
        degrees of freedom, which are counted as those of `_measure_state`.

        Settings of the same sittings share `COMMON_SHARE` of their effects, so n of them tell as
        much as n / (1 + (n - 1) COMMON_SHARE^2) that share nothing (Satterthwaite 1946): the
        variance of a sum of squares of n normal variables with this correlation is as many times
        larger.
        """
        repeated = list[set[str]]()
        # of each shape: a sitting, the sum of squares, and their number
        excesses = list[tuple[str, float, int]]()
        for shape, sessions in self._of_shape.items():
            sittings = _by_sitting(sessions)
            if shape == self.vanilla or len(sittings) < 2:
                continue
            passes = np.array([np.mean([session.timed_passes(shape) for session in sessions])])
            found = [self._sitting_difference(each, shape, passes) for each in sittings]
            logs = np.array([values[0] for values, _, _ in found])
            explained = float(np.mean([variance for _, _, variance in found]))
            assumed = float(np.mean([_variance(each).ratio for each in sittings]))
            excess = float(np.square(logs - logs.mean()).sum()) - (len(logs) - 1) * explained
            names = {each[0].sitting for each in sittings}
            excesses.append((min(names), excess / assumed, len(logs) - 1))
            repeated = _link(repeated, names)
        squares = count = float(_ASSUMED_DOF)
        for names in repeated:
            own = [(square, number) for name, square, number in excesses if name in names]
            share = 1 / (1 + (len(own) - 1) * COMMON_SHARE**2)
            squares += share * math.fsum(square for square, _ in own)
            count += share * sum(number for _, number in own)
        dof = _ASSUMED_DOF + sum(len(names) - 1 for names in repeated)
        return max(0.0, squares / count), dof

    @cached_property
    def _level(self) -> tuple[float, list[Noise]]:
        """Vanilla's mean log seconds of a batch, the mean over sittings, and the noises of that
        mean: vanilla's in each session, the effects of sessions (of the units, if no sitting has
        several sessions), and the effects of sittings.
        """
        sittings = _by_sitting(self.sessions_of(self.vanilla))
        has_several = any(len(sessions) > 1 for sessions in sittings)
        readings = []  # of each sitting
        noises = []
        for sessions in sittings:
            logs = []
            for session in sessions:
                passes = np.array([session.timed_passes(self.vanilla)])
                logs.append(session.log_seconds(self.vanilla, passes)[0])
                variance, dof = self._noise[session]
                effect = math.sqrt(variance / session.units) / len(sessions) / len(sittings)
                noises.append(Noise(f"noise {session.name}", self.vanilla, effect, dof))
            readings.append(np.array([units.mean() for units in logs]) if has_several else logs[0])
        explained = math.fsum(noise.effect**2 for noise in noises)
        dof = sum(len(part) - 1 for part in readings)
        pooled = math.fsum(float(np.square(part - part.mean()).sum()) for part in readings) / dof
        within = pooled * math.fsum(1 / len(part) for part in readings) / len(readings) ** 2
        unexplained = math.sqrt(max(0.0, within - explained))
        means = np.array([part.mean() for part in readings])
        noises.append(Noise(self._own("level"), "vanilla", unexplained, dof))
        noises += self._level_noises(sittings, means, max(within, explained))
        return float(means.mean()), noises

    def _level_noises(
        self, sittings: Sequence[Sequence[Session]], means: Floats, within: float
    ) -> list[Noise]:
        """What each sitting adds to the error of vanilla's log seconds.

        Args:
            sittings: the sessions of each.
            means: vanilla's mean log seconds in each sitting.
            within: the variance of the mean of these means from what differs within sittings.
        """
        count = len(means)
        assumed = [_variance(sessions).seconds for sessions in sittings]
        excess = float(np.square(means - means.mean()).sum()) - (count - 1) * count * within
        dof = _ASSUMED_DOF + count - 1
        factor = max(0.0, (_ASSUMED_DOF + excess / float(np.mean(assumed))) / dof)
        group = self._own("level of sittings")
        return [
            Noise(
                group,
                SittingSource(sessions[0].sitting, "seconds"),
                math.sqrt(factor * variance) / count,
                dof,
            )
            for sessions, variance in zip(sittings, assumed, strict=True)
        ]


class _TimedSitting(NamedTuple):
    """What a sitting says of a shape against vanilla."""

    sessions: Sequence[Session]
    logs: Floats  # [K] log seconds of the shape's batches minus vanilla's
    weight: float  # among the sittings
    session_weights: Floats  # of its sessions among those of all sittings
    effect: float  # on the mean over sittings, of a standard deviation between them

    @property
    def name(self) -> str:
        return self.sessions[0].sitting


def _by_sitting(sessions: Iterable[Session]) -> list[list[Session]]:
    """Sessions by their sittings, in the order of the first ones."""
    found: dict[str, list[Session]] = {}
    for session in sessions:
        found.setdefault(session.sitting, []).append(session)
    return list(found.values())


def _variance(sessions: Sequence[Session]) -> _Spread:
    """The assumed variances from sitting to sitting, for the sessions of one: the mean over those
    on a quiet and on a busy machine.
    """
    busy = sum(session.is_busy for session in sessions) / len(sessions)
    ratio = busy * BUSY.ratio**2 + (1 - busy) * QUIET.ratio**2
    seconds = busy * BUSY.seconds**2 + (1 - busy) * QUIET.seconds**2
    return _Spread(ratio, seconds)


def _link(groups: Sequence[set[str]], names: set[str]) -> list[set[str]]:
    """The groups with these names as one more, joined with those that have a name of it."""
    joined = names.union(*(group for group in groups if group & names))
    return [group for group in groups if not group & names] + [joined]


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
