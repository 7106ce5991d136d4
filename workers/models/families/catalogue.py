"""What a family of targets is, as entries of `models.yaml` name it. A module of this package may define FAMILY."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from search_spaces.settings import Setting
from workers.models.target import Target


@dataclass(frozen=True, slots=True)
class Family:
    """A family: its name, the keys of an entry that are its own, and what makes a target of such an entry.

    load raises WeightsError or ValueError, naming the file.
    """

    name: str
    entry: type[Setting]
    load: Callable[[Any, torch.device, torch.dtype], Target]
