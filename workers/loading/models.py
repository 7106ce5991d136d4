"""Target and drafters from weight files, onto a device."""

from __future__ import annotations

import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch

from workers.loading.bundle import Models
from workers.loading.manifest import Entry, load_entry
from workers.models.families.scenes import BUILTIN, load_scenes
from workers.models.target import Target
from workers.models.weights import WeightsError, content_hash
from workers.runtime.specification import WorkerSpec

__all__ = [
    "AUTO", "BUILTIN_NAME", "Models", "device_name", "image_size", "load_models", "models_of", "pick_device",
    "versions", "weights_folder",
]  # fmt: skip

BUILTIN_NAME, AUTO = "builtin", "auto"


def weights_folder(weights: str) -> Path:
    """The folder that `weights` means: "builtin" is the one that comes with the package.

    Raises:
        WeightsError: no such folder.
    """
    folder = BUILTIN if weights == BUILTIN_NAME else Path(weights).expanduser()
    if not folder.is_dir():
        raise WeightsError(f"{folder}: no such folder of weights; give one that `specfrontier train` made, or builtin")
    return folder


def load_models(folder: Path, device: torch.device) -> Models:
    """The model of a folder on a device.

    Raises:
        WeightsError: a weight file is missing, truncated or of another family.
    """
    models = load_scenes(folder)
    for module in (models.target, *models.drafters.values()):
        module.to(device)
    hashes = {path.name: content_hash(path) for path in sorted(folder.glob("*.safetensors"))}
    return Models(models.target, models.drafters, hashes)


def models_of(spec: WorkerSpec, device: torch.device) -> tuple[Models, Path]:
    """The models that a worker is told to load, on a device, and the folder where nets of their own would lie.

    Raises:
        WeightsError: a file is missing, damaged or of another family.
    """
    if spec.models is None:
        folder = weights_folder(spec.weights)
        return load_models(folder, device), folder
    entry = Entry.from_mapping(spec.models)
    return load_entry(entry, device), entry.folder


def pick_device(name: str) -> torch.device:
    """The device by name; "auto" is a GPU if torch can use one.

    Raises:
        ValueError: no such device, or not one that decoding runs on.
    """
    if name == AUTO:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise ValueError(f"{name}: use cpu, cuda or cuda:N") from error
    if device.type not in ("cpu", "cuda"):
        raise ValueError(f"{name}: use cpu, cuda or cuda:N")
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if device.type == "cuda" and (device.index or 0) >= count:
        raise ValueError(f"{name}: torch sees {count} CUDA devices here")
    return device


def image_size(target: Target) -> int:
    """Pixels along the longer side of the images that a target draws.

    Raises:
        ValueError: the target has no codec.
    """
    grid = target.grid
    return max(target.decode(torch.zeros(1, grid.tokens, dtype=torch.int64, device=target.device)).shape[2:])


def device_name(device: torch.device) -> str:
    """The device as a result file names it: "cpu (x86_64)", or the GPU's own name."""
    if device.type == "cuda":
        return f"cuda ({torch.cuda.get_device_name(device)})"
    return f"{device.type} ({platform.machine()})"


def versions() -> dict[str, str]:
    """The software that a result comes from."""
    try:
        own = version("specfrontier")
    except PackageNotFoundError:
        own = "not installed"
    return {"specfrontier": own, "python": platform.python_version(), "torch": torch.__version__}
