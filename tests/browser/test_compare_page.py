"""The report of several sweeps in a browser."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.front.choice import best_within
from orchestrator.front.front import front_of
from orchestrator.store.sweep import Sweep
from tests.browser.report_pages import Open
from tests.fakes.command_line import specfrontier
from tests.fakes.drawn_sweeps import captions, write_drawn_sweep


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("compared")
    for name, seed in (("first", 1), ("second", 2)):
        write_drawn_sweep(place / name, captions(6), trials=10, seed=seed, name=name)
    out = str(place / "report.html")
    result = specfrontier(
        "compare", str(place / "first"), str(place / "second"), "--html", "--out", out
    )
    assert result.code == 0, result.err
    return place


def test_the_front_of_both_sweeps(open_page: Open, folder: Path) -> None:
    page = open_page(folder)
    front = front_of([Sweep.open(folder / name) for name in ("first", "second")], "speedup", "fid")
    shown = page.locator(".point.front").evaluate_all(
        "all => all.map((point) => point.dataset.trial)"
    )
    assert set(shown) == {member.name for member in front.members}
    best = best_within(front, ["fid <= 1.2 * vanilla"])
    assert best is not None
    page.locator("#bar").evaluate(
        "bar => { bar.value = 1.2; bar.dispatchEvent(new Event('input')); }"
    )
    assert page.locator("#fastest .chosen").get_attribute("data-trial") == best.name
    assert {kind.get_attribute("data-kind") for kind in page.locator(".kind").all()} == {
        "first",
        "second",
    }
    assert page.locator("#chart .sweep-line").count() == 2
    assert page.locator("#chart .bar-line").count() == 0, "each sweep has its own vanilla"


def test_the_comparison_and_the_rest_of_the_page(open_page: Open, folder: Path) -> None:
    page = open_page(folder)
    text = page.locator("#comparison").inner_text()
    assert "hypervolume" in text
    rows = page.locator("#comparison tbody tr").all_inner_texts()
    assert len(rows) == 3, "two fronts, and their pair once"
    page.locator("#filter").fill("sweep=second fid<9")
    shown = page.locator("#table tbody tr").evaluate_all(
        "all => all.map((row) => row.dataset.trial)"
    )
    assert shown
    assert all(row.startswith("second#") for row in shown)
    assert page.locator("#volumes .volume").count() == 2
    assert page.locator("#setup h3.sweep").all_inner_texts() == ["first", "second"]
