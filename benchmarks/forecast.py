"""How well a sweep's end is forecast: from its own event log, what the live view said against what
came.

    python -m benchmarks.forecast [SWEEP ...]       (default: quickstart)

For each sweep that ran without interruption: at a quarter, half and three quarters of its time, the
time that was left, the forecast with its 90 % range, and the relative error of the forecast end;
then the share of all moments after the first forecast whose range held the true end.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple

from orchestrator.run.time_left import TimeLeft, estimate_time_left
from orchestrator.store.events import Event, Launch, TrialFinished, read_events
from orchestrator.store.files import find_sweep, read_sweep_text
from orchestrator.store.progress import SweepProgress
from search_spaces.sweep import SweepConfig

MOMENTS = (0.25, 0.5, 0.75)


class Moment(NamedTuple):
    """After an event: seconds since the start, seconds that were left, and the forecast."""

    elapsed: float
    left: float
    forecast: TimeLeft | None

    @property
    def error(self) -> float:
        """Of the forecast end, relative to the whole time."""
        return (
            math.nan
            if self.forecast is None
            else (self.forecast.value - self.left) / (self.elapsed + self.left)
        )

    @property
    def is_covered(self) -> bool:
        return self.forecast is not None and self.forecast.low <= self.left <= self.forecast.high


def replay(events: Sequence[Event], sweep: SweepConfig) -> list[Moment]:
    """The last run in a log, which starts with its `launch` and ends with its last trial."""
    start = max(index for index, event in enumerate(events) if isinstance(event, Launch))
    run = events[start:]
    times = [datetime.fromisoformat(event.at).timestamp() for event in run]
    end = max(at for at, event in zip(times, run, strict=True) if isinstance(event, TrialFinished))
    state = SweepProgress(sweep.budget.trials, sweep.budget.images)
    moments = []
    for at, event in zip(times, run, strict=True):
        state.update(event, at)
        moments.append(Moment(at - times[0], end - at, estimate_time_left(state, at)))
    return [moment for moment in moments if moment.left > 0]


def print_moments(moments: Sequence[Moment]) -> None:
    total = moments[0].elapsed + moments[0].left
    for share in MOMENTS:
        moment = next(m for m in moments if m.elapsed >= share * total)
        said = "nothing yet"
        if moment.forecast is not None:
            value, low, high = moment.forecast
            said = (
                f"{value:.0f} s ({low:.0f} to {high:.0f}), end off by {100 * moment.error:+.0f} %"
            )
        print(f"at {100 * share:.0f} % of {total:.0f} s: {moment.left:.0f} s left; forecast {said}")
    stated = [moment for moment in moments if moment.forecast is not None]
    if stated:
        covered = sum(moment.is_covered for moment in stated) / len(stated)
        print(f"the range held the end at {100 * covered:.0f} % of {len(stated)} events")


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("sweeps", nargs="*", default=["quickstart"], metavar="SWEEP")
    for location in parser.parse_args(arguments).sweeps:
        storage = find_sweep(location)
        sweep = SweepConfig.parse(read_sweep_text(storage), location)
        print(location)
        events = [event for event in read_events(storage) if isinstance(event, Event)]
        print_moments(replay(events, sweep))


if __name__ == "__main__":
    main()
