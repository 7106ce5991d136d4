"""Registries of named implementations, and the plugins that add to them from outside the project.

A plugin is a module that registers classes or functions when it is imported:

    @NEIGHBOURHOODS.register
    class Fading(Neighbourhood):
        kind: ClassVar[str] = "fading"

It is found in three ways: an installed package names it in the entry point group
`specfrontier.plugins`, `--plugin MODULE` names it on the command line, or the environment variable
SPECFRONTIER_PLUGINS does (comma separated), which carries the names to worker processes. A lookup
of an unknown name loads the plugins before it fails. A sweep stores the names of its plugins
(`plugin_modules`); while its files are read, such a lookup loads them too (`stored_plugins`).
"""

from __future__ import annotations

import importlib.util
import inspect
import os
import pkgutil
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache, partial
from importlib import metadata
from pathlib import Path
from typing import Any, Generic, Self, TypeVar

from search_spaces.params import ConfigError, Extensible, class_error, unknown_choice

ENTRY_POINT_GROUP = "specfrontier.plugins"
PLUGINS_VARIABLE = "SPECFRONTIER_PLUGINS"

T = TypeVar("T")

_PROJECT = ("search_spaces", "workers", "orchestrator", "specfrontier", "__main__")

_loaded: set[str] = set()  # names of entry points and modules
_sweep_plugins: ContextVar[_StoredPlugins | None] = ContextVar("_sweep_plugins", default=None)


class PluginNames(tuple[str, ...], Extensible):
    """Names, to which plugins may add."""


class Registry(Mapping[str, T], Generic[T], Extensible):
    """Implementations by name, in order of registration; the first one is the default."""

    def __init__(self, what: str, package: str = "") -> None:
        self.what = what  # a noun for messages, such as "tree policy"
        self._package = package  # its modules register entries; imported when a name is unknown
        self._entries: dict[str, T] = {}
        self._modules: dict[str, str] = {}

    def __repr__(self) -> str:
        return f"Registry({self.what!r}: {', '.join(self._entries)})"

    def __getitem__(self, name: str) -> T:
        return self._entries[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, name: object) -> bool:
        if isinstance(name, str):
            if name not in self._entries and self._package:
                _import_modules(self._package)
            if name not in self._entries:  # presets name no plugin's part, and are read on import
                self.load()
            elif (stored := _sweep_plugins.get()) and is_external(self._modules[name]):
                stored.load()  # another plugin's entry may have this name
        return name in self._entries

    def load(self) -> None:
        """Import what may register entries: the plugins, and the modules of the package."""
        load_plugins()
        if self._package:
            _import_modules(self._package)

    def all(self) -> Self:
        """This registry, with the entries of all plugins and of all modules of the package."""
        self.load()
        return self

    def register(self, entry: T) -> T:
        """Class decorator: adds a class under its attribute `kind`.

        Raises:
            ConfigError: another module has the kind, another class the short name, or the class is
                incomplete.
        """
        _check_class(entry, self.what)  # type: ignore[arg-type]  # these registries' classes
        kind: str = entry.kind  # type: ignore[attr-defined]  # these registries' classes
        short = getattr(entry, "short", kind)
        for other, known in self._entries.items():
            if other != kind and short in (other, getattr(known, "short", other)):
                raise ConfigError(
                    (),
                    f"{self.what} {kind!r} has the short name {short!r} of {other!r}; choose "
                    "another",
                )
        self.add(kind, entry, entry.__module__)
        return entry

    def add(self, name: str, entry: T, module: str | None = None) -> None:
        """Add `entry`, which `module` defines (by default the module that calls this method). The
        same module may define a name again (a notebook's cell, a reload).

        Raises:
            ConfigError: another module has registered the name.
        """
        module = module or caller_module()
        if name in self._entries and self._modules[name] != module:
            modules = f"{self._modules[name]} and {module}"
            raise ConfigError(
                (), f"{self.what} {name!r} is registered by both {modules}; rename one of the two"
            )
        self._entries[name] = entry
        self._modules[name] = module

    def lookup(self, name: object) -> T:
        """The entry of that name.

        Raises:
            ConfigError: no such entry; the message has the nearest and all known names.
        """
        if not isinstance(name, str) or name not in self:
            raise ConfigError((), unknown_choice(name, self))
        return self._entries[name]


