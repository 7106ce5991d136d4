"""The dtype of a training follows from what the device computes in; the commit of the code."""

from __future__ import annotations

import contextlib
import subprocess
from pathlib import Path

import pytest
import torch

from workers.runtime import device
from workers.runtime.device import training_dtype

CPU = torch.device("cpu")


@pytest.mark.parametrize(
    ("flags", "dtype"),
    [
        ({"avx2": True}, torch.float32),
        (
            {"avx2": True, "avx512_f": True, "avx512_vnni": True, "avx512_bf16": False},
            torch.float32,
        ),
        ({"avx512_f": True, "avx512_bf16": True}, torch.bfloat16),
        ({"amx_tile": True, "amx_bf16": True}, torch.bfloat16),
    ],
)
def test_a_cpu_trains_in_bfloat16_only_with_instructions_for_it(
    flags: dict[str, bool], dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: flags, raising=False)
    found, reason = training_dtype(CPU)
    assert found == dtype
    assert ("avx512_bf16" in reason, "amx_bf16" in reason) == (
        dtype == torch.float32 or "avx512_bf16" in flags,
        dtype == torch.float32 or "amx_bf16" in flags,
    )
    assert training_dtype(CPU, True)[0] == torch.bfloat16
    assert training_dtype(CPU, False)[0] == torch.float32


def test_an_older_torch_leaves_the_answer_to_linux(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(torch.cpu, "get_capabilities", raising=False)
    info = tmp_path / "cpuinfo"
    monkeypatch.setattr(device, "_CPUINFO", info)
    assert training_dtype(CPU)[0] == torch.float32  # not Linux
    for flags, dtype in (
        ("avx2 avx512f", torch.float32),
        ("avx2 avx512f avx512_bf16", torch.bfloat16),
    ):
        info.write_text(f"processor : 0\nflags : fpu {flags}\n")
        assert training_dtype(CPU)[0] == dtype


@pytest.mark.parametrize("supported", [False, True])
def test_a_gpu_trains_in_bfloat16_if_it_is_not_emulated(
    supported: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "device", contextlib.nullcontext)
    monkeypatch.setattr(
        torch.cuda,
        "is_bf16_supported",
        lambda including_emulation: supported or including_emulation,
    )
    assert training_dtype(torch.device("cuda"))[0] == (
        torch.bfloat16 if supported else torch.float32
    )


def test_a_commit_is_that_of_the_code_and_never_of_a_project_around_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def versions_at(root: Path) -> dict[str, str]:
        monkeypatch.setattr(device, "__file__", str(root / "workers" / "runtime" / "device.py"))
        device._commit.cache_clear()
        return device.versions()

    git = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@b.c"]
    for words in (["init", "-q"], ["commit", "-q", "--allow-empty", "-m", "first"]):
        subprocess.run([*git, *words], check=True)
    head = subprocess.run([*git, "rev-parse", "HEAD"], check=True, capture_output=True, text=True)
    assert versions_at(tmp_path)["commit"] == head.stdout.strip()
    assert "commit" not in versions_at(tmp_path / "site-packages")
    device._commit.cache_clear()
