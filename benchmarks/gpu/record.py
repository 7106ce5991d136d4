"""The file of results: one JSON with the rows of each part, by machine and code. Each row is
written as it comes.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import subprocess
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from workers.runtime.device import this_device

ROOT = Path(__file__).parents[2]
# of a run: results of another one are kept, and not used
IDENTITY = ("device", "torch", "code", "scale")
NO_CASE = "(start)"  # in place of a case where a part fails outside of its cases

Row = dict[str, Any]
Case = tuple[str, Callable[[], Row]]  # its name, and what measures it


@dataclass(frozen=True, slots=True)
class Setup:
    """What runs the cases. is_tiny: at reduced size, which a CPU can run."""

    device: torch.device
    is_tiny: bool

    @property
    def is_cuda(self) -> bool:
        return self.device.type == "cuda"

    @property
    def dtype(self) -> torch.dtype:
        """Of models with random weights."""
        return torch.bfloat16 if self.is_cuda else torch.float32

    def machine(self) -> dict[str, Any]:
        """What the rows were measured on, and with what code."""
        memory = (
            torch.cuda.get_device_properties(self.device).total_memory if self.is_cuda else None
        )
        return {
            "device": this_device(self.device).name,
            "memory_bytes": memory,
            "driver": _output("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"),
            "torch": torch.__version__,
            "cuda": torch.version.cuda,
            "triton": _version("triton"),
            "python": platform.python_version(),
            "commit": _output("git", "describe", "--always", "--dirty"),
            "code": code_digest(),
            "scale": "tiny" if self.is_tiny else "full",
        }


def code_digest(root: Path = ROOT) -> str:
    """12 hex digits of everything that decides the results: a checkout need not have a commit."""
    digest = hashlib.sha256()
    for package in ("search_spaces", "workers", "orchestrator", "benchmarks"):
        for path in sorted((root / package).rglob("*")):
            if path.suffix in (".py", ".yaml", ".safetensors"):
                digest.update(f"{path.relative_to(root).as_posix()}\0".encode() + path.read_bytes())
    return digest.hexdigest()[:12]


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _output(*command: str) -> str | None:
    """The first line that a command prints; None if it fails."""
    with suppress(OSError, subprocess.SubprocessError):
        done = subprocess.run(
            command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=True
        )
        return done.stdout.strip().partition("\n")[0]
    return None


def _new_part() -> dict[str, Any]:
    return {"complete": False, "rows": [], "startup_s": 0.0}


class Record:
    """The rows of one run in the file; those of other runs stay as they are.

    Raises:
        ValueError: the file exists and is not a file of results.
    """

    def __init__(self, path: Path, machine: dict[str, Any]) -> None:
        self.path, self.machine = path, machine

    def _load(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """The file's contents, and this run in it."""
        found: dict[str, Any] = {"runs": runs_of(self.path) if self.path.exists() else []}
        for run in found["runs"]:
            if all(run["machine"].get(key) == self.machine[key] for key in IDENTITY):
                return found, run
        found["runs"].append({"machine": self.machine, "parts": {}})
        return found, found["runs"][-1]

    def part(self, name: str) -> dict[str, Any]:
        """`rows`, whether the part is `complete`, the case that is `running`, if there is one, and
        the seconds of its processes before their first cases.
        """
        part: dict[str, Any] = self._load()[1]["parts"].get(name, _new_part())
        return part

    def has_begun(self, name: str) -> bool:
        """Whether a part has rows."""
        return bool(self.part(name)["rows"])

    def update(self, name: str, rows: Iterable[Row] = (), **changes: Any) -> None:
        """Add rows to a part, change its other entries, and write the file."""
        found, run = self._load()
        part = run["parts"].setdefault(name, _new_part())
        part["rows"] += rows
        part.update(changes)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        partial = self.path.with_name(f"{self.path.name}.partial")
        partial.write_text(json.dumps(found, indent=1), "utf-8")
        os.replace(partial, self.path)

    def fail(self, name: str, reason: str) -> None:
        """Record why the process of a part has ended: for the case that was running, or, if there
        was none, for the part, which cannot run.
        """
        running = self.part(name).get("running")
        self.update(
            name,
            [{"case": running or NO_CASE, "error": reason}],
            running=None,
            complete=running is None,
        )


def runs_of(path: Path) -> list[dict[str, Any]]:
    """The runs in a file of results.

    Raises:
        ValueError: the file is not one.
        FileNotFoundError: there is no such file.
    """
    try:
        return list(json.loads(path.read_text("utf-8"))["runs"])
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(
            f"{path}: not a file of results of benchmarks.gpu; give another --out"
        ) from error
