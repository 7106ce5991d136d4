"""The curve of a training in MLflow: a run that follows the training's journal, and never holds it up.

The journal is the truth. A resumed training goes on in the same run: its steps are the same, and those that MLflow has
are not sent again.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator.tracking.mirror import ENDS, EXPERIMENT_TAGS, client_of
from orchestrator.tracking.outbox import artifact_folder, resolve, safe, shown
from orchestrator.tracking.runs import MAX_PARAM, clean, legal, user
from workers.data.storage import Storage

if TYPE_CHECKING:
    from mlflow.tracking import MlflowClient

EXPERIMENT = "specfrontier/train"
RUN = "eagle.mlflow.json"
PAUSE = 2.0  # seconds between looks at the journal
PATIENCE = 30.0  # seconds that the end waits for MLflow
MOST = 500  # metrics of one request


class Curve:
    """Sends a journal's lines to MLflow from a thread of its own. No method raises for what MLflow does or fails to do.

    uri: tracking server or database (None: as for sweeps, see `resolve`).
    """

    def __init__(
        self, journal: Path, storage: Storage, *, uri: str | None, params: Mapping[str, Any], resume: bool
    ) -> None:
        self._journal, self._storage, self._params = journal, storage, params
        self._uri = resolve(storage, uri)
        self._notes = journal.with_name(RUN)
        if not resume:
            self._notes.unlink(missing_ok=True)
            journal.unlink(missing_ok=True)
        self._client: MlflowClient | None = None
        self._run = ""
        self._sent = 0  # lines of the journal
        self._problem: str | None = None
        self._event = "started"
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="mlflow", daemon=True)

    def start(self) -> None:
        """Begin to send. Returns at once."""
        self._thread.start()

    def finish(self, event: str) -> str | None:
        """Send what is left, say how the training ended; returns what is wrong, None if MLflow has everything."""
        self._event = event
        self._closing.set()
        self._thread.join(PATIENCE)
        return "it does not answer" if self._thread.is_alive() else self._problem

    def _follow(self) -> None:
        deadline = float("inf")
        while True:
            closing = self._closing.is_set()
            if closing and deadline == float("inf"):
                deadline = time.monotonic() + PATIENCE / 2
            done = self._try(closing)
            if closing and (done or time.monotonic() > deadline):
                return
            self._closing.wait(PAUSE)

    def _try(self, closing: bool) -> bool:
        try:
            self._send()
            if closing:
                self._connected().set_terminated(self._run, ENDS[self._event])  # type: ignore[index]
        except Exception as error:  # of MLflow, its database and its transport: there is no common base
            self._problem = f"MLflow at {shown(self._uri)}: {safe(str(error) or type(error).__name__, self._uri)}"[:400]
            return False
        self._problem = None
        return True

    def _send(self) -> None:
        """Every new line of the journal; a resumed training rewrites its first lines to what they were."""
        from mlflow.entities import Metric

        client = self._connected()
        text = self._journal.read_text("utf-8") if self._journal.exists() else ""
        lines = [line for line in text.splitlines(keepends=True) if line.endswith("\n")]
        now = round(time.time() * 1000)
        found = [
            Metric(legal(name), value, now, int(entry["step"]))
            for entry in map(json.loads, lines[self._sent :])
            for name, value in entry.items()
            if name != "step"
        ]
        for start in range(0, len(found), MOST):
            client.log_batch(self._run, metrics=found[start : start + MOST])
        if len(lines) > self._sent:
            self._sent = len(lines)
            self._note()

    def _note(self) -> None:
        entry = {"uri": shown(self._uri), "run": self._run, "sent": self._sent}
        beside = self._notes.with_suffix(".part")
        beside.write_text(json.dumps(entry) + "\n", "utf-8")
        os.replace(beside, self._notes)

    def _connected(self) -> MlflowClient:
        """The client, after finding or making the run."""
        if self._client is None:
            client = client_of(self._uri)
            known = json.loads(self._notes.read_text("utf-8")) if self._notes.exists() else {}
            if known.get("uri") == shown(self._uri):
                self._run, self._sent = known["run"], known["sent"]
                client.update_run(self._run, status="RUNNING")
            else:
                self._run = self._new_run(client)
                self._note()
            self._client = client
        return self._client

    def _new_run(self, client: MlflowClient) -> str:
        from mlflow.entities import Param

        experiment = client.get_experiment_by_name(EXPERIMENT)
        folder = artifact_folder(self._storage, self._uri)
        number = experiment.experiment_id if experiment is not None else client.create_experiment(
            EXPERIMENT, artifact_location=folder.as_uri() if folder else None, tags=EXPERIMENT_TAGS
        )  # fmt: skip
        tags = clean({"mlflow.user": user(), "mlflow.source.name": "specfrontier train", "mlflow.source.type": "LOCAL"})
        run = client.create_run(number, run_name=self._journal.parent.name, tags=tags)
        params = [Param(legal(key), str(value)[:MAX_PARAM]) for key, value in self._params.items()]
        client.log_batch(run.info.run_id, params=params)
        return str(run.info.run_id)
