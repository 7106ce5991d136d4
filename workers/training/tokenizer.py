"""Training of a VQ codec: straight-through gradients, EMA codebook (van den Oord et al. 2017, appendix A.1), restarts.

Works on any source of images: a function from the step to a batch. The step alone decides the batch and every random
draw, so a run that was interrupted and resumed ends where an undisturbed one does.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from workers.models.vq import VQConfig, VQModel, save_vq
from workers.scenes.captions import caption
from workers.scenes.images import render, sample_attributes
from workers.training.examples import Examples

#: Step -> images, float [B, 3, H, W] in [0, 1].
ImageSource = Callable[[int], Tensor]

#: The built-in model's codec: 48x48 pixels -> 12x12 codes.
SCENES_VQ = VQConfig(
    codebook_size=1024, code_dim=8, channels=40, multipliers=(1, 1, 2), encoder_blocks=1, decoder_blocks=1,
    z_channels=80, groups=8, level_attention=False, mid_attention=False,
)  # fmt: skip


@dataclass(frozen=True)
class TokenizerConfig:
    """Everything that decides the result of `train_tokenizer`, with the images and the seed.

    Attributes:
        l2, gradient, commitment: weights beside the L1 loss, which has weight 1; `gradient` is the L1 of horizontal and
            vertical finite differences, which keeps edges crisp.
        codebook_decay: of the EMA of each code's count and sum.
        restart_below: a code used less than this share of the uniform rate is moved onto a random vector of the batch.
        restart_until: share of the steps after which codes are left in place.
        bf16: run the convolutions in bfloat16 (parameters, codes and losses stay fp32).
    """

    vq: VQConfig = field(default_factory=lambda: SCENES_VQ)
    steps: int = 1450
    learning_rate: float = 2e-3
    weight_decay: float = 1e-4
    warmup: int = 60
    l2: float = 2.0
    gradient: float = 0.5
    commitment: float = 0.25
    codebook_decay: float = 0.97
    restart_below: float = 0.1
    restart_until: float = 0.85
    bf16: bool = True
    log_every: int = 50
    checkpoint_every: int = 250


@dataclass(frozen=True)
class TokenizerReport:
    """How a codec does on held-out images. PSNR in dB over the [0, 1] range; perplexity = exp of the codes' entropy."""

    psnr: float
    codes_used: int
    perplexity: float


class EmaCodebook:
    """Running count and sum of the vectors that each code attracts; the code is their mean (on the sphere, with l2)."""

    def __init__(self, model: VQModel, config: TokenizerConfig, device: torch.device) -> None:
        self._quantize, self._config = model.quantize, config
        vq = config.vq
        self.state = {
            "count": torch.zeros(vq.codebook_size, device=device),
            "sum": torch.zeros(vq.codebook_size, vq.code_dim, device=device),
        }

    def start(self, z: Tensor, generator: torch.Generator) -> None:
        """Places every code on a random vector of the first batch; z [n, d]."""
        self._move(torch.arange(len(self.state["count"]), device=z.device), z, share=1.0, generator=generator)
        self._write()

    def update(self, z: Tensor, ids: Tensor, *, restart: bool, generator: torch.Generator) -> None:
        """Takes in one batch of vectors z [n, d] and their codes ids [n]."""
        count, total = self.state["count"], self.state["sum"]
        weight = 1 - self._config.codebook_decay
        count.lerp_(torch.bincount(ids, minlength=len(count)).to(count), weight)
        total.lerp_(torch.zeros_like(total).index_add_(0, ids, z), weight)
        if restart:
            share = len(ids) / len(count)
            self._move((count < self._config.restart_below * share).nonzero()[:, 0], z, share, generator)
        self._write()

    def _move(self, codes: Tensor, z: Tensor, share: float, generator: torch.Generator) -> None:
        chosen = torch.randint(len(z), (len(codes),), generator=generator).to(z.device)
        self.state["count"][codes] = share
        self.state["sum"][codes] = z[chosen] * share

    def _write(self) -> None:
        mean = self.state["sum"] / self.state["count"].clamp(min=1e-6)[:, None]
        self._quantize.embedding.weight.copy_(self._quantize.normalise(mean))


