"""Checkpoints of other projects, and files in the wrong place, are called what they are."""

from __future__ import annotations

import itertools
import json
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest
import torch
import yaml
from safetensors.torch import save_file
from torch import Tensor

from tests.fakes import tiny_chameleon, tiny_eagle, tiny_foreign, tiny_llamagen
from tests.fakes.toys import BASE, toy_target
from workers.decoding.build import load_drafter
from workers.loading.models_yaml import load_on_meta, read_entry
from workers.models.checkpoint_files import WeightsError
from workers.models.families.scenes import BUILTIN

D = BASE.dim


def zeros(names: Iterable[str]) -> dict[str, Tensor]:
    return {name: torch.zeros(2, 2) for name in names}


def eagle_3() -> dict[str, Tensor]:
    layer = [f"midlayer.self_attn.{part}_proj.weight" for part in "qkvo"]
    norms = [
        "midlayer.hidden_norm.weight",
        "midlayer.input_layernorm.weight",
        "norm.weight",
        "lm_head.weight",
    ]
    return zeros(layer + norms) | {
        "fc.weight": torch.zeros(D, 3 * D),
        "d2t": torch.zeros(4),
        "t2d": torch.zeros(4),
    }


MEDUSA = zeros(
    [
        f"{head}.{part}"
        for head in range(3)
        for part in ("0.linear.weight", "0.linear.bias", "1.weight")
    ]
)
HYDRA = zeros(["hydra_mlp.0.0.linear.weight", "hydra_lm_head.0.weight"])
DRAFTERS: dict[str, tuple[dict[str, Tensor], str]] = {
    "EAGLE-3": (eagle_3(), "EAGLE-3"),
    "EAGLE-3, wrapped": ({f"module.{name}": value for name, value in eagle_3().items()}, "EAGLE-3"),
    "EAGLE-3 by its width": (
        tiny_eagle.published() | {"fc.weight": torch.zeros(D, 3 * D)},
        "EAGLE-3",
    ),
    "Medusa": (MEDUSA, "Medusa heads"),
    "Medusa with a prefix": (
        {f"medusa_head.{name}": value for name, value in MEDUSA.items()},
        "Medusa heads",
    ),
    "Hydra": (HYDRA, "Hydra heads"),
    "a whole target": (tiny_llamagen.official("c2i", tiny_llamagen.Size()), "LlamaGen transformer"),
}


@pytest.mark.parametrize("ending", [".pt", ".safetensors", "/"])
@pytest.mark.parametrize(
    ("name", "kind"),
    [
        (name, kind)
        for name, kind in itertools.product(DRAFTERS, ("eagle", "eagle3", "medusa", "independent"))
        if kind != "eagle3" or name not in ("EAGLE-3", "EAGLE-3, wrapped")
    ],
)
def test_drafters_of_other_kinds_are_named(
    name: str, ending: str, kind: str, tmp_path: Path
) -> None:
    state, expected = DRAFTERS[name]
    path = tmp_path / f"drafter{ending}"
    if ending == "/":
        tiny_eagle.write(path, state)
    elif ending == ".pt":
        torch.save(state, path)
    else:
        save_file({name: value.contiguous() for name, value in state.items()}, path)
    if (name, kind) in (
        ("EAGLE-3 by its width", "medusa"),
        ("EAGLE-3 by its width", "independent"),
    ):
        expected = "EAGLE drafter"  # only its own loader reads shapes
    with pytest.raises(WeightsError, match=expected) as caught:
        load_drafter(toy_target(config=BASE), kind, path)
    assert str(path).rstrip("/") in str(caught.value)


@pytest.mark.parametrize(
    ("kind", "file", "expected"),
    [
        ("medusa", "eagle", "EAGLE drafter"),
        ("eagle", "medusa", "Medusa heads"),
        ("independent", "eagle", "EAGLE drafter"),
        ("eagle3", "eagle", "EAGLE drafter"),
        ("eagle", "eagle3", r"EAGLE-3 drafter: name it under drafters\.eagle3"),
        ("eagle", "independent", "AR model"),
        ("medusa", "tokenizer", "VQ tokenizer"),
    ],
)
def test_our_own_files_in_the_wrong_place_are_named(kind: str, file: str, expected: str) -> None:
    path = BUILTIN / f"{file}.safetensors"
    with pytest.raises(WeightsError, match=expected) as caught:
        load_drafter(toy_target(config=BASE), kind, path)
    assert str(path) in str(caught.value)


