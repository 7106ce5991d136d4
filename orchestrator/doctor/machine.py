"""`doctor`: the hardware, libraries and built-in weights of this machine."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from workers.runtime.process import cores

LIBRARIES = ("numpy", "safetensors", "transformers", "pillow", "pyarrow", "pyyaml", "typer")
_WITHOUT_GPU = (
    " There is no GPU: the built-in model is fast enough on a CPU, the papers' models are not."
)
SWEEP_LIBRARIES = ("ray", "optuna", "mlflow", "torchmetrics")


def installed(name: str) -> str | None:
    """The installed version of a distribution; None if it is not installed."""
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def memory() -> tuple[int | None, int | None]:
    """Total and free bytes of memory, within a container's limit; None if this system does not
    tell.
    """
    total = None
    free = None
    meminfo = Path("/proc/meminfo")
    if meminfo.exists():
        fields = dict(line.split(":", 1) for line in meminfo.read_text().splitlines())
        total, free = (int(fields[key].split()[0]) * 1024 for key in ("MemTotal", "MemAvailable"))
    limit = Path("/sys/fs/cgroup/memory.max")
    if limit.exists() and (text := limit.read_text().strip()).isdigit():
        total = min(total or int(text), int(text))
    return total, free


def torch_facts() -> dict[str, Any]:
    """The torch build and its GPUs, and whether Triton's kernels and CUDA graphs run there."""
    import torch

    from workers.decoding.graphs import are_supported
    from workers.decoding.kernels import implementation

    cuda = torch.version.cuda
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    properties = [torch.cuda.get_device_properties(index) for index in range(count)]
    return {
        "version": torch.__version__,
        "build": f"CUDA {cuda}" if cuda else "CPU only",
        "threads": torch.get_num_threads(),
        "kernels": implementation("cuda" if count else "cpu"),
        "cuda_graphs": are_supported(torch.device("cuda" if count else "cpu")),
        "devices": [
            {"name": device.name, "memory_bytes": device.total_memory} for device in properties
        ],
    }


def local_workers(torch: Mapping[str, Any]) -> dict[str, Any]:
    """The workers of a local sweep: one per GPU, else one per core."""
    gpus = [device["name"] for device in torch["devices"]]
    return {"count": len(gpus) or cores(), "gpus": gpus}


def ray_access() -> dict[str, Any]:
    """The user's access to Ray clusters. `mode`: RAY_AUTH_MODE. `token`: where a token is set, None
    if nowhere.
    """
    file = Path.home() / ".ray" / "auth_token"
    if named := os.environ.get("RAY_AUTH_TOKEN_PATH"):
        file = Path(named).expanduser()
    token = None
    if os.environ.get("RAY_AUTH_TOKEN"):
        token = "RAY_AUTH_TOKEN"
    elif file.is_file():
        token = str(file)
    return {"mode": os.environ.get("RAY_AUTH_MODE"), "token": token}


def _lacks_sweeps(libraries: Mapping[str, str | None]) -> bool:
    """Whether this is an installation that decodes and queries, without any library of sweeps."""
    return all(version is None for version in libraries.values())


def examine() -> dict[str, Any]:
    """The findings of `doctor` as plain data. `problems`: one message each, empty if nothing is
    missing or damaged.
    """
    from workers.metrics import clip_score, features
    from workers.models.families.scenes import BUILTIN, BUILTIN_PARTS

    total, free = memory()
    paths = [
        *(BUILTIN / f"{part}.safetensors" for part in BUILTIN_PARTS),
        features.BUILTIN,
        clip_score.BUILTIN,
    ]
    weights = [examine_weights(path) for path in paths]
    libraries = {name: installed(name) for name in LIBRARIES}
    for_sweeps = {name: installed(name) for name in SWEEP_LIBRARIES}
    problems = [
        f"{path}: {found['problem']}"
        for path, found in zip(paths, weights, strict=True)
        if found["problem"]
    ]
    for name, found in libraries.items():
        if found is None:
            problems.append(f"{name} is not installed; pip install {name}")
    missing = [name for name, found in for_sweeps.items() if found is None]
    if missing and not _lacks_sweeps(for_sweeps):
        problems.append(
            f"{', '.join(missing)}: not installed, and sweeps need it; pip install "
            "'specfrontier[sweep]'"
        )
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
        "problems": problems or _load_problems(),
    }


