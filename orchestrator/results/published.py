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
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from functools import cache
from importlib.resources import files
from types import MappingProxyType

from orchestrator.results.query import QueryError, unknown

_FILE = "published.csv"
_FACTS = ("sweep", "label", "paper", "table", "model", "dataset", "images", "temperature", "method", "setting")
METRICS = ("speedup", "mean_accepted_length", "step_compression", "mean_tree_depth", "latency", "fid", "clip_score",
           "precision", "recall", "hpsv2", "image_reward", "inception_score", "aesthetic")  # fmt: skip
_REST = ("figures", "hardware", "note")
FOLDER = "papers/"
_SCALES: Mapping[tuple[str, str], Decimal] = MappingProxyType({("LANTERN", "hpsv2"): Decimal("0.01")})


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

    @property
    def parameters(self) -> dict[str, str]:
        """The setting's `key=value` parts; omits words without a value."""
        return _pairs(self.setting)


@cache
def published() -> tuple[Published, ...]:
    """All rows, in the papers' order.

    Raises:
        ValueError: the file in the package is damaged.
    """
    return read_published(files("orchestrator.results").joinpath(_FILE).read_text("utf-8").splitlines(), _FILE)


def read_published(lines: Iterable[str], file: str) -> tuple[Published, ...]:
    """Rows from lines with the columns of `published.csv`.

    Raises:
        ValueError: a line does not have these columns, or a value is invalid.
    """
    reader = csv.DictReader(lines)
    columns = [*_FACTS, *METRICS, *_REST]
    if list(reader.fieldnames or ()) != columns:
        raise ValueError(f"{file}, line 1: the columns must be {', '.join(columns)}")
    return tuple(_row(row, f"{file}, line {number}") for number, row in enumerate(reader, start=2))


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
        raise QueryError(unknown("published table", table, tables()))
    return list(reversed(found.values()))


def _row(row: Mapping[str, str | None], where: str) -> Published:
    given = {name: value or "" for name, value in row.items()}
    if None in row.values() or len(given) != len(_FACTS) + len(METRICS) + len(_REST):
        raise ValueError(f"{where}: the number of fields is not the number of columns")
    if bool(given["sweep"]) != bool(given["label"]) or not (given["sweep"] or given["note"]):
        raise ValueError(f"{where}: give both sweep and label, or a note that says why there are none")
    metrics = {name: _figure(given[name], given["paper"], name, where) for name in METRICS if given[name]}
    images, temperature = (_number(given[name], name, where) for name in ("images", "temperature"))
    words = {name: given[name] for name in (*_FACTS, "hardware", "note") if name not in ("images", "temperature")}
    return Published(
        images=None if images is None else int(images),
        temperature=None if temperature is None else float(temperature),
        metrics=MappingProxyType(metrics),
        figures=MappingProxyType(_pairs(given["figures"])),
        **words,
    )


def _figure(printed: str, paper: str, metric: str, where: str) -> Figure:
    number, scale = _number(printed, metric, where), _SCALES.get((paper, metric), Decimal(1))
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
