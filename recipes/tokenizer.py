"""Training of a VQ codec: straight-through gradients, EMA codebook (van den Oord et al. 2017,
appendix A.1), restarts.

An image source is a function from example indices to a batch of images.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from workers.data.image_folder import load_images
from workers.models.vq import VQConfig, VQModel, save_vq
from workers.scenes.captions import caption
from workers.scenes.images import IMAGE_SIZE, render, sample_attributes
from workers.training.examples import Examples
from workers.training.loop import TrainConfig, train

#: Example indices [B] -> images, float [B, 3, H, W] in [0, 1].
ImageSource = Callable[[Tensor], Tensor]

#: The built-in model's codec: 48x48 pixels -> 12x12 codes.
SCENES_VQ = VQConfig(
    codebook_size=1024,
    code_dim=8,
    channels=40,
    multipliers=(1, 1, 2),
    encoder_blocks=1,
    decoder_blocks=1,
    z_channels=80,
    groups=8,
    level_attention=False,
    mid_attention=False,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenizerLoss:
    """Weights of the loss, and how the codebook is updated from the encoder's outputs.

    Attributes:
        l2, gradient, commitment: weights of these terms, where the L1 loss has weight 1. `gradient`
            is the L1 of horizontal and vertical finite differences, which keeps edges crisp.
        codebook_decay: of the EMA of each code's count and sum.
        restart_below: a code used less than this fraction of the uniform rate is set to a random
            vector of the batch.
        restart_until: fraction of the steps after which no code is restarted.
    """

    l2: float = 2.0
    gradient: float = 0.5
    commitment: float = 0.25
    codebook_decay: float = 0.97
    restart_below: float = 0.1
    restart_until: float = 0.85


class TokenizerTraining(nn.Module):
    """A codec, and for each code the EMA of the count and the sum of the vectors nearest to it. The
    code is their mean, normalised to unit length if the codec does so.
    """

    count: Tensor
    sum: Tensor

    def __init__(self, vq: VQConfig, loss: TokenizerLoss, total_steps: int) -> None:
        super().__init__()
        self.codec, self.loss, self.total_steps = VQModel(vq), loss, total_steps
        self.codec.quantize.embedding.weight.requires_grad_(False)
        self.register_buffer("count", torch.zeros(vq.codebook_size))
        self.register_buffer("sum", torch.zeros(vq.codebook_size, vq.code_dim))
        self.steps = 0  # on the host: reading a buffer would wait for the device

    def get_extra_state(self) -> Tensor:
        return torch.tensor(self.steps)

    def set_extra_state(self, state: Tensor) -> None:
        self.steps = int(state)

    def forward(self, images: Tensor, generator: torch.Generator) -> Tensor:
        """The loss of images [B, 3, H, W] in [-1, 1]: L1 + l2 * L2 + gradient * L1 of finite
        differences + commitment.

        It also updates the codebook from the images.
        """
        codec, weights = self.codec, self.loss
        z = codec.latents(images)
        with torch.no_grad(), torch.autocast(images.device.type, enabled=False):
            flat = z.detach().reshape(-1, z.shape[-1])
            if self.steps == 0:  # every code is initialised to a random vector of the first batch
                self._move(torch.arange(len(self.count), device=z.device), flat, 1.0, generator)
                self._write_codes()
            ids = codec.quantize.nearest(flat)
            codes = codec.codebook[ids].reshape(z.shape)
            self._follow(flat, ids, generator)
        error = codec.decode_latents(z + (codes - z).detach()).float() - images
        across, down = error.diff(dim=3).abs().mean(), error.diff(dim=2).abs().mean()
        pixels = (
            error.abs().mean()
            + weights.l2 * error.square().mean()
            + weights.gradient * (across + down)
        )
        return pixels + weights.commitment * (z - codes).square().mean()

    def _follow(self, z: Tensor, ids: Tensor, generator: torch.Generator) -> None:
        """Updates the codebook from vectors z [n, d] and their codes ids [n]; restarts rarely used
        codes.
        """
        weight = 1 - self.loss.codebook_decay
        self.count.lerp_(torch.bincount(ids, minlength=len(self.count)).to(self.count), weight)
        self.sum.lerp_(torch.zeros_like(self.sum).index_add_(0, ids, z), weight)
        if self.steps < self.loss.restart_until * self.total_steps:
            share = len(ids) / len(self.count)
            self._move(
                (self.count < self.loss.restart_below * share).nonzero()[:, 0], z, share, generator
            )
        self._write_codes()
        self.steps += 1

    def _move(self, codes: Tensor, z: Tensor, share: float, generator: torch.Generator) -> None:
        chosen = torch.randint(len(z), (len(codes),), generator=generator).to(z.device)
        self.count[codes] = share
        self.sum[codes] = z[chosen] * share

    def _write_codes(self) -> None:
        mean = self.sum / self.count.clamp(min=1e-6)[:, None]
        self.codec.quantize.embedding.weight.copy_(self.codec.quantize.normalise(mean))


def train_tokenizer(
    images: ImageSource,
    size: int,
    config: TrainConfig,
    out: Path,
    *,
    vq: VQConfig = SCENES_VQ,
    device: str = "cpu",
    resume: bool = False,
    log: Callable[[str], None] = print,
) -> Path:
    """Trains a codec on `size` images; returns its file, out/tokenizer.safetensors (fp16, config in
    the header).
    """
    torch.manual_seed(config.seed)
    model = TokenizerTraining(vq, TokenizerLoss(), config.steps).to(device)
    path = out / "tokenizer.safetensors"  # written only at the end: other components build on it

    def loss(indices: Tensor, generator: torch.Generator) -> Tensor:
        value: Tensor = model(images(indices).to(device) * 2 - 1, generator)
        return value

    average, _ = train(model, loss, size, config, out, name="tokenizer", resume=resume, log=log)
    save_vq(average.codec, path)
    return path


def scene_images(seed: int, *, device: str = "cpu") -> ImageSource:
    """The scenes of a seed, rendered on `device`."""

    def render_scenes(indices: Tensor) -> Tensor:
        return render(sample_attributes(seed, indices.to(device)), seed, indices.to(device))

    return render_scenes


@torch.no_grad()
def tokenize_scenes(codec: VQModel, seed: int, scenes: range, *, chunk: int = 64) -> Examples:
    """Captions and tokens (int16) of procedural scenes; row i is scene `scenes[i]` of `seed`."""
    assert codec.config.codebook_size <= 1 << 15, "tokens are stored as int16"
    tokens: list[Tensor] = []
    captions: list[str] = []
    for indices in torch.split(
        torch.tensor(scenes, device=codec.quantize.embedding.weight.device), chunk
    ):
        rows = sample_attributes(seed, indices)
        tokens.append(
            codec.encode(render(rows, seed, indices) * 2 - 1).flatten(1).to("cpu", torch.int16)
        )
        captions += [caption(row) for row in rows.tolist()]
    return Examples(captions, torch.cat(tokens))


@torch.no_grad()
def tokenize_images(codec: VQModel, files: Sequence[Path], *, chunk: int = 64) -> Tensor:
    """Tokens [n, N] of image files at the size of procedural scenes.

    Raises:
        ValueError: see `load_images`.
    """
    device = codec.quantize.embedding.weight.device
    parts = [
        codec.encode(
            load_images(files[start : start + chunk], IMAGE_SIZE).to(device).float() / 127.5 - 1
        )
        for start in range(0, len(files), chunk)
    ]
    return torch.cat(parts).flatten(1).cpu()
