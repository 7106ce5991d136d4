"""How often racing stops the wrong candidate, and what it saves: simulated sweeps whose truth is
known.

    python -m benchmarks.racing [--sweeps 1000] [--scenarios spread] [--earlier 0 400]

Every simulated sweep has 48 trials with 192 captions each, rungs of 24, 48 and 96 captions, and 4
trials in flight. An image has a cost (a mean, as the speed is) and 8 features; the second objective
is the squared distance of the features' mean to the reference's. Like fid it is biased upwards by
trace(covariance) / n, by another amount for every trial. Captions add the same to all trials;
groups of trials share another part of their noise, which has Student's t with 5 degrees of freedom.
Scenarios:

 front      trials on a trade-off curve, worse ones at many distances behind it, and one tie in six
 ties       all trials are equal
 half tied  every trial is far better in one objective than all later ones and ties in the other:
            the worst case
 skewed     half tied, with lognormal noise
 searched   half tied; a new trial is a variant of the best one so far by measured values, with half
            of its noise
 spread     half tied in a Frechet distance with 21 features: 24 captions barely measure a
            covariance, and trials that differ from the reference by their mean tie with others that
            differ by their spread
 in order   half tied over all captions, but a trial's own noise drifts along them (an
            autoregressive process), as it does over requests in the order of their times: the
            assumption of a race is broken
 shuffled   the same, with the captions in random order

`--earlier`: as many trials of an earlier sweep come first, on the same captions. Those on its front
by measured values, which are the lucky ones, are enqueued in the new sweep and rivals of its
trials, as `launch --from` does.

A stop is wrong if no trial is better in both objectives. `rate` is the share of sweeps with any
wrong stop, with its 95 % interval (Clopper and Pearson), and must be at most `error_rate` in all
scenarios but `in order`. `gap` is the true distance to the strongest trial that had finished
before, in its closer objective, in standard errors of the paired difference over all captions.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise, product

import numpy as np
from numpy.typing import NDArray
from scipy.stats import beta

from orchestrator.front.pareto import nondominated
from orchestrator.run.race import Race, Scores

Floats = NDArray[np.float64]

SPREAD, IN_ORDER, SHUFFLED = "spread", "in order", "shuffled"
SCENARIOS = ("front", "ties", "half tied", "skewed", "searched", SPREAD, IN_ORDER, SHUFFLED)
RUNGS, CAPTIONS, TRIALS, PARALLEL, BLOCKS = (24, 48, 96), 192, 48, 4, 24
ERROR_RATE = 0.05
GAPS = (0.0, 1.0, 2.0, 4.0, 6.0, 8.0, 12.0, 16.0, np.inf)
_DIM, _GROUPS, _SHARED = 8, 6, 0.5
_PERSISTENCE = 0.6  # correlation of neighbouring captions' noise where it drifts
_SPREAD = 0.15  # of an image's cost and features
_CAPTIONS_SPREAD = 0.2  # of what a caption adds to all trials
# of the scenario SPREAD, with the distance of all trials
_FRECHET_DIM, _REFERENCE_SPREAD, _FRECHET = 21, 0.3, 1.1


@dataclass(frozen=True, slots=True, eq=False)
class Simulation:
    """truth: [trials, 2]. images: [captions, trials, 1 + features], an image's cost and features.

    frechet: the second objective is the Frechet distance to a normal distribution with the mean 0
    and _REFERENCE_SPREAD in all features. earlier: the number of trials of an earlier sweep, which
    come first.
    """

    truth: Floats
    images: Floats
    frechet: bool = False
    earlier: int = 0

    @property
    def better(self) -> NDArray[np.bool_]:
        """[trials, trials]: whether the second is better than the first in both objectives."""
        better: NDArray[np.bool_] = np.all(self.truth[:, None] > self.truth[None] + 1e-12, axis=2)
        return better

    def scores(self, trial: int, captions: int) -> Scores:
        """One trial on the first captions; caption c is in block c mod BLOCKS."""
        values, replicates = self.replicates(trial, captions)
        return Scores.from_replicates(values, replicates)

    def replicates(self, trial: int, captions: int) -> tuple[Floats, Floats]:
        """The two objectives, [2], and their replicates without each block, [2, BLOCKS]."""
        rows = self.images[:captions, trial].reshape(-1, BLOCKS, self.images.shape[2])
        sums, counts = (
            _with_left_out(rows.sum(axis=0)),
            np.array([captions, *[captions - len(rows)] * BLOCKS]),
        )
        means = sums / counts[:, None]
        distances = (means[:, 1:] ** 2).sum(axis=1)
        if self.frechet:
            products = _with_left_out(np.einsum("cbi,cbj->bij", rows[..., 1:], rows[..., 1:]))
            outer = np.einsum("bi,bj->bij", means[:, 1:], means[:, 1:])
            covariances = (products - counts[:, None, None] * outer) / (counts - 1)[:, None, None]
            spreads = np.sqrt(np.linalg.eigvalsh(covariances).clip(min=0))
            distances += ((spreads - _REFERENCE_SPREAD) ** 2).sum(axis=1)
        values = np.stack([means[:, 0], distances])
        return values[:, 0], values[:, 1:]

    @property
    def earlier_front(self) -> list[int]:
        """The trials of the earlier sweep that are on its front, by their values on all
        captions.
        """
        values = np.array([self.replicates(trial, CAPTIONS)[0] for trial in range(self.earlier)])
        return np.flatnonzero(nondominated(values, ("minimize", "minimize"))).tolist()

    def gaps(self) -> Floats:
        """[trials] the gap to the strongest rival (see above), 0 where none is better."""
        found = np.zeros(len(self.truth))
        for trial, better in enumerate(self.better):
            own = self.scores(trial, CAPTIONS).blocks
            for rival in np.flatnonzero(better[: max(0, trial - PARALLEL + 1)]).tolist():
                differences = np.subtract(own, self.scores(rival, CAPTIONS).blocks)
                error = differences.std(axis=0, ddof=1) / np.sqrt(BLOCKS)
                found[trial] = max(
                    found[trial], ((self.truth[trial] - self.truth[rival]) / error).min()
                )
        return found


@dataclass(frozen=True, slots=True, eq=False)
class Outcome:
    """One sweep. stopped: [trials], the captions at which a trial stopped, or 0."""

    simulation: Simulation
    stopped: NDArray[np.int64]

    @property
    def is_wrong(self) -> bool:
        return bool(((self.stopped > 0) & ~self.simulation.better.any(axis=1)).any())

    @property
    def saved(self) -> float:
        """Share of the images of the new sweep's own trials."""
        stopped = self.stopped[self.simulation.earlier :]
        return float(1 - np.where(stopped > 0, stopped, CAPTIONS).mean() / CAPTIONS)


