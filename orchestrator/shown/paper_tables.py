"""Tables as a paper prints them: LaTeX with booktabs, or Markdown.

Values have as many digits as their errors allow (see `workers.metrics.estimate.measured`).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from orchestrator.front.choice import Choice, recommend
from orchestrator.front.front import Front
from orchestrator.front.trial import Trial
from orchestrator.shown.papers import Replication
from orchestrator.text import clean, markdown
from workers.metrics.definition import Metric

_LATEX = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    **{sign: f"\\{sign}" for sign in "&%$#_{}"},
    **{sign: f"${sign}$" for sign in "<>|"},
    "`": r"\textasciigrave{}",
    **{sign: f"{{{sign}}}" for sign in "[*"},  # arguments of the line break before a row
    "±": r"$\pm$",
    "×": r"$\times$",
    "≤": r"$\leq$",
    "≥": r"$\geq$",
    "↑": r"$\uparrow$",
    "↓": r"$\downarrow$",
}


@dataclass(frozen=True, slots=True)
class Cell:
    """A cell of a table."""

    text: str
    bold: bool = False  # whether it is to be seen first


_MISSING = Cell("-")


@dataclass(frozen=True, slots=True)
class PaperTable:
    """A table of a paper."""

    caption: str  # sentences
    head: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    numbers: int  # index of the first column of numbers, which are right-aligned

    def write(self, ending: str) -> bytes:
        """The table as a file with one of the endings of `orchestrator.outputs.PAPER_TABLES`."""
        text = self._latex() if ending == ".tex" else self._markdown()
        return text.encode()

    def _latex(self) -> str:
        columns = "l" * self.numbers + "r" * (len(self.head) - self.numbers)
        lines = [
            "% Needs \\usepackage{booktabs}.",
            r"\begin{table}",
            r"\centering",
            f"\\caption{{{_latex(self.caption)}}}",
            f"\\begin{{tabular}}{{{columns}}}",
            r"\toprule",
            _latex_row(map(_latex, self.head)),
            r"\midrule",
            *(_latex_row(_latex_cell(cell) for cell in row) for row in self.rows),
            r"\bottomrule",
            r"\end{tabular}",
            r"\end{table}",
        ]
        return "\n".join(lines) + "\n"

    def _markdown(self) -> str:
        rule = ["---"] * self.numbers + ["---:"] * (len(self.head) - self.numbers)
        rows = [map(_markdown_cell, row) for row in self.rows]
        lines = [f"| {' | '.join(cells)} |" for cells in (map(markdown, self.head), rule, *rows)]
        return "\n".join([markdown(self.caption), "", *lines]) + "\n"


def front_paper_table(
    front: Front, rows: Sequence[Trial], metrics: Sequence[Metric] = ()
) -> PaperTable:
    """A front's trials, with vanilla and what is recommended. Bold: the first objective of the best
    trial within the default bar, and of the best lossless one.

    metrics: further columns, each once. A trial without one has a dash there.
    """
    choices = recommend(front).choices
    best = [choice for kind, choice in choices.items() if kind in ("best", "best_lossless")]
    shown = {trial.name for trial in (*rows, *best)}
    shown |= {trial.name for trial in front.candidates if trial.is_vanilla}
    bold = {trial.name for trial in best}
    columns = tuple(dict.fromkeys((*front.metrics, *metrics)))
    lines = [
        [Cell(trial.name), Cell(trial.title), *_values(trial, columns, bold=trial.name in bold)]
        for trial in front.candidates
        if trial.name in shown
    ]
    head = ["trial", "setting", *(_heading(metric) for metric in columns)]
    off = [trial.name for trial in front.candidates if trial.name in shown and not trial.on_front]
    lossless = [
        trial.name
        for trial in front.candidates
        if trial.name in shown and trial.is_lossless and not trial.is_vanilla
    ]
    shared = [metric.name for metric in columns if metric.is_of_distribution]
    caption = _caption(front, best, off)
    if lossless and shared:
        caption += f" Lossless, with vanilla's {' and '.join(shared)}: {', '.join(lossless)}."
    return PaperTable(caption, head, lines, 2)


def replication_table(found: Replication) -> PaperTable:
    """A sweep's values beside the published ones, a row for each of the paper's settings. Bold:
    differs from the paper beyond the measured uncertainty.
    """
    metrics = list(dict.fromkeys(figure.metric for row in found.rows for figure in row.figures))
    rows = []
    for row in found.rows:
        figures = {figure.metric: figure for figure in row.figures}
        cells = [Cell(row.row.label)]
        for figure in map(figures.get, metrics):
            if figure is None:
                cells += [_MISSING, _MISSING]
                continue
            measured = _MISSING
            if figure.measured is not None:
                measured = Cell(str(figure.measured), figure.verdict == "differs")
            cells += [measured, Cell(figure.in_our_unit)]
        rows.append(cells)
    caption = (
        f"{found.sweep} beside {found.table}, the published values. Values are followed by one "
        "standard error. Bold: differs from the published value beyond the error at the 5 % level."
    )
    head = ["setting", *(name for metric in metrics for name in (metric, "published"))]
    return PaperTable(caption, head, rows, 1)


def _caption(front: Front, bold: Collection[Choice], off: Sequence[str]) -> str:
    of = [f"{name} ({len(sweep.records)} trials)" for name, sweep in front.sweeps.items()]
    machines = dict.fromkeys(str(sweep.machine) for sweep in front.sweeps.values() if sweep.machine)
    sentences = [f"The front of {' and '.join(of)}", "Values are followed by one standard error"]
    if machines:
        sentences.append(f"Speeds on {' and '.join(machines)}")
    if bold:
        sentences.append(f"Bold: {' and '.join(trial.choice for trial in bold)}")
    if off:
        sentences.append(f"Not on the front: {', '.join(off)}")
    text = "".join(f"{sentence}. " for sentence in sentences).strip()
    return text.replace("<=", "≤").replace(">=", "≥").replace(" * ", " × ")


def _heading(metric: Metric) -> str:
    name = f"{metric.name} [{metric.unit}]" if metric.is_time else metric.name
    arrow = "↑" if metric.direction == "maximize" else "↓"
    return f"{name} {arrow}"


def _values(trial: Trial, metrics: Sequence[Metric], *, bold: bool) -> list[Cell]:
    """Its values, the first of which may be bold."""
    cells = []
    for place, metric in enumerate(metrics):
        if metric.name in trial.metrics:
            cells.append(Cell(str(trial.metrics[metric.name]), bold and place == 0))
        else:
            cells.append(_MISSING)
    return cells


def _latex(text: str) -> str:
    text = "".join(_LATEX.get(letter, letter) for letter in clean(text))
    return re.sub(r"([-',])(?=\1)", r"\1{}", text)  # two are one sign otherwise


def _latex_cell(cell: Cell) -> str:
    text = _latex(cell.text)
    return f"\\textbf{{{text}}}" if cell.bold else text


def _latex_row(cells: Iterable[str]) -> str:
    return f"{' & '.join(cells)} \\\\"


def _markdown_cell(cell: Cell) -> str:
    text = markdown(cell.text)
    return f"**{text}**" if cell.bold else text
