"""A drafter trained by the real command: killed half-way, by two workers on Ray, and followed by MLflow."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.run.training import TrainingOptions, drafter_job, train_drafter
from tests.fakes.real_sweeps import COMMAND, ROOT, ray_folder
from tests.fakes.tiny_models import captions_file, tiny_folder
from workers.training.eagle import JOURNAL, WEIGHTS, EagleRecipe

pytestmark = pytest.mark.slow(seconds=90)
STEPS, SAVED = 240, 20
PATIENCE = 110.0  # seconds, of a busy machine


def command(folder: Path, out: str, *more: str, steps: int = STEPS) -> list[str]:
    weights, captions = tiny_folder(folder / "weights"), captions_file(folder / "captions.txt", 24)
    given = [
        "--captions", captions, "--weights", weights, "--out", folder / out, "--batch", 4, "--steps", steps,
        "--rate", 0.002,
    ]  # fmt: skip
    alone = () if "--workers" in more else ("--device", "cpu")
    return [*COMMAND, "train", "eagle", *map(str, given), "--save-every", str(SAVED), *alone, *more]


def variables(ray: Path | None = None) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT), **({"RAY_TMPDIR": str(ray)} if ray else {})}


def losses(folder: Path) -> list[float]:
    entries = map(json.loads, (folder / JOURNAL).read_text("utf-8").splitlines())
    return [entry["loss"] for entry in entries if "loss" in entry]


def test_killed_half_way_it_resumes_to_the_same_curve(tmp_path: Path) -> None:
    done = subprocess.run(command(tmp_path, "whole", "--no-mlflow"), env=variables(), capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    began = subprocess.Popen(command(tmp_path, "broken", "--no-mlflow"), env=variables(), stdout=subprocess.DEVNULL)
    journal, end = tmp_path / "broken" / JOURNAL, time.monotonic() + PATIENCE
    while not (journal.exists() and journal.read_bytes().count(b"\n") > STEPS // 2) and time.monotonic() < end:
        time.sleep(0.005)
    began.send_signal(signal.SIGKILL)
    assert began.wait(PATIENCE) == -signal.SIGKILL, "it was done before it could be killed"
    assert STEPS // 2 <= len(losses(tmp_path / "broken")) < STEPS
    again = command(tmp_path, "broken", "--no-mlflow", "--resume")
    done = subprocess.run(again, env=variables(), capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count(b" rate ") <= STEPS // SAVED // 2 + 1, "what was done is not done again"
    for name in (JOURNAL, WEIGHTS):
        assert (tmp_path / "broken" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes(), name


def test_two_workers_come_to_the_losses_of_one(tmp_path: Path) -> None:
    one = subprocess.run(
        command(tmp_path, "one", "--no-mlflow", steps=40), env=variables(), capture_output=True, check=False
    )
    assert one.returncode == 0, one.stderr
    with ray_folder() as ray:
        asked = command(tmp_path, "two", "--no-mlflow", "--workers", "2", steps=40)
        two = subprocess.run(asked, env=variables(ray), capture_output=True, text=True, check=False)
    assert two.returncode == 0, two.stderr
    assert "eagle step 40/40" in two.stdout, "what the first worker says is told"
    assert len(losses(tmp_path / "two")) == 40
    assert losses(tmp_path / "two") == pytest.approx(losses(tmp_path / "one"), abs=1e-4)
    assert losses(tmp_path / "one")[0] - losses(tmp_path / "one")[-1] > 0.05, "there is something to get wrong"
    assert (tmp_path / "two" / WEIGHTS).exists()


def test_mlflow_has_every_step_once_after_a_resume(tmp_path: Path) -> None:
    from mlflow.tracking import MlflowClient

    weights, captions = tiny_folder(tmp_path / "weights"), captions_file(tmp_path / "captions.txt", 24)
    recipe = EagleRecipe(batch=4, steps=40, save_every=10)
    job = drafter_job(str(weights), str(captions), tmp_path / "out", recipe)
    options = TrainingOptions(device="cpu", tracking_uri=f"sqlite:///{tmp_path}/mlflow.db")

    def interrupt(line: str) -> None:
        if "step 30/40" in line:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train_drafter(job, options, log=interrupt)
    client = MlflowClient(tracking_uri=options.tracking_uri)
    experiment = client.get_experiment_by_name("specfrontier/train")
    assert experiment is not None
    (run,) = client.search_runs([experiment.experiment_id])
    assert run.info.status == "KILLED"
    assert len(client.get_metric_history(run.info.run_id, "loss")) == 30
    train_drafter(job, replace(options, resume=True), log=lambda line: None)
    (run,) = client.search_runs([experiment.experiment_id])
    assert run.info.status == "FINISHED"
    points = client.get_metric_history(run.info.run_id, "loss")
    assert [point.step for point in points] == list(range(1, 41))
    assert [point.value for point in points] == losses(tmp_path / "out")
    assert [point.step for point in client.get_metric_history(run.info.run_id, "top-3")] == [10, 20, 30, 40]
    assert (run.data.params["batch"], run.data.params["captions"]) == ("4", "24")


def test_mlflow_being_away_costs_nothing_but_a_line(tmp_path: Path) -> None:
    weights, captions = tiny_folder(tmp_path / "weights"), captions_file(tmp_path / "captions.txt", 24)
    job = drafter_job(str(weights), str(captions), tmp_path / "out", EagleRecipe(batch=4, steps=4))
    lines: list[str] = []
    options = TrainingOptions(device="cpu", tracking_uri="http://127.0.0.1:9")
    path = train_drafter(job, options, log=lines.append)
    assert path.exists()
    assert lines[-1].startswith("MLflow does not have all of the curve")
