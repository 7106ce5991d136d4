"""MLflow's own pages of a sweep, at the addresses that `sync` and `ui` print, in a real browser."""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar
from urllib.parse import unquote

import pytest
from PIL import Image

from orchestrator.front.questions import front_records
from orchestrator.store.sweep import Sweep
from orchestrator.views.mlflow_page import compare_link, run_link
from orchestrator.views.mlflow_runs import run_name
from orchestrator.views.mlflow_sync import find_location
from tests.fakes.command_line import specfrontier
from tests.fakes.synthetic_sweeps import CAPTIONS
from tests.fakes.timed_sweeps import write_timed_sweep
from workers.data.pictures import image_grid, png
from workers.data.storage import Storage

if TYPE_CHECKING:
    from playwright.sync_api import Browser, BrowserContext, Locator, Page, ProxySettings

pytestmark = pytest.mark.slow(seconds=40)
TRIALS = 12
ELSEWHERE = "http://elsewhere.example/"
SHOTS = os.environ.get("SPECFRONTIER_SCREENSHOTS")  # a folder to look at afterwards


@pytest.fixture(scope="module")
def storage(tmp_path_factory: pytest.TempPathFactory) -> Storage:
    folder = tmp_path_factory.mktemp("sweeps") / "demo"
    sweep = write_timed_sweep(folder, TRIALS, name="demo", seed=3, failed=(7,), shards=True)
    for record in sweep.records:
        tiles = [Image.new("RGB", (32, 32), (16 * record.number, 99, 0))] * len(CAPTIONS)
        sweep.storage.write(f"pictures/{record.digest}.png", png(image_grid(tiles, 4)))
    assert len(front_records(sweep)) > 2
    return sweep.storage


@pytest.fixture(scope="module")
def links(storage: Storage, browser: Browser, mlflow_server: str) -> dict[str, str]:
    """The addresses that `sync` and `ui` print."""
    synced = specfrontier("sync", storage.uri, "--uri", mlflow_server, "--json")
    assert synced.code == 0, synced.err
    return {"mlflow": mlflow_server, **synced.json["links"]}


class Proxy(BaseHTTPRequestHandler):
    """Notes the host of each request that the browser sends elsewhere than to this machine."""

    asked: ClassVar[list[str]] = []

    def do_GET(self) -> None:
        self.asked.append(self.path)
        self.send_error(502)

    do_CONNECT = do_POST = do_GET

    def log_message(self, format: str, *args: object) -> None:
        """Nothing."""


@pytest.fixture(scope="module")
def context(browser: Browser, links: dict[str, str]) -> Iterator[BrowserContext]:
    """Pages of one cache: MLflow's scripts are large. Nothing that they ask for may come from
    outside.
    """
    asked: list[str] = []
    with ThreadingHTTPServer(("127.0.0.1", 0), Proxy) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        proxy: ProxySettings = {
            "server": f"http://127.0.0.1:{server.server_port}",
            "bypass": "127.0.0.1",
        }
        opened = browser.new_context(viewport={"width": 1500, "height": 1400}, proxy=proxy)
        opened.on("request", lambda request: asked.append(request.url))
        yield opened
        opened.close()
        server.shutdown()
    own = (links["mlflow"], "data:", "blob:", ELSEWHERE)
    assert asked
    assert [url for url in asked if not url.startswith(own)] == []


def first_visit(context: BrowserContext, base: str) -> Page:
    """A blank page of a reader for whom MLflow has stored nothing."""
    page = context.new_page()
    stored = {"origin": base, "storageTypes": "cookies,indexeddb,local_storage"}
    context.new_cdp_session(page).send("Storage.clearDataForOrigin", stored)
    return page


@pytest.fixture
def page(context: BrowserContext, links: dict[str, str]) -> Iterator[Page]:
    opened = first_visit(context, links["mlflow"])
    yield opened
    opened.close()


@pytest.fixture(scope="module")
def sweep_page(context: BrowserContext, links: dict[str, str]) -> Page:
    """The sweep's page in a window of 1280 x 800, on the first visit."""
    page = first_visit(context, links["mlflow"])
    page.set_viewport_size({"width": 1280, "height": 800})
    page.goto(links["sweep"])
    page.get_by_text("Child runs", exact=True).wait_for()
    page.get_by_role("link", name=re.compile(r"^11 eagle-")).first.wait_for()
    keep(page, "sweep")
    return page


@pytest.fixture(scope="module")
def side_by_side_page(sweep_page: Page) -> Page:
    """The page behind that link of the sweep's page."""
    with sweep_page.expect_popup() as opened:
        sweep_page.get_by_role("link", name="side by side").click()
    opened.value.get_by_text(re.compile(r"Comparing \d+ Runs")).wait_for()
    keep(opened.value, "side_by_side")
    return opened.value


