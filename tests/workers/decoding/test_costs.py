"""What must not be paid twice, and the benchmark that says when it is."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

from benchmarks import overhead
from search_spaces.acceptance import AcceptanceRule
from search_spaces.neighbourhoods import Additive, CodebookNeighbourhood, NeighbourTables
from search_spaces.presets import PRESETS
from search_spaces.schedules import Constant
from search_spaces.trial import Sampling
from tests.fakes.toys import toy_drafter, toy_target
from workers.decoding import drafting as drafting_module
from workers.decoding.build import build_drafting
from workers.decoding.drafting import TreeDrafting
from workers.decoding.sampling import to_probs


def test_probs_shared_by_a_level_are_computed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Medusa's heads do not see the path: all nodes of a level have one distribution."""
    target, seen = toy_target(), []

    def noted(logits: Tensor, sampling: Sampling) -> Tensor:
        seen.append(logits.shape)
        return to_probs(logits, sampling)

    config = PRESETS["medusa"].with_sampling(Sampling(cfg=2.0, top_k=5))
    monkeypatch.setattr(drafting_module, "to_probs", noted)
    drafting = build_drafting(config, target, toy_drafter("medusa", target))
    assert isinstance(drafting, TreeDrafting)
    logits = torch.randn(4, 1, 24, generator=torch.Generator().manual_seed(0))
    shared, apart = drafting.probs(logits.expand(-1, 7, -1)), drafting.probs(logits.repeat(1, 7, 1))
    assert torch.equal(shared, apart)
    assert seen == [(2, 1, 24), (2, 7, 24)]


def test_the_papers_residual_never_computes_every_tokens_mass(monkeypatch: pytest.MonkeyPatch) -> None:
    rule = AcceptanceRule(Additive(k=3, delta=0.5), Constant(0.5))
    tables, x = NeighbourTables(neighbours=torch.arange(6).expand(6, 6)), torch.tensor([2])
    r, p = torch.full((1, 6), 1 / 6), torch.full((1, 6), 1 / 6)
    monkeypatch.delattr(CodebookNeighbourhood, "all_masses")
    mass = rule.neighbourhood.mass(r, p, x, tables)
    assert float(rule.residual(r, p, x, torch.tensor([0.5]), mass, tables).sum()) == pytest.approx(1)


@pytest.mark.parametrize(
    ("ratio", "share", "status"), [(1.05, 0.10, None), (1.05, 0.13, 1), (1.2, 0.10, 1)], ids=["fair", "share", "ratio"]
)
def test_the_overhead_benchmark_says_what_fails(
    ratio: float, share: float, status: int | None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(overhead, "load_folder", lambda: SimpleNamespace(drafters={"eagle": None}))
    monkeypatch.setattr(overhead, "vanilla_against_bare_loop", lambda *_: (ratio, 1.0, 1.3))
    monkeypatch.setattr(overhead, "share_outside", lambda *_: (share, 2.0, 100.0))
    for arguments in ([], ["--check"]):
        monkeypatch.setattr(sys, "argv", ["overhead", "--only", "eagle1", *arguments])
        if arguments and status:
            with pytest.raises(SystemExit) as stopped:
                overhead.main()
            assert stopped.value.code == status
        else:
            overhead.main()
        assert ("fail" in capsys.readouterr().out) is bool(status)
