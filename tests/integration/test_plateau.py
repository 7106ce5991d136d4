"""A sweep that ends because its front no longer moves."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.front.front import front_of
from orchestrator.front.questions import front_records
from orchestrator.report.answer import answer
from specfrontier import Sweep
from tests.fakes.command_line import specfrontier
from tests.fakes.real_sweeps import SWEEP, SweepRun, files

pytestmark = pytest.mark.slow(seconds=30)
TEXT = SWEEP.replace("name: small", "name: flat").replace(
    "{trials: 6}", "{trials: 40, plateau: 0.3, patience: 2}"
)
TEXT = TEXT.replace("sampler: nsga2", "sampler: random").replace(
    ", options: {population_size: 2}", ""
)


def test_a_front_that_no_longer_moves_ends_a_sweep(small: SweepRun, tmp_path: Path) -> None:
    """It says so everywhere; another launch runs nothing unless the budget has changed."""
    run = SweepRun(tmp_path, TEXT)
    checked = specfrontier(*run.arguments("--no-mlflow", "--check")).out
    assert "at most 40 trials" in checked
    ended = run.run_locally("--no-mlflow")
    count = len(run.records)
    assert 4 <= count < 40
    sweep = Sweep.open(run.store)
    assert "the front no longer moves (budget.plateau)" in ended.out
    said = "the sweep ended because its front no longer moves"
    shown = [
        ended.out,
        specfrontier("status", str(run.store)).out,
        "\n".join(answer(front_of([sweep]))["warnings"]),
    ]
    assert [
        " ".join(text.split()).count("the sweep ended because its front no longer moves")
        for text in shown
    ] == [1] * 3
    assert specfrontier("status", str(run.store), "--json").json["plateau"]["is_reached"]
    before = files(run.store)
    again = run.run_locally("--no-mlflow", "--resume", "--trials", "41")
    assert (files(run.store), len(run.records)) == (before, count)
    assert "the front no longer moves" in again.out
    run.text = TEXT.replace(", plateau: 0.3, patience: 2", "")
    run.run_locally("--no-mlflow", "--resume", "--trials", str(count + 2))
    assert specfrontier("status", str(run.store), "--json").json["plateau"] is None
    assert len(run.records) == count + 2
    assert said not in specfrontier("status", str(run.store)).out


def test_a_front_taken_over_counts(small: SweepRun, tmp_path: Path) -> None:
    """The new trials must move the earlier front, which runs first."""
    run = SweepRun(tmp_path, TEXT, models=lambda folder: small.folder / "weights")
    run.run_locally("--no-mlflow", "--from", str(small.store))
    front = {record.digest for record in front_records(Sweep.open(small.store))}
    first = [record.digest for record in run.records[: len(front) + 1]]
    assert front <= {*first}
    assert len(first) + 2 <= len(run.records) < 40
