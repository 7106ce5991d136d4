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
    from workers.metrics.definition import Metric

_ANY_WIDTH = 100_000  # columns of a table that no terminal shows
_GAP = 2  # spaces between columns
_MAX_GROUPS = 8  # of trials within error of each other
_MAX_NAMES = 12  # in one of these groups


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
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    return sum(widths) + _GAP * (len(widths) - 1) <= terminal_width()


def shown_table(
    head: Sequence[str], rows: Sequence[Sequence[str]], *, right: Container[int] = ()
) -> Shown:
    """Aligned columns for standard output: folded to a terminal's width, else as wide as needed and
    without colours.

    right: indices of right-aligned columns, which are never folded.
    """
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    table = Table(box=None, show_edge=False, pad_edge=False, padding=(0, _GAP, 0, 0))
    if sys.stdout.isatty():
        table.box = SIMPLE_HEAD
        table.padding = (0, _GAP - 1, 0, 0)
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

    form = Form.OWN if as_json else Form.ABBREVIATED
    return replace(front, form=Form.FULL if long else form)


def describe_front(answer: Answer) -> list[str]:
    """A front, and what it recommends, as lines of text."""
    sweeps = answer.sweeps
    several = len(sweeps) > 1
    lines = [f"{', '.join(sweeps)}: {' against '.join(map(_describe_metric, answer.metrics))}"]
    lines += [_describe_machine(name, sweep) for name, sweep in sweeps.items() if sweep.machine]
    lines.append(_count_trials(answer))
    if answer.stopped is not None:
        lines += ["", _stopped_table(answer.stopped, name_sweeps=several)]
    notes = [f"note: {text}" for text in answer.notes]
    if not answer.measured:
        return [*lines, *notes]
    lines += ["", *front_table(answer.metrics, answer.rows), ""]
    for name, sweep in sweeps.items():
        if sweep.baseline is not None:
            whose = f" of {name}" if several else ""
            values = _describe_values(answer.metrics, sweep.baseline)
            lines.append(f"vanilla{whose}: trial {sweep.baseline.number} ({values})")
    if answer.hypervolume is not None:
        volume = measured(answer.hypervolume.value, answer.hypervolume.error)
        corner = ", ".join(f"{value:.4g}" for value in answer.hypervolume.reference_point)
        lines.append(f"hypervolume: {volume}, from the reference point ({corner})")
    lines += [*notes, *choice_lines(answer.recommended.choices.values())]
    if answer.recommended.choices:
        lines += _other_batches(sweeps.values())
    return lines if lines[-1] else lines[:-1]


def _describe_metric(metric: Metric) -> str:
    better = "higher" if metric.direction == "maximize" else "lower"
    return f"{metric.name} ({better} is better)"


def _count_trials(answer: Answer) -> str:
    """How many trials are on the front, and how many were left out of it."""
    verb = "is" if answer.on_front == 1 else "are"
    text = f"{answer.on_front} of {counted(answer.measured, 'trial')} {verb} on the front"
    if answer.left_out:
        left_out = ", ".join(f"{count} {reason}" for reason, count in answer.left_out.items())
        text += f" (left out: {left_out})"
    return text


def _describe_machine(name: str, sweep: Sweep) -> str:
    """What the speeds of a sweep are of, and how to see those on its other devices."""
    from orchestrator.store import files
    from orchestrator.store.prices import Machine

    text = f"speeds of {name}: on {sweep.machine}"
    if others := len(Machine.all(sweep.prices)) - 1:
        compare = files.command(sweep.storage, "compare", "--by", "device")
        text += f" ({counted(others, 'other')}: {compare})"
    return text


def _other_batches(sweeps: Iterable[Sweep]) -> list[str]:
    """How to time the choices at another batch size, for each sweep that was timed at one alone:
    its speed-ups are often far smaller there.
    """
    from orchestrator.store import files
    from orchestrator.store.prices import Machine

    lines = []
    for sweep in sweeps:
        batches = {machine.batch for machine in Machine.all(sweep.prices)}
        if len(batches) == 1 and sweep.machine is not None:
            other = 8 if batches == {1} else 1
            command = files.command(sweep.storage, "time", "--batch", str(other))
            lines.append(f"timed at batch {sweep.machine.batch} alone; at batch {other}: {command}")
    return lines


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
    purpose = trial.choice
    if trial.probability is not None:
        purpose += f" (holds in {percent(trial.probability)} of draws)"
    basis = [f"  {text}" for text in trial.basis]
    if trial.name in known:
        what = "vanilla itself" if trial.is_vanilla else "see above"
        return [heading(f"{purpose}: trial {trial.name}, {what}")]
    if trial.is_vanilla:
        return [heading(f"{purpose}: trial {trial.name}, vanilla itself"), *basis]
    title = f"  {trial.heading}"
    if not trial.on_front:
        title += " (not on the front)"
    values = [f"  {_describe_objective(trial, name)}" for name in trial.objectives]
    return [heading(purpose), title, *values, *basis]


