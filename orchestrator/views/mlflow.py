"""A sweep in MLflow: one run for the sweep, one child run per finished trial.

What MLflow has is found by the tags of its runs; nothing else is remembered. Every step can be
interrupted and repeated. A trial's run is created with all of its tags in one call, so a later
update finds it. Terminating the run is the last step.

A trial's run first has the speeds that were told to the search. A sweep that is priced by all of
its sessions replaces those that differ: MLflow shows the value of the last step and, there, of the
last moment. Speeds of a trial that only another device timed become NaN. The tag
`specfrontier.timed_on` names the device of a run's speeds.

An experiment groups comparable runs. By default it is `specfrontier/<sweep's name>`, so sweeps of
one space with other seeds, samplers or machines share it.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import cached_property, partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from orchestrator.front.questions import front_records
from orchestrator.store import config_file, files, locks
from orchestrator.store.identity import Identity
from orchestrator.store.records import State, TrialRecord
from orchestrator.store.sweep import Sweep
from orchestrator.text import redact_file
from orchestrator.views import mlflow_runs as runs
from orchestrator.views.follower import Ending, View
from orchestrator.views.mlflow_client import (
    RUN_STATUS,
    TrackingError,
    check_artifact_folder,
    connect,
    ensure_experiment,
    explain_error,
)
from orchestrator.views.mlflow_images import (
    FOLDER,
    LOGGED_IMAGES,
    grid_keys,
    image_keys,
    write_images,
)
from orchestrator.views.mlflow_page import (
    MlflowLocation,
    describe_run,
    describe_trial,
    shared_views,
)
from orchestrator.views.mlflow_place import TrackingPlace
from orchestrator.views.mlflow_runs import NOTE
from workers.data.pictures import is_intact_png
from workers.data.storage import Storage

if TYPE_CHECKING:
    from mlflow.entities import Metric, Run, RunData
    from mlflow.tracking import MlflowClient

_SWEEP_ARTIFACTS = (
    files.FRONT_PLOT,
    files.REPORT,
    files.FRONT_TABLE,
    files.TRIAL_TABLE,
    files.SWEEP,
    files.IDENTITY,
)
_IMAGE_GRID = "images.png"  # of a trial's artifacts
_PAGE = 1000  # runs per search request
_BATCH = 1000  # metrics per request
_REFUSALS = (400, 403, 404)  # HTTP's codes for a request that this server does not take
_STATUS: Mapping[State, str] = {
    "complete": RUN_STATUS["finished"],
    "stopped": RUN_STATUS["interrupted"],
    "failed": RUN_STATUS["failed"],
}


@dataclass(slots=True)
class _TrialRun:
    """A trial's run in MLflow, with its tags there and the values that MLflow shows."""

    run_id: str
    complete: bool
    tags: dict[str, str]
    metrics: dict[str, float] = field(default_factory=dict)


class _Description(NamedTuple):
    """The description of a trial's run, and what it was made from."""

    record: TrialRecord
    pareto: bool
    text: str


