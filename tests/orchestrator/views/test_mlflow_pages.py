"""MLflow's pages of a sweep: its description, and links to its runs."""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import replace
from pathlib import Path
from urllib.parse import parse_qs

from orchestrator.front.questions import front_records
from orchestrator.store.explain import explain_setting
from orchestrator.store.sweep import Sweep
from orchestrator.text import markdown
from orchestrator.views.mlflow_page import (
    compare_link,
    describe_run,
    describe_trial,
    front_link,
    run_link,
    shared_views,
    trials_link,
)
from orchestrator.views.mlflow_runs import legal_name, sweep_id
from tests.fakes.mlflow_views import read_view
from tests.fakes.searched_sweeps import write_searched_sweep
from tests.fakes.synthetic_sweeps import write_sweep
from workers.metrics.estimate import measured


def test_the_view_of_all_trials_is_filtered_and_ordered_and_has_what_differs(
    tmp_path: Path,
) -> None:
    write_sweep(tmp_path / "sweep", 24)
    sweep = Sweep.open(tmp_path / "sweep")
    (name,) = parse_qs(trials_link(sweep.identity, "7").partition("?")[2])["viewStateShareKey"]
    text = shared_views(sweep)[f"mlflow.sharedViewState.{name}"]
    assert len(text) < 5000, "MLflow's limit of a tag"
    view = read_view(text)
    assert f"= '{sweep_id(sweep.identity)}'" in view["searchFilter"]
    assert "pareto" not in view["searchFilter"]
    assert (view["orderByKey"], view["orderByAsc"]) == ("metrics.`speedup`", False)
    assert {"metrics.`speedup`", "metrics.`fid`", "params.`tree.policy`"} <= set(
        view["selectedColumns"]
    )


def test_the_description_shows_the_front_and_takes_names_literally(tmp_path: Path) -> None:
    write_sweep(tmp_path / "sweep", 12)
    sweep = Sweep.open(tmp_path / "sweep")
    odd = replace(front_records(sweep)[0], label='a|b <i>[x](y) "z" &amp;')
    sweep = replace(sweep, records=(odd,))
    text = describe_run(sweep, {odd.number: "r1"}, "7")
    assert f"[{odd.number}](#/experiments/7/runs/r1?" in text
    assert r'"a\|b \<i\>\[x\](y) \"z\" \&amp;: ' in text
    assert (
        "| fid | "
        f"&ensp;{measured(odd.metrics['fid'].value, odd.metrics['fid'].error).partition(' ±')[0]} |"
        in text
    )
    assert compare_link(["r1"], "7") in text
    assert front_link(sweep.identity, "7") in text
    all_trials = f"[All trials]({trials_link(sweep.identity, '7')})"
    assert all_trials in text
    empty = describe_run(replace(sweep, records=()), {}, "7")
    assert empty.startswith(all_trials)
    assert empty.endswith("No trial is on the front yet.")


def test_a_metrics_name_is_literal_in_the_description_and_legal_in_the_view(
    tmp_path: Path,
) -> None:
    write_sweep(tmp_path / "sweep", 6)
    sweep, odd = Sweep.open(tmp_path / "sweep"), "f|i`d <b>*x*"
    facts = dict(sweep.identity.metrics)
    facts[odd] = replace(facts.pop("fid"), name=odd)
    objectives = [
        replace(metric, name=odd) if metric.name == "fid" else metric
        for metric in sweep.identity.objectives
    ]
    records = [
        replace(
            record,
            metrics={
                odd if name == "fid" else name: value for name, value in record.metrics.items()
            },
        )
        for record in sweep.records
    ]
    identity = replace(sweep.identity, metrics=facts, objectives=tuple(objectives))
    sweep = replace(sweep, identity=identity, records=tuple(records))
    text = describe_run(sweep, {record.number: "r1" for record in records}, "7")
    assert "| f\\|i\\`d \\<b\\>\\*x\\* | " in text
    columns = {
        column
        for view in shared_views(sweep).values()
        for column in read_view(view)["selectedColumns"]
    }
    assert f"metrics.`{legal_name(odd)}`" in columns


def test_a_long_front_is_shown_from_end_to_end(tmp_path: Path) -> None:
    write_searched_sweep(tmp_path / "sweep", 60)
    sweep = Sweep.open(tmp_path / "sweep")
    front = sorted(front_records(sweep), key=lambda record: record.metrics["speedup"].value)
    assert len(front) > 8
    text = describe_run(
        sweep, {record.number: f"r{record.number}" for record in sweep.records}, "7"
    )
    heads = re.findall(r"\[(\d+)\]\(#", text)
    assert len(heads) == 8
    assert (heads[0], heads[-1]) == (str(front[0].number), str(front[-1].number))
    assert f"| 8 of {len(front)} trials |" in text


