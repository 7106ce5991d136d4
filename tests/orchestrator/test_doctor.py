"""`specfrontier doctor`: what is whole, what is broken, what is missing."""

from __future__ import annotations

import json
import shutil
import sys
from importlib.metadata import version
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

import workers.models.families.scenes as scenes
from orchestrator import machine
from orchestrator.cli import main
from orchestrator.commands.doctor import access_in_words, size, sweeps_in_words
from orchestrator.machine import cores, examine, examine_weights, local_workers, memory, ray_access


def doctor(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["specfrontier", "doctor", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    assert isinstance(ended.value.code, int)
    return ended.value.code


def test_a_whole_file_is_measured(tmp_path: Path) -> None:
    path = tmp_path / "whole.safetensors"
    save_file({"a": torch.zeros(3, 4), "b": torch.zeros(5), "c": torch.tensor(1.0)}, path)
    found = examine_weights(path)
    assert found["state"] == "whole"
    assert found["numbers"] == 18
    assert found["bytes"] == path.stat().st_size
    assert len(found["hash"]) == 16


def test_broken_and_missing_files_are_told_apart(tmp_path: Path) -> None:
    path = tmp_path / "file.safetensors"
    assert examine_weights(path)["state"] == "missing"
    save_file({"a": torch.zeros(100)}, path)
    path.write_bytes(path.read_bytes()[:-10])
    found = examine_weights(path)
    assert found["state"] == "broken"
    assert "truncated" in found["problem"]
    assert str(path) not in found["problem"]


def test_a_healthy_installation(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert doctor(monkeypatch, "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["problems"] == []
    assert {weight["state"] for weight in found["weights"]} == {"whole"}
    assert {weight["file"] for weight in found["weights"]} >= set(scenes.FILES)
    assert found["torch"]["version"] == torch.__version__
    assert all(found["libraries"].values())
    assert set(found["sweeps"]["libraries"]) == {"ray", "optuna", "mlflow", "pyarrow", "torchmetrics"}
    assert found["sweeps"]["libraries"]["ray"] == version("ray")
    gpus = [device["name"] for device in found["torch"]["devices"]]
    assert found["sweeps"]["workers"] == {"count": len(gpus) or cores(), "gpus": gpus}


def test_what_sweeps_lack_is_told(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(machine, "installed", lambda name: None if name == "ray" else "1.0")
    assert doctor(monkeypatch) == 1
    lines = capsys.readouterr().out.splitlines()
    assert "ray           not installed" in lines
    assert "mlflow        1.0" in lines
    assert "PROBLEM: ray is not installed, which sweeps need; pip install ray" in lines


@pytest.mark.parametrize(
    ("variables", "file", "words"),
    [
        ({}, False, "joined without a token"),
        ({}, True, "HOME/.ray/auth_token: launch --address uses it by itself; `ray` commands need RAY_AUTH_MODE=token"),
        ({"RAY_AUTH_MODE": "token"}, True, "joined with the token in HOME/.ray/auth_token"),
        ({"RAY_AUTH_MODE": "token"}, False, "RAY_AUTH_MODE=token is set, but no token is found"),
        ({"RAY_AUTH_MODE": "disabled"}, True, "RAY_AUTH_MODE=disabled leaves it unused"),
        ({"RAY_AUTH_TOKEN_PATH": "HOME/other"}, True, "joined without a token"),
        ({"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "hunter22"}, False, "joined with the token in RAY_AUTH_TOKEN"),
    ],
)
def test_how_ray_clusters_are_joined(
    variables: dict[str, str], file: bool, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value.replace("HOME", str(tmp_path)))
    monkeypatch.setattr(Path, "home", lambda: tmp_path)
    if file:
        (tmp_path / ".ray").mkdir()
        (tmp_path / ".ray" / "auth_token").write_text("hunter22")
    said = access_in_words(ray_access())
    assert words.replace("HOME", str(tmp_path)) in said
    assert "hunter22" not in said


def test_workers_of_a_sweep_in_words() -> None:
    two = local_workers({"devices": [{"name": "H100"}, {"name": "H100"}]})
    assert sweeps_in_words(two) == "2 workers here, each on a GPU of its own (H100)"
    assert sweeps_in_words(local_workers({"devices": []})).startswith(f"{cores()} workers here, each on a core")


def test_problems_are_named_and_end_with_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "weights"
    shutil.copytree(scenes.BUILTIN, folder)
    (folder / "eagle.safetensors").unlink()
    target = folder / "target.safetensors"
    target.write_bytes(target.read_bytes()[:1000])
    monkeypatch.setattr(scenes, "BUILTIN", folder)
    assert doctor(monkeypatch) == 1
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("PROBLEM: ")]
    assert len(lines) == 2
    assert "target.safetensors" in lines[0]
    assert "truncated" in lines[0]
    assert "eagle.safetensors: missing" in lines[1]


def test_files_under_each_others_names_do_not_load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "weights"
    shutil.copytree(scenes.BUILTIN, folder)
    shutil.copy(folder / "medusa.safetensors", folder / "eagle.safetensors")
    monkeypatch.setattr(scenes, "BUILTIN", folder)
    problems = examine()["problems"]
    assert len(problems) == 1
    assert "eagle.safetensors" in problems[0]


@pytest.mark.parametrize(
    ("count", "text"),
    [(None, "unknown"), (0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (5 << 30, "5.0 GiB"), (3 << 40, "3.0 TiB")],
)
def test_sizes_in_words(count: int | None, text: str) -> None:
    assert size(count) == text


def test_the_machine_is_measured() -> None:
    assert cores() >= 1
    total, free = memory()
    assert total is None or free is None or 0 < free <= total
