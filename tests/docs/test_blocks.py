"""The Python and YAML of the documentation's pages; the pages on extensions are run by
test_examples.py.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from orchestrator.store.sweep import Sweep
from orchestrator.views.tables import write_tables
from search_spaces.sweep import KEYS, SweepConfig
from tests.docs.pages import PAGES, ROOT, Block, blocks
from tests.fakes.command_line import specfrontier
from tests.fakes.synthetic_sweeps import write_sweep
from workers.data.storage import Storage
from workers.loading.models_yaml import read_models_yaml
from workers.metrics.registry import weight_keys

ELSEWHERE = re.compile(r"your_own|racing|samplers|metrics")
MINIMAL = {
    "name": "minimal",
    "captions": {"count": 192},
    "space": {"drafter": "eagle", "tree": {"policy": "chain", "length": 2}},
}
YAML_BLOCKS = [
    block
    for page in PAGES
    for block in blocks(page)
    if block.language == "yaml" and "your_own" not in page.name
]
PYTHON_PAGES = [
    page
    for page in PAGES
    if not ELSEWHERE.search(page.name) and any(block.language == "python" for block in blocks(page))
]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with a sweep and its study."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MPLBACKEND", "agg")
    write_sweep(tmp_path / "sweeps" / "quickstart", shards=True, name="quickstart")
    write_tables(Sweep.open(Storage(tmp_path / "sweeps" / "quickstart")))
    return tmp_path


@pytest.mark.slow(seconds=10)
@pytest.mark.parametrize("page", PYTHON_PAGES, ids=lambda page: page.name)
def test_python_runs(page: Path, folder: Path) -> None:
    import optuna
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend

    journal = JournalFileBackend(str(folder / "sweeps" / "quickstart" / "study.log"))
    optuna.create_study(study_name="quickstart", storage=JournalStorage(journal))
    names: dict[str, Any] = {}
    for block in blocks(page):
        if block.language == "python":
            exec(compile("\n" * block.line + block.text, str(page), "exec"), names)
    assert names.keys() & {"sweep", "study"}


@pytest.mark.parametrize("block", YAML_BLOCKS, ids=lambda block: block.place)
def test_yaml_is_valid(block: Block, tmp_path: Path) -> None:
    """A sweep or a part of one, a models.yaml, or the `metrics` of an entry."""
    data = yaml.safe_load(block.text)
    if isinstance(data.get("metrics"), dict):
        assert data["metrics"].keys() <= set(weight_keys())
    elif data.keys() <= set(KEYS):
        SweepConfig.from_mapping(MINIMAL | data)
    else:
        (tmp_path / "models.yaml").write_text(block.text)
        assert read_models_yaml(tmp_path / "models.yaml").keys() == data.keys()


def test_the_tutorial_says_what_the_plan_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = ROOT / "docs" / "llamagen.md"
    (sweep,) = (block.text for block in blocks(page) if block.text.startswith("# llamagen.yaml"))
    (tmp_path / "llamagen.yaml").write_text(sweep)
    monkeypatch.chdir(tmp_path)
    options = ("--plan", "llamagen.yaml", "--gpus", "1", "--gpu-memory", "24", "--json")
    found, text = specfrontier("doctor", *options).json, " ".join(page.read_text("utf-8").split())
    for time in found["time"]:
        assert f"**{time['hours']:.0f} hours**" in text
        assert f"({time['seconds per image']:.3g} s/image)" in text
    assert found["fits"]
    assert f"the largest batch that fits is {found['largest batch']};" in text
    assert f"{found['images']['quality']:,} images;" in text
    assert f"timing sessions take at most {found['images']['timing']} more" in text
