"""The views of MLflow's runs page: valid, small, and of this sweep's trials."""

from __future__ import annotations

import json
from pathlib import Path

from orchestrator.views import runs
from orchestrator.views.shared_views import front_view, trials_view, view_tags
from tests.fakes.synthetic_sweeps import write_sweep
from workers.data.storage import Storage

SHOWN = ("speedup", "fid", "error/speedup", "error/fid")


def test_both_views_show_the_objectives_first(tmp_path: Path) -> None:
    write_sweep(tmp_path / "sweep", 1)
    sweep = runs.SweepRun.read(Storage(tmp_path / "sweep"))
    tags = view_tags(sweep)
    assert max(map(len, tags.values())) < 5000, "MLflow's limit of an experiment's tag"
    views = {key.rpartition(".")[2]: json.loads(value) for key, value in tags.items()}
    assert views.keys() == {trials_view(sweep), front_view(sweep)}
    for view in views.values():
        assert view["selectedColumns"][:4] == [
            f"metrics.`{n}`" for n in ("speedup", "fid", "error/speedup", "error/fid")
        ]
        assert (view["orderByKey"], view["orderByAsc"]) == ("metrics.`speedup`", False)
        assert f"= '{sweep.id}'" in view["searchFilter"]
        assert [view["compareRunCharts"][0][axis]["key"] for axis in ("xaxis", "yaxis")] == ["speedup", "fid"]
        assert view["columnWidths"].keys() <= set(view["columnOrder"]), "MLflow applies widths in that order"
        assert view["columnWidths"]["attributes.`Run Name`"] > 300, "names in full"
    assert "pareto" in views[front_view(sweep)]["searchFilter"]
    assert "pareto" not in views[trials_view(sweep)]["searchFilter"]
    assert f"viewStateShareKey={front_view(sweep)}" in runs.view_link(front_view(sweep), "7", charts=True)
