"""The journal of a sweep's study: damage is noticed at a resume, and what is rebuilt equals an undisturbed study."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import optuna
import pytest

from benchmarks.instant import InstantWorkers
from orchestrator.results.store import read_trials
from orchestrator.run.study_journal import restore_journal
from orchestrator.run.study_storage import open_storage
from tests.orchestrator.run.test_driver import NAMES, run, sweep
from workers.data.storage import Storage

TRIALS = 6


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("journal")
    run(sweep(folder, changes={"budget.trials": TRIALS}), folder / "store", InstantWorkers())
    return folder / "store"


def studied(journal: Path) -> list[Any]:
    study = optuna.load_study(study_name="tested", storage=open_storage(str(journal)))
    return [(t.number, t.state, t.params, t.values, t.user_attrs, t.system_attrs) for t in study.trials]


def torn(data: bytes) -> bytes:
    return data[:-700]


def torn_and_continued(data: bytes) -> bytes:
    """As the first resume after a torn line used to leave it."""
    return data[:-700] + data[-300:]


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


@pytest.mark.parametrize("damage", [torn, torn_and_continued, other_value, other_param, no_journal, no_object])
def test_a_damaged_journal_is_rebuilt_at_a_resume(
    finished: Path, tmp_path: Path, damage: Callable[[bytes], bytes]
) -> None:
    expected, records = studied(finished / "study.log"), read_trials(Storage(finished))
    assert restore_journal(finished / "study.log", "tested", NAMES, records) is None
    store = tmp_path / "store"
    shutil.copytree(finished, store)
    journal = store / "study.log"
    damaged = damage(journal.read_bytes())
    journal.write_bytes(damaged)
    note = restore_journal(journal, "tested", NAMES, read_trials(Storage(store)))
    assert note is not None
    assert note.startswith(f"{journal}: ")
    assert (store / "study.log.damaged").read_bytes() == damaged
    run(sweep(tmp_path, changes={"budget.trials": TRIALS}), store, InstantWorkers())
    assert studied(journal) == expected
    assert restore_journal(journal, "tested", NAMES, records) is None


def test_a_journal_with_a_finished_trial_that_has_no_record_is_rebuilt(finished: Path, tmp_path: Path) -> None:
    journal = Path(shutil.copy(finished / "study.log", tmp_path))
    assert "trial 5" in str(restore_journal(journal, "tested", NAMES, read_trials(Storage(finished))[:5]))


def test_a_sweep_without_a_journal_has_nothing_to_restore(tmp_path: Path) -> None:
    assert restore_journal(tmp_path / "study.log", "tested", NAMES, []) is None
    assert not (tmp_path / "study.log").exists()
