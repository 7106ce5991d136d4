"""A drafter of which hardly anything is accepted is named with its file; others are not."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from orchestrator.shown.status import MIN_PASSES, drafter_warnings, is_hardly_accepted, waiting_note
from orchestrator.store.records import TrialRecord
from orchestrator.store.sweep import Sweep
from search_spaces.presets import PRESETS
from tests.fakes.command_line import specfrontier
from tests.fakes.real_sweeps import SweepRun
from tests.fakes.synthetic_sweeps import SAMPLING, identity, write_sweep
from workers.metrics.estimate import Estimate
from workers.models.families.scenes import BUILTIN

OWN = identity(
    "mine",
    models={"drafters.eagle": "1e" * 8},
    files={"drafters.eagle": "/ckpt/eagle.safetensors"},
)


def trial(number: int, preset: str, metric: str, value: float, images: int = 8) -> TrialRecord:
    found = {metric: Estimate(value, 0.01, images)}
    return TrialRecord(
        number,
        "",
        "complete",
        PRESETS[preset].with_sampling(SAMPLING),
        metrics=found,
        images=images,
    )


@pytest.mark.parametrize(
    ("tokens", "passes", "hardly"),
    [
        (143, 143, True),
        (1430, 1430, True),
        (1440, 1430, True),
        (150, 143, False),
        (1500, 1430, False),
        (4.93 * 143, 143, False),
        (MIN_PASSES - 1, MIN_PASSES - 1, False),
    ],
)
def test_what_hardly_anything_is(tokens: float, passes: float, hardly: bool) -> None:
    assert is_hardly_accepted(tokens, passes) is hardly


@pytest.mark.parametrize("metric", ["mean_accepted_length", "step_compression"])
def test_a_drafter_is_named_if_none_of_its_trials_accepts(metric: str) -> None:
    def warned(*records: TrialRecord) -> Sequence[str]:
        return drafter_warnings(records, OWN)

    vanilla, useless = trial(0, "vanilla", metric, 1.0), trial(1, "eagle2", metric, 1.004)
    (warning,) = warned(vanilla, useless)
    for fact in ("eagle", "/ckpt/eagle.safetensors", "1.00 tokens"):
        assert fact in warning
    assert warned(vanilla) == []
    assert warned(useless, trial(2, "lantern", metric, 1.3)) == [], (
        "so that setting is to blame, not the weights"
    )
    assert warned(trial(1, "eagle2", metric, 1.0, images=1)) == [], "63 passes"
    assert warned(trial(1, "sjd", metric, 1.0)) == [], "a Jacobi window has no weights"
    assert warned(replace(useless, state="failed", metrics={})) == []


def test_a_sweep_without_results_says_what_goes_on(tmp_path: Path) -> None:
    write_sweep(tmp_path, trials=0, budget=5)
    (note,) = waiting_note(Sweep.open(tmp_path))
    assert note in specfrontier("pareto", str(tmp_path), "--json").json["warnings"]
    page = Path(specfrontier("report", str(tmp_path)).out.strip()).read_text("utf-8")
    assert json.dumps(note)[1:-1] in page
    write_sweep(tmp_path, trials=1, budget=5)
    assert waiting_note(Sweep.open(tmp_path)) == []


@pytest.fixture(scope="module")
def random_drafter(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built-in model with an EAGLE layer of random weights."""
    folder = tmp_path_factory.mktemp("random")
    shutil.copytree(BUILTIN, folder, dirs_exist_ok=True)
    file = folder / "eagle.safetensors"
    with safe_open(file, "pt") as opened:
        metadata = opened.metadata()
    torch.manual_seed(0)
    tensors = {
        name: torch.randn_like(tensor) * tensor.std() for name, tensor in load_file(file).items()
    }
    save_file(tensors, file, metadata)
    return folder


def test_images_of_a_random_drafter_come_with_the_sentence(
    random_drafter: Path, tmp_path: Path
) -> None:
    tree = ("--set", "tree.depth=2", "--set", "tree.nodes=4", "--set", "tree.width=2")
    words = (
        "generate",
        "a red circle",
        "a blue star",
        "--preset",
        "eagle2",
        *tree,
        "--out",
        str(tmp_path),
    )
    ran = specfrontier(*words, "--models", str(random_drafter), "--json")
    (warning,) = ran.json["warnings"]
    assert str(random_drafter / "eagle.safetensors") in warning
    assert specfrontier(*words, "--json").json["warnings"] == [], "of the built-in one"


def test_a_sweep_of_a_random_drafter_says_so_everywhere(
    random_drafter: Path, tmp_path: Path
) -> None:
    run = SweepRun(
        tmp_path,
        f"name: random\nmodels: {random_drafter}\ncaptions: {{count: 2}}\nreference: {{source: "
        "none}\nquality: {batch: 2, shard: 2}\nmetrics: [step_compression, "
        "caption_accuracy]\nobjectives: [step_compression, caption_accuracy]\nbudget: {trials: "
        "2}\nenqueue: [vanilla, {preset: eagle2, tree: {policy: dynamic, depth: 2, width: 2, "
        "nodes: 4}}]\nspace: {drafter: eagle, tree: {policy: chain, length: 2}}\n",
    )
    launched, store = run.run_locally("--no-mlflow"), str(run.store)
    (warning,) = specfrontier("status", store, "--json").json["warnings"]
    assert str(random_drafter / "eagle.safetensors") in warning
    assert f"note: {warning}" in launched.out
    assert warning in specfrontier("pareto", store, "--json").json["warnings"]
    assert json.dumps(warning)[1:-1] in (run.store / "report.html").read_text("utf-8")
