"""Checkpoints as training leaves them: names with wrappers' components, and files with several
state dicts.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from tests.fakes import tiny_chameleon, tiny_clip, tiny_eagle, tiny_foreign, tiny_llamagen
from tests.fakes.toys import BASE, toy_target
from tests.workers.metrics.test_aesthetic import head_file
from workers.decoding.build import load_drafter
from workers.loading.models_yaml import load_folder, load_on_meta, read_entry
from workers.metrics.clip_files import load_clip_folder
from workers.metrics.extractors import check_weights
from workers.models.checkpoint_files import WeightsError, load_tensors, read_part
from workers.models.families.chameleon import Anole
from workers.models.families.janus import Janus
from workers.models.families.llamagen import LlamaGen
from workers.models.families.scenes import BUILTIN, build_ar_model
from workers.models.own_files import read_module
from workers.models.text import T5Encoder

State = Mapping[str, Tensor]
PREFIXES = [
    "module.",
    "_orig_mod.",
    "model.",
    "module._orig_mod.",
    "_orig_mod.module.",
    "model.module.",
    "model.net.",
    "_fsdp_wrapped_module.",
    "module.model.",
]
CPU = torch.device("cpu")


def weights_of(module: nn.Module) -> dict[str, Tensor]:
    return dict(module.state_dict())


def llamagen(folder: Path) -> nn.Module:
    return LlamaGen(str(folder / "c2i.pt"), str(folder / "vq.pt"), 48, heads=2).load(
        CPU, torch.float32
    )


def write_llamagen(folder: Path) -> None:
    tiny_llamagen.write_vq(folder / "vq.pt")
    torch.save({"model": tiny_llamagen.official("c2i", tiny_llamagen.Size())}, folder / "c2i.pt")


def write_vqgan(folder: Path) -> None:
    tiny_chameleon.checkpoint(folder)
    model = tiny_chameleon.reference_model()
    own = {
        name.removeprefix("model.vqmodel."): value
        for name, value in tiny_chameleon.encoder_state(model).items()
    }
    torch.save({"state_dict": own | tiny_chameleon.decoder_state()}, folder / "vqgan.ckpt")


def anole(folder: Path) -> nn.Module:
    return Anole(str(folder), str(folder / "vqgan.ckpt")).load(CPU, torch.float32)


def eagle(folder: Path) -> nn.Module:
    return load_drafter(toy_target(config=BASE), "eagle", folder)


def write_own(folder: Path) -> None:
    for part in ("target", "medusa"):
        shutil.copy(BUILTIN / f"{part}.safetensors", folder)


def own_drafter(folder: Path) -> nn.Module:
    return load_drafter(load_folder().target, "medusa", folder / "medusa.safetensors")


def aesthetic(folder: Path) -> nn.Module:
    from workers.metrics.aesthetic import LinearHead
    from workers.metrics.networks import load_frozen

    return load_frozen(lambda: LinearHead(5), folder / "head.pth")


#: How a model is written and loaded. Every weight file of its folder is then changed.
MODELS: dict[str, tuple[Callable[[Path], object], Callable[[Path], nn.Module]]] = {
    "LlamaGen and its codec": (write_llamagen, llamagen),
    "Anole and its VQGAN": (write_vqgan, anole),
    "Janus": (
        tiny_foreign.janus,
        lambda folder: Janus(str(folder), prompt_tokens=40).load(CPU, torch.float32),
    ),
    "T5": (tiny_llamagen.write_t5, lambda folder: T5Encoder(folder)._model),
    "EAGLE": (lambda folder: tiny_eagle.write(folder, tiny_eagle.published()), eagle),
    "CLIP": (tiny_clip.write_clip, load_clip_folder),
    "our own": (
        write_own,
        lambda folder: read_module(folder / "target.safetensors", "an AR model", build_ar_model)[0],
    ),
    "our own drafter": (write_own, own_drafter),
    "aesthetic": (lambda folder: head_file(folder / "head.pth", 5), aesthetic),
}


def rename(folder: Path, change: Callable[[str], str]) -> int:
    """Change the tensors' names in every weight file of a folder; returns the number of files."""
    files = [
        file
        for file in folder.iterdir()
        if file.suffix in (".pt", ".pth", ".ckpt", ".bin", ".safetensors")
    ]
    for file in files:
        if file.suffix == ".safetensors":
            with safe_open(file, framework="pt") as opened:
                metadata = opened.metadata()
            tensors = {change(name): value.clone() for name, value in load_file(file).items()}
            save_file(tensors, file, metadata=metadata)
        else:
            content = torch.load(file)
            key = next((key for key in ("model", "state_dict") if key in content), None)
            state = {
                change(name): value
                for name, value in (content if key is None else content[key]).items()
            }
            torch.save(state if key is None else content | {key: state}, file)
    for index in folder.glob("*.index.json"):
        content = json.loads(index.read_text())
        content["weight_map"] = {change(name): file for name, file in content["weight_map"].items()}
        index.write_text(json.dumps(content))
    return len(files)


@pytest.fixture(scope="module")
def written(
    tmp_path_factory: pytest.TempPathFactory,
) -> Callable[[str], tuple[Path, dict[str, Tensor]]]:
    """A model's folder and its weights, by name; written once."""
    found: dict[str, tuple[Path, dict[str, Tensor]]] = {}

    def write(name: str) -> tuple[Path, dict[str, Tensor]]:
        if name not in found:
            folder = tmp_path_factory.mktemp("model")
            torch.manual_seed(0)
            MODELS[name][0](folder)
            found[name] = folder, weights_of(MODELS[name][1](folder))
        return found[name]

    return write


