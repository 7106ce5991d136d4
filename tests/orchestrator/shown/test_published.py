"""The papers' figures as data, and a sweep held against them: by label, by setting, with and
without errors.
"""

from __future__ import annotations

import csv
import math
import random
import re
import statistics
from collections import Counter
from collections.abc import Mapping
from decimal import Decimal
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

from orchestrator.cli.compare import compare
from orchestrator.errors import QueryError
from orchestrator.shown.paper_tables import Cell, PaperTable, replication_table
from orchestrator.shown.papers import METRICS as PRINTED
from orchestrator.shown.papers import (
    SOURCES,
    TIMED,
    Figure,
    Published,
    published,
    replicate,
    rows_of,
    tables,
    verdict,
)
from orchestrator.store.identity import write_identity
from orchestrator.store.records import TrialRecord, write_trial
from orchestrator.store.sweep import Sweep
from search_spaces.sweep import SweepConfig
from search_spaces.trial import DecodingConfig
from tests.fakes.synthetic_sweeps import METRICS, NEEDS, SAMPLING, identity
from tests.orchestrator.cli.test_front_commands import data, run
from workers.data.storage import Storage
from workers.metrics.estimate import Estimate
from workers.metrics.registry import uses_timings

TABLE = "papers/lantern-table2"
ROWS = {"LANTERN": 111, "LANTERN++": 91, "Cool-SD": 16, "ADT-Tree": 40, "PEANUT": 40}
NEWER = {
    "SCD": 9,
    "SJD-PAC": 26,
    "SJD++": 1,
    "SJD-PV": 1,
    "SJD-SV": 14,
    "PathRelax": 3,
    "CASCADE": 1,
    "Hawk": 4,
    "PJD": 8,
    "SSD": 15,
    "MuLo-SD": 7,
    "VVS": 14,
}


def write(
    folder: Path,
    metrics: Mapping[str, Mapping[str, Estimate]],
    name: str = "lantern-table2",
    **changed: Any,
) -> Path:
    """A sweep with the settings of a table, drawn by the built-in model, and these metrics by
    label.
    """
    storage, given = Storage(str(folder)), SweepConfig.read(changed.pop("table", TABLE))
    known = {
        metric: {**METRICS.get(metric, METRICS["fid"]), "needs": NEEDS.get(metric, [])}
        for metric in dict.fromkeys(metric for row in metrics.values() for metric in row)
    }
    facts = identity(name, metrics=known, objectives=[], **changed)
    write_identity(storage, facts)
    labels = {entry.label: entry.config for entry in given.enqueue}
    for number, (label, measured) in enumerate(metrics.items()):
        config = labels.get(label, DecodingConfig(sampling=SAMPLING))
        write_trial(storage, TrialRecord(number, label, "complete", config, metrics=dict(measured)))
    return folder


def test_every_row_is_there() -> None:
    assert Counter(row.paper for row in published() if row.source == "paper") == ROWS
    assert Counter(row.paper for row in published() if row.source != "paper") == NEWER
    assert {row.source for row in published()} == set(SOURCES)


def test_figures_are_as_printed() -> None:
    """Spot checks against the papers, one for each column."""
    rows = {(row.sweep, row.label): row for row in published()}
    found = {
        (TABLE, "LANTERN k=1000 delta=0.4", "fid"): 18.76,
        (TABLE, "LANTERN k=1000 delta=0.4", "speedup"): 1.69,
        (TABLE, "LANTERN k=1000 delta=0.2 T=0", "mean_accepted_length"): 2.89,
        (TABLE, "vanilla", "recall"): 0.5633,
        (TABLE, "vanilla", "precision"): 0.4781,
        ("papers/lantern-pp-table2-lumina", "LANTERN++ k=10 lambda=3", "step_compression"): 3.63,
        ("papers/lantern-pp-table5", "LANTERN++ k=50 lambda=20 N=58", "latency"): 52.06,
        ("papers/cool-sd-table1-llamagen", "Cool-SD delta=2", "image_reward"): -0.1353,
        ("papers/adt-tree-table2", "ADT-Tree + LANTERN T=0", "mean_tree_depth"): 4.31,
        ("papers/adt-tree-table3", "vanilla", "inception_score"): 30.25,
        ("papers/peanut-table5", "PEANUT", "aesthetic"): 5.80798,
        ("papers/peanut-table5", "PEANUT", "clip_score"): 0.3104,
        ("papers/scd-lumina", "SCD-GS", "step_compression"): 4.21,
        ("papers/sjd-pac-emu3-coco", "SJD-PAC", "clip_score"): 0.3099,
        ("papers/pjd-table1-lumina", "PJD c=11", "latency"): 24.78,
        ("papers/vvs-stage2", "VVS-U", "step_compression"): 2.86,
    }
    for (sweep, label, metric), value in found.items():
        assert rows[sweep, label].metrics[metric].value == value
    assert {metric for row in published() for metric in row.metrics} == set(PRINTED)


