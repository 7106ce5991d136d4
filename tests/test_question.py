"""A question about a stored sweep is followed through the code: the functions that are given the
sweep or its front, in the order of their first calls. A stay is a run of them in one module.
"""

from __future__ import annotations

import dataclasses
import sys
from contextlib import chdir
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import pytest

from orchestrator.front.front import Front
from orchestrator.store.sweep import Sweep
from tests.fakes.command_line import specfrontier
from tests.fakes.synthetic_sweeps import write_sweep

PRODUCT = ("search_spaces.", "workers.", "orchestrator.", "specfrontier.")
MOST_STAYS = {"pareto": 41, "status": 36, "report": 69}
# How a front is asked, in this order; whatever comes later only shows the answer.
STAGES = ["orchestrator.store.sweep", "orchestrator.front.front", "orchestrator.front.choice"]


class Question:
    """The product's functions that are given a sweep or a front."""

    def __init__(self) -> None:
        self.stays: list[str] = []
        self._met: set[CodeType] = set()

    def __call__(self, frame: FrameType, event: str, result: Any) -> None:
        module = frame.f_globals.get("__name__", "")
        code = frame.f_code
        if event != "call" or code in self._met or not module.startswith(PRODUCT):
            return
        names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
        if not any(holds_sweep(frame.f_locals.get(name)) for name in names):
            return
        self._met.add(code)
        if not self.stays or self.stays[-1] != module:
            self.stays.append(module)


def holds_sweep(value: Any, depth: int = 2) -> bool:
    """Whether a value is a sweep or a front, or holds one at most `depth` fields deep."""
    if isinstance(value, Sweep | Front):
        return True
    if isinstance(value, list | tuple):
        return any(holds_sweep(item, depth) for item in value[:4])
    if depth and dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = dataclasses.fields(value)
        return any(holds_sweep(getattr(value, field.name, None), depth - 1) for field in fields)
    return False


@pytest.mark.parametrize("command", MOST_STAYS)
def test_a_question_stays_in_few_places(command: str, tmp_path: Path) -> None:
    write_sweep(tmp_path / "sweeps" / "asked")
    question = Question()
    with chdir(tmp_path):
        specfrontier(command, "asked")  # imports, which are not followed
        sys.setprofile(question)
        try:
            asked = specfrontier(command, "asked")
        finally:
            sys.setprofile(None)
    assert asked.code == 0, asked.err
    first_stays = [question.stays.index(stage) for stage in STAGES]
    assert first_stays == sorted(first_stays)
    assert len(question.stays) <= MOST_STAYS[command]
