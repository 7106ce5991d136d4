"""`specfrontier generate --models FILE#ENTRY`: pictures of tiny official checkpoints, and messages
of wrong entries.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from PIL import Image

from orchestrator.launch.start import worker_spec
from search_spaces.sweep import SweepConfig
from tests.fakes.command_line import error_of, specfrontier
from tests.fakes.tiny_llamagen import write_models
from workers.data.storage import Storage
from workers.evaluate import Evaluator
from workers.loading.models_yaml import read_entry, split_entry
from workers.runtime.specification import WorkerSpec


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_models(tmp_path_factory.mktemp("made"))


@pytest.fixture(autouse=True)
def folder(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(made.parent)


def test_captions_become_pictures(made: Path, tmp_path: Path) -> None:
    """The text-conditional entry: T5, the caption MLP, the drafter, the codec."""
    config = (
        "--set",
        "drafter.kind=eagle",
        "--set",
        "tree.policy=chain",
        "--set",
        "tree.length=2",
    )
    words = ("--models", "models.yaml#captions", *config, "--json", "--out", str(tmp_path))
    result = specfrontier("generate", "a red ball", "a small cat", *words)
    assert result.code == 0, result.err
    statistics = result.json
    assert statistics["target"] == "llamagen-t2i-32x2-48"
    assert statistics["weights"] == read_entry(made, "captions").hashes
    assert statistics["config"]["sampling"]["cfg"] == 7.5, "the family's default"
    for row in statistics["images"]:
        with Image.open(tmp_path / row["file"]) as picture:
            assert picture.size == (384, 384)
            assert len(set(picture.convert("L").tobytes())) > 50


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (
            ("--models", "models.yaml"),
            "has several entries; name one, models.yaml#NAME: classes, captions",
        ),
        (("--models", "models.yaml#clases"), "did you mean 'classes'?"),
        (("--models", "models.yaml#classes"), "'a red ball'"),
        (("--models", "nowhere.yaml#classes"), "nowhere.yaml: no such file"),
    ],
)
def test_wrong_entries_are_refused(words: tuple[str, ...], part: str, tmp_path: Path) -> None:
    message = error_of("generate", "a red ball", *words, "--out", str(tmp_path), code=2)
    assert part in message
    assert message.count("\n") == 1


def test_a_missing_checkpoint_fails(tmp_path: Path) -> None:
    path = tmp_path / "models.yaml"
    path.write_text("a: {family: llamagen, transformer: x.pt, vq: y.pt, image_size: 256}\n")
    assert "models.yaml:1: a: " in error_of("generate", "7", "--models", str(path), code=1)


def test_a_file_with_the_sign_in_its_name(tmp_path: Path) -> None:
    path = tmp_path / "a#b.yaml"
    assert split_entry(f"{path}#c") == (str(path), "c")
    path.write_text("x")
    assert split_entry(str(path)) == (str(path), None)
    assert split_entry("models.yaml") == ("models.yaml", None)


SPACE = """\
name: typed
models: {file: mine/models.yaml, name: classes}
captions: {source: numbers.txt, count: 24}
reference: {source: none}
objectives: [step_compression, target_passes]
budget: {trials: 2}
enqueue: [{label: chain, drafter: eagle, tree: {policy: chain, length: 2}}]
"""


def with_type(made: Path, folder: Path, dtype: torch.dtype) -> Path:
    """A copy of the checkpoints in the folder `mine`, whose class-conditional transformer has
    another type.
    """
    path = Path(shutil.copytree(made.parent, folder / "mine")) / "ckpt" / "c2i.pt"
    content = torch.load(path)
    torch.save({"model": {name: value.to(dtype) for name, value in content["model"].items()}}, path)
    (folder / "numbers.txt").write_text("\n".join(map(str, range(24))) + "\n")
    (folder / "typed.yaml").write_text(SPACE)
    return path


def test_all_commands_refuse_the_same_types(
    made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = with_type(made, tmp_path, torch.int8)
    monkeypatch.chdir(tmp_path)
    problem = (
        f"mine/models.yaml:1: classes: {path}: tok_embeddings.weight has the quantised type "
        "torch.int8"
    )
    assert problem in specfrontier("doctor", "--models", "mine/models.yaml#classes").out
    assert problem in error_of("generate", "7", "--models", "mine/models.yaml#classes", code=1)
    assert problem in error_of("launch", "typed.yaml", "--check", code=2)
    assert problem in error_of("launch", "typed.yaml", "--no-mlflow", code=2)


def test_all_commands_note_the_same_types(
    made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = with_type(made, tmp_path, torch.float8_e4m3fn)
    monkeypatch.chdir(tmp_path)
    note = f"{path}: 18 of 18 weights have the type torch.float8_e4m3fn"
    doctor = specfrontier("doctor", "--models", "mine/models.yaml#classes", "--json")
    assert doctor.code == 0
    (said,) = doctor.json["entries"][0]["notes"]
    assert said.startswith(note)
    assert said in specfrontier("doctor", "--models", "mine/models.yaml#classes").out
    generated = specfrontier("generate", "7", "--models", "mine/models.yaml#classes", "--json")
    assert generated.json["warnings"] == [said]
    checked = specfrontier("launch", "typed.yaml", "--check")
    assert checked.code == 0, checked.err
    assert said in " ".join(checked.out.split())
    config = SweepConfig.read("typed.yaml")
    worker = Evaluator(WorkerSpec(**worker_spec(config, Storage(str(tmp_path / "store")))))
    assert worker.facts()["notes"] == [said]
