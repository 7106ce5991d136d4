"""The results of commands as text: tables, fronts, and what fronts recommend.

Lines have names from a sweep's files: print them with `show`, or with `safe_text`.
"""

from __future__ import annotations

import io
import json
import shutil
import sys
from collections.abc import Container, Iterable, Sequence
from dataclasses import replace
from itertools import combinations
from typing import TYPE_CHECKING, Any, Literal

import typer

from orchestrator.text import clean, counted, percent
from workers.metrics.estimate import measured

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text

    from orchestrator.front.answer import Answer
    from orchestrator.front.choice import Choice
    from orchestrator.front.front import Front
    from orchestrator.front.trial import Candidate
    from orchestrator.store.records import TrialRecord
    from orchestrator.store.sweep import Sweep

_ANY_WIDTH = 100_000  # columns of a table that no terminal shows
_GAP = 2  # spaces between columns
_MAX_GROUPS, _MAX_NAMES = 8, 12  # of trials within error of each other, and in one of these groups


class Shown(str):
    """Text for standard output. Names in it are clean; it may have a terminal's colours."""

    __slots__ = ()


def safe_text(lines: Iterable[str]) -> str:
    """Lines of text and tables for output: names in a sweep's files cannot control the terminal."""
    return "\n".join(line if isinstance(line, Shown) else clean(line) for line in lines)


def say(text: str) -> None:
    """Print lines on standard error: names in them cannot control the terminal."""
    typer.echo(safe_text(text.split("\n")), err=True)


def show(facts: object, lines: Iterable[str], *, as_json: bool) -> None:
    """Print the result of a command."""
    typer.echo(output_text(facts, lines, as_json=as_json))


def output_text(facts: object, lines: Iterable[str], *, as_json: bool) -> str:
    """The result of a command: its facts as JSON, with null for numbers that are not finite, or its
    lines.
    """
    return _as_json(facts) if as_json else safe_text(lines)


def _as_json(facts: object) -> str:
    """Letters stay as they are; control characters, and bytes of a file's name that are no text,
    are escaped.
    """
    finite = json.loads(json.dumps(facts), parse_constant=lambda name: None)
    lines = json.dumps(finite, indent=2, ensure_ascii=False).split("\n")
    return "\n".join(
        "".join(letter if letter.isprintable() else json.dumps(letter)[1:-1] for letter in line)
        for line in lines
    )


def terminal_width() -> int:
    """Columns of the terminal; for a file or pipe the variable COLUMNS, else 80."""
    return shutil.get_terminal_size().columns


def _table_fits(head: Sequence[str], rows: Sequence[Sequence[str]]) -> bool:
    """Whether a table fits into the terminal without folding."""
    return (
        sum(max(map(len, column)) + _GAP for column in zip(head, *rows, strict=True)) - _GAP
        <= terminal_width()
    )


def shown_table(
    head: Sequence[str], rows: Sequence[Sequence[str]], *, right: Container[int] = ()
) -> Shown:
    """Aligned columns for standard output: folded to a terminal's width, else as wide as needed and
    without colours.

    right: indices of right-aligned columns, which are never folded.
    """
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    is_terminal = sys.stdout.isatty()
    box, padding = (SIMPLE_HEAD, (0, _GAP - 1, 0, 0)) if is_terminal else (None, (0, _GAP, 0, 0))
    table = Table(box=box, show_edge=False, pad_edge=False, padding=padding)
    for column, name in enumerate(head):
        justify: Literal["right", "left"] = "right" if column in right else "left"
        table.add_column(_cell(name), justify=justify, overflow="fold", no_wrap=column in right)
    for row in rows:
        table.add_row(*map(_cell, row))
    return _printed(table)


def heading(text: str) -> Shown:
    """A line that a terminal shows bold."""
    from rich.text import Text

    return _printed(Text(clean(text), style="bold", no_wrap=True, overflow="ignore"))


def _printed(content: Table | Text) -> Shown:
    from rich.console import Console

    buffer = io.StringIO()
    is_terminal = sys.stdout.isatty()
    width = terminal_width() if is_terminal else _ANY_WIDTH
    Console(file=buffer, force_terminal=is_terminal, width=width, highlight=False).print(content)
    return Shown("\n".join(line.rstrip() for line in buffer.getvalue().rstrip("\n").split("\n")))


