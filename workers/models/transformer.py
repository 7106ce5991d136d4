"""The decoder-only transformer: every target, the independent drafter and the EAGLE layer are
configs of it.

Shape legend: R rows (conditional and unconditional streams), S query positions, T cache columns, D
width, H heads, K key-value heads, C channels of a head.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import ClassVar, Literal, Self, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from workers.data.grid import Grid
from workers.models.attention import attend
from workers.models.cache import CacheView, KVCache
from workers.models.linear import PackedLinear, is_eager_on_cpu

# Positions of drafts past the image's end, which are never accepted; later drafts use the last one.
SPARE_POSITIONS = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class TransformerConfig:
    """Sizes, and the options in which the supported families differ.

    Rotation acts on adjacent channel pairs; checkpoints in the half-split convention are permuted
    when they are loaded.
    """

    dim: int
    n_layers: int
    n_heads: int
    ffn_dim: int
    vocab_size: int = 0  # 0: no token embedding and no head (they are the target's)
    n_kv_heads: int | None = None
    head_dim: int | None = None
    norm_eps: float = 1e-5
    # "grid" rotates the first half of a head's channels by the row and the second half by the
    # column of an image cell (LlamaGen); "line" rotates all of them by the position (LLaMA,
    # Chameleon).
    rope: Literal["grid", "line"] = "grid"
    rope_base: float = 10000.0
    # Rotation of prompt positions with "grid". "zero" (LlamaGen) multiplies their keys by zero, so
    # an image token gives all of them the same score; "identity" does not rotate them.
    prompt_rope: Literal["zero", "identity"] = "zero"
    prompt_len: int = 1
    rows: int = 16
    cols: int = 16
    # Rows and columns of the preview whose tokens precede those of the image's grid (GLM-Image).
    preview: tuple[int, ...] = ()
    qk_norm: bool = False
    # A fixed token with its own position follows every row of the image (Lumina).
    row_ends: bool = False
    input_norm: bool = True  # off in an EAGLE layer
    final_norm: bool = True  # off in an EAGLE layer

    def __post_init__(self) -> None:
        if self.dim % self.n_heads and self.head_dim is None:
            raise ValueError(
                f"dim {self.dim} is not divisible by n_heads {self.n_heads}: give head_dim"
            )
        unit = 4 if self.rope == "grid" else 2
        if self.channels % unit:
            raise ValueError(
                f"head_dim {self.channels} must be divisible by {unit} for rope {self.rope!r}"
            )
        if self.n_heads % self.kv_heads:
            raise ValueError(
                f"n_heads {self.n_heads} is not a multiple of n_kv_heads {self.kv_heads}"
            )
        if self.row_ends and self.rope != "line":
            raise ValueError(
                f"row_ends need rope 'line', got {self.rope!r}: a grid has no cell for them"
            )
        if self.preview and (self.row_ends or self.rope != "line"):
            raise ValueError("a preview needs rope 'line' and no row_ends: both know one grid")
        object.__setattr__(self, "preview", tuple(self.preview))  # files have a list

    @property
    def channels(self) -> int:
        return self.head_dim or self.dim // self.n_heads

    @property
    def kv_heads(self) -> int:
        return self.n_kv_heads or self.n_heads

    @property
    def grid(self) -> Grid:
        return Grid(self.rows, self.cols, self.preview)

    @property
    def image_len(self) -> int:
        return self.grid.tokens

    @property
    def positions(self) -> int:
        """Length of the rotation table without row ends, which follow it: prompt, image, and drafts
        past the end.
        """
        return self.prompt_len + self.image_len + SPARE_POSITIONS


def rotation_table(config: TransformerConfig) -> Tensor:
    """Complex factors [positions, C / 2] that rotate adjacent channel pairs at every position
    (fp32).
    """
    half = config.channels // 2
    if config.rope == "line":
        frequencies = config.rope_base ** -(torch.arange(half, dtype=torch.float64) / half)
        angles = torch.outer(line_places(config).double(), frequencies)
        return torch.polar(torch.ones_like(angles), angles).to(torch.complex64)
    frequencies = config.rope_base ** -(torch.arange(0, half, 2, dtype=torch.float64) / half)
    cells = torch.arange(config.image_len + SPARE_POSITIONS)
    row, col = cells // config.cols, cells % config.cols
    angles = torch.cat(
        [torch.outer(row.double(), frequencies), torch.outer(col.double(), frequencies)], dim=1
    )
    image = torch.polar(torch.ones_like(angles), angles).to(torch.complex64)
    prompt = torch.full(
        (config.prompt_len, half),
        0.0 if config.prompt_rope == "zero" else 1.0,
        dtype=torch.complex64,
    )
    return torch.cat([prompt, image])


def line_places(config: TransformerConfig) -> Tensor:
    """The index in the token sequence of each position that a pass may use (int64); row ends come
    last.
    """
    places = torch.arange(config.positions)
    if not config.row_ends:
        return places
    cells = (places - config.prompt_len).clamp(min=0)
    ends = torch.arange(1, config.rows + 1) * (config.cols + 1) - 1
    return torch.cat([places + cells // config.cols, config.prompt_len + ends])


def rotate(x: Tensor, factors: Tensor) -> Tensor:
    """Rotate adjacent channel pairs of x [R, S, heads, C] by complex factors [R, S, C / 2];
    computed in fp32.
    """
    pairs = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
    return torch.view_as_real(pairs * factors.unsqueeze(2)).flatten(3).to(x.dtype)


class Attention(nn.Module):
    """Multi-head attention with rotated queries and keys; query heads may share key-value heads."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.heads = config.n_heads
        self.kv_heads = config.kv_heads
        self.channels = config.channels
        self.wqkv = PackedLinear(
            config.dim, (self.heads + 2 * self.kv_heads) * self.channels, bias=False
        )
        self.wo = PackedLinear(self.heads * self.channels, config.dim, bias=False)
        self.q_norm = HeadNorm(self.heads, self.channels) if config.qk_norm else None
        self.k_norm = HeadNorm(self.kv_heads, self.channels) if config.qk_norm else None

    def project(self, x: Tensor, factors: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Rotated queries [R,S,H,C] and keys [R,S,K,C], and values [R,S,K,C], of normalised inputs
        x [R,S,D].
        """
        projected = self.wqkv(x)
        heads = projected.view(*projected.shape[:2], -1, self.channels)
        rotated = self.heads + self.kv_heads
        qk = heads[:, :, :rotated]
        v = heads[:, :, rotated:]
        if self.q_norm is not None and self.k_norm is not None:
            qk = torch.cat(
                [self.q_norm(qk[:, :, : self.heads]), self.k_norm(qk[:, :, self.heads :])], dim=2
            )
        qk = rotate(qk, factors)
        q = qk[:, :, : self.heads]
        k = qk[:, :, self.heads :]
        return q, k, v

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, causal: bool) -> Tensor:
        """Scaled dot-product attention of q [R,S,H,C] over k, v [R,K,T,C'], then the output
        projection: [R,S,D].
        """
        out = attend(q.transpose(1, 2), k, v, mask, causal=causal)
        mixed: Tensor = self.wo(out.transpose(1, 2).flatten(2))
        return mixed


class RMSNorm(nn.RMSNorm):
    """torch's RMSNorm, in four operations on a CPU in place of eight.

    x w / sqrt(|x|^2 / D + eps) is sqrt(D) x w / hypot(|x|, sqrt(D eps)).
    """

    def forward(self, x: Tensor) -> Tensor:
        if self.eps is None or not is_eager_on_cpu(x):
            return super().forward(x)
        size = x.shape[-1]
        length = torch.linalg.vector_norm(x, dim=-1, keepdim=True).hypot_(
            _number((size * self.eps) ** 0.5)
        )
        return torch.addcdiv(_number(0.0), x * self.weight, length, value=size**0.5)


@cache
def _number(value: float) -> Tensor:
    """A tensor of one number, for operators that take no plain number."""
    return torch.tensor(value, dtype=torch.float32, device="cpu")


class HeadNorm(nn.Module):
    """LayerNorm over each head's channels with that head's own weight and bias (Chameleon's
    qk-norm). Its eps is always 1e-5, independent of `norm_eps`.
    """

    def __init__(self, heads: int, channels: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(heads, channels))
        self.bias = nn.Parameter(torch.zeros(heads, channels))

    def forward(self, x: Tensor) -> Tensor:
        return F.layer_norm(x, x.shape[-1:], None, None, eps=1e-5) * self.weight + self.bias


class FeedForward(nn.Module):
    """SwiGLU; the gate and up projections share one matrix (gate first)."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.w13 = PackedLinear(config.dim, 2 * config.ffn_dim, bias=False)
        self.w2 = PackedLinear(config.ffn_dim, config.dim, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        gate, up = self.w13(x).chunk(2, dim=-1)
        out: Tensor = self.w2(F.silu(gate) * up)
        return out


class Layer(nn.Module):
    """A pre-norm layer: attention and a feed-forward network."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.attention = Attention(config)
        self.feed_forward = FeedForward(config)
        self.attention_norm: nn.Module
        if config.input_norm:
            self.attention_norm = RMSNorm(config.dim, config.norm_eps)
        else:
            self.attention_norm = nn.Identity()
        self.ffn_norm = RMSNorm(config.dim, config.norm_eps)


class Body(nn.Module, ABC):
    """The interface of a transformer for the engine: this file's, or another library's
    (`HFDecoder`).

    Features are the outputs after the final norm, the inputs of `head` and of an EAGLE layer.
    """

    config: TransformerConfig
    # Whether a pass does the same for all values of its inputs, so that CUDA graphs can hold it.
    capturable: ClassVar[bool] = False
    # Embeddings of the image's codes, and features to logits; None: a drafter that uses the
    # target's.
    embed: nn.Embedding | None
    head: nn.Module | None

    def new_cache(self, rows: int, columns: int) -> KVCache:
        """An empty cache that fits this model, on its device and in its dtype."""
        config = self.config
        weight = next(self.parameters())
        return KVCache(
            config.n_layers,
            rows,
            columns,
            config.kv_heads,
            config.channels,
            dtype=weight.dtype,
            device=weight.device,
        )

    @abstractmethod
    def forward(
        self,
        x: Tensor,
        positions: Tensor,
        *,
        mask: Tensor | None = None,
        cache: CacheView | None = None,
        taps: Sequence[int] = (),
    ) -> Tensor:
        """Features [R, S, D] of input embeddings x [R, S, D] at `positions` [R, S] (or [S]), and
        behind them the inputs of the layers `taps` (0-based; un-normed): [R, S, (1 + len(taps)) D].
        In this project's own transformers, the tap after the last layer is its output.

        Without a cache, attention is among the S inputs: causal, or by `mask` [R, 1, S, S]. With a
        cache, their keys and values are stored in it, and queries attend to its first `span`
        columns (to the S inputs if that is None) by `mask` [R, 1, S, span], or without one to all
        of them. A mask is boolean (True: attend) or additive (0 or -inf), in the inputs' dtype.
        """


class Transformer(Body):
    """A stack of pre-norm layers."""

    head: nn.Linear | None
    rotations: Tensor
    capturable = True
    first_layer = 0  # the place of its first layer in the cache

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.config = config
        self.embed = nn.Embedding(config.vocab_size, config.dim) if config.vocab_size else None
        self.layers = nn.ModuleList(Layer(config) for _ in range(config.n_layers))
        self.norm = RMSNorm(config.dim, config.norm_eps) if config.final_norm else nn.Identity()
        if config.vocab_size:
            self.head = PackedLinear(config.dim, config.vocab_size, bias=False)
        else:
            self.head = None
        self.register_buffer("rotations", rotation_table(config), persistent=False)
        self.last_position = self.rotations.shape[0] - 1

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """Like `nn.Module._apply`, but the rotation table stays complex fp32."""
        del self.rotations  # a cast would drop the imaginary parts
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        table = rotation_table(self.config).to(next(self.parameters()).device)
        self.register_buffer("rotations", table, persistent=False)
        return self

    def factors(self, positions: Tensor) -> Tensor:
        """Rotation factors [R|1, S, C / 2] at `positions` [R, S] or [S]."""
        factors = self.rotations[positions.clamp(max=self.last_position)]
        if factors.dim() == 3:
            return factors
        return factors.unsqueeze(0)

    def forward(
        self,
        x: Tensor,
        positions: Tensor,
        *,
        mask: Tensor | None = None,
        cache: CacheView | None = None,
        taps: Sequence[int] = (),
    ) -> Tensor:
        factors = self.factors(positions)
        tapped: dict[int, Tensor] = {}
        for index, layer in enumerate(cast("Iterable[Layer]", self.layers)):
            if index in taps:
                tapped[index] = x
            q, k, v = layer.attention.project(layer.attention_norm(x), factors)
            if cache is None:
                k = k.transpose(1, 2)
                v = v.transpose(1, 2)
            else:
                k, v = cache.update(self.first_layer + index, k, v)
            x = x + layer.attention.attend(q, k, v, mask, causal=cache is None and mask is None)
            x = x + layer.feed_forward(layer.ffn_norm(x))
        tapped[len(self.layers)] = x
        out: Tensor = self.norm(x)
        if taps:
            return torch.cat([out, *(tapped[index] for index in taps)], dim=-1)
        return out
