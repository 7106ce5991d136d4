"""Target and drafters from weight files, onto a device."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

from orchestrator.errors import FAILED, WRONG_USAGE, CommandError, ends_with
from workers.drafters.base import Drafter
from workers.models.families.scenes import BUILTIN, load_scenes
from workers.models.target import Target
from workers.models.weights import content_hash


@dataclass(frozen=True, slots=True)
class Models:
    """A target, its drafters by kind, and each weight file's hash (16 digits of its SHA-256) by name."""

    target: Target
    drafters: Mapping[str, Drafter]
    hashes: Mapping[str, str]


def load_models(weights: str | None, device: str | None) -> Models:
    """The scenes model of a folder (None: the built-in one) on a device (None: a GPU if torch can use one).

    Raises:
        CommandError: no such folder or device (2); a weight file missing, truncated or of another family (1).
    """
    where = pick_device(device)
    folder = Path(weights) if weights is not None else BUILTIN
    if not folder.is_dir():
        raise CommandError(f"--weights {folder}: no such folder", WRONG_USAGE)
    with ends_with(FAILED):
        models = load_scenes(folder)
    for module in (models.target, *models.drafters.values()):
        module.to(where)
    hashes = {path.name: content_hash(path) for path in sorted(folder.glob("*.safetensors"))}
    return Models(models.target, models.drafters, hashes)


def pick_device(name: str | None) -> torch.device:
    """The device by name.

    Raises:
        CommandError: no such device, or not one that decoding runs on.
    """
    if name is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise CommandError(f"--device {name}: use cpu, cuda or cuda:N", WRONG_USAGE) from error
    if device.type not in ("cpu", "cuda"):
        raise CommandError(f"--device {name}: use cpu, cuda or cuda:N", WRONG_USAGE)
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if device.type == "cuda" and (device.index or 0) >= count:
        raise CommandError(f"--device {name}: torch sees {count} CUDA devices here", WRONG_USAGE)
    return device
