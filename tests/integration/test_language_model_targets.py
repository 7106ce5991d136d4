"""SimpleAR and Liquid through the commands: checked, planned, drawn, drafted for, swept and taken
away.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from PIL import Image

from orchestrator.shown.export import MODELS
from tests.fakes.command_line import error_of, specfrontier
from tests.fakes.real_sweeps import SweepRun
from tests.fakes.tiny_extended import liquid, simplear, write_decoder, write_vqgan
from workers.loading.models_yaml import load_entry, read_entry

pytestmark = pytest.mark.slow(seconds=10)
SPACE = """\
name: mine
models: {file: MODELS, name: mine}
captions: {source: captions.txt, count: 2}
reference: {source: none}
quality: {batch: 2, shard: 2}
timing: {batch: 1, images: 1, repetitions: 1}
metrics: [step_compression]
objectives: [step_compression, mean_accepted_length]
search: {sampler: random}
budget: {trials: 2}
enqueue: [vanilla, {label: drafted, drafter: eagle, tree: {policy: chain, length: 2}}]
"""
SIZES = {"simplear": (64_000, 6.0), "liquid": (8192, 7.0)}  # codes, and the default of guidance


@dataclass(frozen=True)
class Commands:
    """A family's tiny checkpoint, named by a models.yaml, and an EAGLE layer that was trained for
    it.
    """

    family: str
    folder: Path
    models: Path
    trained: Path

    @property
    def source(self) -> tuple[str, str]:
        return "--models", f"{self.models}#mine"


def write_models(folder: Path, family: str) -> dict[str, Any]:
    """An entry of 48 pixels, with the codec in a file or folder of its own."""
    (folder / "cosmos").mkdir(parents=True)
    if family == "simplear":
        simplear(folder / "model", codec=False)
        write_decoder(folder / "cosmos" / "decoder.jit")
        codec = "cosmos"
    else:
        liquid(folder / "model", codec=False)
        write_vqgan(folder / "vqgan.ckpt")
        codec = "vqgan.ckpt"
    keys = {"family": family, "checkpoint": "model", "vq": codec, "image_size": 48}
    return {**keys, "dtype": "float32", "prompt_tokens": 192}


@pytest.fixture(scope="module", params=SIZES)
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Commands:
    folder = tmp_path_factory.mktemp(request.param)
    entry = write_models(folder, request.param)
    models = folder / "models.yaml"
    models.write_text(yaml.safe_dump({"mine": entry}))
    (folder / "captions.txt").write_text("a red ball\na cat\n")
    words = f"--captions {folder}/captions.txt --models {models}#mine --out {folder}/eagle"
    options = "--batch 2 --steps 1 --no-mlflow --device cpu"
    trained = specfrontier("train", "eagle", *words.split(), *options.split())
    assert trained.code == 0, trained.err
    entry["drafters"] = {"eagle": "eagle/eagle.safetensors"}
    models.write_text(yaml.safe_dump({"mine": entry}))
    return Commands(request.param, folder, models, folder / "eagle" / "eagle.safetensors")


def test_doctor_checks_and_plans_it(made: Commands) -> None:
    checked = specfrontier("doctor", *made.source, "--json")
    assert checked.code == 0, checked.out
    assert checked.json["problems"] == []
    (entry,) = checked.json["entries"]
    assert entry["target"] == f"{made.family}-48-32x2"
    assert [file["key"] for file in entry["files"]] == ["checkpoint", "vq", "drafters.eagle"]
    assert entry["memory"]["pictures"] > 0
    space = made.folder / "space.yaml"
    text = SPACE.replace("MODELS", str(made.models))
    space.write_text(text.replace("captions.txt", f"{made.folder}/captions.txt"))
    options = ("--gpus", "1", "--gpu-memory", "24", "--json")
    planned = specfrontier("doctor", "--plan", str(space), *made.source, *options)
    assert planned.code == 0, planned.err


def test_a_missing_codec_is_a_problem_of_its_key(made: Commands, tmp_path: Path) -> None:
    entry = yaml.safe_load(made.models.read_text())["mine"]
    entry["checkpoint"], entry["drafters"] = str(made.folder / "model"), {}
    del entry["vq"]
    path = tmp_path / "models.yaml"
    path.write_text(yaml.safe_dump({"mine": entry}))
    found = specfrontier("doctor", "--models", str(path), "--json")
    assert found.code != 0
    problem = "\n".join([*(found.json["problems"] if found.out else []), found.err])
    assert "vq" in problem
    assert f"{path}:1: mine" in problem
    assert "vq" in error_of("generate", "a cat", "--models", str(path), code=found.code)


def test_generate_draws_with_the_familys_sampling(made: Commands, tmp_path: Path) -> None:
    result = specfrontier("generate", "a red ball", *made.source, "--json", "--out", str(tmp_path))
    assert result.code == 0, result.err
    assert result.json["config"]["sampling"]["cfg"] == SIZES[made.family][1]
    (row,) = result.json["images"]
    with Image.open(tmp_path / row["file"]) as picture:
        assert picture.size == (384, 384), "small ones are enlarged"
        assert len(set(picture.convert("L").tobytes())) > 20


def test_a_sweep_with_its_drafter_can_be_taken_away(made: Commands, tmp_path: Path) -> None:
    run = SweepRun(made.folder, SPACE.replace("MODELS", str(made.models)))
    run.run_locally("--no-mlflow")
    vanilla, drafted = run.records
    assert [vanilla.state, drafted.state] == ["complete"] * 2
    assert vanilla.metrics["step_compression"].value == 1
    identity = json.loads((run.store / "identity.json").read_text())
    assert identity["models"].keys() == {"checkpoint", "vq", "drafters.eagle"}
    out = tmp_path / "out"
    export = ("export", str(run.store), "--trial", "1", "--with-weights", "--out", str(out))
    exported = specfrontier(*export)
    assert exported.code == 0, exported.err
    models = load_entry(read_entry(out / MODELS), torch.device("cpu"))
    assert models.target.vocab_size == SIZES[made.family][0]
    assert set(models.drafters) == {"eagle"}
