"""What this machine has: for `doctor`, and for the head of every result file."""

from __future__ import annotations

import math
import os
import platform
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

LIBRARIES = ("numpy", "safetensors", "transformers", "pillow", "pyyaml", "typer")
SWEEP_LIBRARIES = ("ray", "optuna", "mlflow", "pyarrow", "torchmetrics")


def installed(name: str) -> str | None:
    """The installed version of a distribution; None if it is not installed."""
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def memory() -> tuple[int | None, int | None]:
    """Bytes of memory, and how many are free now; a container's limit counts. None: not known on this system."""
    total = free = None
    meminfo = Path("/proc/meminfo")
    if meminfo.exists():
        fields = dict(line.split(":", 1) for line in meminfo.read_text().splitlines())
        total, free = (int(fields[key].split()[0]) * 1024 for key in ("MemTotal", "MemAvailable"))
    limit = Path("/sys/fs/cgroup/memory.max")
    if limit.exists() and (text := limit.read_text().strip()).isdigit():
        total = min(total or int(text), int(text))
    return total, free


def torch_facts() -> dict[str, Any]:
    """The torch build and the GPUs that it can use."""
    import torch

    cuda = torch.version.cuda
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    properties = [torch.cuda.get_device_properties(index) for index in range(count)]
    return {
        "version": torch.__version__,
        "build": f"CUDA {cuda}" if cuda else "CPU only",
        "threads": torch.get_num_threads(),
        "devices": [{"name": device.name, "memory_bytes": device.total_memory} for device in properties],
    }


def local_workers(torch: Mapping[str, Any]) -> dict[str, Any]:
    """What a sweep on this machine alone runs on: a worker on every GPU, else on every core."""
    gpus = [device["name"] for device in torch["devices"]]
    return {"count": len(gpus) or cores(), "gpus": gpus}


def ray_access() -> dict[str, Any]:
    """How this user gets into Ray clusters: mode: RAY_AUTH_MODE. token: where a token is found, None if nowhere."""
    named = os.environ.get("RAY_AUTH_TOKEN_PATH")
    usual = Path.home() / ".ray" / "auth_token"
    file = Path(named).expanduser() if named else usual
    token = "RAY_AUTH_TOKEN" if os.environ.get("RAY_AUTH_TOKEN") else str(file) if file.is_file() else None
    return {"mode": os.environ.get("RAY_AUTH_MODE"), "token": token}


def examine() -> dict[str, Any]:
    """Everything that `doctor` tells, as plain data. `problems`: sentences, empty if nothing is missing or broken."""
    from workers.metrics import clip_score, features
    from workers.models.families.scenes import BUILTIN, BUILTIN_PARTS

    total, free = memory()
    paths = [*(BUILTIN / f"{part}.safetensors" for part in BUILTIN_PARTS), features.BUILTIN, clip_score.BUILTIN]
    weights = [examine_weights(path) for path in paths]
    libraries = {name: installed(name) for name in LIBRARIES}
    for_sweeps = {name: installed(name) for name in SWEEP_LIBRARIES}
    problems = [f"{path}: {found['problem']}" for path, found in zip(paths, weights, strict=True) if found["problem"]]
    problems += [f"{name} is not installed; pip install {name}" for name, found in libraries.items() if found is None]
    problems += [
        f"{name} is not installed, which sweeps need; pip install {name}"
        for name, found in for_sweeps.items()
        if found is None
    ]
    torch = torch_facts()
    return {
        "specfrontier": installed("specfrontier") or "not installed",
        "python": platform.python_version(),
        "machine": {
            "system": platform.platform(),
            "cores": cores(),
            "memory_bytes": total,
            "free_bytes": free,
        },
        "torch": torch,
        "libraries": libraries,
        "sweeps": {"libraries": for_sweeps, "workers": local_workers(torch), "ray": ray_access()},
        "weights_folder": str(BUILTIN),
        "weights": weights,
        "problems": problems or models_that_fail(),
    }


def examine_weights(path: Path) -> dict[str, Any]:
    """One weight file: "whole" with its size, hash and count of numbers, else "missing" or "broken" with the reason."""
    from safetensors import safe_open

    from workers.models.checkpoint_files import WeightsError, content_hash, safetensors_names

    found: dict[str, Any] = {"file": path.name, "state": "missing", "problem": None}
    if not path.is_file():
        return found | {"problem": "missing; check it out again, or train it (specfrontier train)"}
    found |= {"bytes": path.stat().st_size, "hash": content_hash(path)}
    try:
        names = safetensors_names(path)
    except WeightsError as error:
        return found | {"state": "broken", "problem": str(error).removeprefix(f"{path}: ")}
    with safe_open(path, framework="pt") as file:
        numbers = sum(math.prod(file.get_slice(name).get_shape()) for name in names)
    return found | {"state": "whole", "numbers": numbers}


def models_that_fail() -> list[str]:
    """What goes wrong when the built-in models are loaded; empty if nothing does."""
    from workers.loading.models_yaml import load_folder
    from workers.metrics import clip_score, features
    from workers.models.families.scenes import BUILTIN

    problems: list[str] = []
    for load, path in (
        (load_folder, BUILTIN),
        (features.load_features, features.BUILTIN),
        (clip_score.load_clip, clip_score.BUILTIN),
    ):
        try:
            load(path)
        except (ValueError, OSError) as error:
            problems.append(str(error))
    return problems
