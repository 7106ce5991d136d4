"""A real browser for pages that the project writes: Debian's Chromium, driven by playwright."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.browser.report_pages import DESK, Open
from tests.fakes.waiting import HANG_S

if TYPE_CHECKING:
    from playwright.sync_api import Browser, BrowserContext, Dialog, Page, ViewportSize

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
ARGUMENTS = [
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-features=AutofillServerCommunication",
]


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """Started once; skips, with the reason, where there is no browser or nothing to drive it
    with.
    """
    api = pytest.importorskip(
        "playwright.sync_api", reason="playwright is not installed (pip install playwright)"
    )
    path = next((found for name in NAMES if (found := shutil.which(name))), None)
    if path is None:
        pytest.skip(
            f"no browser: none of {', '.join(NAMES)} is on the path (apt-get install chromium)"
        )
    with api.sync_playwright() as playwright:
        started = playwright.chromium.launch(
            executable_path=path, args=ARGUMENTS, timeout=1000 * HANG_S
        )
        for name in ("new_context", "new_page"):
            setattr(started, name, _patient(getattr(started, name)))
        yield started
        started.close()


def _patient(make: Callable[..., Any]) -> Callable[..., Any]:
    """Makes contexts or pages that wait for a slow machine."""

    def made(**options: Any) -> Any:
        opened = make(**options)
        opened.set_default_timeout(1000 * HANG_S)
        return opened

    return made


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
