"""`python -m benchmarks.gpu`, at reduced size on a CPU, and its tables."""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.gpu import __main__ as command
from benchmarks.gpu.record import ROOT, Record, Setup
from benchmarks.gpu.run import part_name
from benchmarks.gpu.table import table
from tests.fakes.missing_modules import environment_without

# and Triton, which comes with torch
ALLOWED = {"numpy", "pyyaml", "safetensors", "torch", "transformers"}
MODULES = {"pillow": "PIL"}  # where it is not the package's name


def blocked() -> set[str]:
    """The modules of all other packages that the project depends on."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    listed = [*project["dependencies"], *extras["sweep"], *extras["dev"]]
    names = (
        {line.split(";")[0].split("[")[0].split(">")[0].strip() for line in listed}
        - ALLOWED
        - {"triton"}
    )
    found = {MODULES.get(name, name.replace("-", "_")) for name in names}
    assert {
        "optuna",
        "ray",
        "pyarrow",
        "mlflow",
        "scipy",
        "torchmetrics",
        "PIL",
        "rich",
        "typer",
    } <= found
    return found


@pytest.mark.slow(70)
def test_all_parts_run_with_torch_and_little_else(tmp_path: Path) -> None:
    """From a checkout whose other packages are missing; a second run measures nothing."""
    out, environment = (
        tmp_path / "gpu.json",
        environment_without(blocked(), tmp_path) | {"CUDA_VISIBLE_DEVICES": ""},
    )

    def run() -> str:
        done = subprocess.run(
            [sys.executable, "-m", "benchmarks.gpu", "--scale", "tiny", "--out", str(out)],
            env=environment, cwd=ROOT, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr[-3000:]
        return done.stdout

    printed = run()
    (found,) = json.loads(out.read_text())["runs"]
    assert found["machine"]["torch"] == torch.__version__
    assert found["parts"].keys() == command.LIMITS_S.keys()
    rows: dict[str, list[dict[str, Any]]] = {
        name: part["rows"] for name, part in found["parts"].items()
    }
    assert all(part["complete"] for part in found["parts"].values())
    assert all(part["startup_s"] > 0.1 for part in found["parts"].values())
    assert not [row for part in rows.values() for row in part if "error" in row]
    assert {
        row["skipped"].partition(":")[0]
        for part in rows.values()
        for row in part
        if "skipped" in row
    } == {"no CUDA"}
    assert {row["differing"] for row in rows["kernels"] if "differing" in row} == {0}
    assert all(row["step_s"] > row["floor_s"] > 0 for row in rows["speed"] if "step_s" in row)
    assert all(0 < row["outside_share"] < 1 for row in rows["speed"] if "outside_share" in row)
    assert all(row["predicted_image_s"] > 0 for row in rows["plan"] if "passes" in row)
    assert rows["precision"]
    assert rows["timings"]
    assert rows["memory"]
    for name in command.LIMITS_S:
        assert f"### {name}\n" in printed
    before = out.read_bytes()
    assert "case_s" not in run()
    assert out.read_bytes() == before


def test_the_first_parts_take_a_quarter_of_an_hour() -> None:
    """With three minutes for their start; all of them half an hour, and each a command of ten
    minutes.
    """
    limits = list(command.LIMITS_S.values())
    assert list(command.LIMITS_S)[:4] == ["kernels", "graphs", "speed", "timings"]
    assert sum(limits[:4]) <= 12 * 60
    assert sum(limits) <= 27 * 60
    assert max(limits) <= 8 * 60


def test_parts_that_have_not_begun_go_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ran: list[str] = []

    def supervise(record: Record, module: str, setup: Setup, limit: float) -> None:
        name = part_name(module)
        ran.append(name)
        record.update(name, [{"case": str(len(ran))}], startup_s=1.5)
        if len(ran) == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(command, "supervise", supervise)
    out = str(tmp_path / "gpu.json")
    monkeypatch.setattr(sys, "argv", ["gpu", "--scale", "tiny", "--device", "cpu", "--out", out])
    with pytest.raises(KeyboardInterrupt):
        command.main()
    command.main()
    order = list(command.LIMITS_S)
    assert ran == [*order[:2], *order[2:], *order[:2]]
    assert "kernels: 2 rows, start-up 1.5 s, not complete" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ((), "--scale tiny"),
        (("--table", "--out", "missing.json"), "missing.json"),
        (("--part", "all"), "kernels"),
    ],
)
def test_what_is_wrong_is_said(
    arguments: tuple[str, ...],
    text: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(sys, "argv", ["gpu", *arguments])
    with pytest.raises(SystemExit) as stopped:
        command.main()
    assert stopped.value.code == 2
    assert text in capsys.readouterr().err


MACHINE = {
    "device": "a GPU",
    "driver": "550.1",
    "torch": "2.11",
    "triton": None,
    "commit": "abc",
    "code": "123",
    "scale": "full",
}


def test_the_table_has_units_and_says_what_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    speed = [
        {
            "case": "XL, vanilla",
            "step_s": 0.0042,
            "peak_bytes": 3 << 30,
            "outside_share": 0.125,
            "case_s": 9.0,
        },
        {
            "case": "XL, static",
            "step_s": 0.005,
            "peak_bytes": None,
            "outside_share": 0.5,
            "case_s": 9.0,
        },
        {"case": "7B, static", "error": "OutOfMemoryError: no", "case_s": 9.0},
        {"case": "7B, dynamic", "error": "OutOfMemoryError: no", "case_s": 9.0},
        {
            "case": "profile",
            "attention_calls": {"a|b": 2.0},
            "graphs": True,
            "costs": [1.0, 1.5],
            "steps": 3,
        },
    ]
    parts = {"speed": {"complete": False, "rows": speed}}
    out = tmp_path / "gpu.json"
    out.write_text(json.dumps({"runs": [{"machine": MACHINE, "parts": parts}]}))
    monkeypatch.setattr(sys, "argv", ["gpu", "--table", "--out", str(out)])
    command.main()
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "a GPU, driver 550.1, torch 2.11, commit abc, code 123"
    assert "### speed (not complete)" in lines
    assert "| case | step, ms | peak, GiB | outside, % |" in lines
    assert "| XL, vanilla | 4.2 | 3 | 12.5 |" in lines
    assert "| XL, static | 5 | - | 50 |" in lines
    assert "- error: OutOfMemoryError: no (7B, static; 7B, dynamic)" in lines
    assert "| profile | a\\|b 2 | yes | 1, 1.5 | 3 |" in lines
    assert {line.count("|") for line in lines if line.startswith("| ---")} == {5, 6}
    assert table([]) == ""
