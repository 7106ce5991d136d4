"""Whether the share of draws in which a setting is on the front is what it says: simulated sweeps
whose front is known.

    python -m benchmarks.calibration [--sweeps 200] [--objectives 2 3] [--settings 16]

A sweep has vanilla and other settings at each of two samplings. A third of them is lossless: their
images have the distribution of vanilla's at the same sampling, so one expected quality. The others
are on a trade-off curve, or behind it. Each setting has 192 images of the same captions, of which
an image has a number of passes, 8 features (fid is the squared distance of their mean to the
reference's, which like the Fréchet distance is biased by trace(covariance) / n) and a score, the
third objective. Captions share most of their noise among settings. Speeds are passes times costs
from simulated timing sessions of one sitting on a quiet machine: the sitting has noise that its
sessions share, and a session noise of its own for every reading, unit and setting. The errors are
about the quick start's.

A setting is on the true front if no other is at least as good in all expected values and better in
one. `said` is the mean share of draws, `true` the share of these settings that are on the true
front, with its standard error over sweeps. Before: each lossless setting has its own measured
quality. After: lossless settings of one sampling have one (`QualityGroups`). Known errors: after,
with values whose errors are normal and have exactly the covariance that is drawn from; what is off
there is not due to the errors, but to draws that begin at measured values.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise, product

import numpy as np
from numpy.typing import NDArray

from orchestrator.front.joint import JointErrors, directions
from orchestrator.front.pareto import SAMPLES, Floats, front_confidence, nondominated
from orchestrator.store.lossless import QualityGroups
from orchestrator.store.records import TrialRecord
from search_spaces.trial import DecodingConfig, Sampling
from workers.metrics.costs import COMMON_SHARE, QUIET, Prices
from workers.metrics.definition import FEATURES, REFERENCE, TIMINGS, Metric
from workers.metrics.estimate import BLOCKS, Estimate
from workers.metrics.readings import Session

CAPTIONS, COLS = 192, 12
SAMPLINGS = (Sampling(cfg=1.5), Sampling(temperature=0.9, cfg=1.5))
OBJECTIVES = (
    Metric("speedup", "maximize", unit="x", needs=(TIMINGS,)),
    Metric("fid", "minimize", needs=(FEATURES, REFERENCE)),
    Metric("score", "maximize", needs=("score.score",)),
)
BEFORE, AFTER, KNOWN_ERRORS = KINDS = ("before", "after", "known errors")
# of the shares of draws; the last bin includes 1
BINS = (0.0, 0.05, 0.15, 0.3, 0.5, 0.7, 0.85, 0.95, 1.0)
_DIM = 8  # features of an image
_SHARED = 0.78  # of the variance of a feature or score, by its caption
_FEATURE_SPREAD, _SCORE_SPREAD, _PASSES_SPREAD = 1.3, 3.0, 0.25  # the last one is relative
_TOKENS = 144  # of an image, vanilla's passes
# of log seconds: a setting's state in a session, a unit of a session, and a reading
_STATE, _MOMENT, _READING = 0.015, 0.05, 0.02
_UNITS, _TIMED_TOGETHER = 6, 4  # units of a session, and settings beside vanilla

Bools = NDArray[np.bool_]


@dataclass(frozen=True, slots=True, eq=False)
class Simulation:
    """One sweep of n settings, as measured and in truth."""

    seed: int
    records: tuple[TrialRecord, ...]
    truth: Floats  # [n, 3] the expected values of `OBJECTIVES` on as many images

    def on_front(self, objectives: int) -> Bools:
        """Which settings [n] are on the true front of the first objectives."""
        return nondominated(self.truth[:, :objectives], directions(OBJECTIVES[:objectives]))

    def shares(self, objectives: int, kind: str) -> Floats:
        """The share of draws [n] in which each setting is on the front of the first objectives, for
        one of `KINDS`.
        """
        records: Sequence[TrialRecord] = self.records
        groups = QualityGroups({metric.name: metric for metric in OBJECTIVES}, SAMPLINGS[0], COLS)
        if kind != BEFORE:
            records = groups.pooled(records)
        metrics = OBJECTIVES[:objectives]
        joint = JointErrors.of(records, metrics)
        samples = joint.samples()
        if kind == KNOWN_ERRORS:
            samples = self._samples_with_known_errors(joint)
            for group in SAMPLINGS:  # rounding must not break ties
                rows = [row for row, r in enumerate(records) if groups.group(r) == group]
                samples[:, rows, 1:] = samples[:, rows[:1], 1:]
        return front_confidence(samples, directions(metrics))

    def _samples_with_known_errors(self, joint: JointErrors) -> Floats:
        """Samples about values that are themselves a sample about the truth."""
        variances, vectors = np.linalg.eigh(joint.covariance())
        roots = vectors * np.sqrt(variances.clip(min=0))
        rng = np.random.default_rng([self.seed, 1])
        values, *draws = rng.standard_normal((1 + SAMPLES, len(roots))) @ roots.T
        truth = self.truth[:, : joint.values.shape[1]]
        samples: Floats = truth + np.reshape(values + draws, (SAMPLES, *truth.shape))
        return samples


def simulate(seed: int, settings: int = 16) -> Simulation:
    """A sweep of `settings` settings, half of them at each sampling."""
    rng = np.random.default_rng(seed)
    configs, speed, distance, score = _population(rng, settings)
    passes = _TOKENS / np.where(speed > 1, speed * rng.uniform(1.0, 1.6, settings), speed)
    passes[[config.is_vanilla for config in configs]] = _TOKENS
    costs = _TOKENS / (passes * speed)  # of a pass, over vanilla's
    speeds = _measured_speeds(rng, configs, passes, costs)
    features = _noise(rng, settings, _DIM, _FEATURE_SPREAD)
    features += np.sqrt(distance / _DIM)[None, :, None]
    scores = _noise(rng, settings, 1, _SCORE_SPREAD)[..., 0] + score
    records = []
    for row, config in enumerate(configs):
        fid = np.square(_with_left_out(features[:, row])).sum(axis=1)
        mean_score = _with_left_out(scores[:, row, None])[:, 0]
        metrics = {
            "speedup": speeds[row],
            "fid": Estimate.from_replicates(fid, CAPTIONS),
            "score": Estimate.from_replicates(mean_score, CAPTIONS),
        }
        shape = config.shape.key
        made = TrialRecord(row, "", "complete", config, metrics=metrics, images=CAPTIONS)
        records.append(replace(made, shape=shape, history=((CAPTIONS, metrics),)))
    bias = _DIM * _FEATURE_SPREAD**2 / CAPTIONS
    return Simulation(seed, tuple(records), np.stack([speed, distance + bias, score], axis=1))


def _population(
    rng: np.random.Generator, settings: int
) -> tuple[list[DecodingConfig], Floats, Floats, Floats]:
    """Configs, and their true speed-ups, squared distances and scores [settings]."""
    configs = []
    values = []
    for place, sampling in enumerate(SAMPLINGS):
        count = (settings + place) // len(SAMPLINGS)
        best = (4.0, 30.0) if place == 0 else (3.6 + 0.3 * rng.normal(), 29.5 + 0.5 * rng.normal())
        for index in range(count):
            entry: dict[str, object] = {}
            speed = 1.0
            relaxation = 0.0
            behind = np.zeros(3)
            if index:
                entry = {"drafter": "eagle", "tree": {"policy": "chain", "length": index + 1}}
                speed = float(rng.uniform(0.6, 2.0))
            if index > count // 3:
                relaxation = float(rng.random())
                entry["acceptance"] = {"schedule": "constant", "budget": 1 + relaxation}
                speed = 1.6 + 1.4 * relaxation
                behind = rng.exponential(0.3, 3) * (rng.random() < 0.7)
            configs.append(DecodingConfig.from_mapping(entry).with_sampling(sampling))
            loss = relaxation**2
            values.append(
                (
                    speed * np.exp(-behind[0]),
                    best[0] + 2.0 * loss + behind[1],
                    best[1] - 1.5 * loss - behind[2],
                )
            )
    return configs, *np.array(values).T


def _noise(rng: np.random.Generator, settings: int, width: int, spread: float) -> Floats:
    """Noise [captions, settings, width], most of which the settings share."""
    captions = rng.standard_normal((CAPTIONS, 1, width))
    own = rng.standard_normal((CAPTIONS, settings, width))
    noise: Floats = spread * (np.sqrt(_SHARED) * captions + np.sqrt(1 - _SHARED) * own)
    return noise


def _with_left_out(rows: Floats) -> Floats:
    """Means [1 + blocks, d] of rows [captions, d]: of all, then without each block of captions."""
    sums = rows.reshape(-1, BLOCKS, rows.shape[1]).sum(axis=0)
    total = sums.sum(axis=0)
    left_out = (total - sums) / (len(rows) - len(rows) // BLOCKS)
    return np.concatenate([total[None] / len(rows), left_out])


def _measured_speeds(
    rng: np.random.Generator, configs: Sequence[DecodingConfig], passes: Floats, costs: Floats
) -> list[Estimate]:
    """The measured speed-ups of settings with these true passes and costs of a pass [n]."""
    day = QUIET.ratio * np.sqrt(1 - COMMON_SHARE) * rng.standard_normal(len(configs))
    day += QUIET.ratio * np.sqrt(COMMON_SHARE) * rng.standard_normal()
    day[0] = 0.0
    sessions = []
    order = rng.permutation(np.arange(1, len(configs)))
    for number, start in enumerate(range(0, len(order), _TIMED_TOGETHER)):
        rows = [0, *order[start : start + _TIMED_TOGETHER].tolist()]
        shape = (len(rows), _UNITS)
        state = day[rows, None] + _STATE * rng.standard_normal((len(rows), 1))
        state[0] = 0.0
        logs = state + _MOMENT * rng.standard_normal(_UNITS) + _READING * rng.standard_normal(shape)
        counts = np.broadcast_to(passes[rows, None], shape)
        per_pass = 0.01 * costs[rows, None] * np.exp(logs)
        session = Session(
            f"timing-{number:020d}",
            tuple(configs[row].shape for row in rows),
            tuple(configs[row].digest() for row in rows),
            prefill=np.zeros(shape),
            per_pass=per_pass,
            passes=counts,
            seconds=counts * per_pass,
        )
        sessions.append(session)
    prices = Prices(sessions, configs[0].shape)
    shared, own = rng.standard_normal((2, CAPTIONS, len(configs)))
    shared[:] = shared[:, :1]
    relative = 1 + _PASSES_SPREAD * (np.sqrt(_SHARED) * shared + np.sqrt(1 - _SHARED) * own)
    found = []
    for row, config in enumerate(configs):
        counted = _with_left_out(passes[row] * relative[:, row, None])[:, 0]
        if config.is_vanilla:
            counted = np.full(1 + BLOCKS, passes[row])
        found.append(prices.speedup(config.shape, counted, CAPTIONS))
    return found


def calibration(
    objectives: int, kind: str, sweeps: int, settings: int = 16
) -> tuple[Floats, Bools, NDArray[np.int64]]:
    """The shares of draws of all settings of simulated sweeps, whether they are on the true front,
    and the number of their sweep, [sweeps x settings] each.
    """
    shares = []
    is_true = []
    for seed in range(sweeps):
        simulation = simulate(seed, settings)
        shares.append(simulation.shares(objectives, kind))
        is_true.append(simulation.on_front(objectives))
    sweep = np.repeat(np.arange(sweeps), [len(part) for part in shares])
    return np.concatenate(shares), np.concatenate(is_true), sweep


def bins(
    shares: Floats, is_true: Bools, sweep: NDArray[np.int64]
) -> Iterator[tuple[str, int, float, float, float]]:
    """Of each bin of shares: its name, the number of settings, the mean share, the share of them
    that are on the true front, and that share's standard error, which counts the settings of a
    sweep as dependent.
    """
    for low, high in pairwise(BINS):
        inside = (shares >= low) & ((shares < high) | (high == BINS[-1]))
        count = int(inside.sum())
        if not count:
            continue
        rate = float(is_true[inside].mean())
        residuals = np.bincount(sweep[inside], is_true[inside] - rate)
        error = float(np.sqrt(np.square(residuals).sum()) / count)
        name = f"{100 * low:.0f} - {100 * high:.0f} %"
        yield name, count, float(shares[inside].mean()), rate, error


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sweeps", type=int, default=200)
    parser.add_argument("--settings", type=int, default=16, help="settings of a sweep")
    parser.add_argument("--objectives", type=int, nargs="+", choices=(2, 3), default=[2, 3])
    options = parser.parse_args(arguments)
    for objectives, kind in product(options.objectives, KINDS):
        found = calibration(objectives, kind, options.sweeps, options.settings)
        print(f"\n{objectives} objectives, {options.sweeps} sweeps, {kind}")
        print(f"{'share of draws':>15} {'settings':>9} {'said':>6} {'true':>6}")
        for name, count, said, rate, error in bins(*found):
            print(
                f"{name:>15} {count:9} {100 * said:5.1f}% {100 * rate:5.1f}% ± {100 * error:.1f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
