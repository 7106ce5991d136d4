"""`specfrontier launch`: run a sweep on this machine or on a Ray cluster."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from orchestrator.cli.launch_plan import describe_plan
from orchestrator.cli.launch_run import run_sweep
from orchestrator.cli.tables import shown_table
from orchestrator.errors import FAILED, WRONG_USAGE, CommandError, ends_with
from orchestrator.options import complete_space, flag, grouped
from orchestrator.results.text import clean
from orchestrator.run.options import LaunchOptions

if TYPE_CHECKING:
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


def _list_spaces(requested: bool) -> None:
    if requested:
        from search_spaces.sweep import describe_spaces

        typer.echo(shown_table(("space", "what it maps"), list(describe_spaces().items())))
        raise typer.Exit


@grouped
def launch(
    space: Space,
    options: LaunchOptions,
    list_spaces: bool = flag("List the ready spaces and exit.", "--list", callback=_list_spaces, is_eager=True),
    as_json: bool = flag("Print one JSON event per line on standard output.", "--json"),
) -> str:
    """Map the front of a search space: workers generate images with every proposed config, time it and measure it.

    The sweep's folder holds all results. If it is interrupted or killed, --resume continues it.
    """
    with ends_with(WRONG_USAGE):
        config, storage = _read_space(space, options.changes(), options.out)
        typer.echo(f"{clean(config.name)}: checking models, captions and stores", err=True)
        from orchestrator.run.preflight import check_resources  # these imports take seconds

        check_resources(
            options.workers, options.cpus_per_worker, options.gpus_per_worker or 0.0, options.address,
            config.requested_metrics,
        )  # fmt: skip
    _check_stored(config, storage, resume=options.resume or options.check)
    options = replace(options, revived=stopped_trials(storage, options.revive))
    uri = _preflight(config, storage, options)
    if options.check:
        typer.echo(describe_plan(config, storage))
        return storage.uri
    if 0 < (options.gpus_per_worker or 0) < 1:
        options = replace(options, peak_bytes=_peak_bytes(config))
    run_sweep(config, storage, options, uri, as_json=as_json)
    return storage.uri


def _peak_bytes(config: SweepConfig) -> int:
    """Memory that the sweep's heaviest setting takes of a GPU, by a dry run.

    Raises:
        CommandError: the models do not support the sweep's settings.
    """
    from orchestrator.doctor.plan import Workload, models_for_plan
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


def stopped_trials(storage: Storage, numbers: str | None) -> tuple[int, ...]:
    """The trials that --revive names (`3,12`). Revived ones are allowed, so a command can be repeated.

    Raises:
        CommandError: not numbers, or trials that racing did not stop.
    """
    if numbers is None:
        return ()
    from orchestrator.results.store import read_trials

    with ends_with(WRONG_USAGE):
        records = read_trials(storage)
    stopped = {str(record.number) for record in records if record.stop and record.duplicate_of is None}
    chosen = {number.strip() for number in numbers.split(",")}
    if unknown := sorted(chosen - stopped):
        found = ", ".join(sorted(stopped, key=int))
        problem = f"choose among the trials that racing stopped: {found}" if found else "racing stopped no trial here"
        raise CommandError(f"--revive {', '.join(unknown)}: {problem}", WRONG_USAGE)
    return tuple(sorted(map(int, chosen)))


def _preflight(config: SweepConfig, storage: Storage, options: LaunchOptions) -> str:
    """Check the sweep before any worker starts; returns the resolved tracking URI ("": no MLflow).

    Raises:
        CommandError: the problem and the fix; 1 if the cluster does not respond, else 2.
    """
    from orchestrator.run.preflight import preflight
    from orchestrator.run.tasks import PoolError
    from orchestrator.views.mlflow_client import resolve_uri

    uri = resolve_uri(storage, options.tracking_uri) if options.mlflow else ""
    try:
        with ends_with(WRONG_USAGE), config.locate_errors():
            preflight(config, storage, address=options.address, study=options.study, mlflow=uri)
    except PoolError as error:
        raise CommandError(str(error), FAILED) from error
    return uri
