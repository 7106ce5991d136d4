"""Where the time of a sweep went, from its events.

    python -m benchmarks.phases sweeps/quickstart [...]

For each sweep, of its last launch: seconds from the launch to each thing that it waited for before
trials could run, to its first and its last shard and to its end; and the seconds of workers by what
they did, in images of lossless settings, of others, and in timing. What is left of the workers'
time while shards were made is idle, or reads, measures and predicts.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from orchestrator.store import events
from orchestrator.store.sweep import Sweep


@dataclass(slots=True)
class Phases:
    """Moments of a launch, in seconds since it began, and seconds of its workers."""

    began: datetime
    waits: dict[str, list[float]] = field(default_factory=dict)  # when each began, and ended
    shards: list[float] = field(default_factory=list)  # when each was written
    workers: int = 0  # most of them at once
    seconds: dict[str, float] = field(default_factory=dict)  # of workers, by what they did
    end: float | None = None

    def add(self, event: events.Event, lossless: frozenset[int]) -> None:
        """Count an event. lossless: the numbers of the lossless trials."""
        moment = (datetime.fromisoformat(event.at) - self.began).total_seconds()
        match event:
            case events.Phase():
                waiting = event.phase.split("; ") if event.phase else []
                for wait in waiting:
                    self.waits.setdefault(wait, [moment])
                for wait, times in self.waits.items():
                    if wait not in waiting and len(times) == 1:
                        times.append(moment)
            case events.Workers():
                self.workers = max(self.workers, event.alive)
            case events.Shard():
                self.shards.append(moment)
                kind = "timing"
                if event.has_images:
                    kind = "images of lossless settings"
                    if event.trial not in lossless:
                        kind = "images of other settings"
                self.seconds[kind] = self.seconds.get(kind, 0.0) + event.seconds
            case events.End():
                self.end = moment


def phases_of(found: Iterable[events.Event | Exception | None], sweep: Sweep) -> Phases | None:
    """The phases of a sweep's last launch; None without one. found: its events."""
    lossless = frozenset(
        record.number for record in sweep.records if record.is_lossless(sweep.identity)
    )
    phases = None
    for event in found:
        if isinstance(event, events.Launch):
            phases = Phases(datetime.fromisoformat(event.at))
        elif phases is not None and isinstance(event, events.Event):
            phases.add(event, lossless)
    return phases


def lines(phases: Phases) -> list[str]:
    """The table of a launch."""
    rows = [f"{'seconds since the launch':44} {'from':>7} {'to':>7}"]
    for wait, (start, *ended) in phases.waits.items():
        rows.append(f"{wait:44} {start:7.1f} " + (f"{ended[0]:7.1f}" if ended else ""))
    if phases.shards:
        rows.append(f"{'shards':44} {min(phases.shards):7.1f} {max(phases.shards):7.1f}")
    if phases.end is not None:
        rows.append(f"{'end':52} {phases.end:7.1f}")
    rows.append(f"{'seconds of ' + str(phases.workers) + ' workers':44}")
    rows += [f"{kind:52} {seconds:7.1f}" for kind, seconds in sorted(phases.seconds.items())]
    return rows


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("sweeps", nargs="+", metavar="SWEEP")
    for place in parser.parse_args(arguments).sweeps:
        sweep = Sweep.open(place)
        phases = phases_of(events.read_events(sweep.storage), sweep)
        print(sweep.name)
        if phases is None:
            print("no launch is on record")
        else:
            print("\n".join(lines(phases)))


if __name__ == "__main__":
    main()
