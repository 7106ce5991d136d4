"""Groups of options, and the sweeps, query and trial that they mean."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from orchestrator import options as o
from orchestrator.cli.text import say
from orchestrator.errors import (
    FAILED,
    WRONG_USAGE,
    CommandError,
    NoChoiceError,
    QueryError,
    ends_with,
)
from orchestrator.options import complete_space, complete_sweep, flag, option

if TYPE_CHECKING:
    from orchestrator.front.choice import Choice, ChoiceKind
    from orchestrator.front.front import Front
    from orchestrator.store.sweep import Sweep

PLACE = "folder or URI of a sweep, or its name under ./sweeps"

Sweeps = Annotated[
    list[str],
    typer.Argument(
        metavar="SWEEP...", help=f"A {PLACE}.", show_default=False, autocompletion=complete_sweep
    ),
]
OneSweep = Annotated[
    str,
    typer.Argument(
        metavar="SWEEP", help=f"A {PLACE}.", show_default=False, autocompletion=complete_sweep
    ),
]
Space = Annotated[
    str,
    typer.Argument(
        metavar="SPACE",
        help="A YAML file, or the name of a ready space (launch --list).",
        autocompletion=complete_space,
    ),
]
Layout = Annotated[
    Literal["geneval", "dpg_bench"] | None,
    typer.Option(
        metavar="LAYOUT",
        help=(
            "Write images as the tool of a benchmark reads them: geneval or dpg_bench. The captions "
            "are its prompts."
        ),
    ),
]
Long = Annotated[bool, typer.Option("--long", help="Show the names of settings in full.")]
ReferencePoint = Annotated[
    str | None,
    typer.Option(
        metavar="X,Y[,Z]",
        help=(
            "Reference point of hypervolumes. Default: a tenth of the range beyond the worst "
            "trials."
        ),
    ),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """The options that say what a front is of: its objectives, and which trials it has."""

    x: str | None = option(
        "First objective. Default of --x and --y: the sweep's first two objectives.", "METRIC"
    )
    y: str | None = option("Second objective.", "METRIC")
    z: str | None = option("Third objective.", "METRIC")
    where: list[str] | None = option(
        "Only matching trials: acceptance.neighbourhood=additive, 'tree.depth>=4 and lossless', "
        "'acceptance.k in 10,100'. Repeatable.",
        "FILTER",
    )
    subject_to: list[str] | None = option(
        "Only trials within this limit: a number (drift<=2), a share of vanilla's value "
        "(clip_score>=0.97*vanilla) or a distance from it (fid<=vanilla+0.5). Repeatable.",
        "LIMIT",
    )
    infeasible: bool = flag("Include trials that violate the sweep's constraints.")

    def front(self, sweeps: Sequence[Sweep]) -> Front:
        """The front of the sweeps that the options describe.

        Raises:
            QueryError: an unknown metric or column, or an invalid limit or filter.
        """
        from orchestrator.front.front import front_of

        where = self.where or ()
        limits = self.subject_to or ()
        return front_of(sweeps, self.x, self.y, self.z, where, limits, feasible=not self.infeasible)


@dataclass(frozen=True, slots=True, kw_only=True)
class PriceOptions:
    """The options that say at whose costs speeds are computed."""

    device: str | None = option(
        "Speeds on the device with this part in its name, which the sweep or `specfrontier time` "
        "has timed. Default: the sweep's own.",
        "NAME",
    )
    batch: int | None = option(
        "Speeds at this batch size. Default: the sweep's first timing.batch.", "N", min=1
    )

    def open(self, locations: Sequence[str]) -> list[Sweep]:
        """The sweeps at these locations, for a command that shows `timing_notes`. Raises the errors
        of `Sweep.open`.
        """
        from orchestrator.store.sweep import Sweep

        return [Sweep.open(location, self.device, self.batch) for location in locations]


def open_sweep(location: str, prices: PriceOptions | None = None) -> Sweep:
    """A sweep, for a command that does not show `timing_notes`: timing sessions that cannot be used
    are named on standard error. Raises the errors of `Sweep.open`.
    """
    from orchestrator.shown.status import session_problems

    (sweep,) = (prices or PriceOptions()).open([location])
    for text in session_problems(sweep):
        say(f"Note: {text}.")
    return sweep


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialOptions:
    """The options that choose a trial of a front."""

    trial: int | None = option("The trial with this number, whatever its values.", "N", min=0)
    best: list[str] | None = option(
        "The trial with the best first objective within this limit (as in --subject-to): the best "
        "value that is 90 % sure. Repeatable.",
        "LIMIT",
    )
    lossless: bool = flag(
        "Choose among trials that leave the distribution of images as it is, for --config or with "
        "--best."
    )
    knee: bool = flag("The trial furthest from the line between the front's ends.")

    def is_given(self) -> bool:
        """Whether they choose a trial; only --best and --lossless can be combined.

        Raises:
            CommandError: two options choose different trials.
        """
        given = {
            "--trial": self.trial is not None, "--knee": self.knee, "--best": bool(self.best),
            "--lossless": self.lossless,
        }  # fmt: skip
        names = [name for name, is_given in given.items() if is_given]
        if len(names) > 1 and names != ["--best", "--lossless"]:
            raise CommandError(
                f"{names[0]} and {names[1]} cannot be combined: each chooses a trial", WRONG_USAGE
            )
        return bool(names)

    @property
    def kind(self) -> ChoiceKind:
        """The kind of choice that they ask for."""
        if self.trial is not None:
            return "trial"
        if self.knee:
            return "knee"
        if self.lossless and not self.best:
            return "best_lossless"
        return "best"

    def select(self, front: Front) -> Choice:
        """The trial of a front that they choose; without any, the best one of all. Raises the errors
        of `Front.trial`, `recommend` and `Recommendation.require`.
        """
        from orchestrator.front.choice import recommend

        trial = None if self.trial is None else front.trial(self.trial)
        found = recommend(front, self.best or [], lossless=self.lossless, trial=trial)
        return found.require(self.kind)


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationOptions:
    """The options that say how images are generated, and where they go."""

    assignments: o.Assignments = None
    against: Literal["vanilla"] | None = option(
        "Also generate vanilla's images of the same captions, into the folder vanilla of --out, "
        "batch by batch in turn, and measure the speed-up.",
        "vanilla",
    )
    verify: bool = flag(
        "Test whether the tokens are samples of the target's own distribution, as a lossless "
        "setting claims. The target reads each image once more; a false claim ends with exit code "
        "1."
    )
    batch: int | None = option(
        "Images generated together. Default: of --from, its timing batch; else 16.",
        "N",
        min=1,
        max=65536,
    )
    seed: int = option(
        "Seed of the random numbers; they are the same for every --batch. Batch, --threads and "
        "machine change rounding, which can change an image where scores nearly tie.",
        "N",
        default=0,
        min=0,
        max=o.MAX_SEED,
    )
    layout: Layout = None
    samples: int = option("Images per caption.", "N", default=1, min=1, max=65536)
    out: str = option(
        "Output folder; created if missing.", "DIR", default="generated", callback=o.output_path
    )
    models: o.Models = None
    device: o.Device = None
    threads: o.Threads = None
    as_json: bool = flag("Print statistics.json instead of a summary.", "--json")


@dataclass(frozen=True, slots=True, kw_only=True)
class TimingOptions:
    """The options that say how and how long settings are timed."""

    error: float = option(
        "Stop when the part of every cost's relative standard error that more sessions of this "
        "sitting make smaller is at most this.",
        "SHARE",
        default=0.02,
        min=0,
        max=1,
        callback=o.finite,
    )
    minutes: float = option(
        "Start no session that would end later; each setting is timed at least once.",
        "MINUTES",
        default=1.0,
        min=0,
        callback=o.finite,
    )
    batch: int | None = option(
        "Images generated together. Default: the sweep's timing.batch.", "N", min=1, max=65536
    )
    images: int | None = option(
        "Images of each setting in a session, rounded up to whole batches. Default: the sweep's "
        "timing.images.",
        "N",
        min=1,
    )
    models: o.Models = None
    device: o.Device = None
    threads: o.TimingThreads = None


@contextmanager
def query_errors() -> Iterator[None]:
    """Turn an invalid query or a missing sweep into exit code 2, an unreadable sweep or no such
    trial into 1.
    """
    from orchestrator.store import files

    with (
        ends_with(FAILED),
        ends_with(WRONG_USAGE, QueryError, files.NoSweepError),
        ends_with(FAILED, NoChoiceError),
    ):
        yield


def read_point(text: str | None, metrics: int) -> list[float] | None:
    """The coordinates of `1,30`.

    Raises:
        CommandError: not one finite number per metric.
    """
    if text is None:
        return None
    try:
        point = [float(part) for part in text.split(",")]
    except ValueError:
        point = []
    if len(point) != metrics or any(
        value != value or abs(value) == float("inf") for value in point
    ):
        raise CommandError(
            f"--reference-point {text}: give {metrics} numbers separated by commas", WRONG_USAGE
        )
    return point
