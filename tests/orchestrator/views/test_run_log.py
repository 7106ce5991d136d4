"""The log of what MLflow has: by server and experiment, the latest line of a trial, torn lines skipped."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.results.store import MLFLOW_RUNS
from orchestrator.views.run_log import LoggedRun, RunLog
from workers.data.storage import Storage

HERE, THERE = "http://here:5000", "http://there:5000"
RUN = LoggedRun(HERE, "experiment", "1", "parent", trial=0, run_id="a")


@pytest.fixture
def storage(tmp_path: Path) -> Storage:
    (tmp_path / "sweep").mkdir()
    return Storage(tmp_path / "sweep")


def test_trials_of_another_server_or_experiment_are_still_to_be_logged(storage: Storage) -> None:
    log = RunLog(storage)
    others = [replace(RUN, uri=THERE, trial=1), replace(RUN, experiment="other", trial=2)]
    for run in (RUN, *others):
        log.add(run)
    assert log.trials(HERE, "experiment") == {0: RUN}
    assert log.trials("http://me:word@here:5000", "experiment") == {0: RUN}  # credentials do not matter
    assert log.trials(THERE, "experiment") == {1: others[0]}
    assert log.trials(HERE, "other") == {2: others[1]}


def test_the_latest_run_of_a_trial_counts(storage: Storage) -> None:
    log, again = RunLog(storage), replace(RUN, run_id="b")
    log.add(RUN)
    log.add(again)
    assert log.trials(HERE, "experiment") == {0: again}
    assert log.runs() == [RUN, again]


def test_a_torn_line_is_skipped_and_ended(storage: Storage) -> None:
    log, path = RunLog(storage), storage.path(MLFLOW_RUNS)
    assert path is not None
    log.add(RUN)
    with path.open("ab") as file:
        file.write(b'{"uri": "http://here:50')
    log.add(replace(RUN, trial=1))
    log.add_event("finished")
    assert sorted(log.trials(HERE, "experiment")) == [0, 1]
    assert log.last_event() == "finished"