def test_scores_are_brought_to_one_unit() -> None:
    lantern = rows_of(TABLE)[0].metrics["hpsv2"]
    assert lantern.printed == "23.18"
    assert [lantern.value, lantern.rounding] == pytest.approx([0.2318, 5e-5])
    adt = rows_of("papers/adt-tree-table1")[0].metrics["hpsv2"]
    assert (adt.printed, adt.value) == ("0.2309", 0.2309)
    values = [row.metrics["hpsv2"].value for row in published() if "hpsv2" in row.metrics]
    assert 0.2 < min(values) < max(values) < 0.3
    scores = [row.metrics["clip_score"].value for row in published() if "clip_score" in row.metrics]
    assert 0.25 < min(scores) < max(scores) < 0.35


def test_what_is_no_metric_is_kept() -> None:
    figures = {row.label: row.figures for row in rows_of("papers/lantern-table1")}
    assert figures["LANTERN k=1000 delta=0.4"] == {"avg_first_draft_accept_prob": "0.3657"}
    assert set(rows_of("papers/lantern-table8")[0].figures) == {
        "per_step_target_forward_s", "per_step_drafter_forward_s", "per_step_proximity_set_s",
    }  # fmt: skip


def test_the_file_is_whole() -> None:
    """Every line has each column once; a row names a sweep and a label, or says why it has none."""
    text = files("orchestrator.shown").joinpath("published.csv").read_text("utf-8")
    head, *lines = csv.reader(text.splitlines())
    facts = [
        "sweep",
        "label",
        "paper",
        "table",
        "model",
        "dataset",
        "images",
        "temperature",
        "method",
        "setting",
    ]
    assert head == [*facts, *PRINTED, "figures", "hardware", "source", "note"]
    for number, line in enumerate(lines, start=2):
        assert len(line) == len(head), number
        row = dict(zip(head, line, strict=True))
        assert bool(row["sweep"]) == bool(row["label"]), number
        assert row["sweep"] or row["note"], number
        assert all(
            Decimal(row[name]).is_finite()
            for name in ("images", "temperature", *PRINTED)
            if row[name]
        ), number


def figure(printed: str) -> Figure:
    return Figure(printed, float(printed), 0.5 * 10.0 ** -len(printed.partition(".")[2]))


@pytest.mark.parametrize(
    ("value", "error", "z", "said"),
    [
        (1.795, 0.1, 0.1 / 0.1 / 2**0.5, "agrees"),
        (1.42, 0.1, 0.265 / 0.1 / 2**0.5, "agrees"),
        (1.40, 0.1, 0.285 / 0.1 / 2**0.5, "differs"),
        (1.98, 0.1, 0.285 / 0.1 / 2**0.5, "differs"),
        (1.6949, 1e-4, 0.0, "agrees"),
        (1.69, math.inf, None, "no error"),
        (1.69, math.nan, None, "no error"),
        (1.6949, 0.0, 0.0, "agrees"),
        (1.6851, 0.0, 0.0, "agrees"),
        (1.6951, 0.0, None, "differs"),
    ],
)
def test_the_rule(value: float, error: float, z: float | None, said: str) -> None:
    found, words = verdict(Estimate(value, error, 10), figure("1.69"))
    assert words == said
    assert found == (None if z is None else pytest.approx(z))
    assert verdict(None, figure("1.69")) == (None, "not measured")


def test_the_timed_metrics_are_those_of_the_catalogue() -> None:
    assert {metric for metric in PRINTED if uses_timings((metric,))} == TIMED


