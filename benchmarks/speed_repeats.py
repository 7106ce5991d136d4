"""Whether a second run finds the same speed-ups within the stated errors: whole timing passes of
the quick start.

    python -m benchmarks.speed_repeats [--runs 6] [--minutes 60] [--before ../c6f8a22] [--json FILE]

Each run times the quick start's settings in a process of its own, in sessions as a sweep has them:
all shapes first, a shape that comes later beside the anchor, then the front; with a pause between
two sessions, in which a sweep generates images. Runs begin at random moments within `minutes`;
every second one has two busy processes beside it. For every pair of runs and every setting,
Student's 95 % interval of the difference of the two speed-ups should cover 0.

With `--before`, the checkout of an earlier commit (with a virtual environment `.venv`) runs its own
timings directly before each run, under the same load: vanilla and one setting of each shape in
pairs, by the wall clock.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import t as student

from benchmarks.common import draw, engine_for, held_out_requests
from search_spaces.sweep import SweepConfig
from search_spaces.trial import DecodingConfig
from workers.data.records import write_shard
from workers.data.shards import TimingSession
from workers.data.storage import Storage
from workers.decoding.engine import Engine
from workers.decoding.state import Request
from workers.decoding.statistics import Result
from workers.loading.models_yaml import load_folder
from workers.metrics.timings import PriceList, read_session, session_table
from workers.runtime.device import this_device
from workers.runtime.timing import time_in_turn

SPACE = Path(__file__).parents[1] / "search_spaces" / "spaces" / "quickstart.yaml"
LATER = {
    "drafter": "eagle",
    "tree": {"policy": "static", "name": "small_7"},
    "acceptance": {"schedule": "constant"},
}
PAUSE_S, CAPTIONS, COUNTED = 10.0, 3, 48
# by setting: speed-up, standard error, degrees of freedom
Speeds = dict[str, tuple[float, float, float]]

# What c6f8a22 does, with its modules: pairs of vanilla and one setting of each shape, in the order
# of the trials.
_BEFORE = """
import json, sys
import torch
from functools import partial
from search_spaces.trial import DecodingConfig
from workers.decoding.engine import Engine
from workers.decoding.state import Request
from workers.loading.models_yaml import load_folder
from workers.metrics.costs import VANILLA, batch_costs, mean_passes
from workers.metrics.estimate import jackknife_error
from workers.runtime.timing import time_pairs, timed_columns
torch.set_num_threads(1)
given = json.load(sys.stdin)
models, found = load_folder(), {}
requests = [Request(n, text) for n, text in enumerate(given["captions"])]
def generate(engine, batch):
    return list(engine.run(batch))
def engine(mapping):
    config = DecodingConfig.from_mapping(mapping)
    drafter = models.drafters.get(config.drafter.kind)
    return Engine(models.target, config, drafter, seed=0, batch_size=1)
vanilla, costs = engine(given["vanilla"]), {}
for name, mapping in given["settings"].items():
    shape = DecodingConfig.from_mapping(mapping).shape
    if shape not in costs:
        sides = partial(generate, vanilla), partial(generate, engine(mapping))
        rows = time_pairs(*sides, [[request] for request in requests], 1, torch.device("cpu"))
        costs[shape] = timed_columns(rows)
    units = costs[shape]
    slow = batch_costs(units, VANILLA).seconds(mean_passes(units, VANILLA))[1]
    ratio = slow / batch_costs(units).seconds(torch.tensor([given["passes"][name]]))[1]
    found[name] = ratio[0].item(), jackknife_error(ratio[1:]).item(), len(ratio) - 2
