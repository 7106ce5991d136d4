"""Opens the pages that the project writes in the real browser of tests/conftest.py."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import pytest

from tests.browser.report_pages import DESK, Open

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Dialog, Page, ViewportSize


class PagePool:
    """Blank pages of the browser. A test gets one that others have used, if there is one: a new
    page is a new process, which takes as long as it takes to load a report.
    """

    def __init__(self, browser: Browser) -> None:
        self._browser = browser
        self._idle: dict[str, list[Page]] = {}

    @contextmanager
    def page(self, **options: Any) -> Iterator[Page]:
        """A blank page that nothing else uses meanwhile, and that is to be left blank.
        options: of its context.
        """
        idle = self._idle.setdefault(repr(options), [])
        page = idle.pop() if idle else self._browser.new_context(**options).new_page()
        yield page
        for other in page.context.pages[1:]:
            other.close()
        page.mouse.move(0, 0)
        idle.append(page)


@pytest.fixture(scope="session")
def page_pool(browser: Browser) -> PagePool:
    return PagePool(browser)


@pytest.fixture
def open_page(page_pool: PagePool) -> Iterator[Open]:
    """Opens a sweep's report; fails the test if the page asks for anything, reports an error or
    opens a dialog.
    """
    with _opener(page_pool) as opened:
        yield opened


@pytest.fixture(scope="module")
def open_shared_page(page_pool: PagePool) -> Iterator[Open]:
    """As `open_page`, for pages that several tests of a module use; what they do wrong fails the
    module's last test.
    """
    with _opener(page_pool) as opened:
        yield opened


@contextmanager
def _opener(pool: PagePool) -> Iterator[Open]:
    wrong: list[str] = []
    with ExitStack() as pages:

        def opened(
            folder: Path,
            viewport: ViewportSize = DESK,
            color_scheme: Literal["light", "dark"] = "light",
            expected: tuple[str, ...] = (),
            **options: Any,
        ) -> Page:
            page = pages.enter_context(pool.page(**options))
            page.set_viewport_size(viewport)
            page.emulate_media(media="null", color_scheme=color_scheme, reduced_motion="reduce")
            address = (folder / "report.html").as_uri()
            pages.enter_context(_watched(page, address, wrong, expected))
            page.goto(address)
            page.locator("body[data-ready]").wait_for(state="attached")
            return page

        yield opened
    assert wrong == []


@contextmanager
def _watched(
    page: Page, address: str, wrong: list[str], expected: tuple[str, ...]
) -> Iterator[None]:
    """Adds to `wrong` what the page does at this address that no report does, except texts that
    have an expected part.
    """

    def note(text: str) -> None:
        if not any(part in text for part in expected):
            wrong.append(text)

    def dismiss(dialog: Dialog) -> None:
        note(dialog.message)
        dialog.dismiss()

    listeners = {
        "request": lambda r: None if r.url.startswith(("data:", address)) else note(r.url),
        "console": lambda message: note(message.text),
        "pageerror": lambda error: note(str(error)),
        "dialog": dismiss,
    }
    for event, listener in listeners.items():
        page.on(event, listener)  # type: ignore[call-overload]
    yield
    page.goto("about:blank")  # what the page has reported is heard by then
    for event, listener in listeners.items():
        page.remove_listener(event, listener)
