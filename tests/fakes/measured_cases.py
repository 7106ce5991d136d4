"""A part of `benchmarks.gpu` whose cases, named in MEASURED_CASES, do what their names say."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from functools import partial

from benchmarks.gpu.record import Case, Row, Setup
from workers.decoding.graphs import PassGraphs


def cases(setup: Setup) -> Iterator[Case]:
    for name in os.environ["MEASURED_CASES"].split():
        if name == "breaks":
            raise RuntimeError("no case after this one")
        yield name, partial(_act, name)


def _act(name: str) -> Row:
    match name.partition("-")[0]:
        case "fails":
            raise ValueError("no\nsuch   thing")
        case "uncaptured":
            assert PassGraphs.failure is None
            PassGraphs.failure = "a synchronisation"
        case "dies":
            os._exit(7)
        case "hangs":
            time.sleep(600)
    return {"process": os.getpid()}
