"""The parts of `benchmarks.gpu`, each in a process of its own: a hang, a crash or a broken device
costs one case.
"""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable
from importlib import import_module

import torch

from benchmarks.gpu.record import NO_CASE, Record, Row, Setup
from workers.decoding.graphs import PassGraphs
from workers.runtime.memory import free_memory

GRACE_S = 60.0  # that the last case of a part may take beyond its limit
START_AGAIN = 3  # exit status: the device is not usable in this process any more


def run_part(
    record: Record, module: str, setup: Setup, seconds: float, started: float | None = None
) -> None:
    """Measure a part's cases that have no row yet, until `seconds` are spent.

    module: of the part: its last name is the part's, and its `cases` are measured. started: when
    this process was started, in seconds since the epoch.

    Raises:
        SystemExit: the device does not work in this process any more.
    """
    name = part_name(module)
    begin, measured = time.monotonic(), {row["case"] for row in record.part(name)["rows"]}
    try:
        for case, measure in import_module(module).cases(setup):
            if started is not None:
                startup = record.part(name)["startup_s"] + time.time() - started
                record.update(name, startup_s=startup)
                started = None
            if case in measured:
                continue
            if time.monotonic() - begin > seconds:
                return
            free_memory()
            PassGraphs.failure = None
            record.update(name, running=case)
            start = time.perf_counter()
            row = _attempt(case, measure) | {"case_s": time.perf_counter() - start}
            if PassGraphs.failure is not None:
                row["graph_failure"] = PassGraphs.failure
            record.update(name, [row], running=None)
            print(f"{name}: {_describe(row)}", flush=True)
            if setup.is_cuda and "error" in row:
                _check_device()
    except Exception as error:  # outside of the cases
        record.update(name, [{"case": NO_CASE, "error": _one_line(error)}])
    record.update(name, complete=True)


def _attempt(case: str, measure: Callable[[], Row]) -> Row:
    """The row of a case; of one that fails, its error."""
    try:
        return {"case": case, **measure()}
    except Exception as error:  # whatever it is, other cases are measured
        return {"case": case, "error": _one_line(error)}


def _one_line(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:500]}"


def _describe(row: Row) -> str:
    """A row in a line: numbers to four digits."""
    values = {
        key: f"{value:.4g}" if isinstance(value, float) else value
        for key, value in row.items()
        if key != "case"
    }
    return f"{row['case']}: " + ", ".join(
        f"{key} {value}" for key, value in values.items() if value is not None
    )


def _check_device() -> None:
    """Raises SystemExit after an error that ends all work on the device in this process, such as an
    illegal address.
    """
    try:
        torch.cuda.synchronize()
    except RuntimeError:
        raise SystemExit(START_AGAIN) from None


def part_name(module: str) -> str:
    """As results name the part of a module."""
    return module.rpartition(".")[2]


def supervise(
    record: Record, module: str, setup: Setup, limit: float, grace: float = GRACE_S
) -> None:
    """Run a part in processes of its own, one after another until it is complete or `limit` seconds
    are spent. One that hangs or dies costs the case that it was measuring.
    """
    name, begin = part_name(module), time.monotonic()
    while not record.part(name)["complete"] and (left := limit - (time.monotonic() - begin)) > 0:
        process = multiprocessing.get_context("spawn").Process(
            target=run_part, args=(record, module, setup, left, time.time())
        )
        process.start()
        process.join(left + grace)
        if process.is_alive():
            process.kill()
            process.join()
            if record.part(name).get("running"):
                record.fail(name, f"stopped: the part may take {limit:.0f} s")
        elif process.exitcode not in (0, START_AGAIN):
            record.fail(name, f"its process ended with exit status {process.exitcode}")
