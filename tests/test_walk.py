"""A setting is followed call by call from a sweep's YAML to the front: the walk that
CONTRIBUTING.md states.
"""

from __future__ import annotations

import dataclasses
import inspect
import re
import sys
import threading
from collections.abc import Iterator
from contextlib import chdir, contextmanager
from pathlib import Path
from types import FrameType, MappingProxyType
from typing import Any

import pytest

from orchestrator.store.records import TrialRecord
from search_spaces.trial import DecodingConfig
from tests.fakes import local_pool
from tests.fakes.command_line import specfrontier
from tests.fakes.tiny_models import tiny_scenes

BUDGETS = (1.40625, 1.59375)  # by which the setting is known
SPACE = f"""
name: walk
models: WEIGHTS
captions: {{source: scenes, count: 2}}
reference: {{source: none}}
metrics: [step_compression, caption_accuracy]
objectives: [step_compression, caption_accuracy]
search: {{sampler: random, parallel: 1, seed: 0}}
space:
  drafter: eagle
  tree: {{policy: chain, length: 2}}
  acceptance: {{schedule: constant, budget: {{values: [{BUDGETS[0]}, {BUDGETS[1]}]}}}}
"""
YAML, PLAIN, SPACE_TREE, CONFIG, RECORD = (
    "YAML",
    "plain data",
    "Space",
    "DecodingConfig",
    "TrialRecord",
)
PRODUCT = ("search_spaces.", "workers.", "orchestrator.", "specfrontier.")
OF_A_SPACE = ("search_spaces.space", "search_spaces.space_entries", "search_spaces.domains")
OF_A_CONFIG = (
    "search_spaces.acceptance",
    "search_spaces.schedules",
    "search_spaces.neighbourhoods",
)
DEPTH = 5
ENDS = ("search_spaces.space_entries", "workers.decoding.engine", "orchestrator.front.front")
POOL = "orchestrator.cluster.pool"


def module_of(frame: FrameType | None) -> str | None:
    """The product's module whose code a frame runs; the tests' pool stands for Ray's."""
    name = frame.f_globals.get("__name__", "") if frame else ""
    return POOL if name == local_pool.__name__ else name if name.startswith(PRODUCT) else None


def form_of(data: Any, depth: int = 0) -> str | None:
    """The form in which data hold the setting, or the space that it is sampled from."""
    if depth > DEPTH or data is None or isinstance(data, int | type):
        return None
    if isinstance(data, float):
        return PLAIN if data in BUDGETS else None
    if isinstance(data, DecodingConfig | TrialRecord):
        config = data if isinstance(data, DecodingConfig) else getattr(data, "config", None)
        acceptance = getattr(config, "acceptance", None)  # none yet while it is made
        found = getattr(getattr(acceptance, "schedule", None), "budget", None) in BUDGETS
        return (CONFIG if config is data else RECORD) if found else None
    if isinstance(data, str | bytes):
        text = data if isinstance(data, bytes) else data.encode()
        if not any(repr(budget).encode() in text for budget in BUDGETS):
            return None
        return PLAIN if text[:1] == b"{" else YAML if b"\n" in text else None
    if isinstance(data, dict | MappingProxyType):
        return PLAIN if any(form_of(value, depth + 1) for value in data.values()) else None
    if dataclasses.is_dataclass(data):
        parts: list[Any] = [getattr(data, field.name, None) for field in dataclasses.fields(data)]
    elif isinstance(data, list | tuple):
        parts = list(data[:8])
    else:
        return None
    form = next((form for part in parts if (form := form_of(part, depth + 1))), None)
    owner = type(data).__module__
    return form and (
        SPACE_TREE if owner in OF_A_SPACE else CONFIG if owner in OF_A_CONFIG else form
    )


class Walk:
    """Who gave the setting, or its space, to a module first, and in what form."""

    def __init__(self) -> None:
        self.givers: dict[str, tuple[str, str]] = {}

    def __call__(self, frame: FrameType, event: str, result: Any) -> None:
        if event not in ("call", "return") or (module := module_of(frame)) is None:
            return
        other = frame.f_back
        while other is not None and module_of(other) is None:
            other = other.f_back
        caller = module_of(other)
        if caller is None or caller == module:
            return
        if event == "call":
            code = frame.f_code
            count = (
                code.co_argcount + code.co_kwonlyargcount + bool(code.co_flags & inspect.CO_VARARGS)
            )
            names = code.co_varnames[:count]
            for form in (form for name in names if (form := form_of(frame.f_locals.get(name)))):
                self.givers.setdefault(caller, ("", form))
                self.givers.setdefault(module, (caller, form))
        elif form := form_of(result):
            self.givers.setdefault(module, ("", form))
            self.givers.setdefault(caller, (module, form))

    def to(self, end: str) -> list[tuple[str, str]]:
        """The modules through which the setting came to the last one, each with the form in which
        it came.
        """
        stations: list[tuple[str, str]] = []
        while end:
            giver, form = self.givers[end]
            stations.insert(0, (end, form))
            end = giver
        return stations


@contextmanager
def followed(walk: Walk) -> Iterator[None]:
    threading.setprofile(walk)
    sys.setprofile(walk)
    try:
        yield
    finally:
        sys.setprofile(None)
        threading.setprofile(None)


@pytest.fixture(scope="module")
def stations(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The modules that a setting crosses on its way to a front, and the form in which it first
    comes to each.
    """
    walk = Walk()
    with chdir(tmp_path_factory.mktemp("walk")), local_pool.local_launches(), followed(walk):
        Path("walk.yaml").write_text(
            SPACE.replace("WEIGHTS", str(tiny_scenes(Path("weights").absolute())))
        )
        launched = specfrontier("launch", "walk.yaml", "--trials", "2", "--no-mlflow")
    assert launched.code == 0, launched.err
    return {module: form for end in ENDS for module, form in walk.to(end)}


def test_a_setting_crosses_few_modules_in_few_forms(stations: dict[str, str]) -> None:
    assert set(stations.values()) == {YAML, PLAIN, SPACE_TREE, CONFIG, RECORD}
    assert len(stations) <= 20


def test_contributing_states_the_walk(stations: dict[str, str]) -> None:
    text = (Path(__file__).parents[1] / "CONTRIBUTING.md").read_text("utf-8")
    rows = re.findall(
        r"^\| `([\w/]+)\.py` \| (?:a |a list of )?`?([\w ]+?)`? \|", text, re.MULTILINE
    )
    assert {path.replace("/", "."): form for path, form in rows} == stations
