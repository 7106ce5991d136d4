"""Families of targets. A family is one class in one file: its keys in models.yaml, and how its
files are loaded.

Every module of this package registers its own; plugins register others.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch

from search_spaces.params import Params
from search_spaces.plugins import Registry
from workers.models.target import Target

FAMILIES: Registry[type[Family]] = Registry("model family", "workers.models.families")


@dataclass(frozen=True, slots=True)
class Family(Params, ABC):
    """A family of targets; an instance is what one entry of models.yaml says about its target.

    Fields are the family's keys in the entry; those that are paths are annotated with `PathField`.
    """

    kind: ClassVar[str]
    # Entries of published models by name, with the official names of their files.
    published: ClassVar[Mapping[str, Mapping[str, Any]]] = {}
    # Entries of models.yaml for checkpoints on the Hugging Face Hub, by name, with `drafters` where
    # there are any.
    on_hub: ClassVar[Mapping[str, Mapping[str, Any]]] = {}

    @abstractmethod
    def load(self, device: torch.device, dtype: torch.dtype) -> Target:
        """The target on a device.

        Raises:
            WeightsError, ValueError: a file is missing, damaged, or of another family or size; the
                message names it.
        """

    def build_on_meta(self, dtype: torch.dtype) -> Target:
        """The target on the meta device, from the published architecture and without files.

        Raises:
            ValueError: the entry does not determine the architecture.
        """
        raise ValueError(
            f"the architecture of the family {self.kind} is not known without its files"
        )

    @property
    def paths(self) -> dict[str, str | None]:
        """The values of the keys that are paths."""
        return {
            field.key: getattr(self, field.name)
            for field in self.fields().values()
            if field.is_path
        }

    @property
    def target_files(self) -> dict[str, str]:
        """The files and folders that the target is loaded from, by key."""
        return {key: path for key, path in self.paths.items() if path is not None}

    @property
    def name_notes(self) -> list[str]:
        """What the published names of its files say that contradicts the entry. The files
        themselves do not say it.
        """
        return []

    def drafter_file(self, kind: str) -> Path | None:
        """Where the target's own folder may hold a drafter of a kind; None for families without
        such a folder.
        """
        return None
