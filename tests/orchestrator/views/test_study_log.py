"""The study of a sweep in a real PostgreSQL server that is restarted, is away, or does not
answer.
"""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import optuna
import pytest
from optuna.study import Study
from optuna.trial import FrozenTrial

from orchestrator.errors import StudyError
from orchestrator.store.databases import sole_creator
from orchestrator.store.sweep import Sweep
from orchestrator.views.follower import Views
from orchestrator.views.study import StudyView, check_study, open_storage
from tests.fakes.postgresql import PASSWORD, PostgreSQL, postgresql
from tests.fakes.studies import (
    named_config,
    plain_record,
    started_views,
    study_identity,
    study_view,
    write_study,
)
from tests.fakes.waiting import HANG_S, give_time, wait_until
from workers.data.storage import Storage

pytestmark = pytest.mark.slow(seconds=15)
TRIALS = 6


@pytest.fixture(scope="module")
def server() -> Iterator[PostgreSQL]:
    with postgresql() as running:
        yield running


def assert_ends(views: Views) -> None:
    assert views.end("finished") == []


def problem_of(views: Views) -> str | None:
    """The problem of the last attempt."""
    return views._followers[0].problem


def trials_of(url: str, name: str) -> list[FrozenTrial]:
    with sole_creator(url):  # the view may be creating the tables
        storage = open_storage(url)
    known = optuna.get_all_study_names(storage)
    return optuna.load_study(study_name=name, storage=storage).trials if name in known else []


def assert_complete(url: str, name: str, trials: int = TRIALS) -> None:
    study: Study = optuna.load_study(study_name=name, storage=open_storage(url))
    assert [trial.user_attrs["label"] for trial in study.trials] == [
        f"trial {number}" for number in range(trials)
    ]
    assert [trial.values for trial in study.trials] == [
        [number + 1.0] * 2 for number in range(trials)
    ]


def test_a_database_that_is_restarted_loses_nothing(
    server: PostgreSQL,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
) -> None:
    give_time(monkeypatch, StudyView)
    url = server.create("restarted")
    views = started_views(named_config("restarted"), url)
    views.update(plain_record(0))
    wait_until(lambda: len(trials_of(url, "restarted")) == 1)
    server.stop()
    for number in range(1, TRIALS):
        views.update(plain_record(number))  # the sweep does not wait: the server is started below
    wait_until(lambda: "refused" in str(problem_of(views)))
    assert PASSWORD not in str(problem_of(views))
    server.start()
    wait_until(lambda: problem_of(views) is None)
    server.stop()
    server.start()  # its connections are dead, and the study does not know yet
    views.update(plain_record(TRIALS))
    assert_ends(views)
    assert_complete(url, "restarted", TRIALS + 1)
    assert caplog.messages == []
    assert capfd.readouterr() == ("", "")


def test_a_database_that_does_not_answer_delays_the_study_alone(
    server: PostgreSQL, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = server.create("silent")
    views = started_views(named_config("silent"), url)
    views.update(plain_record(0))
    wait_until(lambda: len(trials_of(url, "silent")) == 1)
    group = int((server.folder / "data" / "postmaster.pid").read_text().split()[0])
    processes = [
        group,
        *map(int, subprocess.check_output(["pgrep", "-P", str(group)], text=True).split()),
    ]
    send(processes, signal.SIGSTOP)
    try:
        for number in range(1, TRIALS):
            views.update(plain_record(number))
        monkeypatch.setattr(StudyView, "end_timeout_s", 0.5)
        (problem,) = views.end("finished")
        assert "no response" in problem
        assert "--resume" in problem
    finally:
        send(processes, signal.SIGCONT)
    write_study(named_config("silent"), url, [plain_record(number) for number in range(TRIALS)])
    assert_complete(url, "silent")


def send(processes: list[int], number: signal.Signals) -> None:
    for process in processes:
        os.kill(process, number)


def test_what_was_not_written_is_added_at_the_next_start(
    server: PostgreSQL, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = server.create("added")
    views = started_views(named_config("added"), url)
    views.update(plain_record(0))
    wait_until(lambda: len(trials_of(url, "added")) == 1)
    server.stop()
    try:
        views.update(plain_record(1))
        monkeypatch.setattr(StudyView, "end_timeout_s", 0.5)
        assert views.end("finished") != []
    finally:
        server.start()
    write_study(named_config("added"), url, [plain_record(number) for number in range(TRIALS)])
    assert_complete(url, "added")


def test_a_trial_that_is_refused_does_not_stop_the_others(tmp_path: Path) -> None:
    url, add_trial = str(tmp_path / "study.log"), Study.add_trial

    def refuse(study: Study, trial: FrozenTrial) -> None:
        if trial.user_attrs["label"] == "trial 1":
            raise OSError("refused by a rule")
        add_trial(study, trial)

    patched = pytest.MonkeyPatch()
    patched.setattr(Study, "add_trial", refuse)
    view, records = (
        study_view(named_config("refused"), url),
        [plain_record(number) for number in range(3)],
    )
    sweep = Sweep(Storage(tmp_path), study_identity(named_config("refused")), tuple(records))
    for _ in range(5):
        with pytest.raises(OSError, match="refused by a rule"):
            view.update(sweep)
    assert len(trials_of(url, "refused")) == 1
    with pytest.raises(OSError, match="refused by a rule"):
        view.update(sweep)
    assert [trial.user_attrs["label"] for trial in trials_of(url, "refused")] == [
        "trial 0",
        "trial 2",
    ]
    patched.undo()  # such as a disk that is no longer full
    view.update(sweep)
    assert [trial.user_attrs["label"] for trial in trials_of(url, "refused")] == [
        "trial 0",
        "trial 2",
        "trial 1",
    ]


def test_a_study_that_is_gone_is_made_again(tmp_path: Path) -> None:
    url, config = f"sqlite:///{tmp_path}/study.db", named_config("gone")
    view = write_study(config, url, [plain_record(0)])
    optuna.delete_study(study_name="gone", storage=open_storage(url))
    sweep = Sweep(
        Storage(tmp_path),
        study_identity(config),
        tuple(plain_record(number) for number in range(2)),
    )
    with pytest.raises(KeyError):
        view.update(sweep)
    view.update(sweep)
    assert_complete(url, "gone", 2)


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


def test_an_entry_that_arrives_after_the_end_is_not_added_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url, config, add_trial = str(tmp_path / "study.log"), named_config("late"), Study.add_trial
    arrives, begun = threading.Event(), threading.Event()

    def add_late(study: Study, trial: FrozenTrial) -> None:
        begun.set()
        arrives.wait(HANG_S)
        add_trial(study, trial)

    monkeypatch.setattr(StudyView, "end_timeout_s", 0.1)
    monkeypatch.setattr(Study, "add_trial", add_late)
    views = started_views(config, url)
    views.update(plain_record(0))
    assert begun.wait(HANG_S)
    assert "no response" in views.end("finished")[0]
    monkeypatch.setattr(Study, "add_trial", add_trial)
    again = started_views(config, url)
    for number in range(TRIALS):
        again.update(plain_record(number))
    threading.Timer(0.3, arrives.set).start()
    monkeypatch.setattr(StudyView, "end_timeout_s", HANG_S)
    assert_ends(again)
    views._followers[0]._thread.join(HANG_S)
    assert_complete(url, "late")
