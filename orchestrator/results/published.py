"""Published results: `published.csv` has one line per row of the results tables of LANTERN, LANTERN++, Cool-SD,
ADT-Tree and PEANUT.

`sweep` and `label` name the config of a ready sweep that replicates the row. A row that no sweep can run has neither,
and its `note` says why. The file has figures as printed; `Figure.value` is in the unit of this project's metric
(LANTERN prints HPSv2 times 100). Figures without a metric here (seconds per component, spreads) are kept as text.
LANTERN's accepted lengths count tokens drafted past an image's end and are means of images' means; here they are image
tokens over target passes. The two are close on images of hundreds of tokens.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from functools import cache
from importlib.resources import files

from orchestrator.results.query import QueryError
from search_spaces.params import unknown_key

_TEXTS = ("sweep", "label", "paper", "table", "model", "dataset", "method", "setting", "hardware", "note")
METRICS = ("speedup", "mean_accepted_length", "step_compression", "mean_tree_depth", "latency", "fid", "clip_score",
           "precision", "recall", "hpsv2", "image_reward", "inception_score", "aesthetic")  # fmt: skip
FOLDER = "papers/"
_SCALES: Mapping[tuple[str, str], Decimal] = {("LANTERN", "hpsv2"): Decimal("0.01")}


@dataclass(frozen=True, slots=True)
class Figure:
    """A published number. printed: as in the paper. value: in the metric's unit. rounding: half of its last digit."""

    printed: str
    value: float
    rounding: float


@dataclass(frozen=True, slots=True)
class Published:
    """A row of a paper's table. images: number of images of its quality metrics. images and temperature are None if the
    paper does not state them. figures: without a metric here, by the paper's own names."""

    sweep: str
    label: str
    paper: str
    table: str
    model: str
    dataset: str
    images: int | None
    temperature: float | None
    method: str
    setting: str
    metrics: Mapping[str, Figure]
    figures: Mapping[str, str]
    hardware: str
    note: str


@cache
def published() -> tuple[Published, ...]:
    """All rows, in the papers' order."""
    text = files("orchestrator.results").joinpath("published.csv").read_text("utf-8")
    return tuple(_row(row) for row in csv.DictReader(io.StringIO(text, newline="")))


def tables() -> list[str]:
    """The names of the ready sweeps that replicate a paper's table."""
    return list(dict.fromkeys(row.sweep for row in published() if row.sweep))


def rows_of(table: str) -> list[Published]:
    """The rows that a ready sweep replicates, one per label.

    Raises:
        QueryError: the table does not exist.
    """
    found = {row.label: row for row in reversed(published()) if row.sweep == table}
    if not found:
        raise QueryError(f"{table}: {unknown_key(table, tables(), 'published table')}")
    return list(reversed(found.values()))


def _row(row: Mapping[str, str]) -> Published:
    figures = (part.partition("=") for part in row["figures"].split(";"))
    return Published(
        **{name: row[name] for name in _TEXTS},
        images=int(row["images"]) if row["images"] else None,
        temperature=float(row["temperature"]) if row["temperature"] else None,
        metrics={name: _figure(row[name], row["paper"], name) for name in METRICS if row[name]},
        figures={key.strip(): value.strip() for key, sign, value in figures if sign},
    )


def _figure(printed: str, paper: str, metric: str) -> Figure:
    number, scale = Decimal(printed), _SCALES.get((paper, metric), Decimal(1))
    exponent = int(number.as_tuple().exponent)
    return Figure(printed, float(number * scale), float(Decimal(5).scaleb(exponent - 1) * scale))
