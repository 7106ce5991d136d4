"""Published results: `published.csv` has one line per row of the papers' results tables.

`sweep` and `label` name the config of a ready sweep that replicates the row. A row that no sweep
can run has neither, and its `note` says why. `source` is where the figures were read (`SOURCES`).
The file has figures as printed; `Figure.value` is in the unit of this project's metric (some papers
print HPSv2 and CLIP scores times 100). Figures without a metric here (seconds per component,
spreads) are kept as text. So are counts of passes, which include the prefill and, on Lumina and
Emu3, row ends; their ratio to vanilla's is `step_compression`. LANTERN's accepted lengths count
tokens drafted past an image's end and are means of images' means; here they are image tokens over
target passes. The two are close on images of hundreds of tokens.

A sweep replicates a table: its trials next to the published rows, and which figures differ. Papers
round their figures and print no errors, although a printed figure has a sampling error too. Hence z
= (|measured - published| - half a unit of the last printed digit) / sqrt(error^2 + the paper's
error^2). The paper's error is assumed to equal ours, scaled to the number of images that it states,
or unscaled if it states none (as for all speeds). A figure differs if z is beyond the two-sided 5 %
of Student's t with our error's degrees of freedom: at most 5 % do in a perfect replication. A
figure without error (the speed-up of vanilla itself) agrees if it rounds to the printed one.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from decimal import Decimal
from functools import cache
from importlib.resources import files
from typing import Any, Final, Literal

import numpy as np

from orchestrator.errors import QueryError
from orchestrator.front.joint import critical_t, degrees_of_freedom
from orchestrator.shown.status import session_problems
from orchestrator.store.sweep import Sweep
from search_spaces.params import unknown_key
from search_spaces.sweep import SweepConfig
from search_spaces.trial import DecodingConfig
from workers.metrics.estimate import Estimate

_TEXTS = (
    "sweep",
    "label",
    "paper",
    "table",
    "model",
    "dataset",
    "method",
    "setting",
    "hardware",
    "source",
    "note",
)
METRICS = (
    "speedup",
    "mean_accepted_length",
    "step_compression",
    "mean_tree_depth",
    "latency",
    "fid",
    "clip_score",
    "precision",
    "recall",
    "hpsv2",
    "image_reward",
    "inception_score",
    "aesthetic",
)
FOLDER = "papers/"
#: What the figures were read from, by `Published.source`.
SOURCES: Mapping[str, str] = {
    "paper": "the paper's own table",
    "readme": "the README of the authors' code",
    "summary": "another party's summary of the paper, not checked against it",
    "abstract": "the paper's abstract",
}
_FRACTIONS = frozenset({"hpsv2", "clip_score"})  # at most 1; printed above 1, they are times 100


@dataclass(frozen=True, slots=True)
class Figure:
    """A published number."""

    printed: str  # as in the paper
    value: float  # in the metric's unit
    rounding: float  # half of its last digit


@dataclass(frozen=True, slots=True)
class Published:
    """A row of a paper's table."""

    sweep: str  # the ready sweep that replicates it, and the label of its config; "" for none
    label: str
    paper: str
    table: str
    model: str
    dataset: str
    images: int | None  # of its quality metrics; None if the paper does not state it
    temperature: float | None  # None if the paper does not state it
    method: str
    setting: str
    metrics: Mapping[str, Figure]
    figures: Mapping[str, str]  # those without a metric here, by the paper's own names
    hardware: str
    source: str  # a key of `SOURCES`
    note: str


@cache
def published() -> tuple[Published, ...]:
    """All rows, in the papers' order."""
    text = files("orchestrator.shown").joinpath("published.csv").read_text("utf-8")
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
        metrics={name: _figure(row[name], name) for name in METRICS if row[name]},
        figures={key.strip(): value.strip() for key, sign, value in figures if sign},
    )


def _figure(printed: str, metric: str) -> Figure:
    number = Decimal(printed)
    scale = Decimal(1)
    if metric in _FRACTIONS and number > 1:
        scale = Decimal("0.01")
    exponent = int(number.as_tuple().exponent)
    return Figure(printed, float(number * scale), float(Decimal(5).scaleb(exponent - 1) * scale))


