"""Brings MLflow in line with a sweep's store: looks at what is there, adds what is missing, mends what is half done.

Every step can be cut off and taken again. A trial's run is made with all of its tags in one call, so that it is found
again by them; being terminated is the last thing that happens to it; only then the ledger gets its line.
"""

from __future__ import annotations

import logging
import os
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import yaml

from orchestrator.results.redaction import redacted
from orchestrator.results.store import (
    FRONT_PLOT,
    FRONT_TABLE,
    HEAT_MAPS,
    IDENTITY,
    IMAGE_GRIDS,
    REPORT,
    SWEEP,
    TRIAL_TABLE,
    read_trials,
)
from orchestrator.results.trials import COMPLETE, TrialRecord
from orchestrator.tracking import runs
from orchestrator.tracking.outbox import Event, Ledger, Logged, TrackingError, artifact_folder, shown
from workers.data.storage import Storage

if TYPE_CHECKING:
    from mlflow.entities import Run
    from mlflow.tracking import MlflowClient

ENDS: Mapping[Event, str] = {"finished": "FINISHED", "interrupted": "KILLED", "started": "KILLED", "failed": "FAILED"}
VIEWS = (FRONT_PLOT, REPORT, FRONT_TABLE, TRIAL_TABLE, SWEEP, IDENTITY)
PICTURES = {"images.png": IMAGE_GRIDS, "heatmap.png": HEAT_MAPS}
PAGE = 1000
EXPERIMENT_TAGS = {"mlflow.experimentKind": "custom_model_development"}  # else MLflow asks whether it is a chatbot's
# The flusher itself tries again, after looking whether the last try arrived: a request that is sent twice unseen would
# make two runs of one trial. So nobody's environment overrides this one.
NO_RETRIES = {"MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0"}
SETTINGS = {
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "20",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
    "MLFLOW_LOGGING_LEVEL": "ERROR",
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
    "GIT_PYTHON_REFRESH": "quiet",
}


@dataclass(slots=True)
class Child:
    """A trial's run as MLflow has it."""

    run_id: str
    status: str
    params: set[str]
    pareto: str

    @property
    def whole(self) -> bool:
        return self.status != "RUNNING"


