"""What a reader of the report has chosen is in the page's address; ranges on parallel coordinates;
downloads.
"""

from __future__ import annotations

import csv
import io
import xml.etree.ElementTree as ET
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl, quote, urlencode

import pytest

from orchestrator.report.page import page_data, render, write_report
from orchestrator.store.records import write_trial
from orchestrator.text import csv_cell
from specfrontier import Sweep
from tests.browser.report_pages import Open, front_of, on_front, point, settle, trials_of
from tests.fakes.drawn_sweeps import captions, write_drawn_sweep
from tests.fakes.searched_sweeps import write_searched_sweep
from tests.fakes.timed_sweeps import write_timed_sweep
from workers.data.storage import Storage

if TYPE_CHECKING:
    from playwright.sync_api import Page

LABELS = {15: "=1+1", 2: "@SUM(A1)", 3: 'a, "quoted"\nlabel', 4: "-2", 5: "plain"}
SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("searched")
    for record in write_searched_sweep(place, 40):
        if record.number in LABELS:
            write_trial(Storage(place), replace(record, label=LABELS[record.number]))
    write_report(Storage(place))
    return place


def parts(page: Page) -> list[tuple[str, str]]:
    """The choices in the page's address, which is written soon after a choice."""
    settle(page)
    return parse_qsl(choices_of(page), keep_blank_values=True)


@pytest.fixture(scope="module")
def untouched(open_shared_page: Open, folder: Path) -> dict[str, object]:
    """What a page shows before any choice."""
    return seen(open_shared_page(folder))


def choices_of(page: Page) -> str:
    """The choices in the page's address as they are written."""
    return page.url.partition("#")[2]


def numbers(page: Page) -> list[int]:
    """The trials in the table from top to bottom."""
    return [int(trial) for trial in trials_of(page.locator("#table tbody tr"))]


def drag(page: Page, key: str, start: float, end: float) -> None:
    """Mark a range of a parallel coordinate, between shares of its height."""
    area = page.locator(f'.range-area[data-key="{key}"]')
    area.scroll_into_view_if_needed()
    box = area.bounding_box()
    assert box is not None
    x = box["x"] + box["width"] / 2
    page.mouse.move(x, box["y"] + start * box["height"])
    page.mouse.down()
    page.mouse.move(x, box["y"] + end * box["height"], steps=3)
    page.mouse.up()


def seen(page: Page) -> dict[str, object]:
    return {
        "axes": page.locator("#controls select").evaluate_all("all => all.map((one) => one.value)"),
        "pressed": page.locator(".toggle, .kind").evaluate_all(
            "all => all.map((one) => one.ariaPressed)"
        ),
        "front": on_front(page),
        "pins": trials_of(page.locator("#pins thead th")),
        "bar": page.locator("#bar").input_value(),
        "answer": page.locator("#answer").inner_text(),
        "filter": page.locator("#filter").input_value(),
        "table": page.locator("#table").inner_text(),
        "selection": page.locator("#selection").inner_text(),
        "slices": page.locator("#slices figcaption").all_inner_texts(),
    }


def test_a_page_at_a_copied_address_shows_the_same(open_page: Open, folder: Path) -> None:
    page = open_page(folder)
    first = seen(page)
    assert parts(page) == []
    page.locator("#controls select").nth(1).select_option("drift")
    page.get_by_role("button", name="error bars").click()
    page.locator('.kind[data-kind="exponential"]').click()
    drag(page, "speedup", 0.01, 0.7)
    for record in [
        record for record in front_of(folder, "speedup", "drift") if record.number in on_front(page)
    ][:2]:
        point(page, record.number).press("Enter")
    page.locator("#bar").press("ArrowRight")
    page.locator("#filter").fill("tree.policy=chain")
    page.locator('#table th[data-key="fid"] button').click()
    page.locator(".columns summary").click()
    page.locator('input[data-column="latency"]').uncheck()
    page.locator("#slice-controls select").select_option("drift")
    page.mouse.move(5, 5)
    expected = seen(page)
    assert {key for key, value in expected.items() if value == first[key]} == set()
    named = {name for name, _ in parts(page)}
    assert named == {
        "y",
        "bars",
        "hidden",
        "pins",
        "bar",
        "filter",
        "sort",
        "columns",
        "range",
        "metric",
    }
    other = open_page(folder, choices=choices_of(page))
    assert seen(other) == expected
    assert parts(other) == parts(page)


