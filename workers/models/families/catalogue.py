"""All families of targets. Each module of this package may define FAMILY; nothing lists them by hand.

A new family is one file here and its test: what an entry of models.yaml says of it, and how its files are loaded.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from types import MappingProxyType
from typing import Any

import torch

import workers.models.families
from search_spaces.params import Params
from workers.models.target import Target


@dataclass(frozen=True, slots=True)
class Family:
    """A family of targets.

    entry: its own keys in an entry of models.yaml; a text that has no fixed list of words is a path. load: the target
    of such an entry on a device; raises WeightsError or ValueError naming the file. outline: the same target by its
    architecture alone, on the meta device, for entries that name a published size. published: such entries by name,
    the paths being the official files' names. beside: drafters that lie with an entry's own files, by kind.
    """

    name: str
    entry: type[Params]
    load: Callable[[Any, torch.device, torch.dtype], Target]
    outline: Callable[[Any, torch.dtype], Target] | None = None
    published: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    beside: Callable[[Any], Mapping[str, str]] | None = None


@cache
def families() -> Mapping[str, Family]:
    """Every family by name.

    Raises:
        ValueError: two modules define one name.
    """
    found: dict[str, Family] = {}
    for module in sorted(pkgutil.iter_modules(workers.models.families.__path__), key=lambda info: info.name):
        name = f"workers.models.families.{module.name}"
        family = getattr(importlib.import_module(name), "FAMILY", None)
        if family is None:
            continue
        if family.name in found:
            raise ValueError(f"{name}: a family {family.name!r} is there already; choose another name")
        found[family.name] = family
    return MappingProxyType(found)
