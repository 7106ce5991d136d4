"""Copies a sweep's store to MLflow: finds what MLflow has, adds what is missing, completes what was interrupted.

Every step can be interrupted and repeated. A trial's run is created with all of its tags in one call, so a later update
can find it by its tags. Terminating the run is the last step. It is then recorded in the store's run log (`RunLog`).
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator.results import store
from orchestrator.results.config_file import trial_text
from orchestrator.results.names import SettingNames
from orchestrator.results.redaction import redact_file
from orchestrator.results.trials import COMPLETE, FAILED, STOPPED, TrialRecord
from orchestrator.views import runs
from orchestrator.views.client import RUN_STATUS, Event, connect, ensure_experiment, public_uri
from orchestrator.views.run_log import LoggedRun, RunLog
from orchestrator.views.shared_views import trials_view, view_tags
from orchestrator.views.sweep_metrics import sweep_metrics
from workers.data.pictures import is_intact_png
from workers.data.storage import Storage

if TYPE_CHECKING:
    from mlflow.entities import Run
    from mlflow.tracking import MlflowClient

_SWEEP_ARTIFACTS = (
    store.FRONT_PLOT, store.REPORT, store.FRONT_TABLE, store.TRIAL_TABLE, store.SWEEP, store.IDENTITY,
)  # fmt: skip
_PAGE = 1000  # runs per search request
_BATCH = 1000  # metrics per request
_STATUS = {COMPLETE: RUN_STATUS["finished"], STOPPED: RUN_STATUS["interrupted"], FAILED: RUN_STATUS["failed"]}


@dataclass(slots=True)
class _TrialRun:
    """A trial's run in MLflow."""

    run_id: str
    complete: bool
    pareto: str
    images: str


