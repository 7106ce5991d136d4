"""Options that several commands share, and how a command takes a group of options as one
dataclass.
"""

from __future__ import annotations

import functools
import inspect
import math
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import MISSING, Field, field, fields, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, get_args, get_type_hints

import typer

from orchestrator.errors import FAILED, WRONG_USAGE, CommandError, ends_with, explain
from orchestrator.outputs import check_lasting, check_output
from orchestrator.store import databases
from search_spaces.paths import is_remote, local_path
from workers.runtime.process import use_threads

if TYPE_CHECKING:
    import torch

    from workers.loading.models_yaml import Entry

MAX_SEED = 2**63 - 1  # as in a sweep's file
_MAX_THREADS = 4096
Result = TypeVar("Result")
#: The arguments that `specfrontier` was called with; None: a command's function was called from
#: Python
command_line: ContextVar[Sequence[str] | None] = ContextVar("command_line", default=None)


def option(
    help: str,
    metavar: str | None = None,
    *names: str,
    default: Any = None,
    key: str = "",
    **rules: Any,
) -> Any:
    """An option: a field of a group of options, or a parameter of a command that is `grouped`.

    names: on the command line, by default its own. key: of the sweep, which the option sets. rules:
    other arguments of `typer.Option`, such as `min`.
    """
    make = functools.partial(typer.Option, metavar=metavar, help=help, **rules)
    return field(default=default, metadata={"option": make, "names": names, "key": key})


def flag(help: str, *names: str, **rules: Any) -> Any:
    """An option without a value: true if it is given."""
    return option(help, None, *names, default=False, **rules)


def _read_option(name: str, hint: Any, default: Any) -> tuple[Any, Any]:
    """A parameter's annotation and default, as Typer takes them."""
    if not isinstance(default, Field):
        return hint, default
    if not default.metadata:
        is_required = default.default is MISSING
        return hint, inspect.Parameter.empty if is_required else default.default
    names = default.metadata["names"]
    if hint is bool and not names:  # without a name, Typer adds the opposite option
        names = (f"--{name.replace('_', '-')}",)
    return Annotated[hint, default.metadata["option"](*names)], default.default


def grouped(command: Callable[..., Result]) -> Callable[..., Result]:
    """A command with the options that its parameters declare. A parameter whose type is a dataclass
    stands for the options of its fields.

    So an option is declared once, and functions pass groups of options on as one object.
    """
    parameters: list[inspect.Parameter] = []
    groups: dict[str, tuple[Callable[..., Any], list[str]]] = {}
    for parameter in inspect.signature(command, eval_str=True).parameters.values():
        group = parameter.annotation
        read = {}
        if is_dataclass(group):
            hints = get_type_hints(group, include_extras=True)
            for entry in fields(group):
                hint, default = _read_option(entry.name, hints[entry.name], entry)
                if _is_option(hint):
                    read[entry.name] = (hint, default)
            groups[parameter.name] = (parameter.annotation, list(read))
        else:
            read[parameter.name] = _read_option(parameter.name, group, parameter.default)
        parameters += [
            inspect.Parameter(name, parameter.kind, default=default, annotation=hint)
            for name, (hint, default) in read.items()
        ]
    signature = inspect.Signature(parameters)

    @functools.wraps(command)
    def run(*arguments: Any, **options: Any) -> Result:
        bound = signature.bind(*arguments, **options)
        bound.apply_defaults()
        values = bound.arguments
        made = {
            name: group(**{key: values.pop(key) for key in keys})
            for name, (group, keys) in groups.items()
        }
        return command(**values, **made)

    run.__signature__ = signature  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return run


def _is_option(hint: Any) -> bool:
    return any(isinstance(part, typer.models.ParameterInfo) for part in get_args(hint)[1:])


def _matching(names: Callable[[], Iterable[str]]) -> Callable[[str], list[str]]:
    """What the shell offers for an incomplete word."""

    def complete(incomplete: str) -> list[str]:
        return [name for name in names() if name.startswith(incomplete)]

    return complete


def _spaces() -> list[str]:
    from search_spaces.sweep import ready_spaces

    return [*ready_spaces(), *(path.name for path in Path().glob("*.y*ml"))]


def _sweeps() -> list[str]:
    from orchestrator.store import files

    return sorted(path.parent.name for path in Path(files.SWEEPS).glob(f"*/{files.IDENTITY}"))


def _presets() -> list[str]:
    from search_spaces.presets import PRESETS

    return [*PRESETS]


complete_space = _matching(_spaces)
complete_sweep = _matching(_sweeps)
complete_preset = _matching(_presets)


def model_keys(models: str | None) -> dict[str, str]:
    """The keys of a sweep that --models sets."""
    if models is None:
        return {}
    from workers.loading.models_yaml import split_entry  # imports torch, which takes seconds

    file, entry = split_entry(models)
    keys = {"models.file": file}
    if entry is not None:
        keys["models.name"] = entry
    return keys


Models = Annotated[
    str | None,
    typer.Option(
        metavar="MODELS",
        help=(
            "builtin, a folder of weights, or a models.yaml: FILE#ENTRY (FILE if it has only one "
            "entry)."
        ),
    ),
]
Device = Annotated[
    str | None,
    typer.Option(
        metavar="DEVICE", help="cpu, cuda or cuda:N. Default: a GPU if torch can use one."
    ),
]


