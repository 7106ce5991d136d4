"""The note of a study, which Optuna's dashboard shows: what the sweep is, and its front."""

from __future__ import annotations

import re
from collections.abc import Sequence

from optuna.study import Study

from orchestrator.results.fronts import directions, values_of
from orchestrator.results.names import SettingNames
from orchestrator.results.pareto import nondominated
from orchestrator.results.store import Identity
from orchestrator.results.text import measured
from orchestrator.results.trials import TrialRecord

_CHUNK = 2000  # characters of an attribute in which the dashboard keeps a part of a note
_VERSION, _PART = "dashboard:note_ver", "dashboard:note_str:"  # keys of the dashboard's own format
_MAX_ROWS = 40


def describe_study(identity: Identity, records: Sequence[TrialRecord], place: str) -> str:
    """The note as Markdown: the sweep's facts, the front of its feasible trials, and the commands that say more."""
    goals = ", ".join(f"{axis.direction} {axis.name}" for axis in identity.objectives)
    lines = [
        f"**{_literal(identity.name)}**: {_literal(identity.target)}; {goals}",
        "",
        "A view of the trials' records, which the sweep never reads. Stopped trials are complete here and violate "
        "`stopped early`.",
        "",
        f"`specfrontier pareto {place}` has the errors, `specfrontier report {place} --open` the images.",
    ]
    feasible = [record for record in records if record.feasible]
    if not feasible or not identity.objectives:
        return "\n".join(lines)
    names = SettingNames(identity.sampling)
    axes = [axis.name for axis in identity.objectives]
    values = values_of(feasible, identity.objectives)[0]
    on_front = nondominated(values, directions(identity.objectives))
    front = [record for record, kept in zip(feasible, on_front, strict=True) if kept]
    lines += ["", f"| trial | setting | {' | '.join(axes)} |", "|---" * (2 + len(axes)) + "|"]
    for record in sorted(front, key=lambda record: record.metrics[axes[0]].value)[:_MAX_ROWS]:
        cells = [measured(record.metrics[name].value, record.metrics[name].error) for name in axes]
        title = _literal(record.title(names.name(record.config)))
        lines.append(f"| {record.number} | {title} | {' | '.join(cells)} |")
    return "\n".join(lines)


def write_note(study: Study, text: str) -> None:
    """Replace the study's note."""
    storage, study_id = study._storage, study._study_id
    version = int(storage.get_study_system_attrs(study_id).get(_VERSION, 0))
    parts = [text[start : start + _CHUNK] for start in range(0, len(text), _CHUNK)]
    before = [key for key in storage.get_study_system_attrs(study_id) if key.startswith(_PART)]
    for index in range(max(len(parts), len(before))):
        storage.set_study_system_attr(study_id, f"{_PART}{index}", parts[index] if index < len(parts) else "")
    storage.set_study_system_attr(study_id, _VERSION, version + 1)


def _literal(text: str) -> str:
    """Text that Markdown shows as it is."""
    return re.sub(r"([\\|\[\]<>*_`])", r"\\\1", text)