def _with_left_out(sums: Floats) -> Floats:
    """Sums [1 + BLOCKS, ...] over all blocks, and over all but each, from sums over each block."""
    total = sums.sum(axis=0, keepdims=True)
    return np.concatenate([total, total - sums])


def simulate(scenario: str, seed: int, earlier: int = 0) -> Simulation:
    """The images of one sweep and of an earlier one with so many trials, from one of SCENARIOS.

    Raises:
        ValueError: no such scenario.
    """
    if scenario not in SCENARIOS:
        raise ValueError(f"use one of {', '.join(SCENARIOS)}, got {scenario!r}")
    rng = np.random.default_rng([SCENARIOS.index(scenario), seed])
    trials = earlier + TRIALS
    truth = _truth(scenario, rng, trials)
    if scenario == SPREAD:
        return _simulate_spread(truth, rng, earlier)
    shape = (CAPTIONS, trials, 1 + _DIM)
    own = (
        np.exp(rng.standard_normal(shape)) - np.exp(0.5)
        if scenario == "skewed"
        else rng.standard_t(5, shape)
    )
    own /= np.sqrt(np.e * (np.e - 1)) if scenario == "skewed" else np.sqrt(5 / 3)
    if scenario in (IN_ORDER, SHUFFLED):
        own = _drifting(own)
        own = rng.permutation(own) if scenario == SHUFFLED else own
    # covariances, so biases
    noise = _SPREAD * rng.uniform(0.7, 1.4, (trials, 1)) * _shared(own, _GROUPS, _SHARED, rng)
    noise += _CAPTIONS_SPREAD * rng.standard_normal((CAPTIONS, 1, 1 + _DIM))
    if scenario == "searched":
        _follow_the_best(noise, truth)
    return Simulation(truth, noise + _means(truth, truth[:, 1], _DIM), earlier=earlier)