class MlflowView(View[Sweep]):
    """A sweep in one MLflow experiment. One process at a time logs a sweep.

    uri, experiment: see `TrackingPlace.resolve`. is_running: of a launch, which writes its place
    before the first contact and sets the sweep's run to RUNNING; `sync` writes its place when
    MLflow has responded. logged: number of runs that were created or completed. A trial's images
    must be in the store before its record.
    """

    def __init__(
        self,
        storage: Storage,
        uri: str | None = None,
        experiment: str | None = None,
        *,
        is_running: bool = True,
    ) -> None:
        super().__init__()
        self._place = TrackingPlace.resolve(storage, uri, experiment)
        self.notes += self._place.notes
        self.uri = self._place.uri
        self.logged = 0
        self.location: MlflowLocation | None = None  # after an update
        self._storage = storage
        self._is_running = is_running
        self._resources = ExitStack()
        self._is_open = False
        self._trial_runs: dict[int, _TrialRun] | None = None  # None if they must be read again
        self._experiment_id = ""
        self._parent = ""  # id of the sweep's run
        self._views: dict[str, str] = {}  # the experiment's tags
        self._lacks_inputs = False  # whether MLflow refused datasets
        self._descriptions: dict[int, _Description] = {}  # of trials by number

    def update(self, source: Sweep) -> None:
        """Log what is new and update what changed."""
        if not self._is_open:
            # where the place cannot be written, the lock is released
            with ExitStack() as resources:
                resources.enter_context(sole_writer(self._storage))
                if self._is_running:
                    self._place.write(self._storage, source.identity.name)
                self._is_open = True
                self._resources = resources.pop_all()
        trial_runs = self._trial_runs
        if trial_runs is None:
            trial_runs = self._read_experiment(source)
        self._trial_runs = None  # until everything succeeds
        # fails on a server that lost its runs, before any is created
        logged = self._client.get_run(self._parent).data
        front = {record.number for record in front_records(source)}
        marks = {
            record.number: self._marks(source, record, pareto=record.number in front)
            for record in source.records
        }
        done = set[int]()
        for record in source.records:
            run = trial_runs.get(record.number)
            if run is None or not run.complete:
                continue
            if record.stop and run.tags.get(runs.IMAGES) != str(record.images):
                continue  # it was revived
            done.add(record.number)
            self._refresh(source, record, run, marks[record.number])
        for record in self.in_turn(source.records, done):
            run = trial_runs.get(record.number)
            trial_runs[record.number] = self._log_trial(source, record, run, marks[record.number])
            self.logged += 1
        self._log_sweep(source, trial_runs, logged)
        self._trial_runs = trial_runs
        self.location = MlflowLocation(
            source.identity,
            self.uri,
            self._experiment_id,
            self._parent,
            {number: run.run_id for number, run in trial_runs.items()},
            sorted(front),
        )

    def end(self, source: Sweep, how: Ending) -> None:
        """Upload the sweep's result files (plot, tables, report) and terminate its run."""
        with tempfile.TemporaryDirectory() as folder:
            self._download({name: name for name in _SWEEP_ARTIFACTS}, Path(folder))
            self._log_artifacts(self._parent, folder)
        self._client.set_terminated(self._parent, RUN_STATUS[how], last_moment(source))

    def close(self) -> None:
        self._resources.close()

    def explain(self, error: Exception) -> str:
        return explain_error(error, self.uri)

    def describe(self, problem: str) -> str:
        return (
            f"MLflow is not complete ({problem}); log the rest with: "
            f"{self._place.sync_command(self._storage)}"
        )

    @cached_property
    def _client(self) -> MlflowClient:
        return connect(self.uri)

    def _marks(self, sweep: Sweep, record: TrialRecord, *, pareto: bool) -> dict[str, str]:
        """The tags of a trial's run that change while the sweep runs."""
        known = self._descriptions.get(record.number)
        if known is None or known[:2] != (record, pareto):
            known = _Description(record, pareto, describe_trial(sweep, record, pareto=pareto))
            self._descriptions[record.number] = known
        return runs.marks(self._parent, record, pareto=pareto) | {NOTE: known.text}

    def _read_experiment(self, sweep: Sweep) -> dict[int, _TrialRun]:
        """Find or create the experiment and the sweep's run; returns the existing trial runs by
        number.
        """
        name = self._place.experiment_of(sweep.identity.name)
        self._experiment_id = ensure_experiment(self._client, self.uri, name)
        experiment = self._client.get_experiment(self._experiment_id)
        check_artifact_folder(self.uri, experiment.artifact_location)
        self._views = dict(experiment.tags)
        parents, groups = find_runs(self._client, self._experiment_id, sweep)
        if parents:
            self._parent = self._keep_one(parents).info.run_id
            if self._is_running:
                self._client.update_run(self._parent, status="RUNNING")
        else:
            identity = sweep.identity
            tags = runs.sweep_tags(identity) | {runs.KIND: "sweep"}
            started = runs.milliseconds(identity.started)
            self._parent = self._client.create_run(
                self._experiment_id, started, tags, identity.name
            ).info.run_id
        self._place.write(self._storage, sweep.identity.name)
        kept = {number: self._keep_one(group) for number, group in groups.items()}
        return {
            number: _TrialRun(
                run.info.run_id,
                run.info.status != "RUNNING",
                dict(run.data.tags),
                dict(run.data.metrics),
            )
            for number, run in kept.items()
        }

    def _keep_one(self, duplicates: list[Run]) -> Run:
        """Choose which of several runs of the same sweep or trial to keep; deletes the others.

        Duplicates arise when a server creates a run but does not answer in time.
        """
        first, *others = sorted(
            duplicates, key=lambda run: (run.info.status == "RUNNING", run.info.run_id)
        )
        for run in others:
            self._client.delete_run(run.info.run_id)
        return first

    def _log_trial(
        self, sweep: Sweep, record: TrialRecord, run: _TrialRun | None, marks: dict[str, str]
    ) -> _TrialRun:
        """Create the run of a trial, or complete it. Logging an equal value twice has no effect."""
        from mlflow.entities import Param

        identity = sweep.identity
        started, finished = runs.span(record, sweep.identity)
        tags = runs.trial_tags(record, identity) | marks
        is_new = run is None
        if run is None:
            kept = {key: value for key, value in tags.items() if value}
            created = self._client.create_run(
                self._experiment_id, started, kept, runs.run_name(record, sweep.names)
            )
            run = _TrialRun(created.info.run_id, False, kept)
        params = [Param(key, value) for key, value in runs.params(record).items()]
        metrics = runs.metrics(record, finished, identity)
        self._client.log_batch(run.run_id, metrics, params)
        if is_new:
            run.metrics = {metric.key: metric.value for metric in runs.last_values(metrics)}
        else:  # an earlier attempt may have logged other speeds at this moment
            run.metrics = dict(self._client.get_run(run.run_id).data.metrics)
        with tempfile.TemporaryDirectory() as artifacts:
            if record.digest and not record.has_failed:
                names = {
                    name: f"{folder}/{record.digest}.png"
                    for name, folder in files.TRIAL_PICTURES.items()
                }
                self._download(names, Path(artifacts))
                if self._add_images(Path(artifacts), sweep, record):
                    marks = marks | {LOGGED_IMAGES: "True"}
            self._log_artifacts(run.run_id, artifacts, sweep, record)
        self._log_inputs(run.run_id, identity)
        self._client.set_terminated(run.run_id, _STATUS[record.state], finished)
        # after everything else: a run with these tags is not logged again
        changed = marks
        if record.stop:
            # a complete trial has no cause
            changed = {runs.CAUSE: "revived", **tags, **marks}
        self._refresh(sweep, record, run, changed)
        run.complete = True
        return run

    def _log_inputs(self, run_id: str, identity: Identity) -> None:
        """Log the datasets that a run read. A server that refuses them has the rest, with one
        note.
        """
        from mlflow.exceptions import MlflowException

        if self._lacks_inputs:
            return
        try:
            self._client.log_inputs(run_id, runs.datasets(identity))
        except MlflowException as error:
            status = error.get_http_status_code()  # type: ignore[no-untyped-call]
            if status not in _REFUSALS:
                raise  # the server is away: all of it is logged again
            self._lacks_inputs = True
            self.notes.append(f"{explain_error(error, self.uri)}; its runs lack their datasets")

    def _add_images(self, folder: Path, sweep: Sweep, record: TrialRecord) -> bool:
        """Add the images of a trial's grid, each under the key of its caption, to the artifacts in
        a folder; returns whether there are any.
        """
        grid = folder / _IMAGE_GRID
        if not grid.exists():
            return False
        try:
            keys = image_keys(self._storage, record)
        except ValueError as error:
            self.notes.append(f"{error}; its images are not in MLflow's grid")
            return False
        write_images(folder, grid.read_bytes(), sweep.identity, record, keys)
        return (folder / FOLDER).exists()

    def _refresh(
        self, sweep: Sweep, record: TrialRecord, run: _TrialRun, tags: Mapping[str, str]
    ) -> None:
        """Replace the tags that differ in a trial's run and, of a priced sweep, the values."""
        from mlflow.entities import RunTag

        metrics: list[Metric] = []
        if sweep.prices.sessions:
            moment = max(_now(), runs.span(record, sweep.identity)[1] + 1)
            logged = runs.metrics(record, moment, sweep.identity)
            metrics = runs.different(logged, run.metrics)
            metrics += runs.by_batch(
                record, sweep.identity.timing_batch, moment, metrics, run.metrics
            )
            metrics += runs.outdated(record, sweep.identity.metrics, run.metrics, moment)
        if metrics and run.complete:  # its config.yaml states the speed-up
            with tempfile.TemporaryDirectory() as artifacts:
                self._log_artifacts(run.run_id, artifacts, sweep, record)
        changed = [
            RunTag(key, value) for key, value in tags.items() if run.tags.get(key, "") != value
        ]
        if metrics or changed:
            self._client.log_batch(run.run_id, metrics, tags=changed)
            run.tags |= tags
            run.metrics |= {metric.key: metric.value for metric in metrics}

    def _log_artifacts(
        self,
        run_id: str,
        folder: str,
        sweep: Sweep | None = None,
        record: TrialRecord | None = None,
    ) -> None:
        """Upload the files in a folder; of a trial, its config.yaml too."""
        if sweep is not None and record is not None:
            Path(folder, "config.yaml").write_text(
                config_file.trial_text(sweep.identity, record), "utf-8"
            )
        self._client.log_artifacts(run_id, folder)

    def _download(self, names: Mapping[str, str], folder: Path) -> None:
        """Copy files of the store (name in MLflow -> name in the store) to a folder, with
        credentials redacted.

        Skips files that do not exist, and damaged pictures.
        """
        for name, stored in names.items():
            if not self._storage.exists(stored):
                continue
            data = self._storage.read(stored)
            if name.endswith(".png") and not is_intact_png(data):
                self.notes.append(f"{self._storage.locate(stored)}: damaged; not logged to MLflow")
                continue
            (folder / name).write_bytes(redact_file(stored, data))

    def _log_sweep(
        self, sweep: Sweep, trial_runs: Mapping[int, _TrialRun], logged: RunData
    ) -> None:
        """Log metrics, params and description of the sweep's run. logged: what it has."""
        from mlflow.entities import Metric, Param, RunTag

        identity = sweep.identity
        moment = last_moment(sweep) or runs.milliseconds(identity.started)
        known = int(logged.metrics.get("trials", 0))
        since = min(known, len(sweep.records) - 1)  # the last again: it may be revived
        is_replaced = sweep.prices.sessions and known == len(sweep.records)
        if is_replaced:  # all steps again: they had the values that the search was told
            moment = max(_now(), moment + 1)
            since = 0
        shown = {} if is_replaced else logged.metrics
        metrics = []
        for count, entries in runs.sweep_metrics(sweep, since, shown).items():
            metrics += [Metric(name, value, moment, count) for name, value in entries.items()]
        if is_replaced:
            history = partial(self._client.get_metric_history, self._parent)
            points = chain.from_iterable(map(history, logged.metrics))
            metrics = runs.different_steps(metrics, points, moment)
        params = [
            Param(key, value)
            for key, value in runs.sweep_params(identity).items()
            if key not in logged.params
        ]
        run_ids = {number: run.run_id for number, run in trial_runs.items()}
        note = RunTag(NOTE, describe_run(sweep, run_ids, self._experiment_id))
        for start in range(0, len(metrics), _BATCH):
            self._client.log_batch(self._parent, metrics[start : start + _BATCH])
        write_shared_views(self._client, self._experiment_id, sweep, self._views)
        if params:
            self._log_inputs(self._parent, identity)
        self._client.log_batch(self._parent, params=params, tags=[note])


