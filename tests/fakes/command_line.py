"""The `specfrontier` command, run inside the test process."""

from __future__ import annotations

import contextlib
import io
import json
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any
from unittest import mock

import typer.main

from orchestrator.cli.app import main
from orchestrator.errors import INTERRUPTED

# a process of its own makes the parsers of all commands once
_get_command = cache(typer.main.get_command)


@dataclass(frozen=True)
class CommandResult:
    """Exit code and both streams of a command."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


def specfrontier(*arguments: str) -> CommandResult:
    """`specfrontier ARGUMENTS`, with its output captured."""
    out, err = io.StringIO(), io.StringIO()
    argv = mock.patch.object(sys, "argv", ["specfrontier", *arguments])
    code: object = 0
    with (
        argv,
        mock.patch.object(typer.main, "get_command", _get_command),
        _same_environment(),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        try:
            main()
        except SystemExit as exit_:
            code = exit_.code
    assert isinstance(code, int), code
    return CommandResult(code, out.getvalue(), err.getvalue())


@contextlib.contextmanager
def _same_environment() -> Iterator[None]:
    """Commands set variables (`--plugin`, `--threads`). Unlike `mock.patch.dict`, it never empties
    the environment: a command in another thread would count free cores for its threads, and set
    those of this process.
    """
    before = dict(os.environ)
    try:
        yield
    finally:
        for name in os.environ.keys() - before.keys():
            del os.environ[name]
        os.environ.update(before)


def error_of(*arguments: str, code: int) -> str:
    """The one error message of a command that must fail with `code` and print nothing else; of an
    interrupt, which is no error, the last line.
    """
    result = specfrontier(*arguments)
    assert result.code == code, result.err
    assert result.out == ""
    prefix = "Interrupted; " if code == INTERRUPTED else "Error: "
    assert sum(line.startswith(prefix) for line in result.err.splitlines()) == 1
    assert "Traceback" not in result.err
    return result.err