def _simulate_spread(truth: Floats, rng: np.random.Generator, earlier: int) -> Simulation:
    """Two kinds of trials, with features of half and of twice the spread: what is missing to
    `truth` is their mean.
    """
    scales = rng.choice([0.5, 2.0], (len(truth), 1))
    own = rng.standard_t(5, (CAPTIONS, len(truth), 1 + _FRECHET_DIM)) / np.sqrt(5 / 3)
    noise = _SPREAD * scales * _shared(own, 1, 0.9, rng)
    by_spread = _FRECHET_DIM * (_SPREAD * scales[:, 0] - _REFERENCE_SPREAD) ** 2
    return Simulation(
        truth,
        noise + _means(truth, truth[:, 1] - by_spread, _FRECHET_DIM),
        frechet=True,
        earlier=earlier,
    )


def _drifting(own: Floats) -> Floats:
    """Noise [captions, ...] of the same spread, correlated between neighbours, with mean 0 over all
    captions.
    """
    drifting = own.copy()
    for caption in range(1, len(own)):
        drifting[caption] = (
            _PERSISTENCE * drifting[caption - 1] + np.sqrt(1 - _PERSISTENCE**2) * own[caption]
        )
    centred: Floats = drifting - drifting.mean(axis=0)
    return centred


def _shared(own: Floats, groups: int, share: float, rng: np.random.Generator) -> Floats:
    """Noise that groups of trials share in part; `own` [captions, trials, d] is the rest."""
    captions, trials, width = own.shape
    group = rng.standard_normal((captions, groups, width))[:, rng.integers(groups, size=trials)]
    mixed: Floats = np.sqrt(share) * group + np.sqrt(1 - share) * own
    return mixed


def _means(truth: Floats, squared: Floats, dim: int) -> Floats:
    """[trials, 1 + dim] the mean cost and features, whose squared norm is `squared` [trials]."""
    return np.concatenate([truth[:, :1], np.tile(np.sqrt(squared / dim)[:, None], dim)], axis=1)


