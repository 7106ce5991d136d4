"""A sweep that loses workers, nodes, its GCS, its driver, its MLflow server and its store, and
nothing else.

    python -m benchmarks.chaos --seed 1 [--faults 100] [--folder DIR] [--out results/chaos.json]

Runs a sweep of the built-in model on a Ray cluster of three nodes, hurts it with random faults one
after another, and runs the same trials undisturbed. Images are counted by the stores: expected,
lost, drawn twice, wrong. Full and read-only stores need root (a file system in memory, a read-only
mount); without it these two kinds are left out.

"Seconds lost" are those from a fault until both workers are up again and have written two more
files. The undisturbed sweep is kept in DIR, and continued by the next run there, unless it has more
trials.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path

from benchmarks.chaos_cluster import Cluster, project_environment
from benchmarks.chaos_faults import KINDS, Fault, plan
from benchmarks.chaos_sweep import COMMAND, METRICS, SWEEP, ChaosError, ChaosSweep, Tracking
from benchmarks.sweep_results import Comparison, compare
from orchestrator.store.records import read_trials
from workers.data.storage import Storage

TRIALS = 60
_STORE_BYTES = 512 << 20
_TRIAL_TAG = "specfrontier.trial"
_SPARE_TRIALS = 2  # in flight when the faults are over


@dataclass
class Outcome:
    """What a run of faults found.

    seconds: lost by each fault, by its kind. endings: how many launches ended with each exit code.
    problems: hangs, and launches that ended in a way that their fault does not explain. untracked:
    trials without one run in MLflow.
    """

    seconds: dict[str, list[float]] = field(default_factory=dict)
    endings: dict[int, int] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    untracked: int = 0
    wall_s: float = 0.0
    comparison: Comparison | None = None

    @property
    def is_clean(self) -> bool:
        return (
            self.comparison is not None
            and self.comparison.is_clean
            and not (self.problems or self.untracked)
        )


def disturb(sweep: ChaosSweep, faults: Sequence[Fault]) -> Outcome:
    """Launch a sweep, let the faults happen, and run it to the end. Raises ChaosError if it does
    not get there.
    """
    outcome, start = Outcome(), time.monotonic()
    sweep.launch()
    sweep.wait_delivering()
    for number, fault in enumerate(faults, 1):
        try:
            seconds = fault.happen(sweep)
        except ChaosError as error:
            outcome.problems.append(f"fault {number}, {fault.kind}: {error}")
            print(outcome.problems[-1], flush=True)
            sweep.recover()
            continue
        outcome.seconds.setdefault(fault.kind, []).append(seconds)
        print(
            f"{number:>4}  {fault.kind:<18} {seconds:6.1f} s   {len(sweep.endings)} launches ended",
            flush=True,
        )
    sweep.stop()
    sweep.finish(len(read_trials(Storage(str(sweep.store)))) + _SPARE_TRIALS)
    outcome.endings = dict(Counter(sweep.endings))
    outcome.wall_s = time.monotonic() - start
    return outcome


def undisturbed(folder: Path, text: str, trials: int) -> Path:
    """The store of the sweep without faults, on two workers of this machine; continued if it is
    there with no more trials.
    """
    space = folder / "space.yaml"
    store = folder / text.split()[1]
    if store.exists() and len(read_trials(Storage(str(store)))) > trials:
        shutil.rmtree(store)  # its further trials would count as lost
    folder.mkdir(parents=True, exist_ok=True)
    space.write_text(text)
    command = [
        *COMMAND,
        "launch",
        str(space),
        "--out",
        str(folder),
        "--workers",
        "2",
        "--no-mlflow",
        "--resume",
    ]
    subprocess.run(
        [*command, "--trials", str(trials)],
        env=project_environment(),
        check=True,
        capture_output=True,
    )
    return store


@contextmanager
def own_file_system(folder: Path) -> Iterator[bool]:
    """Mount a small file system in memory there while the block runs; False, and nothing, without
    the right to.
    """
    folder.mkdir(parents=True)
    options = ["-t", "tmpfs", "-o", f"size={_STORE_BYTES}", "tmpfs"]
    mounted = (
        os.geteuid() == 0
        and not subprocess.run(["mount", *options, folder], capture_output=True).returncode
    )
    try:
        yield mounted
    finally:
        if mounted:
            subprocess.run(["umount", "--lazy", folder], check=True)


def chaos(
    folder: Path,
    text: str,
    faults: Sequence[Fault],
    calm: Callable[[int], Path],
    *,
    mlflow: bool = True,
) -> Outcome:
    """Let faults happen to the sweep of `text`. calm: gives the store of the same sweep
    undisturbed, for its trials.

    Raises:
        ChaosError: the sweep does not start, or does not end.
    """
    disk = folder / "disk"
    with ExitStack() as stack:
        mounted = stack.enter_context(own_file_system(disk))
        needed = sorted({fault.kind for fault in faults if KINDS[fault.kind].needs_mount})
        if needed and not mounted:
            print(
                "left out, because they need a mount and this process may not make one: "
                f"{', '.join(needed)}"
            )
            faults = [fault for fault in faults if fault.kind not in needed]
        cluster = Cluster()
        stack.callback(cluster.stop)
        cluster.start()
        tracking = Tracking(disk.parent / "mlflow") if mlflow else None
        if tracking is not None:
            tracking.start()
            stack.callback(tracking.stop)
        sweep = ChaosSweep(disk, text, TRIALS, cluster, tracking)
        stack.callback(sweep.stop)
        outcome = disturb(sweep, faults)
        cluster.stop()
        records = read_trials(Storage(str(sweep.store)))
        if tracking is not None:
            runs = logged_trials(tracking.uri, sweep.store.name)
            outcome.untracked = sum(runs[record.number] != 1 for record in records)
        outcome.comparison = compare(calm(len(records)), sweep.store, METRICS, sweep.rewritten)
    return outcome


def logged_trials(uri: str, name: str) -> Counter[int]:
    """How many runs MLflow has of each trial of a sweep."""
    from mlflow.tracking import MlflowClient

    client = MlflowClient(uri)
    experiment = client.get_experiment_by_name(f"specfrontier/{name}")
    runs = client.search_runs([experiment.experiment_id]) if experiment else ()
    return Counter(int(run.data.tags[_TRIAL_TAG]) for run in runs if _TRIAL_TAG in run.data.tags)


def describe(outcome: Outcome) -> str:
    """The outcome as text."""
    rows = ["fault               times  seconds lost, median (longest)"]
    for kind, seconds in sorted(outcome.seconds.items()):
        rows.append(
            f"{kind:<18} {len(seconds):>6}  {statistics.median(seconds):>6.1f} ({max(seconds):.1f})"
        )
    lost = [value for seconds in outcome.seconds.values() for value in seconds]
    rows.append(f"{'all':<18} {len(lost):>6}  {statistics.median(lost):>6.1f} ({max(lost):.1f})")
    found = outcome.comparison
    assert found is not None
    rows += [
        (
            f"{found.trials} trials, {sum(outcome.endings.values())} launches, "
            f"{outcome.wall_s / 60:.0f} min"
        ),
        f"{found.describe()}; trials without one run in MLflow: {outcome.untracked}",
        *outcome.problems,
    ]
    return "\n".join(rows)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--faults", type=int, default=100)
    parser.add_argument("--kinds", nargs="+", choices=list(KINDS), default=list(KINDS))
    parser.add_argument("--folder", type=Path, help="keeps the sweeps; default: a temporary folder")
    parser.add_argument("--out", type=Path, help="a JSON file for the outcome")
    args = parser.parse_args()
    # so that nothing is left behind
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    with tempfile.TemporaryDirectory() as temporary:
        folder = args.folder or Path(temporary)
        shutil.rmtree(folder / "disturbed", ignore_errors=True)
        calm = partial(undisturbed, folder / "undisturbed", SWEEP)
        outcome = chaos(folder / "disturbed", SWEEP, plan(args.seed, args.faults, args.kinds), calm)
    print(f"seed {args.seed}\n{describe(outcome)}")
    if args.out:
        args.out.write_text(json.dumps({"seed": args.seed, **asdict(outcome)}, indent=1) + "\n")
    sys.exit(0 if outcome.is_clean else 1)


if __name__ == "__main__":
    main()
