"""A sweep in a process of its own on a cluster, launched again with --resume whenever its driver
ends.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Collection
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.chaos_cluster import LOCAL, Cluster, Host, project_environment
from orchestrator.errors import WRONG_USAGE
from orchestrator.views.mlflow_client import free_port, serving

COMMAND = (sys.executable, "-c", "from orchestrator.cli.app import main; main()")
# of SWEEP, those that timing does not change
METRICS = ("step_compression", "caption_accuracy", "fid", "drift")
SWEEP = """
name: chaos
models: builtin
captions: {source: scenes, count: 70, seed: 1}
reference: {source: scenes, count: 96, seed: 2}
quality: {batch: 7, shard: 7}
timing: {batch: 1, images: 2, repetitions: 1}
metrics: [step_compression, caption_accuracy, fid, drift, speedup]
objectives: [step_compression, fid]
search: {sampler: nsga2, parallel: 4, seed: 0, options: {population_size: 4}}
space:
  drafter: eagle
  tree: {policy: chain, length: {low: 3, high: 5}}
  acceptance:
    - exact
    - neighbourhood: additive
      k: {low: 2, high: 100, log: true}
      delta: {low: 0.02, high: 0.5, log: true}
    - {schedule: constant, budget: {low: 1.05, high: 3.0, log: true}}
