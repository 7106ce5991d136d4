"""The driver's own cost: shards a second and memory with workers that return at once; ask/tell with
many trials.

    python -m benchmarks.driver [--shards 100000]

Goals: at least 200 shards a second, under 300 MB at 100,000 finished shards, ask and tell at 1,000
finished trials under 0.5 s.
"""

from __future__ import annotations

import argparse
import resource
import tempfile
import time
from pathlib import Path

from benchmarks.instant import InstantWorkers, make_driver, plausible
from orchestrator.run.search import Search
from orchestrator.store.records import TrialRecord
from search_spaces.sweep import SweepConfig
from workers.data.storage import Storage
from workers.metrics.definition import Direction, Metric
from workers.metrics.estimate import Estimate

NAMES = ("speedup", "fid")
WAYS: tuple[Direction, ...] = ("maximize", "minimize")


def memory() -> float:
    """Peak memory so far, MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def sweep_of(trials: int, shards: int, sampler: str) -> SweepConfig:
    """The quick start's space with `shards` quality shards a trial."""
    changes = {
        "budget.trials": trials, "captions.count": shards * 8, "quality.shard": 8, "racing": None,
        "search": {"sampler": sampler, "parallel": 8},
    }  # fmt: skip
    return SweepConfig.read("quickstart", changes)


def run(sweep: SweepConfig, folder: Path) -> tuple[float, int]:
    """Seconds of a whole sweep, and how many shards it handed out."""
    folder.mkdir()
    workers = InstantWorkers()
    driver = make_driver(sweep, Storage(str(folder)), workers, list(map(Metric, NAMES, WAYS)))
    begin = time.perf_counter()
    driver.run()
    return time.perf_counter() - begin, sum(not name.startswith("measures") for name in workers.ran)


def ask_and_tell(sampler: str, trials: int) -> float:
    """Seconds of one ask and one tell when `trials` have finished."""
    sweep = sweep_of(trials + 2, 1, sampler)
    search = Search(sweep, WAYS)
    for number in range(trials + 1):
        begin = time.perf_counter()
        proposal = search.propose(number)
        assert proposal.config is not None
        values = {
            name: Estimate(value, 0.1, 64) for name, value in plausible(proposal.config).items()
        }
        search.tell(TrialRecord(number, "", "complete", proposal.config, metrics=values), NAMES)
        seconds = time.perf_counter() - begin
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--shards", type=int, default=100_000)
    parser.add_argument("--per-trial", type=int, default=100)
    parser.add_argument("--finished", type=int, default=1000)
    args = parser.parse_args()
    before = memory()
    with tempfile.TemporaryDirectory() as folder:
        seconds, shards = run(
            sweep_of(args.shards // args.per_trial, args.per_trial, "random"),
            Path(folder) / "sweep",
        )
    rate, most = shards / seconds, memory()
    print(
        f"{shards} shards in {seconds:.1f} s: {rate:.0f} shards/s; memory {most:.0f} MB "
        f"({before:.0f} before)"
    )
    for sampler in ("tpe", "nsga2", "random"):
        seconds = ask_and_tell(sampler, args.finished)
        print(f"ask and tell at {args.finished} finished trials, {sampler}: {seconds:.3f} s")


if __name__ == "__main__":
    main()
