"""The presets on two targets side by side, from what `benchmarks.methods` has measured of each.

    python -m benchmarks.methods --models runs/photos --data held_out --out runs/photos/methods.json
    python -m benchmarks.methods_compared benchmarks/results/methods.json runs/photos/methods.json

Nothing is measured. The table has the figures that can be compared. The quality of two targets is
measured on other captions and real images, so a distance of the one has no meaning for the other:
of fid the table has the difference to vanilla's in its standard errors, and of drift the multiple
of the mean drift of the lossless presets, which is what other random numbers alone give. Below the
table are the rank correlation (Spearman's) of each figure over the presets, and what was not
compared.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from search_spaces.presets import PRESETS

VANILLA = "vanilla"
MIN_RANKED = 3  # presets of a rank correlation

Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Measured:
    """The results of `benchmarks.methods` on one target."""

    name: str
    facts: Mapping[str, Any]  # the machine, and the sampling
    rows: Mapping[str, Row]  # by preset
    lossless_drift: float | None  # mean drift of the lossless presets


def read_results(path: Path) -> Measured:
    """The results in a file."""
    found = json.loads(path.read_text("utf-8"))
    rows = {name: row for name, row in found["rows"].items() if name in PRESETS}
    drifts = [
        row["quality"]["drift"][0]
        for name, row in rows.items()
        if name != VANILLA and PRESETS[name].is_lossless(None) and "quality" in row
    ]
    floor = statistics.fmean(drifts) if drifts else None
    facts = {"sampling": found["sampling"], **found["machine"]}
    return Measured(found.get("models", "builtin"), facts, rows, floor)


def _timed(batch: int, key: str) -> Callable[[Row, Measured], float | None]:
    """A figure of the images timed at a batch size."""

    def read(row: Row, measured: Measured) -> float | None:
        value: float | None = row.get(f"batch_{batch}", {}).get(key)
        return value

    return read


def _gain(row: Row, measured: Measured) -> float | None:
    """fid minus vanilla's in its standard errors."""
    value, error = row.get("quality", {}).get("fid_minus_vanilla", (None, 0.0))
    return value / error if error else None


def _drift(row: Row, measured: Measured) -> float | None:
    """Drift as a multiple of the lossless presets'."""
    drift = row.get("quality", {}).get("drift")
    if drift is None or not measured.lossless_drift:
        return None
    return float(drift[0] / measured.lossless_drift)


#: The figures that can be compared: how each is read, and its digits.
FIGURES: Mapping[str, tuple[Callable[[Row, Measured], float | None], int]] = {
    "speed-up, batch 1": (_timed(1, "speedup"), 2),
    "speed-up, batch 8": (_timed(8, "speedup"), 2),
    "passes": (_timed(1, "passes"), 0),
    "accepted length": (_timed(1, "mean_accepted_length"), 2),
    "fid minus vanilla's, in errors": (_gain, 1),
    "drift over lossless drift": (_drift, 1),
}


def compared_table(first: Measured, second: Measured) -> str:
    """A Markdown table of the presets that both have, in the order of the catalogue."""
    both = [name for name in PRESETS if name in first.rows and name in second.rows]
    lines = [
        f"Each cell: {first.name} / {second.name}.",
        "",
        f"| preset | {' | '.join(FIGURES)} |",
        "|---" * (len(FIGURES) + 1) + "|",
    ]
    for name in both:
        cells = []
        for read, digits in FIGURES.values():
            values = [read(measured.rows[name], measured) for measured in (first, second)]
            cells.append(" / ".join(_number(value, digits) for value in values))
        lines.append(f"| `{name}` | {' | '.join(cells)} |")
    return "\n".join(lines)


def _number(value: float | None, digits: int) -> str:
    return "–" if value is None else f"{value:.{digits}f}"


def rank_correlations(first: Measured, second: Measured) -> dict[str, tuple[float, int]]:
    """Spearman's correlation of each figure over the presets that both have, vanilla excepted, and
    their number. Figures of fewer than `MIN_RANKED` presets, or equal for all of them, have none.
    """
    found = {}
    for figure, (read, _) in FIGURES.items():
        pairs = [
            (read(first.rows[name], first), read(second.rows[name], second))
            for name in first.rows
            if name in second.rows and name != VANILLA
        ]
        known = [(a, b) for a, b in pairs if a is not None and b is not None]
        ranks = [_ranks(values) for values in zip(*known, strict=True)]
        if len(known) >= MIN_RANKED and all(len(set(values)) > 1 for values in ranks):
            found[figure] = (statistics.correlation(*ranks), len(known))
    return found


def _ranks(values: Sequence[float]) -> list[float]:
    """Ranks from 0; equal values have the mean of theirs."""
    ordered = sorted(values)
    return [ordered.index(value) + (ordered.count(value) - 1) / 2 for value in values]


def not_compared(first: Measured, second: Measured) -> list[str]:
    """What the table leaves out, or compares with reserve, and why."""
    notes = [
        "fid and drift themselves: the targets have other captions and other real images",
        "caption accuracy and CLIP score: they are scores of scenes",
    ]
    differing = [
        f"{key} ({first.facts[key]}, {second.facts[key]})"
        for key in first.facts
        if first.facts[key] != second.facts.get(key)
    ]
    if differing:
        notes.append(f"seconds; speed-ups with reserve: other {', '.join(differing)}")
    else:
        notes.append("seconds: nothing says that both were measured on one machine")
    for one, other in ((first, second), (second, first)):
        only = [name for name in one.rows if name not in other.rows]
        if only:
            notes.append(f"measured on {one.name} only: {', '.join(only)}")
    return notes


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("first", type=Path, help="results of `benchmarks.methods`")
    parser.add_argument("second", type=Path, help="those of another target")
    args = parser.parse_args()
    first, second = read_results(args.first), read_results(args.second)
    print(compared_table(first, second))
    print()
    for figure, (value, count) in rank_correlations(first, second).items():
        print(f"rank correlation of {figure}: {value:.2f} over {count} presets")
    print()
    for note in not_compared(first, second):
        print(f"not compared: {note}")


if __name__ == "__main__":
    main()
