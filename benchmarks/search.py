"""How many images a search needs to find the front: strategies replayed on the atlas, a table of measured settings.

    python -m benchmarks.search [--seeds 20] [--strategies NAME ...] [--write]

The captions of the table are divided into two halves. A strategy sees one: it asks for a setting and a number of
captions (24, 48 or 96), and pays one unit for each image that it has not seen. After every purchase its front is the
set of settings that no other one, measured on at least as many captions, beats at the setting's own number of captions.
That front is judged by what the same settings reach on the other half, so no strategy wins by luck: the hypervolume of
speed-up and fid, as a share of the hypervolume that a strategy reaches which buys everything. Half of the seeds
search the first half, the others the second one. Every strategy begins with vanilla.

Prints the images after which this share is at 90 % and at 95 % for good: median and quartiles over the seeds.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.atlas_table import DIRECTIONS, HALF, RUNGS, Atlas, Floats
from orchestrator.results.indicators import hypervolume
from orchestrator.results.pareto import nondominated
from workers.runtime.threads import use_threads

TARGETS = (0.90, 0.95)
RESULTS = Path(__file__).parent / "results" / "search.md"
KEPT = RESULTS.with_suffix(".json")
Strategy = Callable[["Purchases", int], None]


@dataclass(frozen=True)
class Problem:
    """A table to search. Row 0 is vanilla.

    seen [R, S, m, 1 + G]: the objectives at each rung, then without each block of captions. judged [S, m]: on the other
    captions. reference [m]: of the hypervolume.
    """

    atlas: Atlas
    seen: Floats
    judged: Floats
    reference: Floats
    rungs: tuple[int, ...] = RUNGS

    @classmethod
    def of(cls, atlas: Atlas, half: int) -> Problem:
        """Search one half of the captions and judge by the other one."""
        start, other = (0, HALF) if half == 0 else (HALF, 0)
        seen = np.stack([atlas.objectives((start, start + rung)) for rung in RUNGS])
        judged = atlas.objectives((other, other + HALF))[..., 0]
        return cls(atlas, seen, judged, reference_point(judged))

    def __len__(self) -> int:
        return len(self.judged)

    @property
    def images(self) -> int:
        """Of the whole table, as a strategy may see it."""
        return len(self) * self.rungs[-1]

    def believed(self, rung: NDArray[np.int64]) -> NDArray[np.bool_]:
        """The front [S] that a strategy believes in after measuring settings up to these rungs [S] (-1: never)."""
        front = np.zeros(len(self), dtype=np.bool_)
        for level in range(len(self.rungs)):
            rows = np.flatnonzero(rung >= level)
            here = nondominated(self.seen[level, rows, :, 0], DIRECTIONS)
            front[rows] = np.where(rung[rows] == level, here, front[rows])
        return front

    def quality(self, rung: NDArray[np.int64]) -> float:
        """The hypervolume of the believed front, judged by the other captions."""
        return hypervolume(self.judged[self.believed(rung)], self.reference, DIRECTIONS)

    @cached_property
    def exhaustive(self) -> float:
        """The hypervolume after buying everything."""
        return self.quality(np.full(len(self), len(self.rungs) - 1))


def reference_point(values: Floats) -> Floats:
    """Vanilla's speed, and twice its fid: beyond either, a setting is of no use. values [S, m]; row 0 is vanilla."""
    point: Floats = values[0] * [1.0, 2.0]
    return point


class BudgetSpent(Exception):
    """The strategy has bought all that it may."""


@dataclass
class Purchases:
    """What a strategy has bought of a problem. `limit`: images that it may buy."""

    problem: Problem
    limit: float = math.inf
    images: int = 0
    rung: NDArray[np.int64] = field(init=False)
    curve: list[tuple[int, float]] = field(default_factory=list)  # (images, judged hypervolume)

    def __post_init__(self) -> None:
        self.rung = np.full(len(self.problem), -1)
        self.measure(0)

    def measure(self, row: int, level: int | None = None) -> Floats:
        """The objectives [m, 1 + G] of a setting at a rung (default: the last one).

        Raises:
            BudgetSpent: nothing is left to buy, or the limit is reached.
        """
        rungs = self.problem.rungs
        level = len(rungs) - 1 if level is None else level
        if level > self.rung[row]:
            self.images += rungs[level] - (rungs[self.rung[row]] if self.rung[row] >= 0 else 0)
            self.rung[row] = level
            self.curve.append((self.images, self.problem.quality(self.rung)))
            if self.images >= min(self.limit, self.problem.images):
                raise BudgetSpent
        values: Floats = self.problem.seen[level, row]
        return values

    @property
    def unmeasured(self) -> NDArray[np.int64]:
        """Rows that were never measured."""
        return np.flatnonzero(self.rung < 0)


def images_needed(curve: Sequence[tuple[int, float]], level: float) -> float:
    """The images after which the curve never again is below the level; infinite if it ends below."""
    needed = math.inf
    for images, value in reversed(curve):
        if value < level:
            break
        needed = images
    return needed


@dataclass(frozen=True)
class Outcome:
    """Images needed [seeds] for each target, and seconds of one replay."""

    images: Mapping[float, Floats]
    seconds: float

    @classmethod
    def of(cls, replays: Sequence[tuple[Sequence[float], float]]) -> Outcome:
        """From what `replay_seed` gave for each seed."""
        needed, seconds = zip(*replays, strict=True)
        return cls(dict(zip(TARGETS, np.array(needed).T, strict=True)), sum(seconds) / len(seconds))


