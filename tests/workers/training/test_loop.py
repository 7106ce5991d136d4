"""The training loop: its dtype follows the device and changes no result, and its first line does
not wait long.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from recipes import optimisers
from recipes.optimisers import MuonConfig
from recipes.target import train_target
from recipes.tokenizer import TokenizerLoss, TokenizerTraining
from workers.models.transformer import TransformerConfig
from workers.models.vq import VQConfig
from workers.scenes.captions import caption
from workers.scenes.images import render, sample_attributes
from workers.training.drafters import build_model
from workers.training.examples import Examples
from workers.training.loop import FIRST_LINE_S, LINE_INTERVAL_S, Figures, Pace, TrainConfig, train

TARGET = TransformerConfig(
    dim=32,
    n_layers=2,
    n_heads=2,
    ffn_dim=48,
    vocab_size=16,
    prompt_rope="identity",
    prompt_len=12,
    rows=4,
    cols=4,
)
CODEC = VQConfig(
    codebook_size=32,
    code_dim=4,
    channels=8,
    multipliers=(1, 1, 2),
    encoder_blocks=1,
    decoder_blocks=1,
    z_channels=8,
    groups=4,
    level_attention=False,
    mid_attention=False,
)


def quiet(_: str) -> None: ...


def train_small_target(config: TrainConfig, out: Path) -> list[Figures]:
    """A target on images whose tokens follow from their captions, with Muon."""
    rows = sample_attributes(0, range(64))
    data = Examples(
        [caption(row) for row in rows.tolist()], (rows[:, 6:7] * 2 + torch.arange(16) % 3) % 16
    )
    model = build_model(TARGET, {"kind": "scenes"}, 0)
    return train_target(model, data, data, config, out, name="toy", log=quiet)[1]


def train_small_codec(config: TrainConfig, out: Path) -> list[Figures]:
    """A codec on pieces of scenes, with AdamW."""
    torch.manual_seed(0)
    model = TokenizerTraining(CODEC, TokenizerLoss(), config.steps)

    def loss(indices: Tensor, generator: torch.Generator) -> Tensor:
        images = render(sample_attributes(0, indices), 0, indices)[:, :, 16:32, 16:32]
        return model(images * 2 - 1, generator)  # type: ignore[no-any-return]

    return train(model, loss, 800, config, out, name="toy", log=quiet)[1]


@pytest.mark.parametrize(
    ("recipe", "config"),
    [
        (train_small_target, MuonConfig(steps=60, batch=8, warmup=3, save_every=60)),
        (train_small_codec, TrainConfig(steps=20, batch=8, rate=5e-3, save_every=20)),
    ],
)
def test_bfloat16_changes_a_loss_curve_less_than_the_seed_does(
    recipe: Callable[[TrainConfig, Path], list[Figures]], config: TrainConfig, tmp_path: Path
) -> None:
    """By less than 1 %, in means of ten steps and held-out metrics. Another order of the examples
    changes more.
    """

    def curve(name: str, **changes: object) -> Tensor:
        entries = recipe(replace(config, **changes), tmp_path / name)  # type: ignore[arg-type]
        losses = torch.tensor([entry["loss"] for entry in entries if "loss" in entry])
        held_out = [value for key, value in entries[-1].items() if key not in ("step", "loss")]
        return torch.cat([losses.view(-1, 10).mean(1), torch.tensor(held_out)])

    single, mixed, other = (
        curve("fp32", bf16=False),
        curve("bf16", bf16=True),
        curve("seed", bf16=False, seed=1),
    )
    difference = ((mixed - single).abs() / single).max()
    assert 0 < difference < 0.01 < ((other - single).abs() / single).max()


@pytest.mark.parametrize(("flag", "dtype"), [("avx2", torch.float32), ("amx_bf16", torch.bfloat16)])
def test_products_and_muon_compute_in_the_dtype_that_the_log_names(
    flag: str, dtype: torch.dtype, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {flag: True}, raising=False)
    original = optimisers.orthogonalise
    seen: list[torch.dtype] = []
    lines: list[str] = []

    def noted(matrices: Tensor, dtype: torch.dtype) -> Tensor:
        seen.append(dtype)
        return original(matrices, dtype)

    monkeypatch.setattr(optimisers, "orthogonalise", noted)
    model = nn.Sequential(nn.Linear(4, 4))

    def loss(indices: Tensor, _: torch.Generator) -> Tensor:
        product = model(indices[:, None].float().expand(-1, 4))
        seen.append(product.dtype)
        return product.float().square().mean()  # type: ignore[no-any-return]

    train(model, loss, 8, MuonConfig(steps=2, batch=2), tmp_path, name="toy", log=lines.append)
    assert seen == [dtype] * 4
    assert str(dtype).removeprefix("torch.") in lines[0]
    assert flag == "avx2" or flag in lines[0]


class Clock:
    """Seconds that a test sets."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def lines_of(pace: Pace, clock: Clock, seconds: list[float], first: int = 0) -> list[int]:
    """The steps whose end is due for a line, for steps of these durations."""
    lines = []
    for done, duration in enumerate(seconds, start=first + 1):
        clock.now += duration
        if pace.line_is_due(done):
            lines.append(done)
    return lines


@pytest.mark.parametrize("step", [0.01, 1.16, 4.9])
def test_the_first_line_comes_within_ten_seconds(step: float) -> None:
    assert FIRST_LINE_S + 5 <= 10
    clock = Clock()
    lines = lines_of(Pace(0, 50, clock), clock, [step] * 200)
    assert (lines[0] - 1) * step < FIRST_LINE_S
    assert set(range(50, 201, 50)) <= set(lines)
    assert all((b - a) * step < LINE_INTERVAL_S + step for a, b in itertools.pairwise(lines))
    assert len(lines) <= 4 + 1 + 200 * step / LINE_INTERVAL_S


def test_the_pace_leaves_out_a_first_step_that_compiles() -> None:
    clock = Clock()
    pace = Pace(30, 50, clock)  # of a resumed run
    lines_of(pace, clock, [60.0], first=30)
    assert pace.describe(31, 91) == "60000 ms/step, 60.0 min left"
    clock.now += 2.0
    pace.line_is_due(32)
    assert pace.describe(32, 62) == "2000 ms/step, 1.0 min left"
    clock.now += 4.0
    pace.line_is_due(33)
    assert pace.describe(33, 53) == "3000 ms/step, 1.0 min left"
