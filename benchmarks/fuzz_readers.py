"""The commands that read a store, by kind of file, run in this process: exit code, messages, and
the data they give.
"""

from __future__ import annotations

import json
import multiprocessing
import re
import signal
import sqlite3
import time
import traceback
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from types import FrameType
from typing import Any

from orchestrator.store.records import read_trials
from orchestrator.store.sweep import Sweep
from tests.fakes.command_line import specfrontier
from tests.fakes.local_pool import local_launches
from workers.data.storage import Storage

MAX_SECONDS = 20.0  # of a command
NAME = "fuzzed"  # of the sweep
_CHILDREN = multiprocessing.get_context("forkserver")
_CHILDREN.set_forkserver_preload(
    ["mlflow.store.tracking.sqlalchemy_store", "mlflow.tracking", __name__]
)


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a command ended, everything it printed, and the data that it printed or wrote, without
    times.
    """

    code: int
    text: str
    data: Any = None
    crashed: bool = False
    seconds: float = 0.0


class _TooLong(BaseException):
    """No command handles it, as it would handle a TimeoutError."""


def digests(folder: Path) -> dict[str, str]:
    """The SHA-256 of every file below a folder."""
    return {
        str(path): sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def timed(run: Callable[[], tuple[int, str, Any]]) -> Outcome:
    """Run a command in this process; a traceback, or more than `MAX_SECONDS`, is an outcome too."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise _TooLong(f"longer than {MAX_SECONDS:g} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, MAX_SECONDS)
    begin = time.monotonic()
    try:
        code, text, data = run()
        return Outcome(code, text, data, "Traceback" in text, time.monotonic() - begin)
    except BaseException:  # whatever a damaged file leads to
        return Outcome(-1, traceback.format_exc(), crashed=True, seconds=time.monotonic() - begin)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def _status(store: Path) -> tuple[int, str, Any]:
    result = specfrontier("status", str(store), "--json")
    data = json.loads(result.out) if result.out else {}
    return result.code, result.err + str(data.pop("warnings", "")), data | {"idle_s": None}


def _pareto(store: Path) -> tuple[int, str, Any]:
    result = specfrontier("pareto", str(store), "--all", "--knee", "--json")
    warnings = json.loads(result.out)["warnings"] if result.code == 0 else []
    return result.code, "\n".join([result.err, *warnings]), result.out


def _compare(store: Path) -> tuple[int, str, Any]:
    result = specfrontier("compare", str(store), str(store), "--json")
    return result.code, result.err, result.out


def _report(store: Path) -> tuple[int, str, Any]:
    page = store / "page.html"
    result = specfrontier("report", str(store), "--out", str(page))
    text = page.read_text() if page.exists() else ""
    return result.code, result.err, re.sub(r'"written":"[^"]*"', "", text).replace(str(store), "")


def _images(store: Path) -> tuple[int, str, Any]:
    """The images' rows by the Python API, and the tables that the store keeps."""
    try:
        sweep = Sweep.open(store)
        return 0, "", [sweep.images(record.number).to_pylist() for record in sweep.records]
    except (ValueError, OSError) as error:
        return 1, str(error), None


def _launch(store: Path, *options: str) -> tuple[int, str, Any]:
    """`launch --resume` to four trials: the last one has its shards and no record."""
    space = store.parents[1] / "space.yaml"
    with local_launches():
        arguments = ("--out", str(store.parent), "--trials", "4", "--resume", "--no-mlflow")
        result = specfrontier("launch", str(space), *arguments, *options)
    if options or result.code:
        return result.code, result.err, result.out if options else None
    records = [
        (r.number, r.state, r.config, r.metrics, r.shards) for r in read_trials(Storage(store))
    ]
    pareto = specfrontier("pareto", str(store), "--all", "--json")
    shown = json.loads(pareto.out) if pareto.code == 0 else {}
    said = [result.err, pareto.err, *shown.pop("warnings", ())]
    return result.code + pareto.code, "\n".join(said), (records, shown)


def _check(store: Path) -> tuple[int, str, Any]:
    return _launch(store, "--check")