@pytest.mark.parametrize(
    "text",
    [
        "x=nothing&y=__proto__&colour=constructor&near=maybe&hidden=toString&pins=999&pins=constructor&bar=1e9&bar=x",
        "bar=&bar=NaN&sort=nothing&sort=down&range=fid&range=low&range=high&range=constructor&range=0&range=1",
        "range=fid&range=900&range=901&metric=__proto__&mode=x&page=-1&zoom=99&images=999&front=2&columns",
        "%E0%A4%A&=&&&x=%00&y[]=fid&" + quote("<img src=x onerror=alert(1)>=<script>"),
        "unknown=" + "a" * 100_000,
    ],
)
def test_a_part_that_means_nothing_here_is_left_out(
    open_page: Open, folder: Path, untouched: dict[str, object], text: str
) -> None:
    page = open_page(folder, choices=f"{text}&filter=tree.policy%3Dchain")
    assert page.locator("#filter").input_value() == "tree.policy=chain", "the other parts hold"
    page.locator("#filter").fill("")
    assert seen(page) | {"table": ""} == untouched | {"table": ""}
    assert {name for name, _ in parts(page)} <= {"columns"}


def test_links_to_sections_keep_the_choices(open_page: Open, folder: Path) -> None:
    page = open_page(folder)
    page.get_by_role("button", name="zoom to front").click()
    page.locator("nav a", has_text="Trials").click()
    assert page.locator("#trials").bounding_box()["y"] < 200  # type: ignore[index]
    assert parts(page) == [("near", "true")]
    page.evaluate("location.hash = '#y=drift'")  # an address that the reader writes
    page.locator("#chart svg[aria-label^='drift against']").wait_for()


def test_the_choices_of_the_images_are_kept(open_page: Open, tmp_path: Path) -> None:
    write_drawn_sweep(tmp_path, captions(6), trials=10)
    write_report(Storage(tmp_path))
    page = open_page(tmp_path)
    lists = page.locator("#images-controls select")
    options = (
        lists.nth(0).locator("option").evaluate_all("all => all.map((option) => option.value)")
    )
    chosen = next(
        value
        for value in options
        if value not in (lists.nth(0).input_value(), lists.nth(1).input_value())
    )
    lists.nth(0).select_option(chosen)
    page.locator('[data-mode="difference"]').click()
    assert dict(parts(page))["mode"] == "difference"
    other = open_page(tmp_path, choices=choices_of(page))
    assert other.locator("#images-controls select").nth(0).input_value() == chosen
    assert other.locator('[data-mode="difference"]').get_attribute("aria-pressed") == "true"


def test_a_range_selects_trials_in_chart_and_table(open_page: Open, folder: Path) -> None:
    page, records = open_page(folder), Sweep.open(folder).records
    fids = sorted(record.metrics["fid"].value for record in records)
    drag(page, "fid", 0.01, 0.5)  # the best is on top
    _, low, high = (text for name, text in parts(page) if name == "range")
    assert (float(low), float(high) in fids) == (fids[0], True)
    expected = {record.number for record in records if record.metrics["fid"].value <= float(high)}
    assert 2 < len(expected) < 38
    assert set(numbers(page)) == expected
    assert set(map(int, trials_of(page.locator(".point")))) == expected
    front = Sweep.open(folder).front("speedup", "fid", where=[f"fid<={high}"])
    assert on_front(page) == set(front["number"].to_pylist())
    assert page.locator("#parallel .course.faded path").count() == 40 - len(expected)
    drag(page, "tree.policy", 0.01, 0.99)
    both = {number for number in expected if records[number].config.flat().get("tree.policy")}  # type: ignore[union-attr]
    assert set(numbers(page)) == both
    drag(page, "fid", 0.5, 0.5)
    assert ("range", "fid") not in parts(page), "a click releases the range"
    assert ("range", "tree.policy") in parts(page)
    page.get_by_role("button", name="show all").click()
    assert len(numbers(page)) == 40
    assert parts(page) == []


