"""Target and drafters for a command, with errors that name the command's options."""

from __future__ import annotations

import torch

from orchestrator.errors import FAILED, WRONG_USAGE, CommandError, ends_with
from workers.loading.models import Models
from workers.loading.models_yaml import find_entry, load_entry
from workers.runtime import device as devices


def load_models(source: str, device: str | None) -> Models:
    """The models that --models names (see `find_entry`), on a device (None: a GPU if torch can use one).

    Raises:
        CommandError: no such folder, file, entry or device (2); a weight file is missing, damaged or of another family
            (1).
    """
    place = pick_device(device)
    with ends_with(WRONG_USAGE):
        entry = find_entry(source)
    with ends_with(FAILED):
        return load_entry(entry, place)


def pick_device(name: str | None) -> torch.device:
    """The device by name.

    Raises:
        CommandError: no such device, or a type that decoding does not support.
    """
    try:
        return devices.pick_device(devices.AUTO if name is None else name)
    except ValueError as error:
        raise CommandError(f"--device {error}", WRONG_USAGE) from error