print(json.dumps(found))
"""


def settings() -> tuple[DecodingConfig, dict[str, DecodingConfig]]:
    """Vanilla, and the quick start's other settings by label: those of `enqueue`, and one of its
    space.
    """
    sweep = SweepConfig.read(SPACE)
    assert sweep.sampling is not None
    vanilla = DecodingConfig(sampling=sweep.sampling)
    found = {entry.label: entry.config for entry in sweep.enqueue if not entry.config.is_vanilla}
    return vanilla, found | {"static tree": DecodingConfig.from_mapping(LATER, sweep.sampling)}


def one_run(passes: Mapping[str, float], seed: int) -> Speeds:
    """Time all settings in three sessions, and price them at these passes of an image."""
    vanilla, named = settings()
    models, storage = load_folder(), Storage(tempfile.mkdtemp())
    engines = {config: engine_for(models, config, batch=1) for config in (vanilla, *named.values())}
    shapes = {config.shape: config for config in reversed(named.values())}
    late = named["static tree"]
    first = [config for config in reversed(shapes.values()) if config.shape != late.shape]
    front = [named[name] for name in ("lantern chain", "scd window", "static tree")]
    requests = held_out_requests(models, 3 * CAPTIONS, seed=2 + seed)
    names = []
    for number, configs in enumerate((first, [first[0], late], front)):
        time.sleep(PAUSE_S if number else 0)
        chosen = [vanilla, *configs]
        batches = [[request] for request in requests[number * CAPTIONS : (number + 1) * CAPTIONS]]
        run = {config.digest(): partial(_generate, engines[config]) for config in chosen}
        rows = time_in_turn(run, batches, models.target.device, seed=number + 10 * seed)
        device = this_device(models.target.device)
        facts = {"timed_on": device.name, "threads": 1, "clock": device.clock}
        facts |= {"configs": [config.to_mapping() for config in chosen], "started": str(number)}
        names.append(f"timings/{number}.parquet")
        write_shard(storage, names[-1], session_table(rows), facts | {"kind": TimingSession.kind})
    prices = PriceList(read_session(storage, name) for name in names)
    found = {}
    for name, config in named.items():
        estimate = prices.of(config.shape)[0].speedup(config.shape, np.array([passes[name]]), 1)
        found[name] = estimate.value, estimate.error, float(estimate.noise_dof)
    return found


def _generate(engine: Engine, requests: Sequence[Request]) -> list[Result]:
    return list(engine.run(requests))


def count_passes() -> dict[str, float]:
    """Passes of an image under each setting, the mean over images."""
    models, requests = load_folder(), held_out_requests(load_folder(), COUNTED)
    found = {}
    for name, config in settings()[1].items():
        images = draw(engine_for(models, config, batch=COUNTED), requests).statistics
        found[name] = statistics.fmean(image.passes for image in images)
    return found


def run_before(checkout: Path, passes: Mapping[str, float], seed: int) -> Speeds:
    vanilla, named = settings()
    captions = [
        request.caption for request in held_out_requests(load_folder(), CAPTIONS, seed=2 + seed)
    ]
    given = {"vanilla": vanilla.to_mapping(), "captions": captions, "passes": dict(passes)}
    given["settings"] = {name: config.to_mapping() for name, config in named.items()}
    python = checkout.resolve() / ".venv/bin/python"
    done = subprocess.run(
        [python, "-c", _BEFORE],
        input=json.dumps(given),
        cwd=checkout,
        capture_output=True,
        text=True,
        check=True,
    )
    found: Speeds = json.loads(done.stdout)
    return found


@contextmanager
def busy_process() -> Iterator[None]:
    process = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        yield
    finally:
        process.kill()
        process.wait()


def compare(runs: Sequence[Speeds]) -> tuple[float, float, float]:
    """Of all pairs of runs and settings, the share whose interval of the difference covers 0; the
    median stated relative error; and the median relative spread over runs.
    """
    covered = []
    for one, other in itertools.combinations(runs, 2):
        for name in one:
            (a, a_error, a_dof), (b, b_error, b_dof) = one[name], other[name]
            variance = a_error**2 + b_error**2
            dof = variance**2 / (a_error**4 / a_dof + b_error**4 / b_dof) if variance else math.inf
            covered.append(abs(a - b) <= student.ppf(0.975, dof) * math.sqrt(variance))
    stated = [error / value for run in runs for value, error, _ in run.values()]
    spread = [
        statistics.stdev(v) / statistics.fmean(v)
        for v in ([run[name][0] for run in runs] for name in runs[0])
    ]
    return statistics.fmean(covered), statistics.median(stated), statistics.median(spread)


def show(runs: Sequence[Mapping[str, Any]]) -> None:
    methods = [name for name in ("before", "sessions") if all(name in run for run in runs)]
    for method in methods:
        found = [run[method] for run in runs]
        print(f"\n{method:<16}" + "".join(f"run {number + 1:<13}" for number in range(len(runs))))
        for name in found[0]:
            print(
                f"{name:<16}"
                + "".join(
                    f"{v:.3f} ± {error:.3f}    " for v, error, _ in (run[name] for run in found)
                )
            )
        if len(found) > 1:
            share, stated, spread = compare(found)
            print(
                f"intervals of the differences of two runs that cover 0: {share:.0%} (95 % is "
                "stated)"
            )
            print(f"median stated error {stated:.1%}; median spread over runs {spread:.1%}")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=6)
    parser.add_argument("--minutes", type=float, default=60.0, help="within which the runs begin")
    parser.add_argument("--before", type=Path, help="checkout of an earlier commit")
    parser.add_argument(
        "--json", type=Path, help="the runs; those that the file has are not run again"
    )
    # passes and seed as JSON: one run, printed as JSON
    parser.add_argument("--one", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        import torch

        torch.set_num_threads(1)
        given = json.loads(options.one)
        print(json.dumps(one_run(given["passes"], given["seed"])))
        return
    runs = json.loads(options.json.read_text()) if options.json and options.json.exists() else []
    passes, start = count_passes(), time.monotonic()
    rng = random.Random(0)
    moments = sorted(rng.uniform(0, 60 * options.minutes) for _ in range(options.runs))
    for number in range(len(runs), options.runs):
        time.sleep(max(0.0, start + moments[number] - time.monotonic()))
        run: dict[str, Any] = {"busy": 2 * (number % 2), "seed": number}
        with ExitStack() as beside:
            for _ in range(run["busy"]):
                beside.enter_context(busy_process())
            if options.before:
                run["before"] = run_before(options.before, passes, number)
            command = [
                sys.executable,
                "-m",
                "benchmarks.speed_repeats",
                "--one",
                json.dumps({"passes": passes, "seed": number}),
            ]
            run["sessions"] = json.loads(
                subprocess.run(command, capture_output=True, text=True, check=True).stdout
            )
        runs.append(run)
        print(
            f"run {number + 1} of {options.runs}: beside {run['busy']} busy processes", flush=True
        )
        if options.json:
            options.json.write_text(json.dumps(runs) + "\n")
    show(runs)


if __name__ == "__main__":
    main()
