"""The report in a browser: what a reader sees, does and gets, and that hostile text does
nothing.
"""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from orchestrator.report.page import page_data, render, write_report
from orchestrator.store.explain import explain_setting
from orchestrator.store.files import REPORT
from orchestrator.store.names import family, trial_title
from orchestrator.store.records import write_trial
from search_spaces.trial import DecodingConfig
from specfrontier import Sweep
from tests.browser.report_pages import DESK, PHONE, Open, front_of, on_front, point
from tests.fakes.drawn_sweeps import write_drawn_sweep
from tests.fakes.synthetic_sweeps import METRICS, write_sweep
from workers.data.storage import Storage

if TYPE_CHECKING:
    from playwright.sync_api import Page, ViewportSize

HOSTILE = (
    '</script><script>window.broken=1</script><img src=x onerror="window.broken=1"><!-- <script>'
)
REPEATED = 9


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sweep with a page: 24 trials, one failed, one repeated, captions and pictures."""
    place = tmp_path_factory.mktemp("sweep")
    write_sweep(place, trials=24, seed=3, shards=True, repeated={REPEATED: 5})
    write_report(Storage(place))
    return place


@pytest.fixture(scope="module")
def filtered(open_shared_page: Open, folder: Path) -> Page:
    """One page for the tests of the filter: each writes into its field and reads the table."""
    return open_shared_page(folder)


@pytest.fixture(scope="module")
def any_axes(open_shared_page: Open, folder: Path) -> Page:
    """One page for the tests that choose both axes."""
    return open_shared_page(folder)


@pytest.fixture(scope="module")
def untouched(open_shared_page: Open, folder: Path) -> Page:
    """One page for the tests that only read it."""
    return open_shared_page(folder)


def column(page: Page, key: str) -> list[str]:
    """The cells of a column of the table from top to bottom."""
    headers: list[str] = page.locator("#table thead th").evaluate_all(
        "all => all.map((header) => header.dataset.key)"
    )
    return page.locator(f"#table tbody tr > :nth-child({headers.index(key) + 1})").all_inner_texts()


def front_of_candidates(folder: Path, limit: str) -> list[int]:
    """The numbers of the trials that --subject-to passes."""
    return sorted(
        Sweep.open(folder).front(subject_to=[limit], everything=True)["number"].to_pylist()
    )


def numbers_in(cells: list[str]) -> list[float]:
    return [float(cell.partition(" ±")[0].replace(",", "")) for cell in cells if cell != "–"]


def test_hovering_a_point_shows_its_values_and_pictures(open_page: Open, folder: Path) -> None:
    page, record = open_page(folder), front_of(folder, "speedup", "fid")[2]
    card = page.locator("#card")
    by_default = card.get_attribute("data-trial")
    assert (
        by_default
        == page.locator("#fastest .chosen").get_attribute("data-trial")
        != str(record.number)
    )
    point(page, record.number).hover()
    text = " ".join(card.inner_text().split())
    assert f"trial {record.number}" in text
    assert "on the front" in text
    assert record.config is not None
    words = explain_setting(record.config)
    assert words in text
    row = page.locator(f'tr[data-trial="{record.number}"] .description')
    assert row.get_attribute("title") == words
    assert not re.search(r"\b(null|undefined|NaN)\b", page.locator("body").inner_text())
    for name in ("speedup", "fid"):
        value = record.metrics[name]
        assert f"{name} {value.value:.{3 if name == 'speedup' else 2}f} ± " in text
    assert card.locator("img").evaluate("image => image.complete && image.naturalWidth") == 16
    page.mouse.move(5, 5)
    assert card.get_attribute("data-trial") == by_default


def test_a_click_pins_a_trial_until_it_is_released(open_page: Open, folder: Path) -> None:
    page, front = open_page(folder), front_of(folder, "speedup", "fid")
    first, second = front[0], front[3]  # no other point is in front of these
    by_default = page.locator("#card").get_attribute("data-trial")
    point(page, first.number).click()
    page.mouse.move(5, 5)
    assert page.locator("#card").get_attribute("data-trial") == str(first.number)
    page.locator("#card .close").click()
    assert page.locator("#card").get_attribute("data-trial") == by_default
    point(page, second.number).click()
    page.keyboard.press("Escape")
    page.mouse.move(5, 5)
    assert page.locator("#card").get_attribute("data-trial") == by_default


def test_pinned_trials_are_compared(open_page: Open, folder: Path) -> None:
    page, front = open_page(folder), front_of(folder, "speedup", "fid")
    first, last = front[0], front[-1]
    for record in (first, last):
        point(page, record.number).press("Enter")
    page.mouse.move(5, 5)
    heads = page.locator("#pins thead th").all()
    assert [head.get_attribute("data-trial") for head in heads] == [
        str(first.number),
        str(last.number),
    ]
    text = page.locator("#pins").inner_text()
    for record in (first, last):
        assert f"{record.metrics['speedup'].value:.3f} ± " in text
    assert "acceptance." in text or "tree." in text, "the keys in which the settings differ"
    assert (
        page.locator("#pins td strong", has_text=f"{last.metrics['speedup'].value:.3f}").count()
        == 1
    )
    order = [
        text.casefold() for text in page.locator("#pins .group, #pins .part").all_inner_texts()
    ]
    assert order[0] == "parameters that differ"
    places = [order.index(name) for name in ("speedup", "fid", "drift", "latency")]
    assert places == sorted(places)
    page.keyboard.press("Escape")
    assert page.locator("#pins").is_hidden()


def test_a_fourth_pin_is_refused(open_page: Open, folder: Path) -> None:
    page, front = open_page(folder), front_of(folder, "speedup", "fid")
    for record in front[:4]:
        point(page, record.number).press("Enter")
    assert "release one" in page.locator("#card").inner_text()
    assert "release one" in page.locator("#announcement[aria-live=polite]").inner_text()
    assert point(page, front[3].number).get_attribute("aria-pressed") == "false"
    page.locator("h1").click()
    heads = [head.get_attribute("data-trial") for head in page.locator("#pins thead th").all()]
    assert heads == [str(record.number) for record in front[:3]]
    page.locator("#pins thead .close").first.press("Enter")
    assert page.evaluate("document.activeElement.dataset.trial") == heads[0], (
        "the focus is not lost with the button"
    )
    point(page, front[3].number).press("Enter")
    assert point(page, front[3].number).get_attribute("aria-pressed") == "true"


def test_points_are_reached_by_keyboard(open_page: Open, folder: Path) -> None:
    page, record = open_page(folder), front_of(folder, "speedup", "fid")[0]
    point(page, record.number).focus()
    assert page.locator("#card").get_attribute("data-trial") == str(record.number)
    page.keyboard.press("ArrowRight")
    reached = page.evaluate("document.activeElement.dataset.trial")
    assert reached != str(record.number)
    page.keyboard.press("Enter")
    page.locator("h1").click()
    assert page.locator("#card").get_attribute("data-trial") == reached
    assert point(page, int(reached)).get_attribute("aria-pressed") == "true"


@pytest.mark.parametrize(
    ("x", "y"),
    [
        ("speedup", "fid"),
        ("latency", "clip_score"),
        ("drift", "fid"),
        ("step_compression", "clip_score"),
    ],
)
def test_the_front_is_that_of_the_sweep_on_any_axes(
    any_axes: Page, folder: Path, x: str, y: str
) -> None:
    page = any_axes
    across, up = page.locator("#controls select").all()[:2]
    across.select_option(x)
    up.select_option(y)
    expected = [record.number for record in front_of(folder, x, y)]
    assert on_front(page) == set(expected)


@pytest.mark.parametrize("viewport", [DESK, PHONE], ids=["desk", "phone"])
def test_names_lie_next_to_their_points(
    open_page: Open, folder: Path, viewport: ViewportSize
) -> None:
    page = open_page(folder, viewport=viewport)
    boxes = "all => all.map((one) => one.getBoundingClientRect()).map((r) => [r.left, r.top, r.right, r.bottom])"
    names = page.locator("#chart .labels text").evaluate_all(boxes)
    points = page.locator("#chart .point .mark").evaluate_all(boxes)
    frame = page.locator("#chart > svg").bounding_box()
    assert frame is not None
    assert len(names) > 4
    for index, (left, top, right, bottom) in enumerate(names):
        assert frame["x"] <= left < right <= frame["x"] + frame["width"]
        middle = (left + right) / 2, (top + bottom) / 2
        others = [*points, *names[:index]]
        assert not [x for x, y, x1, y1 in others if x < middle[0] < x1 and y < middle[1] < y1]
    assert page.locator("#chart .labels line").count() == 0


def test_a_distance_to_vanillas_images_has_the_lossless_trials_level(
    open_page: Open, folder: Path
) -> None:
    page = open_page(folder)
    assert page.locator(".level, .level-note").count() == 0
    page.locator("#controls select").nth(1).select_option("drift")
    sweep = Sweep.open(folder)
    rows = sweep.front(
        "speedup", "drift", where=["lossless"], everything=True, feasible=False
    ).to_pylist()
    rows = [row for row in rows if row["number"] != 0]
    values = sorted(row["drift"] for row in rows)
    assert len(values) > 1
    note, band = page.locator(".level-note").inner_text(), page.locator(".level").bounding_box()
    assert f"lossless trials: {values[0]:.2f} to {values[-1]:.2f}" in note
    assert band is not None
    for row in rows:
        middle = point(page, row["number"]).locator(".halo").bounding_box()
        assert middle is not None
        y = middle["y"] + middle["height"] / 2
        assert band["y"] <= y <= band["y"] + band["height"]


def test_a_point_beneath_the_halo_of_another_is_chosen(open_page: Open, tmp_path: Path) -> None:
    """Two lossless settings have one fid: of nearly equal speeds, each is clicked where it is."""
    records = write_sweep(tmp_path, trials=6, failed=())
    storage = Storage(tmp_path)
    for record in records[:2]:
        speed = replace(record.metrics["speedup"], value=2.0 + 0.02 * record.number)
        write_trial(storage, replace(record, metrics={**record.metrics, "speedup": speed}))
    write_report(storage)
    page = open_page(tmp_path)
    places = [point(page, number).locator(".halo").bounding_box() for number in (0, 1)]
    middles = []
    for place in places:
        assert place is not None
        middles.append((place["x"] + place["width"] / 2, place["y"] + place["height"] / 2))
    (x, y), (other, level) = middles
    assert abs(x - other) < 12
    assert y == pytest.approx(level, abs=0.5)
    for number, (across, up) in enumerate(middles):
        above = page.evaluate(
            "([x, y]) => document.elementFromPoint(x, y).closest('.point')?.dataset.trial",
            [across, up],
        )
        assert above == str(number)
        page.mouse.click(across, up)
        assert point(page, number).get_attribute("aria-pressed") == "true"


def test_the_legend_hides_a_kind_and_the_front_is_of_the_rest(
    open_page: Open, folder: Path
) -> None:
    page = open_page(folder)
    before = page.locator(".point").count()
    button = page.locator('.kind[data-kind="additive"]')
    assert button.get_attribute("aria-pressed") == "true"
    assert "codes most similar" in (button.get_attribute("title") or "")
    button.click()
    assert page.locator('.kind[data-kind="additive"]').get_attribute("aria-pressed") == "false"
    rest = Sweep.open(folder).front("speedup", "fid", where=["acceptance.neighbourhood!=additive"])
    assert on_front(page) == set(rest["number"].to_pylist())
    page.locator('.kind[data-kind="additive"]').click()
    assert page.locator(".point").count() == before


def test_a_header_sorts_by_number_and_says_so(open_page: Open, folder: Path) -> None:
    page = open_page(folder)
    header = page.locator('#table th[data-key="fid"]')
    assert header.get_attribute("aria-sort") == "none"
    header.locator("button").click()
    assert page.locator('#table th[data-key="fid"]').get_attribute("aria-sort") == "ascending"
    values = numbers_in(column(page, "fid"))
    assert len(values) == 23
    assert values == sorted(values)
    assert column(page, "fid")[-1] == "–", "the failed trial comes last"
    page.locator('#table th[data-key="speedup"] button').click()
    assert (
        page.locator('#table th[data-key="speedup"]').get_attribute("aria-sort") == "descending"
    ), "the best first"
    assert page.locator('#table th[data-key="fid"]').get_attribute("aria-sort") == "none"
    speeds = numbers_in(column(page, "speedup"))
    assert speeds == sorted(speeds, reverse=True)
    page.locator('#table th[data-key="number"] button').click()
    assert column(page, "number") == [str(number) for number in range(24)], "10 comes after 9"


def test_the_table_is_narrowed_by_words_and_conditions(open_page: Open, folder: Path) -> None:
    page = open_page(folder)
    records = Sweep.open(folder).records
    page.locator("input[type=search]").fill("chain fid<5")
    expected = [
        str(record.number)
        for record in records
        if record.config is not None
        and record.config.policy.kind == "chain"
        and "fid" in record.metrics
        and record.metrics["fid"].value < 5
    ]
    assert expected
    assert column(page, "number") == expected
    page.locator("input[type=search]").fill("")
    page.get_by_role("button", name="front only").click()
    assert {int(number) for number in column(page, "number")} == on_front(page)
    page.locator("input[type=search]").fill("nothing")
    assert "No trial matches" in page.locator("#table").inner_text()


@pytest.mark.parametrize(
    "query",
    [
        "tree.depth>=4", "acceptance.neighbourhood=additive", "tree.policy!=chain", "acceptance.k in 50,100",
        "acceptance.k in 50, 100", "drift<1.2", "lossless=true", "feasible=false",
        "tree.policy=dynamic and fid<5", "label=vanilla", "acceptance.k in 50,100 and drift<=1.5 and feasible=true",
        "lossless", "not lossless and front", "not front",
        "front and lossless=false and fid<9", "not feasible and number>3", "feasible in true and tree.policy=chain",
        "tree.policy=chain or drift<1.2 and not lossless", "lossless or front", "number=3 or label in vanilla",
        "step compression>=1.5", "drift<1.5 and clip score >= 29 and # not in 3,4", "trial=5 or time<0",
    ],
)  # fmt: skip
def test_the_table_filters_as_the_commands_do(filtered: Page, folder: Path, query: str) -> None:
    filtered.locator("#filter").fill(query)
    expected = Sweep.open(folder).trials([query], ["number"])["number"].to_pylist()
    assert 0 < len(expected) < 24
    assert [int(number) for number in column(filtered, "number")] == expected


@pytest.mark.parametrize(
    "limit",
    [
        "fid <= 1.2 * vanilla",
        "fid<=vanilla+0.5",
        "fid <= vanilla*1.1 - 0.2",
        "clip_score>=0.95*vanilla",
        "fid≤5",
    ],
)
def test_the_table_takes_limits_as_the_commands_do(
    filtered: Page, folder: Path, limit: str
) -> None:
    front = front_of_candidates(folder, limit)
    filtered.locator("#filter").fill(f"{limit} and state=complete feasible=true")
    shown = [int(number) for number in column(filtered, "number")]
    assert 0 < len(front) < 22
    assert [number for number in shown if number != REPEATED] == front


@pytest.mark.parametrize(
    ("query", "parts"),
    [
        ("tree.dept>=4", ["no column tree.dept", "tree.depth"]),
        ("nonsense=1 or lossless", ["no column nonsense"]),
        ("fid<= or lossless", ["fid", "number", "missing after <="]),
        ("tree.policy<chain", ["tree.policy", "text"]),
        ("fid<low", ["fid", "numbers", "low"]),
        ("fid<", ["fid", "number", "missing after <"]),
        ("fid<=", ["fid", "number", "missing after <="]),
        ("fid <= and lossless", ["fid", "number", "missing after <="]),
        ("fid≤", ["fid", "number", "missing after ≤"]),
        ("fid!", ["fid!", "KEY<=VALUE"]),
        ("fid<=1.2*", ["fid", "1.2*", "vanilla"]),
        ("fid <= 1.2 *", ["*", "missing"]),
        ("fid <= vanilla +", ["+", "missing"]),
        ("fid=<5", ["fid=<5", "KEY<=VALUE"]),
        ("acceptance.k>=", ["acceptance.k", "number", "missing"]),
        ("acceptance.k in", ["acceptance.k", "number", "missing after in"]),
        ("acceptance.k in 50,", ["acceptance.k", "number", "missing"]),
        ("acceptance.k not in 50, and lossless", ["acceptance.k", "number", "missing"]),
        ("lossless=", ["lossless", "true or false", "missing after ="]),
        ("lossless in", ["lossless", "true or false", "missing after in"]),
        ("tree.policy=", ["tree.policy", "text", "missing after ="]),
        ("label='two words", ["'two", "closing '"]),
        ("fid<vanilla", ["fid", "<= or >="]),
        ("fid<=2*vanilla*3", ["fid", "1.2*vanilla"]),
        ("fid<=0*vanilla", ["fid", "1.2*vanilla"]),
        ("drift<=1.1*vanilla", ["drift", "0", "vanilla+X"]),
        ("lossless=maybe", ["lossless", "true or false", "maybe"]),
        ("lossless=1", ["lossless", "true or false", "1"]),
        ("lossless=constructor", ["lossless", "true or false", "constructor"]),
        ("not drafted", ["not", "lossless", "front"]),
    ],
)
def test_an_invalid_filter_says_so(filtered: Page, query: str, parts: list[str]) -> None:
    filtered.locator("#filter").fill(f"chain {query}")
    problem = filtered.locator("#filter-error").inner_text()
    assert "got =" not in problem
    assert all(part in problem for part in parts)
    assert filtered.locator("#filter").get_attribute("aria-invalid") == "true"
    assert column(filtered, "number") == []
    assert "cannot be read" in filtered.locator("#table").inner_text()
    filtered.locator("#filter").fill("")
    assert filtered.locator("#filter-error").inner_text() == ""
    assert len(column(filtered, "number")) == 24


def test_a_metric_has_its_key_and_what_it_is(open_page: Open, folder: Path) -> None:
    page, name = open_page(folder), "step_compression"
    page.locator(".columns summary").click()
    page.locator(f'input[data-column="{name}"]').check()
    notes = [
        page.locator(f'#table th[data-key="{name}"] button').get_attribute("title"),
        page.locator("#card dt span", has_text="step compression").get_attribute("title"),
    ]
    assert notes == [f"{name}: {METRICS[name]['about']}"] * 2


def test_columns_are_chosen(open_page: Open, folder: Path) -> None:
    page, record = open_page(folder), Sweep.open(folder).records[2]
    assert page.locator('#table th[data-key="acceptance.k"]').count() == 0
    page.locator(".columns summary").click()
    page.locator('input[data-column="acceptance.k"]').check()
    page.locator('input[data-column="drafter"]').uncheck()
    assert record.config is not None
    assert column(page, "acceptance.k")[2] == str(record.config.flat()["acceptance.k"])
    assert column(page, "acceptance.k")[0] == "–"
    assert page.locator('#table th[data-key="drafter"]').count() == 0


def test_the_choice_of_columns_closes_as_popovers_do(open_page: Open, folder: Path) -> None:
    page = open_page(folder)
    box, button = page.locator(".columns"), page.locator(".columns summary")

    def open_it() -> None:
        button.click()
        page.locator('input[data-column="label"]').focus()
        assert box.evaluate("box => box.open")

    point(page, 2).click(force=True)
    open_it()
    page.keyboard.press("Escape")
    assert not box.evaluate("box => box.open")
    assert button.evaluate("button => button === document.activeElement")
    assert page.locator(".point.active").count() == 1, "Escape closes one thing"
    page.keyboard.press("Escape")
    assert page.locator(".point.active").count() == 0
    open_it()
    page.locator('input[data-column="label"]').check()
    assert box.evaluate("box => box.open"), "a click inside leaves it open"
    page.locator("#notes-title").click()
    assert not box.evaluate("box => box.open")
    assert button.evaluate("button => button === document.activeElement")
    open_it()
    page.locator("#filter").click()
    assert not box.evaluate("box => box.open")
    assert page.locator("#filter").evaluate("field => field === document.activeElement"), (
        "it took the focus"
    )
    open_it()
    button.click()
    assert not box.evaluate("box => box.open")


def test_on_paper_the_page_keeps_its_names_and_fits(open_page: Open, folder: Path) -> None:
    page = open_page(folder, viewport={"width": 720, "height": 1000})
    page.emulate_media(media="print")
    for part in ("fastest", "lossless", "knee"):
        assert page.locator(f"#{part} .chosen .link").is_visible()
    numbers = page.locator("#table tbody th .link")
    assert numbers.count() > 10
    assert all(number.is_visible() for number in numbers.all())
    for control in ("#bar", ".copy", "#filter", ".columns", "nav"):
        assert not page.locator(control).first.is_visible()
    assert page.evaluate("document.documentElement.scrollWidth") <= 720


def test_the_table_fits_or_scrolls_beside_its_first_columns(open_page: Open, folder: Path) -> None:
    page = open_page(folder, viewport={"width": 1280, "height": 800})
    table, first = page.locator("#table"), page.locator("#table tbody th").first
    assert table.evaluate("frame => frame.scrollWidth <= frame.clientWidth")
    assert page.locator("#table.goes-on").count() == 0
    page.locator(".columns summary").click()
    for name in ("latency", "drift", "step_compression", "drafter"):
        page.locator(f'input[data-column="{name}"]').set_checked(True)
    page.locator("#table.goes-on").wait_for()
    before = first.bounding_box()
    table.evaluate("frame => { frame.scrollLeft = frame.scrollWidth; }")
    page.locator("#table:not(.goes-on)").wait_for()
    assert first.bounding_box() == before


def test_a_row_leads_to_its_point(open_page: Open, folder: Path) -> None:
    page, record = open_page(folder), front_of(folder, "speedup", "fid")[1]
    page.get_by_role("button", name=f"Show trial {record.number} in the plot").click()
    assert page.locator("#card").get_attribute("data-trial") == str(record.number)
    assert (
        page.locator(f'#table tr[data-trial="{record.number}"]').get_attribute("class") == "active"
    )


def test_a_setting_is_copied(open_page: Open, folder: Path) -> None:
    import yaml

    page = open_page(folder, permissions=["clipboard-read", "clipboard-write"])
    record = front_of(folder, "speedup", "fid")[-1]
    point(page, record.number).press("Enter")
    page.locator("#card .copy").click()
    assert (
        DecodingConfig.from_mapping(yaml.safe_load(page.evaluate("navigator.clipboard.readText()")))
        == record.config
    )
    assert page.locator("#card .copy").inner_text() == "Copied"


def test_a_setting_is_copied_where_the_clipboard_is_closed(open_page: Open, folder: Path) -> None:
    page = open_page(folder)
    page.evaluate("""() => {
        navigator.clipboard.writeText = () => Promise.reject(new Error("not allowed"));
        document.addEventListener("copy", () => { window.copied = document.activeElement.value; });
    }""")
    page.locator("#card summary").click()
    page.locator("#card .copy").click()
    page.locator("#card .copy", has_text="Copied").wait_for()
    assert page.evaluate("window.copied") == page.locator("#card pre").inner_text()


def test_failures_and_repetitions(untouched: Page) -> None:
    page = untouched
    assert "OutOfMemoryError: at batch 24" in page.locator("#failed").inner_text()
    assert point(page, 7).count() == 0
    assert point(page, REPEATED).count() == 0, "the same numbers are drawn once"
    assert "duplicate of 5" in page.locator(f'#table tr[data-trial="{REPEATED}"]').inner_text()


def test_stopped_trials_are_listed_and_not_plotted(open_page: Open, tmp_path: Path) -> None:
    write_sweep(tmp_path, trials=12, failed=(), stopped={9: 2})
    write_report(Storage(tmp_path))
    page = open_page(tmp_path)
    assert "trial 2 is better in both" in page.locator("#stopped").inner_text()
    assert page.locator("#failed").is_hidden()
    assert point(page, 9).count() == 0
    assert "stopped" in page.locator('#table tr[data-trial="9"]').inner_text()
    page.locator('#table th[data-key="speedup"] button').click()
    last = page.locator("#table tbody tr").last.get_attribute("data-trial")
    assert last == "9", "99x on half of the images is not the best"


def test_the_card_says_why_its_trial_is_not_in_the_plot(open_page: Open, folder: Path) -> None:
    page = open_page(folder)
    status, shown = (
        page.locator("#card .front-status"),
        page.locator("#card").get_attribute("data-trial"),
    )
    assert "on the front" in status.inner_text()
    number = int(str(shown).rpartition("#")[2])
    record = next(record for record in Sweep.open(folder).records if record.number == number)
    assert record.config is not None
    kind = family(record.config)
    page.locator(f'.kind[data-kind="{kind}"]').click()
    assert page.locator("#card").get_attribute("data-trial") == shown, "still recommended"
    assert f"hides {kind}" in status.inner_text()
    assert "front" not in status.inner_text()
    page.locator(f'.kind[data-kind="{kind}"]').click()
    assert "on the front" in status.inner_text()


def test_neighbours_within_error_are_named(untouched: Page, folder: Path) -> None:
    page, front = untouched, Sweep.open(folder).front("speedup", "fid")
    rows = front.select(["number", "label", "distinct_from_next"]).to_pylist()
    names = [trial_title(row["number"], row["label"]) for row in rows]
    unclear = {
        (a, b): 2 - len(row["distinct_from_next"])
        for a, b, row in zip(names, names[1:], rows, strict=False)
    }
    text = page.locator("#within-error").inner_text()
    assert any(unclear.values())
    for (a, b), count in unclear.items():
        assert (f"{a} and {b}" in text) == (count > 0)
    neither = page.locator("#within-error li", has_text="In both speedup and fid").all_inner_texts()
    for (a, b), count in unclear.items():
        assert any(f"{a} and {b}" in line for line in neither) == (count == 2)


def test_hostile_text_does_nothing(open_page: Open, tmp_path: Path) -> None:
    records = write_drawn_sweep(tmp_path, [HOSTILE] * 3, trials=9, about=HOSTILE, target=HOSTILE)
    storage = Storage(tmp_path)
    for record in records:
        write_trial(
            storage,
            replace(record, label=HOSTILE, cause=HOSTILE if record.state == "failed" else None),
        )
    sweep = Sweep.open(storage)
    named = replace(sweep, identity=replace(sweep.identity, name=HOSTILE))  # which readers refuse
    (tmp_path / REPORT).write_text(render(page_data([named])), "utf-8")
    page = open_page(tmp_path)
    page.locator(".point.front").first.click()
    assert page.locator("#card h3").inner_text().partition(", ")[2] == HOSTILE
    assert page.locator("h1").inner_text() == HOSTILE
    assert page.locator(".cause").inner_text() == HOSTILE
    caption = page.locator("#image-panel figcaption").first
    assert caption.evaluate("caption => caption.firstChild.data") == HOSTILE
    assert page.evaluate("window.broken") is None
    assert page.locator("img:not([src^='data:'])").count() == 0
    assert page.locator("script").count() == 3


def test_the_page_cannot_be_made_to_run_or_fetch(open_page: Open, folder: Path) -> None:
    """Even if markup did come in, the page's policy would stop it."""
    page = open_page(folder, expected=("Content Security Policy", "http://127.0.0.1:1/"))
    outcome = page.evaluate("""async () => {
        const refused = [];
        document.addEventListener("securitypolicyviolation", (event) => refused.push(event.effectiveDirective));
        const holder = document.createElement("div");
        document.body.append(holder);
        holder.innerHTML = '<a onclick="window.broken=1">x</a>';
        holder.firstChild.click();
        await fetch("http://127.0.0.1:1/").catch(() => null);
        new Image().src = "http://127.0.0.1:1/pixel.png";
        for (let looks = 0; refused.length < 3 && looks < 6000; looks += 1)
          await new Promise((done) => setTimeout(done, 10));
        return [refused, window.broken ?? null];
    }""")
    assert outcome == [["script-src-attr", "connect-src", "img-src"], None]


