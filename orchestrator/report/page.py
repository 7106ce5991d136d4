"""A sweep as one self-contained HTML page: an interactive front, tables, images, settings to copy.

User input (names, labels, captions, failure causes) enters the page only as JSON, and its script shows it only as text.
The page's security policy allows no network access and only its own script, by hash.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Collection, Mapping, Sequence
from datetime import UTC, datetime
from importlib.resources import files
from typing import Any

import numpy as np

from orchestrator.report.analysis import hypervolumes, importances
from orchestrator.report.answer import answer
from orchestrator.report.comparer import comparer_data
from orchestrator.report.facts import NOTES, facts, searched
from orchestrator.report.heat_maps import heat_data
from orchestrator.report.thumbnails import Note, OwnedTrial, embed_thumbnails, ignore
from orchestrator.report.trial_entries import image_key, trial_entries, trial_id
from orchestrator.results.axes import Axis
from orchestrator.results.checked_text import HTML, dump_text
from orchestrator.results.comparison import DEFAULT_OBJECTIVES, obstacles
from orchestrator.results.config_file import trial_text
from orchestrator.results.describe import VANILLA, describe_duration
from orchestrator.results.joint import critical_t
from orchestrator.results.query import QueryError
from orchestrator.results.redaction import redact_values
from orchestrator.results.store import REPORT, read_sweep_text, read_sweep_yaml
from orchestrator.results.sweep import Sweep, front_of
from orchestrator.results.trials import COMPLETE, FAILED, STOPPED
from workers.data.storage import Storage

_STYLES = ("style.css", "sections.css", "narrow.css")
_LIBRARIES = {"vendor/d3.min.js": "vendor/d3.LICENSE", "vendor/plot.umd.min.js": "vendor/plot.LICENSE"}
_SCRIPTS = (
    "base.js", "state.js", "errors.js", "labels.js", "chart.js", "card.js", "answer.js", "images.js", "heat.js",
    "analysis.js", "filter.js", "table.js", "sections.js", "page.js",
)  # fmt: skip
_OTHERS = 3  # the rank of trials that are neither on the front nor labelled
_MAX_DOF = 40  # of the critical values in the page; with more, the normal ones are used


def write_report(storage: Storage, note: Note = ignore, *, draw: bool = True) -> str:
    """Write the report of the sweep in `storage` to report.html there; returns that name. note: called with a sentence
    about each damaged file whose image or captions are missing. draw: decode images from tokens; without it, which
    needs no model, the page has the first images of each trial only.

    Raises:
        ValueError: the sweep does not exist, or one of its files is damaged. OSError: the storage fails.
    """
    storage.write(REPORT, dump_text(report_page(storage, note, draw=draw), HTML))
    return REPORT


def report_page(storage: Storage, note: Note = ignore, *, draw: bool = True) -> str:
    """The report of the sweep in `storage`, as HTML. note, draw, errors: as `write_report`."""
    return render(page_data([Sweep.open(storage)], note, draw=draw))


def render(data: dict[str, Any]) -> str:
    """The page that shows the data of `page_data`."""
    style = "\n".join(map(_part, _STYLES))
    libraries = "\n".join(f"/*\n{_part(terms)}*/\n{_part(library)}" for library, terms in _LIBRARIES.items())
    script = '"use strict";\n(() => {\n' + "\n".join(_part(name) for name in _SCRIPTS) + "})();\n"
    parts = {
        "style": style,
        "style_hash": _hash(style),
        "libraries": libraries,
        "libraries_hash": _hash(libraries),
        "script": script,
        "script_hash": _hash(script),
        "data": as_script_data(data),
    }
    return re.sub(r"\{\{(\w+)\}\}", lambda match: parts[match[1]], _part("template.html"))


def as_script_data(data: object) -> str:
    """JSON for a <script> element: none of its characters can end the element or open a comment."""
    text = json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def page_data(
    sweeps: Sequence[Sweep], note: Note = ignore, objectives: Sequence[str] = (), *, draw: bool = True
) -> dict[str, Any]:
    """Everything that the page shows, as plain data with credentials redacted. Of several sweeps: their common metrics.

    objectives: the two metrics shown first; by default the first sweep's. draw: as `write_report`.

    Raises:
        QueryError: the sweeps' values cannot be compared in two metrics.
    """
    first = sweeps[0]
    names, axes = _metric_names(sweeps), _axes(sweeps, objectives)
    front = front_of(sweeps, *(axis.name for axis in axes)) if len(axes) > 1 else None
    candidates = [] if front is None else front.candidates
    named = {first.name: first} if front is None else front.sweeps
    keys, trials = trial_entries(named, names, {c.name: c.confidence for c in candidates})
    now = datetime.now(UTC)
    texts: dict[str, Any] = redact_values(
        {
            "name": " and ".join(named),
            "about": str(read_sweep_yaml(first.storage).get("about") or "") if len(named) == 1 else "",
            "location": ", ".join(sweep.storage.display_name for sweep in sweeps),
            "written": f"{now.day} {now:%B %Y, %H:%M} UTC",
            "summary": _summary(sweeps),
            "sweeps": [_sweep_entry(name, named) for name in named],
            "notes": NOTES,
            "vanilla": VANILLA,
            "critical": _critical_values(),
            "axes": {"names": names, "x": axes[0].name if axes else None, "y": axes[-1].name if axes else None},
            "metrics": {
                axis.name: {
                    "direction": axis.direction,
                    "unit": axis.unit,
                    "about": axis.about,
                    "quality": not axis.is_of_counts,
                    "of_vanilla": axis.is_of_vanilla,
                }
                for axis in map(first.axis, names)
            },
            "keys": keys,
            "trials": trials,
            "answer": {} if front is None else answer(front),
            "importances": importances(first, axes) if len(sweeps) == 1 else {},
            "hypervolumes": hypervolumes(front) if candidates and front is not None else [],
            "configs": {r.digest: trial_text(sweep.identity, r) for sweep in sweeps for r in sweep.records if r.config},
        }
    )
    ordered = by_importance(named, {candidate.name for candidate in candidates if candidate.on_front})
    front_and_named = [trial for rank, trial in ordered if rank < _OTHERS and trial.record.state == COMPLETE]
    return texts | {
        "images": embed_thumbnails([trial for _, trial in ordered], note),
        "comparer": comparer_data(front_and_named, note, draw=draw),
        "heat": heat_data(front_and_named, note),
    }


def _sweep_entry(name: str, named: Mapping[str, Sweep]) -> dict[str, Any]:
    """captions: trials of sweeps that share it were measured on the same captions. vanilla: a trial's id."""
    sweep = named[name]
    vanilla = None if sweep.baseline is None else trial_id(name, sweep.baseline, len(named))
    captions = sweep.identity.captions
    return {
        "name": name,
        "captions": f"{captions.get('hash')} {captions.get('count')}",
        "vanilla": vanilla,
        "facts": facts(sweep),
        "searched": searched(sweep.records),
        "space": read_sweep_text(sweep.storage),
    }


