"""CLIP score, HPSv2 and the aesthetic score on files that a user gives: against transformers, and plain functions."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor
from transformers import CLIPModel, CLIPTokenizer
from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil

from tests.fakes import tiny_clip
from workers.metrics import aesthetic, clip_score, hpsv2
from workers.metrics.aesthetic import aesthetic_scores, load_head
from workers.metrics.clip_files import load_clip_folder
from workers.metrics.estimate import MetricUnavailable
from workers.metrics.extractors import check_weights
from workers.metrics.hpsv2 import VIT_H_14, load_hpsv2, tokenizer_for
from workers.metrics.metric import MetricInputs, Rows, ScoreContext, Scorer
from workers.metrics.pixels import squares
from workers.metrics.registry import measure, scorers
from workers.models.checkpoint_files import WeightsError
from workers.models.families.scenes import BUILTIN
from workers.scenes.images import render, sample_attributes

CAPTIONS = ("a red star", "A blue ring, near  a red one", "red " * 40)


@pytest.fixture(scope="module")
def images() -> Tensor:
    return render(sample_attributes(2, range(3)), 2, range(3))


def score(name: str, weights: dict[str, Path]) -> Scorer:
    """A per-image score as the sweep loads it."""
    given = {key: str(path) for key, path in weights.items()}
    cpu = torch.device("cpu")
    return scorers()[name].load(
        ScoreContext(image_size=48, captions=CAPTIONS, folder=Path("none"), device=cpu, net=None, weights=given)
    )


def test_clip_score_equals_transformers_by_hand(images: Tensor, tmp_path: Path) -> None:
    tiny_clip.write_clip(tmp_path / "clip")
    found = score("clip_score", {"clip": tmp_path / "clip"})
    assert found.identity.startswith("clip-photo256@")
    pictures = [picture.resize((256, 256), Image.Resampling.LANCZOS) for picture in squares(images, None)]
    processor = CLIPImageProcessorPil(
        size={"shortest_edge": tiny_clip.IMAGE}, crop_size={"height": tiny_clip.IMAGE, "width": tiny_clip.IMAGE}
    )
    tokenizer = CLIPTokenizer.from_pretrained(tmp_path / "clip")
    words = tokenizer(
        [f"A photo depicts {text}" for text in CAPTIONS], padding=True, truncation=True, max_length=tiny_clip.LENGTH,
        return_tensors="pt",
    )  # fmt: skip
    assert words["input_ids"][2, -1] == tiny_clip.STOP, "what is too long is cut off before its end mark"
    with torch.no_grad():
        out = CLIPModel.from_pretrained(tmp_path / "clip")(
            pixel_values=processor(pictures, return_tensors="pt")["pixel_values"], **words
        )
        assert out.image_embeds.std(0).min() > 0.01
        logits = (out.image_embeds * out.text_embeds).sum(1)
    read = found.read(images, CAPTIONS, None)
    torch.testing.assert_close(read, logits, rtol=1e-4, atol=1e-5)
    assert logits.std() > 0.01


def test_the_identity_follows_all_files_of_the_folder(tmp_path: Path) -> None:
    tiny_clip.write_clip(tmp_path / "a")
    tiny_clip.write_clip(tmp_path / "b")
    first, again = (score("clip_score", {"clip": tmp_path / name}).identity for name in "ab")
    assert first == again
    fields = {"image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0.5, 0.5]}
    (tmp_path / "b" / "preprocessor_config.json").write_text(json.dumps(fields))
    assert score("clip_score", {"clip": tmp_path / "b"}).identity != first
    assert load_clip_folder(tmp_path / "b").scaling.mean == (0.5, 0.5, 0.5)


def test_old_folders_are_read(images: Tensor, tmp_path: Path) -> None:
    """Positions as a tensor, and weights as torch saves them; the built-in CLIP stays where no folder is given."""
    model = tiny_clip.write_clip(tmp_path)
    weights = model.state_dict() | {"text_model.embeddings.position_ids": torch.arange(tiny_clip.LENGTH)[None]}
    (tmp_path / "model.safetensors").unlink()
    torch.save(weights, tmp_path / "pytorch_model.bin")
    clip = load_clip_folder(tmp_path)
    assert torch.equal(clip.clip.visual_projection.weight, model.visual_projection.weight)
    with pytest.raises(MetricUnavailable, match="the scenes CLIP reads captions of scenes only"):
        score("clip_score", {})


def test_wrong_clip_folders_are_refused(tmp_path: Path) -> None:
    def refused(message: str, folder: Path = tmp_path) -> None:
        with pytest.raises(WeightsError, match=message):
            score("clip_score", {"clip": folder})

    refused("nowhere: no such folder", tmp_path / "nowhere")
    refused(r"config\.json: no such file")
    model = tiny_clip.write_clip(tmp_path)
    whole = (tmp_path / "model.safetensors").read_bytes()
    (tmp_path / "model.safetensors").write_bytes(whole[:-8])
    refused(r"model\.safetensors: the file is truncated")
    weights = model.state_dict()
    del weights["text_projection.weight"]
    (tmp_path / "model.safetensors").unlink()
    refused("no weights in it")
    torch.save(weights, tmp_path / "pytorch_model.bin")
    refused(r"missing weights \(1\): text_projection\.weight")
    (tmp_path / "vocab.json").unlink()
    refused("no tokenizer in it")
    tiny_clip.write_tokenizer(tmp_path)
    words = json.loads((tmp_path / "vocab.json").read_text())
    (tmp_path / "vocab.json").write_text(json.dumps(words | {"more": len(words)}))
    refused(r"a tokenizer of \d+ words .* but the model knows")
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "blip"}))
    refused("of a model of type 'blip', not clip")


def open_clip_embeddings(weights: dict[str, Tensor], pixels: Tensor, ids: Tensor) -> tuple[Tensor, Tensor]:
    """Both embeddings as open_clip computes them from its own tensors: GELU, norms first, read at the largest word."""
    w = tiny_clip.WIDTH

    def norm(x: Tensor, at: str) -> Tensor:
        return F.layer_norm(x, (w,), weights[f"{at}.weight"], weights[f"{at}.bias"])

    def tower(x: Tensor, stem: str, mask: Tensor | None) -> Tensor:
        for layer in range(tiny_clip.LAYERS):
            at = f"{stem}.{layer}"
            joint = norm(x, f"{at}.ln_1") @ weights[f"{at}.attn.in_proj_weight"].T + weights[f"{at}.attn.in_proj_bias"]
            q, k, v = (
                part.view(*part.shape[:2], tiny_clip.HEADS, -1).transpose(1, 2) for part in joint.chunk(3, dim=2)
            )
            scores = q @ k.transpose(2, 3) / (w / tiny_clip.HEADS) ** 0.5
            scores = scores if mask is None else scores + mask
            seen = (scores.softmax(-1) @ v).transpose(1, 2).flatten(2)
            x = x + seen @ weights[f"{at}.attn.out_proj.weight"].T + weights[f"{at}.attn.out_proj.bias"]
            hidden = norm(x, f"{at}.ln_2") @ weights[f"{at}.mlp.c_fc.weight"].T + weights[f"{at}.mlp.c_fc.bias"]
            x = x + F.gelu(hidden) @ weights[f"{at}.mlp.c_proj.weight"].T + weights[f"{at}.mlp.c_proj.bias"]
        return x

    patches = F.conv2d(pixels, weights["visual.conv1.weight"], stride=tiny_clip.PATCH).flatten(2).transpose(1, 2)
    start = weights["visual.class_embedding"].expand(len(pixels), 1, -1)
    x = norm(torch.cat([start, patches], 1) + weights["visual.positional_embedding"], "visual.ln_pre")
    image = norm(tower(x, "visual.transformer.resblocks", None)[:, 0], "visual.ln_post") @ weights["visual.proj"]
    length = ids.shape[1]
    later = torch.full((length, length), -torch.inf).triu(1)
    x = weights["token_embedding.weight"][ids] + weights["positional_embedding"][:length]
    x = norm(tower(x, "transformer.resblocks", later), "ln_final")
    text = x[torch.arange(len(ids)), ids.argmax(1)] @ weights["text_projection"]
    return F.normalize(image, dim=1), F.normalize(text, dim=1)


def test_hpsv2_equals_open_clips_own_computation(images: Tensor, tmp_path: Path) -> None:
    weights = tiny_clip.open_clip_weights()
    torch.save({"epoch": 1, "state_dict": weights}, tmp_path / "HPS_v2.1_compressed.pt")
    tiny_clip.write_tokenizer(tmp_path)
    model = load_hpsv2(tmp_path / "HPS_v2.1_compressed.pt", tmp_path, tiny_clip.config("gelu"))
    pictures = [picture.resize((32, 32), Image.Resampling.BICUBIC) for picture in squares(images, None)]
    raw = torch.stack([torch.tensor(list(picture.tobytes())).view(32, 32, 3) for picture in pictures]) / 255
    mean, std = torch.tensor([0.48145466, 0.4578275, 0.40821073]), torch.tensor([0.26862954, 0.26130258, 0.27577711])
    pixels = ((raw - mean) / std).permute(0, 3, 1, 2)
    words = CLIPTokenizer.from_pretrained(tmp_path)(list(CAPTIONS), truncation=True, max_length=tiny_clip.LENGTH)
    ids = torch.zeros(3, tiny_clip.LENGTH, dtype=torch.int64)  # open_clip fills up with zeros
    for row, found in enumerate(words["input_ids"]):
        ids[row, : len(found)] = torch.tensor(found)
    image, text = open_clip_embeddings(weights, pixels, ids)
    torch.testing.assert_close(model.embed_pictures(squares(images, None)), image, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(model.embed_captions(CAPTIONS), text, rtol=1e-4, atol=1e-4)
    expected = (image * text).sum(1)
    torch.testing.assert_close(model.cosines(squares(images, None), CAPTIONS), expected, rtol=1e-4, atol=1e-4)
    with pytest.raises(ValueError, match="one caption per image"):
        model.cosines(squares(images, None), CAPTIONS[:2])


def test_hpsv2_is_vit_h_14() -> None:
    """986 million weights, as the paper's base model has."""
    from transformers import CLIPConfig

    with torch.device("meta"):
        model = CLIPModel(CLIPConfig(**VIT_H_14))
    assert {VIT_H_14[tower]["hidden_act"] for tower in ("text_config", "vision_config")} == {"gelu"}
    assert VIT_H_14["text_config"]["eos_token_id"] == 49407
    assert sum(weight.numel() for weight in model.parameters()) == pytest.approx(986.1e6, rel=1e-3)