def log_to_mlflow(store: Path) -> tuple[int, str, Any]:
    """`sync` in a child process, because MLflow keeps connections of its own; then everything that
    MLflow holds.
    """
    output = store.parents[1] / "child.json"
    process = _CHILDREN.Process(target=_sync_in_child, args=(str(store), str(output)))
    process.start()
    process.join(MAX_SECONDS)
    if process.exitcode is None:
        process.kill()
        raise TimeoutError(f"sync: longer than {MAX_SECONDS:g} s")
    code, err = (
        json.loads(output.read_text()) if process.exitcode == 0 else (-1, "Traceback: sync died")
    )
    database = store.parent / "mlflow.db"
    data = None
    if code == 0:
        with closing(sqlite3.connect(database)) as connection:
            data = [sorted(connection.execute(query).fetchall()) for query in _MLFLOW]
        data.append(sorted(digests(store.parent / "mlartifacts").items()))
    return code, err, data


_RUNS = "from {} t join runs r using (run_uuid) where r.lifecycle_stage = 'active'"
_MLFLOW = (
    "select r.name, t.key, t.value, t.step " + _RUNS.format("metrics"),
    "select r.name, t.key, t.value " + _RUNS.format("params"),
    "select r.name, t.key, t.value " + _RUNS.format("tags") + " and t.key not like 'mlflow.%'"
    " and t.value not like '%' || r.run_uuid || '%' and t.key not like '%parent%'",
    "select name, status from runs where lifecycle_stage = 'active'",
)


def _sync_in_child(store: str, output: str) -> None:
    result = specfrontier("sync", store)
    Path(output).write_text(json.dumps([result.code, result.err]))


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of file: a pattern of paths relative to the folder of sweeps, the readers that are
    always asked, and those that are asked in turn because they take seconds.
    """

    pattern: str
    quick: tuple[Callable[[Path], tuple[int, str, Any]], ...] = ()
    slow: tuple[Callable[[Path], tuple[int, str, Any]], ...] = ()

    def readers(
        self, number: int, every: int
    ) -> tuple[Callable[[Path], tuple[int, str, Any]], ...]:
        """Of a case: a slow one every so many cases, or always where there is no quick one."""
        if self.quick and (number + 1) % every:
            return self.quick
        turn = number // every if self.quick else number
        return (*self.quick, self.slow[turn % len(self.slow)])


KINDS: Mapping[str, Kind] = {
    "sweep.yaml": Kind(f"{NAME}/sweep.yaml", (_status, _report), (_check, _launch)),
    "identity.json": Kind(
        f"{NAME}/identity.json", (_status, _pareto), (_compare, _report, _launch, log_to_mlflow)
    ),
    "trials": Kind(
        f"{NAME}/trials/*.json",
        (_status, _pareto, _images),
        (_compare, _report, _launch, log_to_mlflow),
    ),
    "quality shards": Kind(f"{NAME}/shards/quality-*.parquet", (_images, _report), (_launch,)),
    "timing sessions": Kind(f"{NAME}/timings/timing-*.parquet", (_pareto,), (_launch,)),
    "measures": Kind(f"{NAME}/measures/*.json", (), (_launch,)),
    "reference.parquet": Kind(f"{NAME}/reference.parquet", (), (_launch,)),
    "predictions.parquet": Kind(f"{NAME}/predictions.parquet", (), (_launch,)),
    "pictures": Kind(f"{NAME}/pictures/*.png", (_report,), (log_to_mlflow,)),
    "heatmaps": Kind(f"{NAME}/heatmaps/*.png", (_report,), (log_to_mlflow,)),
    "events.jsonl": Kind(f"{NAME}/events.jsonl", (_status,), (_launch,)),
    "study.log": Kind(f"{NAME}/study.log", (), (_launch,)),
    "tables": Kind(f"{NAME}/*[lt].parquet", (_pareto,), (_launch,)),
    "front.png": Kind(f"{NAME}/front.png", (_status,), (log_to_mlflow,)),
    "report.html": Kind(f"{NAME}/report.html", (_status,), (_launch,)),
    "mlflow.json": Kind(f"{NAME}/mlflow.json", (_status,), (log_to_mlflow,)),
    "mlflow.db": Kind("mlflow.db", (), (log_to_mlflow,)),
    "store.id": Kind(f"{NAME}/store.id", (_status,), (_launch,)),
    "locks": Kind(f"{NAME}/*.lock", (_status,), (_launch, log_to_mlflow)),
    "logs": Kind(f"{NAME}/logs/*.log", (_status,), (_launch,)),
}
