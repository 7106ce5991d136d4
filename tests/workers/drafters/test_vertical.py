"""The vertical head's file, and what is refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from search_spaces.drafters import Vertical
from search_spaces.trial import DecodingConfig, Sampling
from tests.fakes.toys import BASE, toy_branch, toy_target
from workers.decoding.build import load_drafter
from workers.decoding.engine import Engine
from workers.decoding.state import Request
from workers.drafters.vertical import VerticalHead
from workers.models.checkpoint_files import WeightsError
from workers.models.own_files import save
from workers.models.vertical import VerticalBranch, _Gate, mix


def stored(folder: Path, branch: VerticalBranch) -> Path:
    path = folder / "vertical.safetensors"
    save(path, branch, branch.settings())
    return path


def test_a_stored_head_decodes_as_the_one_that_was_stored(tmp_path: Path) -> None:
    target, config = toy_target(), DecodingConfig(Vertical(), sampling=Sampling(cfg=2.0))
    torch.manual_seed(1)
    branch = toy_branch(target).half().float().requires_grad_(False)
    loaded = load_drafter(target, "vertical", stored(tmp_path, branch))
    assert isinstance(loaded, VerticalHead)
    first, second = (
        next(Engine(target, config, head).run([Request(0, "abc")])).tokens
        for head in (VerticalHead(target, branch), loaded)
    )
    assert first.equal(second)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"dim": 64}, "its dim is 32, the target's 64"),
        ({"vocab_size": 30}, "its vocab_size is 24, the target's 30"),
        ({"rows": 5}, "its rows is 4, the target's 5"),
        ({"n_layers": 3}, "it changes 8 layers of other sizes than the target's 12"),
        ({"ffn_dim": 64}, "it changes 8 layers of other sizes than the target's 8"),
    ],
)
def test_another_targets_head_is_refused(
    tmp_path: Path, changes: dict[str, int], message: str
) -> None:
    path = stored(tmp_path, toy_branch(toy_target()))
    with pytest.raises(ValueError, match=f"vertical drafter: {message}"):
        load_drafter(toy_target(config=replace(BASE, **changes)), "vertical", path)  # type: ignore[arg-type]


def test_a_file_of_another_kind_is_named(tmp_path: Path) -> None:
    target, path = toy_target(), stored(tmp_path, toy_branch(toy_target()))
    with pytest.raises(WeightsError, match="a vertical head that `specfrontier train` wrote"):
        load_drafter(target, "medusa", path)


def test_the_gate_starts_as_a_half_and_bears_logits_that_are_not_finite() -> None:
    gate = _Gate(1 << 15)
    assert gate.hidden.out_features == 64
    right, below = torch.full((2, 1 << 15), -torch.inf), torch.randn(2, 1 << 15)
    right[:, :9] = 1.0
    below[0, 0] = torch.nan
    assert gate(right, below).tolist() == [[0.5], [0.5]]
    assert gate.weight("half", right, below).item() == gate.weight("scalar", right, below).item()


def test_edges_take_one_prediction_alone() -> None:
    right, below = torch.full((3, 2), torch.nan), torch.ones(3, 2)
    right[0] = 5.0
    below[0] = torch.nan
    found = mix(right, below, torch.full((3, 1), 0.5), torch.tensor([1, -1, 0]))
    assert found[:2].tolist() == [[5.0, 5.0], [1.0, 1.0]]
    assert found[2].isnan().all()