def luminance(page: Page, selector: str, style: str) -> float:
    colour = page.locator(selector).first.evaluate(f"element => getComputedStyle(element).{style}")
    red, green, blue = (float(part) for part in colour[colour.index("(") + 1 : -1].split(",")[:3])
    return (0.2126 * red + 0.7152 * green + 0.0722 * blue) / 255


def test_dark_and_light(open_page: Open, folder: Path) -> None:
    dark, light = open_page(folder, color_scheme="dark"), open_page(folder, color_scheme="light")
    for page, is_dark in ((dark, True), (light, False)):
        assert (luminance(page, "body", "backgroundColor") < 0.2) == is_dark
        assert (luminance(page, "body", "color") > 0.7) == is_dark
        assert (luminance(page, ".plot [aria-label='x-axis label'] text", "fill") > 0.7) == is_dark
        assert (luminance(page, "#aside", "backgroundColor") < 0.2) == is_dark


def test_on_a_phone(open_page: Open, folder: Path) -> None:
    page, record = (
        open_page(folder, viewport=PHONE, has_touch=True),
        front_of(folder, "speedup", "fid")[3],
    )
    assert page.evaluate("document.documentElement.scrollWidth") == PHONE["width"]
    speeds = page.locator('#table th[data-key="speedup"]').bounding_box()
    assert speeds is not None
    assert speeds["x"] + speeds["width"] <= PHONE["width"], "beside the settings, without scrolling"
    point(page, record.number).tap()
    frame, chart = page.locator("#aside").bounding_box(), page.locator("#chart").bounding_box()
    assert frame is not None
    assert chart is not None
    assert frame["x"] >= 0
    assert frame["x"] + frame["width"] <= PHONE["width"]
    assert chart["y"] + chart["height"] <= frame["y"] + 1, "the plot stays in sight"
    assert frame["y"] + frame["height"] <= PHONE["height"]


