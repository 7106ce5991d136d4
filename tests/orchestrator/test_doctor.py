"""`specfrontier doctor`: what is whole, what is broken, what is missing."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

import workers.models.families.scenes as scenes
from orchestrator.cli import main
from orchestrator.commands.doctor import size
from orchestrator.machine import cores, examine, examine_weights, memory


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
