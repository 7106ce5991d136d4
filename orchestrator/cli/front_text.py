"""A front as lines of text: its table, its knee and best trial, and what the errors leave open.

The lines have names from a sweep's files: print them with `safe_text`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from orchestrator.cli.tables import shown_table, table_fits
from orchestrator.results.text import counted, measured, percent

if TYPE_CHECKING:
    from orchestrator.results.fronts import Candidate
    from orchestrator.results.sweep import Front
    from orchestrator.results.trials import TrialRecord


def describe_front(
    front: Front,
    rows: list[Candidate],
    facts: dict[str, Any],
    marks: dict[str, Candidate | None],
    limits: list[str],
    *,
    long: bool = False,
) -> list[str]:
    """The front as lines of text. marks: the trials found by --knee and --best, and the best lossless one. long:
    settings in words."""
    axes = " against ".join(
        f"{axis.name} ({'higher' if axis.direction == 'maximize' else 'lower'} is better)" for axis in front.axes
    )
    left_out = ", ".join(f"{count} {reason}" for reason, count in front.left_out.items())
    lines = [
        f"{', '.join(front.sweeps)}: {axes}",
        f"{len(front.members)} of {counted(len(front.candidates), 'trial')} "
        f"{'is' if len(front.members) == 1 else 'are'} on the front{f' (left out: {left_out})' if left_out else ''}",
    ]
    if "stopped" in facts:
        lines += ["", _stopped_table(facts["stopped"], name_sweeps=len(front.sweeps) > 1, long=long)]
    notes = [f"note: {text}" for text in facts.get("warnings", ())]
    if not front.candidates:
        return [*lines, *notes]
    lines += ["", *front_table(front, rows, long=long), ""]
    for name, sweep in front.sweeps.items():
        if sweep.vanilla is not None:
            whose = f" of {name}" if len(front.sweeps) > 1 else ""
            lines.append(f"vanilla{whose}: trial {sweep.vanilla.number} ({_describe_values(front, sweep.vanilla)})")
    if "hypervolume" in facts:
        corner = ", ".join(f"{value:.4g}" for value in facts["reference_point"])
        volume = measured(facts["hypervolume"], facts["hypervolume_error"])
        lines.append(f"hypervolume: {volume}, from the reference point ({corner})")
    lines += [*_choice_lines(front, facts, marks, limits), *notes]
    return lines if lines[-1] else lines[:-1]


def _choice_lines(
    front: Front, facts: dict[str, Any], marks: dict[str, Candidate | None], limits: list[str]
) -> list[str]:
    """A line for each marked trial, with the shares of draws in which it is what the line says."""
    best = front.axes[0]
    titles = {
        "knee": ("knee", "the knee"),
        "best": (f"best {best.name} within {' and '.join(limits)}", "within it"),
        "best_lossless": (best.best_lossless, ""),
    }
    lines = []
    for mark, (heading, claim) in titles.items():
        trial = marks.get(mark)
        if trial is not None:
            shares = {claim: facts.get(f"{mark}_confidence")}
            shares[f"{best.better} than vanilla"] = facts.get(f"{mark}_gain_confidence")
            sure = [f"{words} in {percent(share)}" for words, share in shares.items() if share is not None]
            lines.append(f"{heading}: {describe_trial(front, trial)}; {' and '.join(sure)} of draws")
        elif mark == "knee" and mark in marks:
            lines.append(f"{heading}: the front has none")
    return lines


def describe_trial(front: Front, trial: Candidate) -> str:
    """A trial in one line."""
    return f"trial {trial.name}, {trial.title} ({_describe_values(front, trial.record)})"


def _describe_values(front: Front, record: TrialRecord) -> str:
    """A trial's objectives, with their errors."""
    entries = [(axis.name, record.metrics[axis.name]) for axis in front.axes if axis.name in record.metrics]
    return ", ".join(f"{name} {measured(entry.value, entry.error)}" for name, entry in entries)


def front_table(front: Front, rows: Sequence[Candidate], *, long: bool = False) -> list[str]:
    """A table with a row for each trial. Labels, and trials that the errors cannot tell apart, are columns if there is
    room, else lines below. long: settings in words.
    """
    head, cells = ["trial", "setting", *(axis.name for axis in front.axes), "front"], []
    for row in rows:
        share = f"{'' if row.on_front else 'no, '}{100 * row.confidence:.0f} %"
        entries = [row.record.metrics[axis.name] for axis in front.axes]
        values = [measured(entry.value, entry.error) for entry in entries]
        cells.append([row.name, row.description if long else row.setting, *values, share])
    lines = []
    labels = [row.record.label for row in rows]
    labels = ["" if label == row.setting else label for label, row in zip(labels, rows, strict=True)]
    within = [", ".join(row.within_error_of or []) for row in rows]
    for name, column in (("within error of", within), ("label", labels)):
        wider = [[*line, cell] for line, cell in zip(cells, column, strict=True)]
        if not any(column):
            continue
        if table_fits([*head, name], wider):
            head, cells = [*head, name], wider
        else:
            lines.append(_footnote(name, rows, column))
    return [shown_table(head, cells, right=range(2, 3 + len(front.axes))), *lines]


def _footnote(name: str, rows: Sequence[Candidate], column: Sequence[str]) -> str:
    """A column in one line."""
    if name == "label":
        return "labels: " + "; ".join(f"{row.name} {text}" for row, text in zip(rows, column, strict=True) if text)
    place = {row.name: index for index, row in enumerate(rows)}
    pairs = ((row.name, other) for row in rows for other in row.within_error_of or [] if place[row.name] < place[other])
    return "within error of each other: " + ", ".join(f"{first} and {second}" for first, second in pairs)


def _stopped_table(trials: Sequence[dict[str, Any]], *, name_sweeps: bool, long: bool) -> str:
    if not trials:
        return "racing stopped no trial"
    names = [f"{trial['sweep']}#{trial['number']}" if name_sweeps else str(trial["number"]) for trial in trials]
    settings = [trial["description" if long else "setting"] for trial in trials]
    cells = [
        [name, setting, str(trial["images"]), str(trial["rival"]), trial["cause"]]
        for name, setting, trial in zip(names, settings, trials, strict=True)
    ]
    return shown_table(["stopped", "setting", "images", "rival", "reason"], cells, right=[2, 3])
