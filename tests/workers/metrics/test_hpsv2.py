"""HPSv2 on open_clip's layout: equal to plain functions, and wrong files."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor
from transformers import CLIPModel, CLIPTokenizer

from tests.fakes import tiny_clip
from tests.fakes.metric_inputs import load_scorer
from workers.metrics.hpsv2 import VIT_H_14, load_hpsv2, tokenizer_for
from workers.metrics.pixels import squares
from workers.models.checkpoint_files import WeightsError
from workers.scenes.images import render, sample_attributes

CAPTIONS = ("a red star", "A blue ring, near  a red one", "red " * 40)


def open_clip_embeddings(
    weights: dict[str, Tensor], pixels: Tensor, ids: Tensor
) -> tuple[Tensor, Tensor]:
    """Both embeddings as open_clip computes them from its own tensors: GELU, norms first, read at
    the largest id.
    """
    w = tiny_clip.WIDTH

    def norm(x: Tensor, name: str) -> Tensor:
        return F.layer_norm(x, (w,), weights[f"{name}.weight"], weights[f"{name}.bias"])

    def tower(x: Tensor, stem: str, mask: Tensor | None) -> Tensor:
        for layer in range(tiny_clip.LAYERS):
            at = f"{stem}.{layer}"
            joint = (
                norm(x, f"{at}.ln_1") @ weights[f"{at}.attn.in_proj_weight"].T
                + weights[f"{at}.attn.in_proj_bias"]
            )
            q, k, v = (
                part.view(*part.shape[:2], tiny_clip.HEADS, -1).transpose(1, 2)
                for part in joint.chunk(3, dim=2)
            )
            scores = q @ k.transpose(2, 3) / (w / tiny_clip.HEADS) ** 0.5
            scores = scores if mask is None else scores + mask
            attended = (scores.softmax(-1) @ v).transpose(1, 2).flatten(2)
            x = (
                x
                + attended @ weights[f"{at}.attn.out_proj.weight"].T
                + weights[f"{at}.attn.out_proj.bias"]
            )
            hidden = (
                norm(x, f"{at}.ln_2") @ weights[f"{at}.mlp.c_fc.weight"].T
                + weights[f"{at}.mlp.c_fc.bias"]
            )
            x = (
                x
                + F.gelu(hidden) @ weights[f"{at}.mlp.c_proj.weight"].T
                + weights[f"{at}.mlp.c_proj.bias"]
            )
        return x

    patches = (
        F.conv2d(pixels, weights["visual.conv1.weight"], stride=tiny_clip.PATCH)
        .flatten(2)
        .transpose(1, 2)
    )
    start = weights["visual.class_embedding"].expand(len(pixels), 1, -1)
    x = norm(
        torch.cat([start, patches], 1) + weights["visual.positional_embedding"], "visual.ln_pre"
    )
    image = (
        norm(tower(x, "visual.transformer.resblocks", None)[:, 0], "visual.ln_post")
        @ weights["visual.proj"]
    )
    length = ids.shape[1]
    causal = torch.full((length, length), -torch.inf).triu(1)
    x = weights["token_embedding.weight"][ids] + weights["positional_embedding"][:length]
    x = norm(tower(x, "transformer.resblocks", causal), "ln_final")
    text = x[torch.arange(len(ids)), ids.argmax(1)] @ weights["text_projection"]
    return F.normalize(image, dim=1), F.normalize(text, dim=1)


def test_hpsv2_equals_open_clips_own_computation(tmp_path: Path) -> None:
    images = render(sample_attributes(2, range(3)), 2, range(3))
    weights = tiny_clip.open_clip_weights()
    torch.save({"epoch": 1, "state_dict": weights}, tmp_path / "HPS_v2.1_compressed.pt")
    tiny_clip.write_tokenizer(tmp_path)
    model = load_hpsv2(tmp_path / "HPS_v2.1_compressed.pt", tmp_path, tiny_clip.config("gelu"))
    pictures = [
        picture.resize((32, 32), Image.Resampling.BICUBIC) for picture in squares(images, None)
    ]
    raw = (
        torch.stack([torch.tensor(list(picture.tobytes())).view(32, 32, 3) for picture in pictures])
        / 255
    )
    mean, std = (
        torch.tensor([0.48145466, 0.4578275, 0.40821073]),
        torch.tensor([0.26862954, 0.26130258, 0.27577711]),
    )
    pixels = ((raw - mean) / std).permute(0, 3, 1, 2)
    tokens = CLIPTokenizer.from_pretrained(tmp_path)(
        list(CAPTIONS), truncation=True, max_length=tiny_clip.LENGTH
    )
    ids = torch.zeros(3, tiny_clip.LENGTH, dtype=torch.int64)  # open_clip pads with zeros
    for row, line in enumerate(tokens["input_ids"]):
        ids[row, : len(line)] = torch.tensor(line)
    image, text = open_clip_embeddings(weights, pixels, ids)
    torch.testing.assert_close(model.embed_images(images), image, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(model.embed_captions(CAPTIONS), text, rtol=1e-4, atol=1e-4)
    expected = (image * text).sum(1)
    torch.testing.assert_close(model.cosines(images, CAPTIONS), expected, rtol=1e-4, atol=1e-4)


def test_hpsv2_is_vit_h_14() -> None:
    """986 million parameters, as the paper's base model."""
    from transformers import CLIPConfig

    with torch.device("meta"):
        model = CLIPModel(CLIPConfig(**VIT_H_14))
    assert {VIT_H_14[tower]["hidden_act"] for tower in ("text_config", "vision_config")} == {"gelu"}
    assert VIT_H_14["text_config"]["eos_token_id"] == 49407
    assert sum(weight.numel() for weight in model.parameters()) == pytest.approx(986.1e6, rel=1e-3)


def test_wrong_hpsv2_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "hps.pt"
    with pytest.raises(WeightsError, match=r"CLIP's tokenizer is needed next to hps\.pt"):
        load_scorer("hpsv2", {"hpsv2": path})
    tiny_clip.write_tokenizer(tmp_path / "clip")
    assert tokenizer_for(path, {"clip": str(tmp_path / "clip")}) == tmp_path / "clip"
    weights = tiny_clip.open_clip_weights()
    del weights["visual.proj"]
    torch.save(weights, path)
    with pytest.raises(WeightsError, match=r"hps\.pt: missing weights \(1\): .*open_clip's naming"):
        load_hpsv2(path, tmp_path / "clip", tiny_clip.config("gelu"))
    torch.save(tiny_clip.open_clip_weights() | {"visual.proj": torch.zeros(8, 7)}, path)
    with pytest.raises(WeightsError, match=r"visual\.proj has shape \[7, 8\]"):
        load_hpsv2(path, tmp_path / "clip", tiny_clip.config("gelu"))
