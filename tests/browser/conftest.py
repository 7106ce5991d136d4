"""Opens the pages that the project writes in the real browser of tests/conftest.py."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import pytest
from filelock import FileLock

from orchestrator.report.page import write_report
from orchestrator.store.files import REPORT
from tests.browser.report_pages import DESK, DRAWN, Open
from tests.fakes.drawn_sweeps import write_drawn_sweep
from workers.data.storage import Storage

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
    """Opens a sweep's report, at its address with these choices; fails the test if the page asks
    for anything, reports an error or opens a dialog.
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


@pytest.fixture(scope="session")
def drawn(shared_folder: Path) -> Path:
    """A sweep with everything that a page can have, and its report: once for all test processes,
    because its thousand images take seconds.
    """
    folder = shared_folder / "drawn"
    with FileLock(shared_folder / "drawn.lock"):
        if not (folder / REPORT).exists():
            write_drawn_sweep(
                folder, DRAWN, trials=24, seed=3, stopped={9: 2}, about="What it is about."
            )
            write_report(Storage(folder))
    return folder


@contextmanager
def _opener(pool: PagePool) -> Iterator[Open]:
    wrong: list[str] = []
    with ExitStack() as pages:

        def opened(
            folder: Path,
            viewport: ViewportSize = DESK,
            color_scheme: Literal["light", "dark"] = "light",
            expected: tuple[str, ...] = (),
            choices: str = "",
            **options: Any,
        ) -> Page:
            page = pages.enter_context(pool.page(**options))
            page.set_viewport_size(viewport)
            page.emulate_media(media="null", color_scheme=color_scheme, reduced_motion="reduce")
            address = (folder / REPORT).as_uri()
            pages.enter_context(_watched(page, address, wrong, expected))
            page.goto(f"{address}#{choices}" if choices else address)
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
    page.goto("about:blank")  # all events of the report arrive before this returns
    for event, listener in listeners.items():
        page.remove_listener(event, listener)
