"""Registries of named implementations, and the plugins that add to them from outside the project.

A plugin is a module that registers classes or functions when it is imported:

    @NEIGHBOURHOODS.register
    class Fading(Neighbourhood):
        kind: ClassVar[str] = "fading"

It is found in three ways: an installed package names it in the entry point group `specfrontier.plugins`, `--plugin
MODULE` names it on the command line, or the environment variable SPECFRONTIER_PLUGINS does (comma separated), which
carries the names to worker processes. A lookup of an unknown name loads the plugins before it fails.
"""

from __future__ import annotations

import importlib
import os
import pkgutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from importlib import metadata
from typing import Any, Generic, TypeVar

from search_spaces.params import ConfigError, unknown_choice

ENTRY_POINT_GROUP = "specfrontier.plugins"
PLUGINS_VARIABLE = "SPECFRONTIER_PLUGINS"

T = TypeVar("T")

_loaded: set[str] = set()  # names of entry points and modules


class Registry(Mapping[str, T], Generic[T]):
    """Implementations by name, in order of registration; the first one is the default.

    what: a noun for messages, such as "tree policy". package: its modules may register entries; they are imported
    when a name is unknown.
    """

    def __init__(self, what: str, package: str = "") -> None:
        self.what, self._package = what, package
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
        if name not in self._entries and isinstance(name, str):
            self.load()
        return name in self._entries

    def load(self) -> None:
        """Import what may register entries: the plugins, and the modules of the package."""
        load_plugins()
        if self._package:
            import_modules(self._package)

    def register(self, entry: T) -> T:
        """Class decorator: adds a class under its attribute `kind`."""
        self.add(entry.kind, entry, entry.__module__)  # type: ignore[attr-defined]  # these registries' classes
        return entry

    def add(self, name: str, entry: T, module: str | None = None) -> None:
        """Add `entry`. The same module may define a name again (a notebook's cell, a reload).

        module: where it is defined, by default the module that calls this method.

        Raises:
            ConfigError: another module has registered the name.
        """
        module = module or caller_module()
        if name in self._entries and self._modules[name] != module:
            modules = f"{self._modules[name]} and {module}"
            raise ConfigError((), f"{self.what} {name!r} is registered by both {modules}; rename one of the two")
        self._entries[name], self._modules[name] = entry, module

    def lookup(self, name: object) -> T:
        """The entry of that name.

        Raises:
            ConfigError: no such entry; the message has the nearest and all known names.
        """
        if not isinstance(name, str) or name not in self:
            raise ConfigError((), unknown_choice(name, self))
        return self._entries[name]


def caller_module() -> str:
    """The name of the module that called the function that calls this one."""
    return str(sys._getframe(2).f_globals["__name__"])


def load_plugins(extra: Sequence[str] = ()) -> None:
    """Import the plugins of installed packages, of SPECFRONTIER_PLUGINS and the modules `extra`; each once.

    The names in `extra` are added to SPECFRONTIER_PLUGINS, so that processes started later load them as well. Modules
    are also found in the working directory.

    Raises:
        ConfigError: a plugin fails to import; the message names it and the fix.
    """
    modules = [name.strip() for name in os.environ.get(PLUGINS_VARIABLE, "").split(",") if name.strip()]
    modules += [name for name in dict.fromkeys(extra) if name not in modules]
    if extra:
        os.environ[PLUGINS_VARIABLE] = ",".join(modules)
    for point in () if ENTRY_POINT_GROUP in _loaded else metadata.entry_points(group=ENTRY_POINT_GROUP):
        package = point.dist.name if point.dist is not None else "unknown"
        _load(point.load, f"{point.name} = {point.value}", f"of the package {package}", "fix or uninstall the package")
    _loaded.add(ENTRY_POINT_GROUP)
    for name in modules:
        if os.getcwd() not in sys.path:
            sys.path.append(os.getcwd())  # a console script's path lacks it
        _load(partial(importlib.import_module, name), name, "given by --plugin or SPECFRONTIER_PLUGINS",
              "correct its name, or the module")  # fmt: skip


def import_modules(package: str) -> None:
    """Import every module of a package, in the order of their names."""
    for module in sorted(info.name for info in pkgutil.iter_modules(importlib.import_module(package).__path__)):
        importlib.import_module(f"{package}.{module}")


def load_object(reference: str) -> Any:
    """The object that "package.module:Name" refers to; the module is imported now.

    Raises:
        ConfigError: there is no such module or name.
    """
    module, _, name = reference.partition(":")
    try:
        return getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise ConfigError((), f"cannot load {reference!r}: {error}; write it as package.module:Name") from error


def _load(load: Callable[[], object], name: str, source: str, fix: str) -> None:
    if name in _loaded:
        return
    _loaded.add(name)  # before the import: a plugin may look names up itself
    try:
        load()
    except Exception as error:
        _loaded.discard(name)
        problem = f"the plugin {name!r} {source} cannot be imported: {type(error).__name__}: {error}; {fix}"
        raise ConfigError((), problem) from error
