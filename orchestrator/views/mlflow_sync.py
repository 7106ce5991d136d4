"""A finished sweep's folder logged to MLflow, and where it is there."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field

from orchestrator.front.questions import front_records
from orchestrator.store import files, launches
from orchestrator.store.sweep import Sweep
from orchestrator.views.follower import Ending
from orchestrator.views.mlflow import MlflowView, find_runs, write_shared_views
from orchestrator.views.mlflow_client import as_tracking_error, connect
from orchestrator.views.mlflow_page import MlflowLocation
from orchestrator.views.mlflow_place import TrackingPlace
from workers.data.storage import Storage


@dataclass(frozen=True, slots=True)
class SyncResult:
    """What a sync has done."""

    logged: int  # runs that were logged or completed now
    already: int  # runs that were complete before
    location: MlflowLocation = field(repr=False, compare=False)


def sync(
    storage: Storage,
    uri: str | None = None,
    experiment: str | None = None,
    note: Callable[[str], object] = lambda text: None,
) -> SyncResult:
    """Log every trial that MLflow lacks, complete interrupted runs, and close the run of a sweep
    that has ended.

    note: called with a sentence about each damaged picture, which is not logged.

    Raises:
        TrackingError: there is no sweep, MLflow cannot be reached or refuses, or another process is
            logging the sweep.
    """
    view = MlflowView(storage, uri, experiment, is_running=False)
    with as_tracking_error(view.uri), ExitStack() as resources:
        resources.callback(view.close)
        sweep = Sweep.open(storage)
        resources.callback(lambda: [note(text) for text in view.notes])
        view.update(sweep)
        view.end(sweep, _find_ending(sweep))
    assert view.location is not None, "after an update"
    return SyncResult(view.logged, len(sweep.records) - view.logged, view.location)


def find_location(sweep: Sweep, uri: str | None = None) -> MlflowLocation:
    """A sweep's location in MLflow, where another process may be logging it. Changes nothing. uri:
    see `TrackingPlace.resolve`.

    Raises:
        TrackingError: MLflow cannot be reached.
    """
    place = TrackingPlace.resolve(sweep.storage, uri)
    with as_tracking_error(place.uri):
        client = connect(place.uri)
        found = client.get_experiment_by_name(place.experiment_of(sweep.identity.name))
        if found is None:
            return MlflowLocation(sweep.identity, place.uri)
        parents, groups = find_runs(client, found.experiment_id, sweep)
        trial_runs = {number: group[0].info.run_id for number, group in groups.items()}
        front = [record.number for record in front_records(sweep)]
        parent = parents[0].info.run_id if parents else ""
        return MlflowLocation(
            sweep.identity, place.uri, found.experiment_id, parent, trial_runs, front
        )


def share_views(sweep: Sweep, location: MlflowLocation) -> None:
    """Make the shared views of a sweep (see `mlflow_page.shared_views`) that its experiment lacks.

    Raises:
        TrackingError: MLflow cannot be reached, or refuses.
    """
    if location.experiment_id:
        with as_tracking_error(location.uri):
            client = connect(location.uri)
            tags = dict(client.get_experiment(location.experiment_id).tags)
            write_shared_views(client, location.experiment_id, sweep, tags)


def _find_ending(sweep: Sweep) -> Ending:
    """How the latest launch of a sweep ended. If that is unknown, a sweep without all of its trials
    was interrupted.
    """
    endings: dict[str, Ending] = {
        launches.FINISHED: "finished",
        launches.FAILED: "failed",
        launches.INTERRUPTED: "interrupted",
    }
    state = launches.find_launch(sweep.storage).state
    planned = files.planned_trials(sweep.storage)
    if state in endings:
        return endings[state]
    if state == launches.KILLED or (planned is not None and len(sweep.records) < planned):
        return "interrupted"
    return "finished"
