"""The notebook on fronts runs from top to bottom, on a small sweep made here."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fakes.synthetic_sweeps import write_sweep

NOTEBOOK = Path(__file__).parents[2] / "docs" / "fronts.ipynb"


@pytest.mark.slow
def test_the_notebook_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nbclient, nbformat = pytest.importorskip("nbclient"), pytest.importorskip("nbformat")
    pytest.importorskip("ipykernel")
    write_sweep(tmp_path / "sweep", shards=True, name="shown")
    monkeypatch.setenv("SPECFRONTIER_SWEEP", str(tmp_path / "sweep"))
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    assert all(not cell.outputs for cell in notebook.cells if cell.cell_type == "code"), "commit it without outputs"
    nbclient.NotebookClient(notebook, timeout=120, resources={"metadata": {"path": NOTEBOOK.parents[1]}}).execute()
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", ())]
    assert any("image/png" in output.get("data", {}) for output in outputs)
    assert any("shown" in str(output.get("data", "")) for output in outputs)
    assert not [output for output in outputs if output.output_type == "error"]
