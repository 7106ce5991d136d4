"""The journal of a sweep's study: damage is noticed at a resume, and what is rebuilt equals an
undisturbed study.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import optuna
import pytest

from benchmarks.instant import InstantWorkers
from orchestrator.store.lossless import QualityGroups
from orchestrator.store.records import TrialRecord, read_trials
from orchestrator.store.sweep import Sweep
from orchestrator.views.study import open_storage
from tests.fakes.studies import study_identity, study_view
from tests.orchestrator.run.test_driver import run, sweep
from workers.data.storage import Storage

TRIALS = 6


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("journal")
    run(sweep(folder, changes={"budget.trials": TRIALS}), folder / "store", InstantWorkers())
    return folder / "store"


def studied(journal: Path) -> list[Any]:
    study = optuna.load_study(study_name="tested", storage=open_storage(str(journal)))
    return [
        (
            t.number,
            t.state,
            t.params,
            t.values,
            t.user_attrs,
            t.system_attrs,
            t.datetime_start,
            t.datetime_complete,
        )
        for t in study.trials
    ]


def restore(folder: Path, store: Path, records: Sequence[TrialRecord] | None = None) -> list[str]:
    """Open and complete the study of a store; what is said about it."""
    config = sweep(folder, changes={"budget.trials": TRIALS})
    view = study_view(config, store / "study.log")
    found = read_trials(Storage(store)) if records is None else records
    identity = study_identity(config)
    told = QualityGroups.of(identity).all_as_told(found)
    view.update(Sweep(Storage(store), identity, tuple(told)))
    return view.notes


def torn(data: bytes) -> bytes:
    return data[:-700]


def torn_and_continued(data: bytes) -> bytes:
    """As the first resume after a torn line used to leave it."""
    *whole, first, second = data.splitlines(keepends=True)
    return b"".join([*whole, first[:50], second])


def other_value(data: bytes) -> bytes:
    """A changed digit in a result."""
    lines = [json.loads(line) for line in data.splitlines()]
    told = next(line for line in reversed(lines) if line.get("values"))
    told["values"] = [value + 1 for value in told["values"]]
    return b"".join(json.dumps(line).encode() + b"\n" for line in lines)


def other_param(data: bytes) -> bytes:
    lines = [json.loads(line) for line in data.splitlines()]
    asked = next(line for line in lines if line.get("params"))
    name = next(iter(asked["params"]))
    asked["params"][name] = asked["params"][name] + 1
    return b"".join(json.dumps(line).encode() + b"\n" for line in lines)


def no_journal(data: bytes) -> bytes:
    return bytes(255 - byte for byte in data)


def no_object(data: bytes) -> bytes:
    return data + b"[]\n"


@pytest.mark.parametrize(
    "damage", [torn, torn_and_continued, other_value, other_param, no_journal, no_object]
)
def test_a_damaged_journal_is_rebuilt_at_a_resume(
    finished: Path, tmp_path: Path, damage: Callable[[bytes], bytes]
) -> None:
    expected = studied(finished / "study.log")
    assert restore(tmp_path, finished) == []
    store = tmp_path / "store"
    shutil.copytree(finished, store)
    journal = store / "study.log"
    damaged = damage(journal.read_bytes())
    journal.write_bytes(damaged)
    (note,) = restore(tmp_path, store)
    assert note.startswith(f"{journal}: ")
    assert (store / "study.log.damaged").read_bytes() == damaged
    assert studied(journal) == expected
    assert restore(tmp_path, store) == []


def test_a_journal_with_a_finished_trial_that_has_no_record_is_rebuilt(
    finished: Path, tmp_path: Path
) -> None:
    store = tmp_path / "store"
    shutil.copytree(finished, store)
    (note,) = restore(tmp_path, store, read_trials(Storage(finished))[:5])
    assert "trial 5" in note
    assert len(studied(store / "study.log")) == 5


def test_a_lost_journal_is_rebuilt(finished: Path, tmp_path: Path) -> None:
    store = tmp_path / "store"
    shutil.copytree(finished, store, ignore=shutil.ignore_patterns("study.log"))
    assert restore(tmp_path, store) == []
    assert studied(store / "study.log") == studied(finished / "study.log")
