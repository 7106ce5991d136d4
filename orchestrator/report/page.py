"""A sweep as one self-contained HTML page: an interactive front, tables, images, settings to copy.

User input (names, labels, captions, failure causes) enters the page only as JSON, and its script
shows it only as text. The page's security policy allows no network access and only its own script,
by hash; a page that is served may ask its own server.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from importlib import resources
from importlib.abc import Traversable
from itertools import pairwise
from typing import Any

import numpy as np

from orchestrator.errors import QueryError
from orchestrator.front.compare import DEFAULT_OBJECTIVES, Comparison, obstacles
from orchestrator.front.front import Front, front_of
from orchestrator.front.joint import critical_t
from orchestrator.front.questions import objectives_of
from orchestrator.front.trial import Candidate
from orchestrator.report.answer import answer
from orchestrator.report.bundle import ASSETS, bundle
from orchestrator.report.section import SECTIONS, Note, Section, Subject, ignore
from orchestrator.report.sections.images import embed_grids
from orchestrator.report.trials import (
    OTHERS,
    PageTrial,
    config_keys,
    group_looks,
    metric_title,
    page_trials,
)
from orchestrator.store import config_file, files
from orchestrator.store.names import Form, SettingNames
from orchestrator.store.sweep import Sweep
from orchestrator.text import counted, describe_duration, redact_values
from orchestrator.views.follower import Ending, View
from workers.data.storage import Storage
from workers.metrics.definition import Metric

_STYLES = ("style.css", "sections.css", "narrow.css")
_LIBRARIES = {
    "vendor/d3.min.js": "vendor/d3.LICENSE",
    "vendor/plot.umd.min.js": "vendor/plot.LICENSE",
}
_MAX_SHOWN = 24  # trials with images and heat maps, unless more are on the front or labelled
_MAX_DOF = 40  # of the critical values in the page; with more, the normal ones are used


def write_report(
    storage: Storage,
    note: Note = ignore,
    *,
    decode: bool = True,
    device: str | None = None,
    batch: int | None = None,
) -> str:
    """Write the report of the sweep in `storage` to report.html there; returns that name.

    Args:
        storage: of the sweep.
        note: called with a sentence about each damaged file whose image or captions are missing.
        decode: make images from tokens. Without it, which needs no model, the page has only the
            first images of each trial.
        device: of the speeds, see `Sweep.open`.
        batch: of the speeds, see `Sweep.open`.

    Raises:
        QueryError: see `Sweep.open`.
        ValueError: the sweep does not exist, or one of its files is damaged. OSError: the storage
            fails.
    """
    page = report_page(storage, note, decode=decode, device=device, batch=batch)
    storage.write(files.REPORT, page.encode())
    return files.REPORT


class ReportView(View[Sweep]):
    """The report of a sweep that runs: written once, when the sweep ends, with images decoded from
    tokens unless the user interrupts it.
    """

    may_recover, end_timeout_s, short_timeout_s = False, 600.0, 8.0

    def end(self, source: Sweep, how: Ending) -> None:
        write_report(source.storage, decode=how == "finished")

    def describe(self, problem: str) -> str:
        return f"report not written: {problem}"


def report_page(
    storage: Storage,
    note: Note = ignore,
    *,
    decode: bool = True,
    device: str | None = None,
    batch: int | None = None,
) -> str:
    """The report of the sweep in `storage`, as HTML. Arguments and errors are as those of
    `write_report`.
    """
    return render(page_data([Sweep.open(storage, device, batch)], note, decode=decode))


def render(data: dict[str, Any], version: str = "") -> str:
    """The page that shows the data of `page_data`. version: of a page that is served and asks its
    server for others.
    """
    data = data | {"version": version}
    scripts = {
        entry["script"]: _script(SECTIONS[name], entry["script"])
        for name, entry in data["sections"].items()
    }
    parts = {
        "style": "\n".join(map(_asset, _STYLES)),
        "libraries": "\n".join(
            f"/*\n{_asset(terms)}*/\n{_asset(library)}" for library, terms in _LIBRARIES.items()
        ),
        "script": bundle(scripts),
    }
    parts |= {f"{name}_hash": _hash(text) for name, text in parts.items()} | {
        "data": as_script_data(data)
    }
    parts["connect"] = "connect-src 'self'; " if version else ""
    return re.sub(r"\{\{(\w+)\}\}", lambda match: parts[match[1]], _asset("template.html"))


def as_script_data(data: object) -> str:
    """JSON for a <script> element: none of its characters can end the element or open a comment."""
    text = json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def page_data(
    sweeps: Sequence[Sweep],
    note: Note = ignore,
    objectives: Sequence[str] = (),
    *,
    decode: bool = True,
    comparison: Comparison | None = None,
    warnings: Sequence[str] = (),
) -> dict[str, Any]:
    """Everything that the page shows, as plain data with credentials redacted.

    Args:
        sweeps: of several, the page has their common metrics.
        note: called with a sentence about each damaged file.
        objectives: the two metrics shown first; by default the first sweep's.
        decode: see `write_report`.
        comparison: of the sweeps' fronts.
        warnings: on how far the sweeps can be compared.

    Raises:
        QueryError: the sweeps' values cannot be compared in two metrics.
    """
    names = _metric_names(sweeps)
    axes = _axes(sweeps, objectives)
    front = _page_front(sweeps, axes)
    candidates: Sequence[Candidate] = ()
    named: Mapping[str, Sweep] = {sweeps[0].name: sweeps[0]}
    settings = sweeps[0].names
    if front is not None:
        candidates = front.candidates
        named = front.sweeps
        settings = front.names
    trials = page_trials(named)
    members = {candidate.name for candidate in candidates if candidate.on_front}
    ordered = sorted(trials, key=lambda trial: (trial.rank(members), trial.record.number))
    complete = [trial for trial in ordered if trial.record.is_complete]
    count = sum(trial.rank(members) < OTHERS for trial in complete)
    shown = complete[: max(count, _MAX_SHOWN)]
    subject = Subject(named, axes, names, front, shown, note, decode, comparison, warnings)
    keys = config_keys(named)
    entries = _trial_entries(trials, candidates, names, keys, settings)
    texts: dict[str, Any] = redact_values(
        {
            **_head(sweeps, named, trials),
            "critical": _critical_values(),
            "axes": _axes_entry(names, axes),
            "metrics": {name: _metric_entry(sweeps[0].metric(name)) for name in names},
            "keys": keys,
            "trials": entries,
            "looks": group_looks(entries, [trial.record.config for trial in trials]),
            "answer": {} if front is None else answer(front),
            "configs": dict(_configs(sweeps)),
        }
    )
    return texts | {
        "thumbnails": embed_grids(ordered, note),
        "sections": redact_values(_section_entries(subject)),
    }


def _trial_entries(
    trials: Sequence[PageTrial],
    candidates: Sequence[Candidate],
    metrics: Sequence[str],
    keys: Sequence[str],
    settings: SettingNames,
) -> list[dict[str, Any]]:
    """The trials as plain data (see `PageTrial.entry`). candidates: those of the page's front."""
    by_id = {candidate.name: candidate for candidate in candidates}
    following = dict(pairwise(candidate.name for candidate in candidates if candidate.on_front))
    return [
        trial.entry(metrics, keys, by_id.get(trial.id), following.get(trial.id), settings)
        for trial in trials
    ]


