"""The VQ codec: shapes, nearest codes, the families' differences by config, and its file."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import save_file

from workers.models.vq import CHAMELEON, VQConfig, VQModel, load_vq, save_vq

TINY = VQConfig(
    codebook_size=32, code_dim=4, channels=8, multipliers=(1, 2, 2), z_channels=8, groups=4
)


def tiny(**changes: object) -> VQModel:
    torch.manual_seed(0)
    return VQModel(replace(TINY, **changes)).eval()  # type: ignore[arg-type]


@torch.no_grad()
def test_shapes() -> None:
    model = tiny()
    ids = model.encode(torch.rand(2, 3, 16, 24) * 2 - 1)
    assert ids.shape == (2, 4, 6)
    assert ids.dtype == torch.int64
    images = model.decode_ids(ids)
    assert images.shape == (2, 3, 16, 24)
    assert images.abs().max() <= 1


@torch.no_grad()
@pytest.mark.parametrize("l2", [True, False])
def test_nearest_is_the_code_at_the_smallest_distance(l2: bool) -> None:
    model = tiny(l2_normalised=l2)
    z = torch.randn(50, 4)
    points, codes = (
        F.normalize(t, dim=-1) if l2 else t for t in (z, model.quantize.embedding.weight)
    )
    assert torch.equal(model.quantize.nearest(z), torch.cdist(points, codes).argmin(1))
    assert torch.allclose(model.codebook, codes)


@torch.no_grad()
def test_l2_decoding_ignores_the_length_of_a_code() -> None:
    model = tiny()
    ids = torch.arange(16).reshape(1, 4, 4)
    before = model.decode_ids(ids)
    model.quantize.embedding.weight *= 3
    assert torch.allclose(model.decode_ids(ids), before, atol=1e-5)


def test_attention_stands_where_the_config_puts_it() -> None:
    def attention(model: VQModel) -> set[str]:
        return {
            name.rsplit(".", 2)[0]
            for name, _ in model.named_parameters()
            if name.endswith(".q.weight")
        }

    mid = {"encoder.mid.1", "decoder.mid.1"}
    mid_and_level = mid | {f"encoder.conv_blocks.2.attn.{i}" for i in range(2)}
    mid_and_level |= {f"decoder.conv_blocks.0.attn.{i}" for i in range(3)}
    assert attention(tiny()) == mid_and_level
    assert attention(tiny(level_attention=False)) == mid
    assert attention(tiny(level_attention=False, mid_attention=False)) == set()


def test_published_sizes() -> None:
    """VQ-16 has 72M parameters (LlamaGen, table 2); both codecs have a factor of 16."""
    with torch.device("meta"):
        count = sum(p.numel() for p in VQModel(VQConfig()).parameters())
        VQModel(CHAMELEON)
    assert 70e6 < count < 74e6
    assert VQConfig().factor == CHAMELEON.factor == 16


def test_file_round_trip(tmp_path: Path) -> None:
    model = tiny()
    save_vq(model, tmp_path / "codec.safetensors")
    loaded = load_vq(tmp_path / "codec.safetensors")
    assert loaded.config == model.config
    for name, value in model.state_dict().items():
        assert loaded.state_dict()[name].dtype == torch.float32
        assert torch.allclose(loaded.state_dict()[name], value, atol=1e-3), name


def test_a_file_without_config_is_refused(tmp_path: Path) -> None:
    save_file({"a": torch.zeros(1)}, tmp_path / "other.safetensors")
    with pytest.raises(ValueError, match="no config"):
        load_vq(tmp_path / "other.safetensors")


def test_bad_sizes_are_refused_in_words() -> None:
    with pytest.raises(ValueError, match="groups = 4 does not divide the width 10"):
        VQConfig(channels=10, multipliers=(1,), groups=4)
    with pytest.raises(ValueError, match="codebook_size is 0"):
        VQConfig(codebook_size=0)
    with pytest.raises(ValueError, match="multiples of 4"):
        tiny().encode(torch.zeros(1, 3, 18, 16))
