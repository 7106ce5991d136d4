"""What the tests of the report in a browser share: sizes of screens, and what they read off the
page.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator.store.records import TrialRecord
from specfrontier import Sweep
from tests.fakes.drawn_sweeps import captions

if TYPE_CHECKING:
    from playwright.sync_api import Locator, Page, ViewportSize

Open = Callable[..., "Page"]
DRAWN = captions(50)  # of the `drawn` sweep
DESK: ViewportSize = {"width": 1400, "height": 900}
PHONE: ViewportSize = {"width": 390, "height": 844}


def point(page: Page, number: int) -> Locator:
    return page.locator(f'.point[data-trial="{number}"]')


def front_of(folder: Path, x: str, y: str) -> list[TrialRecord]:
    sweep = Sweep.open(folder)
    numbers = sweep.front(x, y)["number"].to_pylist()
    return [sweep.records[number] for number in numbers]


def on_front(page: Page) -> set[int]:
    return set(map(int, trials_of(page.locator(".point.front"))))


def trials_of(elements: Locator) -> list[str]:
    """The trials that these elements are of."""
    found: list[str] = elements.evaluate_all("all => all.map((one) => one.dataset.trial)")
    return found


def settle(page: Page) -> None:
    """Wait until the page has done what it does soon after a choice, such as writing its address:
    timers of a page end in the order of their moments, however slow the machine is.
    """
    page.evaluate("() => new Promise((done) => setTimeout(done, 400))")
