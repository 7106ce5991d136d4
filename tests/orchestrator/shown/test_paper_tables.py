"""The tables of a paper: rows, bold values, and characters that LaTeX and Markdown would read as
commands.
"""

from __future__ import annotations

import csv
import io
import re
import shutil
import subprocess
from dataclasses import replace
from html import escape
from pathlib import Path

import pytest
from markdown_it import MarkdownIt

from orchestrator.front.choice import recommend
from orchestrator.front.front import Front, front_of
from orchestrator.outputs import table_bytes
from orchestrator.shown.paper_tables import Cell, PaperTable, front_paper_table
from orchestrator.shown.plots import front_plot
from orchestrator.store.records import write_trial
from orchestrator.store.sweep import Sweep
from tests.fakes.synthetic_sweeps import write_sweep
from workers.data.storage import Storage

ROOT = Path(__file__).parents[3]
HOSTILE = r"a_b & 100 % $5 #1 {x} ~ ^ \ <y> | *z* `w` [q]"


@pytest.fixture(scope="module")
def front(tmp_path_factory: pytest.TempPathFactory) -> Front:
    folder = tmp_path_factory.mktemp("sweep")
    write_sweep(folder, trials=24)
    return front_of([Sweep.open(folder)])


def cells(table: PaperTable) -> dict[str, dict[str, Cell]]:
    """By trial and heading."""
    return {row[0].text: dict(zip(table.head, row, strict=True)) for row in table.rows}


def test_the_front_vanilla_and_what_is_recommended_are_rows(front: Front) -> None:
    rows = cells(front_paper_table(front, front.members))
    chosen = recommend(front).choices
    vanilla = next(trial for trial in front.candidates if trial.is_vanilla)
    expected = {
        trial.name for trial in (*front.members, vanilla, chosen["best"], chosen["best_lossless"])
    }
    assert rows.keys() == expected
    order = [trial.name for trial in front.candidates if trial.name in expected]
    assert list(rows) == order
    everything = cells(front_paper_table(front, front.candidates))
    assert list(everything) == [trial.name for trial in front.candidates]


def test_bold_is_the_first_objective_of_the_best_trials_alone(front: Front) -> None:
    chosen = recommend(front).choices
    rows = cells(front_paper_table(front, front.candidates))
    bold = {(name, head) for name, row in rows.items() for head, cell in row.items() if cell.bold}
    assert bold == {(chosen["best"].name, "speedup ↑"), (chosen["best_lossless"].name, "speedup ↑")}
    assert "1.2 × vanilla" in front_paper_table(front, front.members).caption
    off = {trial.name for trial in front.candidates if not trial.on_front}
    caption = front_paper_table(front, front.candidates).caption
    named = caption.partition("Not on the front: ")[2].partition(".")[0]
    assert set(named.split(", ")) == off != set()
    equal = caption.partition("Lossless, with vanilla's fid: ")[2].rstrip(".")
    others = [trial for trial in front.candidates if trial.is_lossless and not trial.is_vanilla]
    assert equal.split(", ") == [trial.name for trial in others]


def test_values_have_their_errors_and_further_metrics_their_columns(front: Front) -> None:
    (sweep,) = front.sweeps.values()
    rows = cells(
        front_paper_table(
            front, front.members, [sweep.metric("clip_score"), sweep.metric("latency")]
        )
    )
    for trial in front.members:
        row = rows[trial.name]
        assert row["speedup ↑"].text == str(trial.metrics["speedup"])
        assert row["fid ↓"].text == str(trial.metrics["fid"])
        assert row["clip_score ↑"].text == str(trial.metrics["clip_score"])
        assert "latency [s/image] ↓" in row


def test_a_column_that_is_an_objective_is_there_once(front: Front) -> None:
    (sweep,) = front.sweeps.values()
    table = front_paper_table(front, front.members, [sweep.metric("fid"), sweep.metric("fid")])
    assert len(set(table.head)) == len(table.head) == 4


@pytest.mark.parametrize("label", ["[1] greedy", "*best"])
def test_a_row_is_no_argument_of_the_line_break_before_it(label: str) -> None:
    text = PaperTable("", ["setting", "fid"], [[Cell(label), Cell("1")]], 1).write(".tex").decode()
    assert not re.search(r"(\\\\|rule)\s*[\[*]", text)


def test_names_of_files_control_neither_latex_nor_markdown(tmp_path: Path) -> None:
    for record in write_sweep(tmp_path, trials=6)[:3]:
        write_trial(Storage(str(tmp_path)), replace(record, label=HOSTILE + str(record.number)))
    table = front_paper_table(
        front_of([Sweep.open(tmp_path)]), front_of([Sweep.open(tmp_path)]).candidates
    )
    lines = table.write(".tex").decode().splitlines()
    rows = [line for line in lines if "100 " in line]
    assert len(rows) == 3
    for row in rows:
        assert row.endswith(r"\\")
        assert len(re.findall(r"(?<!\\)&", row)) == len(table.head) - 1
        assert not re.search(r"(?<!\\)[%#_]", row)
    plain = [line for line in table.write(".md").decode().splitlines() if line.startswith("|")]
    assert {len(re.findall(r"(?<!\\)\|", line)) for line in plain} == {len(table.head) + 1}