def write_shared_views(
    client: MlflowClient, experiment_id: str, sweep: Sweep, tags: dict[str, str]
) -> None:
    """Set the tags of the shared views that differ from the experiment's `tags`, and add them
    there.
    """
    for key, view in shared_views(sweep, grid_keys(sweep)).items():
        if tags.get(key) != view:
            client.set_experiment_tag(experiment_id, key, view)
            tags[key] = view


def find_runs(
    client: MlflowClient, experiment_id: str, sweep: Sweep
) -> tuple[list[Run], dict[int, list[Run]]]:
    """The sweep's own runs in an experiment, and its trials' runs by number; more than one each if
    a server created a run without an answer.
    """
    parents: list[Run] = []
    groups: dict[int, list[Run]] = {}
    condition = f"tags.{runs.SWEEP_ID} = '{runs.sweep_id(sweep.identity)}'"
    token = None
    while True:
        page = client.search_runs([experiment_id], condition, max_results=_PAGE, page_token=token)
        for run in page:
            kind = run.data.tags.get(runs.KIND)
            if kind == "sweep":
                parents.append(run)
            elif kind == "trial" and (number := run.data.tags.get(runs.TRIAL, "")).isdecimal():
                groups.setdefault(int(number), []).append(run)
        token = page.token
        if not token:
            return parents, groups


def _now() -> int:
    """Milliseconds since 1970."""
    return round(time.time() * 1000)


def last_moment(sweep: Sweep) -> int | None:
    """When the last trial finished, in milliseconds since 1970."""
    return max((runs.span(record, sweep.identity)[1] for record in sweep.records), default=None)


@contextmanager
def sole_writer(storage: Storage) -> Iterator[None]:
    """Only one process at a time logs a sweep to MLflow.

    Raises:
        TrackingError: another process is logging it.
    """
    with locks.exclusive(storage, files.MLFLOW_LOCK) as lock:
        if not lock.acquired:
            problem = (
                "another process is logging this sweep to MLflow; it will log the rest, or try "
                "again later"
            )
            raise TrackingError(f"{storage.display_name}: {problem}")
        yield
