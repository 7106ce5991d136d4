"""`specfrontier train eagle`: killed and resumed, with two workers on Ray, and logged to MLflow."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from orchestrator.cli.train import Recipe, Run, train_drafter
from orchestrator.views.training import TrainingView
from tests.fakes.command_line import specfrontier
from tests.fakes.real_sweeps import ROOT, ray_folder
from tests.fakes.tiny_models import captions_file, tiny_folder
from tests.fakes.waiting import HANG_S
from workers.runtime.device import training_dtype
from workers.training.job import IMAGES, DrafterJob

pytestmark = pytest.mark.slow(seconds=40)
WEIGHTS, JOURNAL = "eagle.safetensors", "eagle.journal.jsonl"
STEPS, SAVE_EVERY = 160, 20
# Dies when the journal has more than half of the steps, before its checkpoint has them.
KILLED = f"""
import os, signal
from orchestrator.cli.app import main
from workers.training.loop import _Run
record = _Run.record_losses

def record_and_die(run, losses):
    record(run, losses)
    if run.steps > {STEPS // 2}:
        os.kill(os.getpid(), signal.SIGKILL)

_Run.record_losses = record_and_die
main()
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a tiny target and captions for it."""
    folder = tmp_path_factory.mktemp("training")
    tiny_folder(folder / "weights")
    captions_file(folder / "captions.txt", 24)
    return folder


def arguments(folder: Path, out: str, *options: str, steps: int = STEPS) -> list[str]:
    given: list[object] = [
        "--captions",
        folder / "captions.txt",
        "--models",
        folder / "weights",
        "--out",
        folder / out,
        "--batch",
        4,
        "--steps",
        steps,
        "--rate",
        0.002,
        "--save-every",
        SAVE_EVERY,
        "--no-mlflow",
        *options,
    ]
    return ["train", "eagle", *map(str, given)]


def train(folder: Path, out: str, *options: str, steps: int = STEPS) -> str:
    """Train in this process; gives what the command printed."""
    result = specfrontier(*arguments(folder, out, *options, steps=steps))
    assert result.code == 0, result.err
    return result.out


def curve(folder: Path, key: str = "loss") -> list[float]:
    entries = map(json.loads, (folder / JOURNAL).read_text("utf-8").splitlines())
    return [entry[key] for entry in entries if key in entry]


def test_a_killed_training_resumes_to_the_same_curve(folder: Path) -> None:
    train(folder, "whole", "--device", "cpu")
    command = [sys.executable, "-c", KILLED, *arguments(folder, "broken", "--device", "cpu")]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    killed = subprocess.run(
        command, env=environment, stdout=subprocess.DEVNULL, timeout=HANG_S, check=False
    )
    assert killed.returncode == -signal.SIGKILL
    assert STEPS // 2 <= len(curve(folder / "broken")) < STEPS
    printed = train(folder, "broken", "--device", "cpu", "--resume")
    first = min(int(step) for step in re.findall(rf"step (\d+)/{STEPS} loss", printed))
    assert first > STEPS // 2, "finished steps ran again"
    for name in (JOURNAL, WEIGHTS):
        assert (folder / "broken" / name).read_bytes() == (folder / "whole" / name).read_bytes(), (
            name
        )


def test_two_workers_have_the_losses_of_one(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    steps = 40
    train(folder, "one", "--device", "cpu", steps=steps)
    with ray_folder() as ray:
        monkeypatch.setenv("RAY_TMPDIR", str(ray))
        printed = train(folder, "two", "--workers", "2", steps=steps)
    assert f"eagle step {steps}/{steps}" in printed, "the first worker's progress is printed"
    one, two = folder / "one", folder / "two"
    assert sorted(path.name for path in (one / IMAGES).iterdir()) == sorted(
        p.name for p in (two / IMAGES).iterdir()
    )
    assert len(curve(two)) == steps
    in_float32 = training_dtype(torch.device("cpu"))[0] == torch.float32
    tolerance = 1e-4 if in_float32 else 1e-3  # sums over two workers round differently
    for key in ("loss", "top-3"):
        assert curve(two, key) == pytest.approx(curve(one, key), abs=tolerance)
    assert curve(one)[0] - curve(one)[-1] > 0.05, (
        "the losses would differ if the gradients were wrong"
    )
    assert (folder / "two" / WEIGHTS).exists()


def eagle_job(folder: Path, out: Path, **options: int) -> DrafterJob:
    files = {
        "models": str(folder / "weights"),
        "captions": str(folder / "captions.txt"),
        "out": str(out / "out"),
    }
    return Recipe(**files, batch=4, **options).job("eagle")  # type: ignore[arg-type]


def test_mlflow_has_every_step_once_after_a_resume(
    folder: Path, tmp_path: Path, empty_database: Path
) -> None:
    from mlflow.tracking import MlflowClient

    shutil.copy(empty_database, tmp_path / "mlflow.db")
    job = eagle_job(folder, tmp_path, steps=40, save_every=10)
    uri = f"sqlite:///{tmp_path}/mlflow.db"

    def interrupt(line: str) -> None:
        if "step 30/40" in line:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train_drafter(job, Run(device="cpu", tracking_uri=uri), interrupt)
    client = MlflowClient(tracking_uri=uri)
    experiment = client.get_experiment_by_name("specfrontier/train")
    assert experiment is not None
    (run,) = client.search_runs([experiment.experiment_id])
    assert run.info.status == "KILLED"
    assert len(client.get_metric_history(run.info.run_id, "loss")) == 30
    train_drafter(job, Run(device="cpu", tracking_uri=uri, resume=True))
    (run,) = client.search_runs([experiment.experiment_id])
    assert run.info.status == "FINISHED"
    points = client.get_metric_history(run.info.run_id, "loss")
    assert [point.step for point in points] == list(range(1, 41))
    assert [point.value for point in points] == curve(tmp_path / "out")
    assert [point.step for point in client.get_metric_history(run.info.run_id, "top-3")] == [
        10,
        20,
        30,
        40,
    ]
    assert (run.data.params["batch"], run.data.params["captions"]) == ("4", "24")


def test_training_finishes_without_its_mlflow_server(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TrainingView, "short_timeout_s", 2.0)
    monkeypatch.setattr(TrainingView, "end_timeout_s", 2.0)
    job = eagle_job(folder, tmp_path, steps=4)
    messages: list[str] = []
    uri = "http://127.0.0.1:9"
    path = train_drafter(job, Run(device="cpu", tracking_uri=uri), messages.append)
    assert path.exists()
    assert messages[-1].startswith("MLflow does not have all of the curve")
