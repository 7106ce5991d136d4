"""`specfrontier doctor`: what is complete, damaged or missing."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

import workers.models.families.scenes as scenes
from orchestrator.cli.app import main
from orchestrator.doctor import checkup, machine
from orchestrator.doctor.checkup import available_memory
from orchestrator.doctor.cpu import Cpu
from orchestrator.doctor.gpus import Gpu
from orchestrator.doctor.machine import (
    describe_machine,
    describe_ray_access,
    describe_workers,
    examine,
    examine_weights,
    local_workers,
    memory,
    ray_access,
)
from orchestrator.doctor.plan import describe_plan
from tests.fakes.tiny_llamagen import VQ, write_models, write_vq
from workers.models.checkpoint_files import content_hash
from workers.runtime.memory import format_bytes
from workers.runtime.process import cores

pytestmark = pytest.mark.usefixtures("equal_dry_runs_once")


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
    assert found["state"] == "complete"
    assert found["parameters"] == 18
    assert found["bytes"] == path.stat().st_size
    assert len(found["hash"]) == 16


def test_broken_and_missing_files_are_told_apart(tmp_path: Path) -> None:
    path = tmp_path / "file.safetensors"
    assert examine_weights(path)["state"] == "missing"
    save_file({"a": torch.zeros(100)}, path)
    path.write_bytes(path.read_bytes()[:-10])
    found = examine_weights(path)
    assert found["state"] == "damaged"
    assert "truncated" in found["problem"]
    assert str(path) not in found["problem"]


def test_a_healthy_installation(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert doctor(monkeypatch, "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["problems"] == []
    assert {weight["state"] for weight in found["weights"]} == {"complete"}
    assert {weight["file"] for weight in found["weights"]} >= {
        f"{part}.safetensors" for part in scenes.BUILTIN_PARTS
    }
    assert found["torch"]["version"] == torch.__version__
    assert all(found["libraries"].values())
    assert set(found["sweeps"]["libraries"]) == {
        "ray",
        "optuna",
        "mlflow",
        "torchmetrics",
    }
    assert found["sweeps"]["libraries"]["ray"] == version("ray")
    gpus = [device["name"] for device in found["torch"]["devices"]]
    assert found["sweeps"]["workers"] == {"count": len(gpus) or cores(), "gpus": gpus}
    assert found["torch"]["kernels"] == ("triton" if gpus else "torch")
    assert found["torch"]["cuda_graphs"] == bool(gpus)


def test_a_machine_without_a_gpu_is_not_said_to_have_all() -> None:
    findings = machine.examine()
    for devices in ([], [{"name": "H200", "memory_bytes": 1 << 37}]):
        last = describe_machine(findings | {"torch": findings["torch"] | {"devices": devices}})[-1]
        assert last.startswith("No problems found.")
        assert ("GPU" in last) == (not devices)


def test_an_installation_without_sweeps_is_whole(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    missing = {"ray", "optuna", "mlflow", "torchmetrics"}
    monkeypatch.setattr(machine, "installed", lambda name: None if name in missing else "1.0")
    assert doctor(monkeypatch) == 0
    assert "specfrontier[sweep]" in capsys.readouterr().out


def test_what_sweeps_lack_is_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(machine, "installed", lambda name: None if name == "ray" else "1.0")
    assert doctor(monkeypatch) == 1
    lines = capsys.readouterr().out.splitlines()
    assert "ray           not installed" in lines
    assert "mlflow        1.0" in lines
    assert any(line.startswith("PROBLEM: ray: not installed") for line in lines)


@pytest.mark.parametrize(
    ("variables", "file", "words"),
    [
        ({}, False, "has no token (~/.ray/auth_token); it can join"),
        (
            {},
            True,
            (
                "HOME/.ray/auth_token: launch --address uses it; `ray` commands need "
                "RAY_AUTH_MODE=token"
            ),
        ),
        ({"RAY_AUTH_MODE": "token"}, True, "joined with the token in HOME/.ray/auth_token"),
        ({"RAY_AUTH_MODE": "token"}, False, "RAY_AUTH_MODE=token is set, but no token is found"),
        ({"RAY_AUTH_MODE": "disabled"}, True, "RAY_AUTH_MODE=disabled leaves it unused"),
        ({"RAY_AUTH_TOKEN_PATH": "HOME/other"}, True, "has no token"),
        (
            {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "hunter22"},
            False,
            "joined with the token in RAY_AUTH_TOKEN",
        ),
    ],
)
def test_how_ray_clusters_are_joined(
    variables: dict[str, str],
    file: bool,
    words: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value.replace("HOME", str(tmp_path)))
    monkeypatch.setattr(Path, "home", lambda: tmp_path)
    if file:
        (tmp_path / ".ray").mkdir()
        (tmp_path / ".ray" / "auth_token").write_text("hunter22")
    said = describe_ray_access(ray_access())
    assert words.replace("HOME", str(tmp_path)) in said
    assert "hunter22" not in said


def test_workers_of_a_sweep_in_words() -> None:
    two = local_workers({"devices": [{"name": "H100"}, {"name": "H100"}]})
    assert describe_workers(two) == "2 workers here, one per GPU (H100)"
    assert describe_workers(local_workers({"devices": []})).startswith(
        f"{cores()} workers here, one per core"
    )


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


def test_files_under_each_others_names_do_not_load(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "weights"
    shutil.copytree(scenes.BUILTIN, folder)
    shutil.copy(folder / "medusa.safetensors", folder / "eagle.safetensors")
    monkeypatch.setattr(scenes, "BUILTIN", folder)
    problems = examine()["problems"]
    assert len(problems) == 1
    assert "eagle.safetensors" in problems[0]


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (None, "unknown"),
        (0, "0 B"),
        (1023, "1023 B"),
        (1536, "1.5 KiB"),
        (5 << 30, "5.0 GiB"),
        (3 << 40, "3.0 TiB"),
    ],
)
def test_sizes_in_words(count: int | None, text: str) -> None:
    assert format_bytes(count) == text


def test_the_machine_is_measured() -> None:
    total, free = memory()
    assert total is None or free is None or 0 < free <= total


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A models.yaml with two entries, and their tiny checkpoints."""
    return write_models(tmp_path_factory.mktemp("made"))


