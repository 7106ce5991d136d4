"""The device that work runs on, and the software, as results name them."""

from __future__ import annotations

import platform
from importlib.metadata import PackageNotFoundError, version

import torch

AUTO = "auto"


def pick_device(name: str) -> torch.device:
    """The device by name; "auto" is a GPU if torch can use one.

    Raises:
        ValueError: no such device, or a type that decoding does not support.
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


def device_name(device: torch.device) -> str:
    """The device as a result file names it: "cpu (x86_64)", or the GPU's own name."""
    if device.type == "cuda":
        return f"cuda ({torch.cuda.get_device_name(device)})"
    return f"{device.type} ({platform.machine()})"


def versions() -> dict[str, str]:
    """Versions of specfrontier, Python and torch."""
    try:
        own = version("specfrontier")
    except PackageNotFoundError:
        own = "not installed"
    return {"specfrontier": own, "python": platform.python_version(), "torch": torch.__version__}
