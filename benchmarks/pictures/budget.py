"""A budget over depth: how Cool-SD spreads relaxation over the drafts of a chain."""

from __future__ import annotations

from typing import Any

from benchmarks.common import draw as draw_images
from benchmarks.common import engine_for, held_out_requests
from benchmarks.pictures.runs import setting
from benchmarks.pictures.svg import WIDTH, Picture
from workers.loading.models import Models

_LENGTH = 5
_CAPTIONS = 32
_SCHEDULES: dict[str, dict[str, Any]] = {
    "exact": {},
    "constant": {"schedule": "constant", "budget": 1.5},
    "linear": {"schedule": "linear", "budget": 1.5, "slope": 0.3},
    "exponential": {"schedule": "exponential", "budget": 1.5, "nu": 0.4},
}
_LEFT, _ACROSS = 84, 64  # the first depth, and from depth to depth
_LOOKS = {"constant": "soft", "linear": "mark", "exponential": "new"}


def measure(models: Models) -> dict[str, Any]:
    facts: dict[str, Any] = {"captions": _CAPTIONS, "omegas": {}, "accepted_length": {}}
    requests = held_out_requests(models, _CAPTIONS)
    for name, acceptance in _SCHEDULES.items():
        tree = {"policy": "chain", "length": _LENGTH}
        config = setting({"drafter": "eagle", "tree": tree, "acceptance": acceptance})
        drawn = draw_images(engine_for(models, config, batch=_CAPTIONS), requests)
        omegas = config.acceptance.schedule.checked_omegas(_LENGTH)
        facts["omegas"][name] = [round(omega, 3) for omega in omegas]
        facts["accepted_length"][name] = round(drawn.mean_accepted_length, 2)
        if name == "exact":
            emitted = [count for image in drawn.statistics for count in image.emitted.tolist()]
            facts["tested"] = [
                round(sum(count >= depth for count in emitted) / len(emitted), 3)
                for depth in range(1, _LENGTH + 1)
            ]
    return facts


def draw(facts: dict[str, Any]) -> Picture:
    picture = Picture(
        "Above: the factors ω of five drafts under three schedules with the same mean. Below: the"
        " share of passes in which each of them is tested.",
        356,
    )
    picture.text(16, 24, "ω of each draft; the mean over the five is 1.5", "bold")
    base, scale = 168, 44.0
    for level, words in ((0, "0"), (1, "exact: 1"), (2, "2"), (3, "3")):
        y = base - scale * level
        picture.path([(_LEFT - 26, y), (_LEFT + 4 * _ACROSS + 26, y)], "axis")
        picture.text(_LEFT - 30, y + 4, words, "small soft end")
    for name, classes in _LOOKS.items():
        _draw_schedule(picture, name, facts["omegas"][name], base, scale, classes)
    picture.text(16, 196, "how often a draft is tested, exact rule", "bold")
    for place, share in enumerate(facts["tested"]):
        x = _LEFT + _ACROSS * place
        height = 62 * share
        picture.rect(x - 15, 280 - height, 30, height, "soft-fill")
        picture.text(x, 275 - height, f"{100 * share:.0f} %", "small middle")
        picture.text(x, 295, f"draft {place + 1}", "small middle")
    lengths = facts["accepted_length"]
    words = f"tokens per pass, mean of {facts['captions']} captions"
    picture.text(WIDTH / 2, 324, words, "bold middle")
    values = ", ".join(f"{name} {value:.2f}" for name, value in lengths.items())
    picture.text(WIDTH / 2, 342, values, "small middle")
    return picture


def _draw_schedule(
    picture: Picture, name: str, omegas: list[float], base: float, scale: float, classes: str
) -> None:
    points = [(_LEFT + _ACROSS * i, base - scale * omega) for i, omega in enumerate(omegas)]
    picture.path(points, f"{classes}-line")
    for x, y in points:
        picture.add("circle", cx=x, cy=y, r=3.5, class_=f"{classes}-fill")
    x, y = points[-1]
    picture.text(x + 10, y + 4, name, f"small {classes}-fill")