def compiled(name: str) -> str:
    """As `torch.compile` of every layer leaves it: the component is within the name."""
    head, dot, rest = name.partition(".")
    return f"{head}{dot}_orig_mod.{rest}" if dot else name


@pytest.mark.parametrize("prefix", [*PREFIXES, None])
@pytest.mark.parametrize("name", MODELS)
def test_what_training_adds_to_names_is_removed(
    name: str,
    prefix: str | None,
    written: Callable[[str], tuple[Path, dict[str, Tensor]]],
    tmp_path: Path,
) -> None:
    folder, expected = written(name)
    for file in folder.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    assert rename(tmp_path, compiled if prefix is None else lambda tensor: f"{prefix}{tensor}")
    found = weights_of(MODELS[name][1](tmp_path))
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], expected[name]) for name in expected)


@pytest.mark.parametrize(
    ("own", "is_removed"), [("model.", False), ("module.", True), ("module.model.", True)]
)
def test_a_checkpoints_own_prefix_stays(own: str, is_removed: bool, tmp_path: Path) -> None:
    """All names of a decoder without its head begin with `model.`, as they do in transformers. A
    prefix `module.` is removed unless the model itself has it.
    """
    tensors = {f"{own}embed_tokens.weight": torch.ones(2), f"{own}norm.weight": torch.ones(2)}
    torch.save(tensors, tmp_path / "x.pt")
    assert (load_tensors(tmp_path / "x.pt").keys() != tensors.keys()) == is_removed
    assert load_tensors(tmp_path / "x.pt", [f"{own}norm.weight"]).keys() == tensors.keys()
    assert load_tensors(tmp_path / "x.pt", ["norm.weight"]).keys() == {
        "embed_tokens.weight",
        "norm.weight",
    }


def test_names_that_would_be_one_are_left_alone(tmp_path: Path) -> None:
    tensors = {"a._orig_mod.w": torch.ones(1), "a.w": torch.zeros(1)}
    torch.save(tensors, tmp_path / "x.pt")
    assert load_tensors(tmp_path / "x.pt").keys() == tensors.keys()


WEIGHTS, OTHERS = {"a.weight": torch.ones(2)}, {"a.weight": torch.zeros(2)}
OPTIMIZER = {"state": {0: {"exp_avg": torch.zeros(2)}}, "param_groups": [{"lr": 1e-4}]}


@pytest.mark.parametrize(
    ("content", "named"),
    [
        (WEIGHTS, ()),
        ({"model": WEIGHTS, "steps": 7, "args": {"lr": 1e-4}}, ()),
        (
            {"model": WEIGHTS, "ema": OTHERS, "optimizer": OPTIMIZER},
            ("`model`", "`ema`", "`optimizer`"),
        ),
        ({"ema": OTHERS, "state_dict": WEIGHTS}, ("`state_dict`", "`ema`")),
        ({"state_dict": {"model": WEIGHTS, "ema": OTHERS}}, ("`state_dict.model`", "`ema`")),
        ({"app": {"model": WEIGHTS, "optimizer": OPTIMIZER}}, ("`app.model`", "`optimizer`")),
        ({"ema": WEIGHTS, "epoch": 3}, ()),
        ({"params_ema": WEIGHTS}, ()),
    ],
)
def test_the_state_dict_that_is_read_is_named(
    content: object, named: tuple[str, ...], tmp_path: Path
) -> None:
    path = tmp_path / "x.pt"
    torch.save(content, path)
    tensors = load_tensors(path)
    assert torch.equal(tensors["a.weight"], WEIGHTS["a.weight"])
    assert read_part(path) == tensors.part
    assert bool(tensors.part) == bool(named)
    assert tensors.part.startswith(named[0] if named else "")
    assert all(name in tensors.part for name in named)


def test_several_state_dicts_of_no_known_key_are_refused(tmp_path: Path) -> None:
    torch.save({"generator": WEIGHTS, "teacher": OTHERS}, tmp_path / "x.pt")
    with pytest.raises(
        WeightsError, match=r"x\.pt: holds several state dicts \(generator, teacher\)"
    ):
        load_tensors(tmp_path / "x.pt")


def test_an_error_names_the_state_dict_that_is_read(tmp_path: Path) -> None:
    models = tiny_llamagen.write_models(tmp_path)
    path = tmp_path / "ckpt" / "c2i.pt"
    state = torch.load(path)["model"]
    torch.save({"model": state | {"extra": torch.ones(1)}, "ema": state}, path)
    with pytest.raises(
        WeightsError, match=r"c2i\.pt: .*\(1\): extra.*`model` is read; it also holds `ema`"
    ):
        load_on_meta(read_entry(models, "classes"))


def test_wrapped_metric_weights_pass_their_check(tmp_path: Path) -> None:
    head_file(tmp_path / "head.pth", tiny_clip.SHARED)
    tiny_clip.write_clip(tmp_path / "l14")
    rename(tmp_path, lambda name: f"module.{name}")
    rename(tmp_path / "l14", lambda name: f"model.{name}")
    keys = {"aesthetic": str(tmp_path / "head.pth"), "clip_l14": str(tmp_path / "l14")}
    assert check_weights(tmp_path, keys) == {}