def by_importance(sweeps: Mapping[str, Sweep], front: Collection[str]) -> list[tuple[int, OwnedTrial]]:
    """The trials in the order in which images are embedded: vanilla (rank 0), trials on the front (1), then labelled
    ones (2), then others (`_OTHERS`). front: ids."""
    ranked = []
    for index, (name, sweep) in enumerate(sweeps.items()):
        vanilla = sweep.baseline
        for record in sweep.records:
            member = trial_id(name, record, len(sweeps)) in front
            rank = 0 if record is vanilla else 1 if member else 2 if record.label else _OTHERS
            ranked.append((rank, OwnedTrial(image_key(index, record), sweep, record)))
    return sorted(ranked, key=lambda entry: (entry[0], entry[1].record.number))


def _critical_values() -> list[float]:
    """The critical value of a difference by its degrees of freedom; 0: more than all others."""
    return [round(float(value), 4) for value in critical_t(np.array([np.inf, *range(1, _MAX_DOF + 1)]))]


def _axes(sweeps: Sequence[Sweep], objectives: Sequence[str]) -> tuple[Axis, ...]:
    """The axes shown first: the objectives with speed on x, or the first two measured metrics."""
    first, measured = sweeps[0], _metric_names(sweeps)
    try:
        axes = first.axes(*objectives[:2])[:2]
    except QueryError:
        axes = ()
    if not axes or any(axis.name not in measured for axis in axes):
        axes = tuple(map(first.axis, measured[:2]))
    names = [axis.name for axis in axes]
    return axes[::-1] if names == list(DEFAULT_OBJECTIVES)[::-1] else axes


def _metric_names(sweeps: Sequence[Sweep]) -> list[str]:
    """The metrics that all sweeps measured and whose values can be compared, in the first sweep's order; all metrics of
    the first one if none was measured."""
    identities = [sweep.identity for sweep in sweeps]
    measured = [{name for record in sweep.records for name in record.metrics} for sweep in sweeps]
    shared = [
        name
        for name in identities[0].metrics
        if all(name in found for found in measured)
        and all(name in identity.metrics for identity in identities)
        and not obstacles(identities, name)
    ]
    return shared or list(identities[0].metrics)


def _summary(sweeps: Sequence[Sweep]) -> list[str]:
    """Short facts for the head of the page."""
    records = [record for sweep in sweeps for record in sweep.records]
    images = sum(record.images for record in records if record.duplicate_of is None)
    seconds = sum(record.seconds for record in records)
    counts = ((FAILED, "failed"), (STOPPED, "stopped early"))
    others = [(sum(record.state == state for record in records), word) for state, word in counts]
    targets = dict.fromkeys(sweep.identity.target for sweep in sweeps if sweep.identity.target)
    return [
        *([f"target {' and '.join(targets)}"] if targets else []),
        f"{len(records)} trial{'' if len(records) == 1 else 's'}"
        + "".join(f", {count} of them {word}" for count, word in others if count),
        f"{images:,} images",
        f"{describe_duration(seconds)} of worker time",
    ]


def _part(name: str) -> str:
    return (files("orchestrator.report") / "assets" / name).read_text("utf-8")


def _hash(text: str) -> str:
    """The hash of an inline script or style, as a Content-Security-Policy names it."""
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
