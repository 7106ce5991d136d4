"""Each part sees what it looks for. On a CPU, graphs are the stand-in of `tests.fakes.tape`."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from benchmarks.common import engine_for
from benchmarks.gpu import graphs as graphs_part
from benchmarks.gpu import kernels, memory, precision, speed, timings
from benchmarks.gpu.models import XL, random_models
from benchmarks.gpu.record import Setup
from benchmarks.random_models import published_shape, randomise
from search_spaces.acceptance import AcceptanceRule
from search_spaces.presets import preset
from search_spaces.trial import DecodingConfig
from tests.fakes import tape
from workers.decoding import graphs
from workers.decoding.engine import Engine
from workers.decoding.kernels import FusedRule, accept_tree
from workers.loading.models import Models
from workers.metrics.costs import Prices
from workers.metrics.estimate import Estimate

SETUP = Setup(torch.device("cpu"), is_tiny=True)


@pytest.fixture(scope="module")
def models() -> Models:
    return random_models(SETUP, XL)


@pytest.fixture
def captured(monkeypatch: pytest.MonkeyPatch) -> None:
    """Engines on a CPU capture their passes."""
    monkeypatch.setattr(graphs.PassGraphs, "failure", None)
    monkeypatch.setattr(graphs, "are_supported", lambda device: True)
    monkeypatch.setattr(graphs, "CudaCapture", lambda device: tape.capture)
    tape.without_shortcuts(monkeypatch)


def test_every_program_of_the_kernel_is_compared() -> None:
    """Of each neighbourhood, residual and way to draft; the published rules among them."""
    rules = kernels.rules()
    programs = {
        (fused.kind, fused.has_paper_residual, fused.has_exact_residual, sampled)
        for rule in rules.values() for sampled in (False, True)
        if (fused := FusedRule.of(rule, sampled=sampled)) is not None
    }  # fmt: skip
    # of the distances of `fuzzy`, the preset's
    assert {kind for kind, *_ in programs} == {0, 1, 2, 3, 4, 5}
    assert {(paper, exact) for _, paper, exact, _ in programs} == {
        (False, False),
        (False, True),
        (True, False),
        (True, True),
    }
    assert {sampled for *_, sampled in programs} == {False, True}
    assert rules["exact"] == AcceptanceRule()
    assert preset("lantern").acceptance in rules.values()


@pytest.mark.parametrize("sampled", [False, True])
@pytest.mark.parametrize("fault", ["no", "path", "residual"])
def test_a_wrong_kernel_is_seen(sampled: bool, fault: str, monkeypatch: pytest.MonkeyPatch) -> None:

    def wrong(*arguments: Any) -> tuple[torch.Tensor, ...]:
        path, count, residual = accept_tree(*arguments)
        if fault == "path":
            path = path + 1
        elif fault == "residual":
            residual = residual + 1e-3
        return path, count, residual

    monkeypatch.setattr(kernels, "accept_tree", wrong)
    row = kernels.agreement(SETUP, preset("lantern").acceptance, 256, sampled)
    assert row["differing"] == (row["rows"] if fault == "path" else 0)
    assert (row["residual_error"] > 1e-4) == (fault == "residual")
    assert row["mean_accepted"] > 0.5


@pytest.mark.parametrize("name", ["vanilla", "eagle1"])
def test_graphs_are_compared_with_eager_passes(name: str, captured: None, models: Models) -> None:
    row = graphs_part.compare(lambda: models, name, 3, 2)
    assert row["images"] == 3
    assert row["eager_differing"] == row["shrinking_differing"] == 0
    assert min(row[f"{mode}_s"] for mode in ("graphs", "eager", "shrinking")) > 0


def test_graphs_that_compute_something_else_are_seen(
    captured: None, models: Models, monkeypatch: pytest.MonkeyPatch
) -> None:
    replay, replays = tape.Tape.replay, itertools.count()

    def skip_an_acceptance(self: tape.Tape) -> None:
        number = next(replays)
        if number < 2 * memory.PHASES or number % memory.PHASES != 2:
            replay(self)

    monkeypatch.setattr(tape.Tape, "replay", skip_an_acceptance)
    row = graphs_part.compare(lambda: models, "vanilla", 2, 2)
    assert row["eager_differing"] == row["shrinking_differing"] == 2


def test_a_pass_that_cannot_be_captured_is_an_error(
    captured: None, models: Models, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(function: Callable[[], Any]) -> Any:
        raise RuntimeError("operation not permitted when stream is capturing")

    monkeypatch.setattr(graphs, "CudaCapture", lambda device: refuse)
    with pytest.raises(RuntimeError, match="not permitted"):
        graphs_part.compare(lambda: models, "vanilla", 1, 1)


def test_captures_of_a_trial_are_counted(
    captured: None, models: Models, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = memory.trial(SETUP, lambda: models, preset("eagle1"))
    assert row["images"] == 6
    assert row["captured_passes"] > 0
    assert row["captures"] == memory.PHASES * row["captured_passes"]
    assert row["recaptures"] == 0
    keep = Engine.keep
    monkeypatch.setattr(Engine, "keep", lambda self, batch: None)  # each run would capture anew
    again = memory.trial(SETUP, lambda: models, preset("eagle1"))
    assert again["captured_passes"] == 0
    assert again["recaptures"] == again["captures"]
    monkeypatch.setattr(Engine, "keep", keep)


def test_what_is_kept_over_trials_is_counted(captured: None, models: Models) -> None:
    row = memory.trials(SETUP, lambda: models)
    assert row["trials"] == 4
    # vanilla and the four settings that took turns last, at one batch size each
    assert row["live_graphs"] == [5]
    assert row["captures"] > memory.PHASES * row["captured_passes"][0]
    configs = memory.configs()
    assert len(configs) == len({config.shape for config in configs}) == memory.TRIALS


def test_a_profile_separates_models_from_the_rest(models: Models) -> None:
    row = speed.profile(SETUP, lambda: models, preset("eagle1"), 1)
    assert 0 < row["outside_share"] < 1
    # of the target, and of the EAGLE layer
    layers, passes = 2, preset("eagle1").policy.bounds.depth
    assert sum(row["attention_calls"].values()) == layers + passes
    assert "forward" not in vars(models.target.transformer), "the forwards are restored"


def test_kernels_are_counted_by_where_they_were_launched() -> None:
    """As torch's profiler gives them: kernels hang on the operation that launched them."""
    whole = SimpleNamespace(
        name=speed._INSIDE, cpu_parent=None, kernels=[kernel(speed._INSIDE, 99)]
    )
    attention = SimpleNamespace(name=speed._ATTENTION, cpu_parent=whole, kernels=[])
    fused = SimpleNamespace(
        name="aten::_scaled_dot_product_efficient_attention",
        cpu_parent=attention,
        kernels=[kernel("fmha", 6)],
    )
    product = SimpleNamespace(name="aten::mm", cpu_parent=whole, kernels=[kernel("gemm", 3)])
    accept = SimpleNamespace(
        name="specfrontier::accept_tree", cpu_parent=None, kernels=[kernel("accept_path", 1)]
    )
    row = speed.summary([whole, attention, fused, product, accept], 1, is_cuda=True)
    assert row["device_s"] == pytest.approx(10e-6)
    assert row["outside_share"] == pytest.approx(0.1)
    assert (row["launches_inside"], row["launches_outside"]) == (2, 1)
    assert row["attention_calls"] == {"aten::_scaled_dot_product_efficient_attention": 1}
    assert row["attention_kernels_s"] == pytest.approx({"fmha": 6e-6})