def test_wrong_hpsv2_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "hps.pt"
    with pytest.raises(MetricUnavailable, match="no weights are given for it"):
        score("hpsv2", {})
    with pytest.raises(WeightsError, match=r"CLIP's tokenizer is needed beside hps\.pt"):
        score("hpsv2", {"hpsv2": path})
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


def head_file(path: Path, inputs: int) -> dict[str, Tensor]:
    """The predictor's file: layers 0, 2, 4, 6, 7 of published sizes, at random."""
    generator = torch.Generator().manual_seed(3)
    widths = (inputs, 1024, 128, 64, 16, 1)
    weights: dict[str, Tensor] = {}
    for place, wide, narrow in zip((0, 2, 4, 6, 7), widths, widths[1:], strict=False):
        weights[f"layers.{place}.weight"] = torch.randn(narrow, wide, generator=generator) / wide**0.5
        weights[f"layers.{place}.bias"] = torch.randn(narrow, generator=generator)
    torch.save(weights, path)
    return weights


def test_aesthetic_scores_by_hand(images: Tensor, tmp_path: Path) -> None:
    tiny_clip.write_clip(tmp_path / "l14")
    (tmp_path / "l14" / "vocab.json").unlink()  # no words are read
    weights = head_file(tmp_path / "head.pth", tiny_clip.SHARED)
    clip = load_clip_folder(tmp_path / "l14", texts=False)
    found = score("aesthetic", {"aesthetic": tmp_path / "head.pth", "clip_l14": tmp_path / "l14"})
    embedded = clip.embed_pictures(squares(images, None))
    torch.testing.assert_close(embedded.norm(dim=1), torch.ones(3))
    expected = embedded
    for place in (0, 2, 4, 6, 7):
        expected = expected @ weights[f"layers.{place}.weight"].T + weights[f"layers.{place}.bias"]
    torch.testing.assert_close(found.read(images, CAPTIONS, None), expected[:, 0], rtol=1e-4, atol=1e-4)
    assert found.identity.startswith("laion-aesthetic@")