def tokenizer_loss(images: Tensor, output: Tensor, z: Tensor, codes: Tensor, config: TokenizerConfig) -> Tensor:
    """L1 + l2 * L2 + gradient * L1 of finite differences + commitment.

    Images and output [B, 3, H, W] in [-1, 1]; z and codes [B, h, w, d].
    """
    error = output.float() - images
    across, down = error.diff(dim=3).abs().mean(), error.diff(dim=2).abs().mean()
    pixels = error.abs().mean() + config.l2 * error.square().mean() + config.gradient * (across + down)
    return pixels + config.commitment * (z - codes).square().mean()


def train_tokenizer(
    config: TokenizerConfig,
    images: ImageSource,
    out_dir: Path,
    seed: int,
    *,
    device: str = "cpu",
    held_out: Tensor | None = None,
    log: Callable[[str], None] = print,
) -> Path:
    """Trains a codec and writes `out_dir/tokenizer.safetensors` (fp16, config in the header); returns its path.

    A run that stopped goes on from `out_dir/tokenizer.checkpoint.pt`. `held_out` [n, 3, H, W] in [0, 1] is measured
    with every progress line.

    Raises:
        ValueError: the checkpoint in `out_dir` is of another config or seed.
    """
    out_dir.mkdir(parents=True, exist_ok=True)
    place = torch.device(device)
    torch.manual_seed(seed)
    model = VQModel(config.vq).to(place)
    model.quantize.embedding.weight.requires_grad_(False)
    codebook = EmaCodebook(model, config, place)
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=config.learning_rate, betas=(0.9, 0.98), weight_decay=config.weight_decay)
    checkpoint = _Checkpoint(out_dir / "tokenizer.checkpoint.pt", config, seed, model, codebook, optimizer)
    first, started = checkpoint.load(), time.perf_counter()
    for step in range(first, config.steps):
        batch = images(step).to(place) * 2 - 1
        generator = torch.Generator().manual_seed((seed << 32) + step)
        for group in optimizer.param_groups:
            group["lr"] = _learning_rate(config, step)
        loss = _training_step(model, codebook, optimizer, batch, step, config, generator)
        if (step + 1) % config.log_every == 0 or step + 1 == config.steps:
            log(_progress(model, config, step + 1, first, float(loss), started, held_out))
        if (step + 1) % config.checkpoint_every == 0:
            checkpoint.save(step + 1)
    path = out_dir / "tokenizer.safetensors"
    save_vq(model, path)
    return path


def _training_step(
    model: VQModel,
    codebook: EmaCodebook,
    optimizer: torch.optim.Optimizer,
    batch: Tensor,
    step: int,
    config: TokenizerConfig,
    generator: torch.Generator,
) -> Tensor:
    with torch.autocast(batch.device.type, torch.bfloat16, enabled=config.bf16):
        z = model.latents(batch)
        flat = z.detach().reshape(-1, z.shape[-1])
        with torch.no_grad(), torch.autocast(batch.device.type, enabled=False):
            if step == 0:
                codebook.start(flat, generator)
            ids = model.quantize.nearest(flat)
            codes = model.codebook[ids].reshape(z.shape)
        output = model.decode_latents(z + (codes - z).detach())
    loss = tokenizer_loss(batch, output, z, codes, config)
    optimizer.zero_grad(set_to_none=True)
    loss.backward()  # type: ignore[no-untyped-call]
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    with torch.no_grad():
        codebook.update(flat, ids, restart=step < config.restart_until * config.steps, generator=generator)
    return loss.detach()


def _learning_rate(config: TokenizerConfig, step: int) -> float:
    """Linear warm-up, then a cosine down to 2%."""
    if step < config.warmup:
        return config.learning_rate * (step + 1) / config.warmup
    done = (step - config.warmup) / max(config.steps - config.warmup, 1)
    return config.learning_rate * (0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * done)))


def _progress(
    model: VQModel, config: TokenizerConfig, done: int, first: int, loss: float, started: float, held_out: Tensor | None
) -> str:
    per_step = (time.perf_counter() - started) / (done - first)
    line = f"tokenizer step {done}/{config.steps}  loss {loss:.4f}"
    if held_out is not None:
        result = evaluate_tokenizer(model, held_out, bf16=config.bf16)
        line += f"  held out: PSNR {result.psnr:.2f} dB, {result.codes_used} codes, perplexity {result.perplexity:.0f}"
    return f"{line}  {per_step * 1000:.0f} ms/step, {per_step * (config.steps - done):.0f} s left"


