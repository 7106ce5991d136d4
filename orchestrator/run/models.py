"""Target and drafters for a command, with errors that name the command's options."""

from __future__ import annotations

from pathlib import Path

import torch

from orchestrator.errors import FAILED, WRONG_USAGE, CommandError, ends_with
from workers.loading import models as loading
from workers.loading.entry_names import split_entry
from workers.loading.manifest import load_entry, read_entry
from workers.loading.models import AUTO, Models
from workers.models.families.scenes import BUILTIN

__all__ = ["Models", "load_models", "pick_device"]


def load_models(weights: str | None, device: str | None, models: str | None = None) -> Models:
    """The scenes model of a folder (None: the built-in one), or an entry of a models.yaml ("FILE#ENTRY"), on a device
    (None: a GPU if torch can use one).

    Raises:
        CommandError: no such folder, file, entry or device, or both are given (2); a weight file missing, truncated or
            of another family (1).
    """
    where = pick_device(device)
    if models is not None:
        if weights is not None:
            raise CommandError("--weights and --models both say what to load; leave one out", WRONG_USAGE)
        file, name = split_entry(models)
        with ends_with(WRONG_USAGE):
            entry = read_entry(file or models, name)
        with ends_with(FAILED):
            return load_entry(entry, where)
    folder = Path(weights) if weights is not None else BUILTIN
    if not folder.is_dir():
        raise CommandError(f"--weights {folder}: no such folder", WRONG_USAGE)
    with ends_with(FAILED):
        return loading.load_models(folder, where)


def pick_device(name: str | None) -> torch.device:
    """The device by name.

    Raises:
        CommandError: no such device, or not one that decoding runs on.
    """
    try:
        return loading.pick_device(AUTO if name is None else name)
    except ValueError as error:
        raise CommandError(f"--device {error}", WRONG_USAGE) from error
