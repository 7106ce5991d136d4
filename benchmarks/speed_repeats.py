"""How much speed-ups change from one sitting to the next, and whether their errors cover that:
whole timings of the quick start.

    python -m benchmarks.speed_repeats [--sittings 12] [--minutes 120] [--busy 2] [--json FILE]

A sitting times the quick start's settings in a process of its own, in sessions as a sweep has them:
all shapes first, a shape that comes later beside the anchor, then the front; with a pause between
two sessions, in which a sweep generates images. Sittings begin at random moments within `minutes`;
every second one has busy processes beside it. With the same FILE on another day and more sittings,
only the new ones are timed.

Sittings are quiet or busy by their own load (`workers.metrics.timings.Load`), not by what was
meant. For each kind it prints what `workers.metrics.costs` assumes of sittings: the standard
deviations between them of log speed-ups (`ratio`) and of vanilla's log seconds (`seconds`), less
what the noise within them explains; how much of the variance all settings have in common
(`COMMON_SHARE`); and the standard deviation between the sessions of a sitting (`ASSUMED_STATE`). Of
busy sittings it also prints how far they are from quiet ones, which is what `BUSY.ratio` has to
cover. It then counts the pairs of sittings, and of sets of two sittings, for which Student's 95 %
interval of the difference of two speed-ups covers 0.
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
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import t as student

from benchmarks.common import draw, engine_for, held_out_requests
from search_spaces.sweep import SweepConfig
from search_spaces.trial import DecodingConfig
from workers.data.captions import Caption
from workers.data.shards import TimingSession
from workers.loading.models_yaml import load_folder
from workers.metrics.costs import Prices
from workers.metrics.estimate import Estimate
from workers.metrics.readings import Floats
from workers.metrics.timings import Device, Load, readings_of
from workers.runtime.engines import Engines
from workers.runtime.sessions import run_session

SPACE = Path(__file__).parents[1] / "search_spaces" / "spaces" / "quickstart.yaml"
LATER = {
    "drafter": "eagle",
    "tree": {"policy": "static", "name": "small_7"},
    "acceptance": {"schedule": "constant"},
}
PAUSE_S = 10.0
CAPTIONS = 3
COUNTED = 48
VANILLA = "vanilla"
COLUMNS = ["setting", "seconds", "prefill", "passes"]
ONE_THREAD = Device("a processor", 1)

Sitting = Mapping[str, Any]


def settings() -> dict[str, DecodingConfig]:
    """The quick start's settings by label, vanilla's first: those of `enqueue`, and one of its
    space.
    """
    sweep = SweepConfig.read(SPACE)
    assert sweep.sampling is not None
    found = {VANILLA: DecodingConfig(sampling=sweep.sampling)}
    found |= {entry.label: entry.config for entry in sweep.enqueue if not entry.config.is_vanilla}
    return found | {"static tree": DecodingConfig.from_mapping(LATER, sweep.sampling)}


def time_sitting(seed: int) -> list[dict[str, Any]]:
    """Time all settings in three sessions: the rows of each, and its load."""
    named = settings()
    models = load_folder()
    engines = Engines(models, seed, lambda: False)
    requests = held_out_requests(models, 3 * CAPTIONS, seed=2 + seed)
    captions = [Caption(request.caption_id, request.caption) for request in requests]
    shapes = {config.shape: name for name, config in reversed(named.items())}
    late = "static tree"
    first = [name for name in reversed(shapes.values()) if name not in (VANILLA, late)]
    front = ["lantern chain", "scd window", late]
    sessions = []
    for number, names in enumerate((first, [first[0], late], front)):
        time.sleep(PAUSE_S if number else 0)
        start = number * CAPTIONS
        configs = tuple(named[name] for name in (VANILLA, *names))
        task = TimingSession(configs, start, start + CAPTIONS, (1,), 1, number=number + 10 * seed)
        table, facts = run_session(engines, captions, task, str(seed))
        rows = table.select(COLUMNS).to_pylist()
        sessions.append({"rows": rows, "load": facts["load"], "started": facts["started"]})
    return sessions


def count_passes() -> dict[str, float]:
    """Passes of an image under each setting, the mean over images."""
    models = load_folder()
    requests = held_out_requests(models, COUNTED)
    found = {}
    for name, config in settings().items():
        images = draw(engine_for(models, config, batch=COUNTED), requests).statistics
        found[name] = statistics.fmean(image.passes for image in images)
    return found


def is_busy(sitting: Sitting) -> bool:
    """Whether most of its sessions were timed on a busy machine."""
    return 2 * sum(map(_is_busy, sitting["sessions"])) > len(sitting["sessions"])


def _is_busy(session: Mapping[str, Any]) -> bool:
    return Load(**session["load"]).is_busy_on(ONE_THREAD)


def prices_of(sittings: Sequence[Sitting]) -> Prices:
    """The costs from all sessions of some sittings."""
    shapes = {config.digest(): config.shape for config in settings().values()}
    sessions = []
    for sitting in sittings:
        for number, session in enumerate(sitting["sessions"]):
            timed = dict.fromkeys(row["setting"] for row in session["rows"])
            # vanilla's first, whatever the order of the first batch
            names = {digest: shapes[digest] for digest in shapes if digest in timed}
            readings = readings_of(session["rows"], names, f"{sitting['seed']} {number}")
            sessions.append(
                replace(readings, sitting=str(sitting["seed"]), is_busy=_is_busy(session))
            )
    return Prices(sessions, settings()[VANILLA].shape)


def speeds(sittings: Sequence[Sitting], passes: Mapping[str, float]) -> dict[str, Estimate]:
    """The speed-up of each setting but vanilla, from all sessions of some sittings."""
    prices = prices_of(sittings)
    found = {}
    for name, config in settings().items():
        if name != VANILLA:
            found[name] = prices.speedup(config.shape, np.array([passes[name]]), 1)
    return found


def covers(one: Estimate, other: Estimate) -> bool:
    """Whether Student's 95 % interval of the difference of two speed-ups covers 0."""
    variance = one.error**2 + other.error**2
    spread = one.error**4 / one.noise_dof + other.error**4 / other.noise_dof
    reach = student.ppf(0.975, variance**2 / spread) * math.sqrt(variance)
    return bool(abs(one.value - other.value) <= reach)