RULE: Final = (
    "z = distance beyond the printed figure's rounding / error of the difference; papers print no "
    "error, so theirs is taken to be ours at the number of images they state; a figure differs if "
    "z is above the 5 % level of Student's t (1.96 for many measurements, 4.30 with 2 degrees of "
    "freedom)"
)
TIMED = frozenset({"speedup", "latency"})  # papers do not state how many captions they time
# metrics that depend on the number of images
_BIASED = frozenset({"fid", "inception_score", "precision", "recall"})
_METRICS_OF_EXTRACTOR = {"features": _BIASED, "manifold": frozenset({"precision", "recall"})}
# what the identity of an extractor begins with, if it is the one that papers use
_NETWORKS_OF_PAPERS = {"features": "inception", "manifold": "vgg"}
_OWN_NETWORKS = "scenes"  # of this project's built-in model
Verdict = Literal["agrees", "differs", "no error", "not measured"]


@dataclass(frozen=True, slots=True)
class MetricRow:
    """One figure of a row."""

    metric: str
    measured: Estimate | None  # None if there is no such trial or metric
    published: float  # in the metric's unit
    printed: str  # as in the paper
    z: float | None  # None without an error
    verdict: Verdict

    @property
    def in_our_unit(self) -> str:
        """The published figure as printed, or in the metric's unit if the paper has another."""
        return self.printed if float(self.printed) == self.published else f"{self.published:g}"

    def to_mapping(self) -> dict[str, Any]:
        """Plain data, for JSON."""
        measured = None if self.measured is None else self.measured.to_mapping()
        return asdict(self) | {"measured": measured}


@dataclass(frozen=True, slots=True)
class TableRow:
    """A published row and the trial that replicates it."""

    row: Published
    trial: int | None  # its number; None if there is none
    # where the trial's config differs from the row's: `acceptance.k 10 instead of 1000`
    differences: tuple[str, ...]
    figures: tuple[MetricRow, ...]

    def to_mapping(self) -> dict[str, Any]:
        """Plain data, for JSON."""
        facts = {name: getattr(self.row, name) for name in ("paper", "model", "method", "setting")}
        return {
            "label": self.row.label,
            "trial": self.trial,
            **facts,
            "paper_table": self.row.table,
            "differences": list(self.differences),
            "figures": [figure.to_mapping() for figure in self.figures],
            "no_metric_here": dict(self.row.figures),
        }


@dataclass(frozen=True, slots=True)
class Replication:
    """A sweep compared with a table."""

    sweep: str
    table: str
    rows: tuple[TableRow, ...]
    notes: tuple[str, ...]  # other differences from the paper
    caveats: tuple[str, ...]  # sentences on metrics whose values cannot be compared

    def with_verdict(self, verdict: Verdict) -> list[tuple[TableRow, MetricRow]]:
        """The figures with a verdict."""
        found = []
        for row in self.rows:
            found += [(row, figure) for figure in row.figures if figure.verdict == verdict]
        return found

    def to_mapping(self) -> dict[str, Any]:
        """Plain data, for JSON."""
        rows = [row.to_mapping() for row in self.rows]
        return {
            "sweep": self.sweep,
            "table": self.table,
            "rule": RULE,
            "rows": rows,
            "notes": list(self.notes),
            "caveats": list(self.caveats),
        }


def replicate(sweep: Sweep, table: str) -> Replication:
    """Compare each row of a table with the trial that has the row's config, or else its label.

    Raises:
        QueryError: there is no such table.
    """
    published = rows_of(table)
    configs = {entry.label: entry.config for entry in SweepConfig.read(table).enqueue}
    rows = tuple(_table_row(sweep, row, configs[row.label]) for row in published)
    notes = (*session_problems(sweep), *_notes(sweep, rows))
    return Replication(sweep.name, table, rows, notes, tuple(_caveats(sweep, rows)))


