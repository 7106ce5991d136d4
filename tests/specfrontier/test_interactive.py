"""The front as a Plotly figure: names and rings."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from orchestrator.results.choices import BEST, KNEE, LOSSLESS
from orchestrator.results.plots import marked_choices, short_title
from orchestrator.results.store import write_trial
from orchestrator.results.sweep import Front, front_of
from specfrontier import Sweep
from specfrontier.interactive import front_figure
from tests.fakes.synthetic_sweeps import write_sweep
from workers.data.storage import Storage


@pytest.fixture(scope="module")
def front(tmp_path_factory: pytest.TempPathFactory) -> Front:
    folder = tmp_path_factory.mktemp("sweep")
    write_sweep(folder, trials=60)
    return front_of([Sweep.open(folder)])


def test_names_are_beside_their_points_and_apart(front: Front) -> None:
    choices = marked_choices(front)
    figure = front_figure(front, choices, "mine")
    notes, layout = figure.layout.annotations, figure.layout
    titles = {short_title(trial).replace("\n", "<br>"): trial for trial in front.candidates}
    assert set(choices) == {BEST, KNEE, LOSSLESS}
    assert {short_title(choice.trial).replace("\n", "<br>") for choice in choices.values()} <= {n.text for n in notes}
    assert "vanilla" in {note.text for note in notes}
    size = np.array(
        [layout.width - layout.margin.l - layout.margin.r, layout.height - layout.margin.t - layout.margin.b]
    )
    low, high = np.array([layout.xaxis.range, layout.yaxis.range]).T
    boxes = []
    for note in notes:
        metrics = titles[note.text].record.metrics
        assert (note.x, note.y) == (metrics["speedup"].value, metrics["fid"].value)
        shift = np.array([note.ax, -note.ay] if note.showarrow else [note.xshift, note.yshift], dtype=float)
        centre = (np.array([note.x, note.y]) - low) / (high - low) * size + shift
        lines = note.text.split("<br>")
        half = np.array([6.0 * max(map(len, lines)), 14.0 * len(lines)]) / 2
        assert (centre - half >= 0).all()
        assert (centre + half <= size).all()
        boxes.append((centre, half))
    for (centre, half), (other, other_half) in itertools.combinations(boxes, 2):
        assert (abs(centre - other) >= half + other_half).any()


def test_rings_mark_the_choices(front: Front) -> None:
    choices = marked_choices(front)
    rings = {trace.name: trace for trace in front_figure(front, choices, "mine").data if trace.hoverinfo == "skip"}
    for choice in choices.values():
        metrics, ring = choice.trial.record.metrics, rings[choice.heading]
        assert (ring.x[0], ring.y[0]) == (metrics["speedup"].value, metrics["fid"].value)


def test_labels_are_neither_tags_nor_mathematics(tmp_path: Path) -> None:
    for record, label in zip(write_sweep(tmp_path, trials=6), ("vanilla", "<b>$x$\x07"), strict=False):
        write_trial(Storage(str(tmp_path)), replace(record, label=label))
    front = front_of([Sweep.open(tmp_path)])
    figure = front_figure(front, marked_choices(front), "<i>$y$</i>")
    plain = "&lt;b&gt;&#36;x&#36;�"
    assert plain in {note.text for note in figure.layout.annotations}
    assert [text for trace in figure.data for text in trace.text or () if plain in text]
    assert figure.layout.title.text == "&lt;i&gt;&#36;y&#36;&lt;/i&gt;"


def test_an_empty_front_has_no_names(front: Front) -> None:
    empty = front_of(list(front.sweeps.values()), where=["number>999"])
    figure = front_figure(empty, {}, "mine")
    assert not figure.layout.annotations
    assert not figure.data
