"""Sections of the page: each is a file in `orchestrator.report.sections`, and a script of the same
name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from orchestrator.front.compare import Comparison
from orchestrator.front.front import Front
from orchestrator.report.trials import PageTrial
from orchestrator.store.sweep import Sweep
from search_spaces.plugins import Registry
from workers.metrics.definition import Metric

Note = Callable[[str], object]


def ignore(text: str) -> None:
    """A note that nobody reads."""


@dataclass(frozen=True, slots=True)
class Subject:
    """What a page is about."""

    sweeps: Mapping[str, Sweep]  # by name
    axes: tuple[Metric, ...]  # two or three objectives, the first two shown first
    metrics: Sequence[str]  # names of all
    front: Front | None  # of the objectives; None if there are not two
    # complete ones with images and heat maps: vanilla, on the front, labelled, then others
    trials: Sequence[PageTrial] = ()
    note: Note = ignore  # called with a sentence about each damaged file
    decode: bool = True  # whether images may be decoded from tokens
    comparison: Comparison | None = None  # of the sweeps' fronts
    warnings: Sequence[str] = ()  # on how far the sweeps can be compared


@dataclass(frozen=True, slots=True)
class Section:
    """A part of the page below its first screen."""

    title: str  # its heading
    place: int  # sections come in rising order
    # makes what the script gets, as plain data; None: the page lacks the section
    data: Callable[[Subject], Any]
    link: str = ""  # its name in the page's head, "" for none
    lead: str = ""  # a text below the heading, with code between backticks
    # the script's name, if it is not the section's; its file is next to the module of `data`
    script: str = ""


SECTIONS: Registry[Section] = Registry("section of the report", "orchestrator.report.sections")