@pytest.fixture
def spoilt(made: Path, tmp_path: Path) -> Path:
    """A copy of it, to be spoilt."""
    return Path(shutil.copytree(made.parent, tmp_path / "mine")) / made.name


def test_whole_checkpoints_are_checked(
    made: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert doctor(monkeypatch, "--models", str(made), "--batch", "4", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["problems"] == []
    classes, captions = found["entries"]
    assert [file["key"] for file in captions["files"]] == [
        "transformer",
        "vq",
        "text",
        "drafters.eagle",
    ]
    ckpt = made.parent / "ckpt"
    assert classes["files"][0]["bytes"] == (ckpt / "c2i.pt").stat().st_size
    assert classes["files"][0]["hash"] == content_hash(ckpt / "c2i.pt")
    assert captions["files"][2]["bytes"] == sum(
        path.stat().st_size for path in (ckpt / "t5").iterdir()
    )
    assert classes["target"] == "llamagen-c2i-32x2-48"
    assert classes["drafters"] == ["eagle"]
    state = torch.load(ckpt / "c2i.pt")["model"]
    codec = torch.load(ckpt / "vq.pt")["model"]
    numbers = sum(
        v.numel() for k, v in [*state.items(), *codec.items()] if k != "quantize.codebook_used"
    )
    assert classes["numbers"] == numbers
    needed = classes["memory"]
    assert needed["batch"] == 4
    assert needed["parameters"] >= 4 * numbers
    room = available_memory(torch.device(found["device"]))
    assert room is not None
    assert needed["total"] < room
    assert needed["largest_batch"] > 4


def test_each_file_and_fact_has_a_line(
    made: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert doctor(monkeypatch, "--models", f"{made}#classes") == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines if line.startswith("  ")] == [
        "transformer", "vq", "drafters.eagle", "target", "drafters", "memory",
    ]  # fmt: skip
    assert not any("captions" in line for line in lines), "the other entry is not looked at"
    assert "48 px, 3 x 3 tokens of 1024 codes" in "\n".join(lines)
    assert lines[-1] == "No problems."


def test_the_state_dict_that_is_read_is_named(
    spoilt: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = spoilt.parent / "ckpt" / "c2i.pt"
    content = torch.load(path)
    averaged = {f"module.{name}": value for name, value in content["model"].items()}
    torch.save(
        {"model": averaged, "ema": content["model"], "optimizer": {"state": {0: torch.ones(1)}}},
        path,
    )
    assert doctor(monkeypatch, "--models", f"{spoilt}#classes", "--json") == 0
    transformer, vq, _ = json.loads(capsys.readouterr().out)["entries"][0]["files"]
    assert transformer["part"].startswith("`model`")
    assert "`ema`" in transformer["part"]
    assert "`optimizer`" in transformer["part"]
    assert vq["part"] == ""
    assert doctor(monkeypatch, "--models", f"{spoilt}#classes") == 0
    line = next(
        line for line in capsys.readouterr().out.splitlines() if line.startswith("  transformer")
    )
    assert transformer["part"] in line


#: How models.yaml or its files are spoilt, and what the problem says.
SPOILT: dict[str, tuple[Callable[[Path], Any], tuple[str, ...]]] = {
    "no file": (
        lambda c: (c / "c2i.pt").unlink(),
        ("classes.transformer", "c2i.pt: no such file"),
    ),
    "a truncated file": (
        lambda c: (c / "c2i.pt").write_bytes((c / "c2i.pt").read_bytes()[:-99]),
        ("truncated",),
    ),
    "another size's drafter": (
        lambda c: shutil.copy(c / "eagle-t2i.safetensors", c / "eagle-c2i.safetensors"),
        ("prompt_len", "another target"),
    ),
    "another codebook": (
        lambda c: write_vq(c / "vq.pt", replace(VQ, codebook_size=49)),
        ("vq.pt: this codec has 49 codes", "give `vq`"),
    ),
}


@pytest.mark.parametrize("name", SPOILT)
def test_problems_of_checkpoints_end_with_one(
    name: str, spoilt: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    spoil, parts = SPOILT[name]
    spoil(spoilt.parent / "ckpt")
    assert doctor(monkeypatch, "--models", f"{spoilt}#classes") == 1
    problems = [
        line for line in capsys.readouterr().out.splitlines() if line.startswith("PROBLEM: ")
    ]
    assert problems
    for part in ("models.yaml:", *parts):
        assert part in problems[0]


def test_an_invalid_entry_is_a_problem_beside_the_others(
    spoilt: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    spoilt.write_text("bad: {family: lamagen}\n" + spoilt.read_text())
    assert doctor(monkeypatch, "--models", str(spoilt), "--json") == 1
    found = json.loads(capsys.readouterr().out)
    assert [entry["name"] for entry in found["entries"]] == ["bad", "classes", "captions"]
    (problem,) = found["problems"]
    assert "models.yaml:1: bad.family: " in problem
    assert found["entries"][1]["target"] == "llamagen-c2i-32x2-48"
    assert doctor(monkeypatch, "--models", str(spoilt)) == 1
    assert "bad (invalid, " in capsys.readouterr().out
    assert doctor(monkeypatch, "--models", f"{spoilt}#classes") == 0


def test_memory_that_is_not_there(
    made: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(checkup, "available_memory", lambda device: 1 << 20)
    assert doctor(monkeypatch, "--models", f"{made}#classes") == 1
    out = capsys.readouterr().out
    assert "PROBLEM: " in out
    assert "leave no room for one image" in out
    assert "largest batch here: 0" in out


def test_weights_of_metrics_are_looked_at(
    spoilt: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    spoilt.write_text(spoilt.read_text() + "  metrics: {inception: ckpt/vq.pt, clip: nowhere}\n")
    for path in (spoilt.parent / "ckpt/t5").iterdir():
        path.unlink()
    assert doctor(monkeypatch, "--models", f"{spoilt}#captions") == 1
    out = capsys.readouterr().out
    assert "metrics.inception" in out
    assert "captions.metrics.clip" in out
    assert "captions.text" in out
    assert "t5: the folder is empty" in out
    assert "nowhere: no such file" in out


def test_metric_nets_take_memory_beside_the_models(
    spoilt: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """By the size of their files, in `--models` and in `--plan`; of a folder, its weights alone."""
    spoilt.write_text(
        spoilt.read_text().replace(
            "classes:", "classes:\n  metrics: {inception: net.pth, clip: clip}", 1
        )
    )
    folder = spoilt.parent / "clip"
    folder.mkdir()
    (spoilt.parent / "net.pth").write_bytes(bytes(3 << 20))
    (folder / "model.safetensors").write_bytes(bytes(5 << 20))
    (folder / "pytorch_model.bin").write_bytes(bytes(7 << 20))
    # they are no nets, which is another matter
    doctor(monkeypatch, "--models", f"{spoilt}#classes", "--json")
    (found,) = json.loads(capsys.readouterr().out)["entries"]
    parts = found["memory"]
    assert parts["metric_nets"] == 8 << 20
    drawing = parts["parameters"] + parts["cache"] + max(parts["activations"], parts["pictures"])
    assert parts["total"] == drawing + (8 << 20)
    _, more = planned(tmp_path, monkeypatch, capsys, "--models", f"{spoilt}#classes")
    assert more["memory"]["metric nets"] == 8 << 20
    assert any("metric nets: another 8.0 MiB" in line for line in describe_plan(more))
    text = SPACE + "\nmetrics: [speedup]\n"
    _, fewer = planned(tmp_path, monkeypatch, capsys, "--models", f"{spoilt}#classes", text=text)
    assert fewer["memory"]["metric nets"] == 3 << 20, "no metric that is asked for needs CLIP"


def test_a_wrong_models_file_is_wrong_usage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "models.yaml"
    assert doctor(monkeypatch, "--models", str(path)) == 2
    assert "models.yaml" in capsys.readouterr().err
    path.write_text("a: {family: lamagen}\n")
    assert doctor(monkeypatch, "--models", str(path)) == 2
    assert "did you mean 'llamagen'?" in capsys.readouterr().err


SPACE = """\
name: planned
models: {name: llamagen-b-c2i-256}
captions: {source: scenes, count: 100}
quality: {batch: 8, shard: 32, samples: 2}
timing: {batch: 1, images: 10, repetitions: 3}
budget: {trials: 5}
space: {drafter: eagle, tree: {policy: chain, length: {low: 2, high: 6}}}
"""


def planned(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    *words: str,
    text: str = SPACE,
) -> tuple[int, dict[str, Any]]:
    """Exit code and findings of a plan."""
    space = folder / "space.yaml"
    space.write_text(text)
    code = doctor(monkeypatch, "--plan", str(space), "--json", *words)
    said = capsys.readouterr()
    return code, json.loads(said.out) if said.out else {"error": said.err}


def test_a_plan_needs_no_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """LlamaGen-B by its name: images counted by hand, bytes by the published sizes."""
    code, found = planned(
        tmp_path,
        monkeypatch,
        capsys,
        "--gpus",
        "2",
        "--gpu-memory",
        "24",
        "--accepted-length",
        "3",
    )
    assert code == 0
    assert found["images"] == {
        "trials": 5,
        "per trial": 200,
        "quality": 1000,
        "timing": 30 * (9 + 5),
    }
    assert found["timing sessions"] == {"count": 6, "settings of the largest": 5}
    assert found["target passes per image"]["vanilla"] == 256
    # the codec stays in 32 bits; EAGLE: its fc and a layer
    numbers = 111e6 + 72e6 * 2 + 768 * 768 * 2 + 7.1e6
    assert found["memory"]["quality"]["parameters"] == pytest.approx(2 * numbers, rel=0.05)
    columns, rows = 1 + 256 + 7, 16  # guided
    keys_and_values = (12 + 1) * 2 * rows * columns * 768 * 2
    assert found["memory"]["quality"]["cache"] == pytest.approx(keys_and_values, rel=0.1)
    slow, fast = found["time"]
    assert (slow["accepted length"], fast["accepted length"]) == (1, 3)
    assert slow["hours"] > fast["hours"] > slow["hours"] / 4
    assert any("architecture" in words for words in found["assumed"])
    lines = describe_plan(found)
    assert sum(line.startswith("  duration") for line in lines) == 2
    assert not any(line.startswith("  duration    at most") for line in lines)
    assert sum(line.startswith("  memory") for line in lines) == 2


def test_without_a_gpu_the_plan_is_of_this_cpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    cpu = Cpu("a CPU", 8 << 30, bandwidth=1e10, compute=5e10, operation_s=5e-6)
    monkeypatch.setattr(Cpu, "here", lambda: cpu)
    code, found = planned(tmp_path, monkeypatch, capsys)
    assert code == 0
    assert (found["gpus"], found["gpu"]["name"], found["dtype"]) == (cores(), "a CPU", "float32")
    assert found["memory"]["quality"]["graphs"] == 0
    assert any("one thread of this CPU (a CPU)" in line for line in found["assumed"])
    parts = found["memory"]
    needed = max(parts[kind]["total"] for kind in ("timing", "quality")) + parts["metric nets"]
    for held, fits in ((needed + (1 << 20), True), (1 << 20, False), (0, None)):
        monkeypatch.setattr(Cpu, "here", partial(replace, cpu, memory=held))
        code, other = planned(tmp_path, monkeypatch, capsys)
        assert other["fits"] is fits, "nothing is reserved for CUDA, and unknown is unknown"
        assert code == (fits is False)
    code, other = planned(tmp_path, monkeypatch, capsys, "--gpus", "1")
    assert found["time"][0]["hours"] > 10 * other["time"][0]["hours"]
    assert "A100" in other["gpu"]["name"]


def test_more_gpus_and_images_count(
    made: Path,
    spoilt: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """By the files of a tiny model, whose architecture nobody has published."""
    words = ("--models", f"{made}#classes", "--accepted-length", "1")
    code, one = planned(tmp_path, monkeypatch, capsys, "--gpus", "1", *words)
    assert code == 0
    assert one["target"] == "llamagen-c2i-32x2-48"
    assert one["fits"]
    text = SPACE.replace("count: 100", "count: 200").replace("images: 10", "images: 20")
    text = text.replace("{trials: 5", "{plateau: 0.01, trials: 5")
    code, four = planned(
        tmp_path, monkeypatch, capsys, "--gpus", "4", "--gpu-memory", "1", *words, text=text
    )
    assert code == 1, "all of it is left to the device"
    assert not four["fits"]
    assert four["largest batch"] == 0
    assert any(line.startswith("  DOES NOT FIT") for line in describe_plan(four))
    lower = {"fits": False, "largest batch": 5, "batches": {"timing": 1, "quality": 9}}
    fit = next(line for line in describe_plan(four | lower) if line.startswith("  DOES NOT FIT"))
    assert "5" in fit
    assert "quality.batch" in fit
    assert "timing.batch" not in fit
    upper = [line for line in describe_plan(four) if line.startswith(("  duration", "  images"))]
    assert upper
    assert all("    at most " in line for line in upper), "with a plateau"
    gpus = [Gpu(**found["gpu"]) for found in (one, four)]
    assert (gpus[0].memory, gpus[1].memory) == (80 << 30, 1 << 30)
    code, roomy = planned(tmp_path, monkeypatch, capsys, "--gpus", "4", *words, text=text)
    assert code == 0
    ratio = roomy["time"][0]["hours"] / one["time"][0]["hours"]
    assert ratio == pytest.approx(1 / 2, rel=0.02), (
        "twice the images, but as many batches before the clock starts"
    )
    assert four["images"]["timing"] == 2 * one["images"]["timing"]
    (spoilt.parent / "ckpt" / "c2i.pt").unlink()
    code, found = planned(tmp_path, monkeypatch, capsys, "--models", f"{spoilt}#classes")
    assert code == 2
    assert "c2i.pt" in found["error"]


def test_a_plan_of_an_unknown_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code, found = planned(
        tmp_path, monkeypatch, capsys, text=SPACE.replace("llamagen-b-c2i-256", "llamagen-x")
    )
    assert code == 2
    assert "llamagen-x" in found["error"]
    assert "--models" in found["error"]
    assert "anole-7b" in found["error"]
