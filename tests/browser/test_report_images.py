"""The image comparer and the heat maps of the report."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from orchestrator.report.page import write_report
from orchestrator.store.sweep import Sweep
from tests.browser.report_pages import DRAWN, Open, front_of
from tests.fakes.drawn_sweeps import captions, write_drawn_sweep
from workers.data.storage import Storage

if TYPE_CHECKING:
    from playwright.sync_api import Page

FIGURES = """figures => figures.map((figure) => ({
    caption: figure.querySelector("figcaption").firstChild.data,
    tiles: [...figure.querySelectorAll("canvas")].map((tile) => ({ ...tile.dataset, text: tile.ariaLabel })),
}))"""


def painted(page: Page, mode: str, flipped: str = "false") -> None:
    """Wait until the tiles are in order, and painted in a mode."""
    page.locator("#image-panel .share").first.wait_for()
    page.locator(f'#image-panel[data-painted^="{mode} 0 {flipped} "]').wait_for(state="attached")


def pixels(page: Page, place: int, number: int = 0) -> list[int]:
    """The colours of a tile of the figure with this number: place 0 is vanilla's."""
    figure = page.locator("#image-panel figure").nth(number)
    found: list[int] = figure.locator(f'canvas[data-place="{place}"]').evaluate(
        "canvas => [...canvas.getContext('2d').getImageData(0, 0, canvas.width, "
        "canvas.height).data]"
    )
    return found


def figures(page: Page) -> list[dict[str, Any]]:
    """The captions that are shown, each with its tiles."""
    found: list[dict[str, Any]] = page.locator("#image-panel figure").evaluate_all(FIGURES)
    return found


def test_three_settings_are_shown_for_the_same_captions(open_page: Open, drawn: Path) -> None:
    page = open_page(drawn)
    painted(page, "side")
    page.get_by_role("button", name="most different first").click()
    page.locator("#image-panel figcaption", has_text=DRAWN[0]).wait_for()
    vanilla = Sweep.open(drawn).baseline
    assert vanilla is not None
    shown = figures(page)
    assert len(shown) > 1
    for number, figure in enumerate(shown):
        assert figure["caption"] == DRAWN[number]
        assert [tile["caption"] for tile in figure["tiles"]] == [str(number)] * 3
        trials = [tile["trial"] for tile in figure["tiles"]]
        assert len(set(trials)) == 3
        assert trials[0] == str(vanilla.number)
        assert all(DRAWN[number] in tile["text"] for tile in figure["tiles"])
    assert pixels(page, 0) != pixels(page, 1) != pixels(page, 2)
    seen = set()
    for _ in range(5):
        seen |= {figure["caption"] for figure in figures(page)}
        page.get_by_role("button", name="Next captions").click()
    assert seen == set(DRAWN), "at least 48"


def test_the_most_different_images_come_first_and_a_click_enlarges_them(
    open_page: Open, drawn: Path
) -> None:
    page = open_page(drawn)
    painted(page, "side")
    shares = [float(text.strip(" %")) for text in page.locator(".share").all_inner_texts()]
    assert shares == sorted(shares, reverse=True)
    assert shares[0] > shares[-1]
    own, vanilla = (np.array(pixels(page, place)).reshape(-1, 4)[:, :3] for place in (1, 0))
    assert shares[0] == pytest.approx(100 * np.abs(own - vanilla).mean() / 255, abs=0.06)
    tile, figure = page.locator(".triple").first, page.locator("#image-panel figure canvas").first
    before = figure.bounding_box()
    tile.press("Enter")
    after = figure.bounding_box()
    assert tile.get_attribute("aria-pressed") == "true"
    assert before is not None
    assert after is not None
    assert after["width"] > 2 * before["width"]


def test_it_says_why_lossless_images_differ(open_page: Open, drawn: Path) -> None:
    page, sweep = open_page(drawn), Sweep.open(drawn)
    lossless = {record.number for record in sweep.records if record.is_lossless(sweep.identity)}
    first, second = page.locator("#images-controls select").all()
    values = second.locator("option").evaluate_all("all => all.map((one) => Number(one.value))")
    said = set()
    for numbers in (lossless, set(values) - lossless):
        number = next(number for number in values if number in numbers)
        for choice in (first, second):
            choice.select_option(str(number))
        said.add("vanilla's distribution" in page.locator("#image-note").inner_text())
    assert said == {True, False}


def test_settings_are_chosen(open_page: Open, drawn: Path) -> None:
    page = open_page(drawn)
    member = front_of(drawn, "speedup", "fid")[0]
    page.locator("#images-controls select").nth(1).select_option(str(member.number))
    shown = page.locator("#image-panel figure").first.locator("canvas").nth(2)
    assert shown.get_attribute("data-trial") == str(member.number)
    assert member.label in page.locator(".tile-names").inner_text()