def test_a_paper_of_more_images_is_the_surer_one() -> None:
    """A tenth as many as ours, as many, and a million: the error of the difference is sqrt(1 + n /
    images) of ours.
    """
    z = [
        verdict(Estimate(1.895, 0.1, 10), figure("1.69"), images)[0]
        for images in (1, None, 10, 10**7)
    ]
    assert z == pytest.approx([2 / 11**0.5, 2 / 2**0.5, 2 / 2**0.5, 2.0])


def test_a_perfect_replication_differs_in_one_figure_of_twenty() -> None:
    """Two samples of one law, the paper's printed with two decimals, errors from far below to far
    above the rounding: of 4000 pairs at most 5 % differ (a bound of 6.1 % is met by chance in all
    but one seed in a thousand), and nearly that many where the rounding does not matter.
    """
    luck = random.Random(5)
    for error, least in ((0.0006, 0.0), (0.005, 0.0), (0.1, 0.039)):
        apart = 0
        for _ in range(4000):
            ours, theirs = (luck.gauss(2.3456, error) for _ in range(2))
            apart += (
                verdict(Estimate(ours, error, 500), figure(f"{theirs:.2f}"), 500)[1] == "differs"
            )
        assert least <= apart / 4000 <= 0.061


def test_few_timings_differ_no_more_often() -> None:
    """Means of three timings, whose error has two degrees of freedom, next to a paper's with the
    same deviation: 5 % of 4000 differ, within 1.1 points. By the normal law 19 % would.
    """
    luck = random.Random(6)
    apart = normal = 0
    for _ in range(4000):
        times = [luck.gauss(2.0, 0.2) for _ in range(3)]
        ours = Estimate(
            statistics.fmean(times), statistics.stdev(times) / math.sqrt(3), 3, error_dof=2
        )
        z, said = verdict(ours, figure(f"{luck.gauss(2.0, 0.2 / math.sqrt(3)):.4f}"))
        apart, normal = apart + (said == "differs"), normal + (z is not None and z > 1.96)
    assert 0.039 <= apart / 4000 <= 0.061
    assert normal / 4000 > 0.15


def near(table: str, away: Mapping[tuple[str, str], float]) -> dict[str, dict[str, Estimate]]:
    """What a table prints, with an error of 1 % on 192 images, and moved beyond its rounding by so
    many errors of the difference, 1 where nothing is said.
    """

    def moved(row: Published, metric: str) -> Estimate:
        printed, turns = row.metrics[metric], away.get((row.label, metric), 1.0)
        error, images = abs(printed.value) / 100, row.images if metric not in TIMED else None
        step = turns * error * (1 + 192 / (images or 192)) ** 0.5 + math.copysign(
            printed.rounding, turns
        )
        return Estimate(printed.value + step, error, 192)

    return {
        row.label: {metric: moved(row, metric) for metric in row.metrics} for row in rows_of(table)
    }


AWAY = {
    ("LANTERN k=1000 delta=0.4", "fid"): 3.0,
    ("EAGLE-2", "speedup"): -2.5,
    ("vanilla", "hpsv2"): 1.9,
}


def test_a_sweep_of_a_papers_labels_is_held_against_its_table(tmp_path: Path) -> None:
    """End to end without official weights: numbers said to be the built-in model's, beside
    LANTERN's table 2.
    """
    folder = write(tmp_path / "lantern-table2", near(TABLE, AWAY))
    (found,) = data(compare, folder, "--published")
    rows = {row["label"]: row for row in found["rows"]}
    assert list(rows) == [row.label for row in rows_of(TABLE)]
    differing = {
        (label, f["metric"])
        for label, row in rows.items()
        for f in row["figures"]
        if f["verdict"] == "differs"
    }
    assert differing == {("LANTERN k=1000 delta=0.4", "fid"), ("EAGLE-2", "speedup")}
    z = {(label, f["metric"]): f["z"] for label, row in rows.items() for f in row["figures"]}
    assert z["LANTERN k=1000 delta=0.4", "fid"] == pytest.approx(3.0)
    assert z["EAGLE-2", "speedup"] == pytest.approx(2.5)
    assert z["vanilla", "hpsv2"] == pytest.approx(1.9)
    words = run(compare, folder, "--published").out
    assert (
        "2 of 46 figures differ beyond the measured uncertainty: EAGLE-2 (speedup); LANTERN k=1000 "
        "delta=0.4 (fid)" in words
    )
    assert "0.2411 (24.11)" in words, "HPSv2 in this project's unit, and as printed"
    assert "19.33 ± 0.19" in words
    assert "measured: scenes, 192 captions of scenes" in words
    assert "published: LlamaGen-XL Stage I, MS-COCO val captions, RTX 3090" in words
    assert "fid: 192 images measured, 30,000 published" in words
    assert "features measured by scenes-features 2d2d2d2d" in words
    assert "hpsv2 measured by" not in words, "the sweep does not say"
    assert "z = distance beyond the printed figure's rounding" in words