def _page_front(sweeps: Sequence[Sweep], axes: Sequence[Metric]) -> Front | None:
    """The front as `pareto` shows it; None without two axes."""
    if len(axes) < 2:
        return None
    front = front_of(sweeps, *(metric.name for metric in axes))
    return replace(front, form=Form.ABBREVIATED)


def _axes_entry(names: Sequence[str], axes: Sequence[Metric]) -> dict[str, Any]:
    """The metrics that the axes may have, those that are shown first, and a third objective."""
    x, y, z = [*(metric.name for metric in axes), None, None, None][:3]
    return {"names": names, "x": x, "y": y or x, "z": z}


def _head(
    sweeps: Sequence[Sweep], named: Mapping[str, Sweep], trials: Sequence[PageTrial]
) -> dict[str, Any]:
    """What the page's head says of the sweeps. named: by the names that the page has for them."""
    vanilla = {trial.index: trial.id for trial in trials if trial.is_vanilla}
    about = ""
    if len(named) == 1:
        about = files.read_sweep_yaml(sweeps[0].storage).get("about") or ""
    now = datetime.now(UTC)
    return {
        "name": " and ".join(named),
        "about": str(about),
        "location": ", ".join(sweep.storage.display_name for sweep in sweeps),
        "written": f"{now.day} {now:%B %Y, %H:%M} UTC",
        "summary": _summary(sweeps),
        "sweeps": [
            _sweep_entry(name, named[name], vanilla.get(index)) for index, name in enumerate(named)
        ],
    }


def _configs(sweeps: Sequence[Sweep]) -> Iterator[tuple[str, str]]:
    """The files of the trials' configs, by digest."""
    for sweep in sweeps:
        for record in sweep.records:
            if record.config:
                yield record.digest, config_file.trial_text(sweep.identity, record)