def kernel(name: str, microseconds: float) -> SimpleNamespace:
    return SimpleNamespace(name=name, duration=microseconds)


def test_steps_are_measured_until_the_tokens_are_there(models: Models) -> None:
    engine = engine_for(models, preset("eagle1"), batch=2)
    steps, drawn = speed.decode(engine, models, 2, 3, 60)
    assert drawn == 3
    assert 1 <= len(steps) <= 3
    assert all(step.seconds > 0 and step.bytes > 0 and step.nodes > 0 for step in steps)
    steps, _ = speed.decode(engine, models, 2, 3, 0)
    assert steps == []


def test_steps_across_fixed_row_ends_are_measured() -> None:
    """Lumina's images have a fixed token after each row."""
    target = randomise(
        published_shape("lumina-mgpt-7b-768", torch.float32, tiny=True), SETUP.device
    )
    models = Models(target, {})
    steps, drawn = speed.decode(engine_for(models, DecodingConfig(), batch=1), models, 1, 50, 60)
    assert len(steps) == drawn == 50


def test_sessions_that_disagree_are_named(models: Models, monkeypatch: pytest.MonkeyPatch) -> None:
    costs = iter([1.0, 2.0, 2.0, 2.0, 2.0, 1.0, 2.0, 2.0, 3.0, 2.0])
    monkeypatch.setattr(Prices, "step_cost", lambda self, shape: Estimate(next(costs), 0.1, 2))
    monkeypatch.setattr(Prices, "error_in_sitting", lambda *_: 0.04)
    row = timings.twice(lambda: models, 1, 2, 1)
    assert row["differing"] == ["lantern_pp"]
    assert row["costs"]["lantern_pp"] == [2.0, 3.0]
    assert row["largest_z"] == pytest.approx(math.log(1.5) / math.hypot(0.04, 0.04))


def test_images_that_differ_from_vanillas_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    vanilla = torch.zeros(3, 8, dtype=torch.int64)
    other = vanilla.clone()
    other[1, 2:] = 5
    other[2, 4] = 5
    monkeypatch.setattr(precision, "greedy", lambda *_: other)
    row = precision.differing(lambda: None, lambda: vanilla, preset("eagle1"), 3)  # type: ignore[arg-type, return-value]
    assert row == {"images": 3, "differing": 2, "first_index": 3.0}
    row = precision.differing(lambda: None, lambda: other, preset("eagle1"), 3)  # type: ignore[arg-type, return-value]
    assert row == {"images": 3, "differing": 0, "first_index": None}
