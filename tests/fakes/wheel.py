"""A wheel of the project, and the files that it must hold."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path


def build_wheel(source: Path, out: Path) -> Path:
    """The wheel of the project in `source`, built without the network; `source` stays as it is."""
    copy = out / "source"
    copied = subprocess.run(
        ["git", "ls-files"], cwd=source, capture_output=True, text=True, check=True
    ).stdout.split("\n")
    kept = [
        name
        for name in copied
        if name and not name.startswith(("tests/", "benchmarks/", "recipes/", "docs/"))
    ]
    for name in kept:
        (copy / name).parent.mkdir(parents=True, exist_ok=True)
        (copy / name).write_bytes((source / name).read_bytes())
    return wheel_of(copy, out / "dist")


def wheel_of(folder: Path, out: Path) -> Path:
    """The wheel of a folder with pyproject.toml; writes a folder `build` there."""
    build = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "--no-deps",
        "--no-build-isolation",
        "--quiet",
        "-w",
        str(out),
        ".",
    ]
    subprocess.run(build, cwd=folder, check=True, capture_output=True)
    (wheel,) = out.iterdir()
    return wheel


def package_files(root: Path) -> set[str]:
    """The tracked files of the packages that pyproject.toml lists."""
    packages = tomllib.loads((root / "pyproject.toml").read_text())["tool"]["setuptools"][
        "packages"
    ]["find"]["include"]
    folders = [package.rstrip("*") for package in packages]
    listed = subprocess.run(
        ["git", "ls-files", *folders], cwd=root, capture_output=True, text=True, check=True
    )
    return set(listed.stdout.split())
