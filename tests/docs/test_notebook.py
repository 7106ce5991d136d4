"""The notebook on fronts runs from top to bottom on a small sweep made here, and is committed with
its outputs.
"""

from __future__ import annotations

import ast
import json
from pathlib import Path
from typing import Any

import pytest

from tests.docs.pages import ROOT
from tests.fakes.synthetic_sweeps import write_sweep
from tests.fakes.waiting import HANG_S

NOTEBOOK = ROOT / "docs" / "fronts.ipynb"


def code_cells() -> list[dict[str, Any]]:
    cells = json.loads(NOTEBOOK.read_text("utf-8"))["cells"]
    return [cell for cell in cells if cell["cell_type"] == "code"]


def test_it_imports_specfrontier_alone() -> None:
    tree = ast.parse("\n".join("".join(cell["source"]) for cell in code_cells()))
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom)]
    assert [ast.unparse(node) for node in imports] == ["import specfrontier"]


def test_its_outputs_are_committed() -> None:
    cells = code_cells()
    outputs = [output for cell in cells for output in cell["outputs"]]
    assert [cell["execution_count"] for cell in cells] == list(range(1, len(cells) + 1))
    assert all(cell["outputs"] for cell in cells)
    assert not [output for output in outputs if output["output_type"] == "error"]
    assert sum("image/png" in output.get("data", {}) for output in outputs) > 3
    texts = [
        json.dumps({kind: data for kind, data in output.items() if kind != "data"})
        for output in outputs
    ]
    texts += [
        str(data)
        for output in outputs
        for kind, data in output.get("data", {}).items()
        if kind != "image/png"
    ]
    assert not [text for text in texts if "/tmp" in text or "/home" in text], (
        "places on the machine that ran it"
    )


@pytest.mark.slow(seconds=30)
def test_it_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nbclient, nbformat = pytest.importorskip("nbclient"), pytest.importorskip("nbformat")
    pytest.importorskip("ipykernel")
    write_sweep(tmp_path / "sweeps" / "quickstart", shards=True, name="shown")
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    nbclient.NotebookClient(
        notebook, timeout=int(HANG_S), resources={"metadata": {"path": tmp_path}}
    ).execute()
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", ())]
    assert any("image/png" in output.get("data", {}) for output in outputs)
    assert any("shown" in str(output.get("data", "")) for output in outputs)
    assert not [output for output in outputs if output.output_type == "error"]
    assert (tmp_path / "fast.yaml").exists()
