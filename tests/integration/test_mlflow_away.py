"""A sweep whose MLflow server was down at the start and went away half-way: all is there in the end, once."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

import pytest

from orchestrator.tracking.server import serving
from tests.fakes.real_sweeps import COMMAND, HOST, Logged
from workers.data.storage import Storage

if TYPE_CHECKING:
    from mlflow.entities import Run

pytestmark = pytest.mark.slow(seconds=50)


def children(base: str, name: str) -> dict[int, Run]:
    """The runs of a sweep's trials by number, if there is one parent and each trial once."""
    from mlflow.tracking import MlflowClient

    client = MlflowClient(base)
    experiment = client.get_experiment_by_name(f"specfrontier/{name}")
    assert experiment is not None
    runs = client.search_runs([experiment.experiment_id])
    (parent,) = (run for run in runs if "mlflow.parentRunId" not in run.data.tags)
    assert parent.info.status == "FINISHED"
    found = {int(run.data.tags["specfrontier.trial"]): run for run in runs if run is not parent}
    assert len(found) == len(runs) - 1
    return found


def test_a_sweep_does_not_wait_for_mlflow_which_has_everything_once_after_sync(logged: Logged) -> None:
    launched = logged.launched
    assert 0 < logged.in_time < len(launched.records) == 6
    lacking = 6 - logged.in_time
    assert f"MLflow   lacks {lacking} trial{'s' if lacking > 1 else ''}" in launched.said
    told = [event["at"] for event in launched.events if event["event"] == "trial_finished"]
    assert len(told) == 6
    database = f"sqlite:///{logged.database}"
    with serving(Storage(str(launched.folder / "x")), database, HOST, logged.port) as (base, _):
        sync = [*COMMAND, "sync", str(launched.store), "--uri", base]
        for missing in (lacking, 0):
            done = subprocess.run(sync, env=launched.variables, capture_output=True, text=True, check=False)
            assert done.returncode == 0, done.stderr
            trials, were = "trial" if missing == 1 else "trials", "was" if missing == 5 else "were"
            assert f"{missing} {trials} logged, {6 - missing} {were} there" in done.stdout
        runs = children(base, "small")
    assert runs.keys() == set(range(6))
    for record in launched.records:
        run = runs[record.number]
        assert run.info.status == "FINISHED"
        assert run.data.metrics["step_compression"] == record.metrics["step_compression"].value
