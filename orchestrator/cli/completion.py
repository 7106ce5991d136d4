"""Values that the shell completes."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path


def _matching(names: Callable[[], Iterable[str]]) -> Callable[[str], list[str]]:
    def complete(incomplete: str) -> list[str]:
        return [name for name in names() if name.startswith(incomplete)]

    return complete


def _spaces() -> list[str]:
    from search_spaces.sweep import ready_spaces

    return [*ready_spaces(), *(path.name for path in Path().glob("*.y*ml"))]


def _sweeps() -> list[str]:
    from orchestrator.results.store import IDENTITY, SWEEPS

    return sorted(path.parent.name for path in Path(SWEEPS).glob(f"*/{IDENTITY}"))


def _presets() -> list[str]:
    from search_spaces.presets import PRESETS

    return [*PRESETS]


complete_space, complete_sweep, complete_preset = _matching(_spaces), _matching(_sweeps), _matching(_presets)