def _truth(scenario: str, rng: np.random.Generator, trials: int) -> Floats:
    if scenario == "ties":
        return np.ones((trials, 2))
    if scenario != "front":
        tied = np.full(trials, _FRECHET if scenario == SPREAD else 1.0)
        return np.stack([np.arange(1.0, trials + 1), tied], axis=1)
    x = rng.random(trials)
    behind = np.where(rng.random(trials) < 0.7, rng.exponential(0.15, trials), 0.0)
    truth = np.stack([1 + x, 2 - np.sqrt(x)], axis=1) + behind[:, None]
    twins = rng.permutation(trials)[: trials // 6 * 2].reshape(2, -1)
    truth[twins[0]] = truth[twins[1]]
    return truth


def _follow_the_best(noise: Floats, truth: Floats) -> None:
    """Give every trial half of the noise of the best earlier one in the tied objective, in
    place.
    """
    direction = np.sqrt(truth[0, 1] / _DIM)
    for trial in range(PARALLEL, len(truth)):
        means = noise[:, : trial - PARALLEL + 1, 1:].mean(axis=0) + direction
        best = int((means**2).sum(axis=1).argmin())
        noise[:, trial] = np.sqrt(0.5) * (noise[:, trial] + noise[:, best])


def run_race(simulation: Simulation, race: Race) -> Outcome:
    """The sweep as the driver runs it: a trial's rivals are those that finished before it was
    proposed.
    """
    earlier = simulation.earlier
    front = simulation.earlier_front
    order = [*front, *range(earlier, len(simulation.truth))]
    stopped = np.zeros(len(simulation.truth), dtype=np.int64)
    for captions in RUNGS:
        measured = {trial: simulation.scores(trial, captions) for trial in order}
        for place, trial in enumerate(order[len(front) :], start=len(front)):
            if stopped[trial]:
                continue
            own = max(0, place - PARALLEL + 1)
            # a rival that stops at this rung was measured on it
            rivals = {
                other: measured[other] for other in order[:own] if stopped[other] in (0, captions)
            }
            if race.decide(place - len(front), measured[trial], rivals, own + earlier):
                stopped[trial] = captions
    return Outcome(simulation, stopped)


def run_sweeps(scenario: str, sweeps: int, earlier: int = 0) -> Iterator[Outcome]:
    race = Race(("minimize", "minimize"), ERROR_RATE, len(RUNGS))
    for seed in range(sweeps):
        yield run_race(simulate(scenario, seed, earlier), race)


def interval(count: int, total: int, level: float = 0.95) -> tuple[float, float]:
    """Clopper and Pearson's interval of a share."""
    tail = (1 - level) / 2
    low = float(beta.ppf(tail, count, total - count + 1)) if count else 0.0
    return low, float(beta.ppf(1 - tail, count + 1, total - count)) if count < total else 1.0


def _print_power(outcomes: Sequence[Outcome]) -> None:
    gaps = np.concatenate([outcome.simulation.gaps() for outcome in outcomes])
    stopped = np.concatenate([outcome.stopped for outcome in outcomes])
    print(
        f"\n{'gap':>10} {'trials':>7} {'stopped':>8}  at "
        + " ".join(f"{rung:>5}" for rung in RUNGS)
        + "  saved"
    )
    for low, high in pairwise(GAPS):
        inside = stopped[(gaps > low) & (gaps <= high)]
        if len(inside):
            shares = " ".join(f"{(inside == rung).mean():5.0%}" for rung in RUNGS)
            saved = 1 - np.where(inside > 0, inside, CAPTIONS).mean() / CAPTIONS
            print(
                f"{low:>4g} - {high:<3g} {len(inside):7} {(inside > 0).mean():8.0%}     {shares} "
                f"{saved:6.0%}"
            )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--sweeps", type=int, default=1000, help="simulated sweeps of each scenario"
    )
    parser.add_argument("--scenarios", nargs="+", choices=SCENARIOS, default=SCENARIOS)
    parser.add_argument(
        "--earlier", type=int, nargs="+", default=[0], help="trials of an earlier sweep"
    )
    given = parser.parse_args()
    sweeps = given.sweeps
    columns = f"{'wrong':>6} {'rate':>7}  {'95 % interval':>15} {'saved':>6}"
    print(f"error_rate {ERROR_RATE}\n{'scenario':<11} {'earlier':>7} {columns}")
    for scenario, earlier in product(given.scenarios, given.earlier):
        wrong, saved, front = 0, 0.0, list[Outcome]()
        for outcome in run_sweeps(scenario, sweeps, earlier):
            wrong += outcome.is_wrong
            saved += outcome.saved / sweeps
            if scenario == "front" and not earlier:
                front.append(outcome)
        low, high = interval(wrong, sweeps)
        rate = f"{wrong:6} {wrong / sweeps:7.2%}  {low:6.2%} - {high:5.2%}"
        print(f"{scenario:<11} {earlier:7} {rate} {saved:6.0%}", flush=True)
        if front:
            _print_power(front)


if __name__ == "__main__":
    main()
