"""A timing session as a sweep takes it, twice: whether the costs of the two agree within their
errors.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import cache, partial

from benchmarks.common import held_out_requests
from benchmarks.gpu.models import XL, builtin_models, random_models
from benchmarks.gpu.record import Case, Row, Setup
from search_spaces.presets import preset
from workers.data.shards import TimingSession
from workers.loading.models import Models
from workers.metrics.costs import Prices
from workers.metrics.timings import readings_of
from workers.runtime.engines import Engines
from workers.runtime.sessions import time_session

CODES = 16384
SETTINGS = ("vanilla", "eagle1", "eagle2", "lantern_pp", "adt")
Z = 1.96


def twice(load: Callable[[], Models], batch: int, images: int, repetitions: int) -> Row:
    """Costs of a step against vanilla's by two sessions of the same captions, their relative
    standard errors within a sitting, and the settings whose costs differ by more than the errors
    explain.
    """
    models = load()
    configs, requests = {name: preset(name) for name in SETTINGS}, held_out_requests(models, images)
    engines, shapes = (
        Engines(models, 0, lambda: False),
        {each.digest(): each.shape for each in configs.values()},
    )
    sessions = []
    for number in range(2):
        task = TimingSession(
            tuple(configs.values()), 0, images, (batch,), repetitions, number=number
        )
        rows, device, _ = time_session(engines, requests, task)
        readings = readings_of(rows, shapes)
        prices = Prices([readings], configs["vanilla"].shape)
        sessions.append(
            {
                name: (
                    prices.step_cost(config.shape).value,
                    prices.error_in_sitting(config.shape, readings.sitting),
                )
                for name, config in configs.items()
            }
        )
    distances = {}
    for name in configs:
        (one, one_error), (other, other_error) = (session[name] for session in sessions)
        error = math.hypot(one_error, other_error)
        distances[name] = abs(math.log(one / other)) / error if error else 0.0
    return {
        "device": str(device),
        "units": readings.units,
        "costs": {name: [session[name][0] for session in sessions] for name in configs},
        "errors": {name: [session[name][1] for session in sessions] for name in configs},
        "differing": [name for name, distance in distances.items() if distance > Z],
        "largest_z": max(distances.values()),
    }


def cases(setup: Setup) -> Iterator[Case]:
    published = cache(partial(random_models, setup, XL))
    if setup.is_tiny:
        yield f"{XL}, batch 1", partial(twice, published, 1, 2, 1)
        return
    yield (
        "built-in, V 16384, batch 1",
        partial(twice, cache(partial(builtin_models, setup, CODES)), 1, 8, 2),
    )
    yield f"{XL}, batch 8", partial(twice, published, 8, 16, 2)
