"""`specfrontier train`: options passed on, exit codes. The training itself has its own tests."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from orchestrator.cli import train as training
from orchestrator.cluster import cluster
from orchestrator.cluster.tasks import PoolError
from search_spaces.trial import DecodingConfig
from tests.fakes.command_line import CommandResult, error_of, specfrontier
from tests.fakes.tiny_llamagen import write_models
from workers.decoding.engine import Engine
from workers.decoding.state import Request
from workers.loading.models_yaml import load_entry, read_entry
from workers.models.checkpoint_files import WeightsError
from workers.training.job import DrafterJob, DrafterRecipe


def train(*arguments: str) -> CommandResult:
    return specfrontier("train", *arguments)


def test_options_of_a_drafters_training_are_passed_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[tuple[DrafterJob, training.Run]] = []

    def fake_train_drafter(job: DrafterJob, run: training.Run, log: object) -> Path:
        calls.append((job, run))
        return job.out / "eagle.safetensors"

    monkeypatch.setattr(training, "train_drafter", fake_train_drafter)
    (tmp_path / "c.txt").write_text("red ring\nblue star\nred star\n")
    words = (
        f"--captions {tmp_path}/c.txt --out {tmp_path}/out --count 2 --batch 8 --rate 0.01 --steps "
        "9 --save-every 3"
    )
    more = "--seed 4 --workers 2 --address auto --threads 1 --tracking-uri sqlite:///x.db --resume"
    result = train("eagle", *words.split(), *more.split())
    assert result.code == 0, result.err
    ((job, run),) = calls
    assert job.recipe == DrafterRecipe(batch=8, rate=0.01, steps=9, save_every=3, seed=4)
    assert (job.entry.name, len(job.captions), job.out) == ("scenes", 2, tmp_path / "out")
    assert run == training.Run(
        workers=2, address="auto", threads=1, tracking_uri="sqlite:///x.db", resume=True
    )
    assert run.mlflow
    assert f"eagle: {tmp_path / 'out' / 'eagle.safetensors'}" in result.out
    (line,) = (line for line in result.out.splitlines() if "drafters:" in line)
    (tmp_path / "models.yaml").write_text(line)
    entry = read_entry(f"{tmp_path}/models.yaml", None)
    assert entry.drafters["eagle"] == str(tmp_path / "out" / "eagle.safetensors")
    assert f"specfrontier doctor --models models.yaml#{entry.name}" in result.out
    assert train("eagle", *words.split(), "--no-mlflow").code == 0
    assert (calls[1][1].mlflow, calls[1][1].resume) == (False, False)


def test_a_drafter_trained_for_an_entry_drafts_for_it(tmp_path: Path) -> None:
    """From official checkpoints to a trained drafter in the entry."""
    manifest = write_models(tmp_path / "made")
    (tmp_path / "c.txt").write_text("0\n7\n999\n12\n")
    words = (
        f"--captions {tmp_path}/c.txt --models {manifest}#classes --out {tmp_path}/out --batch 2 "
        "--steps 2 --no-mlflow"
    )
    assert train("eagle", *words.split(), "--device", "cpu").code == 0
    entry = read_entry(manifest, "classes")
    trained = replace(entry, drafters={"eagle": str(tmp_path / "out" / "eagle.safetensors")})
    models = load_entry(trained, torch.device("cpu"))
    engine = Engine(
        models.target,
        DecodingConfig.from_mapping({"drafter": "eagle", "tree": {"policy": "chain", "length": 3}}),
        models.drafters["eagle"],
        batch_size=2,
    )
    results = list(engine.run([Request(0, "7"), Request(1, "999")]))
    assert all(len(result.tokens) == models.target.grid.tokens for result in results)
    shipped = load_entry(entry, torch.device("cpu")).drafters["eagle"]
    assert not all(map(torch.equal, models.drafters["eagle"].parameters(), shipped.parameters()))


def test_every_kind_has_its_rate_and_is_trained_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs: list[DrafterJob] = []

    def fake_train_drafter(job: DrafterJob, *options: object) -> Path:
        jobs.append(job)
        return job.file("safetensors")

    monkeypatch.setattr(training, "train_drafter", fake_train_drafter)
    result = train(
        "medusa",
        "eagle",
        "medusa",
        "independent",
        "eagle3",
        "vertical",
        "--captions",
        "scenes",
        "--count",
        "4",
        "--draft-vocab",
        "512",
        "--out",
        str(tmp_path),
    )
    assert result.code == 0, result.err
    expected = [
        ("medusa", 1e-3, None),
        ("eagle", 1e-4, None),
        ("independent", 1e-3, None),
        ("eagle3", 5e-5, 512),
        ("vertical", 1e-3, None),
    ]
    assert [(job.kind, job.recipe.rate, job.recipe.draft_vocab) for job in jobs] == expected
    words = ("--captions", "scenes", "--count", "4", "--out", str(tmp_path), "--draft-vocab")
    assert "--draft-vocab is for eagle3, which is not among" in error_of(
        "train", "eagle", *words, "512", code=2
    )
    assert "--draft-vocab 1025: the target has 1024 codes" in error_of(
        "train", "eagle3", *words, "1025", code=2
    )


def test_an_independent_drafter_needs_a_target_that_reads_classes_or_words(tmp_path: Path) -> None:
    manifest, captions = write_models(tmp_path / "made"), tmp_path / "c.txt"
    captions.write_text("0\n7\n")
    words = ("--captions", str(captions), "--models", f"{manifest}#classes")
    assert "train eagle, eagle3 or medusa" in error_of("train", "independent", *words, code=2)


@pytest.mark.parametrize(
    ("raised", "code", "part"),
    [
        (ValueError("another rate"), 2, "another rate"),
        (PoolError("no Ray cluster"), 1, "no Ray cluster"),
        (WeightsError("target.safetensors: truncated"), 1, "truncated"),
        (KeyboardInterrupt(), 130, "resume with the same command and --resume"),
    ],
)
def test_exit_codes_of_a_drafters_training(
    raised: BaseException, code: int, part: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*arguments: Any, **options: Any) -> Path:
        raise raised

    monkeypatch.setattr(training, "train_drafter", fail)
    assert part in error_of("train", "eagle", "--captions", "scenes", "--count", "4", code=code)


def test_a_wrong_address_leaves_an_earlier_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = ("eagle.checkpoint.pt", "eagle.journal.jsonl", "eagle.job.json")
    for name in files:
        (tmp_path / name).write_text(name)

    def fail(*arguments: object) -> None:
        raise PoolError("no Ray cluster")

    monkeypatch.setattr(cluster, "connected", fail)
    job = training.Recipe(captions="scenes", out=str(tmp_path), batch=2, count=4).job("eagle")
    with pytest.raises(PoolError, match="no Ray cluster"):
        training.train_drafter(job, training.Run(address="nowhere:1", mlflow=False))
    assert [(tmp_path / name).read_text() for name in files] == list(files)


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (
            ("target", "--captions", "c.txt"),
            "unknown drafter 'target'; use eagle, eagle3, medusa, independent",
        ),
        (("--captions", "c.txt"), "Missing argument"),
        (("eagle",), "Missing option '--captions'"),
        (("eagle", "--captions", "scenes", "--steps", "0"), "--steps"),
        (("eagle", "--captions", "scenes", "--device", "gpu"), "--device gpu"),
        (
            ("eagle", "--captions", "c.txt", "--workers", "2", "--device", "cpu"),
            "--device is for one process",
        ),
        (
            ("eagle", "--captions", "scenes", "--count", "4", "--models", "nowhere.yaml"),
            "nowhere.yaml",
        ),
        (("eagle", "--captions", "nowhere.txt"), "nowhere.txt"),
        (("eagle", "--captions", "scenes"), "scenes: "),
        (
            ("eagle", "--captions", "scenes", "--count", "4", "--batch", "3", "--workers", "2"),
            "batch of 3",
        ),
    ],
)
def test_wrong_usage(arguments: tuple[str, ...], part: str) -> None:
    assert part in error_of("train", *arguments, code=2)