def _check_class(entry: type, what: str) -> None:
    """Raise ConfigError, with the file and the class, if a class leaves out what its bases
    demand.
    """
    if missing := [*sorted(getattr(entry, "__abstractmethods__", ())), *_unset_attributes(entry)]:
        raise class_error(entry, f"define {', '.join(missing)}; every {what} needs them")
    if "__dataclass_fields__" not in vars(entry) or not entry.__dataclass_params__.frozen:  # type: ignore[attr-defined]
        raise class_error(
            entry, "write @dataclass(frozen=True, slots=True) below the line that registers it"
        )
    for name in dir(entry):
        is_property = any(isinstance(vars(base).get(name), property) for base in entry.__mro__)
        if is_property and inspect.isfunction(inspect.getattr_static(entry, name)):
            raise class_error(entry, f"{name} is a property; write @property above it")


def _unset_attributes(entry: type) -> list[str]:
    """The class attributes that the bases of a class declare without a value, and that it does not
    set.
    """
    declared = (item for base in entry.__mro__ for item in inspect.get_annotations(base).items())
    return [
        name
        for name, annotation in declared
        if "ClassVar" in str(annotation) and not hasattr(entry, name)
    ]


def caller_module() -> str:
    """The name of the module that called the function that calls this one."""
    return str(sys._getframe(2).f_globals["__name__"])


def load_plugins(extra: Sequence[str] = ()) -> None:
    """Import the plugins of installed packages, of SPECFRONTIER_PLUGINS and the modules `extra`;
    each once.

    The names in `extra` are added to SPECFRONTIER_PLUGINS, so that processes started later load
    them as well. Modules are also found in the working directory.

    Raises:
        ConfigError: a plugin fails to import; the message names it and the fix.
    """
    for name in extra:
        if name.endswith(".py"):
            raise ConfigError(
                (), f"the plugin {name!r} is a file; give the module's name, {Path(name).stem}"
            )
    _add_to_variable(extra)
    if ENTRY_POINT_GROUP not in _loaded:
        for point in metadata.entry_points(group=ENTRY_POINT_GROUP):
            package = point.dist.name if point.dist is not None else "unknown"
            fix = f"correct or uninstall the package {package}"
            _load(point.load, f"{point.name} = {point.value}", point.module, fix)
    _loaded.add(ENTRY_POINT_GROUP)
    for name in _variable_modules():
        fix = (
            "correct the name in --plugin or SPECFRONTIER_PLUGINS; every machine needs it, "
            "installed or on PYTHONPATH"
        )
        _load(partial(_import, name), name, name, fix)
    if stored := _sweep_plugins.get():
        stored.load()


def plugin_modules() -> list[str]:
    """The plugins of this process by their modules: those of installed packages, and those of
    SPECFRONTIER_PLUGINS.
    """
    points = metadata.entry_points(group=ENTRY_POINT_GROUP)
    return list(dict.fromkeys([*(point.module for point in points), *_variable_modules()]))


@contextmanager
def stored_plugins(find: Callable[[], Iterable[str]], folder: Path | None = None) -> Iterator[None]:
    """Inside, a lookup of a name that this project does not define also loads the modules that
    `find` names: those that a stored sweep was launched with. A missing one is not an error;
    messages about unknown names mention it.

    The modules are found as those of --plugin, but never in `folder`, which is the sweep's: a sweep
    brings no code.
    """
    token = _sweep_plugins.set(_StoredPlugins(find, folder))
    try:
        yield
    finally:
        _sweep_plugins.reset(token)


class _StoredPlugins:
    """The plugins of a stored sweep (see `stored_plugins`)."""

    def __init__(self, find: Callable[[], Iterable[str]], folder: Path | None) -> None:
        self._find = find
        self._folder = folder and folder.resolve()
        self._is_loaded = False

    def load(self) -> None:
        """Import the modules, once.

        Raises:
            ConfigError: one of them fails for another reason than a missing module.
        """
        if self._is_loaded:
            return
        self._is_loaded = True  # before the imports: a plugin may look names up itself
        for name in self._find():
            try:
                _load(partial(_import_stored, name, self._folder), name, name, "the sweep needs it")
            except ConfigError as error:
                if not isinstance(error.__cause__, ModuleNotFoundError):
                    raise
                Extensible.missing[name] = str(error.__cause__)
            else:
                Extensible.missing.pop(name, None)
                _add_to_variable([name])


