"""What the report says in words: what was swept, on what, and how to read its numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from orchestrator.results.describe import describe
from orchestrator.results.store import Identity
from orchestrator.results.sweep import Sweep
from orchestrator.results.trials import TrialRecord

Facts = list[tuple[str, list[str]]]  # a name and its lines

NOTES = (
    "± is one standard error over images: where the value would go if other captions of the same kind had been drawn. "
    "Two values are told apart when they lie further apart than 1.96 times the error of their difference.",
    "Trials draw the same captions with the same random numbers, so differences between two trials are usually surer "
    "than their errors, which are taken as independent here, suggest.",
    "The front holds the trials that no other trial beats in both metrics at once, among those that keep all "
    "constraints. The line joins them in steps: at each value of one metric the best of the other that was measured. "
    "What lies behind it is tinted.",
    "A share of redraws says how often a trial is on the front when every value is moved at random within its error. "
    "It is given for the front shown first.",
    "Distances such as fid hold for one feature extractor, one reference set and one number of images: compare them "
    "within this sweep, or with a sweep that shares all three. Fewer images make fid larger, whatever they show; "
    "fid_debiased has most of that removed, and is the estimate of what fid would be over endless images.",
    "Speed-ups are measured by timing shards that run alone on a worker, with vanilla decoding beside them on the same "
    "captions; they hold for that machine and batch size. Their errors are over captions, each counted once.",
)


def facts(sweep: Sweep) -> Facts:
    """Everything that the results depend on and all trials share; what identity.json lacks is left out."""
    known = sweep.identity
    found: Facts = [
        ("target", _lines(known.target)),
        ("weights", _pairs(known.models)),
        ("feature extractors and scorers", _pairs(known.extractors)),
        ("captions", _source(known.captions, "captions", "hash")),
        ("reference images", _source(known.reference, "images", "identity")),
        ("baseline", [] if known.baseline is None else [describe(known.baseline)]),
        ("image", _image(known)),
        ("seed of the images", _lines(known.seed)),
        ("objectives", [f"{axis.direction} {axis.name}" for axis in known.objectives]),
        ("constraints", _lines(*known.constraints)),
        ("versions", _pairs(known.versions)),
        ("experiment", _lines(known.experiment)),
        ("started", _lines(_time(known.started))),
        ("last trial finished", _lines(_time(max((record.finished for record in sweep.records), default=None)))),
    ]
    return [(name, lines) for name, lines in found if lines]


def searched(records: Sequence[TrialRecord]) -> Facts:
    """The knobs in which the proposed trials differ, and the span or the words that were tried."""
    tried: dict[str, set[Any]] = {}
    settings = [record.config.flat() for record in records if record.config is not None and not record.label]
    for setting in settings:
        for knob, value in setting.items():
            tried.setdefault(knob, set()).add(value)
    return [(knob, [_span(values)]) for knob, values in tried.items() if len(values) > 1]


def _span(values: set[Any]) -> str:
    """`2 to 187 (12 values)` for numbers, `chain, dynamic` for words; few numbers are listed."""
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
    return _lines(" of ".join(_lines(None if count is None else f"{count:,} {unit}", source)), entry.get(key))


def _image(identity: Identity) -> list[str]:
    tokens = None if identity.grid is None else f"{identity.grid[0]} × {identity.grid[1]} tokens"
    pixels = None if identity.image_size is None else f"{identity.image_size} pixels"
    return _lines(", ".join(_lines(tokens, pixels)))


def _time(text: object) -> str:
    """`2 January 2026, 03:00 UTC`; what is no ISO 8601 time stays as it is."""
    try:
        time = datetime.fromisoformat(str(text or ""))
    except ValueError:
        return str(text or "")
    return f"{time.day} {time:%B %Y, %H:%M} {time.tzname() or ''}".rstrip()
