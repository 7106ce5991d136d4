"""The study of a sweep in a real PostgreSQL server that is restarted, is away, or does not answer."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import optuna
import pytest
from optuna.study import Study

from orchestrator.results.trials import Measured, TrialRecord
from orchestrator.run.study import Proposal
from orchestrator.run.study_log import StudyLog
from orchestrator.run.study_storage import StudyError, check_study, open_storage
from tests.fakes.postgresql import PASSWORD, PostgreSQL, postgresql

pytestmark = pytest.mark.slow(seconds=15)
NAMES = ("speedup", "fid")
TRIALS = 6


@pytest.fixture(scope="module")
def server() -> Iterator[PostgreSQL]:
    with postgresql() as running:
        yield running


def open_log(url: str, name: str) -> StudyLog:
    return StudyLog(name, url, ("maximize", "minimize"), NAMES, f"id of {name}")


def write(log: StudyLog, number: int) -> None:
    log.add(Proposal(number, f"trial {number}", None, {}, {}), f"setting {number}")
    metrics = {name: Measured(number + 1.0, 0.1, 8) for name in NAMES}
    record = TrialRecord(number, "", "complete", None, metrics=metrics, images=8)
    log.finish(record, record)


def assert_complete(url: str, name: str, trials: int = TRIALS) -> None:
    study: Study = optuna.load_study(study_name=name, storage=open_storage(url))
    assert [trial.user_attrs["label"] for trial in study.trials] == [f"trial {number}" for number in range(trials)]
    assert [trial.values for trial in study.trials] == [[number + 1.0] * 2 for number in range(trials)]


def test_a_database_that_is_restarted_loses_nothing(server: PostgreSQL) -> None:
    url = server.create("restarted")
    with closing(open_log(url, "restarted")) as log:
        write(log, 0)
        assert log.flush() is None
        server.stop()
        started = time.monotonic()
        for number in range(1, TRIALS):
            write(log, number)
        assert time.monotonic() - started < 0.5, "the sweep does not wait"
        end = time.monotonic() + 60
        while "refused" not in (problem := str(log.flush(0.1))):
            assert time.monotonic() < end, problem
        assert "--resume" in problem
        assert PASSWORD not in problem
        server.start()
        assert log.flush(60.0) is None
        server.stop()
        server.start()  # its connections are dead, and the study does not know yet
        write(log, TRIALS)
        assert log.flush(60.0) is None
    assert_complete(url, "restarted", TRIALS + 1)


def test_a_database_that_does_not_answer_delays_the_study_alone(server: PostgreSQL) -> None:
    url = server.create("silent")
    with closing(open_log(url, "silent")) as log:
        write(log, 0)
        assert log.flush() is None
        group = int((server.folder / "data" / "postmaster.pid").read_text().split()[0])
        processes = [group, *map(int, subprocess.check_output(["pgrep", "-P", str(group)], text=True).split())]
        send(processes, signal.SIGSTOP)
        try:
            for number in range(1, TRIALS):
                write(log, number)
            assert "no response" in str(log.flush(0.5))
        finally:
            send(processes, signal.SIGCONT)
        assert log.flush(60.0) is None
    assert_complete(url, "silent")


def send(processes: list[int], number: signal.Signals) -> None:
    for process in processes:
        os.kill(process, number)


def test_what_was_not_written_is_added_at_the_next_start(server: PostgreSQL) -> None:
    url = server.create("added")
    log = open_log(url, "added")
    write(log, 0)
    assert log.flush() is None
    server.stop()
    try:
        write(log, 1)
        assert log.flush(0.5) is not None
        log.close()
    finally:
        server.start()
    with closing(open_log(url, "added")) as log:
        for number in range(TRIALS):
            write(log, number)
        assert log.flush() is None
    assert_complete(url, "added")


def test_an_entry_that_is_refused_does_not_stop_the_others(tmp_path: Path) -> None:
    with closing(open_log(str(tmp_path / "study.log"), "refused")) as log:
        write(log, 0)
        log._entries.put(lambda: open("/none/at/all"))  # type: ignore[arg-type]  # noqa: SIM115
        write(log, 1)
        problem = log.flush()
    assert problem is not None
    assert "No such file" in problem
    assert_complete(str(tmp_path / "study.log"), "refused", 2)


@pytest.mark.parametrize(
    ("database", "password", "reason"),
    [("none", PASSWORD, "does not exist"), ("postgres", "hunter23", "authentication failed")],
)
def test_a_database_that_refuses_is_said_before_the_sweep(
    server: PostgreSQL, database: str, password: str, reason: str
) -> None:
    with pytest.raises(StudyError, match=reason) as refused:
        check_study(server.url(database, password), "refused", ("maximize", "minimize"), None)
    assert "hunter2" not in str(refused.value)
    assert "\n" not in str(refused.value)
