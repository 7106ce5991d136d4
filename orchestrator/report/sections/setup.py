"""The setup of the sweeps: what their results depend on, and what was searched."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from orchestrator.report.section import SECTIONS, Section, Subject
from orchestrator.shown.status import sweep_notes, waiting_note
from orchestrator.store import files
from orchestrator.store.identity import Identity
from orchestrator.store.names import describe
from orchestrator.store.records import TrialRecord
from orchestrator.store.sweep import Sweep

Facts = list[tuple[str, list[str]]]  # a name and its lines


def setup(subject: Subject) -> list[dict[str, Any]]:
    """The facts of each sweep."""
    return [
        {
            "name": name,
            "facts": facts(sweep),
            "searched": searched(sweep.records),
            "space": files.read_sweep_text(sweep.storage),
        }
        for name, sweep in subject.sweeps.items()
    ]


def facts(sweep: Sweep) -> Facts:
    """Everything that all trials share and the results depend on; omits facts that the identity
    does not state.
    """
    identity = sweep.identity
    found: Facts = [
        ("warnings", [*waiting_note(sweep), *sweep_notes(sweep)]),
        ("target", _lines(identity.target)),
        ("weights", _pairs(identity.models)),
        ("feature extractors and scorers", _pairs(identity.extractors)),
        ("captions", _source(identity.captions, "captions", "hash")),
        ("reference images", _source(identity.reference, "images", "identity")),
        ("baseline", [describe(identity.baseline)]),
        ("image", _image(identity)),
        ("seed of the images", _lines(identity.seed)),
        ("objectives", [f"{metric.direction} {metric.name}" for metric in identity.objectives]),
        ("constraints", _lines(*identity.constraints)),
        ("versions", _pairs(identity.versions)),
        ("experiment", _lines(identity.experiment)),
        ("started", _lines(_time(identity.started))),
        (
            "last trial finished",
            _lines(_time(max((record.finished for record in sweep.records), default=""))),
        ),
    ]
    return [(name, lines) for name, lines in found if lines]


def searched(records: Sequence[TrialRecord]) -> Facts:
    """The keys in which proposed trials differ, with the range or the choices that were tried."""
    tried: dict[str, set[Any]] = {}
    for record in records:
        if record.config is not None and not record.label:
            for key, value in record.config.flat().items():
                tried.setdefault(key, set()).add(value)
    return [(key, [_range(values)]) for key, values in tried.items() if len(values) > 1]


def _range(values: set[Any]) -> str:
    """`2 to 187 (12 values)` for many numbers, `chain, dynamic` for choices and few numbers."""
    if any(isinstance(value, str) for value in values):
        return ", ".join(sorted(str(value) for value in values))
    numbers = sorted(values)
    if len(numbers) <= 4:
        return ", ".join(f"{number:g}" for number in numbers)
    return f"{numbers[0]:g} to {numbers[-1]:g} ({len(numbers)} values)"


def _lines(*values: object) -> list[str]:
    return [str(value) for value in values if value not in (None, "")]


def _pairs(entries: Mapping[str, str]) -> list[str]:
    """One line for each name and its value."""
    return [f"{name} {value}" for name, value in entries.items()]


def _source(entry: Mapping[str, Any] | None, unit: str, key: str) -> list[str]:
    """`192 captions of scenes`, and the hash below."""
    if not entry:
        return []
    count, source = entry.get("count"), entry.get("source")
    return _lines(
        " of ".join(_lines(None if count is None else f"{count:,} {unit}", source)), entry.get(key)
    )


def _image(identity: Identity) -> list[str]:
    rows, cols, *preview = identity.grid
    before = ""
    if preview:
        before = f" after a preview of {preview[0]} × {preview[1]}"
    return [f"{rows} × {cols} tokens{before}, {identity.image_size} pixels"]


def _time(text: str) -> str:
    """`2 January 2026, 03:00 UTC`; "" for no time."""
    if not text:
        return ""
    time = datetime.fromisoformat(text)
    return f"{time.day} {time:%B %Y, %H:%M} {time.tzname() or ''}".rstrip()


SECTIONS.add("setup", Section("Setup", 90, setup, link="Setup"))