def coverage(sets: Sequence[Sequence[Sitting]], passes: Mapping[str, float]) -> tuple[float, int]:
    """Of all pairs of sets that have no sitting in common and all settings, the share whose
    interval covers 0, and the number of these pairs of sets.
    """
    found = [speeds(sittings, passes) for sittings in sets]
    seeds = [{sitting["seed"] for sitting in sittings} for sittings in sets]
    covered = []
    pairs = 0
    for a, b in itertools.combinations(range(len(sets)), 2):
        if seeds[a] & seeds[b]:
            continue
        pairs += 1
        covered += [covers(found[a][name], found[b][name]) for name in found[a]]
    return statistics.fmean(covered), pairs


def _alone(
    sittings: Sequence[Sitting], passes: Mapping[str, float]
) -> tuple[Floats, list[Estimate]]:
    """The log speed-ups of each sitting alone [sittings, settings], and the speed-ups."""
    found = [list(speeds([sitting], passes).values()) for sitting in sittings]
    logs = np.log([[entry.value for entry in each] for each in found])
    return logs, [entry for each in found for entry in each]


def _noise_within(entry: Estimate, source: object = None) -> float:
    """The relative variance of a speed-up from what differs within sittings, or the part of it that
    comes from one source.
    """
    return math.fsum(
        (noise.effect / entry.value) ** 2
        for noise in entry.noises
        if not str(noise.group).startswith("sitting") and source in (None, noise.source)
    )


