"""A sweep as one self-contained HTML page: an interactive front, tables, images, settings to copy.

User input (names, labels, captions, failure causes) enters the page only as JSON, and its script shows it only as text.
The page's security policy allows no network access and only its own script, by hash.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Collection, Sequence
from datetime import UTC, datetime
from importlib.resources import files
from typing import Any

import numpy as np
import yaml

from orchestrator.report.facts import NOTES, facts, searched
from orchestrator.report.thumbnails import Kind, Note, embed_thumbnails, ignore
from orchestrator.results.checked_text import HTML, dump_text
from orchestrator.results.comparison import DEFAULT_OBJECTIVES
from orchestrator.results.describe import VANILLA, describe, describe_duration, family
from orchestrator.results.joint import JointErrors, block_effects, critical_t
from orchestrator.results.query import QueryError
from orchestrator.results.redaction import redact_values
from orchestrator.results.store import REPORT, Axis, read_sweep_text, read_sweep_yaml
from orchestrator.results.sweep import Sweep, front_of
from orchestrator.results.trials import FAILED, STOPPED, TrialRecord
from search_spaces.trial import DecodingConfig, NoDrafter
from workers.data.storage import Storage

_SCRIPTS = ("base.js", "state.js", "labels.js", "chart.js", "card.js", "table.js", "page.js")
_MAX_DOF = 40  # of the critical values in the page; with more, the normal ones are used
_DIGITS = 4  # significant digits of the numbers in a config's description


def write_report(storage: Storage, note: Note = ignore) -> str:
    """Write the report of the sweep in `storage` to report.html there; returns that name. note: called with a sentence
    about each damaged file whose image or captions are missing.

    Raises:
        ValueError: the sweep does not exist, or one of its files is damaged. OSError: the storage fails.
    """
    storage.write(REPORT, dump_text(report_page(storage, note), HTML))
    return REPORT


def report_page(storage: Storage, note: Note = ignore) -> str:
    """The report of the sweep in `storage`, as HTML. note, errors: as `write_report`."""
    sweep = Sweep.open(storage)
    style = _part("style.css")
    script = '"use strict";\n(() => {\n' + "\n".join(_part(name) for name in _SCRIPTS) + "})();\n"
    parts = {
        "style": style,
        "style_hash": _hash(style),
        "script": script,
        "script_hash": _hash(script),
        "data": as_script_data(page_data(sweep, note)),
    }
    return re.sub(r"\{\{(\w+)\}\}", lambda match: parts[match[1]], _part("template.html"))


def as_script_data(data: object) -> str:
    """JSON for a <script> element: none of its characters can end the element or open a comment."""
    text = json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def page_data(sweep: Sweep, note: Note = ignore) -> dict[str, Any]:
    """Everything that the page shows, as plain data with credentials redacted."""
    names, axes = _metric_names(sweep), _axes(sweep)
    candidates = front_of([sweep], *(axis.name for axis in axes)).candidates if len(axes) > 1 else []
    confidence = {candidate.record.number: candidate.confidence for candidate in candidates}
    now = datetime.now(UTC)
    texts: dict[str, Any] = redact_values(
        {
            "name": sweep.name,
            "about": str(read_sweep_yaml(sweep.storage).get("about") or ""),
            "location": sweep.storage.display_name,
            "written": f"{now.day} {now:%B %Y, %H:%M} UTC",
            "summary": _summary(sweep),
            "facts": facts(sweep),
            "searched": searched(sweep.records),
            "space": read_sweep_text(sweep.storage),
            "notes": NOTES,
            "vanilla": VANILLA,
            "critical": _critical_values(),
            "axes": {"names": names, "x": axes[0].name if axes else None, "y": axes[-1].name if axes else None},
            "metrics": {
                axis.name: {"direction": axis.direction, "unit": axis.unit, "about": axis.about}
                for axis in map(sweep.axis, names)
            },
            "trials": [_trial(sweep, record, names, confidence.get(record.number)) for record in sweep.records],
            "configs": {record.digest: config_yaml(record.config) for record in sweep.records if record.config},
        }
    )
    front = {candidate.record.number for candidate in candidates if candidate.on_front}
    return texts | embed_thumbnails(sweep.storage, by_importance(sweep.records, front), note)


def by_importance(records: Sequence[TrialRecord], front: Collection[int]) -> list[tuple[TrialRecord, Kind]]:
    """The order in which images are embedded: trials on the front, then labelled ones, then others. In each part, image
    grids precede heat maps."""
    members = [record for record in records if record.number in front]
    others = sorted((record for record in records if record.number not in front), key=lambda r: (not r.label, r.number))
    both: tuple[Kind, Kind] = ("grid", "heat")
    return [(record, kind) for part in (members, others) for kind in both for record in part]


def config_yaml(config: DecodingConfig) -> str:
    """The config as YAML, as `specfrontier generate --config` reads it."""
    return yaml.safe_dump(config.to_mapping(), sort_keys=False, allow_unicode=True)


def groups(setting: DecodingConfig | None) -> dict[str, str]:
    """The trial's group under each way of colouring the chart."""
    if setting is None:
        return dict.fromkeys(("acceptance", "tree", "drafter"), "none")
    if isinstance(setting.drafter, NoDrafter):
        return {"acceptance": VANILLA, "tree": VANILLA, "drafter": VANILLA}
    return {"acceptance": family(setting), "tree": setting.policy.kind, "drafter": setting.drafter.kind}


