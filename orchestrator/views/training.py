"""The loss curve of a training in MLflow, from its journal: one JSON object per logged step."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator.views.follower import Ending, View
from orchestrator.views.mlflow_client import RUN_STATUS, connect, ensure_experiment, explain_error
from orchestrator.views.mlflow_runs import clean_tags, legal_name, param, user

if TYPE_CHECKING:
    from mlflow.tracking import MlflowClient

EXPERIMENT = "specfrontier/train"
_BATCH = 500  # metrics per request


class TrainingView(View[Path]):
    """The curve of a training in MLflow; its source is the journal's path. A resumed training
    continues its run.

    A resumed training repeats its first lines; those that MLflow has are not sent again.
    """

    poll_s = 2.0
    end_timeout_s = 30.0
    short_timeout_s = 10.0

    def __init__(self, journal: Path, uri: str, params: Mapping[str, Any], *, resume: bool) -> None:
        super().__init__()
        self._journal = journal
        self._uri = uri
        self._params = params
        # names the run, and how many lines were sent
        self._run_file = journal.with_name(journal.name.replace("journal.jsonl", "mlflow.json"))
        self._client: MlflowClient | None = None
        self._run_id = ""
        self._sent = 0  # lines of the journal
        if not resume:
            self._run_file.unlink(missing_ok=True)
            journal.unlink(missing_ok=True)

    def update(self, source: Path) -> None:
        """Log every new line."""
        from mlflow.entities import Metric

        client = self._connect()
        self._client = None  # after a failure, the run is looked up again
        text = source.read_text("utf-8") if source.exists() else ""
        # an incomplete last line is still being written
        lines = text.split("\n")[:-1][self._sent :]
        now = round(time.time() * 1000)
        metrics = []
        for entry in map(json.loads, lines):
            step = int(entry.pop("step"))
            metrics += [Metric(legal_name(name), value, now, step) for name, value in entry.items()]
        for start in range(0, len(metrics), _BATCH):
            client.log_batch(self._run_id, metrics=metrics[start : start + _BATCH])
        if lines:
            self._sent += len(lines)
            self._write_run_file()
        self._client = client

    def end(self, source: Path, how: Ending) -> None:
        self._connect().set_terminated(self._run_id, RUN_STATUS[how])

    def explain(self, error: Exception) -> str:
        return explain_error(error, self._uri)

    def describe(self, problem: str) -> str:
        return f"MLflow does not have all of the curve ({problem}); {self._journal} does"

    def _write_run_file(self) -> None:
        entry = {"run": self._run_id, "sent": self._sent}
        unfinished = self._run_file.with_suffix(".part")
        unfinished.write_text(json.dumps(entry) + "\n", "utf-8")
        os.replace(unfinished, self._run_file)

    def _connect(self) -> MlflowClient:
        """The client, once the run is found or created."""
        if self._client is None:
            client = connect(self._uri)
            experiment_id = ensure_experiment(client, self._uri, EXPERIMENT)
            before: dict[str, Any] = {"run": ""}
            if self._run_file.exists():
                before = json.loads(self._run_file.read_text("utf-8"))
            found = client.search_runs([experiment_id], f"attributes.run_id = '{before['run']}'")
            if found:
                self._run_id = before["run"]
                self._sent = before["sent"]
                client.update_run(self._run_id, status="RUNNING")
            else:  # a new training, or a server that does not have its run
                self._run_id = self._create_run(client, experiment_id)
                self._sent = 0
                self._write_run_file()
            self._client = client
        return self._client

    def _create_run(self, client: MlflowClient, experiment_id: str) -> str:
        from mlflow.entities import Param

        tags = {
            "mlflow.user": user(),
            "mlflow.source.name": "specfrontier train",
            "mlflow.source.type": "LOCAL",
        }
        run = client.create_run(
            experiment_id, run_name=self._journal.parent.name, tags=clean_tags(tags)
        )
        params = [Param(legal_name(key), param(value)) for key, value in self._params.items()]
        client.log_batch(run.info.run_id, params=params)
        return str(run.info.run_id)
