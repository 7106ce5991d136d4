"""What must not be paid twice, and the benchmark that says when it is."""

from __future__ import annotations

import sys
from collections import deque
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from benchmarks import overhead
from benchmarks.common import engine_for, held_out_requests
from benchmarks.operations import OperationCounter
from search_spaces.acceptance import AcceptanceRule
from search_spaces.neighbourhoods import Additive, CodebookNeighbourhood, NeighbourTables
from search_spaces.presets import PRESETS
from search_spaces.schedules import Constant
from search_spaces.trial import Sampling
from tests.fakes.toys import toy_drafter, toy_target
from workers.decoding import accept as accept_module
from workers.decoding import drafting as drafting_module
from workers.decoding import jacobi as jacobi_module
from workers.decoding.build import build_drafting
from workers.decoding.drafting import TreeDrafting
from workers.decoding.engine import Engine
from workers.decoding.sampling import to_probs
from workers.decoding.state import Request
from workers.drafters.medusa import MedusaDrafter
from workers.loading.models_yaml import load_folder


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
    logits = torch.randn(2, 1, 24, generator=torch.Generator().manual_seed(0))
    shared, apart = drafting.probs(logits.expand(-1, 7, -1)), drafting.probs(logits.repeat(1, 7, 1))
    assert torch.equal(shared, apart)
    assert seen == [(2, 1, 24), (2, 7, 24)]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_shared_probs_are_ranked_once(temperature: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """The parents of a level share Medusa's probs and their noise, so they have the same
    children.
    """
    target, seen = toy_target(), []
    config = PRESETS["medusa"].with_sampling(Sampling(temperature=temperature, cfg=2.0))
    engine = Engine(target, config, toy_drafter("medusa", target), seed=1)
    batch, _ = engine.open(deque([Request(0, "a"), Request(1, "b")]))
    drafted = engine.drafting.draft(batch)
    topk = Tensor.topk

    def noted(scores: Tensor, *args: Any, **kwargs: Any) -> Any:
        seen.append(scores.shape[1])
        return topk(scores, *args, **kwargs)

    monkeypatch.setattr(Tensor, "topk", noted)
    again = engine.drafting.draft(batch)
    assert torch.equal(again.tokens, drafted.tokens)
    assert set(seen) == {1}
    expand = MedusaDrafter.expand
    monkeypatch.setattr(MedusaDrafter, "expand", lambda *arguments: expand(*arguments).contiguous())
    assert torch.equal(engine.drafting.draft(batch).tokens, drafted.tokens), (
        "as if each parent had its own"
    )
    assert max(seen) > 1


@pytest.mark.parametrize("kind", ["eagle", "medusa"])
def test_probs_of_a_half_precision_drafter_are_computed_in_fp32(kind: str) -> None:
    target = toy_target()
    config = PRESETS[f"{kind}{'2' * (kind == 'eagle')}"].with_sampling(Sampling(top_k=4))
    drafting = build_drafting(config, target, toy_drafter(kind, target))
    assert isinstance(drafting, TreeDrafting)
    logits = torch.randn(2, 3, 24, generator=torch.Generator().manual_seed(0)).bfloat16()
    assert torch.equal(drafting.probs(logits), drafting.probs(logits.float()))
    assert torch.equal(
        drafting.top_children(logits, 3)[0], drafting.top_children(logits.float(), 3)[0]
    )


@pytest.mark.parametrize("name", ["eagle2", "speculative", "lantern_pp"])
def test_masks_of_target_and_drafter_are_aligned(name: str) -> None:
    """Attention kernels copy a mask whose rows are not multiples of 8."""
    target, strides = toy_target(), []
    drafter: Any = toy_drafter(PRESETS[name].drafter.kind, target)
    engine = Engine(target, PRESETS[name].with_sampling(Sampling()), drafter, seed=1)

    def note(module: Any, args: Any, kwargs: Any) -> None:
        strides.append(kwargs["mask"].stride(-2))

    batch, _ = engine.open(deque([Request(0, "a")]))
    bodies: list[nn.Module] = [target.transformer, drafter.decoder]
    for body in bodies:
        body.register_forward_pre_hook(note, with_kwargs=True)
    engine.step(batch)
    assert len(strides) > 2
    assert {stride % 8 for stride in strides} == {0}


@pytest.mark.parametrize("name", ["sjd", "gsd"])
def test_a_windows_probs_are_computed_once_a_round(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = Engine(toy_target(), PRESETS[name].with_sampling(Sampling()), None, seed=1)
    batch, _ = engine.open(deque([Request(0, "a")]))
    calls = []

    def noted(logits: Tensor, sampling: Sampling) -> Tensor:
        calls.append(logits.shape)
        return to_probs(logits, sampling)

    monkeypatch.setattr(accept_module, "to_probs", noted)
    monkeypatch.setattr(jacobi_module, "to_probs", noted)
    engine.step(batch)
    assert len(calls) == 1


@pytest.mark.parametrize(
    "name", ["vanilla", "speculative", "medusa", "eagle1", "eagle2", "eagle3", "adt", "sjd"]
)
def test_nothing_is_computed_between_a_pass_and_the_next_draft(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An accelerator waits while the host reads a pass's counts, records them and plans the next
    pass.
    """
    target, counter = toy_target(), OperationCounter()
    config = PRESETS[name].with_sampling(Sampling(cfg=2.0))
    engine = Engine(target, config, toy_drafter(config.drafter.kind, target), batch_size=2)
    batch, recorder = engine.open(deque([Request(0, "a"), Request(1, "b")]))
    report = engine.step(batch)
    monkeypatch.setattr(engine, "_phases", lambda *_: report)
    with counter:
        counts = engine.read(batch, report)
        recorder.record(counts)
        batch.sync_host_counts(counts.so_far)
        engine.step(batch)
    assert not counter.counts["target"]


def test_the_overhead_benchmark_watches_modules_that_are_called() -> None:
    models, called = load_folder(), set[nn.Module]()
    for name in ("eagle2", "eagle3", "speculative", "medusa"):
        watched = overhead.networks(models, PRESETS[name])
        for module in watched:
            module.register_forward_hook(lambda module, *_: called.add(module))
        engine = engine_for(models, PRESETS[name], batch=1)
        batch, _ = engine.open(deque(held_out_requests(models, 1)))
        engine.step(batch)
        assert called >= set(watched)


def test_the_papers_residual_never_computes_every_tokens_mass(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rule = AcceptanceRule(Additive(k=3, delta=0.5), Constant(0.5))
    tables, x = NeighbourTables(neighbours=torch.arange(6).expand(6, 6)), torch.tensor([2])
    r, p = torch.full((1, 6), 1 / 6), torch.full((1, 6), 1 / 6)
    monkeypatch.delattr(CodebookNeighbourhood, "all_masses")
    mass = rule.neighbourhood.mass(r, p, x, tables)
    assert float(rule.residual(r, p, x, torch.tensor([0.5]), mass, tables).sum()) == pytest.approx(
        1
    )


@pytest.mark.parametrize(
    ("ratio", "share", "status"),
    [(1.05, 0.10, None), (1.05, 0.13, 1), (1.2, 0.10, 1)],
    ids=["fair", "share", "ratio"],
)
def test_the_overhead_benchmark_says_what_fails(
    ratio: float,
    share: float,
    status: int | None,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
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
