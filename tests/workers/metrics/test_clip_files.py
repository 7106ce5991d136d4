"""CLIP models from a user's files, and the CLIP score on them: equal to transformers, and wrong
files.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from PIL import Image
from torch import Tensor
from transformers import CLIPModel, CLIPTokenizer
from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil

from tests.fakes import tiny_clip
from tests.fakes.metric_inputs import load_scorer, mean_score, paler_and_red
from workers.metrics.clip_files import load_clip_folder
from workers.metrics.estimate import MetricUnavailable
from workers.metrics.hpsv2 import load_hpsv2
from workers.metrics.pixels import squares
from workers.models.checkpoint_files import WeightsError
from workers.scenes.images import render, sample_attributes

CAPTIONS = ("a red star", "A blue ring, near  a red one", "red " * 40)


@pytest.fixture(scope="module")
def images() -> Tensor:
    return render(sample_attributes(2, range(3)), 2, range(3))


def test_clip_score_equals_transformers_by_hand(images: Tensor, tmp_path: Path) -> None:
    tiny_clip.write_clip(tmp_path / "clip")
    scorer = load_scorer("clip_score", {"clip": tmp_path / "clip"})
    assert scorer.identity.startswith("clip-photo256@")
    pictures = [
        picture.resize((256, 256), Image.Resampling.LANCZOS) for picture in squares(images, None)
    ]
    processor = CLIPImageProcessorPil(
        size={"shortest_edge": tiny_clip.IMAGE},
        crop_size={"height": tiny_clip.IMAGE, "width": tiny_clip.IMAGE},
    )
    tokenizer = CLIPTokenizer.from_pretrained(tmp_path / "clip")
    tokens = tokenizer(
        [f"A photo depicts {text}" for text in CAPTIONS],
        padding=True,
        truncation=True,
        max_length=tiny_clip.LENGTH,
        return_tensors="pt",
    )
    assert tokens["input_ids"][2, -1] == tiny_clip.STOP, "truncation keeps the end token"
    with torch.no_grad():
        out = CLIPModel.from_pretrained(tmp_path / "clip")(
            pixel_values=processor(pictures, return_tensors="pt")["pixel_values"], **tokens
        )
        assert out.image_embeds.std(0).min() > 0.01
        logits = (out.image_embeds * out.text_embeds).sum(1)
    torch.testing.assert_close(scorer.score(images, CAPTIONS), logits, rtol=1e-4, atol=1e-5)
    assert logits.std() > 0.01


def test_the_identity_depends_on_all_files_of_the_folder(tmp_path: Path) -> None:
    tiny_clip.write_clip(tmp_path / "a")
    tiny_clip.write_clip(tmp_path / "b")
    first, again = (load_scorer("clip_score", {"clip": tmp_path / name}).identity for name in "ab")
    assert first == again
    fields = {"image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0.5, 0.5]}
    (tmp_path / "b" / "preprocessor_config.json").write_text(json.dumps(fields))
    assert load_scorer("clip_score", {"clip": tmp_path / "b"}).identity != first
    assert load_clip_folder(tmp_path / "b").normalization == ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5))


def test_folders_in_the_old_layout_load(images: Tensor, tmp_path: Path) -> None:
    """Position ids as a tensor, weights saved by torch; without a folder, the built-in CLIP is
    used.
    """
    model = tiny_clip.write_clip(tmp_path)
    weights = model.state_dict() | {
        "text_model.embeddings.position_ids": torch.arange(tiny_clip.LENGTH)[None]
    }
    (tmp_path / "model.safetensors").unlink()
    torch.save(weights, tmp_path / "pytorch_model.bin")
    clip = load_clip_folder(tmp_path)
    assert torch.equal(clip.clip.visual_projection.weight, model.visual_projection.weight)
    with pytest.raises(MetricUnavailable, match="captions of scenes"):
        load_scorer("clip_score", {})


def test_wrong_clip_folders_are_refused(tmp_path: Path) -> None:
    def refused(message: str, folder: Path = tmp_path) -> None:
        with pytest.raises(WeightsError, match=message):
            load_scorer("clip_score", {"clip": folder})

    refused("nowhere: no such folder", tmp_path / "nowhere")
    refused(r"config\.json: no such file")
    model = tiny_clip.write_clip(tmp_path)
    content = (tmp_path / "model.safetensors").read_bytes()
    (tmp_path / "model.safetensors").write_bytes(content[:-8])
    refused(r"model\.safetensors: the file is truncated")
    weights = model.state_dict()
    del weights["text_projection.weight"]
    (tmp_path / "model.safetensors").unlink()
    refused("no weights")
    torch.save(weights, tmp_path / "pytorch_model.bin")
    refused(r"missing weights \(1\): text_projection\.weight")
    (tmp_path / "vocab.json").unlink()
    refused("no tokenizer")
    tiny_clip.write_tokenizer(tmp_path)
    words = json.loads((tmp_path / "vocab.json").read_text())
    (tmp_path / "vocab.json").write_text(json.dumps(words | {"more": len(words)}))
    refused(r"its tokenizer has \d+ words")
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "blip"}))
    refused("'blip', not clip")


@pytest.mark.parametrize("metric", ["clip_score", "hpsv2"])
def test_a_colour_shift_lowers_the_score_of_captions_fitted_to_the_colours(
    metric: str, tmp_path: Path
) -> None:
    """The text tower's last layer is set to the difference between right and shifted images, as
    contrastive training would; the score is computed on other images.
    """
    training, images = (
        render(sample_attributes(seed, range(16)), seed, range(16)) for seed in (3, 4)
    )
    captions = ["a red star"] * 16
    if metric == "clip_score":
        tiny_clip.write_clip(tmp_path)
        model = load_clip_folder(tmp_path)
    else:
        tiny_clip.write_tokenizer(tmp_path)
        torch.save(tiny_clip.open_clip_weights(), tmp_path / "hps.pt")
        model = load_hpsv2(tmp_path / "hps.pt", tmp_path, tiny_clip.config("gelu"))
    pooled: list[Tensor] = []
    layer = model.clip.text_projection
    hook = layer.register_forward_pre_hook(lambda _, given: pooled.append(given[0]))
    model.embed_captions(captions)
    hook.remove()
    right, wrong = (
        model.embed_images(batch).mean(0) for batch in (training, paler_and_red(training))
    )
    layer.weight.data = torch.outer(right - wrong, pooled[0][0])
    good, bad = (
        mean_score(metric, model.cosines(batch, captions))
        for batch in (images, paler_and_red(images))
    )
    assert bad.value + 3 * (good.error + bad.error) < good.value