def compared(page: Page) -> list[str]:
    """The trials of the first caption's tiles."""
    tiles = page.locator("#image-panel figure").first.locator("canvas")
    shown: list[str] = tiles.evaluate_all("all => all.map((tile) => tile.dataset.trial)")
    selected = page.locator("#images-controls select").evaluate_all(
        "all => all.map((list) => list.value)"
    )
    assert shown[1:] == selected
    return shown


def test_the_recommended_setting_is_compared_until_another_is_chosen(
    open_page: Open, drawn: Path
) -> None:
    page, seen = open_page(drawn), set()
    vanilla = compared(page)[0]
    slider = page.locator("#bar")
    for key in ("Home", "End"):
        slider.press(key)
        best = page.locator("#fastest .chosen").get_attribute("data-trial")
        shown = compared(page)
        assert len(set(shown)) == 3, "vanilla, too, is drawn once"
        assert shown[0] == vanilla
        assert best in (shown[1], vanilla)
        seen.add(shown[1])
    assert len(seen) == 2
    lists = page.locator("#images-controls select")
    assert lists.locator(f'option[value="{vanilla}"]').count() == 0
    lists.nth(1).select_option(index=0)
    chosen = compared(page)
    slider.press("Home")
    assert compared(page) == chosen


def test_a_sweep_with_images_of_two_settings(open_page: Open, tmp_path: Path) -> None:
    write_drawn_sweep(tmp_path, captions(3), trials=2)
    write_report(Storage(tmp_path))
    page = open_page(tmp_path)
    assert compared(page) == ["0", "1"]
    assert page.locator(".tile-names span").count() == 2


def test_blink_shows_vanilla_in_the_same_place(open_page: Open, drawn: Path) -> None:
    page = open_page(drawn)
    painted(page, "side")
    vanilla, own = pixels(page, 0), pixels(page, 1)
    page.get_by_role("button", name="blink").click()
    page.locator("#flip").click()
    painted(page, "blink", "true")
    assert pixels(page, 1) == vanilla
    page.locator("#flip").click()
    painted(page, "blink", "false")
    assert pixels(page, 1) == own


def test_differences_are_those_of_the_pixels(open_page: Open, drawn: Path) -> None:
    page = open_page(drawn)
    painted(page, "side")
    vanilla, own = pixels(page, 0), pixels(page, 1)
    assert "3 times as strong" not in page.locator("#image-note").inner_text()
    page.get_by_role("button", name="difference").click()
    painted(page, "difference")
    assert "3 times as strong" in page.locator("#image-note").inner_text()
    expected = [
        255 if i % 4 == 3 else min(255, 3 * abs(a - b))
        for i, (a, b) in enumerate(zip(own, vanilla, strict=True))
    ]
    assert pixels(page, 1) == expected
    assert pixels(page, 0) == vanilla
    page.get_by_role("button", name="side by side").click()
    assert "3 times as strong" not in page.locator("#image-note").inner_text()


def test_zoom(open_page: Open, drawn: Path) -> None:
    page = open_page(drawn)
    tile = page.locator("#image-panel canvas").first
    before = tile.bounding_box()
    page.locator("#zoom").press("End")
    after = tile.bounding_box()
    assert before is not None
    assert after is not None
    assert after["width"] > 1.5 * before["width"]


def test_pinned_settings_lead_to_their_images(open_page: Open, drawn: Path) -> None:
    page, members = open_page(drawn), front_of(drawn, "speedup", "fid")[-2:]
    for member in members:
        page.locator(f'.point[data-trial="{member.number}"]').press("Enter")
    page.get_by_role("button", name="compare their images").click()
    shown = (
        page.locator("#image-panel figure")
        .first.locator("canvas")
        .evaluate_all("all => all.map((t) => t.dataset.trial)")
    )
    assert shown[1:] == [str(member.number) for member in members]


def test_heat_maps_have_one_scale_and_names(open_page: Open, tmp_path: Path) -> None:
    write_drawn_sweep(tmp_path, captions(3), trials=16)
    write_report(Storage(tmp_path), decode=False)
    page = open_page(tmp_path)
    assert page.locator("#heat-list .scale canvas").count() == 1
    maps = page.locator("#heat-list figure canvas")
    front = front_of(tmp_path, "speedup", "fid")
    assert maps.count() >= len(front)
    colours: dict[int, tuple[int, ...]] = {}
    for figure in page.locator("#heat-list figure").all():
        number = int(str(figure.get_attribute("data-trial")))
        canvas = figure.locator("canvas")
        colour = tuple(
            canvas.evaluate("canvas => [...canvas.getContext('2d').getImageData(3, 3, 1, 1).data]")
        )
        assert colours.setdefault(number % 3, colour) == colour, (
            "equal lengths have equal colours in all maps"
        )
        assert f"{1 + number % 3}.00 tokens per pass" in str(canvas.get_attribute("aria-label"))
    assert len(set(colours.values())) == len(colours) > 1
