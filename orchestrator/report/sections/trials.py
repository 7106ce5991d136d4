"""The table of all trials, and those that failed or stopped early with their causes."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

from orchestrator.front.query import headings, script_patterns
from orchestrator.report.section import SECTIONS, Section, Subject
from orchestrator.report.trials import config_keys, metric_title
from orchestrator.store.records import State
from search_spaces.trial import flat_types

_KINDS: dict[type, str] = {int: "numbers", float: "numbers", bool: "true or false", str: "text"}
_STOPPED = (
    "Another trial was better in all objectives on the same images. Their values are of fewer "
    "images than those of complete trials and cannot be compared with them, so they are on no "
    "plot and no front."
)


def trials(subject: Subject) -> dict[str, Any]:
    """The columns of the table, and the grammar of its filter.

    `columns`: in order, each with its key, name, kind of value and part: of a trial, a metric, or a
    parameter of a setting. `patterns`, `headings`: see `script_patterns` and `headings`.
    """
    columns = [
        dict(zip(("key", "name", "kind", "part"), column, strict=True))
        for column in _columns(subject)
    ]
    flags = [column["key"] for column in columns if column["kind"] == _KINDS[bool]]
    keys = [column["key"] for column in columns]
    return {
        "columns": columns,
        "patterns": script_patterns(flags, keys),
        "headings": headings(keys),
    }


def _columns(subject: Subject) -> Iterator[tuple[str, str, str, str]]:
    text, flag, number = (_KINDS[kind] for kind in (str, bool, float))
    yield "number", "#", number, "trial"
    if len(subject.sweeps) > 1:
        yield "sweep", "sweep", text, "trial"
    yield from (
        (name, name, text, "trial") for name in ("setting", "acceptance", "tree", "drafter")
    )
    for name in dict.fromkeys([*(metric.name for metric in subject.axes), *subject.metrics]):
        yield name, metric_title(name), number, "metric"
    types = flat_types()
    for key in config_keys(subject.sweeps):
        yield key, key, _KINDS[types.get(key, str)], "parameter"
    yield from ((name, name, text, "trial") for name in ("label", "state"))
    yield from ((name, name, flag, "trial") for name in ("lossless", "feasible", "front"))
    yield from (("images", "images", number, "trial"), ("seconds", "time", number, "trial"))


def incomplete(subject: Subject, state: State) -> dict[str, State] | None:
    """The state, if a trial has it."""
    for sweep in subject.sweeps.values():
        if any(record.state == state for record in sweep.records):
            return {"state": state}
    return None


SECTIONS.add("trials", Section("All trials", 50, trials, link="Trials"))
SECTIONS.add(
    "failed",
    Section("Failed trials", 60, partial(incomplete, state="failed"), script="incomplete"),
)
SECTIONS.add(
    "stopped",
    Section(
        "Trials that stopped early",
        70,
        partial(incomplete, state="stopped"),
        lead=_STOPPED,
        script="incomplete",
    ),
)
