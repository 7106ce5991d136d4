"""`specfrontier predict` on a tiny random model: its table, its front, and what it refuses."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from orchestrator.cli.predict import PLOT, TABLE
from orchestrator.errors import WRONG_USAGE
from orchestrator.store.identity import write_identity
from orchestrator.store.records import TrialRecord, write_trial
from search_spaces.trial import DecodingConfig, Sampling
from tests.fakes.command_line import CommandResult, error_of, specfrontier
from tests.fakes.synthetic_sweeps import identity
from tests.fakes.tiny_models import tiny_scenes
from workers.data.storage import Storage
from workers.loading.models_yaml import load_folder
from workers.metrics.definition import Metric
from workers.metrics.estimate import Estimate

SPACE = """
name: tiny
models: WEIGHTS
captions: {source: scenes, count: 4, seed: 1}
sampling: {temperature: 1.0, top_k: 0, top_p: 1.0, cfg: 1.0}
enqueue: [vanilla, {label: exact chain, drafter: eagle, tree: {policy: chain, length: 3}}]
space:
  drafter: eagle
  tree:
    - {policy: chain, length: {low: 1, high: 3}}
    - {policy: dynamic, depth: {low: 1, high: 2}, width: 2, nodes: 3}
    - {policy: adjacency, nodes: 4, depth_range: [1, 2], width_range: [1, 2], start_depth: 1, start_width: 1}
  acceptance: {schedule: constant, budget: {low: 1.0, high: 3.0}}
"""
SETTINGS = 12


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_scenes(tmp_path_factory.mktemp("weights"))


def write_space(folder: Path, weights: Path, text: str = SPACE) -> str:
    path = folder / "space.yaml"
    path.write_text(text.replace("WEIGHTS", str(weights)), "utf-8")
    return str(path)


@pytest.fixture(scope="module")
def predicted(
    weights: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, CommandResult]:
    folder = tmp_path_factory.mktemp("predicted")
    options = ("--settings", str(SETTINGS), "--captions", "4", "--out", str(folder), "--json")
    return folder, specfrontier("predict", write_space(folder, weights), *options)


def test_every_setting_has_a_row(predicted: tuple[Path, CommandResult]) -> None:
    folder, result = predicted
    assert result.code == 0, result.err
    assert "study" not in result.err, "Optuna's own messages are not shown"
    assert result.json["not_predicted"] == {}
    assert result.json["written"] == {"table": str(folder / TABLE), "plot": str(folder / PLOT)}
    table = pq.read_table(folder / TABLE)
    assert table.num_rows == SETTINGS + 2
    assert len(set(table["digest"].to_pylist())) == table.num_rows
    for row in table.to_pylist():
        assert row["approximate"] == (row["tree.policy"] == "adjacency")
        assert row["total_variation"] >= 0
    assert {"adjacency", "chain", "dynamic"} < set(table["tree.policy"].to_pylist())
    assert (folder / PLOT).read_bytes().startswith(b"\x89PNG")


def test_vanilla_is_one_token_a_pass_and_the_exact_rule_costs_nothing(
    predicted: tuple[Path, CommandResult],
) -> None:
    rows = {row["label"]: row for row in pq.read_table(predicted[0] / TABLE).to_pylist()}
    vanilla, exact = rows["vanilla"], rows["exact chain"]
    assert (vanilla["mean_accepted_length"], vanilla["speedup"], vanilla["excess"]) == (
        1,
        pytest.approx(1),
        0,
    )
    assert exact["excess"] == 0
    assert exact["mean_accepted_length"] >= 1
    assert exact["mean_accepted_length_error"] > 0


def test_larger_budgets_accept_more_and_cost_more(predicted: tuple[Path, CommandResult]) -> None:
    rows = [
        row
        for row in pq.read_table(predicted[0] / TABLE).to_pylist()
        if row["tree.policy"] == "chain"
    ]
    for length in {row["tree.length"] for row in rows}:
        chains = sorted(
            (row for row in rows if row["tree.length"] == length),
            key=lambda row: row["acceptance.budget"],
        )
        for name in ("mean_accepted_length", "excess"):
            values = [row[name] for row in chains]
            assert values == sorted(values)


def test_the_front_has_no_setting_that_another_beats(
    predicted: tuple[Path, CommandResult],
) -> None:
    rows = pq.read_table(predicted[0] / TABLE).to_pylist()
    front = [entry["setting"] for entry in predicted[1].json["front"]]
    assert front == [
        row["setting"] for row in sorted(rows, key=lambda row: row["speedup"]) if row["on_front"]
    ]
    for row in rows:
        beaten = any(o["speedup"] > row["speedup"] and o["excess"] < row["excess"] for o in rows)
        assert not (beaten and row["on_front"])


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (("eagle\n", "eagel\n"), ["space.yaml", "drafter", "eagle"]),
        (("temperature: 1.0", "temperature: 0"), ["temperature"]),
        (("WEIGHTS", "nowhere"), ["models", "nowhere"]),
    ],
)
def test_what_cannot_be_predicted_is_refused(
    change: tuple[str, str], words: list[str], weights: Path, tmp_path: Path
) -> None:
    space = write_space(tmp_path, weights, SPACE.replace(*change))
    error = error_of("predict", space, "--out", str(tmp_path / "out"), code=WRONG_USAGE)
    assert all(word in error for word in words)


def write_sweep(
    folder: Path, hashes: Mapping[str, str], row: Mapping[str, Any], ratio: float
) -> str:
    """A sweep whose only trial measured `ratio` times the predicted accepted length."""
    storage = Storage(str(folder / "ran"))
    axis = Metric("mean_accepted_length", "maximize")
    metrics = {axis.name: axis.to_mapping()}
    write_identity(
        storage,
        identity("ran", metrics=metrics, objectives=[], constraints=[], models=dict(hashes)),
    )
    chain = {"drafter": "eagle", "tree": {"policy": "chain", "length": 3}}
    config = DecodingConfig.from_mapping(chain).with_sampling(Sampling())
    values = {axis.name: Estimate(ratio * row["mean_accepted_length"], 0.0, 96)}
    write_trial(storage, TrialRecord(0, "exact chain", "complete", config, metrics=values))
    return str(folder / "ran")


def test_a_sweep_of_the_same_weights_corrects_predictions(
    predicted: tuple[Path, CommandResult], weights: Path, tmp_path: Path
) -> None:
    hashes = load_folder(weights).hashes
    (row,) = (
        row
        for row in pq.read_table(predicted[0] / TABLE).to_pylist()
        if row["label"] == "exact chain"
    )
    space = write_space(tmp_path, weights)
    common = (space, "--settings", "2", "--captions", "4")
    sweep = write_sweep(tmp_path, hashes, row, 0.8)
    result = specfrontier(
        "predict", *common, "--out", str(tmp_path / "out"), "--from", sweep, "--json"
    )
    assert result.code == 0, result.err
    assert result.json["corrected_by"] == 1
    rows = {row["label"]: row for row in pq.read_table(tmp_path / "out" / TABLE).to_pylist()}
    assert (
        0.8 * row["mean_accepted_length"]
        < rows["exact chain"]["mean_accepted_length"]
        < row["mean_accepted_length"]
    )
    other = write_sweep(tmp_path / "other", dict.fromkeys(hashes, "0" * 16), row, 0.8)
    error = error_of(
        "predict", *common, "--out", str(tmp_path / "out"), "--from", other, code=WRONG_USAGE
    )
    assert all(word in error for word in (other, "weights"))
