"""Logits that are not finite: an error wherever a token was taken from them, at the prefill too,
and nowhere else.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from search_spaces.presets import PRESETS
from search_spaces.trial import DecodingConfig, Sampling
from tests.fakes.toys import code_path, toy_drafter, toy_target
from tests.workers.decoding.test_engine import REQUESTS, fitted
from workers.decoding import engine as engine_module
from workers.decoding.accept import AcceptResult
from workers.decoding.drafter import TrainedPart
from workers.decoding.engine import DecodingError, Engine
from workers.decoding.sampling import to_probs
from workers.decoding.state import Batch
from workers.decoding.tree import DraftTree
from workers.drafters.independent import IndependentDrafter
from workers.models.target import Target

EACH = {code_path(config): name for name, config in PRESETS.items()}.values()
VALUES = [torch.nan, torch.inf]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("name", EACH)
def test_a_prefill_that_is_not_finite_is_an_error(
    name: str, temperature: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In one of three rows, or in the row of a caption that is admitted later; all later logits are
    finite.
    """
    target, prefills = toy_target(), 0

    def poisoned(logits: Tensor, sampling: Sampling) -> Tensor:
        nonlocal prefills
        prefills += 1
        if prefills == failing:
            logits = logits.clone()
            logits[-1, 3] = torch.nan
        return to_probs(logits, sampling)

    monkeypatch.setattr(engine_module, "to_probs", poisoned)
    for failing in (1, 2):
        prefills = 0
        drafter = toy_drafter(PRESETS[name].drafter.kind, target)
        engine = Engine(
            target, fitted(PRESETS[name], Sampling(temperature=temperature)), drafter, batch_size=3
        )
        with pytest.raises(DecodingError, match=r"target toy: .*not finite"):
            list(engine.run(REQUESTS))
        assert prefills == failing


def first_round(
    target: Target,
    config: DecodingConfig,
    drafter: TrainedPart | None,
    rows: int,
    poison: Callable[[Tensor], None],
) -> tuple[AcceptResult, list[bool]]:
    """What a round with changed logits accepts in rows of the same caption, and which of them
    fail.
    """

    def observe(batch: Batch, tree: DraftTree, logits: Tensor) -> None:
        poison(logits)

    engine, results = (
        Engine(target, config, drafter, batch_size=rows, observer=observe),
        list[AcceptResult](),
    )
    real: Any = engine.acceptor

    def acceptor(*args: Any) -> AcceptResult:
        results.append(real(*args))
        return results[-1]

    with torch.inference_mode():
        batch, _ = engine.open(deque(REQUESTS[:1] * rows))
        engine.acceptor = acceptor  # type: ignore[assignment]
        report = engine.step(batch)
        failed = (report[4 * rows : 5 * rows] != 0).tolist()
        with pytest.raises(DecodingError) if any(failed) else nullcontext():
            engine.read(batch, report)
    return results[0], failed


def check_each_slot(
    target: Target, config: DecodingConfig, drafter: TrainedPart | None, value: float
) -> int:
    """A row fails if its accepted path has the slot, or drafts that are verified together follow
    it, and is unchanged otherwise. Every row has another slot. Returns the path's length.
    """
    slots = 0

    def nothing(logits: Tensor) -> None:
        nonlocal slots
        slots = logits.shape[1]

    clean, failed = first_round(target, config, drafter, 1, nothing)
    assert failed == [False]
    count = int(clean.num_emitted)
    path = list(range(count)) if clean.path is None else clean.path[0, :count].tolist()
    assert config.sampling is not None
    together = config.acceptance.verification.reads_later_drafts and config.sampling.temperature > 0
    fixed = config.policy.fixed
    read = {parent + 1 for parent in fixed.tree.parents} if together and fixed else set()

    def poison(logits: Tensor) -> None:
        for slot in range(slots):
            # it stays the most likely one
            code = int(clean.tokens[0, path.index(slot)]) if slot in path else 5
            logits[slot, slot, code] = value

    found, failed = first_round(target, config, drafter, slots, poison)
    assert failed == [slot in path or slot in read for slot in range(slots)]
    unchanged = found.tokens[~torch.tensor(failed), :count]
    assert torch.equal(unchanged, clean.tokens[:, :count].expand_as(unchanged))
    return count


@pytest.mark.parametrize("value", VALUES)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("name", [name for name in EACH if PRESETS[name].drafter.row_lag is None])
def test_the_probs_on_the_path_are_checked_and_no_others(
    name: str, temperature: float, value: float
) -> None:
    target, config = toy_target(), fitted(PRESETS[name], Sampling(temperature=temperature))
    if temperature == 0 and PRESETS[name].acceptance.is_relaxed:
        # relaxed ones prefer the longest path
        config = replace(config, acceptance=PRESETS["eagle2"].acceptance)
    check_each_slot(target, config, toy_drafter(config.drafter.kind, target), value)


TREES = {
    "chain": {"policy": "chain", "length": 4},
    "static": {"policy": "static", "paths": [[0], [1], [0, 0], [0, 1], [0, 0, 0], [0, 0, 0, 0]]},
}


@pytest.mark.parametrize("value", VALUES)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("tree", TREES)
def test_accepted_drafts_hide_nothing(tree: str, temperature: float, value: float) -> None:
    """The drafter is the target itself, so a greedy round accepts a draft at every depth."""
    target = toy_target(sampling=Sampling(cfg=1.0))
    config = DecodingConfig.from_mapping({"drafter": "independent", "tree": TREES[tree]})
    config = replace(config, sampling=Sampling(cfg=1.0, temperature=temperature))
    twin = IndependentDrafter(target, target.transformer, target.conditioner)
    count = check_each_slot(target, config, twin, value)
    assert count == 5 or temperature == 1
