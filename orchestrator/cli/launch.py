"""`specfrontier launch`: run a sweep on this machine or on a Ray cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from orchestrator.cli import options as o
from orchestrator.cli.completion import complete_space
from orchestrator.cli.launch_plan import describe_plan
from orchestrator.cli.launch_run import run_sweep
from orchestrator.cli.revive import Revive, stopped_trials
from orchestrator.cli.tables import shown_table
from orchestrator.errors import FAILED, WRONG_USAGE, CommandError, ends_with
from orchestrator.results.text import clean
from orchestrator.run.preflight_machine import check_resources

if TYPE_CHECKING:
    from collections.abc import Mapping

    from orchestrator.run.launch import LaunchOptions
    from search_spaces.sweep import SweepConfig
    from workers.data.storage import Storage

EPILOG = """\b
Examples:
  specfrontier launch quickstart
  specfrontier launch papers/lantern-table2 --models models.yaml --check
  specfrontier launch my_sweep.yaml --address auto --out s3://bucket/sweeps --resume
  specfrontier launch my_sweep.yaml --resume --revive 7,12
  specfrontier launch joint --models models.yaml#llamagen-xl
  specfrontier launch joint --trials 400 --workers 8 --set quality.batch=128 --study postgresql://host/optuna
  ray job submit --address http://head:8265 --working-dir . --runtime-env-json '{"excludes": ["weights", "sweeps"]}' \\
    -- specfrontier launch my_sweep.yaml --address auto --out /shared/sweeps --resume
