"""The report's texts: the setup of the sweep, and notes on its numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from orchestrator.results.describe import describe
from orchestrator.results.notes import sweep_notes, waiting_note
from orchestrator.results.store import Identity
from orchestrator.results.sweep import Sweep
from orchestrator.results.trials import TrialRecord

Facts = list[tuple[str, list[str]]]  # a name and its lines

NOTES = (
    "± is one standard error over images: how far the value would vary with other captions of the same kind.",
    "All trials use the same captions and random numbers, so much of their errors cancels in a difference. Two values "
    "are within error of each other if their difference is within Student's t of what does not cancel (95 %).",
    "A trial that stopped early has values of fewer images. They are not compared with those of complete trials: it is "
    "on no front and in no plot, and comes last where the table is sorted by a metric.",
    "The front consists of the trials that meet all constraints and that no other such trial dominates in both "
    "metrics. Its line has steps: at each value of one metric it shows the best measured value of the other. The "
    "dominated region is tinted.",
    "The share of draws is how often a trial is on the front when every value is redrawn from its error. It is given "
    "for the initial axes. Below a choice it is how often the trial is within the bar, is the knee, or is better than "
    "vanilla on the x axis.",
    "A lossless setting has an exact rule and the baseline's sampling: its images have vanilla's own distribution, "
    "whatever their measured quality.",
    "Distances such as fid depend on the feature extractor, the reference set and the number of images: compare them "
    "within this sweep, or with a sweep that shares all three. Fewer images bias fid upwards; fid_debiased removes "
    "most of the bias and estimates fid for infinitely many images.",
    "speedup and latency are the decoding passes of all images times the cost of a pass, which timing shards measure: "
    "they run alone on a worker, next to vanilla decoding of the same captions. Trials whose settings differ only in "
    "the rule's numbers share these costs and their noise. speedup_timed is the ratio of the times themselves, on the "
    "few captions of a trial that was timed itself. All hold for that machine and batch size.",
    "speedup compares a setting with vanilla in the same minutes. latency does not, so on a busy machine the latencies "
    "of trials that were timed in different minutes may contradict their speed-ups.",
)


def facts(sweep: Sweep) -> Facts:
    """Everything that all trials share and the results depend on; omits facts that the identity does not state."""
    identity = sweep.identity
    found: Facts = [
        ("warnings", [*waiting_note(sweep), *sweep_notes(sweep)]),
        ("target", _lines(identity.target)),
        ("weights", _pairs(identity.models)),
        ("feature extractors and scorers", _pairs(identity.extractors)),
        ("captions", _source(identity.captions, "captions", "hash")),
        ("reference images", _source(identity.reference, "images", "identity")),
        ("baseline", [] if identity.baseline is None else [describe(identity.baseline)]),
        ("image", _image(identity)),
        ("seed of the images", _lines(identity.seed)),
        ("objectives", [f"{axis.direction} {axis.name}" for axis in identity.objectives]),
        ("constraints", _lines(*identity.constraints)),
        ("versions", _pairs(identity.versions)),
        ("experiment", _lines(identity.experiment)),
        ("started", _lines(_time(identity.started))),
        ("last trial finished", _lines(_time(max((record.finished for record in sweep.records), default="")))),
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
    return _lines(" of ".join(_lines(None if count is None else f"{count:,} {unit}", source)), entry.get(key))


def _image(identity: Identity) -> list[str]:
    tokens = None if identity.grid is None else f"{identity.grid[0]} × {identity.grid[1]} tokens"
    pixels = None if identity.image_size is None else f"{identity.image_size} pixels"
    return _lines(", ".join(_lines(tokens, pixels)))


def _time(text: str) -> str:
    """`2 January 2026, 03:00 UTC`; "" for no time."""
    if not text:
        return ""
    time = datetime.fromisoformat(text)
    return f"{time.day} {time:%B %Y, %H:%M} {time.tzname() or ''}".rstrip()
