"""A sweep's study for people: short names of parameters, attributes of one value each."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import optuna
import pytest

from orchestrator.run.search import Search
from orchestrator.views.study import open_storage, short_names
from search_spaces.sweep import SweepConfig, ready_spaces
from tests.fakes.studies import named_config, plain_record, write_study

BUDGETS = [f"space={drafter}.acceptance=constant.budget" for drafter in ("eagle", "jacobi")]


def test_a_name_has_as_many_branches_as_it_needs() -> None:
    names = ["acceptance.delta", "tree=chain.length", "tree=window.length", *BUDGETS]
    names += ["a=x.one", "b=x.one", "a.kind", "b.kind"]
    assert list(short_names(names).items()) == [
        ("acceptance.delta", "delta"),
        ("tree=chain.length", "length (chain)"),
        ("tree=window.length", "length (window)"),
        (BUDGETS[0], "budget (eagle, constant)"),
        (BUDGETS[1], "budget (jacobi, constant)"),
        ("a=x.one", "one (a x)"),
        ("b=x.one", "one (b x)"),
        ("a.kind", "a.kind"),
        ("b.kind", "b.kind"),
    ]


@pytest.mark.parametrize("space", [name for name in ready_spaces() if "/" not in name])
def test_names_of_the_ready_spaces_differ(space: str) -> None:
    names = short_names(SweepConfig.read(space, {}).space.parameters())
    assert len(set(names.values())) == len(names)
    assert all("=" not in short for short in names.values())


def params_of(url: str) -> list[dict[str, float]]:
    return [
        trial.params
        for trial in optuna.load_study(study_name="named", storage=open_storage(url)).trials
    ]


def test_a_study_has_short_names_of_the_parameters(tmp_path: Path) -> None:
    new, config = str(tmp_path / "new.log"), named_config("named")
    short = short_names(config.space.parameters())
    search = Search(config, ("maximize", "minimize"))
    params = next(
        p.params
        for p in map(search.propose, range(99))
        if any(short[name] != name for name in p.params)
    )
    records = [replace(plain_record(number), params=params) for number in range(2)]
    write_study(config, new, records)
    assert params_of(new) == [{short[name]: value for name, value in params.items()}] * 2
