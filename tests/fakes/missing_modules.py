"""Processes that lack packages which are installed here."""

from __future__ import annotations

import os
from collections.abc import Collection
from pathlib import Path

_HOOK = """
from importlib.machinery import PathFinder

find = PathFinder.find_spec
PathFinder.find_spec = lambda name, *rest: None if name.partition(".")[0] in {names!r} else find(name, *rest)
"""


def environment_without(names: Collection[str], folder: Path) -> dict[str, str]:
    """The environment of a Python process that finds none of these modules. folder: for its hook."""
    (folder / "sitecustomize.py").write_text(_HOOK.format(names=set(names)))
    return os.environ | {"PYTHONPATH": str(folder)}
