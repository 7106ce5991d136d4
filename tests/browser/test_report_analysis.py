"""Plots of what the search found: they are drawn, have texts for those who cannot see them, and say what is missing."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.report.page import page_data, render, write_report
from orchestrator.results.sweep import Sweep
from tests.browser.report_pages import DESK, Open
from tests.fakes.searched_sweeps import write_searched_sweep
from tests.fakes.synthetic_sweeps import write_sweep
from workers.data.storage import Storage


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
    assert page.locator("#parallel .course.member path").count() == page.locator(".point.front").count()
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


def test_parameters_and_choices_of_one_prefix_stay_apart(open_page: Open, folder: Path, tmp_path: Path) -> None:
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


def test_too_few_trials_are_said_to_be_too_few(open_page: Open, tmp_path: Path) -> None:
    write_sweep(tmp_path, trials=2)
    write_report(Storage(tmp_path))
    text = open_page(tmp_path).locator("#analysis").inner_text()
    assert text.count("Not enough trials") >= 2