@pytest.fixture(scope="module")
def compare_page(context: BrowserContext, links: dict[str, str], storage: Storage) -> Page:
    page = first_visit(context, links["mlflow"])
    page.set_viewport_size({"width": 1900, "height": 800})
    page.goto(links["compare"])
    page.locator(".ag-header-cell").filter(has_text="speedup").first.wait_for()
    front_link(page, storage).wait_for()
    keep(page, "compare")
    return page


@pytest.fixture(scope="module")
def trials_page(context: BrowserContext, links: dict[str, str]) -> Page:
    page = first_visit(context, links["mlflow"])
    page.goto(links["trials"])
    page.get_by_role("link", name=re.compile(r"^11 eagle-")).first.wait_for()
    keep(page, "trials")
    return page


def front_link(page: Page, storage: Storage) -> Locator:
    """The first link to a trial of the front whose name is that of its setting."""
    number = next(
        record.number for record in front_records(Sweep.open(storage)) if not record.label
    )
    return page.get_by_role("link", name=re.compile(rf"^{number} eagle-")).first


def keep(page: Page, name: str) -> None:
    if SHOTS:
        page.screenshot(path=str(Path(SHOTS, f"mlflow_{name}.png")))


def test_the_sweeps_page_shows_its_front_without_scrolling(
    sweep_page: Page, storage: Storage
) -> None:
    """The whole table, which MLflow does not fold, and all links."""
    table = sweep_page.locator("table", has_text="speedup").first
    sweep = Sweep.open(storage)
    cells = [
        [text.strip() for text in row.locator("th, td").all_inner_texts()]
        for row in table.locator("tr").all()
    ]
    front = sorted(front_records(sweep), key=lambda record: record.metrics["speedup"].value)
    values = [
        [str(record.metrics[name]).partition(" ±")[0] for record in front]
        for name in ("speedup", "fid")
    ]
    assert cells == [
        ["trial", *(str(record.number) for record in front)],
        ["speedup", *values[0]],
        ["fid", *values[1]],
    ]
    for element in (table, sweep_page.get_by_role("link", name="side by side")):
        box = element.bounding_box()
        assert box is not None
        assert box["y"] > 0
        assert box["y"] + box["height"] < 400
    assert sweep_page.get_by_test_id("truncation-gradient").count() == 0
    assert sweep_page.get_by_role("button", name="Expand description").count() == 0


def test_the_first_link_opens_the_front_as_a_scatter_plot_and_images_by_caption(
    page: Page, links: dict[str, str], storage: Storage
) -> None:
    """In a window of 1440 x 900: the plot is seen without scrolling, no chart is of an error."""
    first = next(link for name, link in links.items() if name != "mlflow")
    page.set_viewport_size({"width": 1440, "height": 900})
    page.goto(first)
    plot = page.locator(".js-plotly-plot").first
    plot.locator(".scatterlayer path").first.wait_for()
    keep(page, "charts")
    box = plot.bounding_box()
    assert box is not None
    assert box["y"] + box["height"] < 900
    points = plot.evaluate("plot => plot.data.flatMap((d) => d.x.map((x, i) => [x, d.y[i]]))")
    records = [record for record in Sweep.open(storage).records if record.is_complete]
    assert sorted(points) == sorted(
        [record.metrics["speedup"].value, record.metrics["fid"].value] for record in records
    )
    page.set_viewport_size({"width": 1440, "height": 4000})
    page.get_by_text(CAPTIONS[0]).first.wait_for()
    page.locator("img[src*='images']").nth(len(CAPTIONS) - 1).wait_for()
    keep(page, "charts_below")
    text = page.inner_text("body")
    headings = ["Front", "Objectives: speedup [x], fid", "Images by caption", "Model metrics"]
    places = [text.find(f"\n{heading}") for heading in headings]
    assert places == sorted(places)
    assert min(places) > 0
    assert not re.search(r"\b(error|series|own)/", text)
    assert page.locator("img[src*='images']").count() >= len(CAPTIONS)


def test_the_front_opens_on_objectives_and_parameters(compare_page: Page, storage: Storage) -> None:
    heads = compare_page.locator(".ag-header-cell")
    names = {name.strip() for name in heads.all_inner_texts()}
    assert {"speedup", "fid", "tree.policy", "acceptance.neighbourhood"} <= names
    assert not {"latency", "drift", "Source"} & names
    rows = compare_page.locator(
        ".ag-pinned-left-cols-container [role=row], .ag-center-cols-container [role=row]"
    )
    assert {row.get_attribute("row-index") for row in rows.all()} == set(
        map(str, range(len(front_records(Sweep.open(storage)))))
    )


def test_the_front_is_compared_by_params_and_metrics(
    side_by_side_page: Page, links: dict[str, str], storage: Storage
) -> None:
    text = side_by_side_page.inner_text("body")
    for name in ("tree.policy", "acceptance.delta", "speedup", "error/fid"):
        assert name in text
    assert "n/a" not in text
    found = find_location(Sweep.open(storage), links["mlflow"])
    address = compare_link(
        [found.runs[number] for number in found.front], found.experiment_id, links["mlflow"]
    )
    assert unquote(side_by_side_page.url) == unquote(address)
    shown = {number for number, run_id in found.runs.items() if run_id in address}
    assert f"Comparing {len(shown)} Runs" in text
    assert len(shown) > 1


