"""The page of a sweep that runs, served by `report --serve`, in a browser: it follows the sweep and
keeps its state.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from orchestrator.store.records import write_trial
from specfrontier import Sweep
from tests.browser.report_pages import DESK, on_front, point, settle
from tests.fakes.synthetic_sweeps import write_sweep
from workers.data.storage import Storage

if TYPE_CHECKING:
    from playwright.sync_api import Browser

COMMAND = (sys.executable, "-c", "from orchestrator.cli.app import main; main()", "report")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_sweep(tmp_path, trials=24, seed=3, shards=True)
    return tmp_path


@pytest.fixture
def address(folder: Path) -> Iterator[str]:
    with subprocess.Popen(
        [*COMMAND, str(folder), "--serve"], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        yield process.stdout.readline().strip()
        process.kill()


def test_the_page_reloads_with_new_trials_and_keeps_what_its_reader_chose(
    browser: Browser, folder: Path, address: str
) -> None:
    page = browser.new_page(viewport=DESK, reduced_motion="reduce")
    asked, wrong = list[str](), list[str]()
    page.on("request", lambda request: asked.append(request.url))
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("console", lambda message: wrong.append(message.text))
    page.goto(address)
    page.locator("body[data-ready]").wait_for(state="attached")
    pinned = min(on_front(page))
    point(page, pinned).press("Enter")
    page.get_by_role("button", name="error bars").click()
    page.locator("#filter").fill("tree.policy=chain")
    page.evaluate("window.scrollTo(0, 700)")
    settle(page)
    chosen, shown = page.url, page.locator("#shown").inner_text()
    assert "24 trials" in shown
    record = Sweep.open(folder).records[2]
    write_trial(Storage(folder), replace(record, number=24, label="a late one"))
    page.locator("#shown", has_text="25 trials").wait_for()
    page.locator("body[data-ready]").wait_for(state="attached")
    assert page.url == chosen
    assert page.locator("#filter").input_value() == "tree.policy=chain"
    assert point(page, pinned).get_attribute("aria-pressed") == "true"
    assert page.get_by_role("button", name="error bars").get_attribute("aria-pressed") == "false"
    assert page.evaluate("window.scrollY") == 700
    assert {re.sub(r"#.*", "", url) for url in asked if not url.startswith("data:")} == {
        address,
        f"{address}version",
    }
    assert wrong == []
    page.close()


def test_a_served_page_that_is_kept_as_a_file_asks_for_nothing(
    browser: Browser, folder: Path, address: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    page = browser.new_page(viewport=DESK)
    file = tmp_path_factory.mktemp("kept") / "kept.html"
    answer = page.goto(address)
    assert answer is not None
    file.write_bytes(answer.body())
    kept, asked = browser.new_page(), list[str]()
    kept.on("request", lambda request: asked.append(request.url))
    kept.clock.install()
    kept.goto(file.as_uri())
    kept.clock.run_for(60_000)
    kept.locator("body[data-ready]").wait_for(state="attached")
    assert [url for url in asked if not url.startswith("data:")] == [file.as_uri()]
    for opened in (page, kept):
        opened.close()
