"""LlamaGen's VQ-16 file layout at a fraction of its width: names, encode and decode are written out
layer by layer.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from workers.models.checkpoint_files import WeightsError
from workers.models.families.llamagen import load_vq16
from workers.models.own_files import save
from workers.models.vq import VQConfig

CH, MULT, ENCODER_BLOCKS, DECODER_BLOCKS, Z, CODES, D, GROUPS = (
    32,
    (1, 1, 2, 2, 4),
    2,
    3,
    48,
    64,
    8,
    32,
)
CONFIG = VQConfig(codebook_size=CODES, code_dim=D, channels=CH, z_channels=Z)
State = dict[str, Tensor]


def conv(state: State, name: str, out: int, width: int, side: int) -> None:
    state[f"{name}.weight"] = torch.randn(out, width, side, side) / (width * side * side) ** 0.5
    state[f"{name}.bias"] = torch.randn(out) * 0.1


def norm(state: State, name: str, width: int) -> None:
    state[f"{name}.weight"] = 1 + 0.2 * torch.randn(width)
    state[f"{name}.bias"] = 0.1 * torch.randn(width)


def res(state: State, name: str, width: int, out: int) -> None:
    norm(state, f"{name}.norm1", width)
    conv(state, f"{name}.conv1", out, width, 3)
    norm(state, f"{name}.norm2", out)
    conv(state, f"{name}.conv2", out, out, 3)
    if width != out:
        conv(state, f"{name}.nin_shortcut", out, width, 1)


def attn(state: State, name: str, width: int) -> None:
    norm(state, f"{name}.norm", width)
    for part in ("q", "k", "v", "proj_out"):
        conv(state, f"{name}.{part}", width, width, 1)


def official_state() -> State:
    """A state dict with the names of the official file: every level, shortcut, attention and buffer
    spelled out.
    """
    torch.manual_seed(0)
    state: State = {}
    last = len(MULT) - 1
    conv(state, "encoder.conv_in", CH, 3, 3)
    width = CH
    for level, factor in enumerate(MULT):
        for block in range(ENCODER_BLOCKS):
            res(state, f"encoder.conv_blocks.{level}.res.{block}", width, CH * factor)
            width = CH * factor
            if level == last:
                attn(state, f"encoder.conv_blocks.{level}.attn.{block}", width)
        if level != last:
            conv(state, f"encoder.conv_blocks.{level}.downsample.conv", width, width, 3)
    conv(state, "decoder.conv_in", width, Z, 3)
    for side in ("encoder", "decoder"):
        res(state, f"{side}.mid.0", width, width)
        attn(state, f"{side}.mid.1", width)
        res(state, f"{side}.mid.2", width, width)
    norm(state, "encoder.norm_out", width)
    conv(state, "encoder.conv_out", Z, width, 3)
    for level, factor in enumerate(reversed(MULT)):
        for block in range(DECODER_BLOCKS):
            res(state, f"decoder.conv_blocks.{level}.res.{block}", width, CH * factor)
            width = CH * factor
            if level == 0:
                attn(state, f"decoder.conv_blocks.0.attn.{block}", width)
        if level != last:
            conv(state, f"decoder.conv_blocks.{level}.upsample.conv", width, width, 3)
    norm(state, "decoder.norm_out", width)
    conv(state, "decoder.conv_out", 3, width, 3)
    # far from unit length, so that normalising shows
    state["quantize.embedding.weight"] = 3 * torch.randn(CODES, D)
    state["quantize.codebook_used"] = torch.zeros(65536)
    conv(state, "quant_conv", D, Z, 1)
    conv(state, "post_quant_conv", Z, D, 1)
    return state


@pytest.fixture(scope="module")
def state() -> State:
    return official_state()


@pytest.fixture
def file(state: State, tmp_path: Path) -> Path:
    path = tmp_path / "vq_ds16_t2i.pt"
    torch.save({"model": state, "ema": {"decoder.conv_out.bias": torch.zeros(3)}, "steps": 3}, path)
    return path


class Plain:
    """The codec as plain functions of the state dict."""

    def __init__(self, state: State) -> None:
        self.state = state

    def conv(self, x: Tensor, name: str, *, pad: int = 0, stride: int = 1) -> Tensor:
        return F.conv2d(
            x, self.state[f"{name}.weight"], self.state[f"{name}.bias"], stride=stride, padding=pad
        )

    def norm(self, x: Tensor, name: str) -> Tensor:
        grouped = x.unflatten(1, (GROUPS, -1)).flatten(2)  # type: ignore[no-untyped-call]
        mean, var = grouped.mean(2, keepdim=True), grouped.var(2, unbiased=False, keepdim=True)
        flat = ((grouped - mean) / (var + 1e-6).sqrt()).view(x.shape)
        out: Tensor = (
            flat * self.state[f"{name}.weight"][:, None, None]
            + self.state[f"{name}.bias"][:, None, None]
        )
        return out

    def swish(self, x: Tensor) -> Tensor:
        return x * torch.sigmoid(x)

    def res(self, x: Tensor, name: str) -> Tensor:
        h = self.conv(self.swish(self.norm(x, f"{name}.norm1")), f"{name}.conv1", pad=1)
        h = self.conv(self.swish(self.norm(h, f"{name}.norm2")), f"{name}.conv2", pad=1)
        return h + (
            self.conv(x, f"{name}.nin_shortcut")
            if f"{name}.nin_shortcut.weight" in self.state
            else x
        )

    def attn(self, x: Tensor, name: str) -> Tensor:
        h = self.norm(x, f"{name}.norm")
        q, k, v = (self.conv(h, f"{name}.{part}").flatten(2) for part in "qkv")  # [B, C, HW]
        weights = torch.softmax(torch.einsum("bci,bcj->bij", q, k) / x.shape[1] ** 0.5, dim=2)
        return x + self.conv(
            torch.einsum("bij,bcj->bci", weights, v).view(x.shape), f"{name}.proj_out"
        )

    def mid(self, x: Tensor, side: str) -> Tensor:
        return self.res(self.attn(self.res(x, f"{side}.mid.0"), f"{side}.mid.1"), f"{side}.mid.2")

    def unit(self, x: Tensor) -> Tensor:
        out: Tensor = x / x.square().sum(-1, keepdim=True).sqrt()
        return out

    def decode(self, ids: Tensor) -> Tensor:
        z = self.unit(self.state["quantize.embedding.weight"])[ids].permute(0, 3, 1, 2)
        x = self.mid(
            self.conv(self.conv(z, "post_quant_conv"), "decoder.conv_in", pad=1), "decoder"
        )
        for level in range(len(MULT)):
            for block in range(DECODER_BLOCKS):
                x = self.res(x, f"decoder.conv_blocks.{level}.res.{block}")
                if level == 0:
                    x = self.attn(x, f"decoder.conv_blocks.0.attn.{block}")
            if level != len(MULT) - 1:
                doubled = x.repeat_interleave(2, dim=2).repeat_interleave(2, dim=3)
                x = self.conv(doubled, f"decoder.conv_blocks.{level}.upsample.conv", pad=1)
        return self.conv(self.swish(self.norm(x, "decoder.norm_out")), "decoder.conv_out", pad=1)

    def latents(self, images: Tensor) -> Tensor:
        x = self.conv(images, "encoder.conv_in", pad=1)
        for level in range(len(MULT)):
            for block in range(ENCODER_BLOCKS):
                x = self.res(x, f"encoder.conv_blocks.{level}.res.{block}")
                if level == len(MULT) - 1:
                    x = self.attn(x, f"encoder.conv_blocks.{level}.attn.{block}")
            if level != len(MULT) - 1:
                padded = torch.zeros(*x.shape[:2], x.shape[2] + 1, x.shape[3] + 1)
                padded[:, :, :-1, :-1] = x
                x = self.conv(padded, f"encoder.conv_blocks.{level}.downsample.conv", stride=2)
        x = self.conv(
            self.swish(self.norm(self.mid(x, "encoder"), "encoder.norm_out")),
            "encoder.conv_out",
            pad=1,
        )
        return self.unit(self.conv(x, "quant_conv").permute(0, 2, 3, 1))


def test_every_tensor_of_the_official_layout_is_used(file: Path, state: State) -> None:
    codec = load_vq16(file, CODES)
    loaded = codec.state_dict()
    assert loaded.keys() == state.keys() - {"quantize.codebook_used"}
    for name, value in loaded.items():
        assert torch.equal(value, state[name]), name
    torch.testing.assert_close(codec.codebook.norm(dim=1), torch.ones(CODES))


def test_decode_is_the_plain_functions(file: Path, state: State) -> None:
    ids = torch.randint(CODES, (2, 3, 4), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        codec = load_vq16(file, CODES)
        expected = Plain(state).decode(ids)
        images = codec.decode_latents(codec.codebook[ids])
    assert images.shape == (2, 3, 48, 64)
    assert expected.std() > 0.1
    torch.testing.assert_close(images, expected, atol=2e-4, rtol=1e-4)
    torch.testing.assert_close(codec.decode_ids(ids), expected.clamp(-1, 1), atol=2e-4, rtol=1e-4)


def test_encode_is_the_plain_functions(file: Path, state: State) -> None:
    images = torch.rand(2, 3, 32, 48, generator=torch.Generator().manual_seed(2)) * 2 - 1
    with torch.no_grad():
        latents = Plain(state).latents(images)
        codes = Plain(state).unit(state["quantize.embedding.weight"])
        ids = (latents @ codes.T).argmax(-1)  # on the sphere: the nearest is the best aligned
        codec = load_vq16(file, CODES)
        torch.testing.assert_close(codec.latents(images), latents, atol=1e-4, rtol=1e-4)
        assert torch.equal(codec.encode(images), ids)


def test_faults_are_refused(file: Path, state: State, tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    short = {name: value for name, value in state.items() if name != "decoder.mid.1.q.weight"}
    save(path, short, {})
    with pytest.raises(WeightsError, match=r"missing weights \(1\): decoder\.mid\.1\.q\.weight"):
        load_vq16(path, CODES)
    # only the documented buffer may be left over
    save(path, {**state, "quantize.ema_count": torch.ones(CODES)}, {})
    with pytest.raises(
        WeightsError, match=r"tensors unknown to this model \(1\): quantize\.ema_count"
    ):
        load_vq16(path, CODES)
    save(path, {"tok_embeddings.weight": torch.ones(2, 2)}, {})
    with pytest.raises(WeightsError, match="the file is an official LlamaGen transformer"):
        load_vq16(path, CODES)


def test_a_codec_of_another_size_than_the_target_needs_is_refused(file: Path) -> None:
    with pytest.raises(
        WeightsError,
        match=rf"{file.name}: this codec has {CODES} codes, the target needs 16384; give `vq`",
    ):
        load_vq16(file, 16384)