def _cell(text: str) -> Text:
    """A cell of a table; a terminal shows the error of a value dim."""
    from rich.text import Text

    cell = Text(clean(text))
    cell.highlight_regex(r"± \S+$", "dim")
    return cell


def for_output(front: Front, *, long: bool, as_json: bool = False) -> Front:
    """The front with its settings' names as a command shows them. long: in full. JSON has the names
    of other files.
    """
    from orchestrator.store.names import Form

    if long:
        return replace(front, form=Form.FULL)
    return replace(front, form=Form.OWN if as_json else Form.ABBREVIATED)


def describe_front(answer: Answer) -> list[str]:
    """A front, and what it recommends, as lines of text."""
    front = answer.front
    metrics = " against ".join(
        f"{m.name} ({'higher' if m.direction == 'maximize' else 'lower'} is better)"
        for m in front.metrics
    )
    machines = [(name, sweep) for name, sweep in front.sweeps.items() if sweep.machine]
    count = len(front.members)
    verb = "is" if len(front.members) == 1 else "are"
    on_front = f"{count} of {counted(len(front.candidates), 'trial')} {verb} on the front"
    if front.left_out:
        left_out = ", ".join(f"{count} {reason}" for reason, count in front.left_out.items())
        on_front += f" (left out: {left_out})"
    lines = [
        f"{', '.join(front.sweeps)}: {metrics}",
        *(_describe_machine(name, sweep) for name, sweep in machines),
        on_front,
    ]
    if answer.stopped is not None:
        lines += ["", _stopped_table(answer.stopped, name_sweeps=len(front.sweeps) > 1)]
    notes = [f"note: {text}" for text in answer.notes]
    if not front.candidates:
        return [*lines, *notes]
    lines += ["", *front_table(front, answer.rows), ""]
    for name, sweep in front.sweeps.items():
        if sweep.baseline is not None:
            whose = f" of {name}" if len(front.sweeps) > 1 else ""
            values = _describe_values(front, sweep.baseline)
            lines.append(f"vanilla{whose}: trial {sweep.baseline.number} ({values})")
    if answer.hypervolume is not None:
        volume = measured(answer.hypervolume.value, answer.hypervolume.error)
        corner = ", ".join(f"{value:.4g}" for value in answer.hypervolume.reference_point)
        lines.append(f"hypervolume: {volume}, from the reference point ({corner})")
    lines += [*notes, *choice_lines(answer.recommended.choices.values())]
    return lines if lines[-1] else lines[:-1]


def _describe_machine(name: str, sweep: Sweep) -> str:
    """What the speeds of a sweep are of, and how to see those on its other devices."""
    from orchestrator.store import files
    from orchestrator.store.prices import Machine

    others = len(Machine.all(sweep.prices)) - 1
    where = (
        f" ({counted(others, 'other')}: {files.command(sweep.storage, 'compare', '--by', 'device')})"
        if others
        else ""
    )
    return f"speeds of {name}: on {sweep.machine}{where}"


def choice_lines(choices: Iterable[Choice]) -> list[str]:
    """What a front recommends; a trial that is recommended twice is described once."""
    lines = list[str]()
    described = set[str]()
    for choice in choices:
        lines += _choice_lines(choice, described)
        described.add(choice.name)
    return lines


def _choice_lines(trial: Choice, known: Container[str]) -> list[str]:
    """A choice: its trial, with each objective against vanilla's. known: trials that are described
    above it.
    """
    sure = "" if trial.probability is None else f" (holds in {percent(trial.probability)} of draws)"
    if trial.name in known or trial.is_vanilla:
        what = "vanilla itself" if trial.is_vanilla else "see above"
        basis = [] if trial.name in known else [f"  {text}" for text in trial.basis]
        return [heading(f"{trial.choice}{sure}: trial {trial.name}, {what}"), *basis]
    first = trial.metrics_asked[0]
    off = "" if trial.on_front else " (not on the front)"
    lines = [heading(f"{trial.choice}{sure}"), f"  {trial.heading}{off}"]
    for name in trial.objectives:
        line = f"  {name} {trial.metrics[name]}"
        if name == first.name and trial.gain_probability is not None:
            line += f", {first.better} than vanilla in {percent(trial.gain_probability)} of draws"
        elif name != first.name and (change := trial.against_vanilla(name)):
            line += f", {change}"
        lines.append(line)
    return [*lines, *(f"  {text}" for text in trial.basis)]


