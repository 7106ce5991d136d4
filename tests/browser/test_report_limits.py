"""The report with 1,000 trials, its contrasts, its size, and its use without a mouse."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from orchestrator.report.page import page_data, render, write_report
from orchestrator.store.records import TrialRecord
from orchestrator.store.sweep import Sweep
from tests.browser.report_pages import DESK, PHONE, Open, front_of
from tests.fakes.searched_sweeps import write_searched_sweep
from tests.fakes.synthetic_sweeps import IMAGES, metrics_of, settings, write_sweep
from workers.data.storage import Storage

if TYPE_CHECKING:
    from playwright.sync_api import Page, ViewportSize

TRIALS = 1000
MIN_TEXT, MIN_MARK = 4.5, 3.0
MAX_BYTES = 3_000_000
HOVER, SLIDE, FILTER = 200, 400, 8 * TRIALS  # most elements that may change
MOVE = (
    "document.getElementById('chart').dispatchEvent(new PointerEvent('pointermove', {{clientX: {}, "
    "clientY: {}}}))"
)
NAMED = "img, canvas, svg[role], button, input, select, [tabindex='0']"
NOTE_FOCUS = """() => {
    window.reached = [];
    document.addEventListener("focusin", ({ target: { id, dataset, tagName } }) => {
        window.reached.push(id || dataset.trial || dataset.mode || tagName);
    });
}"""
CONTRASTS = Path(__file__).with_name("contrasts.js").read_text("utf-8")


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of a sweep of 1,000 trials."""
    place = tmp_path_factory.mktemp("large")
    write_sweep(place, trials=0)
    rng = np.random.default_rng(1)
    records = [
        TrialRecord(
            number,
            label,
            "complete",
            config,
            metrics=metrics_of(config, rng),
            images=IMAGES,
            seconds=9.0,
        )
        for number, (label, config) in enumerate(settings(TRIALS, rng))
    ]
    sweep = replace(Sweep.open(place), records=tuple(records))
    (place / "report.html").write_text(render(page_data([sweep])), "utf-8")
    return place


def changes(page: Page, action: str) -> int:
    """How many elements and texts of the page an action adds, removes or changes, at once and in
    the next frames.

    How long that takes depends on the machine; `benchmarks.report_page` measures it.
    """
    script = f"""async () => {{
      let count = 0;
      const size = (node) => 1 + (node.querySelectorAll ? node.querySelectorAll("*").length : 0);
      const add = (records) => {{
        for (const record of records)
          count += [...record.addedNodes, ...record.removedNodes].reduce((sum, node) => sum + size(node), 1);
      }};
      const observer = new MutationObserver(add);
      observer.observe(document, {{ subtree: true, childList: true, attributes: true, characterData: true }});
      {action};
      for (let frame = 0; frame < 2; frame += 1) await new Promise((done) => requestAnimationFrame(done));
      await new Promise((done) => setTimeout(done, 400));
      add(observer.takeRecords());
      observer.disconnect();
      return count;
    }}"""
    return int(page.evaluate(script))


@pytest.mark.slow(seconds=50)
def test_a_page_of_a_thousand_trials_changes_little_at_a_time(open_page: Open, large: Path) -> None:
    page = open_page(large)
    assert page.locator(".point").count() == TRIALS
    for number in (17, 500, 903):
        frame = page.locator(f'.point[data-trial="{number}"]').bounding_box()
        assert frame is not None
        x, y = frame["x"] + frame["width"] / 2, frame["y"] + frame["height"] / 2
        page.evaluate(f"() => {{ {MOVE.format(5, 5)} }}")
        assert 0 < changes(page, MOVE.format(x, y)) < HOVER
    slide = "bar.value = 1.3; bar.dispatchEvent(new Event('input'))"
    assert 0 < changes(page, f"const bar = document.getElementById('bar'); {slide}") < SLIDE
    query = "filter.value = 'tree.depth>=4 fid<6'; filter.dispatchEvent(new Event('input'))"
    assert 0 < changes(page, f"const filter = document.getElementById('filter'); {query}") < FILTER
    assert "of 1,000" in page.locator("#shown").inner_text()
    assert page.locator("#table tbody tr").count() == 100
    assert page.get_by_role("button", name="Show all").count() == 1


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("viewport", [DESK, PHONE], ids=["desk", "phone"])
def test_texts_and_marks_have_enough_contrast(
    open_page: Open, drawn: Path, scheme: str, viewport: ViewportSize
) -> None:
    page = open_page(drawn, viewport=viewport, color_scheme=scheme)
    for record in front_of(drawn, "speedup", "fid")[:2]:
        page.locator(f'.point[data-trial="{record.number}"]').press("Enter")
    page.locator("#filter").fill("nonsense=1")
    page.locator(".columns summary").click()
    page.locator(".kind").first.click()
    found: dict[str, list[dict[str, Any]]] = page.evaluate(CONTRASTS)
    assert len(found["texts"]) > 150
    assert len(found["marks"]) > 25
    assert [entry for entry in found["texts"] if entry["ratio"] < MIN_TEXT] == []
    assert [entry for entry in found["marks"] if entry["ratio"] < MIN_MARK] == []


def test_marks_of_plots_have_enough_contrast(open_page: Open, tmp_path: Path) -> None:
    write_searched_sweep(tmp_path, 30)
    write_report(Storage(tmp_path))
    for scheme in ("light", "dark"):
        found = open_page(tmp_path, color_scheme=scheme).evaluate(CONTRASTS)
        assert len(found["marks"]) > 100
        assert [entry for entry in found["texts"] if entry["ratio"] < MIN_TEXT] == []
        assert [entry for entry in found["marks"] if entry["ratio"] < MIN_MARK] == []


def test_images_have_texts_and_controls_names(open_page: Open, drawn: Path) -> None:
    page = open_page(drawn)
    nameless = page.locator(NAMED).evaluate_all("""nodes => nodes.filter((node) => {
        const named = ["alt", "aria-label", "aria-labelledby"].some((name) => node.getAttribute(name));
        return !named && !node.textContent.trim() && !node.labels?.length;
    }).map((node) => node.outerHTML.slice(0, 200))""")
    assert nameless == []
    assert page.locator("canvas").count() > 30


def test_everything_is_reached_by_keyboard(open_page: Open, drawn: Path) -> None:
    page = open_page(drawn)
    page.evaluate(NOTE_FOCUS)
    for _ in range(120):
        page.keyboard.press("Tab")
    reached: list[str] = page.evaluate("window.reached")
    assert {"bar", "filter"} <= set(reached)
    assert {str(record.number) for record in front_of(drawn, "speedup", "fid")} <= set(reached)
    assert {"side", "blink", "difference", "zoom"} <= set(reached)
    page.locator("#bar").focus()
    before = page.locator("#bar-text").inner_text()
    page.keyboard.press("ArrowRight")
    assert page.locator("#bar-text").inner_text() != before


def test_the_page_is_small_enough(drawn: Path) -> None:
    assert (drawn / "report.html").stat().st_size < MAX_BYTES
