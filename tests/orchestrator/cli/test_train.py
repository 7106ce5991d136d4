"""`specfrontier train`: order of components, options passed on, exit codes. The training itself has its own tests."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import workers.training.recipes as recipes
from orchestrator.cli.train import ALL, ordered_components
from orchestrator.run import cluster, training
from orchestrator.run.tasks import PoolError
from search_spaces.trial import DecodingConfig
from tests.fakes.command_line import CommandResult, error_of, specfrontier
from tests.fakes.tiny_llamagen import write_models
from workers.decoding.engine import Engine
from workers.decoding.state import Request
from workers.loading.models_yaml import load_entry, read_entry
from workers.models.checkpoint_files import WeightsError
from workers.training import COMPONENTS, SCENES_ONLY
from workers.training.eagle import CHECKPOINT, FACTS, JOURNAL, DrafterJob, EagleRecipe


def train(*arguments: str) -> CommandResult:
    return specfrontier("train", *arguments)


def test_options_of_a_drafters_training_are_passed_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[DrafterJob, dict[str, Any]]] = []

    def fake_train_drafter(job: DrafterJob, **options: Any) -> Path:
        options.pop("log")
        calls.append((job, options))
        return job.out / "eagle.safetensors"

    monkeypatch.setattr(training, "train_drafter", fake_train_drafter)
    (tmp_path / "c.txt").write_text("red ring\nblue star\nred star\n")
    words = f"--captions {tmp_path}/c.txt --out {tmp_path}/out --count 2 --batch 8 --rate 0.01 --steps 9 --save-every 3"
    more = "--seed 4 --workers 2 --address auto --threads 1 --tracking-uri sqlite:///x.db --resume"
    result = train("eagle", *words.split(), *more.split())
    assert result.code == 0, result.err
    ((job, options),) = calls
    assert job.recipe == EagleRecipe(batch=8, rate=0.01, steps=9, save_every=3, seed=4)
    assert (job.entry.name, len(job.captions), job.out) == ("scenes", 2, tmp_path / "out")
    assert options == {
        "device": torch.device("cpu"), "workers": 2, "address": "auto", "threads": 1, "mlflow": True,
        "tracking_uri": "sqlite:///x.db", "resume": True,
    }  # fmt: skip
    assert f"eagle: {tmp_path / 'out' / 'eagle.safetensors'}" in result.out
    assert train("eagle", *words.split(), "--no-mlflow").code == 0
    assert (calls[1][1]["mlflow"], calls[1][1]["resume"]) == (False, False)


def test_a_drafter_trained_for_an_entry_drafts_for_it(tmp_path: Path) -> None:
    """From official checkpoints to a trained drafter in the entry."""
    manifest = write_models(tmp_path / "made")
    (tmp_path / "c.txt").write_text("0\n7\n999\n12\n")
    words = (
        f"--captions {tmp_path}/c.txt --models {manifest}#classes --out {tmp_path}/out --batch 2 --steps 2 --no-mlflow"
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


@pytest.mark.parametrize(
    ("raised", "code", "part"),
    [
        (ValueError("another rate"), 2, "another rate"),
        (PoolError("no Ray cluster"), 1, "no Ray cluster"),
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


def test_a_wrong_address_leaves_an_earlier_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = (CHECKPOINT, JOURNAL, FACTS)
    for name in files:
        (tmp_path / name).write_text(name)

    def fail(*arguments: object) -> None:
        raise PoolError("no Ray cluster")

    monkeypatch.setattr(cluster, "connected", fail)
    job = training.drafter_job("builtin", "scenes", tmp_path, EagleRecipe(batch=2), count=4)
    with pytest.raises(PoolError, match="no Ray cluster"):
        training.train_drafter(job, address="nowhere:1", mlflow=False, log=lambda line: None)
    assert [(tmp_path / name).read_text() for name in files] == list(files)


def test_components_are_ordered() -> None:
    assert ordered_components(["eagle", "tokenizer", "eagle"], with_data=False) == ["tokenizer", "eagle"]
    assert ordered_components([ALL], with_data=False) == list(COMPONENTS)
    assert ordered_components([ALL], with_data=True) == [name for name in COMPONENTS if name not in SCENES_ONLY]
    assert ordered_components([ALL, "clip"], with_data=True)[-1] == "clip"


def test_options_reach_the_recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[Any, ...]] = []

    def fake_train_component(component: str, out: Path, data: Path | None, **options: Any) -> Path:
        options.pop("log")(f"step 1 of {component}")
        calls.append((component, out, data, options))
        return out / f"{component}.safetensors"

    monkeypatch.setattr(recipes, "train_component", fake_train_component)
    words = ("--out", str(tmp_path), "--data", "photos", "--seed", "3", "--steps", "7", "--device", "cpu", "--resume")
    result = train("eagle", "target", *words)
    assert result.code == 0, result.err
    options = {"seed": 3, "device": "cpu", "steps": 7, "resume": True}
    assert calls == [(component, tmp_path, Path("photos"), options) for component in ("target", "eagle")]
    assert "step 1 of eagle" in result.out
    assert f"eagle: {tmp_path / 'eagle.safetensors'}" in result.out


@pytest.mark.parametrize(
    ("raised", "code", "part"),
    [
        (ValueError("photos: no images"), 2, "photos: no images"),
        (WeightsError("target.safetensors: truncated"), 1, "truncated"),
        (KeyboardInterrupt(), 130, "specfrontier train target eagle --out 'a b' --seed 0 --resume"),
    ],
)
def test_exit_codes_of_components(raised: BaseException, code: int, part: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: Any, **options: Any) -> Path:
        raise raised

    monkeypatch.setattr(recipes, "train_component", fail)
    message = error_of("train", "eagle", "target", "--out", "a b", code=code)
    assert part in message
    assert message.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (("tokeniser",), "unknown component 'tokeniser'"),
        ((), "Missing argument"),
        (("target", "--steps", "0"), "--steps"),
        (("target", "--device", "gpu"), "--device gpu"),
        (("target", "--captions", "c.txt"), "train eagle"),
        (("eagle", "--captions", "c.txt", "--data", "photos"), "without --data"),
        (("eagle", "--batch", "64"), "--batch requires --captions"),
        (("eagle", "--no-mlflow"), "--no-mlflow requires --captions"),
        (("eagle", "--captions", "c.txt", "--workers", "2", "--device", "cpu"), "--device is for one process"),
        (("eagle", "--captions", "scenes", "--count", "4", "--models", "nowhere.yaml"), "nowhere.yaml"),
        (("eagle", "--captions", "nowhere.txt"), "nowhere.txt"),
        (("eagle", "--captions", "scenes"), "scenes: "),
        (("eagle", "--captions", "scenes", "--count", "4", "--batch", "3", "--workers", "2"), "batch of 3"),
    ],
)
def test_wrong_usage(arguments: tuple[str, ...], part: str) -> None:
    assert part in error_of("train", *arguments, code=2)
