"""The arguments that `specfrontier` was called with, for messages that repeat them."""

from __future__ import annotations

from collections.abc import Sequence
from contextvars import ContextVar

#: None outside of the command line: a command's function was called from Python
command_line: ContextVar[Sequence[str] | None] = ContextVar("command_line", default=None)
