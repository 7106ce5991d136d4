"""The `specfrontier` command. Commands import heavy packages only when they run, so that `--help`
is quick.
"""

from __future__ import annotations

import io
import os
import sys
from typing import Annotated, Any, cast

import typer
from typer.core import TyperGroup

from orchestrator.cli import (
    compare,
    diff,
    doctor,
    export,
    generate,
    launch,
    list_sweeps,
    measure,
    mlflow,
    models,
    pareto,
    predict,
    reference,
    report,
    show,
    status,
    timing,
    train,
)
from orchestrator.errors import (
    FAILED,
    WRONG_USAGE,
    CommandError,
    ends_with,
    last_words,
    with_sweep_libraries,
)
from orchestrator.interrupts import exit_code, interruptible
from orchestrator.options import command_line
from orchestrator.proxies import without_proxy
from orchestrator.streams import open_closed_streams
from orchestrator.text import clean
from search_spaces.params import ConfigError
from search_spaces.paths import check_utf8
from search_spaces.plugins import load_plugins, plugin_line, plugin_modules
from workers.runtime.process import check_working_directory, keep_freed_memory, use_threads

_UsageError = cast(type[Exception], typer.BadParameter.__bases__[0])  # which typer does not export


class _Commands(TyperGroup):
    """The commands; two of typer's errors say what to do."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except _UsageError as error:
            found: Any = error
            message = found.format_message()
            if message.startswith("No such option: --plugin"):
                found.message += (
                    "; write it before the command: specfrontier --plugin MODULE COMMAND"
                )
            elif message.startswith("Missing argument 'SPACE'"):
                found.message = "`specfrontier launch --list` shows the ready spaces"
            raise


app = typer.Typer(
    cls=_Commands,
    name="specfrontier",
    help=(
        "Maps the speed-quality front of speculative decoding for visual AR models: runs sweeps on "
        "Ray, compares fronts, logs to MLflow."
    ),
    epilog=(
        "Exit codes: 0 done, 1 failed, 2 wrong usage, 130 interrupted, 129 hung up (SIGHUP), 143 "
        "terminated (SIGTERM)."
    ),
    no_args_is_help=True,
    context_settings={"max_content_width": 110, "help_option_names": ["-h", "--help"]},
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
app.command(epilog=launch.EPILOG, short_help="Run a sweep on this machine or a Ray cluster.")(
    launch.launch
)
app.command(epilog=predict.EPILOG, short_help="Predict the front of a space.")(predict.predict)
app.command(
    cls=status.WatchCommand, epilog=status.EPILOG, short_help="Show the progress of a sweep."
)(status.status)
app.command("list", epilog=list_sweeps.EPILOG, short_help="List the sweeps under ./sweeps.")(
    list_sweeps.list_sweeps
)
app.command(epilog=pareto.EPILOG, short_help="Show the front of one or more sweeps.")(pareto.pareto)
app.command("show", epilog=show.EPILOG, short_help="Show one trial: what it is, and its values.")(
    show.show_trial
)
app.command(epilog=diff.EPILOG, short_help="Show how two trials differ.")(diff.diff)
app.command(epilog=compare.EPILOG, short_help="Compare the fronts of sweeps or methods.")(
    compare.compare
)
app.command(epilog=report.EPILOG, short_help="Write a sweep's report as one HTML page.")(
    report.report
)
app.command("time", epilog=timing.EPILOG, short_help="Time a sweep's settings on this machine.")(
    timing.time_sweep
)
app.command(epilog=measure.EPILOG, short_help="Add a benchmark's own results of a trial's images.")(
    measure.measure
)
app.command(epilog=reference.EPILOG, short_help="Compute the features of real images for fid.")(
    reference.reference
)
app.command(epilog=mlflow.UI_EPILOG, short_help="Open a sweep in MLflow's UI.")(mlflow.ui)
app.command(epilog=mlflow.SYNC_EPILOG, short_help="Log missing trials to MLflow.")(mlflow.sync)
app.command(epilog=generate.EPILOG, short_help="Generate images from captions with one config.")(
    generate.generate
)
app.command(
    epilog=export.EPILOG, short_help="Write a setting as a folder that draws images elsewhere."
)(export.export)
app.command(epilog=train.EPILOG, short_help="Train drafters for a target.")(train.train)
app.command(
    epilog=doctor.EPILOG, short_help="Check this machine, checkpoints, or a sweep's needs."
)(doctor.doctor)
app.add_typer(
    models.models,
    name="models",
    help="Entries of models.yaml, and their files of the Hugging Face Hub.",
)


def _show_version(requested: bool) -> None:
    if requested:
        from orchestrator.doctor.machine import installed

        typer.echo(f"specfrontier {installed('specfrontier') or '(not installed)'}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version."),
    ] = False,
    plugin: Annotated[
        list[str] | None,
        typer.Option(
            "--plugin",
            metavar="MODULE",
            help=(
                "Import a Python module that registers rules, drafters, metrics or samplers. "
                "Repeatable."
            ),
        ),
    ] = None,
) -> None:
    """Options of every command."""
    try:
        load_plugins(plugin or ())
    except ConfigError as error:
        raise CommandError(str(error), WRONG_USAGE) from None


def main() -> None:
    """Run the command line; a `CommandError` ends it with its message and exit code."""
    open_closed_streams()
    use_threads()  # before a plugin or a command imports torch; --threads changes the number
    keep_freed_memory()
    os.environ.update(without_proxy())
    # Ray's takes SIGTERM for a crash
    os.environ.setdefault("RAY_DISABLE_FAILURE_SIGNAL_HANDLER", "1")
    called = command_line.set(sys.argv[1:])
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # what its encoding lacks is escaped
    with interruptible():
        try:
            with ends_with(FAILED):
                check_working_directory()
            with ends_with(WRONG_USAGE):
                for argument in sys.argv[1:]:
                    check_utf8(argument)
            with with_sweep_libraries():
                app()
        except CommandError as error:
            # it may quote a caption or a file's name
            message = "\n".join(map(clean, str(error).split("\n")))
            typer.echo(last_words(message, error.code), err=True)
            sys.exit(exit_code(error.code))
        except Exception as error:
            line = plugin_line(error, plugin_modules())
            if not line:
                raise
            problem = f"{line}: {type(error).__name__}: {error}; correct the plugin"
            typer.echo(last_words(clean(problem), FAILED), err=True)
            sys.exit(exit_code(FAILED))
        except SystemExit as end:
            sys.exit(exit_code(end.code))
        finally:
            command_line.reset(called)