def examine_weights(path: Path) -> dict[str, Any]:
    """The state of a weight file: "complete" with size, hash and number of parameters, else
    "missing" or "damaged".
    """
    from workers.models.checkpoint_files import WeightsError, content_hash, load_tensors

    found: dict[str, Any] = {"file": path.name, "state": "missing", "problem": None}
    if not path.is_file():
        return found | {"problem": "missing; restore it with git, or install the package again"}
    found |= {"bytes": path.stat().st_size, "hash": content_hash(path)}
    try:
        tensors = load_tensors(path)
    except WeightsError as error:
        return found | {"state": "damaged", "problem": str(error).removeprefix(f"{path}: ")}
    return found | {
        "state": "complete",
        "parameters": sum(tensor.numel() for tensor in tensors.values()),
    }


def _load_problems() -> list[str]:
    """Load the built-in models; returns the problems."""
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


def describe_machine(findings: Mapping[str, Any]) -> list[str]:
    """The findings as lines of text."""
    from workers.runtime.memory import format_bytes  # imports torch

    machine = findings["machine"]
    torch = findings["torch"]
    memory = format_bytes(machine["memory_bytes"])
    if machine["free_bytes"]:
        memory += f", {format_bytes(machine['free_bytes'])} free"
    gpus = [
        ("GPU", f"{device['name']}, {format_bytes(device['memory_bytes'])}")
        for device in torch["devices"]
    ]
    libraries = [*findings["libraries"].items(), *findings["sweeps"]["libraries"].items()]
    sweeps = describe_workers(findings["sweeps"]["workers"])
    if _lacks_sweeps(findings["sweeps"]["libraries"]):
        sweeps = "cannot run here: pip install 'specfrontier[sweep]' brings what they need"
    facts = [
        ("machine", f"{machine['system']}, Python {findings['python']}"),
        ("cores", f"{machine['cores']}, torch uses {torch['threads']}"),
        ("memory", memory),
        ("torch", f"{torch['version']} ({torch['build']})"),
        *(gpus or [("GPU", "none that torch can use")]),
        ("kernels", _describe_kernels(torch)),
        ("CUDA graphs", "yes" if torch["cuda_graphs"] else "no, each operation is launched alone"),
        *((name, found or "not installed") for name, found in libraries),
        ("sweeps", sweeps),
        ("ray clusters", describe_ray_access(findings["sweeps"]["ray"])),
        ("weights", findings["weights_folder"]),
    ]
    problems = [f"PROBLEM: {problem}" for problem in findings["problems"]]
    if not problems:
        problems = ["No problems found."]
        if not torch["devices"]:
            problems[0] += _WITHOUT_GPU
    return [
        f"specfrontier {findings['specfrontier']}",
        *(f"{name:<13} {fact}" for name, fact in facts),
        *(f"  {_describe_weight(weight)}" for weight in findings["weights"]),
        "",
        *problems,
    ]


def _describe_kernels(torch: Mapping[str, Any]) -> str:
    """Which code walks over draft trees and makes random bits."""
    if torch["kernels"] == "triton":
        return "Triton's"
    if torch["devices"]:
        return "Triton's do not run on this GPU, so trees take longer"
    return "plain torch, on a CPU"


def describe_workers(workers: Mapping[str, Any]) -> str:
    """The workers of a sweep on this machine."""
    if workers["gpus"]:
        names = ", ".join(dict.fromkeys(workers["gpus"]))
        return f"{workers['count']} workers here, one per GPU ({names})"
    return f"{workers['count']} workers here, one per core (no GPU); --address uses a cluster"


def describe_ray_access(ray: Mapping[str, Any]) -> str:
    """How this machine authenticates with Ray clusters."""
    mode = ray["mode"]
    token = ray["token"]
    if mode == "token":
        if not token:
            return "RAY_AUTH_MODE=token is set, but no token is found"
        return f"joined with the token in {token}"
    if token is None:
        return "this machine has no token (~/.ray/auth_token); it can join clusters that need none"
    use = "launch --address uses it" if mode is None else f"RAY_AUTH_MODE={mode} leaves it unused"
    return (
        f"a token is in {token}: {use}; `ray` commands need RAY_AUTH_MODE=token for clusters that "
        "require it"
    )


def _describe_weight(weight: Mapping[str, Any]) -> str:
    from workers.runtime.memory import format_bytes

    if weight["state"] != "complete":
        return f"{weight['file']:<28} {weight['state'].upper()}"
    held = f"{format_bytes(weight['bytes']):>9}  {weight['parameters']:>10,} parameters"
    return f"{weight['file']:<28} {held}  sha256 {weight['hash']}…"
