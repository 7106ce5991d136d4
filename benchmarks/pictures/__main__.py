"""The pictures of docs/how_it_works.md, from real runs of the built-in model.

    python -m benchmarks.pictures                  # run the model, and draw: a minute on a CPU
    python -m benchmarks.pictures --only window    # of these pictures alone
    python -m benchmarks.pictures --draw           # draw what was measured before

What was measured is in benchmarks/results/pictures.json, the pictures are in
docs/images/how_it_works. The costs of passes are this machine's; all other facts are the same on
every machine, to rounding.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from benchmarks.pictures import (
    budget,
    chain,
    cost,
    exact,
    neighbourhood,
    rows,
    tree,
    vanilla,
    window,
)
from benchmarks.pictures.svg import Picture
from workers.loading.models import Models
from workers.loading.models_yaml import load_folder

FACTS = Path(__file__).parents[1] / "results" / "pictures.json"
FOLDER = Path(__file__).parents[2] / "docs" / "images" / "how_it_works"
MEASURES: Mapping[str, Callable[[Models], dict[str, Any]]] = {
    "vanilla": vanilla.measure,
    "chain": chain.measure,
    "tree": tree.measure,
    "window": window.measure,
    "exact": exact.measure,
    "neighbourhood": neighbourhood.measure,
    "budget": budget.measure,
    "rows": rows.measure,
    "cost": cost.measure,
}
# files by name: whose facts, and what draws them
DRAWINGS: Mapping[str, tuple[str, Callable[[dict[str, Any]], Picture]]] = {
    "vanilla": ("vanilla", vanilla.draw),
    "chain": ("chain", chain.draw),
    "tree": ("tree", tree.draw),
    "window": ("window", window.draw),
    "window_stills": ("window", window.draw_stills),
    "exact": ("exact", exact.draw),
    "neighbourhood": ("neighbourhood", neighbourhood.draw),
    "budget": ("budget", budget.draw),
    "rows": ("rows", rows.draw),
    "cost": ("cost", cost.draw),
}


def drawings(facts: Mapping[str, dict[str, Any]]) -> Iterator[tuple[str, str]]:
    """Name and SVG of every picture."""
    for name, (source, draw) in DRAWINGS.items():
        yield f"{name}.svg", str(draw(facts[source]))


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.pictures",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--only", nargs="+", choices=tuple(MEASURES), default=tuple(MEASURES))
    parser.add_argument("--draw", action="store_true", help="measure nothing")
    args = parser.parse_args()
    facts = json.loads(FACTS.read_text("utf-8")) if FACTS.exists() else {}
    if not args.draw:
        models = load_folder()
        for name in args.only:
            print(name, flush=True)
            facts[name] = MEASURES[name](models)
        rows = {name: facts[name] for name in MEASURES if name in facts}
        FACTS.write_text(json.dumps(rows, indent=1) + "\n", "utf-8")
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name, text in drawings(facts):
        (FOLDER / name).write_text(text, "utf-8")


if __name__ == "__main__":
    main()