"""
Space = Annotated[
    str,
    typer.Argument(
        metavar="SPACE", help="A YAML file, or the name of a ready space (--list).", autocompletion=complete_space
    ),
]
Out = Annotated[
    str,
    typer.Option(
        metavar="DIR|URI", callback=o.given_path, help="Parent folder; each sweep gets a folder with its name."
    ),
]
Name = Annotated[str | None, typer.Option(metavar="NAME", help="Name of the sweep. Default: the space's.")]
Resume = Annotated[bool, typer.Option("--resume", help="Resume the sweep, or start it.")]
Trials = Annotated[int | None, typer.Option(metavar="N", min=1, help="Budget: total number of trials.")]
Images = Annotated[int | None, typer.Option(metavar="N", min=1, help="Budget: images; no trial starts after that.")]
Hours = Annotated[
    float | None, typer.Option(metavar="H", help="Budget: wall clock of the sweep, without the time between launches.")
]
SamplerName = Annotated[
    str | None, typer.Option("--sampler", metavar="NAME", help="tpe, replay, nsga2, nsga3, gp, random, qmc, grid.")
]
Parallel = Annotated[
    int | None, typer.Option(metavar="N", min=1, help="Trials in flight. The search's proposals depend on it.")
]
Seed = Annotated[int | None, typer.Option(metavar="N", help="Seed of all images.")]
Workers = Annotated[int | None, typer.Option(metavar="N", min=1, help="Default: one for each GPU, or for each core.")]
CpusPerWorker = Annotated[float, typer.Option(metavar="N", min=0.0)]
GpusPerWorker = Annotated[
    float | None, typer.Option(metavar="N", min=0.0, help="Default: 1 if there are GPUs at the start, else 0.")
]
Study = Annotated[
    str | None,
    typer.Option(
        metavar="URL|FILE",
        callback=o.given_path,
        help="Optuna storage. Default: a journal in the sweep's folder.",
    ),
]
Check = Annotated[bool, typer.Option("--check", help="Validate everything, print what would run, and exit.")]


def _list_spaces(requested: bool) -> None:
    if requested:
        from search_spaces.sweep import describe_spaces

        typer.echo(shown_table(("space", "what it maps"), list(describe_spaces().items())))
        raise typer.Exit


List = Annotated[
    bool, typer.Option("--list", callback=_list_spaces, is_eager=True, help="List the ready spaces and exit.")
]
JsonEvents = Annotated[bool, typer.Option("--json", help="Print one JSON event per line on standard output.")]


def launch(
    space: Space,
    out: Out = "sweeps",
    name: Name = None,
    resume: Resume = False,
    trials: Trials = None,
    images: Images = None,
    hours: Hours = None,
    sampler: SamplerName = None,
    parallel: Parallel = None,
    seed: Seed = None,
    assignments: o.Assignments = None,
    models: o.Models = None,
    address: o.Address = None,
    workers: Workers = None,
    cpus_per_worker: CpusPerWorker = 1.0,
    gpus_per_worker: GpusPerWorker = None,
    threads: o.Threads = None,
    study: Study = None,
    tracking_uri: o.TrackingUri = None,
    mlflow: o.Mlflow = True,
    revive: Revive = None,
    check: Check = False,
    list_spaces: List = False,
    as_json: JsonEvents = False,
) -> str:
    """Map the front of a search space: workers generate images with every proposed config, time it and measure it.

    The sweep's folder holds all results. If it is interrupted or killed, --resume continues it.
    """
    from search_spaces.overrides import parse_assignments

    given = {
        "name": name,
        "seed": seed,
        **_model_keys(models),
        "budget.trials": trials,
        "budget.images": images,
        "budget.hours": hours,
        "search.sampler": sampler,
        "search.parallel": parallel,
    }
    with ends_with(WRONG_USAGE):
        changes = {key: value for key, value in given.items() if value is not None}
        config, storage = _read_space(space, changes | parse_assignments(assignments or []), out)
        typer.echo(
            f"{clean(config.name)}: checking models, captions and stores", err=True
        )  # these imports take seconds
        check_resources(workers, cpus_per_worker, gpus_per_worker or 0.0, address, config.requested_metrics)
    _check_stored(config, storage, resume=resume or check)
    revived = stopped_trials(storage, revive)
    uri = _preflight(config, storage, address, study, tracking_uri if mlflow else "")
    if check:
        typer.echo(describe_plan(config, storage))
        return storage.uri
    options = _launch_options(config, (workers, cpus_per_worker, gpus_per_worker), address, threads, study, revived)
    run_sweep(config, storage, options, uri, as_json=as_json)
    return storage.uri


def _model_keys(models: str | None) -> dict[str, str | None]:
    """The keys of a sweep that --models sets."""
    if models is None:
        return {}
    from workers.loading.models_yaml import split_entry  # imports torch, which takes seconds

    file, entry = split_entry(models)
    return {"models.file": file, "models.name": entry}


def _launch_options(
    config: SweepConfig,
    resources: tuple[int | None, float, float | None],
    address: str | None,
    threads: int | None,
    study: str | None,
    revived: tuple[int, ...],
) -> LaunchOptions:
    """resources: the fields of `Slots`."""
    from orchestrator.run.launch import LaunchOptions
    from orchestrator.run.placement import Slots

    slots = Slots(*resources)
    peak_bytes = _peak_bytes(config) if 0 < (slots.gpus or 0) < 1 else 0
    return LaunchOptions(address, slots, threads, study, revived, peak_bytes)


def _peak_bytes(config: SweepConfig) -> int:
    """Memory that the sweep's heaviest setting takes of a GPU, by a dry run.

    Raises:
        CommandError: the models do not support the sweep's settings.
    """
    from orchestrator.doctor.workload import Workload, models_for_plan
    from workers.metrics.registry import weight_keys

    with ends_with(WRONG_USAGE):
        shapes = models_for_plan(config)
        work = Workload.of(config.resolve(shapes.models.target.sampling), shapes)
        nets = sum(shapes.metric_bytes.get(key, 0) for key in weight_keys(config.requested_metrics))
        return work.big.bytes + nets


def _read_space(space: str, changes: Mapping[str, Any], out: str) -> tuple[SweepConfig, Storage]:
    """The sweep in a file with changed values, and its storage below the folder or URI `out`.

    Raises:
        ConfigError, OSError: see `SweepConfig.read`.
        ValueError: the URI is malformed.
    """
    from orchestrator.results.store import plugins_of
    from search_spaces.sweep import SweepConfig
    from workers.data.storage import Storage

    root, sign, query = out.partition("?")  # of a URI
    storage = Storage(f"{root.rstrip('/')}/{SweepConfig.read_name(space, changes)}{sign}{query}")
    with plugins_of(storage):  # if it holds a sweep to resume
        return SweepConfig.read(space, changes), storage


def _check_stored(config: SweepConfig, storage: Storage, *, resume: bool) -> None:
    """Check that no sweep is stored there, or that this is the one to resume.

    Raises:
        CommandError: the storage holds a sweep, and `resume` is false or the sweep differs.
    """
    from orchestrator.results.store import SWEEP, plugins_of, read_sweep_text
    from search_spaces.documents import describe_differences
    from search_spaces.plugins import load_plugins
    from search_spaces.sweep import SweepConfig

    with ends_with(WRONG_USAGE):
        if not storage.exists(SWEEP):
            return
        if not resume:
            problem = "a sweep exists here; resume it with --resume, or start another with --name NAME"
            raise CommandError(f"{storage.display_name}: {problem}", WRONG_USAGE)
        with plugins_of(storage):
            load_plugins()  # all of them: workers may need those of metrics and samplers too
            stored = SweepConfig.parse(read_sweep_text(storage), storage.locate(SWEEP))
        if changes := config.changes(stored):
            problem = f"this sweep started with other values: {describe_differences(changes)}"
            fix = "restore them, or start another with --name NAME (a resumed sweep may change its budget alone)"
            raise CommandError(f"{storage.display_name}: {problem}; {fix}", WRONG_USAGE)


def _preflight(
    config: SweepConfig, storage: Storage, address: str | None, study: str | None, tracking_uri: str | None
) -> str:
    """Check the sweep before any worker starts; returns the resolved tracking URI ("": no MLflow).

    Raises:
        CommandError: the problem and the fix; 1 if the cluster does not respond, else 2.
    """
    from orchestrator.run.preflight import preflight
    from orchestrator.run.tasks import PoolError
    from orchestrator.tracking.client import resolve_uri

    uri = "" if tracking_uri == "" else resolve_uri(storage, tracking_uri)
    try:
        with ends_with(WRONG_USAGE), config.locate_errors():
            preflight(config, storage, address=address, study=study, mlflow=uri)
    except PoolError as error:
        raise CommandError(str(error), FAILED) from error
    return uri
