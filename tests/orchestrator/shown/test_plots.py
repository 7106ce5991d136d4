"""The picture of a front: names that do not cover each other, and rings around the choices."""

from __future__ import annotations

import itertools
import re
import warnings
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import pytest
from cycler import cycler
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.text import Annotation, Text

from orchestrator.front.choice import recommend
from orchestrator.front.front import Front, front_of
from orchestrator.shown.plot_labels import short_title
from orchestrator.shown.plots import FIGURE_SIZE, figure_size, front_plot, looks, plot_front
from orchestrator.store.records import write_trial
from orchestrator.store.sweep import Sweep
from tests.fakes.synthetic_sweeps import write_sweep
from workers.data.storage import Storage

FAMILIES = {"vanilla", "exact", "additive", "multiplicative", "exponential"}
# What is seen of linear RGB (Machado, Oliveira and Fernandes, 2009, severity 1).
PROTANOPIA = np.array(
    [[0.1523, 1.0526, -0.2049], [0.1145, 0.7863, 0.0992], [-0.0039, -0.0481, 1.0520]]
)
DEUTERANOPIA = np.array(
    [[0.3673, 0.8606, -0.2280], [0.2801, 0.6725, 0.0474], [-0.0118, 0.0429, 0.9689]]
)


@pytest.fixture(scope="module")
def front(tmp_path_factory: pytest.TempPathFactory) -> Front:
    folder = tmp_path_factory.mktemp("sweep")
    write_sweep(folder, trials=200)
    return front_of([Sweep.open(folder)])


def drawn(*fronts: Front, size: tuple[float, float] = (7.6, 5.6)) -> Axes:
    """Axes with these fronts."""
    figure = Figure(figsize=size, layout="constrained")
    FigureCanvasAgg(figure)
    plot = figure.add_subplot()
    for front in fronts:
        plot_front(plot, front)
    return plot


def values(front: Front, *, members: bool = False) -> np.ndarray:
    trials = front.members if members else front.candidates
    return np.array([[trial[metric.name] for metric in front.metrics] for trial in trials])


def lines(plot: Axes, label: str) -> list[np.ndarray]:
    """The points of the lines with this label."""
    return [np.array(line.get_xydata()) for line in plot.get_lines() if line.get_label() == label]


def front_with_labels(folder: Path, labels: Iterable[str]) -> Front:
    for record, label in zip(write_sweep(folder, trials=6), labels, strict=False):
        write_trial(Storage(str(folder)), replace(record, label=label))
    return front_of([Sweep.open(folder)])


def test_a_large_front_names_its_choices_and_at_most_a_dozen(front: Front) -> None:
    plot = drawn(front)
    texts = [note.get_text() for note in plot.texts]
    found = recommend(front).choices
    assert set(found) == {"best", "knee", "best_lossless"}
    assert {short_title(choice) for choice in found.values()} <= set(texts)
    assert "vanilla" in texts
    assert len(texts) <= 12
    names = plot.get_legend_handles_labels()[1]
    assert {choice.choice for choice in found.values()} <= set(names)


def test_names_lie_beside_the_plot_apart_and_in_the_order_of_their_points(
    front: Front, tmp_path: Path
) -> None:
    write_sweep(tmp_path, trials=24)
    for plot in (drawn(front), drawn(front_of([Sweep.open(tmp_path)]))):
        figure = plot.get_figure(root=True)
        assert figure is not None
        figure.draw_without_rendering()
        notes = sorted(
            (note for note in plot.texts if isinstance(note, Annotation)),
            key=lambda note: note.xy[1],
        )
        frames = [Text.get_window_extent(note) for note in notes]
        assert len(frames) > 5
        assert all(frame.x0 >= plot.get_window_extent().x1 for frame in frames)
        assert all(frame.x1 <= figure.bbox.x1 for frame in frames)
        assert all(low.y1 <= high.y0 for low, high in itertools.pairwise(frames))
        assert frames[0].y0 >= 0
        assert frames[-1].y1 <= figure.bbox.y1


def test_a_filter_changes_no_colour(tmp_path: Path) -> None:
    """Nor does a legend name what it has left out."""
    write_sweep(tmp_path, trials=24)
    sweep = Sweep.open(tmp_path)
    few = front_of([sweep], where=["acceptance.neighbourhood in none,multiplicative"])
    colours = []
    for front in (front_of([sweep]), few):
        handles, names = drawn(front).get_legend_handles_labels()
        marks: Iterable[tuple[str, Any]] = zip(names, handles, strict=True)
        own = {name: mark.get_facecolor()[0] for name, mark in marks if name in FAMILIES}
        colours.append({name: tuple(colour) for name, colour in own.items()})
    assert len(colours[1]) > 3
    assert "additive" in colours[0].keys() - colours[1].keys()
    assert colours[1].items() <= colours[0].items()


def test_a_second_front_on_the_same_axes_is_not_cut_off(front: Front, tmp_path: Path) -> None:
    write_sweep(tmp_path, trials=6)
    plot = drawn(front_of([Sweep.open(tmp_path)]), front)
    points = values(front)
    for (low, high), column in zip(
        (sorted(plot.get_xlim()), sorted(plot.get_ylim())), points.T, strict=True
    ):
        assert low < column.min()
        assert column.max() < high


