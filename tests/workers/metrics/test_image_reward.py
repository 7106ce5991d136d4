"""ImageReward on its official layout: equal to plain functions, and wrong files."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor
from transformers import BlipTextConfig, BlipVisionConfig

from tests.fakes.metric_inputs import mean_score, paler_and_red
from workers.metrics.image_reward import TEXT, VISION, ImageReward, load_image_reward
from workers.metrics.pixels import squares
from workers.models.checkpoint_files import WeightsError
from workers.scenes.images import render, sample_attributes

VIT_DIM, BERT_DIM, HEADS, LAYERS, IMAGE, PATCH = 12, 8, 2, 2, 32, 16
VOCABULARY = (
    "[PAD]",
    "[UNK]",
    "[CLS]",
    "[SEP]",
    "[MASK]",
    "a",
    "red",
    "star",
    "##s",
    "on",
    "blue",
)
CAPTIONS = ("A red star", "blue stars on a red star", "red " * 50)


def configs() -> tuple[BlipVisionConfig, BlipTextConfig]:
    sizes = {"num_hidden_layers": LAYERS, "num_attention_heads": HEADS}
    vision = BlipVisionConfig(
        **VISION
        | sizes
        | {
            "hidden_size": VIT_DIM,
            "intermediate_size": 4 * VIT_DIM,
            "image_size": IMAGE,
        }
    )
    own = {
        "hidden_size": BERT_DIM,
        "encoder_hidden_size": VIT_DIM,
        "intermediate_size": 4 * BERT_DIM,
        "vocab_size": 13,
    }
    marks = {"bos_token_id": 11, "sep_token_id": 3, "eos_token_id": 3}
    return vision, BlipTextConfig(**TEXT | sizes | own | marks | {"max_position_embeddings": 40})


def official_weights() -> dict[str, Tensor]:
    """Random tensors under the official file's names, in its shapes."""
    generator, found = torch.Generator().manual_seed(1), dict[str, Tensor]()

    def linear(at: str, rows: int, columns: int) -> None:
        found[f"{at}.weight"] = torch.randn(rows, columns, generator=generator) / columns**0.5
        found[f"{at}.bias"] = 0.3 * torch.randn(rows, generator=generator)

    def norm(at: str, width: int) -> None:
        found[f"{at}.weight"] = 1 + 0.3 * torch.randn(width, generator=generator)
        found[f"{at}.bias"] = 0.3 * torch.randn(width, generator=generator)

    eye = "blip.visual_encoder"
    found[f"{eye}.cls_token"] = torch.randn(1, 1, VIT_DIM, generator=generator)
    found[f"{eye}.pos_embed"] = torch.randn(
        1, (IMAGE // PATCH) ** 2 + 1, VIT_DIM, generator=generator
    )
    linear(f"{eye}.patch_embed.proj", VIT_DIM, 3 * PATCH**2)
    found[f"{eye}.patch_embed.proj.weight"] = found[f"{eye}.patch_embed.proj.weight"].view(
        VIT_DIM, 3, PATCH, PATCH
    )
    for layer in range(LAYERS):
        at = f"{eye}.blocks.{layer}"
        norm(f"{at}.norm1", VIT_DIM)
        norm(f"{at}.norm2", VIT_DIM)
        for name, rows, columns in (
            ("attn.qkv", 3 * VIT_DIM, VIT_DIM), ("attn.proj", VIT_DIM, VIT_DIM), ("mlp.fc1", 4 * VIT_DIM, VIT_DIM),
            ("mlp.fc2", VIT_DIM, 4 * VIT_DIM),
        ):  # fmt: skip
            linear(f"{at}.{name}", rows, columns)
    norm(f"{eye}.norm", VIT_DIM)
    bert = "blip.text_encoder"
    found[f"{bert}.embeddings.position_ids"] = torch.arange(40)[None]
    found[f"{bert}.embeddings.word_embeddings.weight"] = torch.randn(
        13, BERT_DIM, generator=generator
    )
    found[f"{bert}.embeddings.position_embeddings.weight"] = torch.randn(
        40, BERT_DIM, generator=generator
    )
    norm(f"{bert}.embeddings.LayerNorm", BERT_DIM)
    for layer in range(LAYERS):
        at = f"{bert}.encoder.layer.{layer}"
        for kind, width in (("attention", BERT_DIM), ("crossattention", VIT_DIM)):
            linear(f"{at}.{kind}.self.query", BERT_DIM, BERT_DIM)
            linear(f"{at}.{kind}.self.key", BERT_DIM, width)
            linear(f"{at}.{kind}.self.value", BERT_DIM, width)
            linear(f"{at}.{kind}.output.dense", BERT_DIM, BERT_DIM)
            norm(f"{at}.{kind}.output.LayerNorm", BERT_DIM)
        linear(f"{at}.intermediate.dense", 4 * BERT_DIM, BERT_DIM)
        linear(f"{at}.output.dense", BERT_DIM, 4 * BERT_DIM)
        norm(f"{at}.output.LayerNorm", BERT_DIM)
    linear("blip.vision_proj", 256, VIT_DIM)
    linear("blip.text_proj", 256, BERT_DIM)
    widths = (BERT_DIM, 1024, 128, 64, 16, 1)
    for place, wide, narrow in zip((0, 2, 4, 6, 7), widths, widths[1:], strict=False):
        linear(f"mlp.layers.{place}", narrow, wide)
    return found


def plain_rewards(w: dict[str, Tensor], pixels: Tensor, ids: Tensor, mask: Tensor) -> Tensor:
    """Rewards [n] by plain functions: ViT with pre-norm, BERT with post-norm and cross-attention to
    the image.
    """

    def linear(x: Tensor, at: str) -> Tensor:
        return F.linear(x, w[f"{at}.weight"], w[f"{at}.bias"])

    def norm(x: Tensor, at: str, eps: float) -> Tensor:
        return F.layer_norm(x, x.shape[-1:], w[f"{at}.weight"], w[f"{at}.bias"], eps)

    def attend(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | float) -> Tensor:
        q, k, v = (part.view(*part.shape[:2], HEADS, -1).transpose(1, 2) for part in (q, k, v))
        weights = (q @ k.transpose(2, 3) / q.shape[-1] ** 0.5 + bias).softmax(-1)
        seen: Tensor = (weights @ v).transpose(1, 2).flatten(2)
        return seen

    eye, bert = "blip.visual_encoder", "blip.text_encoder"
    proj = f"{eye}.patch_embed.proj"
    x = (
        F.conv2d(pixels, w[f"{proj}.weight"], w[f"{proj}.bias"], stride=PATCH)
        .flatten(2)
        .transpose(1, 2)
    )
    x = torch.cat([w[f"{eye}.cls_token"].expand(len(x), -1, -1), x], 1) + w[f"{eye}.pos_embed"]
    for layer in range(LAYERS):
        at = f"{eye}.blocks.{layer}"
        q, k, v = linear(norm(x, f"{at}.norm1", 1e-6), f"{at}.attn.qkv").chunk(3, dim=2)
        x = x + linear(attend(q, k, v, 0.0), f"{at}.attn.proj")
        x = x + linear(
            F.gelu(linear(norm(x, f"{at}.norm2", 1e-6), f"{at}.mlp.fc1")), f"{at}.mlp.fc2"
        )
    image = norm(x, f"{eye}.norm", 1e-6)
    places = w[f"{bert}.embeddings.position_embeddings.weight"][: ids.shape[1]]
    x = norm(
        w[f"{bert}.embeddings.word_embeddings.weight"][ids] + places,
        f"{bert}.embeddings.LayerNorm",
        1e-12,
    )
    hidden = torch.where(mask.bool(), 0.0, -torch.inf)[:, None, None]
    for layer in range(LAYERS):
        at = f"{bert}.encoder.layer.{layer}"
        for kind, other, bias in (
            ("attention", None, hidden),
            ("crossattention", image, torch.zeros(())),
        ):
            source = x if other is None else other
            q = linear(x, f"{at}.{kind}.self.query")
            k, v = (linear(source, f"{at}.{kind}.self.{name}") for name in ("key", "value"))
            out = linear(attend(q, k, v, bias), f"{at}.{kind}.output.dense")
            x = norm(x + out, f"{at}.{kind}.output.LayerNorm", 1e-12)
        wide = F.gelu(linear(x, f"{at}.intermediate.dense"))
        x = norm(x + linear(wide, f"{at}.output.dense"), f"{at}.output.LayerNorm", 1e-12)
    state = x[:, 0]
    for place in (0, 2, 4, 6, 7):
        state = linear(state, f"mlp.layers.{place}")
    return (state[:, 0] - 0.16717362830052426) / 1.0333394966054072


def write(folder: Path, weights: dict[str, Tensor]) -> Path:
    (folder / "vocab.txt").write_text("\n".join(VOCABULARY) + "\n")
    torch.save(weights, folder / "ImageReward.pt")
    return folder / "ImageReward.pt"


def loaded(path: Path) -> ImageReward:
    vision, text = configs()
    return load_image_reward(path, vision=vision, text=text)


def test_rewards_equal_plain_functions(tmp_path: Path) -> None:
    weights, images = official_weights(), render(sample_attributes(2, range(3)), 2, range(3))
    model = loaded(write(tmp_path, weights))
    pictures = [
        picture.resize((IMAGE, IMAGE), Image.Resampling.BICUBIC)
        for picture in squares(images, None)
    ]
    raw = (
        torch.stack(
            [torch.tensor(list(picture.tobytes())).view(IMAGE, IMAGE, 3) for picture in pictures]
        )
        / 255
    )
    mean, std = (
        torch.tensor([0.48145466, 0.4578275, 0.40821073]),
        torch.tensor([0.26862954, 0.26130258, 0.27577711]),
    )
    # tokenized by hand, to 35 at most
    token_lists = [[2, 5, 6, 7, 3], [2, 10, 7, 8, 9, 5, 6, 7, 3], [2, *[6] * 33, 3]]
    ids = torch.tensor([line + [0] * (35 - len(line)) for line in token_lists])
    expected = plain_rewards(weights, ((raw - mean) / std).permute(0, 3, 1, 2), ids, ids != 0)
    assert expected.std() > 0.01
    torch.testing.assert_close(model.rewards(images, CAPTIONS), expected, rtol=1e-4, atol=1e-4)


def test_a_colour_shift_lowers_the_reward_of_a_head_fitted_to_the_colours(tmp_path: Path) -> None:
    """A head along the difference between right and shifted images replaces a trained one; it rates
    other images.
    """
    training, images = (
        render(sample_attributes(seed, range(16)), seed, range(16)) for seed in (3, 4)
    )
    captions = ["a red star"] * 16
    model = loaded(write(tmp_path, official_weights()))
    states: list[Tensor] = []
    hook = model.head.register_forward_pre_hook(lambda _, given: states.append(given[0]))
    for batch in (training, paler_and_red(training)):
        model.rewards(batch, captions)
    hook.remove()
    for name, weight in model.head.named_parameters():
        weight.data.zero_()
        if name.endswith("weight"):
            weight.data[0, 0] = 1.0
    dict(model.head.named_parameters())["layers.0.weight"].data[0] = states[0].mean(0) - states[
        1
    ].mean(0)
    good, bad = (
        mean_score("image_reward", model.rewards(batch, captions))
        for batch in (images, paler_and_red(images))
    )
    assert bad.value + 3 * (good.error + bad.error) < good.value


def test_the_default_has_the_published_size() -> None:
    """446 million parameters: BLIP large, BERT base, and the head's million."""
    vision, text = BlipVisionConfig(**VISION), BlipTextConfig(**TEXT)
    with torch.device("meta"):
        model = ImageReward(vision, text, None)  # type: ignore[arg-type]
    shapes = {name: list(tensor.shape) for name, tensor in model.state_dict().items()}
    assert shapes["vision.embeddings.position_embedding"] == [1, 197, 1024]
    assert shapes["text.embeddings.word_embeddings.weight"] == [30524, 768]
    assert shapes["text.encoder.layer.11.crossattention.self.key.weight"] == [768, 1024]
    assert shapes["head.layers.0.weight"] == [1024, 768]
    assert (
        sum(
            1
            for name in shapes
            if name.startswith("vision.encoder.layers.") and name.endswith("qkv.weight")
        )
        == 24
    )


def test_wrong_files_are_refused(tmp_path: Path) -> None:
    path = write(tmp_path, official_weights())
    content = path.read_bytes()
    with pytest.raises(
        WeightsError, match=r"ImageReward\.pt: missing weights .*the file is ImageReward"
    ):
        load_image_reward(path)  # of the published size
    weights = official_weights()
    del weights["blip.text_encoder.encoder.layer.1.crossattention.self.key.weight"]
    with pytest.raises(
        WeightsError,
        match=r"missing weights \(1\): .*crossattention\.self\.key\.weight.*ImageReward",
    ):
        loaded(write(tmp_path, weights))
    path.write_bytes(content[: len(content) // 2])
    with pytest.raises(WeightsError, match="truncated"):
        loaded(path)
    (tmp_path / "vocab.txt").write_text("\n".join([*VOCABULARY, *map(str, range(90))]))
    path.write_bytes(content)
    with pytest.raises(
        WeightsError, match=r"its tokenizer has \d+ entries, but the model's vocabulary only 13"
    ):
        loaded(path)
    (tmp_path / "vocab.txt").unlink()
    with pytest.raises(WeightsError, match=r"no tokenizer; copy vocab\.txt"):
        loaded(path)
