"""The options of a launch. Each is declared here, and nowhere else: the command and Python take
these fields.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from orchestrator import options as o

if TYPE_CHECKING:
    from orchestrator.cluster.placement import Slots


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchOptions:
    """The options of `specfrontier launch`, by their names."""

    out: str = o.option(
        "Parent folder; each sweep gets a folder with its name.",
        "DIR|URI",
        default="sweeps",
        callback=o.output_place,
    )
    name: str | None = o.option("Name of the sweep. Default: the space's.", "NAME", key="name")
    resume: bool = o.flag("Resume the sweep, or start it.")
    earlier: list[str] | None = o.option(
        "A sweep of the same models, whose images and results a new sweep takes over. Repeatable. "
        "The budget counts the trials besides those of its front.",
        "SWEEP",
        "--from",
    )
    trials: int | None = o.option(
        "Budget: total number of trials, without the fronts of --from.",
        "N",
        key="budget.trials",
        min=1,
    )
    images: int | None = o.option(
        "Budget: images; no trial starts after that.", "N", key="budget.images", min=1
    )
    hours: float | None = o.option(
        "Budget: wall clock of the sweep, without the time between launches.",
        "H",
        key="budget.hours",
    )
    sampler: str | None = o.option(
        "tpe, replay, nsga2, nsga3, gp, random, qmc, grid.", "NAME", key="search.sampler"
    )
    parallel: int | None = o.option(
        "Trials in flight. The search's proposals depend on it.", "N", key="search.parallel", min=1
    )
    seed: int | None = o.option("Seed of all images.", "N", key="seed")
    assignments: o.Assignments = None
    models: o.Models = None
    pull: bool = o.flag(
        "First fetch the models' files from the Hugging Face Hub, on every node; with --check "
        "nothing."
    )
    address: o.Address = None
    workers: int | None = o.option("Default: one for each GPU, or for each core.", "N", min=1)
    cpus_per_worker: float = o.option("CPU cores of each worker.", "N", default=1.0, min=0.0)
    gpus_per_worker: float | None = o.option(
        "Default: 1 if there are GPUs at the start, else 0.", "N", min=0.0
    )
    threads: o.Threads = None
    study: str | None = o.option(
        "Optuna storage. Default: a journal in the sweep's folder.",
        "URL|FILE",
        callback=o.output_place,
    )
    tracking_uri: o.TrackingUri = None
    mlflow: o.Mlflow = True
    notify: str | None = o.option(
        "Webhook that gets a summary as JSON when the sweep ends, fails, is interrupted, or loses "
        "its cluster.",
        "URL",
        envvar="SPECFRONTIER_NOTIFY",
    )
    revive: str | None = o.option(
        "With --resume: run these trials, which racing stopped, to the end.", "N,M"
    )
    check: bool = o.flag("Validate everything, print what would run, and exit.")

    @property
    def slots(self) -> Slots:
        """The workers and the resources of each."""
        from orchestrator.cluster.placement import Slots

        return Slots(self.workers, self.cpus_per_worker, self.gpus_per_worker)

    def changes(self) -> Mapping[str, Any]:
        """The values that the options set in the sweep, by their keys.

        Raises:
            ConfigError: --set is not of the form KEY=VALUE.
        """
        from search_spaces.trial import parse_assignments

        keys = {
            key: getattr(self, entry.name)
            for entry in fields(self)
            if (key := entry.metadata.get("key"))
        }
        given = {key: value for key, value in keys.items() if value is not None}
        return given | o.model_keys(self.models) | parse_assignments(self.assignments or [])