def test_rows_and_metrics_that_are_not_there(tmp_path: Path) -> None:
    given = near(TABLE, {})
    del given["EAGLE-2"], given["vanilla"]["fid"]
    given["vanilla"]["recall"] = Estimate(0.5, math.inf, 192)
    write(tmp_path, given)
    found = replicate(Sweep.open(tmp_path), TABLE)
    missing = {(row.row.label, one.metric) for row, one in found.with_verdict("not measured")}
    assert missing == {
        ("EAGLE-2", "speedup"),
        ("EAGLE-2", "mean_accepted_length"),
        ("vanilla", "fid"),
    }
    assert {row.row.label for row in found.rows if row.trial is None} == {"EAGLE-2"}
    words = run(compare, tmp_path, "--published").out
    assert "3 figures not compared: not measured" in words
    assert "1 figure not compared: no error" in words
    assert "0 of 42 figures differ beyond the measured uncertainty\n" in words


def test_a_setting_is_found_under_another_label_and_another_setting_under_its_own(
    tmp_path: Path,
) -> None:
    given = near(TABLE, {})
    labels = {entry.label: entry.config for entry in SweepConfig.read(TABLE).enqueue}
    write(tmp_path, {"EAGLE-2": given["EAGLE-2"]})
    mine = labels["LANTERN k=1000 delta=0.4"]
    plain = mine.to_mapping()
    other = DecodingConfig.from_mapping(plain | {"acceptance": plain["acceptance"] | {"k": 10}})
    storage = Storage(str(tmp_path))
    write_trial(
        storage,
        TrialRecord(5, "mine", "complete", mine, metrics=given["LANTERN k=1000 delta=0.4"]),
    )
    write_trial(storage, TrialRecord(6, "LANTERN k=1000 delta=0.1", "complete", other, metrics={}))
    rows = {row.row.label: row for row in replicate(Sweep.open(tmp_path), TABLE).rows}
    assert (
        rows["LANTERN k=1000 delta=0.4"].trial,
        rows["LANTERN k=1000 delta=0.4"].differences,
    ) == (5, ())
    assert rows["LANTERN k=1000 delta=0.1"].trial == 6
    assert rows["LANTERN k=1000 delta=0.1"].differences == (
        "acceptance.k 10 instead of 1000",
        "acceptance.delta 0.4 instead of 0.1",
    )
    words = run(compare, tmp_path, "--published").out
    assert (
        "LANTERN k=1000 delta=0.1: run with acceptance.k 10 instead of 1000, acceptance.delta 0.4 "
        "instead of 0.1" in words
    )


def test_a_failed_trial_stands_for_no_row(tmp_path: Path) -> None:
    write(tmp_path, {})
    config = SweepConfig.read(TABLE).enqueue[1].config
    write_trial(
        Storage(str(tmp_path)), TrialRecord(0, "EAGLE-2", "failed", config, cause="out of memory")
    )
    assert all(row.trial is None for row in replicate(Sweep.open(tmp_path), TABLE).rows)


