"""How many images a search needs to find the front: strategies replayed on the atlas, a table of
measured settings.

    python -m benchmarks.search [--seeds 20] [--strategies NAME ...] [--own] [--write]

The captions of the table are divided into two halves. A strategy sees one: it asks for a setting
and a number of captions (24, 48 or 96), and pays one unit for each image that it has not seen. One
that uses replay's predictions pays first for the images that were recorded for them.
After every purchase its front is the set of settings that no other one, measured on at least as
many captions, beats at the setting's own number of captions. That front is judged by what the same
settings reach on the other half, so no strategy wins by luck: the hypervolume of speed-up and fid,
as a share of the hypervolume that a strategy reaches which buys everything. Half of the seeds
search the first half, the others the second one. Every strategy begins with vanilla. Lossless
settings have one fid: in what a search sees, vanilla's, and in what it is judged by, their mean.
With `--own` every strategy runs a second time and sees each lossless setting's own measured fid.

Prints the images after which this share is at 90 % and at 95 % for good: median and quartiles over
the seeds.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np

from benchmarks.atlas_table import Atlas, Floats
from benchmarks.search_problem import BudgetSpent, Problem, Purchases, Strategy
from benchmarks.strategies import MODELLED, STRATEGIES
from workers.runtime.process import use_threads

TARGETS = (0.90, 0.95)
RESULTS = Path(__file__).parent / "results" / "search.md"
KEPT = RESULTS.with_suffix(".json")
_OWN = ", own values"  # ends the names of strategies that see lossless settings' own fids


def images_needed(curve: Sequence[tuple[int, float]], level: float) -> float:
    """The images after which the curve never again is below the level; infinite if it ends
    below.
    """
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
    """Replay a strategy on problem `seed` modulo their number: the images needed for each target,
    and seconds. limit: share of the table's images that it may buy.
    """
    start = time.perf_counter()
    problem = problems[seed % len(problems)]
    purchases = Purchases(problem, limit * problem.images)
    with suppress(BudgetSpent):
        strategy(purchases, seed)
    needed = [images_needed(purchases.curve, target * problem.exhaustive) for target in TARGETS]
    return needed, time.perf_counter() - start


@lru_cache(maxsize=2)
def _problems(own: bool = False) -> tuple[Problem, ...]:
    atlas = Atlas.load()
    return tuple(Problem.of(atlas, half, own=own) for half in (0, 1))


def _replay_named(name: str, seed: int, limit: float) -> tuple[list[float], float]:
    """In a process of its own."""
    strategy = name.removesuffix(_OWN)
    return replay_seed(STRATEGIES[strategy], _problems(strategy != name), seed, limit)


def _limit(name: str, limit: float) -> float:
    """The share of the table's images that a strategy may buy."""
    return limit if name.removesuffix(_OWN) in MODELLED else 1.0


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
        name: Outcome.of(
            [
                ([math.inf if n is None else n for n in row], entry["seconds"])
                for row in entry["images"]
            ]
        )
        for name, entry in stored["strategies"].items()
    }


def _keep(identity: Mapping[str, object], outcomes: Mapping[str, Outcome]) -> None:
    """Write the outcomes of all strategies so far: the images of each seed for each target, null if
    it is missed.
    """
    strategies = {}
    for name, outcome in outcomes.items():
        rows = np.array([outcome.images[target] for target in TARGETS]).T.tolist()
        images = [[count if math.isfinite(count) else None for count in row] for row in rows]
        strategies[name] = {"seconds": round(outcome.seconds, 2), "images": images}
    KEPT.write_text(json.dumps({"of": identity, "strategies": strategies}))


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--strategies", nargs="+", choices=STRATEGIES, default=list(STRATEGIES))
    parser.add_argument(
        "--limit",
        type=float,
        default=0.12,
        help="share of the table's images that a strategy with a model may buy",
    )
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument(
        "--own",
        action="store_true",
        help="run every strategy also with each lossless setting's own measured fid",
    )
    parser.add_argument(
        "--write",
        action="store_true",
        help=f"write {RESULTS.name}, with earlier results of the other strategies",
    )
    options = parser.parse_args(arguments)
    problems = _problems()
    identity = {"settings": len(problems[0]), "seeds": options.seeds, "limit": options.limit}
    identity["lossless"] = len(problems[0].group)
    identity["recorded"] = problems[0].atlas.recorded
    names = [*options.strategies, *(name + _OWN for name in options.strategies if options.own)]
    outcomes = _kept(identity) if options.write else {}
    with ProcessPoolExecutor(options.processes, initializer=use_threads, initargs=(1,)) as pool:
        replays = {
            name: [
                pool.submit(_replay_named, name, seed, _limit(name, options.limit))
                for seed in range(options.seeds)
            ]
            for name in names
        }
        for name, futures in replays.items():
            outcomes[name] = Outcome.of([future.result() for future in futures])
            shares = {
                f"{t:.0%}": _quartiles(v, problems[0].images)
                for t, v in outcomes[name].images.items()
            }
            print(name, shares, flush=True)
            if options.write:
                _keep(identity, _kept(identity) | {name: outcomes[name]})
    order = [known for name in STRATEGIES for known in (name, name + _OWN)]
    outcomes = {name: outcomes[name] for name in order if name in outcomes}
    points = "; ".join(f"speed-up {p.reference[0]:.2f}, fid {p.reference[1]:.1f}" for p in problems)
    text = (
        f"`python -m benchmarks.search --seeds {options.seeds}`: {len(problems[0])} settings, "
        f"{problems[0].images} images in each half. Images needed: median (quartiles), and the "
        "median as a share of the half's images. Strategies with predictions also pay for "
        f"{problems[0].atlas.recorded} recorded images. Strategies with a Gaussian process may buy "
        f"{options.limit:.0%} of the images. Reference points of the hypervolume on the two "
        f"halves: {points}.\n\n{table(outcomes, problems)}\n"
    )
    print(text)
    if options.write:
        RESULTS.write_text(text)


if __name__ == "__main__":
    main()
