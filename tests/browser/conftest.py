"""Opens the pages that the project writes in the real browser of tests/conftest.py."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.browser.report_pages import DESK, Open

if TYPE_CHECKING:
    from playwright.sync_api import Browser, BrowserContext, Dialog, Page, ViewportSize


@pytest.fixture
def open_page(browser: Browser) -> Iterator[Open]:
    """Opens a sweep's report; fails the test if the page asks for anything, reports an error or
    opens a dialog.
    """
    with _opener(browser) as opened:
        yield opened


@pytest.fixture(scope="module")
def open_shared_page(browser: Browser) -> Iterator[Open]:
    """As `open_page`, for pages that several tests of a module use; what they do wrong fails the
    module's last test.
    """
    with _opener(browser) as opened:
        yield opened


@contextmanager
def _opener(browser: Browser) -> Iterator[Open]:
    contexts: list[BrowserContext] = []
    wrong: list[str] = []

    def opened(
        folder: Path, viewport: ViewportSize = DESK, expected: tuple[str, ...] = (), **options: Any
    ) -> Page:
        def note(text: str) -> None:
            if not any(part in text for part in expected):
                wrong.append(text)

        def dismiss(dialog: Dialog) -> None:
            note(dialog.message)
            dialog.dismiss()

        context = browser.new_context(viewport=viewport, reduced_motion="reduce", **options)
        contexts.append(context)
        page = context.new_page()
        address = (folder / "report.html").as_uri()
        page.on("request", lambda r: None if r.url.startswith(("data:", address)) else note(r.url))
        page.on("console", lambda message: note(message.text))
        page.on("pageerror", lambda error: note(str(error)))
        page.on("dialog", dismiss)
        page.goto(address)
        page.locator("body[data-ready]").wait_for(state="attached")
        return page

    yield opened
    for context in contexts:
        context.close()
    assert wrong == []
