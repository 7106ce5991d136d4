"""Errors of a trial's speed-up for one timing budget: its own timed ratio, against exact counts and shared step costs.

    python -m benchmarks.speed_errors [--repeats 6] [--images 48] [--captions 3] [--json FILE]

Two shapes of three EAGLE settings each on the built-in model. In every repeat, on new captions, each setting is timed
next to vanilla on `captions` captions (`speedup_timed`), and the first of each shape on three times as many; with these
costs and the passes of `images` further images every setting gets its `speedup`. For both: the mean stated standard
error, and the scatter over repeats, relative to the value, pooled over settings. A stated error is honest if it is near
the scatter.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

import torch

from benchmarks.common import engine_for, held_out_requests
from search_spaces.trial import DecodingConfig, Sampling
from workers.decoding.engine import Engine
from workers.decoding.state import Request
from workers.decoding.statistics import Result
from workers.loading.models_yaml import load_folder
from workers.metrics.metric import POSITION, TIMING_KEYS, MetricInputs, Rows
from workers.metrics.registry import compute_metrics
from workers.runtime.timing import time_pairs, timed_columns

VANILLA = DecodingConfig(sampling=Sampling())
RULES: tuple[tuple[int, tuple[dict[str, object], ...]], ...] = (  # of chains of a length, by shape
    (4, tuple({"schedule": "constant", "budget": budget} for budget in (1.0, 1.5, 2.5))),
    (4, tuple({"neighbourhood": "additive", "k": 100, "delta": delta} for delta in (0.05, 0.1, 0.3))),
)
SHAPES = [
    [
        DecodingConfig.from_mapping({"drafter": "eagle", "tree": {"policy": "chain", "length": n}, "acceptance": rule})
        .with_sampling(Sampling())
        for rule in rules
    ]
    for n, rules in RULES
]  # fmt: skip
METHODS = ("speedup_timed", "speedup")


Engines = Mapping[DecodingConfig, Engine]


def draw_batch(engine: Engine, requests: Sequence[Request]) -> list[Result]:
    """All requests in one batch, in their order."""
    engine.batch_size = len(requests)
    results = {result.request.caption_id: result for result in engine.run(requests)}
    return [results[request.caption_id] for request in requests]


def time_setting(engines: Engines, config: DecodingConfig, requests: Sequence[Request]) -> Rows:
    """Timings of a setting next to vanilla, one caption at a time."""
    vanilla, setting = (partial(draw_batch, engines[each]) for each in (VANILLA, config))
    rows = time_pairs(vanilla, setting, [[request] for request in requests], 1, torch.device("cpu"))
    keys = {"caption_id": [row["caption_ids"][0] for row in rows]}
    keys |= {name: [row[name] for row in rows] for name in ("repetition", "images")}
    return Rows({name: torch.tensor(column) for name, column in keys.items()} | timed_columns(rows), TIMING_KEYS)


def count_passes(engine: Engine, requests: Sequence[Request]) -> Rows:
    """Passes of images, drawn in one batch."""
    rounds = torch.tensor([result.statistics.passes for result in draw_batch(engine, requests)])
    positions = torch.arange(len(requests))
    return Rows({"caption_id": positions, POSITION: positions, "sample": 0 * positions, "rounds": rounds})


Values = dict[str, list[tuple[float, float]]]  # by method: value and standard error of every setting


def repeat(engines: Engines, requests: Sequence[Request], captions: int) -> Values:
    """Both estimates of every setting: all requests are counted, the first ones are timed."""
    found: Values = {method: [] for method in METHODS}
    for settings in SHAPES:
        shared = time_setting(engines, settings[0], requests[: captions * len(settings)])
        for setting in settings:
            inputs = MetricInputs(
                images=count_passes(engines[setting], requests),
                timings=shared,
                own_timings=time_setting(engines, setting, requests[:captions]),
            )
            estimates, _ = compute_metrics(inputs, METHODS)
            for method in METHODS:
                found[method].append((estimates[method].value, estimates[method].error))
    return found


def summary(repeats: Sequence[Sequence[tuple[float, float]]]) -> tuple[float, float, float]:
    """Of one method: the mean speed-up; the stated error and the scatter over repeats, both root mean squares over
    settings and relative to each one's mean over repeats.
    """
    stated, scatter, means = [], [], []
    for estimates in zip(*repeats, strict=True):
        values, errors = zip(*estimates, strict=True)
        mean = statistics.fmean(values)
        means.append(mean)
        stated.append(statistics.fmean((error / mean) ** 2 for error in errors))
        scatter.append(statistics.variance(values) / mean**2)
    return statistics.fmean(means), math.sqrt(statistics.fmean(stated)), math.sqrt(statistics.fmean(scatter))


def show(repeats: Sequence[Values]) -> None:
    found = {method: summary([values[method] for values in repeats]) for method in METHODS}
    print(f"{len(repeats)} repeats    mean speed-up  stated error   scatter")
    for method, (value, stated, scatter) in found.items():
        print(f"{method:<14} {value:>10.2f} {100 * stated:>11.1f} % {100 * scatter:>7.1f} %")
    (_, stated, scatter), (_, shared, spread) = found.values()
    print(f"speedup / speedup_timed: stated {shared / stated:.2f}, scatter {spread / scatter:.2f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=6)
    parser.add_argument("--images", type=int, default=48, help="images whose passes are counted, for each setting")
    parser.add_argument("--captions", type=int, default=3, help="timed captions of each setting's own ratio")
    parser.add_argument("--json", type=Path, help="the repeats; those that the file has are not run again")
    options = parser.parse_args()
    models = load_folder()
    configs = [VANILLA, *(config for settings in SHAPES for config in settings)]
    engines = {config: engine_for(models, config, batch=1) for config in configs}
    requests = held_out_requests(models, options.repeats * options.images)
    repeats = json.loads(options.json.read_text()) if options.json and options.json.exists() else []
    for number in range(len(repeats), options.repeats):
        span = requests[number * options.images : (number + 1) * options.images]
        repeats.append(repeat(engines, span, options.captions))
        print(f"repeat {number + 1} of {options.repeats}, load {os.getloadavg()[0]:.1f}", flush=True)
        if options.json:
            options.json.write_text(json.dumps(repeats) + "\n")
    show(repeats)


if __name__ == "__main__":
    main()
