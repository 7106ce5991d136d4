"""`specfrontier diff`: how two trials differ."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from orchestrator.cli import query_options as o
from orchestrator.cli.text import heading, show, shown_table
from orchestrator.errors import WRONG_USAGE, CommandError
from orchestrator.options import AsJson

if TYPE_CHECKING:
    from orchestrator.front.difference import TrialDifference

EPILOG = """\b
Examples:
  specfrontier diff quickstart 3 5
  specfrontier diff quickstart 3 wider 7
"""


@o.query_errors()
def diff(
    words: Annotated[
        list[str],
        typer.Argument(
            metavar="SWEEP N [SWEEP] N",
            help="A sweep and two of its trials, or two sweeps, each with a trial.",
            show_default=False,
        ),
    ],
    as_json: AsJson = False,
) -> None:
    """Show how two trials differ: the keys of their settings, every metric with its paired
    difference, and the captions whose images differ most.

    "better" says which trial is better, and in how many draws from the errors. An image difference
    of 0 means the same image; of 1, that the two are as far apart as images of different captions.
    """
    from orchestrator.front.difference import difference, trials_of

    (name, number), (other, second) = _read(words)
    sweep = o.open_sweep(name)
    found = difference(
        *trials_of(sweep, number, sweep if other == name else o.open_sweep(other), second)
    )
    show(found.to_mapping(), _lines(found), as_json=as_json)


_Named = tuple[str, int]  # a sweep, and the number of a trial


def _read(words: list[str]) -> tuple[_Named, _Named]:
    """The two trials. Raises CommandError for words of another form."""
    if len(words) == 3:
        sweep, *numbers = words
        words = [sweep, numbers[0], sweep, numbers[1]]
    if len(words) != 4 or not (words[1].isdecimal() and words[3].isdecimal()):
        raise CommandError(
            "give a sweep and the numbers of two trials, such as `diff quickstart 3 5`, or two "
            "sweeps, such as `diff quickstart 3 wider 7`",
            WRONG_USAGE,
        )
    return (words[0], int(words[1])), (words[2], int(words[3]))


def _lines(found: TrialDifference) -> list[str]:
    """The difference as lines of text."""
    lines: list[str] = [heading(found.first.heading), heading(found.second.heading)]
    right = {"key": [], "metric": [1, 2, 3], "image difference": [0]}  # columns of numbers
    for head, rows in found.tables:
        if rows:
            lines += ["", shown_table(head, rows, right=right[head[0]])]
    lines += [f"{name} is not compared: {why}" for name, why in found.not_compared.items()]
    return lines
