"""MLflow's pages of a sweep: its description, links, and views that are valid, small, and of this sweep's trials."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from urllib.parse import parse_qs

from orchestrator.results.sweep import Sweep
from orchestrator.views.mlflow_runs import (
    compare_link,
    describe_run,
    front_view,
    run_link,
    sweep_id,
    trials_view,
    view_link,
    view_tags,
)
from tests.fakes.synthetic_sweeps import write_sweep
from workers.metrics.estimate import measured

SHOWN = ("speedup", "fid", "error/speedup", "error/fid")


def test_both_views_show_the_objectives_first(tmp_path: Path) -> None:
    write_sweep(tmp_path / "sweep", 1)
    sweep = Sweep.open(tmp_path / "sweep").identity
    tags = view_tags(sweep)
    assert max(map(len, tags.values())) < 5000, "MLflow's limit of an experiment's tag"
    views = {key.rpartition(".")[2]: json.loads(value) for key, value in tags.items()}
    assert views.keys() == {trials_view(sweep), front_view(sweep)}
    for view in views.values():
        assert view["selectedColumns"][:4] == [
            f"metrics.`{n}`" for n in ("speedup", "fid", "error/speedup", "error/fid")
        ]
        assert (view["orderByKey"], view["orderByAsc"]) == ("metrics.`speedup`", False)
        assert f"= '{sweep_id(sweep)}'" in view["searchFilter"]
        assert [view["compareRunCharts"][0][axis]["key"] for axis in ("xaxis", "yaxis")] == ["speedup", "fid"]
        assert view["columnWidths"].keys() <= set(view["columnOrder"]), "MLflow applies widths in that order"
        assert view["columnWidths"]["attributes.`Run Name`"] > 300, "names in full"
    assert "pareto" in views[front_view(sweep)]["searchFilter"]
    assert "pareto" not in views[trials_view(sweep)]["searchFilter"]
    assert f"viewStateShareKey={front_view(sweep)}" in view_link(front_view(sweep), "7", charts=True)


def test_the_description_shows_the_front_and_takes_names_literally(tmp_path: Path) -> None:
    write_sweep(tmp_path / "sweep", 12)
    sweep = Sweep.open(tmp_path / "sweep")
    odd = replace(sweep.front_records[0], label="a|b <i>[x](y)")
    sweep = replace(sweep, records=(odd,))
    text = describe_run(sweep, {odd.number: "r1"}, "7")
    assert r"a\|b \<i\>\[x\](y): " in text
    assert "(#/experiments/7/runs/r1?" in text
    assert f"| {measured(odd.metrics['fid'].value, odd.metrics['fid'].error)} |" in text
    assert compare_link(["r1"], "7") in text
    all_trials = f"[All trials]({view_link(trials_view(sweep.identity), '7')})"
    assert all_trials in text
    empty = describe_run(replace(sweep, records=()), {}, "7")
    assert empty.startswith(all_trials)
    assert empty.endswith("No trial is on the front yet.")


def test_links_lead_to_the_runs() -> None:
    link = compare_link(["a1", "b2"], "7", "http://lab:5000/")
    base, _, query = link.partition("#/compare-runs?")
    assert base == "http://lab:5000/"
    assert not set('"[] ') & set(link)
    asked = parse_qs(query)
    assert (json.loads(asked["runs"][0]), json.loads(asked["experiments"][0])) == (["a1", "b2"], ["7"])
    assert run_link("a1", "7", "http://lab:5000").startswith("http://lab:5000/#/experiments/7/runs/a1?")
