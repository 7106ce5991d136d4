"""The peak of a sweep on a shared GPU: a worker checks it before it loads its models."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch

from search_spaces.sweep import SweepConfig
from tests.fakes.tiny_models import tiny_scenes
from workers.evaluate import Evaluator
from workers.loading.models_yaml import folder_entry, shape_only_models
from workers.runtime import loaded
from workers.runtime.peak_memory import network_bytes, peak_bytes
from workers.runtime.specification import WorkerSpec

pytestmark = pytest.mark.usefixtures("equal_dry_runs_once")


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_scenes(tmp_path_factory.mktemp("weights"))


def peak(weights: Path, **quality: Any) -> int:
    """Bytes of the quickstart's peak, without the networks of its metrics."""
    shapes = shape_only_models(folder_entry(weights), torch.float32)
    changes = {f"quality.{key}": value for key, value in quality.items()}
    sweep = SweepConfig.read("quickstart", changes).resolve(shapes.target.sampling)
    return peak_bytes(sweep, shapes)


def test_the_peak_is_that_of_the_largest_batch(weights: Path) -> None:
    """With `auto` that of one image: a worker chooses what fits. A batch has at most a shard."""
    one, small, large, chosen = (peak(weights, batch=batch) for batch in (1, 8, 48, "auto"))
    assert 0 < one < small < large
    assert chosen == one
    assert peak(weights, batch=48, shard=4, samples=2) == small


@pytest.mark.parametrize(
    ("less", "fits"), [(1, False), (0, True), (None, True)], ids=["less", "as much", "a CPU"]
)
def test_the_peak_must_fit_a_workers_share(
    less: int | None, fits: bool, weights: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before the models are loaded; the message says what is short, by how much, and the fix."""
    sweep = SweepConfig.read("quickstart", {"quality.batch": 8, "models.file": str(weights)})
    entry = folder_entry(weights)
    needed = peak(weights, batch=8) + network_bytes(sweep, entry)
    memory = None if less is None else needed - less
    monkeypatch.setattr(loaded, "limit_memory", lambda *_: memory)
    if not fits:
        monkeypatch.setattr(loaded, "load_entry", lambda *_: pytest.fail("models were loaded"))
    spec = WorkerSpec(
        store=str(tmp_path),
        device="cpu",
        models=entry.to_mapping(),
        captions={"source": "scenes", "count": 2, "seed": 1},
        gpu_share=0.5,
        sweep=sweep.to_mapping(),
    )
    expected = r"^--gpus-per-worker 0\.5: .* needs .*iB at its peak, .* has .*iB; .*quality\.batch"
    with nullcontext() if fits else pytest.raises(ValueError, match=expected):
        Evaluator(spec)