def is_external(module: str) -> bool:
    """Whether a module is a plugin's: not of this project, and not a notebook or script."""
    return module.partition(".")[0] not in _PROJECT


def _variable_modules() -> list[str]:
    """The modules in SPECFRONTIER_PLUGINS."""
    return [
        name.strip() for name in os.environ.get(PLUGINS_VARIABLE, "").split(",") if name.strip()
    ]


def _add_to_variable(modules: Sequence[str]) -> None:
    """Add modules to SPECFRONTIER_PLUGINS."""
    os.environ[PLUGINS_VARIABLE] = ",".join(dict.fromkeys([*_variable_modules(), *modules]))


def _import(name: str) -> None:
    """Import a module, which may be in the working directory."""
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())  # a console script's path lacks it
    importlib.import_module(name)


def _import_stored(name: str, folder: Path | None) -> None:
    """Import a module that a sweep names, unless its file is in the sweep's folder.

    Raises:
        ModuleNotFoundError: it is in the folder of the sweep or in one that is not a package, or it
            does not exist.
    """
    if os.getcwd() not in sys.path and not (folder and Path.cwd().is_relative_to(folder)):
        sys.path.append(os.getcwd())
    parts = name.split(".")
    for end in range(1, len(parts) + 1):
        # This imports the packages before it, which are checked already.
        spec = importlib.util.find_spec(".".join(parts[:end]))
        # A module without an origin may be any folder, as in `sweeps.theirs.module`.
        if spec is None or spec.origin is None:
            raise ModuleNotFoundError(f"No module named {name!r}")
        if folder and Path(spec.origin).resolve().is_relative_to(folder):
            raise ModuleNotFoundError(
                f"{spec.origin} is in the folder of the sweep itself, which brings no code"
            )
    importlib.import_module(name)


def _import_modules(package: str) -> None:
    """Import every module of a package, in the order of their names."""
    _import_folders(package, tuple(importlib.import_module(package).__path__))


@cache
def _import_folders(package: str, folders: tuple[str, ...]) -> None:
    for module in sorted(info.name for info in pkgutil.iter_modules(folders)):
        importlib.import_module(f"{package}.{module}")


def load_object(reference: str) -> Any:
    """The object that "package.module:Name" refers to; the module is imported now.

    Raises:
        ConfigError: there is no such module or name, or it is a class that leaves out methods of
            its base.
    """
    module, _, name = reference.partition(":")
    try:
        found = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise ConfigError(
            (), f"cannot load {reference!r}: {error}; write it as package.module:Name"
        ) from error
    if missing := getattr(found, "__abstractmethods__", None):
        raise class_error(found, f"define {', '.join(sorted(missing))}")
    return found


def plugin_line(error: BaseException, modules: Iterable[str]) -> str:
    """`my_rules.py, line 3`: the last line of these modules in an exception's traceback; empty if
    it has none.
    """
    packages = {module.partition(".")[0] for module in modules}
    frames = list(traceback.walk_tb(error.__traceback__))
    lines = [
        f"{frame.f_code.co_filename}, line {line}"
        for frame, line in frames
        if str(frame.f_globals.get("__name__")).partition(".")[0] in packages
    ]
    if lines:
        return lines[-1]
    return ""


def _load(load: Callable[[], object], name: str, module: str, not_found: str) -> None:
    """Import a plugin, once. `not_found` is the fix if `module` itself does not exist."""
    if name in _loaded:
        return
    _loaded.add(name)  # before the import: a plugin may look names up itself
    try:
        load()
    except Exception as error:
        _loaded.discard(name)
        if isinstance(error, ConfigError):
            raise ConfigError(
                error.path, f"{error.problem} (plugin {name!r})", error.location
            ) from error
        is_missing = isinstance(error, ModuleNotFoundError) and f"{module}.".startswith(
            f"{error.name}."
        )
        problem = f"{type(error).__name__}: {error}"
        if line := plugin_line(error, [module]):
            problem += f" ({line})"
        problem += f"; {not_found if is_missing else 'correct the module'}"
        raise ConfigError((), f"the plugin {name!r} cannot be imported: {problem}") from error
