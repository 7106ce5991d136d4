"""Sections of the page: each is a file in `orchestrator.report.sections` and the script of its name
beside it.
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
    """What a page is about.

    sweeps: by name. axes: shown first. metrics: names of all. front: of the axes; None if there are
    not two. trials: the complete ones that are vanilla, on the front or labelled, in this order.
    note: called with a sentence about each damaged file. decode: whether images may be decoded from
    tokens. comparison: of the sweeps' fronts. warnings: on how far the sweeps can be compared.
    """

    sweeps: Mapping[str, Sweep]
    axes: tuple[Metric, ...]
    metrics: Sequence[str]
    front: Front | None
    trials: Sequence[PageTrial] = ()
    note: Note = ignore
    decode: bool = True
    comparison: Comparison | None = None
    warnings: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Section:
    """A part of the page below its first screen.

    title: its heading. place: sections come in rising order. data: makes what the script gets, as
    plain data; None: the page lacks the section. link: its name in the page's head, "" for none.
    lead: a text below the heading, with code between backticks. script: its name, if it is not the
    section's; it is beside the module of `data`.
    """

    title: str
    place: int
    data: Callable[[Subject], Any]
    link: str = ""
    lead: str = ""
    script: str = ""


SECTIONS: Registry[Section] = Registry("section of the report", "orchestrator.report.sections")
