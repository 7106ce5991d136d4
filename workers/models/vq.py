"""One VQ image codec: LlamaGen's VQ-16, Chameleon's VQGAN (taming-transformers' architecture), the
built-in model's.

Parameter names follow LlamaGen's official files (`encoder.conv_blocks.{0..}` from fine to coarse,
`decoder.conv_blocks.0` = coarsest), so a VQ-16 checkpoint loads by name; Chameleon's taming-style
names need key mappings. `VQConfig` has the differences between families.

Shape legend: B images, C channels, H x W pixels, h x w codes (H / h = `VQConfig.factor`), V codes,
d code dimensions.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from itertools import pairwise
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from workers.models.checkpoint_files import WeightsError
from workers.models.own_files import read_module, save
from workers.models.weights import KeyMapping, load_weights, skip_init

CODEC_LANDMARKS = ("quantize.embedding.weight", "encoder.conv_in.weight")  # see `load_tensors`


@dataclass(frozen=True)
class VQConfig:
    """Sizes of a VQ codec; the defaults are LlamaGen's VQ-16."""

    codebook_size: int = 16384  # V
    code_dim: int = 8  # d
    # Codes and the encoder's outputs are normalised to unit length before they are compared or
    # decoded.
    l2_normalised: bool = True
    channels: int = 128  # level l has width channels * multipliers[l]
    multipliers: tuple[int, ...] = (1, 1, 2, 2, 4)  # all levels but the last halve the sides
    encoder_blocks: int = 2  # residual blocks per level
    decoder_blocks: int = 3  # residual blocks per level
    z_channels: int = 256  # width of the encoder's output, before the 1x1 convolution to d
    groups: int = 32  # groups of every GroupNorm; they must divide every width
    # Self-attention after each block of the coarsest level (VQ-16: yes; Chameleon: no).
    level_attention: bool = True
    mid_attention: bool = True  # self-attention between the two middle blocks

    def __post_init__(self) -> None:
        # JSON has no tuples: a config read from a file's header arrives with a list.
        object.__setattr__(self, "multipliers", tuple(self.multipliers))
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, int) and not isinstance(value, bool) and value < 1:
                raise ValueError(f"VQConfig.{field.name} is {value}; it must be at least 1")
        if not self.multipliers:
            raise ValueError("VQConfig.multipliers is empty; give one per level, e.g. (1, 2)")
        for width in (self.channels, *self.widths):
            if width % self.groups:
                raise ValueError(
                    f"VQConfig.groups = {self.groups} does not divide the width {width}; choose a "
                    "divisor"
                )

    @property
    def widths(self) -> tuple[int, ...]:
        """Channels of each level, from fine to coarse."""
        return tuple(self.channels * m for m in self.multipliers)

    @property
    def factor(self) -> int:
        """Pixels per code along one side."""
        return int(2 ** (len(self.multipliers) - 1))


# Chameleon's and Anole's VQGAN (512 px -> 32x32 codes).
CHAMELEON = VQConfig(codebook_size=8192, code_dim=256, l2_normalised=False, level_attention=False)


class ResBlock(nn.Module):
    """norm -> swish -> conv, twice, plus a 1x1 shortcut where the width changes. [B, C, H, W] ->
    [B, out, H, W].
    """

    def __init__(self, width: int, out: int, groups: int) -> None:
        super().__init__()
        self.norm1 = _norm(width, groups)
        self.conv1 = nn.Conv2d(width, out, 3, padding=1)
        self.norm2 = _norm(out, groups)
        self.conv2 = nn.Conv2d(out, out, 3, padding=1)
        self.nin_shortcut = nn.Conv2d(width, out, 1) if width != out else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        h = self.conv2(F.silu(self.norm2(self.conv1(F.silu(self.norm1(x))))))
        return torch.add(self.nin_shortcut(x), h)