def refused(tmp_path: Path, family: str, **keys: object) -> str:
    """The message that `doctor` and a launch give for an entry."""
    (tmp_path / "models.yaml").write_text(yaml.safe_dump({"mine": {"family": family, **keys}}))
    with pytest.raises(WeightsError) as caught:
        load_on_meta(read_entry(tmp_path / "models.yaml"))
    return str(caught.value)


JANUS_OWN = zeros(
    [
        "language_model.model.layers.0.self_attn.q_proj.weight",
        "gen_vision_model.decoder.conv_in.weight",
    ]
)
META_OWN = zeros(
    ["tok_embeddings.weight", "layers.0.attention.q_normalization.weight", "output.weight"]
)


GLM = zeros(["model.visual.patch_embed.proj.weight", "model.vqmodel.quantize.embedding.weight"])


@pytest.mark.parametrize(
    ("family", "write", "model_type", "kind", "fix"),
    [
        (
            "janus",
            tiny_foreign.janus,
            "multi_modality",
            "DeepSeek's own",
            "deepseek-community/Janus-Pro-1B",
        ),
        ("emu3", tiny_foreign.emu3, "Emu3", "BAAI's own", "BAAI/Emu3-Gen-hf"),
        ("janus", tiny_foreign.emu3, "Emu3", "BAAI's own", "BAAI/Emu3-Gen-hf"),
    ],
)
def test_folders_for_the_authors_own_code_are_named(
    family: str,
    write: Callable[[Path], object],
    model_type: str,
    kind: str,
    fix: str,
    tmp_path: Path,
) -> None:
    folder = tmp_path / "model"
    write(folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"model_type": model_type}))
    message = refused(tmp_path, family, checkpoint="model")
    assert str(folder / "config.json") in message
    assert kind in message
    assert fix in message


@pytest.mark.parametrize("family", ["llamagen", "anole"])
@pytest.mark.parametrize(
    ("state", "kind", "fix"),
    [
        (JANUS_OWN, "DeepSeek's own", "deepseek-community/Janus-Pro-7B"),
        (META_OWN, "Meta's own", "leloy/Anole-7b-v0.1-hf"),
        (GLM, "GLM-Image in the layout of transformers", "glm_image"),
    ],
    ids=["Janus", "Chameleon", "GLM-Image"],
)
def test_tensors_of_the_authors_own_layout_are_named(
    family: str, state: dict[str, Tensor], kind: str, fix: str, tmp_path: Path
) -> None:
    torch.save(state, tmp_path / "model.pt")
    tiny_llamagen.write_vq(tmp_path / "vq.pt")
    keys = {"transformer": "model.pt", "vq": "vq.pt"} | (
        {"image_size": 48} if family == "llamagen" else {}
    )
    message = refused(tmp_path, family, **keys)
    assert str(tmp_path / "model.pt") in message
    assert kind in message
    assert fix in message


def test_a_codec_that_is_something_else_is_named(tmp_path: Path) -> None:
    models = tiny_llamagen.write_models(tmp_path)
    ckpt = tmp_path / "ckpt"
    others = {
        "LlamaGen transformer": torch.load(ckpt / "c2i.pt"),
        "VQGAN tokenizer": tiny_chameleon.encoder_state(tiny_chameleon.reference_model()),
        "BAAI's own": zeros(
            ["encoder.time_res_stack.0.conv1.conv.weight", "quantize.embedding.weight"]
        ),
    }
    for kind, content in others.items():
        torch.save(content, ckpt / "vq.pt")
        with pytest.raises(WeightsError, match=kind) as caught:
            load_on_meta(read_entry(models, "classes"))
        assert str(ckpt / "vq.pt") in str(caught.value)


def test_a_text_encoder_in_a_transformers_place_is_named(tmp_path: Path) -> None:
    models = tiny_llamagen.write_models(tmp_path)
    shutil.copy(tmp_path / "ckpt/t5/model.safetensors", tmp_path / "ckpt/c2i.safetensors")
    models.write_text(models.read_text().replace("ckpt/c2i.pt", "ckpt/c2i.safetensors"))
    with pytest.raises(WeightsError, match="T5 text encoder"):
        load_on_meta(read_entry(models, "classes"))