def _describe_values(front: Front, record: TrialRecord) -> str:
    """A trial's objectives, with their errors."""
    return ", ".join(
        f"{m.name} {record.metrics[m.name]}" for m in front.metrics if m.name in record.metrics
    )


def front_table(front: Front, rows: Sequence[Candidate]) -> list[str]:
    """A table with a row for each trial. Labels, and trials that the errors cannot tell apart, are
    columns if there is room, else lines below.
    """
    head = ["trial", "setting", *(metric.name for metric in front.metrics), "front"]
    cells = []
    for row in rows:
        share = f"{'' if row.on_front else 'no, '}{percent(row.confidence)}"
        values = [str(row.metrics[name]) for name in row.objectives]
        cells.append([row.name, row.setting, *values, share])
    labels = [row.record.label for row in rows]
    within = [", ".join(row.within_error_of or []) for row in rows]
    right = range(2, 3 + len(front.metrics))
    return trial_table(
        head, cells, labels, right, ("within error of", within, _describe_within_error(rows))
    )


def _describe_within_error(rows: Sequence[Candidate]) -> str:
    """Groups of trials of which any two are within error of each other, in the order of the rows,
    until every such pair is in one; after `_MAX_GROUPS` of them, how many pairs are left.
    """
    place = {row.name: index for index, row in enumerate(rows)}
    near = [{place[other] for other in row.within_error_of or []} for row in rows]
    left = {
        (first, second) for first, others in enumerate(near) for second in others if first < second
    }
    groups = list[str]()
    while left and len(groups) < _MAX_GROUPS:
        group = list(min(left))
        for index, others in enumerate(near):
            if others.issuperset(group):
                group.append(index)
        group.sort()
        left.difference_update(combinations(group, 2))
        groups.append(_enumerate([rows[index].name for index in group]))
    rest = [f"and {counted(len(left), 'pair')} more"] if left else []
    return "within error of each other: " + "; ".join([*groups, *rest])


def _enumerate(names: Sequence[str]) -> str:
    """At least two names, the first `_MAX_NAMES` of them: `0, 1 and 2`, or `0, 1, 2 and 45
    more`.
    """
    more = len(names) - _MAX_NAMES
    last = f"{more} more" if more > 0 else names[-1]
    shown = names[:_MAX_NAMES] if more > 0 else names[:-1]
    return f"{', '.join(shown)} and {last}"


def trial_table(
    head: list[str],
    cells: list[list[str]],
    labels: Sequence[str],
    right: Container[int],
    *more: tuple[str, Sequence[str], str],
) -> list[str]:
    """A table of trials, and the lines below it. Columns for which there is no room are lines.

    cells: of each trial, the first two of which are its name and its setting. labels: of the
    trials; one that is the setting's name is left out. more: further columns, as name, cells and
    line.
    """
    lines = []
    labels = ["" if label == row[1] else label for label, row in zip(labels, cells, strict=True)]
    named = "labels: " + "; ".join(
        f"{row[0]} {label}" for row, label in zip(cells, labels, strict=True) if label
    )
    for name, column, line in (*more, ("label", labels, named)):
        wider = [[*row, cell] for row, cell in zip(cells, column, strict=True)]
        if any(column) and _table_fits([*head, name], wider):
            head = [*head, name]
            cells = wider
        elif any(column):
            lines.append(line)
    return [shown_table(head, cells, right=right), *lines]


def _stopped_table(trials: Sequence[dict[str, Any]], *, name_sweeps: bool) -> str:
    if not trials:
        return "racing stopped no trial"
    names = [
        f"{trial['sweep']}#{trial['number']}" if name_sweeps else str(trial["number"])
        for trial in trials
    ]
    settings = [trial["setting"] for trial in trials]
    cells = [
        [name, setting, str(trial["images"]), str(trial["rival"]), trial["cause"]]
        for name, setting, trial in zip(names, settings, trials, strict=True)
    ]
    return shown_table(["stopped", "setting", "images", "rival", "reason"], cells, right=[2, 3])
