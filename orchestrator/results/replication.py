"""Measured beside published: the trials of a sweep against the rows of a paper's table, and which of them differ.

Papers round what they print and give no errors, though a printed figure is as much of a sample as a measured one. So
z = (|measured - published| - half a unit of the last printed digit) / sqrt(error^2 + the paper's own^2). The paper's
error is taken for ours on as many images as it states, or on as many as ours where it does not (for speeds, never). A
figure differs where z is above 1.96: in a perfect replication 5 % of them at the most. A figure without spread
(vanilla's own speed-up) agrees if it is the printed one when rounded like it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final, Literal

from orchestrator.results.published import FOLDER, Figure, Published, rows_of
from orchestrator.results.sweep import Sweep
from orchestrator.results.trials import COMPLETE, Measured, TrialRecord
from search_spaces.sweep import SweepConfig
from search_spaces.trial import DecodingConfig

APART: Final = 1.96
RULE: Final = (
    "z = the distance beyond the printed figure's rounding / the error of the difference, the paper's own error (none "
    "is printed) being taken for ours on as many images as it states; above 1.96 a figure differs (5 % level)"
)
TIMED = frozenset({"speedup", "latency"})  # of captions whose number the papers do not say
COUNTED = frozenset({"fid", "inception_score", "precision", "recall"})  # depend on how many images there are
SEEN: Mapping[str, frozenset[str]] = {"features": COUNTED, "manifold": frozenset({"precision", "recall"})}
Verdict = Literal["agrees", "differs", "no error", "not measured"]


@dataclass(frozen=True, slots=True)
class Beside:
    """One figure of a row. measured None: no such trial, or not this metric. z None: there is no error to divide by."""

    metric: str
    published: Figure
    measured: Measured | None
    z: float | None
    verdict: Verdict


@dataclass(frozen=True, slots=True)
class Compared:
    """A row of the table, the trial that stands for it (None: there is none), and how its setting differs from the
    row's: `acceptance.k 10 for 1000`."""

    row: Published
    trial: int | None
    differing: tuple[str, ...]
    figures: tuple[Beside, ...]


@dataclass(frozen=True, slots=True)
class Replication:
    """A sweep against a table. notes: what else is not the paper's, in words."""

    sweep: str
    table: str
    rows: tuple[Compared, ...]
    notes: tuple[str, ...]

    def having(self, verdict: Verdict) -> list[tuple[Compared, Beside]]:
        """The figures with a verdict."""
        return [(row, figure) for row in self.rows for figure in row.figures if figure.verdict == verdict]

    def to_mapping(self) -> dict[str, Any]:
        """Plain data, for JSON."""
        return {
            "sweep": self.sweep,
            "table": self.table,
            "rule": RULE,
            "rows": [_plain(row) for row in self.rows],
            "notes": list(self.notes),
        }


def table_of(sweep: Sweep) -> str:
    """The table that a sweep stands for by its name."""
    return f"{FOLDER}{sweep.name}"


def replicate(sweep: Sweep, table: str) -> Replication:
    """Hold a sweep against a table: each row against the trial of the row's own setting, or else of its label.

    Raises:
        QueryError: there is no such table.
    """
    published = rows_of(table)
    settings = {entry.label: entry.config for entry in SweepConfig.read(table).enqueue}
    rows = tuple(_compared(sweep, row, settings[row.label]) for row in published)
    return Replication(sweep.name, table, rows, tuple(_notes(sweep, rows)))


def verdict(measured: Measured | None, figure: Figure, images: int | None = None) -> tuple[float | None, Verdict]:
    """z, and what it says (see the module). images: how many the published figure is of; None: not stated."""
    if measured is None:
        return None, "not measured"
    if measured.error is None or not math.isfinite(measured.error):
        return None, "no error"
    beyond = max(0.0, abs(measured.value - figure.value) - figure.rounding * (1 + 1e-9))
    if measured.error == 0:
        return (None, "differs") if beyond else (0.0, "agrees")
    z = beyond / (measured.error * math.sqrt(1 + measured.n / (images or measured.n)))
    return z, "differs" if z > APART else "agrees"


def _compared(sweep: Sweep, row: Published, setting: DecodingConfig) -> Compared:
    record = _trial(sweep, row.label, setting)
    found = []
    for metric, figure in row.metrics.items():
        measured = None if record is None else record.metrics.get(metric)
        images = None if metric in TIMED else row.images
        found.append(Beside(metric, figure, measured, *verdict(measured, figure, images)))
    if record is None:
        return Compared(row, None, (), tuple(found))
    assert record.config is not None  # it is complete
    return Compared(row, record.number, tuple(_differing(record.config, setting)), tuple(found))


def _trial(sweep: Sweep, label: str, setting: DecodingConfig) -> TrialRecord | None:
    done = [record for record in sweep.records if record.state == COMPLETE]
    same = [record for record in done if record.digest == setting.digest()]
    return next(iter([*same, *(record for record in done if record.label == label)]), None)


def _differing(own: DecodingConfig, paper: DecodingConfig) -> list[str]:
    """What the setting that was run has otherwise than the row's."""
    ran, wanted = own.flat(), paper.flat()
    return [
        f"{key} {ran.get(key, 'none')} for {wanted.get(key, 'none')}"
        for key in dict.fromkeys([*wanted, *ran])
        if ran.get(key) != wanted.get(key)
    ]


def _notes(sweep: Sweep, rows: tuple[Compared, ...]) -> list[str]:
    """What a reader must know before believing a difference, or an agreement."""
    known, first = sweep.identity, rows[0].row
    captions = known.captions
    here = [known.target, f"{captions.get('count')} captions of {captions.get('source')}", known.device]
    there = [first.model, first.dataset, first.hardware]
    notes = [f"measured: {_listed(here)}", f"published: {_listed(there)}"]
    notes += [f"{name} measured by {identity}" for name, identity in known.extractors.items() if _used(name, rows)]
    if known.target.startswith("lumina"):
        notes.append("lengths: row ends count in the paper (2353 tokens of an image) and not here (2304)")
    for metric in dict.fromkeys(f.metric for row in rows for f in row.figures if f.metric in COUNTED):
        counts = {
            (f.measured.n, row.row.images) for row in rows for f in row.figures if f.metric == metric and f.measured
        }
        notes += [
            f"{metric}: {ours:,} images measured, {theirs:,} published, and it depends on their number"
            for ours, theirs in sorted(counts, key=str)
            if theirs is not None and ours != theirs
        ]
    return notes


def _used(extractor: str, rows: tuple[Compared, ...]) -> bool:
    metrics = {figure.metric for row in rows for figure in row.figures if figure.measured is not None}
    return extractor in metrics or bool(metrics & SEEN.get(extractor, frozenset()))


def _listed(parts: list[Any]) -> str:
    return ", ".join(str(part) for part in parts if part) or "not stated"


def _plain(compared: Compared) -> dict[str, Any]:
    row = compared.row
    return {
        "label": row.label,
        "trial": compared.trial,
        "paper": row.paper,
        "paper_table": row.table,
        "model": row.model,
        "method": row.method,
        "setting": row.setting,
        "differing": list(compared.differing),
        "figures": [
            {
                "metric": figure.metric,
                "measured": None if figure.measured is None else asdict(figure.measured),
                "published": figure.published.value,
                "printed": figure.published.printed,
                "z": figure.z,
                "verdict": figure.verdict,
            }
            for figure in compared.figures
        ],
        "no_metric_here": dict(row.figures),
    }
