"""A front as lines of text: its table, what it recommends, and what the errors leave open.

The lines have names from a sweep's files: print them with `safe_text`.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from orchestrator.cli.tables import heading, shown_table, table_fits
from orchestrator.results.text import counted, measured, percent, signed_percent

if TYPE_CHECKING:
    from orchestrator.results.choices import Choice
    from orchestrator.results.fronts import Candidate
    from orchestrator.results.sweep import Front
    from orchestrator.results.trials import TrialRecord


def describe_front(
    front: Front,
    rows: list[Candidate],
    facts: dict[str, Any],
    choices: Iterable[Choice],
    *,
    long: bool = False,
) -> list[str]:
    """The front as lines of text. facts: of `pareto`, those that it was asked for. long: settings in words."""
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
        if sweep.baseline is not None:
            whose = f" of {name}" if len(front.sweeps) > 1 else ""
            lines.append(f"vanilla{whose}: trial {sweep.baseline.number} ({_describe_values(front, sweep.baseline)})")
    if "hypervolume" in facts:
        corner = ", ".join(f"{value:.4g}" for value in facts["reference_point"])
        volume = measured(facts["hypervolume"], facts["hypervolume_error"])
        lines.append(f"hypervolume: {volume}, from the reference point ({corner})")
    lines += [*notes, *choice_lines(front, choices)]
    return lines if lines[-1] else lines[:-1]


def choice_lines(front: Front, choices: Iterable[Choice]) -> list[str]:
    """What a front recommends; a trial that is recommended twice is described once."""
    lines, described = list[str](), set[str]()
    for choice in choices:
        lines += _choice_lines(front, choice, described)
        described.add(choice.trial.name)
    return lines


def _choice_lines(front: Front, choice: Choice, known: Container[str]) -> list[str]:
    """A choice: its trial, with each objective against vanilla's. known: trials that are described above it."""
    sure = "" if choice.confidence is None else f" (holds in {percent(choice.confidence)} of draws)"
    trial = choice.trial
    if trial.name in known or front.is_vanilla(trial):
        what = "vanilla itself" if front.is_vanilla(trial) else "see above"
        return [heading(f"{choice.heading}{sure}: trial {trial.name}, {what}")]
    lines = [heading(f"{choice.heading}{sure}"), f"  trial {trial.name}, {trial.title}"]
    for axis in (axis for axis in front.axes if axis.name in trial.record.metrics):
        entry = trial.record.metrics[axis.name]
        line = f"  {axis.name} {measured(entry.value, entry.error)}"
        if axis is front.axes[0] and choice.gain_confidence is not None:
            line += f", {axis.better} than vanilla in {percent(choice.gain_confidence)} of draws"
        elif axis is not front.axes[0] and axis.name in choice.changes:
            line += f", {signed_percent(*choice.changes[axis.name])} against vanilla"
        lines.append(line + (" by chance" if axis.name in choice.by_chance else ""))
    return lines


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
        share = f"{'' if row.on_front else 'no, '}{percent(row.confidence)}"
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