def show_kind(kind: str, sittings: Sequence[Sitting], passes: Mapping[str, float]) -> None:
    """What differs between the sittings of a kind, and how often the errors cover it."""
    loads = [Load(**session["load"]) for sitting in sittings for session in sitting["sessions"]]
    waits = [load.wall_over_cpu or math.nan for load in loads]
    shares = [load.per_core or math.nan for load in loads]
    print(
        f"\n{kind}: {len(sittings)} sittings; wall over CPU time {min(waits):.2f} to "
        f"{max(waits):.2f}, load per core {min(shares):.2f} to {max(shares):.2f}"
    )
    if len(sittings) < 2:
        return
    named = [name for name in settings() if name != VANILLA]
    vanilla = settings()[VANILLA].shape
    alone = [prices_of([sitting]) for sitting in sittings]
    logs, entries = _alone(sittings, passes)
    within = statistics.fmean(map(_noise_within, entries))
    of_vanilla = statistics.fmean(_noise_within(entry, vanilla) for entry in entries)
    covariance = np.cov(logs, rowvar=False)
    total = float(np.trace(covariance)) / len(named)
    others = len(named) * (len(named) - 1)
    common = float(covariance.sum() - np.trace(covariance)) / others - of_vanilla
    between = max(0.0, total - within)
    passes_of_vanilla = np.array([passes[VANILLA]])
    seconds = [math.log(prices.latency(vanilla, passes_of_vanilla, 1, 1).value) for prices in alone]
    state = prices_of(sittings).state
    print(
        f"between sittings: ratio {math.sqrt(between):.3f} (spread {math.sqrt(total):.3f}, of "
        f"which {math.sqrt(within):.3f} within), seconds {statistics.stdev(seconds):.3f}"
    )
    print(f"variance of the ratio {between:.5f}, of which {common:.5f} all settings have in common")
    print(f"between the sessions of a sitting: {math.sqrt(state):.3f}")
    for size in (1, 2):
        sets = list(itertools.combinations(sittings, size))
        if len(sittings) >= 2 * size:
            share, pairs = coverage(sets, passes)
            each = "single sittings" if size == 1 else f"sets of {size} sittings"
            print(f"95 % intervals of differences of {each} that cover 0: {share:.0%} ({pairs})")


def show(sittings: Sequence[Sitting], passes: Mapping[str, float]) -> None:
    """All speed-ups with their errors by sitting, then what each kind of sittings says."""
    for sitting in sittings:
        kind = "busy" if is_busy(sitting) else "quiet"
        print(f"\nsitting {sitting['seed']}, {kind}, {sitting['sessions'][0]['started']}")
        print("  ".join(f"{name} {each}" for name, each in speeds([sitting], passes).items()))
    kinds = {
        "quiet": [sitting for sitting in sittings if not is_busy(sitting)],
        "busy": [sitting for sitting in sittings if is_busy(sitting)],
        "all": sittings,
    }
    for kind, chosen in kinds.items():
        if chosen and (kind != "all" or len(kinds["quiet"]) not in (0, len(sittings))):
            show_kind(kind, chosen, passes)
    if kinds["quiet"] and kinds["busy"]:
        ordinary, _ = _alone(kinds["quiet"], passes)
        disturbed, entries = _alone(kinds["busy"], passes)
        squares = np.square(disturbed - ordinary.mean(axis=0)).mean()
        within = statistics.fmean(map(_noise_within, entries))
        distance = math.sqrt(max(0.0, float(squares) - within))
        print(f"\nbusy sittings against the mean of quiet ones: ratio {distance:.3f}")


@contextmanager
def busy_process() -> Iterator[None]:
    process = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        yield
    finally:
        process.kill()
        process.wait()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sittings", type=int, default=12, help="those of FILE included")
    parser.add_argument("--minutes", type=float, default=120.0, help="within which they begin")
    parser.add_argument(
        "--busy", type=int, default=2, help="processes beside every second one; 0: none"
    )
    parser.add_argument("--json", type=Path, help="the sittings; those of FILE are not timed again")
    # a seed: one sitting, printed as JSON
    parser.add_argument("--one", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one is not None:
        import torch

        torch.set_num_threads(1)
        print(json.dumps(time_sitting(options.one)))
        return
    stored: dict[str, Any] = {"passes": {}, "sittings": []}
    if options.json and options.json.exists():
        stored = json.loads(options.json.read_text())
    passes = stored["passes"] = stored["passes"] or count_passes()
    sittings = stored["sittings"]
    start = time.monotonic()
    rng = random.Random(len(sittings))
    left = range(len(sittings), options.sittings)
    starts = sorted(rng.uniform(0, 60 * options.minutes) for _ in left)  # seconds after `start`
    for seed, after in zip(left, starts, strict=True):
        time.sleep(max(0.0, start + after - time.monotonic()))
        with ExitStack() as beside:
            for _ in range(options.busy * (seed % 2)):
                beside.enter_context(busy_process())
            command = [sys.executable, "-m", "benchmarks.speed_repeats", "--one", str(seed)]
            done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
        sittings.append({"seed": seed, "sessions": json.loads(done.stdout)})
        print(f"sitting {seed + 1} of {options.sittings}", flush=True)
        if options.json:
            options.json.write_text(json.dumps(stored) + "\n")
    show(sittings, passes)


if __name__ == "__main__":
    main()