def _trial(sweep: Sweep, record: TrialRecord, names: Sequence[str], confidence: float | None) -> dict[str, Any]:
    setting, sampling = record.config, sweep.identity.sampling
    shared = ("number", "label", "state", "cause", "feasible", "digest", "images", "seconds", "duplicate_of")
    return {name: getattr(record, name) for name in shared} | {
        "description": "invalid setting" if setting is None else describe(setting, sampling, _DIGITS),
        "groups": groups(setting),
        "violated": [text for text, excess in record.constraints.items() if excess > 0],
        "confidence": confidence,
        "metrics": {name: _measured(sweep.axis(name), record) for name in names if name in record.metrics},
        "shape": record.shape,
    }


def _measured(axis: Axis, record: TrialRecord) -> list[Any]:
    """Value and standard error; then the error's parts: effects of the blocks of captions, the noise that trials of one
    shape share, and what is shared with no other trial (see `JointErrors`); degrees of freedom of both, 0 for many.
    """
    entry, joint = record.metrics[axis.name], JointErrors.of([record], [axis])
    own, own_dof = float(np.nan_to_num(joint.own[0, 0])), float(joint.own_dof[0, 0])
    effects = [float(f"{effect:.3g}") for effect in block_effects(entry)]
    noise, noise_dof = (entry.noise, entry.noise_dof) if record.shape else (0.0, 0)
    return [entry.value, entry.error, effects, noise, own, noise_dof, own_dof if np.isfinite(own_dof) else 0]


def _critical_values() -> list[float]:
    """The critical value of a difference by its degrees of freedom; 0: more than all others."""
    return [round(float(value), 4) for value in critical_t(np.array([np.inf, *range(1, _MAX_DOF + 1)]))]


def _axes(sweep: Sweep) -> tuple[Axis, ...]:
    """The axes shown first: the sweep's objectives with speed on x, or the first two measured metrics."""
    measured = _metric_names(sweep)
    try:
        axes = sweep.axes()[:2]
    except QueryError:
        axes = ()
    if not axes or any(axis.name not in measured for axis in axes):
        axes = tuple(map(sweep.axis, measured[:2]))
    names = [axis.name for axis in axes]
    return axes[::-1] if names == list(DEFAULT_OBJECTIVES)[::-1] else axes


def _metric_names(sweep: Sweep) -> list[str]:
    """The measured metrics, in the sweep's order; all metrics if none is measured."""
    measured = {name for record in sweep.records for name in record.metrics}
    return [name for name in sweep.identity.metrics if name in measured] or list(sweep.identity.metrics)


def _summary(sweep: Sweep) -> list[str]:
    """Short facts for the head of the page."""
    images = sum(record.images for record in sweep.records if record.duplicate_of is None)
    seconds = sum(record.seconds for record in sweep.records)
    counts = ((FAILED, "failed"), (STOPPED, "stopped early"))
    others = [(sum(record.state == state for record in sweep.records), word) for state, word in counts]
    trials = len(sweep.records)
    target = sweep.identity.target
    return [
        *([f"target {target}"] if target else []),
        f"{trials} trial{'' if trials == 1 else 's'}"
        + "".join(f", {count} of them {word}" for count, word in others if count),
        f"{images:,} images",
        f"{describe_duration(seconds)} of worker time",
    ]


def _part(name: str) -> str:
    return (files("orchestrator.report") / "assets" / name).read_text("utf-8")


def _hash(text: str) -> str:
    """The hash of an inline script or style, as a Content-Security-Policy names it."""
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