def _describe_objective(trial: Choice, name: str) -> str:
    """A trial's value in a metric of the front, against vanilla's."""
    from orchestrator.store.prices import is_priced

    first = trial.front_metrics[0]
    text = f"{name} {trial.metrics[name]}"
    if trial.sweep.machine is not None and is_priced(name):
        text += f" at batch {trial.sweep.machine.batch}"
    if name == first.name:
        if trial.gain_probability is not None:
            text += f", {first.better} than vanilla in {percent(trial.gain_probability)} of draws"
    elif change := trial.against_vanilla(name):
        text += f", {change}"
    return text


def _describe_values(metrics: Iterable[Metric], record: TrialRecord) -> str:
    """A trial's values in these metrics, with their errors."""
    names = [metric.name for metric in metrics if metric.name in record.metrics]
    return ", ".join(f"{name} {record.metrics[name]}" for name in names)


def front_table(metrics: Sequence[Metric], rows: Sequence[Candidate]) -> list[str]:
    """A table with a row for each trial, and columns for a front's metrics. Labels, and trials that
    the errors cannot tell apart, are columns if there is room, else lines below.
    """
    head = ["trial", "setting", *(metric.name for metric in metrics), "front"]
    cells = []
    for row in rows:
        share = percent(row.confidence)
        if not row.on_front:
            share = f"no, {share}"
        values = [str(row.metrics[name]) for name in row.objectives]
        cells.append([row.name, row.setting, *values, share])
    labels = [row.record.label for row in rows]
    within = [", ".join(row.within_error_of or []) for row in rows]
    right = range(2, 3 + len(metrics))
    return trial_table(
        head, cells, labels, right, ("within error of", within, _describe_within_error(rows))
    )


def _describe_within_error(rows: Sequence[Candidate]) -> str:
    """Groups of trials of which any two are within error of each other, in the order of the rows,
    until every such pair is in one; after `_MAX_GROUPS` of them, how many pairs are left.
    """
    place = {row.name: index for index, row in enumerate(rows)}
    near = [{place[other] for other in row.within_error_of or []} for row in rows]
    left: set[tuple[int, int]] = set()
    for first, others in enumerate(near):
        left.update((first, second) for second in others if first < second)
    groups = list[str]()
    while left and len(groups) < _MAX_GROUPS:
        group = list(min(left))
        for index, others in enumerate(near):
            if others.issuperset(group):
                group.append(index)
        group.sort()
        left.difference_update(combinations(group, 2))
        groups.append(_enumerate([rows[index].name for index in group]))
    if left:
        groups.append(f"and {counted(len(left), 'pair')} more")
    return "within error of each other: " + "; ".join(groups)


def _enumerate(names: Sequence[str]) -> str:
    """At least two names, the first `_MAX_NAMES` of them: `0, 1 and 2`, or `0, 1, 2 and 45
    more`.
    """
    if len(names) > _MAX_NAMES:
        shown = names[:_MAX_NAMES]
        last = f"{len(names) - _MAX_NAMES} more"
    else:
        *shown, last = names
    return f"{', '.join(shown)} and {last}"


def trial_table(
    head: list[str],
    cells: list[list[str]],
    labels: Sequence[str],
    right: Container[int],
    *more: tuple[str, Sequence[str], str],
) -> list[str]:
    """A table of trials, and the lines below it. Columns for which there is no room are lines.

    Args:
        head: names of the columns.
        cells: of each trial; the first two are its name and its setting.
        labels: of the trials; one that is the setting's name is left out.
        right: indices of right-aligned columns.
        more: further columns, as name, cells and line.
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
    cells = []
    for trial in trials:
        name = str(trial["number"])
        if name_sweeps:
            name = f"{trial['sweep']}#{name}"
        numbers = [str(trial["images"]), str(trial["rival"])]
        cells.append([name, trial["setting"], *numbers, trial["cause"]])
    return shown_table(["stopped", "setting", "images", "rival", "reason"], cells, right=[2, 3])