class SweepMirror:
    """One sweep in one MLflow experiment. Only one thread of one process may use it at a time (see `sole_writer`).

    Every method may raise what MLflow and the storage raise. The next `update` then starts from what MLflow has.
    note: called with a sentence about each damaged picture, which is not logged.
    """

    def __init__(
        self, storage: Storage, uri: str, experiment: str, note: Callable[[str], object] = lambda text: None
    ) -> None:
        self._note = note
        self.storage, self.uri, self.experiment = storage, uri, experiment
        self.sweep = runs.SweepRun.read(storage)
        self._names = SettingNames(self.sweep.identity.sampling)
        self.records: dict[int, TrialRecord] = {}
        self._log = RunLog(storage)
        self._trial_runs: dict[int, _TrialRun] | None = None
        self._logged_state: tuple[object, ...] = ()
        self.experiment_id = self.parent = ""

    def update(self, *, running: bool = True) -> int:
        """Log what is new in the store and update what changed. Returns the number of logged runs.

        running: whether the sweep is still running; if so, its run is set to RUNNING.
        """
        trial_runs = self._trial_runs
        if trial_runs is None:
            trial_runs = self._read_experiment(running)
        self._trial_runs = None  # until everything succeeds
        final = {number for number, record in self.records.items() if record.state != STOPPED}
        self.records |= {record.number: record for record in store.read_trials(self.storage, final)}
        front = runs.front_numbers(list(self.records.values()), self.sweep)
        logged = self._log_trials(trial_runs, front)
        self._update_trials(trial_runs, front)
        self._update_sweep(trial_runs, front)
        self._trial_runs = trial_runs
        return logged

    def end(self, event: Event) -> None:
        """Upload the sweep's result files (plot, tables, report) and terminate its run, after an `update`."""
        with tempfile.TemporaryDirectory() as folder:
            self._download({name: name for name in _SWEEP_ARTIFACTS}, Path(folder))
            self._client.log_artifacts(self.parent, folder)
        self._client.set_terminated(self.parent, RUN_STATUS[event], self._last_moment)

    @cached_property
    def _client(self) -> MlflowClient:
        return connect(self.uri)

    @property
    def _last_moment(self) -> int | None:
        """When the last trial finished, in milliseconds."""
        return max((runs.span(record, self.sweep)[1] for record in self.records.values()), default=None)

    def _read_experiment(self, running: bool) -> dict[int, _TrialRun]:
        """Find or create the experiment and the sweep's run; returns the existing trial runs by trial number."""
        self.experiment_id = ensure_experiment(self._client, self.uri, self.experiment)
        condition = f"tags.{runs.SWEEP_ID} = '{self.sweep.id}'"
        found = self._search(f"{condition} and tags.{runs.KIND} = 'sweep'")
        self.parent = self._keep_one(found) if found else self._create_parent()
        if running and found:
            self._client.update_run(self.parent, status="RUNNING")
        logged = {run.run_id for run in self._log.runs()}
        groups: dict[int, list[Run]] = {}
        for run in self._search(f"{condition} and tags.{runs.KIND} = 'trial' and tags.{runs.PARENT} = '{self.parent}'"):
            groups.setdefault(int(run.data.tags[runs.TRIAL]), []).append(run)
        trial_runs = {}
        for number, group in groups.items():
            run_id = self._keep_one(group, logged)
            (run,) = (run for run in group if run.info.run_id == run_id)
            pareto, images = (run.data.tags.get(name, "") for name in (runs.PARETO, runs.IMAGES))
            trial_runs[number] = _TrialRun(run_id, run.info.status != "RUNNING", pareto, images)
        return trial_runs

    def _create_parent(self) -> str:
        tags = self.sweep.tags() | {runs.KIND: "sweep"}
        run = self._client.create_run(self.experiment_id, self.sweep.started, tags, self.sweep.identity.name)
        return str(run.info.run_id)

    def _search(self, condition: str) -> list[Run]:
        found: list[Run] = []
        token = None
        while True:
            page = self._client.search_runs([self.experiment_id], condition, max_results=_PAGE, page_token=token)
            found += page
            token = page.token
            if not token:
                return found

    def _keep_one(self, duplicates: list[Run], logged: Iterable[str] = ()) -> str:
        """Choose which of several runs of the same sweep or trial to keep; deletes the others.

        Duplicates arise when a server creates a run but does not answer in time.
        """
        first, *others = sorted(
            duplicates, key=lambda run: (run.info.run_id not in logged, run.info.status == "RUNNING", run.info.run_id)
        )
        for run in others:
            self._client.delete_run(run.info.run_id)
        return str(first.info.run_id)

    def _log_trials(self, trial_runs: dict[int, _TrialRun], front: set[int]) -> int:
        """Log every trial without a complete run, or whose run is older than its revival; returns how many."""
        done = self._log.trials(self.uri, self.experiment)
        logged = 0
        for number, record in sorted(self.records.items()):
            run = trial_runs.get(number)
            if run is None or not run.complete or (record.stop and run.images != str(record.images)):
                trial_runs[number] = run = self._log_trial(record, run, pareto=number in front)
                logged += 1
            if number not in done or done[number].run_id != run.run_id:
                location = (public_uri(self.uri), self.experiment, self.experiment_id, self.parent)
                self._log.add(LoggedRun(*location, number, run.run_id))
        return logged

    def _log_trial(self, record: TrialRecord, run: _TrialRun | None, *, pareto: bool) -> _TrialRun:
        """Create the run of a trial, or complete it. Logging an equal value twice has no effect."""
        from mlflow.entities import Param, RunTag

        started, finished = runs.span(record, self.sweep)
        tags = runs.trial_tags(record, self.sweep, self.parent, pareto=pareto)
        if run is None:
            created = self._client.create_run(self.experiment_id, started, tags, runs.run_name(record, self._names))
            run = _TrialRun(created.info.run_id, False, tags[runs.PARETO], "")
        params = [Param(key, value) for key, value in runs.params(record).items()]
        objectives = [axis.name for axis in self.sweep.identity.objectives]
        self._client.log_batch(run.run_id, runs.metrics(record, finished, objectives), params)
        with tempfile.TemporaryDirectory() as artifacts:
            if record.digest and record.state != FAILED:
                names = {name: f"{folder}/{record.digest}.png" for name, folder in store.TRIAL_PICTURES.items()}
                self._download(names, Path(artifacts))
            Path(artifacts, "config.yaml").write_text(trial_text(self.sweep.identity, record), "utf-8")
            self._client.log_artifacts(run.run_id, artifacts)
        self._client.set_terminated(run.run_id, _STATUS[record.state], finished)
        if record.stop:  # after everything else: a run with these tags is not logged again
            tags = {runs.CAUSE: "revived", **tags}  # a complete trial has no cause
            self._client.log_batch(run.run_id, tags=[RunTag(key, value) for key, value in tags.items()])
        run.complete, run.images = True, str(record.images)
        return run

    def _download(self, names: Mapping[str, str], folder: Path) -> None:
        """Copy files of the store (name in MLflow -> name in the store) to a folder, with credentials redacted.

        Skips files that do not exist, and damaged pictures.
        """
        for name, stored in names.items():
            if not self.storage.exists(stored):
                continue
            data = self.storage.read(stored)
            if name.endswith(".png") and not is_intact_png(data):
                self._note(f"{self.storage.locate(stored)}: damaged; not logged to MLflow")
                continue
            (folder / name).write_bytes(redact_file(stored, data))

    def _update_trials(self, trial_runs: Mapping[int, _TrialRun], front: set[int]) -> None:
        """Tag exactly the runs on the current front."""
        from mlflow.entities import RunTag

        for number, run in trial_runs.items():
            pareto = runs.boolean(number in front)
            if run.pareto != pareto:
                self._client.log_batch(run.run_id, tags=[RunTag(runs.PARETO, pareto)])
                run.pareto = pareto

    def _update_sweep(self, trial_runs: Mapping[int, _TrialRun], front: set[int]) -> None:
        """Log metrics, params, description and views of the sweep's run, unless nothing changed."""
        from mlflow.entities import Metric, Param, RunTag

        records = [record for _, record in sorted(self.records.items())]
        state = (self.parent, len(trial_runs), frozenset(front), sum(record.state == STOPPED for record in records))
        if state == self._logged_state:
            return
        moment = self.sweep.started if self._last_moment is None else self._last_moment
        run = self._client.get_run(self.parent).data
        logged = min(int(run.metrics.get("trials", 0)), len(records) - 1)  # the last again: a trial may be revived
        metrics = [
            Metric(name, value, moment, count)
            for count, entries in sweep_metrics(records, self.sweep.identity, logged).items()
            for name, value in entries.items()
        ]
        params = [Param(key, value) for key, value in self.sweep.params().items() if key not in run.params]
        best = [(trial_runs[number].run_id, self.records[number]) for number in sorted(front)]
        note = RunTag(runs.NOTE, runs.note(self.sweep, best, self.experiment_id, self._names, trials_view(self.sweep)))
        for start in range(0, len(metrics), _BATCH):
            self._client.log_batch(self.parent, metrics[start : start + _BATCH])
        self._client.log_batch(self.parent, (), params, [note])
        for key, value in view_tags(self.sweep).items():
            self._client.set_experiment_tag(self.experiment_id, key, value)
        self._logged_state = state
