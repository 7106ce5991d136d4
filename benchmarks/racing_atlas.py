"""How often racing stops the wrong setting on the atlas, a table of measured settings.

    python -m benchmarks.racing_atlas [--orders 50]

A race runs all settings in a random order, at rungs of 24, 48 and 96 captions and then 192; each is
compared with those that were finished when it was proposed. As the truth of a measured setting is
not known, the 96 captions that the race has not seen when it stops a setting judge the stop. It is

 confirmed  if the rival is better there in both objectives;
 refuted    if it is significantly worse in one of them (paired errors, one-sided p below 1 %
            for either objective).

Neither is the case where the two are so close that the judge's noise decides. A race is wrong if it
has a refuted stop whose setting no other finished one beats on the judge's captions. At a true tie
the judge refutes 2 % of stops. Half of the races begin with the other half of the captions.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass

import numpy as np

from benchmarks.atlas_table import DIRECTIONS, HALF, Atlas
from benchmarks.racing import ERROR_RATE, PARALLEL, interval
from benchmarks.racing_strategies import scores_of
from benchmarks.search_problem import Problem
from orchestrator.front.pareto import nondominated
from orchestrator.run.race import Race, Scores

_CAPTIONS = 2 * HALF
_JUDGE_LEVEL = 0.01


@dataclass(frozen=True, slots=True)
class JudgedStop:
    """A stop after `captions`, and what the other captions say of its rival."""

    captions: int
    is_confirmed: bool
    is_refuted: bool
    is_wrong: bool  # refuted, and no setting that had finished is better


def run_race(problem: Problem, judge: Problem, seed: int) -> tuple[list[JudgedStop], float]:
    """The stops of one race, and the share of images that it saves. judge: the other captions."""
    race = Race(DIRECTIONS, ERROR_RATE, len(problem.rungs))
    # vanilla first
    order = [0, *np.random.default_rng(seed).permutation(np.arange(1, len(problem))).tolist()]
    reached = np.full(len(order), _CAPTIONS)
    stops = []
    for level, captions in enumerate(problem.rungs):
        scores = [scores_of(problem, row, level) for row in order]
        for place in np.flatnonzero(reached > captions).tolist()[1:]:
            eligible = max(0, place - PARALLEL + 1)
            rivals = {
                other: scores[other] for other in range(eligible) if reached[other] >= captions
            }
            if stop := race.decide(place, scores[place], rivals, eligible):
                reached[place] = captions
                stops.append(
                    _judge(judge, captions, order[place], order[stop.rival], order[:eligible])
                )
    return stops, float(1 - reached.mean() / _CAPTIONS)


def _judge(judge: Problem, captions: int, row: int, rival: int, finished: list[int]) -> JudgedStop:
    signs = np.array([1.0 if direction == "maximize" else -1.0 for direction in DIRECTIONS])
    values = judge.seen[-1, ..., 0] * signs
    own, other = (scores_of(judge, one, len(judge.rungs) - 1) for one in (row, rival))
    p_worse = [
        float(
            Race([direction], ERROR_RATE, 1).p_values(
                _objective(other, column), [_objective(own, column)]
            )[0]
        )
        for column, direction in enumerate(DIRECTIONS)
    ]
    is_refuted = min(p_worse) < _JUDGE_LEVEL
    is_beaten = bool((values[finished] > values[row]).all(axis=1).any())
    return JudgedStop(
        captions,
        bool((values[rival] > values[row]).all()),
        is_refuted,
        is_refuted and not is_beaten,
    )


def _objective(scores: Scores, column: int) -> Scores:
    return Scores(scores.blocks[:, [column]], bias=scores.bias[[column]])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--orders", type=int, default=50, help="random orders of each half")
    orders = parser.parse_args().orders
    atlas = Atlas.load()
    halves = [Problem.of(atlas, half) for half in (0, 1)]
    races = [
        run_race(problem, judge, seed)
        for problem, judge in zip(halves, reversed(halves), strict=True)
        for seed in range(orders)
    ]
    stops = [stop for race, _ in races for stop in race]
    wrong = sum(any(stop.is_wrong for stop in race) for race, _ in races)
    low, high = interval(wrong, len(races))
    values = atlas.objectives((0, _CAPTIONS))[..., 0]
    dominated = len(atlas) - int(nondominated(values, DIRECTIONS).sum())
    print(f"dominated by values measured on all captions: {dominated} of {len(atlas)} settings")
    print(f"error_rate {ERROR_RATE}; {len(races)} races of {len(atlas)} settings")
    print(
        f"stopped {len(stops) / len(races):.1f} of a race; images saved "
        f"{np.mean([saved for _, saved in races]):.0%}"
    )
    for captions in halves[0].rungs:
        if not (here := [stop for stop in stops if stop.captions == captions]):
            continue
        print(
            f"at {captions:3} captions: {len(here) / len(races):5.1f} stops a race, "
            f"confirmed {np.mean([stop.is_confirmed for stop in here]):.1%}, "
            f"refuted {np.mean([stop.is_refuted for stop in here]):.1%}, "
            f"refuted and beaten by none {np.mean([stop.is_wrong for stop in here]):.1%}"
        )
    print(
        f"races with a wrong stop: {wrong} of {len(races)} ({low:.1%} to {high:.1%}, not "
        "independent: two halves)"
    )


if __name__ == "__main__":
    main()