@pytest.mark.parametrize(
    "draw",
    [
        lambda plot: plot.plot([], []),
        lambda plot: plot.plot([1.0, np.nan, 1.5], [1, 2, 3]),
        lambda plot: plot.plot([1.0, np.inf, 1.5], [1, 2, 3]),
        lambda plot: plot.scatter([], [], s=[]),
        lambda plot: plot.set_xlim(1.5, 1.5 + 1e-7),
    ],
    ids=["empty line", "gap", "infinite", "no marks", "close up"],
)
def test_small_axes_may_have_lines_and_limits_of_their_own(
    front: Front, draw: Callable[[Axes], Any]
) -> None:
    plot = drawn(size=(3.3, 2.6))
    draw(plot)
    plot_front(plot, front)
    assert all(text.get_text() in {trial.name for trial in front.candidates} for text in plot.texts)
    assert plot.texts


def test_a_small_figure_of_three_metrics_has_numbers_and_no_line(front: Front) -> None:
    plot = drawn(
        front_of(list(front.sweeps.values()), "speedup", "fid", "clip_score"), size=(3.3, 2.6)
    )
    assert not lines(plot, "front")
    assert plot.texts


def test_limits_that_were_set_before_stay(front: Front) -> None:
    plot = drawn()
    plot.set_xlim(1.5, 2.0)
    plot_front(plot, front)
    assert plot.get_xlim() == (1.5, 2.0)


def test_a_line_marks_the_quality_bar_of_a_single_sweep(front: Front, tmp_path: Path) -> None:
    (sweep,) = front.sweeps.values()
    assert sweep.baseline is not None
    for quality, factor in (("fid", 1.2), ("clip_score", 0.97)):
        (line,) = lines(
            drawn(front_of([sweep], "speedup", quality, feasible=False)),
            f"{factor} × vanilla's {quality}",
        )
        assert line[:, 1] == pytest.approx(factor * sweep.baseline.metrics[quality].value)
    write_sweep(tmp_path, trials=20, seed=1, name="other")
    both = front_of([sweep, Sweep.open(tmp_path)])
    names = drawn(both).get_legend_handles_labels()[1]
    assert recommend(both).choices["best"].choice in names
    assert not [name for name in names if "×" in name], "each sweep has its own bar"


@pytest.mark.parametrize(
    "axes",
    [("speedup", "fid"), ("latency", "drift"), ("speedup", "clip_score"), ("fid", "speedup")],
)
def test_the_stairs_are_the_edge_of_what_the_front_dominates(
    front: Front, axes: tuple[str, str]
) -> None:
    front = front_of(list(front.sweeps.values()), *axes)
    signs = np.array([-1 if metric.direction == "maximize" else 1 for metric in front.metrics])
    plot = drawn(front)
    (stairs,) = lines(plot, "front")
    members, corners = values(front, members=True) * signs, stairs * signs
    assert len(corners) == 2 * len(members) - 1
    assert (np.diff(stairs, axis=0) == 0).any(axis=1).all(), "steps are level or upright"
    for corner in corners:
        assert (members <= corner).all(axis=1).any(), "a setting reaches it"
        assert not (members < corner).all(axis=1).any()
    for metric, label in zip(front.metrics, (plot.get_xlabel(), plot.get_ylabel()), strict=True):
        assert ("higher is better" in label) == (metric.direction == "maximize")


def test_an_empty_front_says_so(front: Front) -> None:
    empty = front_of(list(front.sweeps.values()), where=["number>999"])
    plot = drawn(empty)
    assert [note.get_text() for note in plot.texts] == ["no measured trial yet"]
    assert not lines(plot, "front")
    assert front_plot(empty).startswith(b"\x89PNG")


def test_labels_are_drawn_as_plain_text(tmp_path: Path) -> None:
    front = front_with_labels(
        tmp_path, ["vanilla", "a\x1b[31mred\x07", "costs $5 to $9", "\x07 \x1b", "  "]
    )
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        front_plot(front, "a\x07 title of $x_1$")
    by_number = {candidate.record.number: candidate for candidate in front.candidates}
    assert short_title(by_number[1]) == "a�[31mred�"
    for number in (3, 4):
        assert short_title(by_number[number]).replace("\n", " ") == by_number[number].setting
    notes = {note.get_text(): note for note in drawn(front).texts}
    assert not notes["costs $5 to $9"].get_parse_math()


