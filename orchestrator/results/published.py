"""What the papers print: `published.csv`, a line for every row of the results tables of LANTERN, LANTERN++, Cool-SD,
ADT-Tree and PEANUT.

`sweep` and `label` say which setting of which ready sweep stands for a row; a row that no sweep can run has neither,
and its `note` says why. Figures stand there as printed, and LANTERN prints HPSv2 times 100: `Figure.value` is in the
unit of the metric of that name here. What is no metric here (seconds per component, spreads) is kept in words.
LANTERN's accepted lengths count what is drafted past an image's end, and are means of images' means; those here are
tokens of images over target passes. On images of hundreds of tokens the two are close.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from functools import cache
from importlib.resources import files
from types import MappingProxyType

from orchestrator.results.query import QueryError, unknown

FILE = "published.csv"
FACTS = ("sweep", "label", "paper", "table", "model", "dataset", "images", "temperature", "method", "setting")
METRICS = ("speedup", "mean_accepted_length", "step_compression", "mean_tree_depth", "latency", "fid", "clip_score",
           "precision", "recall", "hpsv2", "image_reward", "inception_score", "aesthetic")  # fmt: skip
REST = ("figures", "hardware", "note")
FOLDER = "papers/"
SCALES: Mapping[tuple[str, str], Decimal] = MappingProxyType({("LANTERN", "hpsv2"): Decimal("0.01")})


@dataclass(frozen=True, slots=True)
class Figure:
    """A published number: as printed, in the unit of the metric here, and half a unit of its last digit."""

    printed: str
    value: float
    rounding: float


@dataclass(frozen=True, slots=True)
class Published:
    """A row of a paper's table. images: how many its quality was measured on, where the paper says so; temperature
    likewise. figures: what is no metric here, by the paper's own words."""

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

    @property
    def parameters(self) -> dict[str, str]:
        """The setting's `key=value` parts; words without a value are left out."""
        return _pairs(self.setting)


@cache
def published() -> tuple[Published, ...]:
    """All rows, in the papers' order.

    Raises:
        ValueError: the file that came with the package is damaged; the line and the column are named.
    """
    return read_published(files("orchestrator.results").joinpath(FILE).read_text("utf-8").splitlines(), FILE)


def read_published(lines: Iterable[str], file: str) -> tuple[Published, ...]:
    """Rows from the lines of a file in the columns of `published.csv`.

    Raises:
        ValueError: see `published`.
    """
    reader = csv.DictReader(lines)
    wanted = [*FACTS, *METRICS, *REST]
    if list(reader.fieldnames or ()) != wanted:
        raise ValueError(f"{file}, line 1: the columns must be {', '.join(wanted)}")
    return tuple(_row(row, f"{file}, line {number}") for number, row in enumerate(reader, start=2))


def tables() -> list[str]:
    """The ready sweeps that stand for a paper's table, by name."""
    return list(dict.fromkeys(row.sweep for row in published() if row.sweep))


def rows_of(table: str) -> list[Published]:
    """The rows that a ready sweep stands for, one for each label.

    Raises:
        QueryError: there is no such table; the nearest and the known ones are named.
    """
    found = {row.label: row for row in reversed(published()) if row.sweep == table}
    if not found:
        raise QueryError(unknown("published table", table, tables()))
    return list(reversed(found.values()))


def _row(row: Mapping[str, str | None], where: str) -> Published:
    given = {name: value or "" for name, value in row.items()}
    if None in row.values() or len(given) != len(FACTS) + len(METRICS) + len(REST):
        raise ValueError(f"{where}: not as many fields as columns")
    if bool(given["sweep"]) != bool(given["label"]) or not (given["sweep"] or given["note"]):
        raise ValueError(f"{where}: give sweep and label both, or a note why there is no such setting")
    metrics = {name: _figure(given[name], given["paper"], name, where) for name in METRICS if given[name]}
    images, temperature = (_number(given[name], name, where) for name in ("images", "temperature"))
    words = {name: given[name] for name in (*FACTS, "hardware", "note") if name not in ("images", "temperature")}
    return Published(
        images=None if images is None else int(images),
        temperature=None if temperature is None else float(temperature),
        metrics=MappingProxyType(metrics),
        figures=MappingProxyType(_pairs(given["figures"])),
        **words,
    )


def _figure(printed: str, paper: str, metric: str, where: str) -> Figure:
    number, scale = _number(printed, metric, where), SCALES.get((paper, metric), Decimal(1))
    assert number is not None
    exponent = number.as_tuple().exponent
    assert isinstance(exponent, int)  # finite
    return Figure(printed, float(number * scale), float(Decimal(5).scaleb(exponent - 1) * scale))


def _number(text: str, column: str, where: str) -> Decimal | None:
    try:
        number = Decimal(text) if text else None
    except InvalidOperation:
        number = Decimal("NaN")
    if number is not None and not number.is_finite():
        raise ValueError(f"{where}: {column} must be a number, got {text!r}")
    return number


def _pairs(text: str) -> dict[str, str]:
    pairs = (part.partition("=") for part in text.split(";"))
    return {key.strip(): value.strip() for key, sign, value in pairs if sign}
