"""The device that work runs on, and the software, as results name them."""

from __future__ import annotations

import os
import platform
import subprocess
from collections.abc import Collection
from contextlib import suppress
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from workers.decoding.graphs import are_supported
from workers.decoding.kernels import implementation
from workers.metrics.timings import EAGER, Device

AUTO = "auto"
_CPU_BF16 = ("amx_bf16", "avx512_bf16")  # instruction sets, by the names of torch and Linux
_CPUINFO = Path("/proc/cpuinfo")
_GIT_TIMEOUT_S = 10.0


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


def this_device(device: torch.device) -> Device:
    """What times the sessions of this process: the threads of a CPU, or a GPU. A GPU with and one
    without CUDA graphs are two devices.
    """
    if device.type == "cuda":
        name = torch.cuda.get_device_name(device)
        if not are_supported(device):
            name += EAGER
        return Device(name)
    return Device(_cpu_model(), torch.get_num_threads())


def _cpu_model() -> str:
    lines = []
    if _CPUINFO.exists():
        lines = _CPUINFO.read_text("utf-8", "replace").splitlines()
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, "") or platform.processor() or platform.machine()


def compute_facts(device: torch.device) -> dict[str, Any]:
    """What this process computes with. Its `kernels` are "triton", or "torch" where Triton's do not
    run.
    """
    return {
        "device": device_name(device),
        "threads": torch.get_num_threads(),
        "kernels": implementation(device.type),
        "versions": versions(),
    }


def training_dtype(device: torch.device, bf16: bool | None = None) -> tuple[torch.dtype, str]:
    """The dtype of a training's matrix products, and the reason in words.

    With `bf16` None it is bfloat16 where the device has instructions for it. Without them bfloat16
    is ten times slower than float32 on a CPU.
    """
    reason = "as configured"
    if bf16 is None:
        bf16, reason = _bf16_support(device)
    if bf16:
        return torch.bfloat16, reason
    return torch.float32, reason


def _bf16_support(device: torch.device) -> tuple[bool, str]:
    """Whether the device has instructions for products of bfloat16 matrices, and what it has."""
    if device.type == "cuda":
        with torch.cuda.device(device):
            if torch.cuda.is_bf16_supported(including_emulation=False):
                return True, "this GPU has bfloat16 instructions"
        return False, "this GPU has no bfloat16 instructions"
    for name in _CPU_BF16:
        if name in _cpu_flags():
            return True, f"this CPU has {name}"
    return False, f"this CPU has neither {' nor '.join(_CPU_BF16)}"


def _cpu_flags() -> Collection[str]:
    """The instruction sets of this CPU, as far as torch or Linux tells."""
    if hasattr(torch.cpu, "get_capabilities"):
        return {name for name, value in torch.cpu.get_capabilities().items() if value}
    if _CPUINFO.exists():
        return set(_CPUINFO.read_text("utf-8", "replace").split())
    return ()


@cache
def _commit() -> str:
    """The commit of the clone that this code runs from, with `-dirty` if files were changed; empty
    for an installed package.
    """
    root = Path(__file__).parents[2]
    if not (root / ".git").exists():  # another project's clone may hold an installed package
        return ""
    command = ["git", "-C", str(root), "describe", "--always", "--dirty", "--abbrev=40"]
    with suppress(OSError, subprocess.SubprocessError):  # no git, or a clone of another user
        ran = subprocess.run(
            [*command, "--exclude=*"],
            env=os.environ | {"GIT_OPTIONAL_LOCKS": "0"},
            capture_output=True,
            text=True,
            check=True,
            timeout=_GIT_TIMEOUT_S,
        )
        return ran.stdout.strip()
    return ""


def versions() -> dict[str, str]:
    """Versions of Python and torch, of specfrontier if it is installed, and its commit if that is
    known.
    """
    own = {}
    with suppress(PackageNotFoundError):
        own["specfrontier"] = version("specfrontier")
    if commit := _commit():
        own["commit"] = commit
    return own | {"python": platform.python_version(), "torch": str(torch.__version__)}