def test_wrong_aesthetic_files_are_refused(tmp_path: Path) -> None:
    head_file(tmp_path / "head.pth", 7)
    tiny_clip.write_clip(tmp_path / "l14")
    with pytest.raises(WeightsError, match=r"give that one's folder as metrics\.clip_l14 too"):
        score("aesthetic", {"aesthetic": tmp_path / "head.pth"})
    with pytest.raises(WeightsError, match=r"layers\.0\.weight has shape \[1024, 7\]"):
        score("aesthetic", {"aesthetic": tmp_path / "head.pth", "clip_l14": tmp_path / "l14"})
    with pytest.raises(MetricUnavailable, match="no weights are given for it"):
        score("aesthetic", {"clip_l14": tmp_path / "l14"})


def test_a_colour_shift_lowers_what_was_fitted_to_the_colours(tmp_path: Path) -> None:
    """A head along the images' own mean direction stands in for a trained one."""
    images = render(sample_attributes(4, range(6)), 4, range(6))
    tiny_clip.write_clip(tmp_path / "l14")
    clip = load_clip_folder(tmp_path / "l14", texts=False)
    direction = clip.embed_pictures(squares(images, None)).mean(0)
    weights = head_file(tmp_path / "head.pth", tiny_clip.SHARED)
    for name, weight in weights.items():
        weight.zero_()
        if name.endswith("weight"):
            weight[0, 0] = 1.0
    weights["layers.0.weight"][0] = direction
    torch.save(weights, tmp_path / "head.pth")
    head = load_head(tmp_path / "head.pth", tiny_clip.SHARED)
    shifted = 0.3 * images + torch.tensor([0.7, 0.0, 0.0]).view(3, 1, 1)
    values = []
    for drawn in (images, shifted):
        keys = {"caption_id": torch.arange(6), "sample": torch.zeros(6).long()}
        found = measure(
            MetricInputs(images=Rows(keys | {"score.aesthetic": aesthetic_scores(clip, head, drawn)})), ["aesthetic"]
        )
        values.append(found[0]["aesthetic"])
    assert values[1].value + 3 * (values[0].error + values[1].error) < values[0].value


