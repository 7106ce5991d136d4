"""Diagonal decoding (FlashAR, arXiv 2605.09430): a vertical branch, which predicts the token below
a cell as the target's own head predicts the token to its right, and a gate that mixes the two.

The token of a cell (row r, column c) has these logits, R the target's own and B the branch's:

    row 0       R of (0, c - 1)
    column 0    B of (r - 1, 0)
    others      g R of (r, c - 1) + (1 - g) B of (r - 1, c)
    (0, 0)      g R + (1 - g) B of the prompt's last token

So all cells of a diagonal r + c are sampled at once. The branch is `blocks` further layers behind
one of the target's, with a norm and a head of their own. A cell sees the prompt and all cells with
r' + c' <= r + c, also those of lower rows, which no target is trained on. So its linear layers are
trained too, by changes of low rank (LoRA) that apply in diagonal decoding only.

Shape legend: R rows of the transformer, S slots, D width, V codes.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any, cast

import torch
from torch import Tensor, nn

from workers.models.cache import CacheView
from workers.models.linear import PackedLinear, fp32_logits
from workers.models.transformer import Body, Transformer, TransformerConfig

# bounds of the gate's inputs: in place of infinite logits, and after they are normalised
_LARGEST_LOGIT = 30.0
_LARGEST_INPUT = 6.0
_LEAST_SQUARE = 1e-6
_LEAST_HIDDEN = 32  # units of the gate's hidden layer
_CODES_PER_UNIT = 512


class _Gate(nn.Module):
    """The weight of the horizontal logits, as in FlashAR's code for LlamaGen: a small network that
    reads both logits; or one number for all tokens.
    """

    def __init__(self, vocab_size: int) -> None:
        super().__init__()
        units = max(_LEAST_HIDDEN, vocab_size // _CODES_PER_UNIT)
        self.hidden = PackedLinear(2 * vocab_size, units, bias=False)
        self.out = PackedLinear(units, 1)
        self.scalar = nn.Parameter(torch.zeros(1))
        nn.init.normal_(self.hidden.weight, std=(2 * vocab_size) ** -0.5)
        nn.init.zeros_(self.out.weight)  # the weight starts as a half
        nn.init.zeros_(self.out.bias)

    def forward(self, right: Tensor, below: Tensor) -> Tensor:
        """The weights [..., 1] by the network, for logits [..., V] of one token. No gradient
        reaches the logits.
        """
        x = torch.cat([right, below], dim=-1).detach().float()
        x = x.nan_to_num(nan=0.0, posinf=_LARGEST_LOGIT, neginf=-_LARGEST_LOGIT)
        x = x - x.mean(-1, keepdim=True)
        x = x / x.square().mean(-1, keepdim=True).clamp_min(_LEAST_SQUARE).sqrt()
        x = x.clamp(-_LARGEST_INPUT, _LARGEST_INPUT).to(self.hidden.weight.dtype)
        out: Tensor = self.out(nn.functional.silu(self.hidden(x))).sigmoid().float()
        return out

    def weight(self, form: str, right: Tensor, below: Tensor) -> Tensor:
        """The weights [..., 1] by a form: `learned`, `scalar` or `half`."""
        if form == "learned":
            weight: Tensor = self(right, below)
            return weight
        scalar = self.scalar.float().sigmoid()
        if form == "half":
            return torch.full_like(scalar, 0.5)
        return scalar


def mix(right: Tensor, below: Tensor, weight: Tensor, edges: Tensor | None = None) -> Tensor:
    """The logits [..., V] of tokens that have horizontal and vertical logits [..., V].

    Args:
        right: the horizontal logits.
        below: the vertical logits.
        weight: [..., 1] of the horizontal ones.
        edges: [...] 1 for tokens of the first row, -1 for those of the first column, else 0; None:
            all are 0.
    """
    mixed = right * weight + below * (1 - weight)
    if edges is None:
        return mixed
    edges = edges[..., None]
    return torch.where(edges > 0, right, torch.where(edges < 0, below, mixed))


class FusedHead(nn.Module):
    """Logits of a token from two features side by side [..., 2 D]: the horizontal one, of the cell
    to its left, and the vertical one, of the cell above.
    """

    def __init__(self, right: nn.Module, below: nn.Module, gate: _Gate, form: str) -> None:
        super().__init__()
        self.right = right
        self.below = below
        self.gate = gate
        self.form = form

    def forward(self, features: Tensor, edges: Tensor | None = None) -> Tensor:
        """Logits [..., V] in fp32; for `edges` see `mix`."""
        horizontal, vertical = features.chunk(2, dim=-1)
        right = fp32_logits(self.right, horizontal)
        below = fp32_logits(self.below, vertical)
        return mix(right, below, self.gate.weight(self.form, right, below), edges)


class VerticalBody(Body):
    """A target's transformer and the vertical branch behind it. Its features are theirs side by
    side, [R, S, 2 D].
    """

    capturable = True

    def __init__(self, body: Body, branch: Transformer, start: int, head: FusedHead) -> None:
        super().__init__()
        self.config = replace(body.config, n_layers=body.config.n_layers + branch.config.n_layers)
        self.body = body
        self.branch = branch
        branch.first_layer = body.config.n_layers
        self.start = start
        self.embed = body.embed
        self.head = head

    def forward(
        self,
        x: Tensor,
        positions: Tensor,
        *,
        mask: Tensor | None = None,
        cache: CacheView | None = None,
        taps: Sequence[int] = (),
    ) -> Tensor:
        outputs = self.body(x, positions, mask=mask, cache=cache, taps=(self.start,))
        features, source = outputs.chunk(2, dim=-1)
        below = self.branch(source, positions, mask=mask, cache=cache)
        return torch.cat([features, below], dim=-1)


class _Adapter(nn.Module):
    """A change of a linear layer's weight [out, in]: up [out, r] times down [r, in]. It starts at
    zero.
    """

    def __init__(self, outputs: int, inputs: int, rank: int) -> None:
        super().__init__()
        self.down = nn.Parameter(torch.randn(rank, inputs) * inputs**-0.5)
        self.up = nn.Parameter(torch.zeros(outputs, rank))

    def forward(self, weight: Tensor) -> Tensor:
        """The changed weight, in fp32."""
        if weight.is_meta:  # without numbers; their sum would import torch._dynamo for a second
            return weight.float()
        return weight.float() + (self.up.float() @ self.down.float()).to(weight.device)


def adapted_layers(body: Body) -> dict[str, nn.Linear]:
    """The linear layers of a transformer that adapters change, by name: all but those of its
    head.
    """
    return {
        name: module
        for name, module in body.named_modules()
        if isinstance(module, nn.Linear) and name.partition(".")[0] != "head"
    }


def adapted_weights(body: Body, adapters: Iterable[nn.Module]) -> dict[str, Tensor]:
    """The changed weights of a transformer, by the names of its parameters."""
    layers = adapted_layers(body)
    return {
        f"{name}.weight": adapter(layer.weight)
        for (name, layer), adapter in zip(layers.items(), adapters, strict=True)
    }


def adapted_copy(body: Body, adapters: nn.ModuleList) -> Body:
    """A transformer with changed weights, which shares all others; the given one if there are no
    adapters. Weights of float32 hold numbers of float16, so that they can be packed (see
    `PackedLinear`).
    """
    if not len(adapters):
        return body
    shared = {id(tensor): tensor for tensor in (*body.parameters(), *body.buffers())}
    changed = copy.deepcopy(body, shared)
    layers = adapted_layers(changed)
    for name, weight in adapted_weights(body, adapters).items():
        layer = layers[name.removesuffix(".weight")]
        if layer.weight.dtype == torch.float32:
            weight = weight.half()
        layer.weight = nn.Parameter(weight.to(layer.weight.dtype), requires_grad=False)
    return changed


class VerticalBranch(nn.Module):
    """What is trained for a target, and stored in its file `vertical`.

    Args:
        config: of the further layers.
        vocab_size: number of the target's codes.
        start: the target's layer whose input they read; the number of its layers for the output of
            the last one.
        adapted: outputs and inputs of each adapted layer of the target.
        rank: of the adapters.
    """

    def __init__(
        self,
        config: TransformerConfig,
        vocab_size: int,
        *,
        start: int,
        adapted: Sequence[Sequence[int]],
        rank: int,
    ) -> None:
        super().__init__()
        self.start = start
        self.rank = rank
        self.decoder = Transformer(config)
        self.head = PackedLinear(config.dim, vocab_size, bias=False)
        self.gate = _Gate(vocab_size)
        self.adapters = nn.ModuleList(
            _Adapter(outputs, inputs, rank) for outputs, inputs in adapted
        )

    def settings(self) -> dict[str, Any]:
        """The config in its file's header, from which `build_vertical` makes it again."""
        adapters = cast("Iterable[_Adapter]", self.adapters)
        return {
            "transformer": asdict(self.decoder.config),
            "vocab_size": self.head.out_features,
            "start": self.start,
            "rank": self.rank,
            "adapted": [[len(adapter.up), adapter.down.shape[1]] for adapter in adapters],
        }


def build_vertical(config: Mapping[str, Any]) -> VerticalBranch:
    """A vertical branch without weights, from its `settings`."""
    return VerticalBranch(
        TransformerConfig(**config["transformer"]),
        config["vocab_size"],
        start=config["start"],
        adapted=config["adapted"],
        rank=config["rank"],
    )