def test_a_tap_shows_a_trial_and_a_second_one_pins_it(open_page: Open, folder: Path) -> None:
    page = open_page(folder, viewport=PHONE, has_touch=True, is_mobile=True)
    first, second = (record.number for record in front_of(folder, "speedup", "fid")[:4:3])
    aside = page.locator("#aside")
    point(page, first).tap()
    assert "click" not in aside.inner_text().lower()
    assert point(page, first).get_attribute("aria-pressed") == "false"
    close = aside.locator("#card .close")
    frame = close.bounding_box()
    assert frame is not None
    assert min(frame["width"], frame["height"]) >= 44
    close.tap()
    assert aside.is_hidden()
    assert page.evaluate("document.activeElement.dataset.trial") == str(first)
    point(page, first).tap()
    aside.get_by_role("button", name="Tap to pin").tap()
    assert point(page, first).get_attribute("aria-pressed") == "true"
    point(page, second).tap()
    assert page.locator("#card").get_attribute("data-trial") == str(second)
    point(page, second).tap()
    assert page.locator("#pins thead th").count() == 2
    page.evaluate("window.scrollTo(0, 0)")
    page.locator("#bar").evaluate(
        "bar => { bar.value = 1.3; bar.dispatchEvent(new Event('input')); }"
    )
    assert page.evaluate("window.scrollY") == 0, "only a tap moves the page"
    page.keyboard.press("Escape")
    assert aside.is_hidden()


@pytest.mark.parametrize("viewport", [DESK, PHONE], ids=["desk", "phone"])
def test_labels_do_not_cover_each_other(
    open_page: Open, folder: Path, viewport: ViewportSize
) -> None:
    page = open_page(folder, viewport=viewport)
    frames = page.locator(".labels text, .bar-name").evaluate_all(
        "all => all.map((one) => one.getBoundingClientRect().toJSON())"
    )
    assert len(frames) >= 5
    for i, a in enumerate(frames):
        for b in frames[i + 1 :]:
            beside = a["right"] <= b["left"] or b["right"] <= a["left"]
            assert beside or a["bottom"] <= b["top"] or b["bottom"] <= a["top"], (a, b)


def test_a_sweep_without_trials(open_page: Open, tmp_path: Path) -> None:
    write_sweep(tmp_path, trials=0)
    write_report(Storage(tmp_path))
    page = open_page(tmp_path)
    assert "No visible trial" in page.locator("#chart").inner_text()
    assert "No setting is on the front" in page.locator("#answer").inner_text()
