"""MLflow's own pages of a sweep, at the addresses that `sync` and `ui` print, in a real browser."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from orchestrator.results.sweep import Sweep
from orchestrator.views.mlflow import find_location
from orchestrator.views.mlflow_runs import run_link, run_name
from tests.fakes.command_line import specfrontier
from tests.fakes.timed_sweeps import write_timed_sweep
from workers.data.storage import Storage

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Locator, Page

pytestmark = pytest.mark.slow(seconds=40)
TRIALS, WAIT = 12, 60_000
SHOTS = os.environ.get("SPECFRONTIER_SCREENSHOTS")  # a folder to look at afterwards


@pytest.fixture(scope="module")
def storage(tmp_path_factory: pytest.TempPathFactory) -> Storage:
    folder = tmp_path_factory.mktemp("sweeps") / "demo"
    return write_timed_sweep(folder, TRIALS, name="demo", failed=(7,)).storage


@pytest.fixture(scope="module")
def links(storage: Storage, browser: Browser, mlflow_server: str) -> dict[str, str]:
    """The addresses that `sync` and `ui` print."""
    synced = specfrontier("sync", storage.uri, "--uri", mlflow_server, "--json")
    assert synced.code == 0, synced.err
    found: dict[str, str] = synced.json["links"]
    return found


@pytest.fixture
def page(browser: Browser, links: dict[str, str]) -> Iterator[Page]:
    """A page that notes where it asks for anything; nothing may come from outside."""
    opened = browser.new_page(viewport={"width": 1500, "height": 1400})
    asked: list[str] = []
    opened.on("request", lambda request: asked.append(request.url))
    yield opened
    opened.close()
    outside = [url for url in asked if not url.startswith((links["mlflow"], "data:", "blob:"))]
    assert asked
    assert outside == []


def keep(page: Page, name: str) -> None:
    if SHOTS:
        page.screenshot(path=str(Path(SHOTS, f"mlflow_{name}.png")))


def test_the_sweeps_page_shows_its_trials_and_leads_to_the_front(page: Page, links: dict[str, str]) -> None:
    page.goto(links["sweep"])
    page.get_by_text("Child runs", exact=True).wait_for(timeout=WAIT)
    page.get_by_role("link", name=re.compile(r"^11 eagle-")).first.wait_for(timeout=WAIT)
    keep(page, "sweep")
    with page.expect_popup() as opened:
        page.get_by_role("link", name="compare their runs").click()
    comparing = opened.value.get_by_text(re.compile(r"Comparing \d+ Runs"))
    comparing.wait_for(timeout=WAIT)
    shown = re.search(r"Comparing (\d+) Runs", comparing.first.inner_text())
    assert shown is not None
    assert int(shown[1]) > 1
    opened.value.close()


def test_the_front_is_compared_by_params_and_metrics(page: Page, links: dict[str, str], storage: Storage) -> None:
    page.goto(links["compare"])
    page.get_by_text(re.compile(r"Comparing \d+ Runs")).wait_for(timeout=WAIT)
    keep(page, "compare")
    text = page.inner_text("body")
    for name in ("tree.policy", "acceptance.delta", "speedup", "error/fid"):
        assert name in text
    assert "n/a" not in text
    found = find_location(Sweep.open(storage), links["mlflow"])
    shown = {number for number, run_id in found.runs.items() if run_id in links["compare"]}
    assert f"Comparing {len(shown)} Runs" in text
    assert len(shown) > 1


def test_the_table_lists_the_trials_without_their_sweep(page: Page, links: dict[str, str]) -> None:
    page.goto(links["trials"])
    page.get_by_role("link", name=re.compile(r"^11 eagle-")).first.wait_for(timeout=WAIT)
    keep(page, "trials")
    rows = page.locator(".ag-pinned-left-cols-container [role=row], .ag-center-cols-container [role=row]")
    assert {row.get_attribute("row-index") for row in rows.all()} == set(map(str, range(TRIALS))), "no trial is nested"


def test_a_trials_page_shows_its_pictures_and_setting(page: Page, links: dict[str, str], storage: Storage) -> None:
    found = find_location(Sweep.open(storage), links["mlflow"])
    address = run_link(found.runs[2], found.experiment_id, links["mlflow"])
    page.goto(address.replace("?", "/artifacts/images.png?"))
    picture = page.locator("img[src^='blob:']").first
    picture.wait_for(timeout=WAIT)
    assert picture.evaluate("image => [image.naturalWidth, image.naturalHeight]") == [16, 16]
    assert page.get_by_text("heatmap.png").count() > 0
    keep(page, "pictures")
    page.get_by_text("config.yaml").first.click()
    page.get_by_text("neighbourhood: additive").wait_for(timeout=WAIT)
    keep(page, "config")


def lines(chart: Locator) -> dict[str, list[list[float]]]:
    """The values on both axes of each line of a plot, by the name of its run."""
    chart.locator(".scatterlayer path").first.wait_for(timeout=WAIT)
    return {name: axes for name, *axes in chart.evaluate("plot => plot.data.map((l) => [l.name, l.x, l.y])")}


def test_the_speed_up_is_drawn_over_the_batch(page: Page, links: dict[str, str], storage: Storage) -> None:
    """Of one trial on its page; of the front, behind the metric's name in the comparison."""
    sweep = Sweep.open(storage)
    found = find_location(sweep, links["mlflow"])
    speeds = {
        run_name(record, sweep.names): record.by_batch("speedup", sweep.identity.timing_batch)
        for record in sweep.front_records
    }
    expected = {name: [[1, 8], [speed.value for speed in found.values()]] for name, found in speeds.items()}
    page.goto(links["compare"])
    page.get_by_role("link", name="by_batch/speedup").click(timeout=WAIT)
    assert lines(page.locator(".js-plotly-plot").first) == expected
    assert len(expected) > 2
    keep(page, "batches")
    member = sweep.front_records[0]
    address = run_link(found.runs[member.number], found.experiment_id, links["mlflow"])
    page.goto(address.replace("?", "/model-metrics?"))
    page.get_by_placeholder("Search metric charts").fill("by_batch/speedup")
    group = page.locator(".du-bois-light-collapse-item", has_text="by_batch")  # others until they are filtered
    card = group.get_by_test_id("experiment-view-compare-runs-card").filter(has_text="speedup")
    name = run_name(member, sweep.names)
    assert lines(card.locator(".js-plotly-plot")) == {name: expected[name]}
