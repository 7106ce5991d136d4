"""A sweep as one HTML page that needs nothing else: the front to explore, tables, pictures, settings to copy.

What users give (names, labels, captions, causes) goes into the page as JSON alone, and its script shows it as text
only. The page allows no network and no script but its own, which its policy names by hash.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Collection, Sequence
from datetime import UTC, datetime
from importlib.resources import files
from statistics import NormalDist
from typing import Any

import yaml

from orchestrator.report.facts import NOTES, facts, searched
from orchestrator.report.thumbnails import Album, Kind
from orchestrator.results.describe import VANILLA, describe, family
from orchestrator.results.pareto import LEVEL
from orchestrator.results.query import QueryError
from orchestrator.results.redaction import redact_values
from orchestrator.results.store import REPORT, Axis, read_sweep_text, read_sweep_yaml
from orchestrator.results.sweep import DEFAULT_OBJECTIVES, Sweep
from orchestrator.results.trials import FAILED, TrialRecord
from search_spaces.trial import DecodingConfig, NoDrafter
from workers.data.storage import Storage

SCRIPTS = ("base.js", "state.js", "labels.js", "chart.js", "card.js", "table.js", "page.js")
DIGITS = 4  # of the numbers in a setting's words


def write_report(storage: Storage) -> str:
    """Write the page of the sweep in `storage` there; returns its name, report.html.

    Raises:
        OSError: no sweep, or it cannot be read or written. ValueError: a file of it is broken.
    """
    storage.write(REPORT, report_page(storage).encode())
    return REPORT


def report_page(storage: Storage) -> str:
    """The page of the sweep in `storage`, as HTML. Raises as `write_report`."""
    sweep = Sweep.open(storage)
    style = _part("style.css")
    script = '"use strict";\n(() => {\n' + "\n".join(_part(name) for name in SCRIPTS) + "})();\n"
    pieces = {
        "style": style,
        "style_hash": _hash(style),
        "script": script,
        "script_hash": _hash(script),
        "data": as_script_data(page_data(sweep)),
    }
    return re.sub(r"\{\{(\w+)\}\}", lambda found: pieces[found[1]], _part("template.html"))


def as_script_data(data: object) -> str:
    """JSON that can stand in a <script> element: no character of it can end the element or open a comment in it."""
    text = json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def page_data(sweep: Sweep) -> dict[str, Any]:
    """All that the page shows, as plain data without credentials."""
    names, axes = _metric_names(sweep), _axes(sweep)
    marked = sweep.front(*(axis.name for axis in axes), everything=True) if sweep.records and len(axes) > 1 else None
    sure = {} if marked is None else dict(zip(*_columns(marked, "number", "confidence"), strict=True))
    on_front = {} if marked is None else dict(zip(*_columns(marked, "number", "on_front"), strict=True))
    now = datetime.now(UTC)
    words: dict[str, Any] = redact_values(
        {
            "name": sweep.name,
            "about": str(read_sweep_yaml(sweep.storage).get("about") or ""),
            "where": sweep.storage.shown,
            "written": f"{now.day} {now:%B %Y, %H:%M} UTC",
            "summary": _summary(sweep),
            "facts": facts(sweep),
            "searched": searched(sweep.records),
            "space": read_sweep_text(sweep.storage),
            "notes": NOTES,
            "plain": VANILLA,
            "limit": NormalDist().inv_cdf(1 - LEVEL / 2),
            "axes": {"names": names, "x": axes[0].name if axes else None, "y": axes[-1].name if axes else None},
            "metrics": {name: _metric(sweep, name) for name in names},
            "trials": [_trial(sweep, record, names, sure.get(record.number)) for record in sweep.records],
            "configs": {record.digest: config_yaml(record.config) for record in sweep.records if record.config},
        }
    )
    album = Album(sweep.storage)
    for record, kind in by_importance(sweep.records, {number for number, on in on_front.items() if on}):
        album.add(record, kind)
    return words | {"pictures": album.pictures, "captions": album.captions}


def by_importance(records: Sequence[TrialRecord], front: Collection[int]) -> list[tuple[TrialRecord, Kind]]:
    """The order in which pictures get room: the front's, then those of settings with a name, then others; heat maps of
    trials behind the front come last."""
    members = [record for record in records if record.number in front]
    others = sorted((record for record in records if record.number not in front), key=lambda r: (not r.label, r.number))
    both: tuple[Kind, Kind] = ("grid", "heat")
    return [(record, kind) for part in (members, others) for kind in both for record in part]


def config_yaml(config: DecodingConfig) -> str:
    """What `specfrontier generate --config` takes."""
    return yaml.safe_dump(config.to_mapping(), sort_keys=False, allow_unicode=True)


def groups(setting: DecodingConfig | None) -> dict[str, str]:
    """What a trial counts as under each colouring."""
    if setting is None:
        return dict.fromkeys(("acceptance", "tree", "drafter"), "none")
    if isinstance(setting.drafter, NoDrafter):
        return {"acceptance": VANILLA, "tree": VANILLA, "drafter": VANILLA}
    return {"acceptance": family(setting), "tree": setting.policy.kind, "drafter": setting.drafter.kind}


def _trial(sweep: Sweep, record: TrialRecord, names: Sequence[str], sure: float | None) -> dict[str, Any]:
    setting, sampling = record.config, sweep.identity.sampling
    measured = {name: record.metrics[name] for name in names if name in record.metrics}
    return {
        "number": record.number,
        "label": record.label,
        "words": "a setting that cannot be" if setting is None else describe(setting, sampling, DIGITS),
        "groups": groups(setting),
        "state": record.state,
        "cause": record.cause,
        "feasible": record.feasible,
        "broken": [text for text, excess in record.constraints.items() if excess > 0],
        "digest": record.digest,
        "images": record.images,
        "seconds": record.seconds,
        "duplicate_of": record.duplicate_of,
        "sure": sure,
        "metrics": {name: [entry.value, entry.error] for name, entry in measured.items()},
    }


def _axes(sweep: Sweep) -> tuple[Axis, ...]:
    """The two metrics shown first: the sweep's objectives, speed across; without them, the first that there are."""
    measured = _metric_names(sweep)
    try:
        axes = sweep.axes()[:2]
    except QueryError:
        axes = tuple(sweep.axis(name) for name in measured[:2])
    if any(axis.name not in measured for axis in axes):
        axes = tuple(sweep.axis(name) for name in measured[:2])
    names = [axis.name for axis in axes]
    return axes[::-1] if names == list(DEFAULT_OBJECTIVES)[::-1] else axes


