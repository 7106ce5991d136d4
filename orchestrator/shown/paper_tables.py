"""Tables as a paper prints them: LaTeX with booktabs, or Markdown.

A LaTeX table is as wide as a column of the page, or as the page (`table*`); names that are too
long for it wrap. Values have as many digits as their errors allow (see
`workers.metrics.estimate.measured`).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from itertools import chain

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
_MAX_METRICS_IN_COLUMN = 3  # more of them need the whole page


@dataclass(frozen=True, slots=True)
class PaperTable:
    """A table of a paper."""

    caption: str  # sentences
    head: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    numbers: int  # index of the first column of numbers, which are right-aligned
    label: str = "table"  # of \label, after `tab:`
    is_wide: bool = False  # whether it spans the columns of a page

    def write(self, ending: str) -> bytes:
        """The table as a file with one of the endings of `orchestrator.outputs.PAPER_TABLES`."""
        text = self._latex() if ending == ".tex" else self._markdown()
        return text.encode()

    def _latex(self) -> str:
        # the last column of texts takes the width that the others leave
        texts = "l" * (self.numbers - 1) + r">{\raggedright\arraybackslash}X"
        columns = texts + "r" * (len(self.head) - self.numbers)
        environment = "table*" if self.is_wide else "table"
        label = re.sub(r"[^A-Za-z0-9.-]+", "-", self.label)
        lines = [
            r"% Needs \usepackage{booktabs,tabularx}.",
            f"\\begin{{{environment}}}",
            r"\centering",
            f"\\caption{{{_latex(self.caption)}}}",
            f"\\label{{tab:{label}}}",
            r"\vspace{\abovecaptionskip}",
            r"\footnotesize\setlength{\tabcolsep}{3pt}",
            f"\\begin{{tabularx}}{{\\linewidth}}{{@{{}}{columns}@{{}}}}",
            r"\toprule",
            _latex_row(map(_latex, self.head)),
            r"\midrule",
            *(_latex_row(map(_latex_cell, row)) for row in self.rows),
            r"\bottomrule",
            r"\end{tabularx}",
            f"\\end{{{environment}}}",
        ]
        return "\n".join(lines) + "\n"

    def _markdown(self) -> str:
        rule = ["---"] * self.numbers + ["---:"] * (len(self.head) - self.numbers)
        rows = [map(_markdown_cell, row) for row in self.rows]
        lines = [f"| {' | '.join(cells)} |" for cells in (map(markdown, self.head), rule, *rows)]
        return "\n".join([markdown(self.caption), "", *lines]) + "\n"


def front_paper_table(
    front: Front, rows: Sequence[Trial], metrics: Sequence[Metric] = (), *, is_wide: bool = True
) -> PaperTable:
    """A front's trials, with vanilla and what is recommended. Bold: the first objective of the best
    trial within the default bar, and of the best lossless one.

    Args:
        front: the front.
        rows: its trials that the table has.
        metrics: further columns, each once. A trial without one has a dash there.
        is_wide: whether the table has the names of settings after labels, over the whole page. A
            table with too many metrics for a column does so in any case.
    """
    choices = recommend(front).choices
    best = [choice for kind, choice in choices.items() if kind in ("best", "best_lossless")]
    shown = {trial.name for trial in (*rows, *best)}
    shown |= {trial.name for trial in front.candidates if trial.is_vanilla}
    bold = {trial.name for trial in best}
    columns = tuple(dict.fromkeys((*front.metrics, *metrics)))
    is_wide = is_wide or len(columns) > _MAX_METRICS_IN_COLUMN
    short_names = front.names.abbreviated()
    lines = []
    for trial in front.candidates:
        if trial.name in shown:
            name = trial.title
            if not is_wide:
                name = trial.record.label.strip() or short_names.name(trial.config)
            values = _values(trial, columns, bold=trial.name in bold)
            lines.append([Cell(trial.name), Cell(name), *values])
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
    return PaperTable(caption, head, lines, 2, "-".join(front.sweeps), is_wide)


def replication_table(found: Replication) -> PaperTable:
    """A sweep's values and the published ones: metric by metric, a row for each of the paper's
    settings that has a measured value. Bold: differs from the paper beyond the measured
    uncertainty.
    """
    rows: dict[str, list[list[Cell]]] = {}
    for row in found.rows:
        for figure in row.figures:
            if figure.measured is None:
                continue
            of_metric = rows.setdefault(figure.metric, [])
            measured = Cell(str(figure.measured), figure.verdict == "differs")
            name = "" if of_metric else figure.metric
            cells = [Cell(name), Cell(row.row.label), measured, Cell(figure.in_our_unit)]
            of_metric.append(cells)
    sentences = [
        f"{found.sweep} and the published values of {found.table}",
        "Values are followed by one standard error",
        "Bold: differs from the published value beyond the error at the 5 % level",
        *found.caveats,
    ]
    caption = " ".join(f"{sentence}." for sentence in sentences)
    label = f"{found.sweep}-{found.table}"
    head = ["metric", "setting", "measured", "published"]
    return PaperTable(caption, head, list(chain.from_iterable(rows.values())), 2, label)


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
    text = re.sub(r"([-',])(?=\1)", r"\1{}", text)  # two are one sign otherwise
    return re.sub(r"(?<=[,+/])(?=\w)", r"\\allowbreak{}", text)  # where a name may wrap


def _latex_cell(cell: Cell) -> str:
    text = _latex(cell.text)
    return f"\\textbf{{{text}}}" if cell.bold else text


def _latex_row(cells: Iterable[str]) -> str:
    return f"{' & '.join(cells)} \\\\"


def _markdown_cell(cell: Cell) -> str:
    text = markdown(cell.text)
    return f"**{text}**" if cell.bold else text
