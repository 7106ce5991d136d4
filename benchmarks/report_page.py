"""How fast the report of a large sweep is in a browser, against a small one's on the same machine.

    python -m benchmarks.report_page [--trials 1000] [--browser chromium]

Opens the pages of two made sweeps in turn, five times each: the time from the navigation to the
first paint. Then, on the large one, how long the page takes to be laid out again after a pointer's
move to a trial, after a move of the quality bar and after a filter, each the median of nine. It
needs playwright, and a browser that it can drive.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.scale import make_store, sweep_of
from orchestrator.report.page import write_report
from workers.data.storage import Storage

SMALL, OPENINGS = 24, 5
POINT = """
  const point = document.querySelectorAll(".point")[round * 7];
  const { x, y, width, height } = point.getBoundingClientRect();
  const place = { clientX: x + width / 2, clientY: y + height / 2 };
  document.getElementById("chart").dispatchEvent(new PointerEvent("pointermove", place));"""
BAR = """
  const bar = document.getElementById("bar");
  bar.value = 1 + round / 20;
  bar.dispatchEvent(new Event("input"));"""
WORDS = """
  const filter = document.getElementById("filter");
  filter.value = `number>=${round}`;
  filter.dispatchEvent(new Event("input"));"""
ACTIONS = {
    "a pointer's move to a trial": POINT,
    "a move of the quality bar": BAR,
    "a filter": WORDS,
}


def make_report(folder: Path, trials: int) -> str:
    """The address of the report of a new sweep."""
    sweep = replace(sweep_of(trials, 1), name=f"of-{trials}")
    make_store(sweep, folder)
    write_report(Storage(folder / sweep.name))
    return (folder / sweep.name / "report.html").as_uri()


@contextmanager
def opened(browser: Any, address: str) -> Iterator[Any]:
    page = browser.new_page(viewport={"width": 1400, "height": 900}, reduced_motion="reduce")
    page.goto(address)
    page.locator("body[data-ready]").wait_for(state="attached")
    yield page
    page.close()


def first_paint(browser: Any, address: str) -> float:
    """Milliseconds."""
    with opened(browser, address) as page:
        return float(
            page.evaluate(
                "() => performance.getEntriesByName('first-contentful-paint')[0].startTime"
            )
        )


def layout_time(page: Any, action: str) -> float:
    """Milliseconds until the page is laid out again after an action: the median of nine."""
    script = f"""() => Array.from({{ length: 9 }}, (_, round) => {{
      const start = performance.now();
      {action}
      document.body.offsetHeight;
      return performance.now() - start;
    }})"""
    return float(statistics.median(page.evaluate(script)))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--trials", type=int, default=1000)
    parser.add_argument(
        "--browser", default="/usr/bin/chromium", help="the program (default: %(default)s)"
    )
    args = parser.parse_args()
    from playwright.sync_api import sync_playwright

    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        small, large = (make_report(Path(folder), trials) for trials in (SMALL, args.trials))
        browser = playwright.chromium.launch(
            executable_path=args.browser, args=["--headless=new", "--no-sandbox"]
        )
        paints = [
            (first_paint(browser, small), first_paint(browser, large)) for _ in range(OPENINGS)
        ]
        before, after = (statistics.median(column) for column in zip(*paints, strict=True))
        print(f"first paint: {after:.0f} ms, with {SMALL} trials {before:.0f} ms")
        with opened(browser, large) as page:
            for name, action in ACTIONS.items():
                print(f"{name}: {layout_time(page, action):.1f} ms")
        browser.close()


if __name__ == "__main__":
    main()