"""
POLL_S = 0.2
_TIMEOUT_S = 300.0  # for a launch to deliver; a busy machine needs a fifth
_EXTRA_TRIALS = 20  # when a budget is spent before the faults are


class ChaosError(RuntimeError):
    """The sweep hangs, or a launch ends in a way that no fault explains."""


@dataclass
class Tracking:
    """An MLflow server that can be killed and started again at its address."""

    folder: Path
    port: int = field(default_factory=lambda: free_port("127.0.0.1", 0))
    process: subprocess.Popen[bytes] | None = None
    _running: ExitStack = field(default_factory=ExitStack)

    @property
    def uri(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        server = serving(f"sqlite:///{self.folder}/mlflow.db", "127.0.0.1", self.port)
        _, self.process = self._running.enter_context(server)

    def kill(self) -> None:
        """Kill the server with its children."""
        assert self.process is not None
        os.killpg(self.process.pid, signal.SIGKILL)
        self.stop()

    def stop(self) -> None:
        self._running.close()


@dataclass
class ChaosSweep:
    """The sweep of `text`, with its folder below `out`.

    endings: exit codes of the launches that ended. identities: inode and time of each result file
    seen. torn: names of files that may be written again.
    """

    out: Path
    text: str
    trials: int
    cluster: Cluster
    tracking: Tracking | None = None
    host: Host = LOCAL
    process: subprocess.Popen[bytes] | None = None
    endings: list[int] = field(default_factory=list)
    torn_record: Path | None = None
    identities: dict[str, tuple[int, int]] = field(default_factory=dict)
    rewritten: set[str] = field(default_factory=set)
    torn: set[str] = field(default_factory=set)
    _launched_at: int = 0  # in the output
    _inode: int = 0
    _read: int = 0
    _events: list[dict[str, Any]] = field(default_factory=list)

    @property
    def store(self) -> Path:
        return self.out / self.text.split()[1]

    @property
    def output(self) -> Path:
        return self.out.parent / "output.txt"

    def command(self) -> list[str]:
        space = self.out.parent / "space.yaml"
        space.write_text(self.text)
        tracking = ["--tracking-uri", self.tracking.uri] if self.tracking else ["--no-mlflow"]
        budget = ["--trials", str(self.trials), "--resume"]
        workers = ["--address", self.cluster.address, "--gpus-per-worker", "0"]
        workers += ["--workers", str(self.cluster.worker_nodes)]
        launch = [*COMMAND, "launch", str(space), "--out", str(self.out)]
        return [*launch, *budget, *workers, *tracking]

    def launch(self) -> None:
        with self.output.open("ab") as log:
            self._launched_at = log.tell()
            self.process = subprocess.Popen(
                self.host.command(self.command()),
                env=project_environment(),
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                cwd=self.out.parent,
            )

    def events(self) -> list[dict[str, Any]]:
        """All events so far; a line that a full store cut off is none."""
        with suppress(FileNotFoundError), (self.store / "events.jsonl").open("rb") as file:
            facts = os.fstat(file.fileno())
            # a new file, or a torn one
            if facts.st_ino != self._inode or facts.st_size < self._read:
                self._inode, self._read, self._events = facts.st_ino, 0, []
            file.seek(self._read)
            data = file.read()
            lines = data[: data.rfind(b"\n") + 1]
            self._read += len(lines)
            for line in lines.splitlines():
                with suppress(ValueError):
                    self._events.append(json.loads(line))
        return self._events

    def count(self, kind: str) -> int:
        return sum(event["event"] == kind for event in self.events())

    def files(self) -> int:
        """The number of files that workers have written. Files that were written again are added to
        `rewritten`.
        """
        paths = [
            path
            for folder in ("shards", "timings", "measures")
            for path in (self.store / folder).glob("[!.]*")
        ]
        for path in paths:
            with suppress(FileNotFoundError):  # set aside
                facts = path.stat()
                identity = facts.st_ino, facts.st_mtime_ns
                if (
                    self.identities.setdefault(path.name, identity) != identity
                    and path.name not in self.torn
                ):
                    self.rewritten.add(path.name)
        return len(paths)

    def workers(self) -> int:
        """The number of workers that the driver has now."""
        alive = 0
        for event in self.events():
            alive = 0 if event["event"] == "launch" else event.get("alive", alive)
        return alive

    def wait_delivering(
        self, notice: str = "", allowed: Collection[int] = (), start: int | None = None
    ) -> None:
        """Wait until every node has its worker and two more files are written, after one more event
        of the kind `notice`.

        start: the number of such events before. A launch that ends with an allowed code, or has
        spent its budget, is followed by another.

        Raises:
            ChaosError: another code, a traceback, or nothing happens for minutes.
        """
        start = self.count(notice) if start is None else start
        end, files = time.monotonic() + _TIMEOUT_S, None
        workers = self.cluster.worker_nodes
        while files is None or self.workers() < workers or self.files() < files + 2:
            if files is None and (not notice or self.count(notice) > start):
                files = self.files()
            self.cluster.repair()
            if (code := self.poll()) is not None:
                self.relaunch(code, allowed)
            if time.monotonic() > end:
                raise ChaosError(
                    f"nothing happens for {_TIMEOUT_S:.0f} s; {self.output}: {self.last_line()}"
                )
            time.sleep(POLL_S)

    def poll(self) -> int | None:
        """The exit code of a launch that has ended."""
        assert self.process is not None
        return self.process.poll()

    def wait(self, timeout_s: float) -> int:
        """The exit code of the launch. Raises ChaosError if it does not end."""
        assert self.process is not None
        try:
            return self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise ChaosError(
                f"the launch did not end within {timeout_s:g} s; {self.output}: {self.last_line()}"
            ) from None

    def send_signal(self, number: signal.Signals) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def relaunch(self, code: int, allowed: Collection[int]) -> None:
        """Launch again after an exit code that is allowed, or 0: then the budget was too small for
        the faults.

        A launch that refused the damaged record says that it can be removed.
        """
        self.check_ending(code, allowed)
        if code == WRONG_USAGE and self.torn_record is not None:
            self.torn_record.unlink()
            self.torn_record = None
        self.trials += _EXTRA_TRIALS if code == 0 else 0
        self.launch()

    def check_ending(self, code: int, allowed: Collection[int]) -> None:
        """Raise ChaosError unless a launch ended well, or with an allowed code and the command that
        resumes it.
        """
        last = self.last_line()
        self.endings.append(code)
        if "Traceback" in self.last_output():
            raise ChaosError(f"{self.output}: a traceback")
        has_advice = "resume with: " in last or "remove it" in last or code < 0
        if code != 0 and (code not in allowed or not has_advice):
            raise ChaosError(f"exit code {code}, allowed {sorted(allowed)}; {self.output}: {last}")

    def last_output(self) -> str:
        """What the last launch printed."""
        return self.output.read_bytes()[self._launched_at :].decode("utf-8", "replace")

    def last_line(self) -> str:
        return next(
            (line for line in reversed(self.last_output().splitlines()) if line.strip()), ""
        )

    def recover(self) -> None:
        """Start another cluster and another launch after a ChaosError."""
        self.stop()
        self.cluster.restart()
        self.launch()
        self.wait_delivering()

    def stop(self) -> None:
        """Kill the driver, if one runs."""
        if self.process is not None and self.process.poll() is None:
            self.kill()
            self.process.wait()

    def finish(self, trials: int) -> None:
        """Run to the end of a budget."""
        self.trials = trials
        self.launch()
        self.wait_to_end()

    def wait_to_end(self) -> None:
        """Wait until the budget is spent. Raises ChaosError for any other end."""
        self.check_ending(self.wait(4 * _TIMEOUT_S), ())