class Mirror:
    """One sweep in one MLflow experiment. Not for several threads or processes at once (see `sole_writer`).

    Every method may raise what MLflow and the storage raise; afterwards `update` starts from what it finds there.
    """

    def __init__(self, storage: Storage, uri: str, experiment: str) -> None:
        self.storage, self.uri, self.experiment = storage, uri, experiment
        self.ledger = Ledger(storage)
        self.facts = runs.Facts.read(storage)
        self.records: dict[int, TrialRecord] = {}
        self._listed: dict[int, Child] | None = None
        self._said: tuple[object, ...] = ()
        self._client: MlflowClient | None = None
        self.experiment_id = self.parent = ""

    def update(self, *, running: bool = True) -> int:
        """Log what is new in the store, and bring what is there up to date; returns the number of runs logged.

        running: the sweep goes on, and its parent run shows it.
        """
        children = self._listed
        if children is None:
            children = self._connect(running)
        self._listed = None  # until all went well
        self._read_new()
        front = runs.front(list(self.records.values()), self.facts)
        logged = self._log(children, front)
        self._even_out(children, front)
        self._tell_parent(children, front)
        self._listed = children
        return logged

    def end(self, event: Event) -> None:
        """Upload the sweep's views to its run and say how it ended. For after an `update`."""
        with tempfile.TemporaryDirectory() as folder:
            self._fetch({name: name for name in VIEWS}, Path(folder))
            self._mlflow.log_artifacts(self.parent, folder)
        last = max((runs.span(record, self.facts)[1] for record in self.records.values()), default=None)
        self._mlflow.set_terminated(self.parent, ENDS[event], last)

    @property
    def _mlflow(self) -> MlflowClient:
        if self._client is None:
            self._client = client_of(self.uri)
        return self._client

    def _connect(self, running: bool) -> dict[int, Child]:
        """Find or make the experiment and the parent, and list the trials that are there."""
        self.experiment_id = self._find_experiment()
        sweep = f"tags.{runs.SWEEP_ID} = '{self.facts.id}'"
        found = self._search(f"{sweep} and tags.{runs.KIND} = 'sweep'")
        self.parent = self._only(found) if found else self._make_parent()
        if running and found:
            self._mlflow.update_run(self.parent, status="RUNNING")
        known = {run.run_id for run in self.ledger.runs()}
        groups: dict[int, list[Run]] = {}
        for run in self._search(f"{sweep} and tags.{runs.PARENT} = '{self.parent}'"):
            groups.setdefault(int(run.data.tags[runs.TRIAL]), []).append(run)
        for number, group in groups.items():
            keep = self._only(group, known)
            groups[number] = [run for run in group if run.info.run_id == keep]
        return {
            number: Child(run.info.run_id, run.info.status, set(run.data.params), run.data.tags.get(runs.PARETO, ""))
            for number, (run,) in groups.items()
        }

    def _find_experiment(self) -> str:
        from mlflow.exceptions import MlflowException

        found = self._mlflow.get_experiment_by_name(self.experiment)
        if found is None:
            folder = artifact_folder(self.storage, self.uri)
            place = None if folder is None else str(folder / self.experiment.replace("/", "-"))
            try:
                return str(self._mlflow.create_experiment(self.experiment, place, tags=EXPERIMENT_TAGS))
            except MlflowException:  # another sweep of this name was quicker
                found = self._mlflow.get_experiment_by_name(self.experiment)
                if found is None:
                    raise
        if found.lifecycle_stage != "active":
            mend = f"mlflow experiments restore --experiment-id {found.experiment_id}"
            raise TrackingError(f"the MLflow experiment {self.experiment!r} is deleted; choose another, or {mend}")
        return str(found.experiment_id)

    def _make_parent(self) -> str:
        tags = self.facts.tags() | {runs.KIND: "sweep"}
        run = self._mlflow.create_run(self.experiment_id, self.facts.started, tags, self.facts.name)
        return str(run.info.run_id)

    def _search(self, condition: str) -> list[Run]:
        found: list[Run] = []
        token = None
        while True:
            page = self._mlflow.search_runs([self.experiment_id], condition, max_results=PAGE, page_token=token)
            found += page
            token = page.token
            if not token:
                return found

    def _only(self, found: list[Run], known: Iterable[str] = ()) -> str:
        """The one run to keep of several that stand for the same thing; the others are deleted.

        Several come about when a server that does not answer in time makes the run after all.
        """
        first, *others = sorted(
            found, key=lambda run: (run.info.run_id not in known, run.info.status == "RUNNING", run.info.run_id)
        )
        for run in others:
            self._mlflow.delete_run(run.info.run_id)
        return str(first.info.run_id)

    def _read_new(self) -> None:
        self.records |= {record.number: record for record in read_trials(self.storage, self.records)}

    def _log(self, children: dict[int, Child], front: set[int]) -> int:
        """Log every trial that has no whole run, in their order; returns how many."""
        done = self.ledger.trials(self.uri, self.experiment)
        logged = 0
        for number, record in sorted(self.records.items()):
            child = children.get(number)
            if child is None or not child.whole:
                children[number] = child = self._log_trial(record, child, pareto=number in front)
                logged += 1
            if number not in done or done[number].run_id != child.run_id:
                place = (shown(self.uri), self.experiment, self.experiment_id, self.parent)
                self.ledger.add(Logged(*place, number, child.run_id))
        return logged

    def _log_trial(self, record: TrialRecord, child: Child | None, *, pareto: bool) -> Child:
        """Make the run of a trial, or complete it. What is sent a second time is equal, and counts once."""
        from mlflow.entities import Metric, Param

        started, finished = runs.span(record, self.facts)
        if child is None:
            tags = runs.tags(record, self.facts, self.parent, pareto=pareto)
            run = self._mlflow.create_run(self.experiment_id, started, tags, runs.run_name(record, self.facts))
            child = Child(run.info.run_id, "RUNNING", set(), tags[runs.PARETO])
        params = runs.params(record)
        metrics = [Metric(point.name, point.value, finished, point.step) for point in runs.points(record)]
        self._mlflow.log_batch(child.run_id, metrics, [Param(key, value) for key, value in params.items()])
        child.params |= params.keys()
        with tempfile.TemporaryDirectory() as folder:
            if record.digest and record.state == COMPLETE:
                stored = {name: f"{place}/{record.digest}.png" for name, place in PICTURES.items()}
                self._fetch(stored, Path(folder))
            text = yaml.safe_dump(
                record.config.to_mapping() if record.config else {}, sort_keys=False, allow_unicode=True
            )
            Path(folder, "config.yaml").write_text(text, "utf-8")
            self._mlflow.log_artifacts(child.run_id, folder)
        child.status = runs.status(record)
        self._mlflow.set_terminated(child.run_id, child.status, finished)
        return child

    def _fetch(self, names: Mapping[str, str], folder: Path) -> None:
        """Copy files of the store into a folder under the names that they have in MLflow; those that it lacks not.

        Whoever reads MLflow may see them, so no credentials go along.
        """
        for name, stored in names.items():
            if self.storage.exists(stored):
                (folder / name).write_bytes(redacted(stored, self.storage.read(stored)))

    def _even_out(self, children: Mapping[int, Child], front: set[int]) -> None:
        """Give every run the same params, and mark those, and only those, that are on the front now."""
        from mlflow.entities import Param, RunTag

        keys = {key for child in children.values() for key in child.params}
        for number, child in children.items():
            pareto = runs.word(number in front)
            absent = keys - child.params
            if absent or child.pareto != pareto:
                padding = [Param(key, runs.INACTIVE) for key in sorted(absent)]
                self._mlflow.log_batch(child.run_id, (), padding, [RunTag(runs.PARETO, pareto)])
                child.params, child.pareto = child.params | keys, pareto

    def _tell_parent(self, children: Mapping[int, Child], front: set[int]) -> None:
        """Numbers, params and description of the sweep's run, if they are not what was said last."""
        from mlflow.entities import Metric, Param, RunTag

        said = (self.parent, len(children), frozenset(front))
        if said == self._said:
            return
        count = len(self.records)
        failed = sum(record.state != COMPLETE for record in self.records.values())
        moment = max((runs.span(record, self.facts)[1] for record in self.records.values()), default=self.facts.started)
        numbers = {"trials": count, "failed": failed, "front": len(front)}
        metrics = [Metric(name, float(value), moment, count) for name, value in numbers.items()]
        known = self._mlflow.get_run(self.parent).data.params
        params = [Param(key, value) for key, value in self.facts.params().items() if key not in known]
        best = [(children[number].run_id, self.records[number]) for number in sorted(front)]
        note = RunTag(runs.NOTE, runs.note(self.facts, best, self.experiment_id))
        self._mlflow.log_batch(self.parent, metrics, params, [note])
        self._said = said


def client_of(uri: str) -> MlflowClient:
    """A client that gives up at once when the server is away, and says nothing on the terminal."""
    os.environ.update(NO_RETRIES)
    for key, value in SETTINGS.items():
        os.environ.setdefault(key, value)
    from mlflow.tracking import MlflowClient

    for name in ("mlflow", "alembic"):
        logging.getLogger(name).setLevel(logging.ERROR)
    return MlflowClient(tracking_uri=uri)
