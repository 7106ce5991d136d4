"""Theorem 2 against the engine itself: distributions recorded while the built-in model draws, and
accepted drafts.

16 captions, a fixed seed. Bounds and measurement must lie within 4.5 of their errors over images,
added as if they were independent (read off the same rounds, they agree better than that): with 15
degrees of freedom a false alarm in at most 1 of 2,000 seeds and rules.
"""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks import theory
from benchmarks.bounds import Estimate
from benchmarks.common import held_out_requests
from benchmarks.theory import RULES, Rounds, compare, record, setting
from search_spaces.neighbourhoods import NeighbourTables
from search_spaces.schedules import Constant
from workers.data.grid import Grid
from workers.loading.models import Models
from workers.loading.models_yaml import load_folder

IMAGES, LENGTH = 16, 3


@pytest.fixture(scope="module")
def models() -> Models:
    """For images of 8 rows: enough rounds for `assert_agree`."""
    models = load_folder()
    models.target.grid = Grid(8, models.target.grid.cols)
    return models


@pytest.fixture(scope="module")
def exact(models: Models) -> Rounds:
    return record(
        models, setting(RULES["exact"], "eagle", LENGTH), held_out_requests(models, IMAGES)
    )[0]


def assert_agree(expected: Estimate, measured: Estimate) -> None:
    error = math.hypot(expected.error, measured.error)
    assert error < 0.1, "too few rounds to tell anything"
    assert abs(expected.value - measured.value) < 4.5 * error


def test_the_exact_rule_accepts_what_theory_says(exact: Rounds) -> None:
    row = compare(setting(RULES["exact"], "eagle", LENGTH), exact, exact, NeighbourTables())
    assert_agree(row["predicted"], row["measured"])
    assert row["own_rounds"] == row["predicted"]
    assert row["measured"].value > 0.7
    assert row["bound"].value < 1e-6
    assert row["optimal_bound"].value < 1e-6


@pytest.mark.parametrize(
    ("name", "drafter"),
    [("lantern k100 δ0.1, optimal", "eagle"), ("cool 1.5, by row", "independent")],
)
def test_theory_is_right_about_a_relaxed_rules_own_rounds(
    models: Models, exact: Rounds, name: str, drafter: str
) -> None:
    config = setting(RULES[name], drafter, LENGTH)
    row = compare(config, exact, *record(models, config, held_out_requests(models, IMAGES)))
    assert_agree(row["own_rounds"], row["measured"])


def test_the_bound_grows_with_the_budget(exact: Rounds) -> None:
    rule = setting(RULES["exact"], "eagle", LENGTH).acceptance

    def bound(budget: float) -> float:
        found = theory.theory(replace(rule, schedule=Constant(budget)), exact, NeighbourTables())
        assert found.bound.value == pytest.approx(found.optimal_bound.value, abs=1e-6)
        return found.bound.value

    bounds = [bound(budget) for budget in (1.0, 1.1, 1.5, 2.0, 4.0)]
    assert bounds == sorted(bounds)
    assert bounds[0] < 1e-6 < 0.01 < bounds[1]


def test_rounds_at_the_images_end_are_left_out(models: Models, exact: Rounds) -> None:
    """Every image emits all its tokens, the prefill's among them; what is left out is its last L
    tokens at most.
    """
    emitted = (exact.accepted + 1).new_zeros(IMAGES).index_add_(0, exact.image, exact.accepted + 1)
    missing = models.target.grid.tokens - 1 - emitted
    assert int(missing.min()) >= 0
    assert int(missing.max()) <= LENGTH
    assert int(exact.accepted.max()) == LENGTH


def test_the_benchmark_prints_and_keeps_its_table(
    models: Models,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    out = tmp_path / "new" / "theory.json"
    monkeypatch.setattr(theory, "RULES", {name: RULES[name] for name in ("exact", "uniform 1.1")})
    monkeypatch.setattr(models.target, "grid", Grid(3, models.target.grid.cols))
    monkeypatch.setattr(theory, "load_folder", lambda: models)
    monkeypatch.setattr("sys.argv", ["theory", "--images", "2", "--length", "2", "--out", str(out)])
    theory.main()
    rows = json.loads(out.read_text())["rows"]
    assert list(rows) == ["exact", "uniform 1.1"]
    assert rows["uniform 1.1"]["bound"]["value"] > rows["exact"]["bound"]["value"]
    printed = capsys.readouterr().out.splitlines()
    assert [row.count("|") for row in printed] == [7] * 4