def _section_entries(subject: Subject) -> dict[str, dict[str, Any]]:
    """The sections that have something to show, in their order."""
    SECTIONS.load()
    entries = {
        name: {
            "title": section.title,
            "link": section.link,
            "lead": section.lead,
            "script": section.script or name,
            "data": section.data(subject),
        }
        for name, section in sorted(SECTIONS.items(), key=lambda entry: entry[1].place)
    }
    return {name: entry for name, entry in entries.items() if entry["data"] is not None}


def _sweep_entry(name: str, sweep: Sweep, vanilla: str | None) -> dict[str, Any]:
    """A sweep in the page's head. `captions`: trials of sweeps that share it were measured on the
    same captions. vanilla: a trial's id.
    """
    captions = sweep.identity.captions
    return {
        "name": name,
        "captions": f"{captions.get('hash')} {captions.get('count')}",
        "vanilla": vanilla,
    }


def _metric_entry(metric: Metric) -> dict[str, Any]:
    """A metric. `across`, `up`: what the chart's x and y axis say of it."""
    title = metric_title(metric.name)
    unit = "×" if metric.unit == "x" else metric.unit
    name = f"{title} ({unit})" if unit else title
    across, up, better = ("←", "↓", "lower is better")
    if metric.direction == "maximize":
        across, up, better = ("→", "↑", "higher is better")
    return {
        "title": title,
        "direction": metric.direction,
        "unit": unit,
        "about": metric.about,
        "quality": not metric.is_of_counts,
        "of_vanilla": metric.is_of_vanilla,
        "of_distribution": metric.is_of_distribution,
        "across": f"{name}, {across} {better}",
        "up": f"{name}, {up} {better}",
    }


def _script(section: Section, name: str) -> Traversable:
    """The file of a section's script."""
    make = section.data.func if isinstance(section.data, partial) else section.data
    module = make.__module__
    return resources.files(module.rpartition(".")[0]) / f"{name}.js"


def _asset(name: str) -> str:
    return (ASSETS / name).read_text("utf-8")


def _critical_values() -> list[float]:
    """The critical value of a difference by its degrees of freedom; 0: more than all others."""
    return [
        round(float(value), 4) for value in critical_t(np.array([np.inf, *range(1, _MAX_DOF + 1)]))
    ]


def _axes(sweeps: Sequence[Sweep], objectives: Sequence[str]) -> tuple[Metric, ...]:
    """The axes shown first, and a third objective: the sweep's, with speed on x; or the first two
    measured metrics.
    """
    first = sweeps[0]
    measured = _metric_names(sweeps)
    try:
        axes = objectives_of(first, *objectives[:2])
    except QueryError:
        axes = ()
    if not axes or any(metric.name not in measured for metric in axes):
        axes = tuple(map(first.metric, measured[:2]))
    names = [metric.name for metric in axes]
    return axes[::-1] if names == list(DEFAULT_OBJECTIVES)[::-1] else axes


def _metric_names(sweeps: Sequence[Sweep]) -> list[str]:
    """The metrics that all sweeps measured and whose values can be compared, in the first sweep's
    order; all metrics of the first one if none was measured.
    """
    identities = [sweep.identity for sweep in sweeps]
    measured = [{name for record in sweep.records for name in record.metrics} for sweep in sweeps]
    known = set(identities[0].metrics).intersection(*measured)
    known.intersection_update(*(identity.metrics for identity in identities))
    shared = [name for name in identities[0].metrics if name in known]
    comparable = [name for name in shared if not obstacles(identities, name)]
    return comparable or list(identities[0].metrics)


def _summary(sweeps: Sequence[Sweep]) -> list[str]:
    """Short facts for the head of the page."""
    records = [record for sweep in sweeps for record in sweep.records]
    images = sum(record.images for record in records if record.duplicate_of is None)
    seconds = sum(record.seconds for record in records)
    trials = counted(len(records), "trial")
    if failed := sum(record.has_failed for record in records):
        trials += f", {failed} of them failed"
    if stopped := sum(record.is_stopped for record in records):
        trials += f", {stopped} of them stopped early"
    facts = []
    machines = dict.fromkeys(sweep.machine for sweep in sweeps if sweep.machine)
    if targets := dict.fromkeys(sweep.identity.target for sweep in sweeps if sweep.identity.target):
        facts.append(f"target {' and '.join(targets)}")
    return [
        *facts,
        *([f"speeds on {' and '.join(map(str, machines))}"] if machines else []),
        trials,
        f"{images:,} images",
        f"{describe_duration(seconds)} of worker time",
    ]


def _hash(text: str) -> str:
    """The hash of an inline script or style, as a Content-Security-Policy names it."""
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