def replay_seed(
    strategy: Strategy, problems: Sequence[Problem], seed: int, limit: float = 1.0
) -> tuple[list[float], float]:
    """Replay a strategy on problem `seed` modulo their number: the images needed for each target, and seconds. limit:
    share of the table's images that it may buy.
    """
    start = time.perf_counter()
    problem = problems[seed % len(problems)]
    purchases = Purchases(problem, limit * problem.images)
    with suppress(BudgetSpent):
        strategy(purchases, seed)
    needed = [images_needed(purchases.curve, target * problem.exhaustive) for target in TARGETS]
    return needed, time.perf_counter() - start


@lru_cache(maxsize=1)
def _problems() -> tuple[Problem, ...]:
    atlas = Atlas.load()
    return tuple(Problem.of(atlas, half) for half in (0, 1))


def _replay_named(name: str, seed: int, limit: float) -> tuple[list[float], float]:
    """In a process of its own."""
    from benchmarks.strategies import STRATEGIES

    return replay_seed(STRATEGIES[name], _problems(), seed, limit)


def table(outcomes: Mapping[str, Outcome], problems: Sequence[Problem]) -> str:
    """Markdown: a row per strategy, a column per target."""
    total = problems[0].images
    lines = [
        "| strategy | "
        + " | ".join(f"{100 * target:.0f} % of the hypervolume" for target in TARGETS)
        + " | s/replay |",
        "|---" * (len(TARGETS) + 2) + "|",
    ]
    for name, outcome in outcomes.items():
        cells = [_quartiles(outcome.images[target], total) for target in TARGETS]
        lines.append(f"| {name} | {' | '.join(cells)} | {outcome.seconds:.1f} |")
    return "\n".join(lines)


def _quartiles(images: Floats, total: int) -> str:
    low, median, high = np.quantile(images, [0.25, 0.5, 0.75], method="nearest")
    if not math.isfinite(median):
        return "not reached"
    last = f"{high:.0f}" if math.isfinite(high) else "∞"
    return f"{median:.0f} ({low:.0f} to {last}), {100 * median / total:.1f} %"


def _kept(identity: Mapping[str, object]) -> dict[str, Outcome]:
    """What earlier runs with `--write` found on the same table."""
    stored = json.loads(KEPT.read_text()) if KEPT.exists() else {}
    if stored.get("of") != identity:
        return {}
    return {
        name: Outcome.of([([math.inf if n is None else n for n in row], entry["seconds"]) for row in entry["images"]])
        for name, entry in stored["strategies"].items()
    }


def _keep(identity: Mapping[str, object], outcomes: Mapping[str, Outcome]) -> None:
    """Write the outcomes of all strategies so far: the images of each seed for each target, null if it is missed."""
    strategies = {}
    for name, outcome in outcomes.items():
        rows = np.array([outcome.images[target] for target in TARGETS]).T.tolist()
        images = [[count if math.isfinite(count) else None for count in row] for row in rows]
        strategies[name] = {"seconds": round(outcome.seconds, 2), "images": images}
    KEPT.write_text(json.dumps({"of": identity, "strategies": strategies}))


def main(arguments: Sequence[str] | None = None) -> None:
    from benchmarks.strategies import MODELLED, STRATEGIES

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--strategies", nargs="+", choices=STRATEGIES, default=list(STRATEGIES))
    parser.add_argument(
        "--limit", type=float, default=0.12, help="share of the table's images that a strategy with a model may buy"
    )
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument(
        "--write", action="store_true", help=f"write {RESULTS.name}, with earlier results of the other strategies"
    )
    options = parser.parse_args(arguments)
    problems = _problems()
    identity = {"settings": len(problems[0]), "seeds": options.seeds, "limit": options.limit}
    outcomes = _kept(identity) if options.write else {}
    with ProcessPoolExecutor(options.processes, initializer=use_threads, initargs=(1,)) as pool:
        replays = {
            name: [
                pool.submit(_replay_named, name, seed, options.limit if name in MODELLED else 1.0)
                for seed in range(options.seeds)
            ]
            for name in options.strategies
        }
        for name, futures in replays.items():
            outcomes[name] = Outcome.of([future.result() for future in futures])
            shares = {f"{t:.0%}": _quartiles(v, problems[0].images) for t, v in outcomes[name].images.items()}
            print(name, shares, flush=True)
            if options.write:
                _keep(identity, _kept(identity) | {name: outcomes[name]})
    outcomes = {name: outcomes[name] for name in STRATEGIES if name in outcomes}
    points = "; ".join(f"speed-up {p.reference[0]:.2f}, fid {p.reference[1]:.1f}" for p in problems)
    text = (
        f"`python -m benchmarks.search --seeds {options.seeds}`: {len(problems[0])} settings, {problems[0].images} "
        f"images in each half. Images needed: median (quartiles), and the median as a share of the half's images. "
        f"Strategies with a Gaussian process may buy {options.limit:.0%} of the images. Reference points of the "
        f"hypervolume on the two halves: {points}.\n\n{table(outcomes, problems)}\n"
    )
    print(text)
    if options.write:
        RESULTS.write_text(text)


if __name__ == "__main__":
    main()
