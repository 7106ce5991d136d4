"""`specfrontier launch`: run a sweep on this machine or on a Ray cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from orchestrator.cli.query_options import Space
from orchestrator.cli.text import describe_front, for_output, safe_text, say, shown_table
from orchestrator.errors import FAILED, WRONG_USAGE, CommandError, ends_with
from orchestrator.launch.options import LaunchOptions
from orchestrator.options import flag, grouped
from orchestrator.text import counted
from search_spaces.paths import is_remote, local_path

if TYPE_CHECKING:
    from orchestrator.cluster.tasks import Outcome
    from orchestrator.launch.inspection import Inspection
    from orchestrator.launch.read import LaunchRequest
    from orchestrator.views.mlflow import MlflowView
    from workers.data.storage import Storage

EPILOG = """\b
Examples:
  specfrontier launch quickstart
  specfrontier launch papers/lantern-table2 --models models.yaml --check
  specfrontier launch my_sweep.yaml --address auto --out s3://bucket/sweeps --resume
  specfrontier launch my_sweep.yaml --resume --revive 7,12
  specfrontier launch wider.yaml --from my_sweep
  specfrontier launch joint --models models.yaml#llamagen-xl
  specfrontier launch joint --trials 400 --workers 8 --set quality.batch=128 --study postgresql://host/optuna
  ray job submit --address http://head:8265 --working-dir . --runtime-env-json '{"excludes": ["weights", "sweeps"]}' \\
    -- specfrontier launch my_sweep.yaml --address auto --out /shared/sweeps --resume
"""
_REASONS = {
    "plateau": "the front no longer moves (budget.plateau)",
    "space": "all points of the space are done",
    "pool": "all settings of the pool are done (search.options.pool is its size)",
}


def _list_spaces(requested: bool) -> None:
    if requested:
        from search_spaces.sweep import describe_spaces

        typer.echo(shown_table(("space", "what it maps"), list(describe_spaces().items())))
        raise typer.Exit


@grouped
def launch(
    space: Space,
    options: LaunchOptions,
    list_spaces: bool = flag(
        "List the ready spaces and exit.", "--list", callback=_list_spaces, is_eager=True
    ),
    as_json: bool = flag("Print one JSON event per line on standard output.", "--json"),
) -> str:
    """Map the front of a search space: workers generate images with every proposed config, time it
    and measure it.

    The sweep's folder holds all results. If it is interrupted or killed, --resume continues it.
    """
    from orchestrator.launch.read import read_request, resume

    with ends_with(WRONG_USAGE):
        request = read_request(space, options)
        say(f"{request.sweep.name}: checking models, captions and stores")
        request, note = resume(request)
        if note:
            say(note)
    inspection = _check(request)
    from orchestrator.cli.launch_plan import describe_plan, describe_reference

    if options.check:
        with ends_with(WRONG_USAGE):
            plan = describe_plan(inspection)
        typer.echo(safe_text(plan.split("\n")))
        return request.storage.uri
    reference = request.sweep.reference
    if not is_remote(reference.source) and local_path(reference.source).is_dir():
        say(f"{request.sweep.name}: reference: {describe_reference(reference)}")
    run_sweep(request, as_json=as_json)
    return request.storage.uri


def _check(request: LaunchRequest) -> Inspection:
    """Check everything before any worker starts; returns what was read for that.

    Raises:
        CommandError: the problem and the fix; 1 if the cluster does not respond or a file cannot be
            fetched, else 2.
    """
    from orchestrator.cli.models import pull_models
    from orchestrator.cluster.tasks import PoolError
    from orchestrator.launch.checks import check  # these imports take seconds
    from orchestrator.launch.inspection import Inspection

    inspection = Inspection(request, fetch=pull_models)
    with ends_with(FAILED, PoolError), ends_with(WRONG_USAGE):
        check(inspection)
    return inspection


def run_sweep(request: LaunchRequest, *, as_json: bool) -> None:
    """Run the sweep, with progress, result files and MLflow; print a summary at the end.

    Raises:
        CommandError: it failed or was interrupted; the message has the command that resumes it.
    """
    from orchestrator.launch.supervise import driving, supervise

    with driving(request.storage, say) as lock:
        ended = supervise(request, lock, say, as_json=as_json)
        summary = _summary(request.storage, ended.mlflow, ended.outcome, ended.plateau)
        typer.echo(summary, err=as_json)
        if ended.problem is not None:
            raise CommandError(ended.problem, FAILED)


def _summary(
    storage: Storage, mlflow: MlflowView | None, outcome: Outcome, plateau: str = ""
) -> str:
    """The front and its choices, and where to find report, plot and MLflow runs. plateau: how close
    the front is.
    """
    from orchestrator.front.answer import Answer
    from orchestrator.front.choice import example_limit, recommend
    from orchestrator.front.front import front_of
    from orchestrator.shown.status import sweep_notes
    from orchestrator.store import files
    from orchestrator.store.sweep import Sweep
    from orchestrator.views.mlflow_client import is_server

    sweep = Sweep.open(storage.uri)
    front = for_output(front_of([sweep]), long=False)
    notes = sweep_notes(sweep)
    if front.infeasible_note:
        show_all = files.command(storage, "pareto", "--infeasible")
        notes.append(f"{front.infeasible_note}; `{show_all}` shows them")
    if outcome.untimed:
        again = files.command(storage, "time")
        notes.append(
            f"the front was not timed once more: {outcome.untimed}; `{again}` times it on this "
            "machine"
        )
    reason = _REASONS.get(outcome.stopped_by, f"the budget of {outcome.stopped_by} is spent")
    if plateau and outcome.stopped_by != "plateau":
        reason += f"; {plateau}"
    stopped = [record for record in sweep.records if record.stop is not None]
    if stopped:
        revived = sum(record.is_revived for record in stopped)
        reason += f"; racing stopped {counted(len(stopped), 'trial')}, {revived} revived at the end"
        reason += f" ({files.command(storage, 'pareto', '--stopped')})"
    lines = [
        "",
        f"{counted(len(sweep.records), 'trial')}; {reason}",
        *describe_front(Answer.of(front, front.members, recommended=recommend(front), notes=notes)),
        "",
        f"report   {files.near_path(storage, files.REPORT)}",
        f"plot     {files.near_path(storage, files.FRONT_PLOT)}",
    ]
    if front.candidates:
        choose_one = files.command(
            storage, "pareto", "--best", example_limit(front), "--config", "fast.yaml"
        )
        lines.append(f"choose   {choose_one}")
    if mlflow and mlflow.location:
        ways = {"MLflow": files.command(storage, "ui")}
        if is_server(mlflow.uri):
            ways = mlflow.location.links()
        lines += [f"{name:<8} {way}" for name, way in ways.items() if name != "mlflow"]
    return safe_text(lines)
