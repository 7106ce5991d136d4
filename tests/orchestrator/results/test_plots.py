"""The picture of a front: names that do not cover each other, and rings around the choices."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from orchestrator.results.choices import BEST, KNEE, LOSSLESS
from orchestrator.results.plot_labels import Obstacles, place_labels
from orchestrator.results.plots import draw_front, front_plot, marked_choices, short_title
from orchestrator.results.store import write_trial
from orchestrator.results.sweep import Front, Sweep, front_of
from tests.fakes.synthetic_sweeps import write_sweep
from workers.data.storage import Storage

AREA, NO_MARKS, NO_LINES = np.array([0.0, 0.0, 400.0, 300.0]), np.empty((0, 3)), np.empty((0, 2, 2))


def boxes(points: np.ndarray, sizes: np.ndarray, dots: np.ndarray) -> list[tuple[np.ndarray, np.ndarray]]:
    """The corners of the labels that have a place."""
    places = place_labels(points, sizes, Obstacles(dots, NO_MARKS, NO_LINES), AREA, 1.0)
    centres = [
        (p + np.array([place.x, place.y]), s) for p, s, place in zip(points, sizes, places, strict=True) if place
    ]
    return [(centre - size / 2, centre + size / 2) for centre, size in centres]


def test_labels_lie_inside_and_cover_neither_each_other_nor_points() -> None:
    points = np.array([[395.0, 295.0], [200, 150], [215, 152], [5, 5], [205, 160]])
    sizes = np.tile([80.0, 12.0], (len(points), 1))
    placed = boxes(points, sizes, points)
    assert len(placed) == len(points)
    for low, high in placed:
        assert (low >= AREA[:2]).all()
        assert (high <= AREA[2:]).all()
        assert not ((points > low) & (points < high)).all(axis=1).any()
    for (low, high), (other_low, other_high) in itertools.combinations(placed, 2):
        assert ((low >= other_high) | (other_low >= high)).any()


def test_a_label_without_room_is_left_out() -> None:
    points = np.full((40, 2), [200.0, 150.0])
    placed = boxes(points, np.tile([150.0, 60.0], (40, 1)), points)
    assert 1 <= len(placed) < 12


def test_no_label_covers_a_mark() -> None:
    point, size = np.array([[200.0, 150.0]]), np.array([[80.0, 12.0]])
    for reach, has_place in ((50.0, True), (100.0, False)):
        marks = np.array([[200.0, 150.0, reach]])
        (place,) = place_labels(point, size, Obstacles(point, marks, NO_LINES), AREA, 1.0)
        assert (place is not None) == has_place
        if place is not None:
            assert (abs(np.array([place.x, place.y])) - size[0] / 2 >= reach).any()


def test_no_line_to_a_label_crosses_another_label() -> None:
    rng = np.random.default_rng(1)
    points = rng.uniform([100, 100], [300, 200], (30, 2))
    sizes = np.tile([70.0, 12.0], (len(points), 1))
    places = place_labels(points, sizes, Obstacles(points, NO_MARKS, NO_LINES), AREA, 1.0)
    placed = [(p, np.array([place.x, place.y]), place) for p, place in zip(points, places, strict=True) if place]
    assert sum(place.is_far for *_, place in placed) > 3
    for (point, shift, place), (other, away, _) in itertools.permutations(placed, 2):
        steps = point + np.linspace(0, 1, 20)[:, None] * shift
        assert not place.is_far or not (abs(steps - (other + away)) < sizes[0] / 2 - 1).all(axis=1).any()


@pytest.fixture(scope="module")
def front(tmp_path_factory: pytest.TempPathFactory) -> Front:
    folder = tmp_path_factory.mktemp("sweep")
    write_sweep(folder, trials=200)
    return front_of([Sweep.open(folder)])


def drawn(*fronts: Front) -> Axes:
    """Axes with these fronts."""
    figure = Figure(figsize=(7.6, 5.6), layout="constrained")
    FigureCanvasAgg(figure)
    plot = figure.add_subplot()
    for front in fronts:
        draw_front(plot, front)
    return plot


def values(front: Front, *, members: bool = False) -> np.ndarray:
    trials = front.members if members else front.candidates
    return np.array([[trial.record.metrics[axis.name].value for axis in front.axes] for trial in trials])


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
    found = marked_choices(front)
    assert set(found) == {BEST, KNEE, LOSSLESS}
    assert {short_title(choice.trial) for choice in found.values()} <= set(texts)
    assert "vanilla" in texts
    assert len(texts) <= 12
    names = plot.get_legend_handles_labels()[1]
    assert {choice.heading for choice in found.values()} <= set(names)


def test_a_second_front_on_the_same_axes_is_not_cut_off(front: Front, tmp_path: Path) -> None:
    write_sweep(tmp_path, trials=6)
    plot = drawn(front_of([Sweep.open(tmp_path)]), front)
    points = values(front)
    for (low, high), column in zip((sorted(plot.get_xlim()), sorted(plot.get_ylim())), points.T, strict=True):
        assert low < column.min()
        assert column.max() < high


def test_limits_that_were_set_before_stay(front: Front) -> None:
    plot = drawn()
    plot.set_xlim(1.5, 2.0)
    draw_front(plot, front)
    assert plot.get_xlim() == (1.5, 2.0)


def test_a_line_marks_the_quality_bar_of_a_single_sweep(front: Front, tmp_path: Path) -> None:
    (sweep,) = front.sweeps.values()
    assert sweep.baseline is not None
    for quality, factor in (("fid", 1.2), ("clip_score", 0.97)):
        (line,) = lines(drawn(front_of([sweep], "speedup", quality, feasible=False)), f"{factor} × vanilla's {quality}")
        assert line[:, 1] == pytest.approx(factor * sweep.baseline.metrics[quality].value)
    write_sweep(tmp_path, trials=20, seed=1, name="other")
    both = front_of([sweep, Sweep.open(tmp_path)])
    names = drawn(both).get_legend_handles_labels()[1]
    assert marked_choices(both)[BEST].heading in names
    assert not [name for name in names if "×" in name], "each sweep has its own bar"


@pytest.mark.parametrize(
    "axes", [("speedup", "fid"), ("latency", "drift"), ("speedup", "clip_score"), ("fid", "speedup")]
)
def test_the_stairs_are_the_edge_of_what_the_front_dominates(front: Front, axes: tuple[str, str]) -> None:
    front = front_of(list(front.sweeps.values()), *axes)
    signs = np.array([-1 if axis.direction == "maximize" else 1 for axis in front.axes])
    plot = drawn(front)
    (stairs,) = lines(plot, "front")
    members, corners = values(front, members=True) * signs, stairs * signs
    assert len(corners) == 2 * len(members) - 1
    assert (np.diff(stairs, axis=0) == 0).any(axis=1).all(), "steps are level or upright"
    for corner in corners:
        assert (members <= corner).all(axis=1).any(), "a setting reaches it"
        assert not (members < corner).all(axis=1).any()
    for axis, label in zip(front.axes, (plot.get_xlabel(), plot.get_ylabel()), strict=True):
        assert ("higher is better" in label) == (axis.direction == "maximize")


def test_an_empty_front_says_so(front: Front) -> None:
    empty = front_of(list(front.sweeps.values()), where=["number>999"])
    plot = drawn(empty)
    assert [note.get_text() for note in plot.texts] == ["no measured trial yet"]
    assert not lines(plot, "front")
    assert front_plot(empty).startswith(b"\x89PNG")


def test_labels_are_drawn_as_plain_text(tmp_path: Path) -> None:
    front = front_with_labels(tmp_path, ["vanilla", "a\x1b[31mred\x07", "costs $5 to $9", "\x07 \x1b", "  "])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        front_plot(front, "a\x07 title of $x_1$")
    by_number = {candidate.record.number: candidate for candidate in front.candidates}
    assert short_title(by_number[1]) == "a�[31mred�"
    for number in (3, 4):
        assert short_title(by_number[number]).replace("\n", " ") == by_number[number].setting
    notes = {note.get_text(): note for note in drawn(front).texts}
    assert not notes["costs $5 to $9"].get_parse_math()
