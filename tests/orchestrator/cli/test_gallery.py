"""What `generate` shows while it draws."""

from __future__ import annotations

import io
import sys

import pytest

from orchestrator.cli.gallery import _progress


@pytest.mark.parametrize("is_terminal", [False, True])
def test_a_terminal_sees_how_many_images_are_done(
    is_terminal: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = io.StringIO()
    monkeypatch.setattr(out, "isatty", lambda: is_terminal)
    monkeypatch.setattr(sys, "stderr", out)
    with _progress(3) as advance:
        for _ in range(3):
            advance()
    assert ("3/3" in out.getvalue()) == is_terminal
