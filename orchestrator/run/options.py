"""The options of a launch. Each is declared here, and nowhere else: the command and Python take these fields."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer

from orchestrator import options as o

if TYPE_CHECKING:
    from orchestrator.run.placement import Slots


@dataclass(frozen=True, slots=True)
class SetsKey:
    """An option that sets this key of the sweep."""

    key: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchOptions:
    """The options of `specfrontier launch`, by their names; and what the command finds out from them.

    revived: the trials of `revive`, as numbers. peak_bytes: memory that a worker needs, if it is known and checked.
    """

    out: Annotated[
        str,
        typer.Option(
            metavar="DIR|URI", callback=o.given_path, help="Parent folder; each sweep gets a folder with its name."
        ),
    ] = "sweeps"
    name: Annotated[
        str | None, SetsKey("name"), typer.Option(metavar="NAME", help="Name of the sweep. Default: the space's.")
    ] = None
    resume: Annotated[bool, typer.Option("--resume", help="Resume the sweep, or start it.")] = False
    trials: Annotated[
        int | None,
        SetsKey("budget.trials"),
        typer.Option(metavar="N", min=1, help="Budget: total number of trials."),
    ] = None
    images: Annotated[
        int | None,
        SetsKey("budget.images"),
        typer.Option(metavar="N", min=1, help="Budget: images; no trial starts after that."),
    ] = None
    hours: Annotated[
        float | None,
        SetsKey("budget.hours"),
        typer.Option(metavar="H", help="Budget: wall clock of the sweep, without the time between launches."),
    ] = None
    sampler: Annotated[
        str | None,
        SetsKey("search.sampler"),
        typer.Option(metavar="NAME", help="tpe, replay, nsga2, nsga3, gp, random, qmc, grid."),
    ] = None
    parallel: Annotated[
        int | None,
        SetsKey("search.parallel"),
        typer.Option(metavar="N", min=1, help="Trials in flight. The search's proposals depend on it."),
    ] = None
    seed: Annotated[int | None, SetsKey("seed"), typer.Option(metavar="N", help="Seed of all images.")] = None
    assignments: o.Assignments = None
    models: o.Models = None
    address: o.Address = None
    workers: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Default: one for each GPU, or for each core.")
    ] = None
    cpus_per_worker: Annotated[float, typer.Option(metavar="N", min=0.0)] = 1.0
    gpus_per_worker: Annotated[
        float | None, typer.Option(metavar="N", min=0.0, help="Default: 1 if there are GPUs at the start, else 0.")
    ] = None
    threads: o.Threads = None
    study: Annotated[
        str | None,
        typer.Option(
            metavar="URL|FILE",
            callback=o.given_path,
            help="Optuna storage. Default: a journal in the sweep's folder.",
        ),
    ] = None
    tracking_uri: o.TrackingUri = None
    mlflow: o.Mlflow = True
    revive: Annotated[
        str | None,
        typer.Option(metavar="N,M", help="With --resume: run these trials, which racing stopped, to the end."),
    ] = None
    check: Annotated[bool, typer.Option("--check", help="Validate everything, print what would run, and exit.")] = False
    revived: tuple[int, ...] = ()
    peak_bytes: int = 0

    @property
    def slots(self) -> Slots:
        """The workers and the resources of each."""
        from orchestrator.run.placement import Slots

        return Slots(self.workers, self.cpus_per_worker, self.gpus_per_worker)

    def changes(self) -> Mapping[str, Any]:
        """The values that the options set in the sweep, by their keys.

        Raises:
            ConfigError: --set is not of the form KEY=VALUE.
        """
        from search_spaces.overrides import parse_assignments

        hints = get_type_hints(type(self), include_extras=True)
        keys = {
            part.key: getattr(self, name)
            for name, hint in hints.items()
            for part in getattr(hint, "__metadata__", ())
            if isinstance(part, SetsKey)
        }
        given = {key: value for key, value in keys.items() if value is not None}
        return given | o.model_keys(self.models) | parse_assignments(self.assignments or [])
