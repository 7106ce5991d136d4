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
from workers.decoding.engine import Engine, Result
from workers.decoding.state import Request
from workers.loading.models_yaml import load_folder
from workers.metrics.estimate import Estimate
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
    rounds = torch.tensor([result.statistics.rounds for result in draw_batch(engine, requests)])
    positions = torch.arange(len(requests))
    return Rows({"caption_id": positions, POSITION: positions, "sample": 0 * positions, "rounds": rounds})


def repeat(engines: Engines, requests: Sequence[Request], captions: int) -> dict[str, list[Estimate]]:
    """Both estimates of every setting: all requests are counted, the first ones are timed."""
    found: dict[str, list[Estimate]] = {method: [] for method in METHODS}
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
                found[method].append(estimates[method])
    return found


def summary(repeats: Sequence[Sequence[Estimate]]) -> dict[str, float]:
    """Of one method: `stated` error and `scatter` over repeats, both root mean squares over settings and relative to
    each one's mean over repeats, and the mean `speedup`.
    """
    stated, scatter, means = [], [], []
    for estimates in zip(*repeats, strict=True):
        values = [estimate.value for estimate in estimates]
        mean = statistics.fmean(values)
        means.append(mean)
        stated.append(statistics.fmean((estimate.error / mean) ** 2 for estimate in estimates))
        scatter.append(statistics.variance(values) / mean**2)
    return {
        "stated": math.sqrt(statistics.fmean(stated)),
        "scatter": math.sqrt(statistics.fmean(scatter)),
        "speedup": statistics.fmean(means),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=6)
    parser.add_argument("--images", type=int, default=48, help="images whose passes are counted, for each setting")
    parser.add_argument("--captions", type=int, default=3, help="timed captions of each setting's own ratio")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    models = load_folder()
    configs = [VANILLA, *(config for settings in SHAPES for config in settings)]
    engines = {config: engine_for(models, config, batch=1) for config in configs}
    requests = held_out_requests(models, options.repeats * options.images)
    repeats = []
    for number in range(options.repeats):
        span = requests[number * options.images : (number + 1) * options.images]
        repeats.append(repeat(engines, span, options.captions))
        print(f"repeat {number + 1} of {options.repeats}, load {os.getloadavg()[0]:.1f}", flush=True)
        if number:
            show({method: summary([estimates[method] for estimates in repeats]) for method in METHODS}, options.json)


def show(found: dict[str, dict[str, float]], path: Path | None) -> None:
    """Print the table of the repeats so far, and write it as JSON."""
    print(f"{'':<14} {'mean speed-up':>14} {'stated error':>13} {'scatter':>9}")
    for method, row in found.items():
        print(f"{method:<14} {row['speedup']:>14.2f} {100 * row['stated']:>11.1f} % {100 * row['scatter']:>7.1f} %")
    ratios = {name: found["speedup"][name] / found["speedup_timed"][name] for name in ("stated", "scatter")}
    print(f"speedup / speedup_timed: stated {ratios['stated']:.2f}, scatter {ratios['scatter']:.2f}", flush=True)
    if path:
        path.write_text(json.dumps(found | {"ratios": ratios, "load": os.getloadavg()[0]}, indent=1) + "\n")


if __name__ == "__main__":
    main()