def test_the_table_lists_the_trials_without_their_sweep(trials_page: Page) -> None:
    assert {"speedup", "fid"} <= set(trials_page.locator(".ag-header-cell").all_inner_texts())
    rows = trials_page.locator(
        ".ag-pinned-left-cols-container [role=row], .ag-center-cols-container [role=row]"
    )
    assert {row.get_attribute("row-index") for row in rows.all()} == set(map(str, range(TRIALS))), (
        "no trial is nested"
    )


def test_a_trials_page_shows_its_pictures_and_setting(
    page: Page, links: dict[str, str], storage: Storage
) -> None:
    found = find_location(Sweep.open(storage), links["mlflow"])
    address = run_link(found.runs[2], found.experiment_id, links["mlflow"])
    page.goto(address.replace("?", "/artifacts/images.png?"))
    picture = page.locator("img[src^='blob:']").first
    picture.wait_for()
    assert picture.evaluate("image => [image.naturalWidth, image.naturalHeight]") == [134, 32]
    assert page.get_by_text("heatmap.png").count() > 0
    keep(page, "pictures")
    page.get_by_text("config.yaml").first.click()
    page.get_by_text("neighbourhood: additive").wait_for()
    keep(page, "config")


def lines(chart: Locator) -> dict[str, list[list[float]]]:
    """The values on both axes of each line of a plot, by the name of its run."""
    chart.locator(".scatterlayer path").first.wait_for()
    return {
        name: axes
        for name, *axes in chart.evaluate("plot => plot.data.map((l) => [l.name, l.x, l.y])")
    }


def test_the_speed_up_is_drawn_over_the_batch(
    side_by_side_page: Page, page: Page, links: dict[str, str], storage: Storage
) -> None:
    """Of one trial on its page; of the front, behind the metric's name in the comparison."""
    sweep = Sweep.open(storage)
    found = find_location(sweep, links["mlflow"])
    speeds = {
        run_name(record, sweep.names): record.by_batch("speedup", sweep.identity.timing_batch)
        for record in front_records(sweep)
    }
    expected = {
        name: [[1, 8], [speed.value for speed in found.values()]] for name, found in speeds.items()
    }
    side_by_side_page.get_by_role("link", name="by_batch/speedup").click()
    assert lines(side_by_side_page.locator(".js-plotly-plot").first) == expected
    assert len(expected) > 2
    keep(side_by_side_page, "batches")
    side_by_side_page.go_back()
    side_by_side_page.get_by_text(re.compile(r"Comparing \d+ Runs")).wait_for()
    member = front_records(sweep)[0]
    address = run_link(found.runs[member.number], found.experiment_id, links["mlflow"])
    page.goto(address.replace("?", "/model-metrics?"))
    page.get_by_placeholder("Search metric charts").fill("by_batch/speedup")
    # others until they are filtered
    group = page.locator(".du-bois-light-collapse-item", has_text="by_batch")
    card = group.get_by_test_id("experiment-view-compare-runs-card").filter(has_text="speedup")
    name = run_name(member, sweep.names)
    assert lines(card.locator(".js-plotly-plot")) == {name: expected[name]}


def test_the_assistant_is_off(sweep_page: Page, links: dict[str, str]) -> None:
    """It neither opens on the first visit nor has a button, and its requests are refused."""
    sweep_page.wait_for_timeout(1000)
    keep(sweep_page, "no_assistant")
    for parts in (sweep_page.get_by_text("Assistant"), sweep_page.locator("[data-assistant-ui]")):
        assert [part for part in parts.all() if part.is_visible()] == []
    front = sweep_page.locator("table", has_text="speedup").first.bounding_box()
    assert front is not None
    assert front["x"] < 500, "the panel takes the place of the column with the description"
    for method, path in (
        ("GET", "config"),
        ("POST", "message"),
        ("PUT", "config"),
        ("POST", "skills/install"),
    ):
        answer = sweep_page.request.fetch(
            f"{links['mlflow']}/ajax-api/3.0/mlflow/assistant/{path}", method=method
        )
        assert answer.status == 403


@pytest.mark.usefixtures("sweep_page", "trials_page", "compare_page")
def test_no_request_leaves_the_machine(page: Page) -> None:
    """Nor one of a worker, such as that of MLflow's telemetry, which a page's requests do not
    show.
    """
    page.wait_for_timeout(3000)
    # Chromium asks this itself, whatever the page
    assert [place for place in Proxy.asked if place != "www.google.com:443"] == []
    with suppress(Exception):  # the proxy has no page
        page.goto(ELSEWHERE)
    assert ELSEWHERE in Proxy.asked, "it would have been seen"