def test_files_are_held_against_their_nets_by_shapes_alone(tmp_path: Path) -> None:
    tiny_clip.write_clip(tmp_path / "clip")
    head_file(tmp_path / "head.pth", tiny_clip.SHARED)
    given = {
        "clip": str(tmp_path / "clip"),
        "clip_l14": str(tmp_path / "clip"),
        "aesthetic": str(tmp_path / "head.pth"),
    }
    assert check_weights(BUILTIN, given) == {}
    missing = check_weights(BUILTIN, given | {"clip_l14": str(tmp_path / "nowhere")})
    assert missing.keys() == {"clip_l14", "aesthetic"}, "the head needs it"
    assert missing["clip_l14"] == f"{tmp_path}/nowhere: no such file or folder; check the path"
    head_file(tmp_path / "head.pth", 7)
    torch.save(tiny_clip.open_clip_weights(), tmp_path / "hps.pt")
    weights = (tmp_path / "clip" / "model.safetensors").read_bytes()
    wrong = check_weights(BUILTIN, given | {"hpsv2": str(tmp_path / "hps.pt")})
    assert wrong.keys() == {"aesthetic", "hpsv2"}
    assert check_weights(BUILTIN, given | {"hpsv2": str(tmp_path / "hps.pt")}, ["fid", "hpsv2"]).keys() == {"hpsv2"}
    assert "layers.0.weight has shape [1024, 7]" in wrong["aesthetic"]
    (tmp_path / "clip" / "model.safetensors").write_bytes(weights[:-8])
    assert "truncated" in check_weights(BUILTIN, given)["clip"]


def paler_and_red(images: Tensor) -> Tensor:
    return 0.3 * images + torch.tensor([0.7, 0.0, 0.0]).view(3, 1, 1)


@pytest.mark.parametrize("metric", ["clip_score", "hpsv2"])
def test_a_colour_shift_lowers_the_fit_to_captions_that_mean_the_colours(metric: str, tmp_path: Path) -> None:
    """The text tower's last layer is brought to what sets right images off from shifted ones, as contrastive training
    does; other images are judged by it.
    """
    known, images = (render(sample_attributes(seed, range(16)), seed, range(16)) for seed in (3, 4))
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
    right, wrong = (model.embed_pictures(squares(drawn, None)).mean(0) for drawn in (known, paler_and_red(known)))
    layer.weight.data = torch.outer(right - wrong, pooled[0][0])
    found = []
    for drawn in (images, paler_and_red(images)):
        keys = {"caption_id": torch.arange(16), "sample": torch.zeros(16).long()}
        rows = Rows(keys | {f"score.{metric}": model.cosines(squares(drawn, None), captions)})
        found.append(measure(MetricInputs(images=rows), [metric])[0][metric])
    assert found[1].value + 3 * (found[0].error + found[1].error) < found[0].value


def test_all_three_metrics_are_means_of_their_scores() -> None:
    keys = {"caption_id": torch.tensor([0, 0, 1]), "sample": torch.tensor([0, 1, 0])}
    for module in (clip_score, hpsv2, aesthetic):
        name = module.METRICS[0].name
        rows = Rows(keys | {f"score.{name}": torch.tensor([1.0, 2.0, 6.0])})
        found, _ = measure(MetricInputs(images=rows), [name])
        assert found[name].value == pytest.approx(3)
        assert module.METRICS[0].direction == "maximize"
