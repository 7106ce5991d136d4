"""A trial has one form of name wherever a person reads it: its number, its label, its setting as
`pareto` shows it.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from orchestrator.cli.devices import side_by_side
from orchestrator.cli.text import choice_lines, for_output, front_table
from orchestrator.front.choice import recommend
from orchestrator.front.front import front_of
from orchestrator.report.page import page_data
from orchestrator.store.names import title, trial_title
from orchestrator.store.records import write_trial
from orchestrator.store.sweep import Sweep
from orchestrator.views.mlflow_page import describe_run
from search_spaces.trial import DecodingConfig
from tests.fakes.synthetic_sweeps import SAMPLING, write_sweep
from workers.data.storage import Storage
from workers.metrics.estimate import Estimate

LABEL, SHORT = "my window", "jacobi(cpl,left)-chain15 exp(b3)"
CONFIG = DecodingConfig.from_mapping(
    {
        "drafter": {"kind": "jacobi", "redraw": "coupled", "initialisation": "repeat_left"},
        "tree": {"policy": "chain", "length": 15},
        "acceptance": {"schedule": "exponential", "budget": 3.0},
    }
).with_sampling(SAMPLING)


@pytest.fixture(scope="module")
def sweep(tmp_path_factory: pytest.TempPathFactory) -> Sweep:
    """Its fastest trial, 5, has a label, and a setting whose name is abbreviated."""
    folder = tmp_path_factory.mktemp("sweep")
    record = write_sweep(folder, trials=6)[5]
    metrics = {
        **record.metrics,
        "speedup": Estimate(9.0, 0.1, 9),
        "fid": replace(record.metrics["fid"], value=4.0),
    }
    write_trial(Storage(str(folder)), replace(record, label=LABEL, config=CONFIG, metrics=metrics))
    return Sweep.open(folder)


def test_a_title_has_what_there_is() -> None:
    assert title("gsd", "jacobi-chain15") == "gsd: jacobi-chain15"
    assert title("", "vanilla") == title("vanilla", "vanilla") == "vanilla"
    assert trial_title(5, "gsd", "jacobi-chain15") == "trial 5, gsd: jacobi-chain15"
    assert trial_title("mine#5", "gsd") == "trial mine#5, gsd"
    assert trial_title(8, "") == "trial 8"


def test_all_that_a_person_reads_has_one_form(sweep: Sweep) -> None:
    front = for_output(front_of([sweep]), long=False)
    (trial,) = [trial for trial in front.members if trial.number == 5]
    assert trial.setting == SHORT
    assert trial.heading == f"trial 5, {LABEL}: {SHORT}"
    choice = recommend(front, trial=front.trial(5)).require("trial")
    assert any(trial.heading in line for line in choice_lines([choice]))
    others = [other.setting for other in front.members if other.number != 5]
    tables = {"pareto": "\n".join(front_table(front.metrics, front.members))}
    tables["devices"] = "\n".join(
        side_by_side([front_of([sweep])], {trial.number for trial in front.members})[1]
    )
    tables["mlflow"] = describe_run(
        sweep, {record.number: f"run{record.number}" for record in sweep.records}, "1"
    )
    for name, text in tables.items():
        assert LABEL in text, name
        for setting in (SHORT, *others):
            assert setting in text.replace("\\", ""), name
    page = {entry["number"]: entry for entry in page_data([sweep], decode=False)["trials"]}
    assert page[5]["title"] == trial_title(5, LABEL)
    assert {member.number: page[member.number]["description"] for member in front.members} == {
        member.number: member.setting for member in front.members
    }