def _metric_names(sweep: Sweep) -> list[str]:
    """The metrics that a trial has, in the sweep's order; all of them while no trial has any."""
    there = {name for record in sweep.records for name in record.metrics}
    return [name for name in sweep.identity.metrics if name in there] or list(sweep.identity.metrics)


def _metric(sweep: Sweep, name: str) -> dict[str, str]:
    axis = sweep.axis(name)
    return {"direction": axis.direction, "unit": axis.unit, "about": axis.about}


def _summary(sweep: Sweep) -> list[str]:
    """Facts for the head of the page, a few words each."""
    images = sum(record.images for record in sweep.records if record.duplicate_of is None)
    hours = sum(record.seconds for record in sweep.records) / 3600
    failed = sum(record.state == FAILED for record in sweep.records)
    trials = len(sweep.records)
    target = sweep.identity.target
    spent = f"{hours:.1f} hours" if hours >= 1 else f"{hours * 60:.0f} minutes"
    return [
        *([f"target {target}"] if target else []),
        f"{trials} trial{'' if trials == 1 else 's'}" + (f", {failed} of them failed" if failed else ""),
        f"{images:,} images",
        f"{spent} of worker time",
    ]


def _columns(table: Any, *names: str) -> list[list[Any]]:
    return [table[name].to_pylist() for name in names]


def _part(name: str) -> str:
    return (files("orchestrator.report") / "assets" / name).read_text("utf-8")


def _hash(text: str) -> str:
    """The name of an inline script or style in a Content-Security-Policy."""
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