class AttnBlock(nn.Module):
    """Single-head self-attention over all positions, with 1x1 convolutions as projections. The
    shape [B, C, H, W] stays the same.
    """

    def __init__(self, width: int, groups: int) -> None:
        super().__init__()
        self.norm = _norm(width, groups)
        self.q, self.k, self.v, self.proj_out = (nn.Conv2d(width, width, 1) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm(x)
        # [B, HW, C]
        q, k, v = (layer(h).flatten(2).transpose(1, 2) for layer in (self.q, self.k, self.v))
        mixed = F.scaled_dot_product_attention(q, k, v)
        return torch.add(x, self.proj_out(mixed.transpose(1, 2).reshape(x.shape)))


class Resample(nn.Module):
    """Down: a 3x3 convolution with stride 2, padded only at the right and the bottom, as in taming.
    Up: doubling by nearest neighbour, then a 3x3 convolution.
    """

    def __init__(self, width: int, *, down: bool) -> None:
        super().__init__()
        self.down = down
        if down:
            self.conv = nn.Conv2d(width, width, 3, stride=2)
        else:
            self.conv = nn.Conv2d(width, width, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        if self.down:
            x = F.pad(x, (0, 1, 0, 1))
        else:
            x = F.interpolate(x, scale_factor=2.0, mode="nearest")
        y: Tensor = self.conv(x)
        return y


class Level(nn.Module):
    """One resolution: residual blocks (`res`), attention after each (`attn`, or none), then down,
    up or neither.
    """

    def __init__(
        self,
        width: int,
        out: int,
        blocks: int,
        config: VQConfig,
        *,
        attention: bool,
        resample: str,
    ) -> None:
        super().__init__()
        widths = [width, *[out] * blocks]
        self.res = nn.ModuleList(ResBlock(widths[i], out, config.groups) for i in range(blocks))
        self.attn = nn.ModuleList(
            AttnBlock(out, config.groups) for _ in range(blocks if attention else 0)
        )
        if resample:
            self.add_module(resample, Resample(out, down=resample == "downsample"))
        self._resample = resample

    def forward(self, x: Tensor) -> Tensor:
        for i, block in enumerate(self.res):
            x = block(x)
            if len(self.attn):
                x = self.attn[i](x)
        if not self._resample:
            return x
        resampled: Tensor = self.get_submodule(self._resample)(x)
        return resampled


def _norm(width: int, groups: int) -> nn.GroupNorm:
    return nn.GroupNorm(groups, width, eps=1e-6)


def _mid(width: int, config: VQConfig) -> nn.ModuleList:
    middle = AttnBlock(width, config.groups) if config.mid_attention else nn.Identity()
    return nn.ModuleList(
        [ResBlock(width, width, config.groups), middle, ResBlock(width, width, config.groups)]
    )


class CodecSide(nn.Module):
    """The encoder, images [B, 3, H, W] -> [B, z_channels, h, w]; or, with `down` False, the
    decoder, which has the same parts in the opposite order, from the coarsest level to the finest.
    """

    def __init__(self, config: VQConfig, *, down: bool) -> None:
        super().__init__()
        self.down = down
        last = len(config.widths) - 1
        if down:
            inputs, outputs = 3, config.z_channels
            widths = (config.channels, *config.widths)
            blocks = config.encoder_blocks
            resample = "downsample"
            coarsest = last
        else:
            inputs, outputs = config.z_channels, 3
            widths = (config.widths[-1], *reversed(config.widths))
            blocks = config.decoder_blocks
            resample = "upsample"
            coarsest = 0
        self.conv_in = nn.Conv2d(inputs, widths[0], 3, padding=1)
        if not down:
            self.mid = _mid(widths[0], config)
        self.conv_blocks = nn.ModuleList()
        for i, (width, out) in enumerate(pairwise(widths)):
            attention = config.level_attention and i == coarsest
            self.conv_blocks.append(
                Level(
                    width,
                    out,
                    blocks,
                    config,
                    attention=attention,
                    resample=resample if i < last else "",
                )
            )
        if down:
            self.mid = _mid(widths[-1], config)
        self.norm_out = _norm(widths[-1], config.groups)
        self.conv_out = nn.Conv2d(widths[-1], outputs, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        inner = [*self.mid, *self.conv_blocks]
        if self.down:
            inner = [*self.conv_blocks, *self.mid]
        for module in (self.conv_in, *inner):
            x = module(x)
        y: Tensor = self.conv_out(F.silu(self.norm_out(x)))
        return y


class Quantizer(nn.Module):
    """The codebook: `embedding.weight` [V, d], normalised to unit length at every use if
    `l2_normalised`.
    """

    def __init__(self, config: VQConfig) -> None:
        super().__init__()
        self.l2_normalised = config.l2_normalised
        self.embedding = nn.Embedding(config.codebook_size, config.code_dim)

    def normalise(self, z: Tensor) -> Tensor:
        """z [..., d], normalised to unit length if `l2_normalised`."""
        if self.l2_normalised:
            return F.normalize(z, dim=-1)
        return z

    @property
    def codebook(self) -> Tensor:
        """The codes as they are compared and decoded, [V, d]."""
        return self.normalise(self.embedding.weight)

    def nearest(self, z: Tensor) -> Tensor:
        """Index of the nearest code by Euclidean distance: [..., d] -> int64 [...]."""
        flat = self.normalise(z.float()).reshape(-1, z.shape[-1])
        codebook = self.codebook.float()
        # Argmin of |z - e|^2; |z|^2 is the same for all codes.
        scores = torch.addmm(-0.5 * codebook.square().sum(1), flat, codebook.T)
        return scores.argmax(1).reshape(z.shape[:-1])


class VQModel(nn.Module):
    """Encoder, quantizer and decoder; images are in [-1, 1]."""

    def __init__(self, config: VQConfig) -> None:
        super().__init__()
        self.config = config
        self.encoder = CodecSide(config, down=True)
        self.decoder = CodecSide(config, down=False)
        self.quantize = Quantizer(config)
        self.quant_conv = nn.Conv2d(config.z_channels, config.code_dim, 1)
        self.post_quant_conv = nn.Conv2d(config.code_dim, config.z_channels, 1)

    @property
    def factor(self) -> int:
        """Pixels per code along one side."""
        return self.config.factor

    @property
    def codebook(self) -> Tensor:
        """Codes as decoded (l2-normalised where the codec does), [V, d]."""
        return self.quantize.codebook

    def latents(self, images: Tensor) -> Tensor:
        """Images [B, 3, H, W] -> vectors before quantisation, as compared with the codes: [B, h, w,
        d].
        """
        factor = self.config.factor
        if (
            images.dim() != 4
            or images.shape[1] != 3
            or images.shape[2] % factor
            or images.shape[3] % factor
        ):
            shape = tuple(images.shape)
            raise ValueError(
                f"images have shape {shape}; needed: [B, 3, H, W] with H and W multiples of "
                f"{factor}"
            )
        # always fp32: small differences decide the nearest code
        return self.quantize.normalise(
            self.quant_conv(self.encoder(images)).permute(0, 2, 3, 1).float()
        )

    def decode_latents(self, z: Tensor) -> Tensor:
        """Code vectors [B, h, w, d] -> images [B, 3, H, W], not clamped."""
        images: Tensor = self.decoder(self.post_quant_conv(z.permute(0, 3, 1, 2)))
        return images

    def encode(self, images: Tensor) -> Tensor:
        """Images [B, 3, H, W] in [-1, 1] -> codes, int64 [B, h, w]."""
        return self.quantize.nearest(self.latents(images))

    def decode_ids(self, ids: Tensor) -> Tensor:
        """Codes [B, h, w] -> images [B, 3, H, W] in [-1, 1]."""
        return self.decode_latents(self.quantize.normalise(self.quantize.embedding(ids))).clamp(
            -1, 1
        )


def save_vq(model: VQModel, path: Path) -> None:
    """Write the weights as fp16 safetensors with the config in the header."""
    save(path, model, asdict(model.config))


def load_vq(path: Path) -> VQModel:
    """A codec written by `save_vq`, in fp32 and eval mode.

    Raises:
        WeightsError: the file is missing or damaged, or its header has no VQ config that fits the
            weights.
    """
    return read_module(path, "a VQ tokenizer", lambda config: VQModel(VQConfig(**config)))[0]


def load_codec(
    tensors: Mapping[str, Tensor],
    config: VQConfig,
    mappings: Sequence[KeyMapping],
    *,
    codes: int,
    geometry: VQConfig | None = None,
    where: str | Path,
) -> VQModel:
    """A codec in fp32, for a target.

    Args:
        tensors: tensors of the codec by name.
        config: sizes of the codec (see `infer_config`).
        mappings: names in the file and in the module.
        codes: number of codes that the target generates.
        geometry: config with the down-sampling and code width that the target needs; None: any.
        where: the file, for messages.

    Raises:
        WeightsError: tensors do not fit `config`, or the codec does not fit the target.
    """
    codec = skip_init(lambda: VQModel(config))
    load_weights(codec, tensors, mappings, where=where)
    needs = [(config.codebook_size, codes, "codes")]
    if geometry is not None:
        needs.append((config.code_dim, geometry.code_dim, "numbers per code"))
        needs.append((config.factor, geometry.factor, "pixels per code along a side"))
    for found, needed, unit in needs:
        if found != needed:
            raise WeightsError(
                f"{where}: this codec has {found} {unit}, the target needs {needed}; give `vq`, "
                "the file of the codec that the target was trained with"
            )
    return codec.eval()


def infer_config(
    tensors: Mapping[str, Tensor], defaults: VQConfig, down: str, up: str, block: str
) -> VQConfig:
    """A codec's sizes from the names and shapes of its tensors, or `defaults` if they are
    incomplete: loading will then report what is missing.

    Args:
        tensors: tensors of the codec by name.
        defaults: sizes that tensors do not show.
        down: prefix of the encoder's levels.
        up: prefix of the decoder's levels.
        block: name of a level's residual blocks.
    """

    def count(prefix: str) -> int:
        found = (re.match(rf"{re.escape(prefix)}\.(\d+)\.", name) for name in tensors)
        return len({match[1] for match in found if match})

    try:
        channels = tensors["encoder.conv_in.weight"].shape[0]
        blocks = count(f"{down}.0.{block}")
        widths = [
            tensors[f"{down}.{level}.{block}.0.conv1.weight"].shape[0]
            for level in range(count(down))
        ]
        codes, dim = tensors["quantize.embedding.weight"].shape
        return replace(
            defaults,
            codebook_size=codes,
            code_dim=dim,
            channels=channels,
            multipliers=tuple(width // channels for width in widths),
            encoder_blocks=blocks,
            decoder_blocks=count(f"{up}.0.{block}") or blocks + 1,
            z_channels=tensors["encoder.conv_out.weight"].shape[0],
        )
    except (KeyError, ValueError):
        return defaults