def say_on_terminal(text: str) -> None:
    """Say what takes seconds, if a person is there to read it."""
    if sys.stderr.isatty():
        typer.echo(text, err=True)


def finite(value: float | None) -> float | None:
    """A callback for options: refuses nan, which no range excludes, and infinity."""
    if value is not None and not math.isfinite(value):
        raise typer.BadParameter(f"must be a finite number, got {value}")
    return value


def input_path(option: typer.CallbackParam, path: str | None) -> str | None:
    """The path on this machine that an option or argument names, for `open` and for commands that
    are printed.

    Raises:
        CommandError: it is empty, as from an unset variable of a shell: "" would be the working
            directory, or /. Or `local_path` refuses it.
    """
    name = option.opts[0] if option.opts[0].startswith("-") else str(option.metavar)
    if path is not None and not path.strip():
        raise CommandError(f"{name} is empty; give a path", WRONG_USAGE)
    if path is None:
        return None
    try:
        return str(local_path(path))
    except ValueError as error:
        raise CommandError(f"{name}: {error}", WRONG_USAGE) from error


def input_place(option: typer.CallbackParam, place: str | None) -> str | None:
    """The path or URI of what an option names to be read. Raises as `input_path`."""
    if place is not None and is_remote(place):
        return place
    return input_path(option, place)


def output_path(option: typer.CallbackParam, path: str | None) -> str | None:
    """The path on this machine of what an option names to be written. Raises as `input_path`; or a
    Ray job would lose it.
    """
    place = input_path(option, path)
    if place is not None:
        with ends_with(WRONG_USAGE):
            check_lasting(option.opts[0], place)
    return place


def output_place(option: typer.CallbackParam, place: str | None) -> str | None:
    """The path, or the URI of storage or a database, of what an option names to be written; see
    `output_path`.
    """
    if place is None or not is_remote(place):
        return output_path(option, place)
    with ends_with(WRONG_USAGE):
        check_lasting(option.opts[0], place)
        return databases.expand_home(place)


def _use_threads(count: int | None) -> int | None:
    if count is not None:
        use_threads(count)
    return count


def _threads(default: str) -> Any:
    about = f"CPU threads. Default: OMP_NUM_THREADS, else {default}."
    return typer.Option(metavar="N", min=1, max=_MAX_THREADS, callback=_use_threads, help=about)


Threads = Annotated[int | None, _threads("the cores idle at the start; for a worker its cores")]
TimingThreads = Annotated[
    int | None,
    _threads("those that the sweep was timed with, on a CPU; else the cores idle at the start"),
]
Address = Annotated[
    str | None,
    typer.Option(
        metavar="ADDRESS", help="Ray cluster: auto or HOST:PORT. Default: this machine alone."
    ),
]
TrackingUri = Annotated[
    str | None,
    typer.Option(
        metavar="URI",
        callback=output_place,
        help=(
            "MLflow's tracking URI. Default: of a resumed sweep the last one, else "
            "MLFLOW_TRACKING_URI, else SQLite in the output folder."
        ),
    ),
]
Mlflow = Annotated[bool, typer.Option("--mlflow/--no-mlflow", help="Log to MLflow.")]
Assignments = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Override one key of the preset or YAML file, with dots between levels. Repeatable.",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def output_file(
    endings: Sequence[str],
    read: Callable[[typer.CallbackParam, str | None], str | None] = output_place,
) -> Callable[[typer.CallbackParam, str | None], str | None]:
    """A callback for options that name a file to write (see `check_output`), so that no work is
    done for nothing.

    endings: the known ones, which decide the format. read: `output_path` if it must be on this
    machine.
    """

    def check(option: typer.CallbackParam, path: str | None) -> str | None:
        place = read(option, path)
        if place is not None:
            try:
                check_output(place, endings, option.opts[0])
            except (ValueError, OSError) as error:
                raise CommandError(f"{option.opts[0]} {explain(error)}", WRONG_USAGE) from error
        return place

    return check


def find_models(given: str | None, own: str) -> Entry:
    """The entry that --models names; None: that of a sweep or of the built-in models. own: their
    place.

    Raises:
        CommandError: there is none (2), or its files do not exist (1).
    """
    from workers.loading.models_yaml import find_entry

    code = WRONG_USAGE
    try:
        entry = find_entry(given or own)
        code = FAILED
        entry.check_files()
    except (ValueError, OSError) as error:
        moved = "" if given else "; --models names the weights where they are now"
        raise CommandError(f"{explain(error)}{moved}", code) from error
    return entry


@contextmanager
def show_notes() -> Iterator[None]:
    """At the end of the block, print the notes on weights that it loaded (see `collect_notes`) on
    standard error.
    """
    from workers.models.checkpoint_files import collect_notes

    with collect_notes() as notes:
        yield
    for text in notes:
        typer.echo(f"note: {text}", err=True)


def pick_device(name: str | None) -> torch.device:
    """The device that --device names; None: a GPU if torch can use one.

    Raises:
        CommandError: no such device, or a type that decoding does not support.
    """
    from workers.runtime import device

    try:
        return device.pick_device(device.AUTO if name is None else name)
    except ValueError as error:
        raise CommandError(f"--device {error}", WRONG_USAGE) from error
