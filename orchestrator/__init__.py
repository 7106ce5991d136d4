"""The command line, and `Sweep`, which answers the same questions in Python: `from orchestrator import Sweep`."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from orchestrator.results.sweep import Sweep

__all__ = ["Sweep"]


def __getattr__(name: str) -> object:
    """`Sweep` when it is asked for: the command line must not wait for it."""
    if name == "Sweep":
        from orchestrator.results.sweep import Sweep

        return Sweep
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
