"""An option of a launch is declared in one place: a field, which the command, its help and the
sweep's file follow.
"""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import typer
from typer.testing import CliRunner

from orchestrator.launch.options import LaunchOptions
from orchestrator.options import grouped, option
from specfrontier import Sweep


@dataclass(frozen=True, slots=True, kw_only=True)
class MoreOptions(LaunchOptions):
    """A launch with one more option, whose declaration is all that it needs."""

    shard: int | None = option("Captions of a shard.", "N", key="quality.shard")


def test_an_option_is_one_place() -> None:
    given: list[tuple[str, MoreOptions, bool]] = []

    @grouped
    def command(space: str, options: MoreOptions, as_json: bool = False) -> None:
        """Take the options."""
        given.append((space, options, as_json))

    app = typer.Typer(rich_markup_mode=None)
    app.command()(command)
    words = [
        "demo",
        "--shard",
        "7",
        "--trials",
        "3",
        "--set",
        "captions.count=48",
        "--workers",
        "2",
        "--as-json",
    ]
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 0, result.output
    ((space, options, as_json),) = given
    assert (space, as_json) == ("demo", True)
    assert options.changes() == {"quality.shard": 7, "budget.trials": 3, "captions.count": 48}
    assert options.slots.count == 2
    assert "Captions of a shard." in CliRunner().invoke(app, ["--help"]).output
    assert "--taken" not in CliRunner().invoke(app, ["--help"]).output, (
        "only declared fields are options"
    )


def test_python_takes_the_same_options() -> None:
    with pytest.raises(TypeError, match="no_such_option"):
        Sweep.launch("quickstart", no_such_option=3)