def test_the_shared_view_has_the_objectives_and_the_parameters_that_differ(tmp_path: Path) -> None:
    write_searched_sweep(tmp_path / "sweep", 40)
    sweep = Sweep.open(tmp_path / "sweep")
    text = shared_views(sweep)[f"mlflow.sharedViewState.{sweep_id(sweep.identity)}"]
    assert f"viewStateShareKey={sweep_id(sweep.identity)}&" in front_link(sweep.identity, "7")
    assert len(text) < 5000, "MLflow's limit of a tag"
    view = read_view(text)
    assert view["selectedColumns"][:2] == ["metrics.`speedup`", "metrics.`fid`"]
    flat = [record.config.flat() for record in front_records(sweep) if record.config is not None]
    for column in view["selectedColumns"][2:]:
        key = column.removeprefix("params.`").removesuffix("`")
        assert len({str(settings.get(key)) for settings in flat}) > 1
    assert "params.`acceptance.neighbourhood`" in view["selectedColumns"]
    empty = read_view(next(iter(shared_views(replace(sweep, records=())).values())))
    assert empty["selectedColumns"] == ["metrics.`speedup`", "metrics.`fid`"]


def test_links_lead_to_the_runs() -> None:
    link = compare_link(["a1", "b2"], "7", "http://lab:5000/")
    base, _, query = link.partition("#/compare-runs?")
    assert base == "http://lab:5000/"
    assert not set('"[] ') & set(link)
    asked = parse_qs(query)
    assert (json.loads(asked["runs"][0]), json.loads(asked["experiments"][0])) == (
        ["a1", "b2"],
        ["7"],
    )
    assert run_link("a1", "7", "http://lab:5000").startswith(
        "http://lab:5000/#/experiments/7/runs/a1?"
    )


def test_the_views_charts_are_the_front_then_the_objectives_then_images_without_errors(
    tmp_path: Path,
) -> None:
    write_sweep(tmp_path, 12)
    sweep = Sweep.open(tmp_path)
    images = ["captions/00 a circle", "captions/01 a ring"]
    for text in shared_views(sweep, images).values():
        assert len(text) < 5000, "MLflow's limit of a tag"
        view = read_view(text)
        headings = {section["uuid"]: section["name"] for section in view["compareRunSections"]}
        shown = [chart for chart in view["compareRunCharts"] if not chart["deleted"]]
        assert list(headings.values()) == list(
            dict.fromkeys(headings[chart["metricSectionId"]] for chart in shown)
        )
        scatter, speedup, fid, grid, *others = shown
        assert scatter["type"] == "SCATTER"
        assert (scatter["xaxis"]["key"], scatter["yaxis"]["key"]) == ("speedup", "fid")
        assert (speedup["metricKey"], fid["metricKey"]) == ("speedup", "fid")
        assert "speedup [x], fid" in headings[speedup["metricSectionId"]], "with their units"
        assert grid["imageKeys"] == images
        assert {chart["metricKey"] for chart in others} == {
            name for name in sweep.identity.metrics if name not in ("speedup", "fid")
        }
        hidden = [chart for chart in view["compareRunCharts"] if chart["deleted"]]
        keys = {chart["metricKey"] for chart in hidden if chart["type"] == "BAR"}
        assert {"error/fid", "series/fid", "own/fid", "stopped/error/fid"} <= keys
        assert [chart["imageKeys"] for chart in hidden if chart["type"] == "IMAGE"] == [
            [key] for key in images
        ]
        assert len({chart["uuid"] for chart in view["compareRunCharts"]}) == len(hidden) + len(
            shown
        )


def test_a_trials_description_has_its_setting_and_its_values_with_units(tmp_path: Path) -> None:
    write_sweep(tmp_path, 9)
    sweep = Sweep.open(tmp_path)
    record = next(record for record in sweep.records if record.label == "lantern")
    text = describe_trial(sweep, record, pareto=True)
    rows = [line.split(" | ") for line in text.splitlines() if line.startswith("| ")]
    values = {cells[0].removeprefix("| "): cells[1:3] for cells in rows}
    assert list(values)[1:3] == ["speedup", "fid"], "the objectives first"
    for name, metric in sweep.identity.metrics.items():
        value = str(record.metrics[name]).replace(" ", "&nbsp;")
        assert values[name.replace("_", r"\_")] == [value, metric.unit]
    assert record.config is not None
    assert markdown(explain_setting(record.config)) in text
    assert "on the front" in text
    assert "on the front" not in describe_trial(sweep, record, pareto=False)
    assert "lossless" in describe_trial(sweep, sweep.records[0], pareto=False)
    failed = sweep.records[7]
    assert failed.has_failed
    assert failed.config is not None
    text = describe_trial(sweep, failed, pareto=False)
    assert markdown(explain_setting(failed.config)) in text
    assert "| metric |" not in text


def test_a_view_of_many_metrics_leaves_out_its_charts_to_fit_into_a_tag(tmp_path: Path) -> None:
    write_sweep(tmp_path, 6)
    sweep = Sweep.open(tmp_path)
    fid = sweep.identity.metrics["fid"]
    names = [hashlib.sha256(bytes([place])).hexdigest() for place in range(60)]
    more = {name: replace(fid, name=name) for name in names}
    identity = replace(sweep.identity, metrics={**sweep.identity.metrics, **more})
    few, many = (
        list(shared_views(found).values()) for found in (sweep, replace(sweep, identity=identity))
    )
    for with_charts, text in zip(few, many, strict=True):
        assert len(text) <= 5000, "MLflow's limit of a tag"
        view = read_view(text)
        assert "compareRunCharts" in read_view(with_charts)
        assert "compareRunCharts" not in view
        assert view["selectedColumns"] == read_view(with_charts)["selectedColumns"]
