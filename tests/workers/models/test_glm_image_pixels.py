"""GLM-Image's pixel decoder in the library diffusers itself, on a small random pipeline; without
the library nothing of it is run.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import ByT5Tokenizer, T5Config, T5EncoderModel

from workers.models.families.glm_image import PixelDecoder

diffusers: Any = pytest.importorskip("diffusers", "0.37")
CODES = 40


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A pipeline as it is published, without its language model: its index names one."""
    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("pipeline")
    blocks = 4  # so that a latent is of 8 x 8 pixels
    vae = diffusers.AutoencoderKL(
        down_block_types=("DownEncoderBlock2D",) * blocks,
        up_block_types=("UpDecoderBlock2D",) * blocks,
        block_out_channels=(4, 8, 8, 8),
        latent_channels=4,
        norm_num_groups=4,
        latents_mean=[0.1] * 4,
        latents_std=[1.5] * 4,
        mid_block_add_attention=False,
    )
    transformer = diffusers.GlmImageTransformer2DModel(
        in_channels=4,
        out_channels=4,
        num_layers=2,
        attention_head_dim=8,
        num_attention_heads=2,
        text_embed_dim=16,
        time_embed_dim=16,
        condition_dim=8,
        prior_vq_quantizer_codebook_size=CODES,
    )
    sizes: dict[str, Any] = {"d_model": 16, "d_kv": 8, "d_ff": 16, "num_layers": 1, "num_heads": 2}
    pipeline = diffusers.GlmImagePipeline(
        tokenizer=ByT5Tokenizer(),
        text_encoder=T5EncoderModel(T5Config(vocab_size=384, **sizes)),
        vae=vae,
        transformer=transformer,
        scheduler=diffusers.FlowMatchEulerDiscreteScheduler(),
        processor=None,
        vision_language_encoder=None,
    )
    pipeline.save_pretrained(folder)
    file = folder / "model_index.json"
    index = json.loads(file.read_text())
    index["processor"] = ["transformers", "GlmImageProcessor"]
    index["vision_language_encoder"] = ["transformers", "GlmImageForConditionalGeneration"]
    file.write_text(json.dumps(index))
    return folder


def test_images_are_those_of_the_pipelines_own_call(folder: Path) -> None:
    ids = torch.arange(6).view(2, 3)
    image = PixelDecoder(folder, torch.float32)(ids)
    pipeline = diffusers.GlmImagePipeline.from_pretrained(
        folder, processor=None, vision_language_encoder=None
    )
    expected = pipeline(
        prompt="",
        height=64,
        width=96,
        prior_token_ids=pipeline._upsample_token_ids(ids, 2, 3),
        generator=torch.Generator().manual_seed(0),
        output_type="pt",
    ).images
    assert image.shape == (1, 3, 64, 96)
    assert torch.equal(image, 2 * expected - 1)


def test_equal_codes_give_equal_pixels(folder: Path) -> None:
    decoder = PixelDecoder(folder, torch.bfloat16)
    ids = torch.arange(6).view(2, 3)
    first, again, others = decoder(ids), decoder(ids), decoder(ids + 7)
    assert torch.equal(first, again)
    assert not torch.equal(first, others)
    assert first.isfinite().all()
