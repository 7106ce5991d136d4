"""Plugins in files of a test, and a process that has not loaded them."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from search_spaces import plugins
from search_spaces.neighbourhoods import NEIGHBOURHOODS
from search_spaces.params import Extensible
from search_spaces.plugins import PLUGINS_VARIABLE, Registry
from search_spaces.schedules import SCHEDULES
from search_spaces.trees import POLICIES

_SCHEDULE = '''
"""A plugin with one schedule."""
from dataclasses import dataclass
from typing import ClassVar
from search_spaces.schedules import SCHEDULES, Constant


@SCHEDULES.register
@dataclass(frozen=True, slots=True)
class Added(Constant):
    kind: ClassVar[str] = "KIND"
'''


def write_plugin(path: Path, kind: str) -> str:
    """A module with a schedule of this kind; returns the module's name."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(_SCHEDULE.replace("KIND", kind))
    return path.stem


def forget_plugins(monkeypatch: pytest.MonkeyPatch, *modules: str) -> None:
    """Make this process like a new one, without plugins. What the test registers afterwards goes at
    its end.

    modules: those of the test.
    """
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path != str(Path.cwd())])
    monkeypatch.setattr(plugins, "_loaded", set())
    monkeypatch.setattr(Extensible, "missing", {})
    monkeypatch.setenv(PLUGINS_VARIABLE, "")
    registries: tuple[Registry[object], ...] = (NEIGHBOURHOODS, SCHEDULES, POLICIES)  # type: ignore[assignment]
    for registry in registries:
        own = {
            name: entry
            for name, entry in registry.items()
            if not plugins.is_external(registry._modules[name])
        }
        monkeypatch.setattr(registry, "_entries", own)
    for name in modules:
        sys.modules.pop(name, None)
