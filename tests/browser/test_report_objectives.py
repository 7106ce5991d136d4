"""A sweep of three objectives has one front: in the terminal, in Python and on the page."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from orchestrator.front.choice import recommend
from orchestrator.front.front import front_of
from orchestrator.report.page import write_report
from orchestrator.store.sweep import Sweep
from tests.browser.report_pages import Open, on_front
from tests.fakes.command_line import specfrontier
from tests.fakes.synthetic_sweeps import write_sweep
from workers.data.storage import Storage

if TYPE_CHECKING:
    from playwright.sync_api import Page

OBJECTIVES = ("speedup", "fid", "clip_score")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    objectives = [
        {"metric": name, "direction": "minimize" if name == "fid" else "maximize"}
        for name in OBJECTIVES
    ]
    write_sweep(tmp_path, trials=30, seed=5, objectives=objectives)
    write_report(Storage(tmp_path))
    return tmp_path


def test_every_view_has_the_front_of_all_three(open_page: Open, folder: Path) -> None:
    front = front_of([Sweep.open(folder)])
    assert [metric.name for metric in front.metrics] == list(OBJECTIVES)
    members = {member.number for member in front.members}
    in_two = {m.number for m in front_of([Sweep.open(folder)], "speedup", "fid").members}
    assert members > in_two, "the third objective has members of its own"
    shown = specfrontier("pareto", str(folder), "--json").json
    assert {row["number"] for row in shown["rows"]} == members
    page = open_page(folder)
    for x, y in (("speedup", "fid"), ("clip_score", "fid"), ("fid", "speedup")):
        choose(page, x, y)
        assert points(page) == members, (x, y)
        assert page.locator("#legend").inner_text().count("on the front of all three") == 1
        assert page.locator("#chart .front-line path, #chart path.front-line").count() == 0
    choose(page, "latency", "fid")
    assert points(page) == {
        m.number for m in front_of([Sweep.open(folder)], "latency", "fid").members
    }
    assert "of all three" not in page.locator("#legend").inner_text()


def test_choices_and_shares_are_of_all_three(open_page: Open, folder: Path) -> None:
    front = front_of([Sweep.open(folder)])
    page = open_page(folder)
    knee = recommend(front).choices.get("knee")
    found = page.locator("#knee .chosen")
    assert (found.count() == 0) == (knee is None)
    if knee is not None:
        assert found.get_attribute("data-trial") == knee.name
    member = front.members[0]
    page.locator(f"#chart .point[data-trial='{member.name}']").focus()
    page.keyboard.press("Enter")
    share = f"{100 * member.confidence:.0f} %" if member.confidence < 0.995 else ">99 %"
    assert f"stays on it in {share} of draws" in page.locator("#card").inner_text()


def choose(page: Page, x: str, y: str) -> None:
    across, up = page.locator("#controls select").all()[:2]
    across.select_option(x)
    up.select_option(y)


def points(page: Page) -> set[int]:
    return {int(trial) for trial in on_front(page)}