def test_a_table_can_be_named(tmp_path: Path) -> None:
    table = "papers/lantern-table1"
    folder = write(tmp_path, {"EAGLE-2": {}}, name="mine", table=table)
    words = run(compare, folder, table, "--published").out
    assert "mine next to papers/lantern-table1" in words
    assert "avg_first_draft_accept_prob" in words
    assert "no metric here" in words
    both = data(compare, folder, table, TABLE, "--published")
    assert [(found["sweep"], found["table"]) for found in both] == [
        ("mine", table),
        ("mine", TABLE),
    ]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "papers/mine: unknown published table; "),
        (["--by", "tree.policy"], "--published can be combined with"),
        (["--x", "fid"], "--published can be combined with"),
        (["papers/lantern-tabel2"], "lantern-tabel2: no sweep here"),
    ],
)
def test_what_cannot_be_compared(arguments: list[str], message: str, tmp_path: Path) -> None:
    folder = write(tmp_path, {}, name="mine")
    ran = run(compare, folder, "--published", *arguments)
    assert (ran.code, ran.out) == (2, "")
    assert message in ran.error


def test_figures_that_are_not_from_the_paper_say_so(tmp_path: Path) -> None:
    """Only they do."""
    for table, source in (
        ("papers/scd-lumina", "summary"),
        ("papers/sjd-pac-emu3-coco", "readme"),
        (TABLE, "paper"),
    ):
        folder = write(tmp_path / source, near(table, {}), table=table)
        notes = replicate(Sweep.open(folder), table).notes
        said = [source for source, words in SOURCES.items() if any(words in note for note in notes)]
        assert said == ([] if source == "paper" else [source])


def test_a_table_alone_is_no_comparison() -> None:
    ran = run(compare, TABLE, "--published")
    assert ran.code == 2
    assert ran.error == "--published: give a sweep to compare with papers/lantern-table2"


def test_unknown_tables_are_refused() -> None:
    assert len(tables()) == 54
    with pytest.raises(QueryError, match="did you mean 'papers/lantern-table2'"):
        rows_of("papers/lantern-table22")


def by_metric_and_setting(table: PaperTable) -> dict[tuple[str, str], dict[str, Cell]]:
    """The rows of the table, by heading; a metric's name is on its first row alone."""
    found = {}
    name = ""
    for row in table.rows:
        cells = dict(zip(table.head, row, strict=True))
        name = cells["metric"].text or name
        found[name, cells["setting"].text] = cells
    return found


def test_the_table_for_a_paper_has_no_unmeasured_rows_and_names_what_cannot_be_compared(
    tmp_path: Path,
) -> None:
    given = near(TABLE, {})
    del given["EAGLE-2"], given["vanilla"]["fid"]
    own = {"features": "scenes-features@2d", "hpsv2": "hpsv2.1@3d"}
    papers = {"features": "inception-clean256@2d", "hpsv2": "hpsv2.1@3d"}
    for extractors, caveats in ((own, 1), (papers, 0)):
        folder = write(tmp_path / str(caveats), given, extractors=extractors)
        found = replicate(Sweep.open(folder), TABLE)
        table = replication_table(found)
        rows = by_metric_and_setting(table)
        assert ("fid", "vanilla") not in rows
        assert "EAGLE-2" not in {label for _, label in rows}
        assert ("recall", "vanilla") in rows
        assert len(found.caveats) == caveats
        for text in found.caveats:
            assert "scenes-features" in text
            assert {"fid", "precision", "recall"} <= set(re.findall(r"\w+", text))
            assert "hpsv2" not in text
            assert text in table.caption
            assert text in run(compare, folder, "--published").out


def test_the_table_for_a_paper_has_published_values_beside_ours(tmp_path: Path) -> None:
    folder = write(tmp_path / "lantern-table2", near(TABLE, AWAY))
    table = replication_table(replicate(Sweep.open(folder), TABLE))
    rows = by_metric_and_setting(table)
    assert set(rows) == {(name, row.label) for row in rows_of(TABLE) for name in row.metrics}
    bold = {place for place, cells in rows.items() if cells["measured"].bold}
    assert bold == {("fid", "LANTERN k=1000 delta=0.4"), ("speedup", "EAGLE-2")}
    assert rows["fid", "LANTERN k=1000 delta=0.4"]["published"].text == "18.76"
    ran = run(compare, folder, "--published", "--table", tmp_path / "t.tex")
    assert ran.code == 0, ran.error
    assert (tmp_path / "t.tex").read_bytes() == table.write(".tex")
    refused = run(compare, folder, folder, "--table", tmp_path / "u.tex")
    assert (refused.code, (tmp_path / "u.tex").exists()) == (2, False)