class _Checkpoint:
    """The whole state of a run in one file, replaced atomically."""

    def __init__(
        self,
        path: Path,
        config: TokenizerConfig,
        seed: int,
        model: VQModel,
        codebook: EmaCodebook,
        optimizer: torch.optim.Optimizer,
    ) -> None:
        self._path, self._model, self._codebook, self._optimizer = path, model, codebook, optimizer
        self._identity = json.dumps({"seed": seed, **asdict(config)}, sort_keys=True)

    def load(self) -> int:
        """Restores the run; returns the next step, 0 without a checkpoint."""
        if not self._path.exists():
            return 0
        state: dict[str, Any] = torch.load(self._path, map_location="cpu", weights_only=True)
        if state["identity"] != self._identity:
            raise ValueError(f"{self._path} is of another config or seed; use another folder, or delete it")
        self._model.load_state_dict(state["model"])
        self._optimizer.load_state_dict(state["optimizer"])
        for name, value in state["codebook"].items():
            self._codebook.state[name].copy_(value)
        return int(state["step"])

    def save(self, step: int) -> None:
        state = {
            "identity": self._identity,
            "step": step,
            "model": self._model.state_dict(),
            "optimizer": self._optimizer.state_dict(),
            "codebook": self._codebook.state,
        }
        partial = self._path.with_suffix(".partial")
        torch.save(state, partial)
        partial.replace(self._path)


@torch.no_grad()
def evaluate_tokenizer(
    model: VQModel, images: Tensor, *, clean: Tensor | None = None, bf16: bool = False, chunk: int = 64
) -> TokenizerReport:
    """Reconstructs images [n, 3, H, W] in [0, 1]; PSNR against `clean` where given, else against the images."""
    error, counts = 0.0, torch.zeros(model.config.codebook_size)
    truth = images if clean is None else clean
    device = model.quantize.embedding.weight.device
    for start in range(0, len(images), chunk):
        with torch.autocast(device.type, torch.bfloat16, enabled=bf16):
            ids = model.encode(images[start : start + chunk].to(device) * 2 - 1)
            output = (model.decode_ids(ids).float().cpu() + 1) / 2
        error += float((output - truth[start : start + chunk].cpu()).square().sum())
        counts += torch.bincount(ids.flatten().cpu(), minlength=len(counts))
    share = counts / counts.sum()
    entropy = float(-torch.xlogy(share, share).sum())
    return TokenizerReport(-10 * math.log10(error / truth.numel()), int((counts > 0).sum()), math.exp(entropy))


def scene_images(seed: int, batch_size: int, scenes: int, *, device: str = "cpu") -> ImageSource:
    """Batches of scenes, drawn on `device`: step s shows scenes s*B ... s*B + B-1 of `seed`, modulo `scenes`."""

    def batch(step: int) -> Tensor:
        indices = (torch.arange(batch_size, device=device) + step * batch_size) % scenes
        return render(sample_attributes(seed, indices), seed, indices)

    return batch


@torch.no_grad()
def tokenize_scenes(codec: VQModel, seed: int, scenes: range, *, chunk: int = 64) -> Examples:
    """Captions and tokens (int16) of procedural scenes; row i is scene `scenes[i]` of `seed`."""
    assert codec.config.codebook_size <= 1 << 15, "tokens are stored as int16"
    device = codec.quantize.embedding.weight.device
    tokens: list[Tensor] = []
    captions: list[str] = []
    for start in range(0, len(scenes), chunk):
        part = scenes[start : start + chunk]
        indices = torch.arange(part.start, part.stop, part.step, device=device)
        rows = sample_attributes(seed, indices)
        images = render(rows, seed, indices) * 2 - 1
        tokens.append(codec.encode(images).flatten(1).to("cpu", torch.int16))
        captions += [caption(row) for row in rows.tolist()]
    return Examples(captions, torch.cat(tokens))
