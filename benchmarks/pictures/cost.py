"""What a pass costs: tokens of a pass, its cost, and their ratio, over the number of drafts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from benchmarks.common import draw as draw_images
from benchmarks.common import engine_for, held_out_requests, paired_speedup
from benchmarks.pictures.runs import CHAIN, WINDOW, setting
from benchmarks.pictures.svg import Picture
from workers.loading.models import Models

_CAPTIONS = 32  # whose passes count
_TIMED = 2  # of them, over which passes are timed
_REPETITIONS = 5
_LENGTHS: dict[str, tuple[Mapping[str, Any], tuple[int, ...]]] = {
    "chain": (CHAIN, (1, 2, 3, 4, 6, 8)),
    "window": (WINDOW, (1, 3, 7, 15, 31, 63)),
}
_TITLES = {"chain": "an EAGLE chain", "window": "a Jacobi window"}
_HEIGHT = 150


def measure(models: Models) -> dict[str, Any]:
    """Passes of many images; seconds of few, of vanilla and each setting in turn, at batch 1 with
    one thread, by the thread's own time.
    """
    requests = held_out_requests(models, _CAPTIONS)
    vanilla = engine_for(models, setting({}), batch=1)
    facts: dict[str, Any] = {}
    for name, (mapping, lengths) in _LENGTHS.items():
        facts[name] = []
        for length in lengths:
            config = setting({**mapping, "tree": {"policy": "chain", "length": length}})
            drawn = draw_images(engine_for(models, config, batch=_CAPTIONS), requests)
            tokens = drawn.mean_accepted_length
            paired = paired_speedup(
                vanilla, engine_for(models, config, batch=1), requests[:_TIMED], _REPETITIONS
            )
            cost = paired.drawn.mean_accepted_length / paired.speedup
            facts[name].append(
                {
                    "drafts": length,
                    "tokens": round(tokens, 2),
                    "cost": round(cost, 2),
                    "speedup": round(tokens / cost, 2),
                }
            )
    return facts


def draw(facts: dict[str, Any]) -> Picture:
    picture = Picture(
        "Two charts over the number of drafts. The tokens per pass grow ever more slowly, the cost"
        " of a pass grows on, and their ratio, the speed-up, has a maximum.",
        300,
    )
    points = [point for name in _LENGTHS for point in facts[name]]
    largest = max(max(point["tokens"], point["cost"]) for point in points)
    scale = _HEIGHT / largest
    for left, name in ((34, "chain"), (246, "window")):
        _draw_chart(picture, left, 44 + _HEIGHT, scale, facts[name], _TITLES[name])
    entries = (
        ("yes", "tokens per pass"),
        ("new", "cost of a pass, in passes of vanilla"),
        ("mark", "speed-up: their ratio"),
    )
    for row, (classes, words) in enumerate(entries):
        y = 252 + 17 * row
        picture.path([(34, y - 4), (56, y - 4)], f"{classes}-line")
        picture.text(64, y, words, "small")
    return picture


def _draw_chart(
    picture: Picture,
    left: float,
    base: float,
    scale: float,
    points: list[dict[str, Any]],
    title: str,
) -> None:
    width = 170
    picture.text(left, 26, title, "bold")
    for level in range(1, int(_HEIGHT / scale) + 1):
        y = base - scale * level
        picture.path([(left, y), (left + width, y)], "axis")
        picture.text(left - 6, y + 4, f"{level}", "small soft end")
    picture.path([(left, base), (left + width, base)], "line")
    step = width / len(points)
    places = [left + step * (index + 0.5) for index in range(len(points))]
    for key, classes in (("tokens", "yes"), ("cost", "new"), ("speedup", "mark")):
        line = [(x, base - scale * point[key]) for x, point in zip(places, points, strict=True)]
        picture.path(line, f"{classes}-line")
        for x, y in line:
            picture.add("circle", cx=x, cy=y, r=2.5, class_=f"{classes}-fill")
    for x, point in zip(places, points, strict=True):
        picture.text(x, base + 15, f"{point['drafts']}", "small soft middle")
    picture.text(left + width / 2, base + 31, "drafts per pass (uneven steps)", "small soft middle")
    x, best = max(zip(places, points, strict=True), key=lambda place: float(place[1]["speedup"]))
    picture.text(
        x, base - scale * best["speedup"] + 15, f"{best['speedup']:.2f}", "small bold middle"
    )