@pytest.mark.parametrize(
    "label", ["50% $k_1$ | a_b", "$a$ and `$b$` &amp; ~~c~~ ^d^ <e>", r"\\", HOSTILE]
)
def test_markdown_shows_a_label_as_it_is(label: str) -> None:
    text = PaperTable("", ["setting", "fid"], [[Cell(label), Cell("1")]], 1).write(".md").decode()
    rendered = MarkdownIt().enable(["table", "strikethrough"]).render(text)
    assert re.findall(r"<td>(.*?)</td>", rendered) == [escape(label)]
    assert not re.search(r"(?<!\\)(?:\\\\)*\$", text), "GitHub and notebooks would read mathematics"


def test_csv_has_a_label_as_it_is(tmp_path: Path) -> None:
    label = '50% $k_1$ | a_b, "c"'
    write_trial(Storage(str(tmp_path)), replace(write_sweep(tmp_path, trials=1)[0], label=label))
    front = front_of([Sweep.open(tmp_path)])
    rows = list(
        csv.DictReader(io.StringIO(table_bytes(front.table(front.candidates), ".csv").decode()))
    )
    assert [row["label"] for row in rows] == [label]


@pytest.mark.parametrize("pair", ["--", "''", ",,", "``"])
def test_latex_joins_no_two_signs_of_a_label(pair: str) -> None:
    text = PaperTable("", [""], [[Cell(f"a{pair}{pair}b")]], 1).write(".tex").decode()
    assert pair not in text
    if pair != "``":  # they have a name
        assert (pair[0] + "{}") * 3 + pair[0] in text


needs_latex = pytest.mark.skipif(
    shutil.which("pdflatex") is None,
    reason="needs LaTeX (pdflatex, and Debian's texlive-latex-recommended for booktabs)",
)


def log_of(folder: Path, body: str, options: str = "") -> str:
    """What LaTeX says of an article with this body, which it compiles in a folder."""
    preamble = rf"\documentclass[{options}]{{article}}\usepackage{{booktabs,tabularx,graphicx}}"
    (folder / "paper.tex").write_text(rf"{preamble}\begin{{document}}{body}\end{{document}}")
    command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "paper.tex"]
    ran = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout[-2000:]
    assert (folder / "paper.pdf").read_bytes().startswith(b"%PDF")
    return ran.stdout


def overfull(log: str) -> list[float]:
    """By how many points each box of a log is too wide."""
    return [float(points) for points in re.findall(r"Overfull \\hbox \(([\d.]+)pt too wide\)", log)]


@needs_latex
def test_latex_reads_names_that_are_commands(front: Front, tmp_path: Path) -> None:
    head = [*front_paper_table(front, front.members).head]
    hostile = PaperTable("caption " + HOSTILE, head, [[Cell(HOSTILE, bold=True)] * len(head)], 2)
    (tmp_path / "hostile.tex").write_bytes(hostile.write(".tex"))
    log_of(tmp_path, r"\input{hostile}")


@needs_latex
def test_a_column_holds_the_table_and_the_figure(front: Front, tmp_path: Path) -> None:
    """In a two-column article: of two and of three metrics, over the page with more of them, the
    published values, and a figure in the size that the documentation gives.
    """
    (sweep,) = front.sweeps.values()
    clip, drift, latency = map(sweep.metric, ("clip_score", "drift", "latency"))
    tables = {
        "column": front_paper_table(front, front.candidates, is_wide=False),
        "three": front_paper_table(front, front.candidates, [clip], is_wide=False),
        "wide": front_paper_table(front, front.candidates, [clip, drift, latency]),
    }
    for name, table in tables.items():
        (tmp_path / f"{name}.tex").write_bytes(table.write(".tex"))
    size = re.search(r"--plot-size ([\d.]+)x([\d.]+)", (ROOT / "README.md").read_text())
    assert size
    for name, inches in (("own", (float(size[1]), float(size[2]))), ("scaled", (3.3, 2.4))):
        picture = front_plot(front, ending=".pdf", size=inches)
        (tmp_path / f"{name}.pdf").write_bytes(picture)
    inputs = "".join(rf"\input{{{name}}}" for name in tables)
    figures = r"\includegraphics{own}\par\noindent\includegraphics[width=\columnwidth]{scaled}\par"
    log = log_of(tmp_path, rf"\noindent {figures}{inputs}\ref{{tab:made-up}}", "twocolumn")
    assert overfull(log) == []
    broad = log_of(tmp_path, r"\noindent\rule{\columnwidth}{1pt}\rule{9pt}{1pt}", "twocolumn")
    assert overfull(broad) == [pytest.approx(9)], "it would have been seen"


def test_a_table_is_as_wide_as_a_column_unless_it_has_many_metrics(front: Front) -> None:
    (sweep,) = front.sweeps.values()
    clip, drift = map(sweep.metric, ("clip_score", "drift"))
    for metrics, is_wide, environment in (
        ([], False, "table"),
        ([clip], False, "table"),
        ([clip, drift], False, "table*"),
        ([], True, "table*"),
    ):
        table = front_paper_table(front, front.candidates, metrics, is_wide=is_wide)
        text = table.write(".tex").decode()
        assert re.findall(r"\\begin\{(table\*?)\}", text) == [environment]
        assert re.findall(r"\\label\{(.*?)\}", text) == ["tab:" + "-".join(front.sweeps)]
        settings = {row[0].text: row[1].text for row in table.rows}
        for trial in front.candidates:
            if trial.record.label not in ("", trial.setting):
                assert (trial.setting in settings[trial.name]) == (environment == "table*")
                assert trial.record.label in settings[trial.name]
