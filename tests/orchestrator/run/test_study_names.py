"""A sweep's study for people: short names of parameters, attributes of one value each, a note."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import optuna
import pytest
from optuna.distributions import FloatDistribution
from optuna.trial import TrialState, create_trial
from optuna_dashboard import get_note  # type: ignore[import-untyped]

from orchestrator.results.store import read_trials
from orchestrator.results.sweep import Sweep, front_of
from orchestrator.run.study import Proposal
from orchestrator.run.study_log import StudyLog
from orchestrator.run.study_names import short_names
from orchestrator.run.study_note import describe_study
from orchestrator.run.study_storage import open_storage
from search_spaces.sweep import SweepConfig, ready_spaces
from tests.fakes.synthetic_sweeps import write_sweep
from workers.data.storage import Storage

BUDGETS = [f"space={drafter}.acceptance=constant.budget" for drafter in ("eagle", "jacobi")]


def test_a_name_has_as_many_branches_as_it_needs() -> None:
    names = ["acceptance.delta", "tree=chain.length", "tree=window.length", *BUDGETS, "a.kind", "b.kind"]
    assert list(short_names(names).items()) == [
        ("acceptance.delta", "delta"),
        ("tree=chain.length", "length (chain)"),
        ("tree=window.length", "length (window)"),
        (BUDGETS[0], "budget (eagle, constant)"),
        (BUDGETS[1], "budget (jacobi, constant)"),
        ("a.kind", "a.kind"),
        ("b.kind", "b.kind"),
    ]


@pytest.mark.parametrize("space", [name for name in ready_spaces() if "/" not in name])
def test_names_of_the_ready_spaces_differ(space: str) -> None:
    names = short_names(SweepConfig.read(space, {}).space.parameters())
    assert len(set(names.values())) == len(names)
    assert all("=" not in short for short in names.values())


def params_of(url: str) -> list[dict[str, float]]:
    return [trial.params for trial in optuna.load_study(study_name="named", storage=open_storage(url)).trials]


def write(url: str, number: int, parameters: list[str]) -> None:
    domain = FloatDistribution(0, 4)
    with closing(StudyLog("named", url, ("maximize", "minimize"), ("speedup", "fid"), "id", parameters)) as log:
        log.add(Proposal(number, "", None, {BUDGETS[0]: 2.0}, {BUDGETS[0]: domain}), "a setting")
        assert log.flush() is None


def test_an_older_study_keeps_its_names(tmp_path: Path) -> None:
    new, old = str(tmp_path / "new.log"), str(tmp_path / "old.log")
    for number in range(2):
        write(new, number, BUDGETS)
    assert params_of(new) == [{"budget (eagle, constant)": 2.0}] * 2
    before = optuna.create_study(study_name="named", storage=open_storage(old), directions=["maximize", "minimize"])
    before.set_user_attr("sweep", "id")
    before.add_trial(
        create_trial(
            state=TrialState.RUNNING,
            params={BUDGETS[0]: 2.0},
            distributions={BUDGETS[0]: FloatDistribution(0, 4)},
            user_attrs={"setting": "a setting"},
        )
    )
    for number in range(2):
        write(old, number, BUDGETS)
    assert params_of(old) == [{BUDGETS[0]: 2.0}] * 2


def test_the_dashboards_note_has_the_front(tmp_path: Path) -> None:
    write_sweep(tmp_path / "sweep", 20, name="a|b*")
    storage, url = Storage(str(tmp_path / "sweep")), str(tmp_path / "study.log")
    sweep = Sweep.open(storage)
    text = describe_study(sweep.identity, read_trials(storage), "sweeps/demo")
    with closing(StudyLog("named", url, ("maximize", "minimize"), ("speedup", "fid"), "id")) as log:
        log.note(text * 3)
        log.note(text)
        assert log.flush() is None
    shown = get_note(optuna.load_study(study_name="named", storage=open_storage(url)))
    assert shown == text, "a shorter note replaces a longer one"
    assert r"a\|b\*" in shown
    members = front_of([sweep]).members
    assert members
    assert all(f"| {member.record.number} | {member.title} |" in shown for member in members)