def verdict(
    measured: Estimate | None, figure: Figure, images: int | None = None
) -> tuple[float | None, Verdict]:
    """z and the verdict (see the module's docstring). images: of the published figure; None: not
    stated.
    """
    if measured is None:
        return None, "not measured"
    if not math.isfinite(measured.error):
        return None, "no error"
    excess = max(0.0, abs(measured.value - figure.value) - figure.rounding * (1 + 1e-9))
    if measured.error == 0:
        if excess:
            return None, "differs"
        return 0.0, "agrees"
    z = excess / (measured.error * math.sqrt(1 + measured.n / (images or measured.n)))
    critical = critical_t(np.array([degrees_of_freedom(measured)]))[0]
    return z, "differs" if z > critical else "agrees"


def _table_row(sweep: Sweep, row: Published, config: DecodingConfig) -> TableRow:
    record = sweep.find(config, row.label)
    figures = []
    for metric, figure in row.metrics.items():
        measured = None if record is None else record.metrics.get(metric)
        z, result = verdict(measured, figure, None if metric in TIMED else row.images)
        figures.append(MetricRow(metric, measured, figure.value, figure.printed, z, result))
    if record is None or record.config is None:
        return TableRow(row, None, (), tuple(figures))
    ours = record.config.flat()
    theirs = config.flat()
    differences = tuple(
        f"{key} {ours.get(key, 'none')} instead of {theirs.get(key, 'none')}"
        for key in dict.fromkeys([*theirs, *ours])
        if ours.get(key) != theirs.get(key)
    )
    return TableRow(row, record.number, differences, tuple(figures))


def _notes(sweep: Sweep, rows: tuple[TableRow, ...]) -> list[str]:
    """Differences in setup that affect how far the figures are comparable."""
    identity = sweep.identity
    first = rows[0].row
    captions = sweep.identity.captions
    ours = [
        identity.target,
        f"{captions.get('count')} captions of {captions.get('source')}",
        identity.timing_device,
    ]
    theirs = [first.model, first.dataset, first.hardware]
    # by metric, numbers of images: those measured, and those published
    counts: dict[str, set[tuple[int, int | None]]] = {}
    for row in rows:
        for figure in row.figures:
            if figure.measured is not None:
                pair = (figure.measured.n, row.row.images)
                counts.setdefault(figure.metric, set()).add(pair)
    notes = [f"measured: {_join(ours)}", f"published: {_join(theirs)}"]
    sources = dict.fromkeys(row.row.source for row in rows if row.row.source != "paper")
    notes += [f"published figures are from {SOURCES[source]}" for source in sources]
    for name, net in identity.extractors.items():
        if not counts.keys().isdisjoint({name, *_METRICS_OF_EXTRACTOR.get(name, ())}):
            notes.append(f"{name} measured by {net}")
    if identity.target.startswith("lumina"):
        notes.append(
            "lengths: papers count row ends (2353 tokens per image or more), this project does not "
            "(2304)"
        )
    for metric, pairs in counts.items():
        for here, there in sorted(pairs, key=str):
            if metric in _BIASED and there is not None and here != there:
                notes.append(
                    f"{metric}: {here:,} images measured, {there:,} published, and the metric "
                    "depends on that number"
                )
    return notes


def _caveats(sweep: Sweep, rows: tuple[TableRow, ...]) -> list[str]:
    """Sentences on the metrics that another network than the papers' measured."""
    measured: dict[str, None] = {}
    for row in rows:
        found = [figure.metric for figure in row.figures if figure.measured is not None]
        measured |= dict.fromkeys(found)
    caveats = []
    for role, network in sweep.identity.extractors.items():
        is_papers = network.startswith(_NETWORKS_OF_PAPERS.get(role, ""))
        if is_papers and not network.startswith(_OWN_NETWORKS):
            continue
        metrics = [
            name for name in measured if name in (role, *_METRICS_OF_EXTRACTOR.get(role, ()))
        ]
        if metrics:
            name = network.partition("@")[0]
            caveats.append(
                f"{' and '.join(metrics)}: measured with the network {name}, which is not the "
                "paper's, so these values cannot be compared"
            )
    return caveats


def _join(parts: list[Any]) -> str:
    return ", ".join(str(part) for part in parts if part) or "not stated"
