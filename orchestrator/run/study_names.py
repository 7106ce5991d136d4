"""Short names of a space's parameters, for an Optuna study that people read: `budget (exponential)`, `delta`."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping

_BRANCH = re.compile(r"=([^.]+)")


def short_names(names: Iterable[str]) -> Mapping[str, str]:
    """A short name for each parameter of a space, all different.

    The last key of a parameter, followed by the branch that it belongs to if another parameter has the same key, or by
    all of its branches; else the name itself.
    """
    left, found = list(names), dict[str, str]()
    for depth in (0, 1, None):
        shorter = {name: _shorten(name, depth) for name in left}
        counts = Counter(shorter.values())
        found |= {name: short for name, short in shorter.items() if counts[short] == 1}
        left = [name for name in left if name not in found]
    return found | {name: name for name in left}


def _shorten(name: str, depth: int | None) -> str:
    """`space=eagle.acceptance=constant.budget` as `budget`, `budget (constant)` or `budget (eagle, constant)`. depth:
    number of branches (None: all).
    """
    path, _, key = name.rpartition(".")
    branches = _BRANCH.findall(path)
    shown = branches if depth is None else branches[len(branches) - depth :]
    return f"{key} ({', '.join(shown)})" if shown else key