def downloaded(page: Page, name: str) -> tuple[str, bytes]:
    with page.expect_download() as started:
        page.get_by_role("button", name=name, exact=True).first.click()
    return started.value.suggested_filename, Path(started.value.path()).read_bytes()


def test_the_table_downloads_as_csv(open_page: Open, folder: Path) -> None:
    page, records = open_page(folder), Sweep.open(folder).records
    page.locator(".columns summary").click()
    page.locator('input[data-column="label"]').check()
    page.locator('#table th[data-key="fid"] button').click()
    page.locator("#filter").fill("fid<9")
    name, data = downloaded(page, "CSV")
    assert name == "trials.csv"
    rows = list(csv.DictReader(io.StringIO(data.decode(), newline="")))
    assert [int(row["number"]) for row in rows] == numbers(page)
    for row in rows:
        record = records[int(row["number"])]
        assert float(row["fid"]) == record.metrics["fid"].value
        assert float(row["error/fid"]) == record.metrics["fid"].error
        assert row["label"] == csv_cell(record.label)
    assert {LABELS[int(row["number"])][0] for row in rows if int(row["number"]) in LABELS} >= set(
        "=@a"
    ), "of some use"


def test_other_tables_download_as_they_are_shown(open_page: Open, tmp_path: Path) -> None:
    write_timed_sweep(tmp_path, 12, sizes=(4, 1, 8))
    write_report(Storage(tmp_path))
    page = open_page(tmp_path)
    with page.expect_download() as started:
        page.locator("#batches").get_by_role("button", name="CSV").click()
    rows = list(csv.reader(io.StringIO(Path(started.value.path()).read_text("utf-8"))))
    shown = [row.locator("th, td").all_inner_texts() for row in page.locator("#batches tr").all()]
    assert rows == shown


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_chart_downloads_as_a_picture_of_its_own(
    open_page: Open, folder: Path, scheme: str
) -> None:
    """The file has all that the page has, and shows it without the page's style."""
    page = open_page(folder, color_scheme=scheme)
    name, data = downloaded(page, "SVG")
    assert name == "front.svg"
    root = ET.fromstring(data)
    assert root.tag == f"{SVG}svg"
    text = data.decode()
    assert not any(
        part in text
        for part in ("var(", "color-mix", "light-dark", "color(", "class=", "<style", "href")
    )
    words = {"".join(element.itertext()) for element in root.iter(f"{SVG}text")}
    assert words == set(page.locator("#chart text").all_text_contents())
    line = page.locator("#chart .front-line path").first
    drawn = next(
        element
        for element in root.iter(f"{SVG}path")
        if element.get("d") == line.get_attribute("d")
    )
    assert drawn.get("stroke") == line.evaluate("line => getComputedStyle(line).stroke")
    assert {element.get("font-family") for element in root.iter(f"{SVG}text")} == {
        "system-ui, sans-serif"
    }
    viewer = page.context.new_page()
    viewer.set_content(f"<body style='margin:0'>{text}</body>")
    box = viewer.locator("svg").first.bounding_box()
    assert box is not None
    assert box["width"] == pytest.approx(page.locator("#chart > svg").bounding_box()["width"])  # type: ignore[index]


def test_an_address_cannot_add_markup(open_page: Open, tmp_path: Path, folder: Path) -> None:
    """Nor can one of a page whose trials have other names."""
    data = page_data([Sweep.open(folder)])
    (tmp_path / "report.html").write_text(render(data), "utf-8")
    text = "<img src=x onerror=alert(1)>"
    page = open_page(tmp_path, choices=urlencode({"filter": text}))
    assert page.locator("#filter").input_value() == text
    assert page.locator("img[src=x]").count() == 0
