"""Plots of what the search found: they are drawn, have texts for those who cannot see them, and say
what is missing.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from orchestrator.front.front import front_of
from orchestrator.report.page import page_data, render, write_report
from orchestrator.store.names import Form
from orchestrator.store.sweep import Sweep
from tests.browser.report_pages import DESK, PHONE, Open
from tests.fakes.searched_sweeps import write_searched_sweep
from tests.fakes.synthetic_sweeps import write_sweep
from tests.fakes.timed_sweeps import write_timed_sweep
from workers.data.storage import Storage
from workers.metrics.estimate import Estimate

if TYPE_CHECKING:
    from playwright.sync_api import ViewportSize


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("searched")
    write_searched_sweep(place, 40)
    write_report(Storage(place))
    return place


def test_the_plots_of_a_search(open_page: Open, folder: Path) -> None:
    page = open_page(folder)
    assert page.evaluate("document.documentElement.scrollWidth") == DESK["width"]
    lines = page.locator("#parallel .course path")
    assert lines.count() == 40
    assert (
        page.locator("#parallel .course.member path").count()
        == page.locator(".point.front").count()
    )
    assert page.locator("#slices figure").count() >= 6
    dots = page.locator("#slices figure", has_text="acceptance.k").locator("circle")
    assert 0 < dots.count() < 40, "only the trials that have the key"
    page.locator("#slice-controls select").select_option("drift")
    assert "drift against" in page.locator("#slices figcaption").first.inner_text()
    assert page.locator("#importances .importance rect").count() >= 6
    assert "tree.length" in str(page.locator("#importances svg").first.get_attribute("aria-label"))
    assert "7,680 images" in str(page.locator("#volumes svg").get_attribute("aria-label"))
    for plot in page.locator("#analysis .plotted svg[role=img]").all():
        assert plot.get_attribute("aria-label")


def test_parameters_and_choices_of_one_prefix_stay_apart(
    open_page: Open, folder: Path, tmp_path: Path
) -> None:
    data = page_data([Sweep.open(folder)])
    keys = [f"acceptance.some.long.common.prefix.of.{end}" for end in ("first", "second")]
    data["sections"]["analysis"]["data"]["importances"]["metrics"] = {
        metric: dict.fromkeys(keys, 0.5) for metric in ("speedup", "fid")
    }
    place = data["keys"].index("tree.policy")
    choices = [f"a long common prefix of {end}" for end in ("first", "second")]
    for number, trial in enumerate(data["trials"]):
        trial["flat"][place] = choices[number % 2]
    (tmp_path / "report.html").write_text(render(data), "utf-8")
    page = open_page(tmp_path)
    bars = page.locator("#importances .importance rect")
    assert len({bar.get_attribute("y") for bar in bars.all()}) == 2
    ticks = str(page.locator("#importances svg").first.text_content())
    assert "prefix.of.first" in ticks
    assert "prefix.of.second" in ticks
    slices = page.locator("#slices figure", has_text="tree.policy")
    assert len({dot.get_attribute("cx") for dot in slices.locator("circle").all()}) == 2
    assert "of second" in str(slices.locator("svg").first.text_content())


@pytest.mark.parametrize("viewport", [DESK, PHONE], ids=["desk", "phone"])
def test_names_of_choices_lie_apart(
    open_page: Open, folder: Path, tmp_path: Path, viewport: ViewportSize
) -> None:
    data = page_data([Sweep.open(folder)])
    place, choices = (
        data["keys"].index("tree.policy"),
        ["additive", "grouped", "multiplicative", "none", "stationary"],
    )
    for number, trial in enumerate(data["trials"]):
        trial["flat"][place] = choices[number % len(choices)]
    (tmp_path / "report.html").write_text(render(data), "utf-8")
    slices = open_page(tmp_path, viewport=viewport).locator(
        "#slices figure", has_text="tree.policy"
    )
    labels = slices.locator('[aria-label="x-axis tick label"] text').all()
    assert len(labels) == len(choices)
    boxes = [label.bounding_box() for label in labels]
    for one, other in itertools.combinations([box for box in boxes if box], 2):
        beside = one["x"] + one["width"] <= other["x"] or other["x"] + other["width"] <= one["x"]
        assert beside or abs(one["y"] - other["y"]) >= 9


def test_too_few_trials_are_said_to_be_too_few(open_page: Open, tmp_path: Path) -> None:
    write_sweep(tmp_path, trials=2)
    write_report(Storage(tmp_path))
    text = open_page(tmp_path).locator("#analysis").inner_text()
    assert text.count("Not enough trials") >= 2


def test_the_speed_up_of_the_front_over_the_batch(open_page: Open, tmp_path: Path) -> None:
    sweep = write_timed_sweep(tmp_path, 12, sizes=(4, 1, 8), seed=1)
    write_report(Storage(tmp_path))
    page = open_page(tmp_path)
    section = page.locator("#batches")
    assert section.locator("h2").inner_text() == "Speed-up over batch"
    assert section.locator("thead th").all_inner_texts() == [
        "trial",
        "setting",
        "batch 1",
        "batch 4",
        "batch 8",
    ]
    rows = [row.locator("th, td").all_inner_texts() for row in section.locator("tbody tr").all()]
    members = replace(front_of([sweep]), form=Form.ABBREVIATED).members
    assert len(members) > 2
    names = ("speedup_batch1", "speedup", "speedup_batch8")
    assert rows == [
        [trial.name, trial.title, *(measured(trial.metrics[name]) for name in names)]
        for trial in members
    ]
    phone = open_page(tmp_path, viewport=PHONE)
    assert phone.locator("#batches tbody tr").count() == len(members)
    assert phone.evaluate("document.documentElement.scrollWidth") == PHONE["width"], (
        "the table scrolls in its panel"
    )


def measured(speed: Estimate) -> str:
    """As the page shows it: to the second digit of its error."""
    if not speed.error:
        return f"{speed.value:g}"
    places = max(0, 1 - math.floor(math.log10(speed.error)))
    return f"{speed.value:.{places}f} ± {speed.error:.{places}f}"


def test_a_page_of_one_batch_size_has_no_such_section(open_page: Open, tmp_path: Path) -> None:
    """Nor one of a sweep that is priced at the size of another metric."""
    sweep = write_timed_sweep(tmp_path, 6)
    assert "batches" in page_data([sweep])["sections"]
    assert "batches" not in page_data([Sweep.open(tmp_path, batch=8)])["sections"]
    (tmp_path / "report.html").write_text(
        render(page_data([Sweep.open(tmp_path, batch=8)])), "utf-8"
    )
    page = open_page(tmp_path)
    assert page.locator("#batches").count() == 0
    assert page.get_by_text("Speed-up over batch").count() == 0
