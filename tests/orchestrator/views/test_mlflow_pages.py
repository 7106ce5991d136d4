"""MLflow's pages of a sweep: its description, and links to its runs."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from urllib.parse import parse_qs

from orchestrator.results.sweep import Sweep
from orchestrator.views.mlflow_runs import (
    compare_link,
    describe_run,
    run_link,
    sweep_id,
    trials_link,
)
from tests.fakes.synthetic_sweeps import write_sweep
from workers.metrics.estimate import measured


def test_trials_are_filtered_and_ordered_by_the_address(tmp_path: Path) -> None:
    write_sweep(tmp_path / "sweep", 1)
    sweep = Sweep.open(tmp_path / "sweep").identity
    query = parse_qs(trials_link(sweep, "7").partition("?")[2])
    assert f"= '{sweep_id(sweep)}'" in query["searchFilter"][0]
    assert (query["orderByKey"], query["orderByAsc"]) == (["metrics.`speedup`"], ["false"])


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
    all_trials = f"[All trials]({trials_link(sweep.identity, '7')})"
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
