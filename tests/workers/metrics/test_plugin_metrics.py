"""The metrics of docs/metrics.md, made in one file outside the project: accepted, checked, computed
by a sweep.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
import torch

from search_spaces.plugins import PLUGINS_VARIABLE
from search_spaces.trial import DecodingConfig
from tests.fakes.command_line import specfrontier
from workers.data.records import features_of, read_shard
from workers.data.shards import MeasureTask, QualityShard, ReferenceTask
from workers.evaluate import Evaluator
from workers.loading.models_yaml import read_entry
from workers.metrics.extractors import check_weights, unavailable_metrics
from workers.metrics.metric import METRICS
from workers.metrics.networks import EXTRACTORS, SCORERS
from workers.runtime.specification import WorkerSpec

PAGE = Path(__file__).parents[3] / "docs" / "metrics.md"


@pytest.fixture
def plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the page's plugin, which the environment names, and the weights of its
    networks.
    """
    text = PAGE.read_text("utf-8")
    code, weights = re.findall(r"^```python\n(.*?)^```$", text, flags=re.M | re.S)
    (sweep,) = re.findall(r"^```yaml\n(# my_metrics\.yaml\n.*?)^```$", text, flags=re.M | re.S)
    monkeypatch.chdir(tmp_path)
    Path("my_metrics.py").write_text(code)
    Path("my_metrics.yaml").write_text(sweep)
    exec(weights, {})
    monkeypatch.syspath_prepend(str(tmp_path))
    METRICS.all()  # imports the package's own before the registries are copied
    for registry in (METRICS, SCORERS, EXTRACTORS):
        monkeypatch.setattr(registry, "_entries", {**registry})
    monkeypatch.setattr("search_spaces.plugins._loaded", set())
    monkeypatch.setenv(PLUGINS_VARIABLE, "my_metrics")
    monkeypatch.delitem(sys.modules, "my_metrics", raising=False)
    return tmp_path


def test_models_yaml_and_checks_know_its_keys(plugin: Path) -> None:
    entry = read_entry(plugin / "models.yaml")
    assert set(entry.metrics) == {"probe", "colours"}
    assert check_weights(entry.folder, entry.metrics) == {}
    torch.save({"weight": torch.zeros(1, 5), "bias": torch.zeros(1)}, plugin / "probe.pth")
    assert "weight has shape [1, 5]" in check_weights(entry.folder, entry.metrics)["probe"]
    reasons = unavailable_metrics(
        ["probe", "contrast"],
        entry.folder,
        image_size=48,
        captions=["a red ring"],
        weights=None,
        reference=False,
    )
    assert reasons.keys() == {"probe"}
    assert "metrics.probe" in reasons["probe"]


def test_commands_of_the_page_accept_its_files(plugin: Path) -> None:
    assert specfrontier("--plugin", "my_metrics", "doctor", "--models", "models.yaml").code == 0
    checked = specfrontier("--plugin", "my_metrics", "launch", "my_metrics.yaml", "--check")
    assert checked.code == 0, checked.err
    assert "speedup, probe" in checked.out


def test_a_sweep_computes_them(plugin: Path) -> None:
    """The evaluator generates images, reads them by the plugin's extractor and score, and computes
    the reference.
    """
    scenes = {"source": "scenes", "count": 8, "seed": 1}
    models = read_entry(plugin / "models.yaml").to_mapping()
    store = str(plugin / "store")
    evaluator = Evaluator(
        WorkerSpec(store=store, device="cpu", captions=scenes, reference=scenes, models=models)
    )
    assert evaluator.experiment.extractors["features"].startswith("mean-colours@")
    assert evaluator.experiment.extractors["probe"].startswith("probe@")
    assert evaluator.make(ReferenceTask())["ran"] is True
    shard = QualityShard(DecodingConfig(sampling=evaluator.models.target.sampling), 0, 8, 1, 8)
    name = evaluator.make(shard)["name"]
    table, meta = read_shard(evaluator.storage, name)
    assert meta["extractors"]["features"] == evaluator.experiment.extractors["features"]
    assert "features.scenes" not in table.column_names
    assert features_of(table, "colours").shape == (8, 4)
    names = ("probe", "contrast", "kid", "precision", "caption_accuracy", "fid")
    result = evaluator.make(MeasureTask(shard.config, (name,), (), (), names))
    assert set(result["metrics"]) == set(names)
    assert result["metrics"]["probe"]["error"] > 0
    assert METRICS.all()["probe"].unit == "points"
