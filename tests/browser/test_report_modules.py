"""The report's scripts are ES modules, and a section of the page is two files."""

from __future__ import annotations

import importlib
import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from orchestrator.report.page import page_data, render
from orchestrator.report.section import SECTIONS
from orchestrator.store.sweep import Sweep
from tests.browser.report_pages import DESK, Open
from tests.fakes.synthetic_sweeps import write_sweep

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Route

SCRIPTS = Path(__file__).parents[2] / "orchestrator" / "report"
SECTION = """
from orchestrator.report.section import SECTIONS, Section, Subject

def trial_count(subject: Subject) -> int:
    return sum(len(sweep.records) for sweep in subject.sweeps.values())

SECTIONS.add("mine", Section("My own section", 45, trial_count, link="Mine"))
"""
SCRIPT = """
import { el, show } from "../assets/dom.js";
import { plural } from "../assets/format.js";

export function draw(host, count) {
  show(host, el("p", plural(count, "trial")));
}
"""


def test_a_browser_loads_the_modules_as_they_are(
    browser: Browser, open_page: Open, tmp_path: Path
) -> None:
    """Without the bundler: so each module imports all that it uses."""
    write_sweep(tmp_path, trials=24, seed=3, shards=True)
    data = page_data([Sweep.open(tmp_path)])
    (tmp_path / "report.html").write_text(render(data), "utf-8")
    names = sorted({entry["script"] for entry in data["sections"].values()})
    imports = "".join(f'import * as {name} from "/sections/{name}.js"; ' for name in names)
    entry = f'import {{ start }} from "/assets/page.js"; {imports}start({{ {", ".join(names)} }});'
    text = re.sub(r"<meta http-equiv[^>]*>", "", render(data))
    head, _, _ = text.rpartition("<script>")

    def answer(route: Route) -> None:
        path = route.request.url.removeprefix("http://report.test/")
        if path:
            route.fulfill(body=(SCRIPTS / path).read_text("utf-8"), content_type="text/javascript")
        else:
            route.fulfill(
                body=f'{head}<script type="module">{entry}</script></body></html>',
                content_type="text/html",
            )

    page = browser.new_page(viewport=DESK, reduced_motion="reduce")
    wrong: list[str] = []
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.route("http://report.test/**", answer)
    page.goto("http://report.test/")
    page.locator("body[data-ready]").wait_for(state="attached")
    assert wrong == []
    assert page.locator("body").inner_text() == open_page(tmp_path).locator("body").inner_text()
    page.close()


def test_a_section_is_two_files(
    open_page: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "added_sections"
    folder.mkdir()
    for name, text in (("mine.py", SECTION), ("mine.js", SCRIPT)):
        (folder / name).write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    importlib.import_module("added_sections.mine")
    try:
        write_sweep(tmp_path, trials=6)
        (tmp_path / "report.html").write_text(render(page_data([Sweep.open(tmp_path)])), "utf-8")
    finally:
        del SECTIONS._entries["mine"]
    page = open_page(tmp_path)
    assert page.locator("nav a").all_inner_texts() == [
        "Images",
        "Analysis",
        "Mine",
        "Trials",
        "Setup",
    ]
    assert page.locator("#mine h2").inner_text() == "My own section"
    assert page.locator("#mine p").inner_text() == "6 trials"
    order = page.locator("main > section").evaluate_all("all => all.map((section) => section.id)")
    assert order[order.index("mine") - 1 : order.index("mine") + 2] == [
        "analysis",
        "mine",
        "trials",
    ]