def test_a_narrow_figure_has_numbers_in_the_place_of_names_and_everything_within_it(
    front: Front,
) -> None:
    figure = Figure(figsize=(3.3, 2.4), layout="constrained")
    FigureCanvasAgg(figure)
    plot = figure.add_subplot()
    plot_front(plot, front, "a title")
    figure.draw_without_rendering()
    numbers = {trial.name for trial in front.candidates}
    assert {note.get_text() for note in plot.texts} <= numbers
    legend = plot.get_legend()
    assert legend is not None
    parts = [plot.xaxis.label, plot.yaxis.label, *plot.texts, legend]
    for frame in (part.get_window_extent() for part in parts):
        assert figure.bbox.x0 <= frame.x0
        assert frame.x1 <= figure.bbox.x1
        assert figure.bbox.y0 <= frame.y0
        assert frame.y1 <= figure.bbox.y1
    assert plot.bbox.height / figure.bbox.height > 0.5, "the plot has most of the figure"
    assert legend.get_window_extent().height / figure.bbox.height <= 0.2
    words = {text.get_text() for text in legend.get_texts()}
    assert {"add", "mul", "exp", "exact", "vanilla"} <= words


def small_front(folder: Path, size: tuple[float, float], trials: int = 24) -> tuple[Front, Axes]:
    """A front drawn in a figure of this size in inches."""
    write_sweep(folder, trials=trials)
    front = front_of([Sweep.open(folder)])
    figure = Figure(figsize=size, layout="constrained")
    FigureCanvasAgg(figure)
    plot = figure.add_subplot()
    plot_front(plot, front)
    figure.draw_without_rendering()
    return front, plot


@pytest.mark.parametrize("size", [(3.3, 2.4), (6.8, 2.6)])
def test_numbers_in_a_small_figure_are_legible(tmp_path: Path, size: tuple[float, float]) -> None:
    front, plot = small_front(tmp_path, size)
    frames = {note.get_text(): Text.get_window_extent(note) for note in plot.texts}
    assert len(frames) == len(plot.texts), "each once"
    assert len(frames) > 0.9 * len(front.candidates), "those off the front have numbers too"
    for one, other in itertools.combinations(frames.values(), 2):
        width = min(one.x1, other.x1) - max(one.x0, other.x0)
        assert width < 0.5 or min(one.y1, other.y1) - max(one.y0, other.y0) < 0.35 * one.height, (
            "letters have air"
        )
    for x, y in plot.transData.transform(values(front)):
        inner = [
            frame
            for frame in frames.values()
            if frame.x0 < x < frame.x1 and frame.y0 < y < frame.y1
        ]
        assert not inner


@pytest.mark.parametrize("size", [(2.0, 2.0), (3.3, 2.4), (6.8, 2.6), (4.0, 8.0), FIGURE_SIZE])
@pytest.mark.parametrize("trials", [1, 6, 60])
def test_all_fits_into_a_figure_of_any_size(
    tmp_path: Path, size: tuple[float, float], trials: int
) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        _, plot = small_front(tmp_path, size, trials)
    figure, legend = plot.get_figure(root=True), plot.get_legend()
    assert figure is not None
    assert legend is not None
    frame = legend.get_window_extent()
    assert frame.x0 > -1
    assert frame.x1 < figure.bbox.x1 + 1
    assert frame.y0 > -1


def test_names_are_as_many_as_the_plot_is_high(tmp_path: Path) -> None:
    words = " ".join(["a rather long label"] * 6)
    front = front_with_labels(tmp_path, [f"{words} {number}" for number in range(6)])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        front_plot(front)
    assert 0 < len(drawn(front).texts) < len(front.candidates)


def test_no_two_families_look_alike() -> None:
    """Every two differ in shape; and in colour, in lightness or in both for readers who are
    colour-blind.
    """
    found = list(looks([str(number) for number in range(8)]).values())
    assert len({look.shape for look in found}) == len(found)
    for matrix in (np.eye(3), PROTANOPIA, DEUTERANOPIA):
        seen = [matrix @ np.square(np.array(matplotlib.colors.to_rgb(look.rgb))) for look in found]
        for one, other in itertools.combinations(seen, 2):
            assert np.abs(np.sqrt(one.clip(0)) - np.sqrt(other.clip(0))).max() > 0.1


def test_a_style_sets_colours_fonts_and_size(front: Front) -> None:
    style: Any = {
        "axes.prop_cycle": cycler(color=["#123456"]),
        "text.color": "#abcdef",
        "legend.fontsize": 5.5,
        "axes.labelsize": 6.5,
        "figure.figsize": (5.0, 4.0),
    }
    with matplotlib.rc_context(style):
        picture = front_plot(front, ending=".svg").decode()
        plot = drawn(front)
        assert figure_size() == (5.0, 4.0)
    assert figure_size() == FIGURE_SIZE
    assert 'width="360pt" height="288pt"' in picture
    assert plot.xaxis.label.get_fontsize() == 6.5
    assert {note.get_fontsize() for note in plot.texts} == {5.5}
    assert "#123456" in picture
    assert "#abcdef" in picture
    assert "#123456" not in front_plot(front, ending=".svg").decode()


def test_a_pdf_has_its_fonts_as_truetype(front: Front) -> None:
    picture = front_plot(front, ending=".pdf", size=(3.3, 2.4))
    assert re.findall(rb"/MediaBox \[ *0 0 ([\d.]+) ([\d.]+) *\]", picture) == [
        (b"237.6", b"172.8")
    ]
    assert b"/FontFile2" in picture
    assert b"/Type3" not in picture
